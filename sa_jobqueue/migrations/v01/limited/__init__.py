"""The function by which a worker picks jobs where keys take turns or limits hold.

It takes the locks that make counting exact, and each statement in it has a snapshot of its own, which is younger than the locks. The
statement that calls it then claims what it picked, in the same transaction: so the locks last until the claim is visible to all.

Nothing here waits for a job or a key that another transaction has locked. Only the claims of one limited queue or task come one after the
other.
"""

from __future__ import annotations

from .drop import DROP
from .pick import PICK
from .rates import PERMITS_FREED, RATE_OWED
from .ring import RING

__all__ = ["DOWN", "UP"]

UP = (
    RATE_OWED,
    PERMITS_FREED,
    RING,
    DROP,
    # A ring of keys: each gets jobs by its weight, until as many are picked as are wanted, or all have had their turn.
    #
    # Returns a row for each job that it picked, and a row without an id for each queue, whose `info` says where the ring stopped, when to
    # look again, and whether jobs wait for a permit. `unknown_tasks`: those that the worker cannot run. `known`: the versions of the limits that the worker has read. `opener`: 1 to 999, the
    # worker; `freed`: whether limited jobs of it have ended since its last claim. `visible`: what the statement sees that
    # is to claim the jobs; NULL: all.
    PICK,
)

DOWN = (
    "DROP FUNCTION {schema}.pick_limited(text[], integer[], text[], integer[], text[], text[], bigint, bigint[], integer, boolean, pg_snapshot)",
    "DROP FUNCTION {schema}.drop_waiting(text, text, text, text, integer, bigint[])",
    "DROP FUNCTION {schema}.ready_keys(text, text, text, integer)",
    "DROP FUNCTION {schema}.permits_freed(integer)",
    "DROP FUNCTION {schema}.rate_owed(timestamptz, timestamptz, double precision, timestamptz, integer, double precision)",
)

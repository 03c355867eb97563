"""Limits as rows, and a worker's claims under them.

limit(connection, running=2)                     # of the queue "default"
limit(connection, "send", owner="task", key_running=1)
key(connection, "a", weight=3)
jobs = Claimant(connection).claim(10)            # goes on where its last claim has stopped
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, Table, delete, insert, text, update
from sqlalchemy.dialects.postgresql import insert as upsert

from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.models import KeyRow, LimitRow
from sa_jobqueue.sql.limits.claims import KeyCursor, LimitedRequest, QueueAnswer
from sa_jobqueue.sql.store import default_store
from tests.support.factory import TABLE

LIMITS: Table = LimitRow.__table__  # type: ignore[assignment]
KEYS: Table = KeyRow.__table__  # type: ignore[assignment]


def limit(connection: Connection, name: str = "default", *, owner: str = "queue", **columns: Any) -> None:
    """Set these columns of a limit, which may be there already."""
    made = upsert(LIMITS).values(owner=owner, name=name, **columns)
    if columns:
        connection.execute(made.on_conflict_do_update(index_elements=["owner", "name"], set_=columns))
    else:
        connection.execute(made.on_conflict_do_nothing())


def no_limit(connection: Connection, name: str = "default", *, owner: str = "queue") -> None:
    """Remove a limit."""
    connection.execute(delete(LIMITS).where(LIMITS.c.owner == owner, LIMITS.c.name == name))


def key(connection: Connection, key: str, name: str = "default", *, owner: str = "queue", **columns: Any) -> None:
    """Say this of one key."""
    made = upsert(KEYS).values(owner=owner, name=name, key=key, **columns)
    connection.execute(made.on_conflict_do_update(index_elements=["owner", "name", "key"], set_=columns))


def rate(count: int, seconds: float = 1.0, burst: int = 1, *, prefix: str = "") -> dict[str, Any]:
    """The columns of a rate; `prefix`: "key_" for that of each key."""
    return {f"{prefix}rate_count": count, f"{prefix}rate_seconds": seconds, f"{prefix}rate_burst": burst}


def fill(connection: Connection, number: int, key: str | None = None, **columns: Any) -> list[int]:
    """Enqueue jobs of a key; their ids."""
    rows = [{"task": "a_task", "concurrency_key": key, **columns} for _ in range(number)]
    return list(connection.scalars(insert(TABLE).returning(TABLE.c.id, sort_by_parameter_order=True), rows))


def end(connection: Connection, jobs: Iterable[ClaimedJob | int]) -> None:
    """These are done."""
    ids = [job if isinstance(job, int) else job.id for job in jobs]
    connection.execute(
        update(TABLE)
        .where(TABLE.c.id.in_(ids), TABLE.c.status == "running")
        .values(status="completed", finished_at=text("now()"), purge_at=text("now() + interval '1 day'"), lease_expires_at=None)
    )  # fmt: skip


class Claimant:
    """A worker's claims from limited queues, as its `LimitedQueues` makes them; it commits nothing."""

    def __init__(self, connection: Connection, *queues: str, name: str = "me") -> None:
        self.connection, self._name = connection, name
        self._queues = queues or ("default",)
        self.cursors: dict[str, KeyCursor] = {}
        self.states: dict[str, QueueAnswer] = {}
        """What the last claim said."""

    def request(self, free: int | Mapping[str, int], **options: Any) -> LimitedRequest:
        wanted = free if isinstance(free, Mapping) else dict.fromkeys(self._queues, free)
        known = default_store.read_limits(self.connection, list(wanted))
        return LimitedRequest(
            self._name,
            wanted,
            60.0,
            **{"cursors": self.cursors, "tasks": known.tasks, "known": known.version, **options},
        )

    def claim(self, free: int | Mapping[str, int] = 10, **options: Any) -> list[ClaimedJob]:
        """Claim, and again where a claim without a job says so, as a worker does; the jobs in the order to run them.

        Where rates hold, a claim leaves what is younger than a transaction, of any database of the server, that ended while it looked. A
        key that another claim has locked stays so, and a few claims show that.
        """
        for _ in range(5):
            jobs = self.claim_once(free, **options)
            if jobs or not any(state.again for state in self.states.values()):
                break
        return jobs

    def claim_once(self, free: int | Mapping[str, int] = 10, **options: Any) -> list[ClaimedJob]:
        """One claim."""
        _, jobs, self.states = default_store.claim_limited(self.connection, [], self.request(free, **options))
        self.cursors |= {queue: state.cursor for queue, state in self.states.items()}
        return jobs

    def keys(self, free: int | Mapping[str, int] = 10) -> list[str | None]:
        """The keys of the jobs that one claim takes, in the order of their ids."""
        ids = [job.id for job in self.claim(free)]
        found = self.connection.execute(
            TABLE.select().with_only_columns(TABLE.c.concurrency_key).where(TABLE.c.id.in_(ids)).order_by(TABLE.c.id)
        )
        return list(found.scalars())

    @property
    def state(self) -> QueueAnswer:
        """What the last claim said of its only queue."""
        (state,) = self.states.values()
        return state

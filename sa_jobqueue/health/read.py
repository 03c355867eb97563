"""Reading a database's condition: each part is one statement.

Call them in a transaction with a `statement_timeout`, and READ ONLY if you like: they write nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy as sa

from ..models import Base
from ..rules.lifecycle import COUNTED
from ..rules.tally import BUCKETS, quantile
from ..sql.readings import depths
from ..sql.readings import health as statements
from ..sql.store import Store, default_store
from .values import (
    BlockIO,
    Depth,
    Health,
    Holder,
    IndexSize,
    LockWait,
    NextId,
    Overdue,
    Server,
    Slot,
    Standby,
    TableSize,
)

_Value = TypeVar("_Value")

#: From this version on there is pg_stat_io.
_HAS_IO = 16


def read_health(connection: sa.Connection, store: Store = default_store) -> Health:
    """Everything, in ten statements."""
    server = read_server(connection)
    return Health(
        server=server,
        holders=read_holders(connection),
        tables=read_tables(connection, store),
        indexes=read_indexes(connection, store),
        slots=read_slots(connection),
        standbys=read_standbys(connection),
        lock_waits=read_lock_waits(connection, store),
        io=read_io(connection, server),
        overdue=read_overdue(connection, store),
        depths=read_depths(connection, store),
    )


def read_server(connection: sa.Connection) -> Server:
    """The server: its version, settings that matter, connections, and counters of this database."""
    return Server(**connection.execute(statements.server_facts()).mappings().one())


def read_holders(connection: sa.Connection) -> list[Holder]:
    """What keeps old rows from being removed, the oldest first."""
    return _all(connection, statements.snapshot_holders(), Holder)


def read_tables(connection: sa.Connection, store: Store = default_store) -> list[TableSize]:
    """The queue's tables, by name."""
    return _all(connection, statements.table_sizes(**_ours(connection, store)), TableSize)


def read_indexes(connection: sa.Connection, store: Store = default_store) -> list[IndexSize]:
    """The indexes of the queue's tables, by table and name."""
    return _all(connection, statements.index_sizes(**_ours(connection, store)), IndexSize)


def read_next_ids(connection: sa.Connection, store: Store = default_store) -> list[NextId]:
    """The tables of ours that number their rows, in two statements: the first finds the sequences."""
    ours = _ours(connection, store)
    found = connection.execute(statements.identities(**ours)).all()
    if not found:
        return []
    return _all(connection, statements.next_ids(schema=ours["schema"], sequences=dict(map(tuple, found))), NextId)


def read_since_first_job(connection: sa.Connection, store: Store = default_store) -> float | None:
    """Seconds since the oldest job that is there or was counted; None: there is none."""
    tables = store.tables
    seconds: float | None = connection.scalar(depths.since_first_job(job=tables.job, stat=tables.stat))
    return seconds


def read_slots(connection: sa.Connection) -> list[Slot]:
    """The server's replication slots."""
    return _all(connection, statements.slots(), Slot)


def read_standbys(connection: sa.Connection) -> list[Standby]:
    """The servers that follow this one; on a standby, also itself."""
    return _all(connection, statements.standbys(), Standby)


def read_lock_waits(connection: sa.Connection, store: Store = default_store) -> list[LockWait]:
    """Who waits for a lock, and uses a table of ours; the longest first."""
    return _all(connection, statements.lock_waits(**_ours(connection, store)), LockWait)


def read_io(connection: sa.Connection, server: Server) -> list[BlockIO]:
    """Blocks read and written by kind of process; nothing before PostgreSQL 16."""
    return _all(connection, statements.block_io(), BlockIO) if server.major >= _HAS_IO else []


def read_overdue(connection: sa.Connection, store: Store = default_store) -> Overdue:
    """Finished jobs that cleanup has not come to yet."""
    row = connection.execute(depths.purge_overdue(job=store.tables.job)).mappings().one()
    return Overdue(**row)


def read_depths(connection: sa.Connection, store: Store = default_store) -> list[Depth]:
    """The queues that have queued jobs, by name."""
    return _all(connection, depths.queue_depths(job=store.tables.job), Depth)


def _ours(connection: sa.Connection, store: Store) -> dict[str, Any]:
    """The schema, and the names of the tables in it that are ours."""
    names = {table.name for table in Base.metadata.tables.values()} | {store.tables.job.__tablename__}
    return {"schema": store.schema_on(connection), "tables": sorted(names)}


def _all(connection: sa.Connection, statement: sa.Executable, kind: type[_Value]) -> list[_Value]:
    rows: Sequence[Any] = connection.execute(statement).mappings().all()
    return [kind(**row) for row in rows]


# ---- What sums of the table `stat` say: rates per minute, means, and quantiles of how long jobs ran and waited.

#: By name, the share of the durations that a quantile is for.
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
#: Outcomes that are named in any case.
ALWAYS = ("completed", "retried", "failed")
#: The outcomes after which a job is finished.
ENDS = ("completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Figures:
    """What jobs came to within some seconds."""

    counts: dict[str, int]
    seconds: float
    run_seconds: float
    wait_seconds: float
    runs: Sequence[int]
    waits: Sequence[int]

    @classmethod
    def of(cls, rows: Iterable[Any], seconds: float) -> Figures:
        """The sums of these rows of `sum_stats` together, which cover this number of seconds."""
        rows = list(rows)
        return cls(
            {name: sum(getattr(row, name) for row in rows) for name in COUNTED},
            seconds,
            sum(row.run_seconds for row in rows),
            sum(row.wait_seconds for row in rows),
            [sum(row.runs[number] for row in rows) for number in range(BUCKETS)],
            [sum(row.waits[number] for row in rows) for number in range(BUCKETS)],
        )

    @property
    def ended(self) -> int:
        """Jobs that completed, failed or were cancelled."""
        return sum(self.counts[name] for name in ENDS)

    def per_minute(self, *names: str) -> float:
        """How many of these outcomes there were in a minute; without names, how many jobs ended."""
        number = sum(self.counts[name] for name in names) if names else self.ended
        return number * 60 / self.seconds if self.seconds > 0 else 0.0

    def run(self, name: str) -> float | None:
        """Seconds that handlers took: "mean", or a name of `QUANTILES`. None: there was none."""
        return _of(self.runs, self.run_seconds, name)

    def wait(self, name: str) -> float | None:
        """Seconds that jobs had been due when their handlers were called, likewise."""
        return _of(self.waits, self.wait_seconds, name)


def named(figures: Sequence[Figures]) -> list[str]:
    """The outcomes to show of these: the usual ones, and each of the others that happened."""
    return [name for name in COUNTED if name in ALWAYS or any(one.counts[name] for one in figures)]


def _of(counts: Sequence[int], total: float, name: str) -> float | None:
    if name == "mean":
        number = sum(counts)
        return total / number if number else None
    return quantile(counts, QUANTILES[name])

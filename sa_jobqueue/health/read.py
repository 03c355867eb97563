"""A database's condition, and how jobs ended lately. A new reading is an attribute of `Readings`: a statement, and the class of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import sqlalchemy as sa

from ..models import Base
from ..rules.lifecycle import COUNTED
from ..rules.tally import BUCKETS, quantile
from ..sql.readings import depths as depth
from ..sql.readings import health as statements
from ..sql.store import Store, default_store
from .values import BlockIO, Depth, Holder, IndexSize, LockWait, NextId, Overdue, Server, Slot, Standby, TableSize

_Value = TypeVar("_Value")

#: From this version on there is pg_stat_io.
_HAS_IO = 16


def reading(read: Callable[[sa.Connection, Store], _Value]) -> cached_property[_Value]:
    """What `read` returns, as an attribute of `Readings`."""
    return cached_property(lambda readings: read(readings.connection, readings.store))


def _rows(kind: type[_Value], statement: Callable[[Readings], sa.Executable]) -> cached_property[list[_Value]]:
    """The rows of a statement."""
    return cached_property(
        lambda readings: [kind(**row) for row in readings.connection.execute(statement(readings)).mappings()]
    )


def _row(kind: type[_Value], statement: Callable[[Readings], sa.Executable]) -> cached_property[_Value]:
    """The only row of a statement."""
    return cached_property(lambda readings: kind(**readings.connection.execute(statement(readings)).mappings().one()))


class Readings:
    """A database's condition: each attribute is read when it is first asked for, by one statement, and kept.

    Read them in a transaction with a `statement_timeout`, and READ ONLY if you like: they write nothing.
    """

    def __init__(self, connection: sa.Connection, store: Store = default_store) -> None:
        self.connection, self.store = connection, store

    server = _row(Server, lambda _: statements.server_facts())
    """The server: its version, settings that matter, connections, and counters of this database."""
    holders = _rows(Holder, lambda _: statements.snapshot_holders())
    """What keeps old rows from being removed, the oldest first."""
    tables = _rows(TableSize, lambda readings: statements.table_sizes(**readings.ours))
    """The queue's tables, by name."""
    indexes = _rows(IndexSize, lambda readings: statements.index_sizes(**readings.ours))
    """The indexes of the queue's tables, by table and name."""
    slots = _rows(Slot, lambda _: statements.slots())
    """The server's replication slots."""
    standbys = _rows(Standby, lambda _: statements.standbys())
    """The standbys of this server; on a standby, also the server itself."""
    lock_waits = _rows(LockWait, lambda readings: statements.lock_waits(**readings.ours))
    """Who waits for a lock, and uses a table of ours; the longest first."""
    overdue = _row(Overdue, lambda readings: depth.purge_overdue(job=readings.store.job))
    """Finished jobs that cleanup has not deleted yet."""
    depths = _rows(Depth, lambda readings: depth.queue_depths(job=readings.store.job))
    """The queues that have queued jobs, by name."""

    @cached_property
    def io(self) -> list[BlockIO]:
        """Blocks read and written by kind of process; nothing before PostgreSQL 16."""
        rows = self.connection.execute(statements.block_io()).mappings() if self.server.major >= _HAS_IO else ()
        return [BlockIO(**row) for row in rows]

    @cached_property
    def next_ids(self) -> list[NextId]:
        """The tables of ours that number their rows, in two statements: the first finds the sequences."""
        found = self.connection.execute(statements.identities(**self.ours)).all()
        if not found:
            return []
        ids = statements.next_ids(schema=self.ours["schema"], sequences=dict(map(tuple, found)))
        return [NextId(**row) for row in self.connection.execute(ids).mappings()]

    @cached_property
    def since_first_job(self) -> float | None:
        """Seconds since the oldest job that is there or was counted; None: there is none."""
        seconds: float | None = self.connection.scalar(depth.since_first_job(job=self.store.job))
        return seconds

    @cached_property
    def ours(self) -> dict[str, Any]:
        """The schema, and the names of the tables in it that are ours."""
        names = {table.name for table in Base.metadata.tables.values()} | {self.store.job.__tablename__}
        return {"schema": self.store.schema_on(self.connection), "tables": sorted(names)}


# ---- What sums of the table `stat` say: rates per minute, means, and quantiles of how long jobs ran and waited.

#: By name, the share of the durations that a quantile is for.
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
#: Outcomes that are named in any case.
ALWAYS = ("completed", "retried", "failed")
#: The outcomes after which a job is finished.
ENDS = ("completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Figures:
    """How jobs ended within some seconds."""

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
            _summed([row.runs for row in rows]),
            _summed([row.waits for row in rows]),
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


def _summed(counts: Sequence[Sequence[int]]) -> list[int]:
    return list(map(sum, zip(*counts, strict=True))) or [0] * BUCKETS


def named(figures: Sequence[Figures]) -> list[str]:
    """The outcomes to show: the usual outcomes, and all others that occurred."""
    return [name for name in COUNTED if name in ALWAYS or any(figure.counts[name] for figure in figures)]


def _of(counts: Sequence[int], total: float, name: str) -> float | None:
    if name == "mean":
        number = sum(counts)
        return total / number if number else None
    return quantile(counts, QUANTILES[name])

"""One run of the checks: its connection, its thresholds, and what was read so far, each thing once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, Engine

from ..health import (
    Depth,
    Holder,
    IndexSize,
    LockWait,
    Overdue,
    Server,
    Slot,
    Standby,
    TableSize,
    read_depths,
    read_holders,
    read_indexes,
    read_lock_waits,
    read_overdue,
    read_server,
    read_slots,
    read_standbys,
    read_tables,
)
from ..statements.overview import list_workers
from ..store import Store, default_store
from .thresholds import Thresholds

__all__ = ["Examination"]


class Examination:
    """What the checks of one run share. Each value is read when a check first asks for it.

    `engine`: for the check of LISTEN and NOTIFY, which needs two more connections; None leaves it out.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        engine: Engine | None = None,
        thresholds: Thresholds | None = None,
        store: Store = default_store,
    ) -> None:
        self.connection = connection
        self.engine = engine
        self.thresholds = thresholds or Thresholds()
        self.store = store

    @property
    def schema(self) -> str:
        """The schema of the job tables."""
        return self.store.schema_on(self.connection)

    def table(self, name: str) -> str:
        """A table's name as an operator would type it."""
        return f"{self.schema}.{name}"

    @cached_property
    def server(self) -> Server:
        """The server and its settings."""
        return read_server(self.connection)

    @cached_property
    def holders(self) -> Sequence[Holder]:
        """What keeps dead rows from being removed."""
        return read_holders(self.connection)

    @cached_property
    def tables(self) -> Sequence[TableSize]:
        """The tables."""
        return read_tables(self.connection, self.store)

    @cached_property
    def indexes(self) -> Sequence[IndexSize]:
        """Their indexes."""
        return read_indexes(self.connection, self.store)

    @cached_property
    def slots(self) -> Sequence[Slot]:
        """The replication slots."""
        return read_slots(self.connection)

    @cached_property
    def standbys(self) -> Sequence[Standby]:
        """The servers that follow."""
        return read_standbys(self.connection)

    @cached_property
    def lock_waits(self) -> Sequence[LockWait]:
        """Who waits for a lock."""
        return read_lock_waits(self.connection, self.store)

    @cached_property
    def overdue(self) -> Overdue:
        """Jobs that should be deleted."""
        return read_overdue(self.connection, self.store)

    @cached_property
    def depths(self) -> Sequence[Depth]:
        """The queues with queued jobs."""
        return read_depths(self.connection, self.store)

    @cached_property
    def workers(self) -> Sequence[Any]:
        """The rows of `list_workers`."""
        tables = self.store.tables
        return self.connection.execute(list_workers(job=tables.job, worker=tables.worker)).all()

    @property
    def live_workers(self) -> Sequence[Any]:
        """Those that are not stale."""
        return [worker for worker in self.workers if not worker.stale]

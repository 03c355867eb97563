"""The rows of worker processes, and the server processes of connections that broke."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa

from ..statements import workers as statements
from ..statements.workers import enrol_worker, forget_workers, remove_worker
from .tables import OfTables

__all__ = ["Enrolled", "Workers", "end_backend"]


class Enrolled(NamedTuple):
    """What a worker hears when it says that it is alive.

    `next_look`: seconds until a schedule is due, None: there is none. `clock`: the database's time, in seconds since 1970. `archived`:
    the names of the tasks whose jobs are archived. `undeclared`: whether there are limits that no code declares any more.
    `drains`: whether an operator asks it to drain.
    """

    next_look: float | None
    clock: float
    archived: frozenset[str]
    undeclared: bool
    drains: bool


class Workers(OfTables):
    """Which worker processes there are."""

    def enrol(
        self,
        connection: sa.Connection,
        worker: uuid.UUID,
        *,
        host: str,
        pid: int,
        queues: Sequence[str],
        concurrency: int,
        version: str,
        **more: Any,
    ) -> Enrolled:
        """Write this worker process down; also after its row was pruned while it was away. `more`: as for `enrol_worker`."""
        row = connection.execute(
            enrol_worker(
                id=worker, host=host, pid=pid, queues=queues, concurrency=concurrency, version=version, **more,
                worker=self.tables.worker, schedule=self.tables.schedule,
                limit=self.tables.limit, archived_task=self.tables.archived_task,
            )
        ).one()  # fmt: skip
        return Enrolled(row.next_look, row.clock, frozenset(row.archived), row.undeclared, row.drains)

    def forget_workers(self, connection: sa.Connection, *, unseen_for: timedelta) -> int:
        """Strike off the workers that have not been seen for `unseen_for`; how many they were."""
        return connection.execute(forget_workers(unseen_for=unseen_for, worker=self.tables.worker)).rowcount

    def leave(self, connection: sa.Connection, worker: uuid.UUID) -> None:
        """Strike this worker off."""
        connection.execute(remove_worker(worker, worker=self.tables.worker))


def end_backend(connection: sa.Connection, pid: int, *, application: str, seconds: float) -> None:
    """End the server process of a connection that broke, if it is still there, and wait at most `seconds` for that.

    Its last statement may be at work, unnoticed, and would commit.
    """
    connection.execute(statements.end_backend(pid, application=application, seconds=seconds))

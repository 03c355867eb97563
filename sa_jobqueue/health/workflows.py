"""Workflows: how many there are, and which do not move on."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from ..statements.workflows import watching
from ..store import Store, default_store

__all__ = ["BehindWorkflow", "WorkflowCounts", "read_behind_workflows", "read_workflows"]


@dataclass(frozen=True, slots=True)
class WorkflowCounts:
    """How many workflows there are; each number is counted up to 10,001."""

    running: int
    """Those that have not ended, but for the paused ones."""
    paused: int
    failed: int
    """Those that ended so, and were not retried or deleted yet."""
    overdue: int
    """Those that have not ended although their deadline is over."""
    events: int
    """What has happened to their jobs and was not read yet."""
    oldest: float | None
    """For how many seconds the oldest running one has been there; None: none runs."""


@dataclass(frozen=True, slots=True)
class BehindWorkflow:
    """A workflow of which something was not read yet, though it is not paused. Mostly it is read in the next moment."""

    id: int
    seconds: float | None
    """Since the first of that happened; None: the time is not known, as of a change by an operator."""


def read_workflows(connection: sa.Connection, store: Store = default_store) -> WorkflowCounts | None:
    """How many workflows there are; None: there are none."""
    tables = store.tables
    row = connection.execute(watching.count_workflows(workflow=tables.workflow, event=tables.event)).one()
    if not row.exist:
        return None
    return WorkflowCounts(row.running, row.paused, row.failed, row.overdue, row.events, row.seconds)


def read_behind_workflows(connection: sa.Connection, store: Store = default_store) -> list[BehindWorkflow]:
    """The workflows of which something was not read yet and that are not paused; 101 at most, by id."""
    tables = store.tables
    behind = watching.workflows_behind(job=tables.job, workflow=tables.workflow, event=tables.event)
    return [
        BehindWorkflow(row.id, None if row.seconds is None else max(row.seconds, 0.0))
        for row in connection.execute(behind)
    ]

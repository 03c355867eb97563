"""Deleting workflows whose retention is over: first their members, page by page, then their other rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...models import Job, JobMixin, companions_of, status_in
from ...rules.lifecycle import FINISHED
from ...util.log import get_logger
from ..admin import UNSYNCHRONIZED
from ..archive import is_not_archived, make_months_of, move_jobs
from ..claims import Fault, fault_of, is_month_missing
from ..notes import delete_notes
from ..parts import FIRST_ID, array, materialized, members, table_of
from ..prune import limit_statements, refuse_at_once
from ..tables import Compiled, StorePart
from .actions import advance_parameters, advance_workflows, cancel_workflows, stray_workflows
from .healing import heal_members, heal_workflows
from .insert import inputs_of, page_of_inputs


def _is_over(job: type[JobMixin]) -> sa.ColumnElement[bool]:
    """Whether the retention of a workflow is over, and it has no new event, such as the retry of a job."""
    tables = companions_of(job)
    event, workflow = tables.event, tables.workflow
    unread = sa.select(event.id).where(event.workflow_id == workflow.id).correlate(table_of(workflow))
    return sa.and_(workflow.purge_at <= sa.func.now(), sa.not_(unread.exists()))


def workflows_over(*, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """The ids of workflows whose retention is over."""
    workflow = companions_of(job).workflow
    return (
        sa.select(workflow.id)
        .where(_is_over(job))
        .order_by(workflow.purge_at)
        .limit(sa.bindparam("page", limit, sa.Integer))
    )


def prune_members(id: int, *, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Delete a page of the members of a workflow whose retention is over, and their edges. Returns their ids.

    No member is deleted if the workflow has come back meanwhile; and no member of an archived task: a worker may not know these yet.
    """
    columns = table_of(job).c
    plain = _members(id, limit, job).where(is_not_archived(job))
    ids = _locked(plain)
    gone = sa.delete(job).where(members(columns.id, ids)).execution_options(**UNSYNCHRONIZED)
    also = (*delete_notes(ids, job=job), _edges(ids, job))
    return gone.add_cte(*also).returning(columns.id)


def move_members(id: int, *, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Like `prune_members`, where there are archived tasks: their jobs are moved to the archive.

    Returns what `move_jobs` does.
    """
    ids = _locked(_members(id, limit, job))
    return move_jobs(ids, job=job).add_cte(_edges(ids, job))


def make_months_of_members(id: int, *, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Make the months of the archive that a page of these members needs; see `make_months_of`."""
    columns = table_of(job).c
    page = sa.select(columns.id).where(
        columns.workflow_id == sa.bindparam("of_workflow", id, sa.BigInteger), status_in(columns.status, FINISHED)
    )
    return make_months_of(page.order_by(columns.id).limit(sa.bindparam("page", limit, sa.Integer)), job=job)


def _members(id: int, limit: int, job: type[JobMixin]) -> sa.Select[Any]:
    """A page of the members, if the retention of the workflow is over; the workflow is locked then."""
    workflow = companions_of(job).workflow
    columns = table_of(job).c
    flow = sa.bindparam("of_workflow", id, sa.BigInteger)
    over = materialized(
        sa.select(workflow.id)
        .where(workflow.id == flow, _is_over(job))
        .with_for_update(key_share=True, skip_locked=True),
        "over",
    )
    return (
        sa.select(columns.id)
        .where(members(columns.workflow_id, sa.select(over.c.id)), status_in(columns.status, FINISHED))
        .order_by(columns.id)
        .limit(sa.bindparam("page", limit, sa.Integer))
    )


def _locked(page: sa.Select[Any]) -> sa.Select[Any]:
    return sa.select(materialized(page.with_for_update(), "chosen").c.id)


def _edges(ids: sa.Select[Any], job: type[JobMixin]) -> sa.CTE:
    """Delete the edges from these members to their parents."""
    dependency = companions_of(job).dependency
    return sa.delete(dependency).where(members(table_of(dependency).c.child_id, ids)).cte("edges")


def forget_workflows(ids: Sequence[int], *, job: type[JobMixin] = Job) -> sa.Executable:
    """Delete workflows whose retention is over and that have no members left, with all their rows. Returns their ids."""
    tables = companions_of(job)
    callback, event, join, workflow = tables.callback, tables.event, tables.join, tables.workflow
    columns = table_of(job).c
    has_members = sa.select(columns.id).where(columns.workflow_id == workflow.id).correlate(table_of(workflow)).exists()
    these = array("workflow_ids", list(ids), sa.BigInteger())
    chosen = (
        sa.select(workflow.id)
        .where(workflow.id == sa.func.any(these), _is_over(job), sa.not_(has_members))
        .with_for_update()
    )
    found = materialized(chosen, "chosen")
    mine = sa.select(found.c.id)
    also = [
        sa.delete(model).where(members(table_of(model).c.workflow_id, mine)).cte(name)
        for model, name in ((callback, "callbacks"), (join, "joins"), (event, "events"))
    ]
    gone = sa.delete(workflow).where(members(table_of(workflow).c.id, mine)).execution_options(**UNSYNCHRONIZED)
    return gone.add_cte(*also).returning(workflow.id)


def postpone_workflow(id: int, *, job: type[JobMixin] = Job) -> sa.Executable:
    """Put off the deletion of a workflow by a day."""
    workflow = companions_of(job).workflow
    later = sa.func.now() + sa.literal_column("interval '1 day'")
    due = sa.update(workflow).where(sa.and_(workflow.id == sa.bindparam("of_workflow", id, sa.BigInteger)))
    return due.values(purge_at=later).execution_options(**UNSYNCHRONIZED)


# ---- Moving workflows on, reading the results that members take, and deleting workflows.

logger = get_logger(__name__)

#: A member with more parents than this, or with results of more bytes, reads them itself, page by page.
_MOST_INPUTS, _MOST_BYTES = 256, 65_536


#: The values are given at each execution.
_NONE: Mapping[int, int] = {}


class Advanced(NamedTuple):
    """The result of a step: workflows with more events; workflows that another transaction has locked, or whose members it has; the
    last event that was read of each; the queues in which jobs were released; and how many events were read.
    """

    again: frozenset[int]
    busy: frozenset[int]
    read: Mapping[int, int]
    queues: Sequence[str]
    eaten: int


class Input(NamedTuple):
    """The end of a parent of a member. `result` and `error`: as JSON text."""

    position: int | None
    policy: str
    parent_id: int
    status: str | None
    result: str | None
    error: str | None


class Workflows(StorePart):
    """Moving workflows on, healing and deleting them, and reading the results that members take."""

    def advance(self, connection: sa.Connection, after: Mapping[int, int], *, most: int = 1_000) -> Advanced:
        """Read the events of these workflows after the given events, and release the members that waited for them."""
        ((again, busy, read, last, queues, eaten),) = self._advance.rows(
            connection, advance_parameters(after, most=most)
        )
        points: dict[int, int] = dict(zip(read or (), last or (), strict=True))
        return Advanced(frozenset(again or ()), frozenset(busy or ()), points, queues or (), eaten)

    @cached_property
    def _advance(self) -> Compiled:
        return Compiled(advance_workflows(_NONE, most=0, schema=self.schema))

    def stray_workflows(self, connection: sa.Connection, *, limit: int = 1_000) -> list[int]:
        """Workflows with events that perhaps no worker knows. Workflows whose deadline is over are cancelled first."""
        looked = stray_workflows(limit=limit, job=self.job)
        found, overdue = connection.execute(looked).one()
        strays: list[int] = list(found or ())
        if overdue:
            ended = cancel_workflows(*overdue, reason="the deadline of the workflow is over", schema=self.schema)
            strays += connection.scalars(ended).all()
        return strays

    def heal_members(
        self, connection: sa.Connection, *, after: int = FIRST_ID, limit: int = 1_000
    ) -> tuple[int | None, int]:
        """Heal a page of the members that wait for others. Returns the end of the page, None after the last; and how many were healed."""
        statement = heal_members(after=after, limit=limit, job=self.job)
        last, healed, gone = connection.execute(statement).one()
        if gone:
            connection.execute(cancel_workflows(*gone, reason="its workflow was deleted", schema=self.schema))
        return last, healed

    def heal_workflows(
        self, connection: sa.Connection, *, after: int = FIRST_ID, limit: int = 1_000
    ) -> tuple[int | None, int]:
        """Heal a page of the workflows that are live although all their members have ended. Returns as `heal_members` does."""
        last, healed = connection.execute(heal_workflows(after=after, limit=limit, job=self.job)).one()
        return last, healed

    # ---- the results that members take

    def inputs_of(self, connection: sa.Connection, ids: Sequence[int]) -> dict[int, list[Input] | None]:
        """The results that each of these members takes, by its id; None where they are too much to be read at once."""
        statement = inputs_of(ids, most=_MOST_INPUTS, size=_MOST_BYTES, job=self.job)
        found: dict[int, list[Input] | None] = {job_id: [] for job_id in ids}
        for child, *values in connection.execute(statement):
            taken = Input(*values)
            if taken.position is None:
                found[child] = None
            elif (inputs := found[child]) is not None:
                inputs.append(taken)
        return found

    def page_of_inputs(self, connection: sa.Connection, id: int, *, after: int, limit: int) -> list[Input]:
        """A page of the results that a member takes, by position."""
        statement = page_of_inputs(id, after=after, limit=limit, job=self.job)
        return [Input(*row) for row in connection.execute(statement)]

    # ---- deleting

    def workflows_over(self, connection: sa.Connection, *, limit: int = 100) -> list[int]:
        """Workflows whose retention is over."""
        return list(connection.scalars(workflows_over(limit=limit, job=self.job)))

    def make_months_of_members(self, connection: sa.Connection, id: int, *, limit: int = 1_000) -> int:
        """Make the months of the archive that a page of the members needs. Returns how many were missing."""
        return int(connection.scalar(make_months_of_members(id, limit=limit, job=self.job)) or 0)

    def prune_workflow(
        self,
        connection: sa.Connection,
        id: int,
        *,
        limit: int = 1_000,
        seconds: float,
        archive: bool = False,
        months: bool = False,
    ) -> int | None:
        """Delete a page of the members, and after the last page the workflow. Returns how many members were deleted.

        Returns None if a member cannot be deleted: then the workflow stays for another day. `archive`: as for `Pruning`. `months`: whether
        the months that the members need have been made, so that a missing month cannot be made.
        """
        try:
            with connection.begin_nested():
                connection.execute(refuse_at_once())
                connection.execute(limit_statements(seconds))
                gone = self._prune_members(connection, id, limit, archive)
                if gone < limit:
                    connection.execute(forget_workflows([id], job=self.job))
                return gone
        except DBAPIError as error:
            fault = fault_of(error)
            if fault is Fault.AWAY or (is_month_missing(error) and not months):
                raise
            if archive and fault is Fault.LATE and self.is_archive_locked(connection):
                raise
            connection.execute(postpone_workflow(id, job=self.job))
            logger.warning("workflow %d cannot be deleted; it stays for another day: %s", id, error.orig)
            return None

    def _prune_members(self, connection: sa.Connection, id: int, limit: int, archive: bool) -> int:
        if archive:
            return int(connection.execute(move_members(id, limit=limit, job=self.job)).one().jobs)
        return len(connection.execute(prune_members(id, limit=limit, job=self.job)).all())

"""Reading a workflow: its members, their numbers by status, and its callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, aggregate_order_by

from ...models import Job, JobMixin, companions_of
from ..parts import FIRST_ID, ONE, ZERO, array, columns_of, rows, seconds_since, table_of
from ..readings.depths import CAP


def workflow_nodes(id: int, *, after: int = FIRST_ID, limit: int = 1_000, job: type[JobMixin] = Job) -> sa.Select[Any]:
    """The members of a workflow, by id, from `after` (exclusive) on: id, task, queue, status, attempt, blocked_by, created_at, claimed_at,
    finished_at, the last error; parents, an array of ids, and policies, what becomes of it where each of them does not complete; and needed,
    how many have to complete of those whose policy is "count".
    """
    join = companions_of(job).join
    columns, before = table_of(job).c, _before(job)
    needed = sa.select(join.needed).where(join.job_id == columns.id).correlate(table_of(job)).scalar_subquery()
    counts = sa.literal_column("'count'", sa.Text) == sa.func.any(before.c.policies)
    last = columns.errors.op("->", return_type=JSONB())(sa.literal_column("-1"))
    names = "id task queue status attempt blocked_by created_at claimed_at finished_at"
    more = last.label("error"), before.c.parents, before.c.policies, sa.case((counts, needed)).label("needed")
    page = _members(id, limit, job, before, [*columns_of(columns, names), *more])
    return page.where(columns.id > sa.bindparam("after_id", after, sa.BigInteger))


def workflow_graph(id: int, *, limit: int, job: type[JobMixin] = Job) -> sa.Select[Any]:
    """The first `limit` members of a workflow for a picture of it, by id: id, task, status, created_at, claimed_at, finished_at,
    parents and policies, as in `workflow_nodes`.
    """
    before = _before(job)
    columns = columns_of(table_of(job).c, "id task status created_at claimed_at finished_at")
    return _members(id, limit, job, before, [*columns, before.c.parents, before.c.policies])


def _members(id: int, limit: int, job: type[JobMixin], before: sa.FromClause, columns: Sequence[Any]) -> sa.Select[Any]:
    """These columns of the first `limit` members of a workflow, by id."""
    table = table_of(job)
    query: Any = sa.select(*columns).select_from(table.join(before, sa.true()))
    query = query.where(table.c.workflow_id == sa.bindparam("of_workflow", id, sa.BigInteger))
    found: sa.Select[Any] = query.order_by(table.c.id).limit(sa.bindparam("page", limit, sa.Integer))
    return found


def _before(job: type[JobMixin]) -> sa.FromClause:
    """The parents of each member, and the policy for a parent that does not complete."""
    edge = table_of(companions_of(job).dependency)
    return (
        sa.select(
            sa.func.array_agg(aggregate_order_by(edge.c.parent_id, edge.c.parent_id), type_=sa.ARRAY(sa.BigInteger)).label("parents"),
            sa.func.array_agg(aggregate_order_by(edge.c.policy, edge.c.parent_id), type_=sa.ARRAY(sa.Text)).label("policies"),
        )
        .where(edge.c.child_id == table_of(job).c.id)
        .correlate(table_of(job))
        .lateral("before")
    )  # fmt: skip


def workflow_counts(ids: Sequence[int], *, job: type[JobMixin] = Job) -> sa.Executable:
    """How many jobs of these workflows have which status: workflow_id, status, number. A status that no job has, has no row."""
    columns = table_of(job).c
    flow = rows("flow", id=array("workflow_ids", list(ids), sa.BigInteger()))
    return (
        sa.select(columns.workflow_id, columns.status, sa.func.count().label("number"))
        .where(columns.workflow_id == flow.c.id)
        .group_by(columns.workflow_id, columns.status)
    )


def count_some_members(
    ids: Sequence[int], *, cap: int, where: Sequence[sa.ColumnElement[bool]] = (), job: type[JobMixin] = Job
) -> sa.Executable:
    """Like `workflow_counts`, for the first `cap` members of each workflow that match `where`: so it takes milliseconds."""
    columns = table_of(job).c
    flow = rows("flow", id=array("workflow_ids", list(ids), sa.BigInteger()))
    some = (
        sa.select(columns.status)
        .where(columns.workflow_id == flow.c.id, *where)
        .order_by(columns.id)
        .limit(sa.bindparam("cap", cap, sa.Integer))
        .correlate(flow)
        .lateral("some")
    )
    return (
        sa.select(flow.c.id.label("workflow_id"), some.c.status, sa.func.count().label("number"))
        .select_from(flow.join(some, sa.true()))
        .group_by(flow.c.id, some.c.status)
    )


def workflow_callbacks(id: int, *, job: type[JobMixin] = Job) -> sa.Executable:
    """The callbacks of a workflow: event, task, queue, fired_at."""
    callback = companions_of(job).callback
    return (
        sa.select(callback.event, callback.task, callback.queue, callback.fired_at)
        .where(callback.workflow_id == sa.bindparam("of_workflow", id, sa.BigInteger))
        .order_by(callback.number)
    )


# ---- All workflows: how many there are, and which do not move on.

#: Workflows that do not move on are counted up to this number.
BEHIND = 101
#: Workflows with events that are read for that, paused workflows among them.
_LOOKED = 1_001
#: Events of a workflow whose time is read: most of the first events are of jobs that have ended.
_FIRST = 10
#: Paused workflows that are named.
_NAMED = 100


def count_workflows(*, cap: int = CAP, job: type[JobMixin] = Job) -> sa.Executable:
    """One row: whether workflows `exist`; how many are `running`, `paused`, `overdue` (their deadline is over, and they have not
    ended) and `failed`, and how many `events` were not read yet, each counted up to `cap`; and the `seconds` since the oldest running workflow was made.
    """
    tables = companions_of(job)
    columns, happened = table_of(tables.workflow).c, table_of(tables.event).c
    most = sa.bindparam("cap", cap, sa.Integer)
    lives, runs = columns.finished_at.is_(None), columns.paused_at.is_(None)

    def number(page: sa.Select[Any]) -> sa.ScalarSelect[int]:
        return sa.select(sa.func.count()).select_from(page.limit(most).subquery("page")).scalar_subquery()

    oldest = sa.select(columns.created_at).where(lives, runs).order_by(columns.created_at).limit(ONE).scalar_subquery()
    return sa.select(
        sa.select(columns.id).exists().label("exist"),
        number(sa.select(ONE).where(lives, runs).order_by(columns.created_at)).label("running"),
        number(sa.select(ONE).where(lives, columns.paused_at.is_not(None)).order_by(columns.paused_at)).label("paused"),
        number(sa.select(ONE).where(lives, columns.deadline_at <= sa.func.now()).order_by(columns.deadline_at)).label("overdue"),
        number(sa.select(ONE).where(columns.status == sa.literal_column("'failed'")).order_by(columns.finished_at)).label("failed"),
        number(sa.select(ONE).select_from(table_of(tables.event)).order_by(happened.workflow_id, happened.id)).label("events"),
        seconds_since(oldest).label("seconds"),
    )  # fmt: skip


def workflows_behind(*, limit: int = BEHIND, looked: int = _LOOKED, job: type[JobMixin] = Job) -> sa.Executable:
    """A row per workflow that has something to read and is not paused, the first `limit`, among the first `looked` that have some: its
    `id`, and the `seconds` since the first of it happened.

    The time is that of the job's end; it is NULL where the first events are of no job that has ended, as after a change by an operator.
    """
    tables = companions_of(job)
    jobs, happened, columns = table_of(job).c, table_of(tables.event).c, table_of(tables.workflow).c

    def first(*after: sa.ColumnElement[bool]) -> sa.Select[Any]:
        return sa.select(happened.workflow_id).where(*after).order_by(happened.workflow_id).limit(ONE)

    # By workflow, not by event: many events of a workflow must not hide another workflow.
    start = sa.select(first().scalar_subquery().label("id"), ONE.label("number"))
    flow = start.cte("flow", recursive=True)
    following = first(happened.workflow_id > flow.c.id).correlate(flow).scalar_subquery()
    more = sa.select(following, flow.c.number + ONE).where(
        flow.c.id.is_not(None), flow.c.number < sa.bindparam("looked", looked, sa.Integer)
    )
    flow = flow.union_all(more)
    # OFFSET 0 is a fence: each is looked up by its id.
    goes_on = (
        sa.select(columns.id)
        .where(columns.id == flow.c.id, sa.or_(columns.paused_at.is_(None), columns.cancelled_at.is_not(None)))
        .offset(ZERO)
        .correlate(flow)
        .exists()
    )
    behind = sa.select(flow.c.id).where(goes_on).limit(sa.bindparam("most", limit, sa.Integer)).subquery("behind")
    page = (
        sa.select(happened.job_id)
        .where(happened.workflow_id == behind.c.id)
        .order_by(happened.workflow_id, happened.id)
        .limit(sa.literal_column(str(_FIRST)))
        .correlate(behind)
        .subquery("page")
    )
    ended = sa.select(jobs.finished_at).where(jobs.id == page.c.job_id).offset(ZERO).correlate(page).scalar_subquery()
    since = sa.select(sa.func.min(ended).label("first")).select_from(page).correlate(behind).lateral("since")
    seconds = seconds_since(since.c.first).label("seconds")
    return sa.select(behind.c.id, seconds).select_from(behind.join(since, sa.true()))


def paused_workflows(*, seconds: float, job: type[JobMixin] = Job) -> sa.Executable:
    """The ids of workflows that have been paused for so long, the longest first; 100 at most."""
    columns = table_of(companions_of(job).workflow).c
    return (
        sa.select(columns.id)
        .where(columns.finished_at.is_(None), columns.paused_at <= sa.func.now() - _interval(seconds))
        .order_by(columns.paused_at)
        .limit(sa.literal_column(str(_NAMED)))
    )


def _interval(seconds: float) -> sa.ColumnElement[Any]:
    return sa.bindparam("paused_seconds", seconds, sa.Float) * sa.literal_column("interval '1 second'")

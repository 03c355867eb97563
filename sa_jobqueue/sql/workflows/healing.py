"""Finding members that plain SQL by hand has ended without an event, and appending the event: for maintenance and the doctor."""

from __future__ import annotations

import sqlalchemy as sa

from ...models import Job, JobMixin, companions_of, status_in, status_literal
from ...rules.lifecycle import FINISHED, JobStatus
from ..parts import FIRST_ID, ZERO, materialized, table_of


def heal_members(*, after: int = FIRST_ID, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Read a page of the members that wait for another member, by the id of that. If it has ended or is gone without an event, because
    of plain SQL by hand, an event is appended.

    Returns one row: the last id that a member waited for, NULL if there are no more; how many events were appended; and the ids of
    workflows whose rows are gone, NULL if there are none.
    """
    tables = companions_of(job)
    table = table_of(job)
    columns = table.c
    page = (
        sa.select(columns.blocked_by, columns.workflow_id)
        .where(columns.status == status_literal(JobStatus.BLOCKED), columns.blocked_by > sa.bindparam("after_id", after, sa.BigInteger))
        .order_by(columns.blocked_by)
        .limit(sa.bindparam("page", limit, sa.Integer))
        .cte("page")
        .prefix_with("MATERIALIZED")
    )  # fmt: skip
    parent = table.alias("parent")
    happened = table_of(tables.event)
    lives = (
        sa.select(parent.c.id)
        .where(parent.c.id == page.c.blocked_by, sa.not_(status_in(parent.c.status, FINISHED)))
        .correlate(page)
    )
    known = (
        sa.select(happened.c.id)
        .where(happened.c.workflow_id == page.c.workflow_id, happened.c.job_id == page.c.blocked_by)
        .correlate(page)
    )
    strays = (
        sa.select(page.c.workflow_id, page.c.blocked_by, sa.cast(sa.literal_column("false"), sa.Boolean))
        .where(page.c.blocked_by > ZERO, sa.not_(lives.exists()), sa.not_(known.exists()))
        .distinct()
    )
    appended = (
        happened.insert()
        .from_select(["workflow_id", "job_id", "completed"], strays, include_defaults=False)
        .returning(happened.c.id)
        .cte("appended")
    )
    last = sa.select(sa.func.max(page.c.blocked_by)).scalar_subquery()
    flow = sa.select(tables.workflow.id).where(tables.workflow.id == page.c.workflow_id).correlate(page)
    gone = sa.select(sa.func.array_agg(page.c.workflow_id.distinct())).where(sa.not_(flow.exists())).scalar_subquery()
    healed = sa.select(sa.func.count()).select_from(appended).scalar_subquery()
    return sa.select(last.label("last"), healed.label("healed"), gone.label("gone"))


def heal_workflows(*, after: int = FIRST_ID, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Read a page of the workflows, by id. Where all members of a live workflow have ended without an event, or all parents of a member
    that needs some of them, because of plain SQL by hand, an event is appended.

    Returns one row: the last workflow, NULL if there are no more, and how many events were appended.
    """
    tables = companions_of(job)
    dependency, event, join, workflow = tables.dependency, tables.event, tables.join, tables.workflow
    jobs, happened, edge = table_of(job), table_of(event), table_of(dependency)
    page = materialized(
        sa.select(workflow.id, workflow.watched_id, workflow.finished_at)
        .where(workflow.id > sa.bindparam("after_id", after, sa.BigInteger))
        .order_by(workflow.id)
        .limit(sa.bindparam("page", limit, sa.Integer)),
        "page",
    )
    # OFFSET 0 is a fence: each is looked up by an index.
    parent, child = jobs.alias("parent"), jobs.alias("child")
    goes_on = sa.and_(
        page.c.finished_at.is_(None),
        sa.not_(
            sa.select(happened.c.id).where(happened.c.workflow_id == page.c.id).offset(ZERO).correlate(page).exists()
        ),
    )
    watched = sa.select(jobs.c.id).where(jobs.c.id == page.c.watched_id, sa.not_(status_in(jobs.c.status, FINISHED)))
    lives = sa.select(jobs.c.id).where(jobs.c.workflow_id == page.c.id, sa.not_(status_in(jobs.c.status, FINISHED)))
    over = sa.select(page.c.id, (-page.c.id).label("job_id"), sa.cast(sa.null(), sa.Boolean)).where(
        goes_on,
        sa.not_(watched.offset(ZERO).correlate(page).exists()),
        sa.not_(lives.offset(ZERO).correlate(page).exists()),
    )
    waits = (
        sa.select(child.c.id)
        .where(
            child.c.id == join.job_id, child.c.status == status_literal(JobStatus.BLOCKED),
            child.c.blocked_by == ZERO,
        )
        .offset(ZERO)
        .correlate(table_of(join))
    )  # fmt: skip
    has_parent = (
        sa.select(edge.c.parent_id)
        .select_from(edge.join(parent, parent.c.id == edge.c.parent_id))
        .where(edge.c.child_id == join.job_id, edge.c.policy == sa.literal_column("'count'"), sa.not_(status_in(parent.c.status, FINISHED)))
        .offset(ZERO)
        .correlate(table_of(join))
    )  # fmt: skip
    joins = (
        sa.select(page.c.id, join.job_id, sa.cast(sa.null(), sa.Boolean))
        .select_from(page.join(table_of(join), join.workflow_id == page.c.id))
        .where(goes_on, waits.exists(), sa.not_(has_parent.exists()))
    )
    appended = (
        happened.insert()
        .from_select(["workflow_id", "job_id", "completed"], over.union_all(joins), include_defaults=False)
        .returning(happened.c.id)
        .cte("appended")
    )
    last = sa.select(sa.func.max(page.c.id)).scalar_subquery()
    return sa.select(
        last.label("last"), sa.select(sa.func.count()).select_from(appended).scalar_subquery().label("healed")
    )


def stray_members(*, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """The ids of members, among the first `limit`, that wait for a member that has ended or is gone without an event."""
    table = table_of(job)
    first = (
        sa.select(table.c.id, table.c.blocked_by, table.c.workflow_id)
        .where(table.c.status == status_literal(JobStatus.BLOCKED), table.c.blocked_by > ZERO)
        .order_by(table.c.blocked_by)
        .limit(sa.bindparam("sample", limit, sa.Integer))
        .subquery("waiting")
    )
    parent, happened = table.alias("parent"), table_of(companions_of(job).event)
    # OFFSET 0 is a fence: each is looked up by its id.
    lives = (
        sa.select(parent.c.id)
        .where(parent.c.id == first.c.blocked_by, sa.not_(status_in(parent.c.status, FINISHED)))
        .offset(ZERO)
    )
    known = (
        sa.select(happened.c.id)
        .where(happened.c.workflow_id == first.c.workflow_id, happened.c.job_id == first.c.blocked_by)
        .offset(ZERO)
    )
    return sa.select(first.c.id).where(sa.not_(lives.exists()), sa.not_(known.exists())).order_by(first.c.id)


def blocked_edges(*, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Edges between blocked members: child_id, parent_id; at most `limit` rows."""
    table, edge = table_of(job), table_of(companions_of(job).dependency)
    child, parent = table.alias("child"), table.alias("parent")
    blocked = status_literal(JobStatus.BLOCKED)
    return (
        sa.select(edge.c.child_id, edge.c.parent_id)
        .select_from(child.join(edge, edge.c.child_id == child.c.id).join(parent, parent.c.id == edge.c.parent_id))
        .where(child.c.status == blocked, child.c.blocked_by.is_not(None), parent.c.status == blocked)
        .limit(sa.bindparam("sample", limit, sa.Integer))
    )

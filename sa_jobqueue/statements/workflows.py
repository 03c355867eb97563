"""Workflows: moving them on, and what an operator does to them. Each is a statement, so it joins the caller's transaction:

>>> statement = cancel_workflows(7, reason="the customer left")

The work is done by functions of the schema, under a lock of the workflow's row and without waiting for any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    Executable,
    Integer,
    Text,
    and_,
    bindparam,
    case,
    cast,
    column,
    delete,
    func,
    literal_column,
    not_,
    null,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB

from ..lifecycle import FINISHED, JobStatus
from ..models import (
    SCHEMA,
    Job,
    LogPart,
    Progress,
    WorkflowCallback,
    WorkflowDependency,
    WorkflowEvent,
    WorkflowJoin,
    WorkflowRow,
    schema_function,
    status_in,
    status_literal,
)
from .admin import UNSYNCHRONIZED
from .notes import delete_notes
from .parts import FIRST_ID, array, members, packed, table_of

__all__ = [
    "advance_parameters",
    "advance_workflows",
    "blocked_edges",
    "cancel_workflows",
    "count_members",
    "forget_workflows",
    "heal_members",
    "heal_workflows",
    "inputs_of",
    "page_of_inputs",
    "pause_workflows",
    "postpone_workflow",
    "prune_members",
    "resume_workflows",
    "retry_workflow",
    "stray_members",
    "stray_workflows",
    "workflow_callbacks",
    "workflow_nodes",
    "workflows_over",
]

_OUT: Mapping[str, Any] = {
    "again_ids": ARRAY(BigInteger), "busy_ids": ARRAY(BigInteger), "read_ids": ARRAY(BigInteger), "last_ids": ARRAY(BigInteger),
    "queues": ARRAY(Text), "eaten": Integer,
}  # fmt: skip


def advance_parameters(after: Mapping[int, int], *, most: int) -> dict[str, Any]:
    """The parameters of `advance_workflows`, by name. `after`: by workflow, the id behind which to read events."""
    return {"advance_ids": packed(after), "advance_after": packed(after.values()), "most": most}


def advance_workflows(after: Mapping[int, int], *, most: int, schema: str = SCHEMA) -> Executable:
    """Read what has happened to members of these workflows, at most `most` events, and release or cancel those that waited for it.

    Returns one row: the workflows that have `again_ids` something to read; the `busy_ids`, which another transaction has locked, or
    members of which; by workflow (`read_ids`) the `last_ids` that were read; the `queues` in which jobs were released; how many
    events were `eaten`.
    """
    given = advance_parameters(after, most=most)
    call: Any = schema_function(
        "advance",
        schema,
        array("advance_ids", given["advance_ids"], BigInteger()),
        array("advance_after", given["advance_after"], BigInteger()),
        bindparam("most", most, Integer),
        of=Text(),
    )
    row = call.table_valued(*(column(name, of) for name, of in _OUT.items()), name="moved").render_derived(name="moved")
    return select(*row.c)


def stray_workflows(*, limit: int, schema: str = SCHEMA) -> Executable:
    """Two arrays: workflows with events that perhaps no worker has heard of, and workflows whose deadline is over."""
    call: Any = schema_function("stray_workflows", schema, bindparam("page", limit, Integer), of=Text())
    row = call.table_valued(
        column("workflows", ARRAY(BigInteger)), column("overdue", ARRAY(BigInteger)), name="stray"
    ).render_derived(name="stray")
    return select(row.c.workflows, row.c.overdue)


def _acted(name: str, ids: Any, *more: Any, schema: str) -> Executable:
    acted: Any = schema_function(name, schema, ids, *more, of=BigInteger())
    row = acted.table_valued(column("id", BigInteger), name="acted").render_derived(name="acted")
    return select(row.c.id)


def cancel_workflows(
    *ids: int, reason: str = "the workflow was cancelled by an operator", schema: str = SCHEMA
) -> Executable:
    """Cancel workflows: members that wait are cancelled with this reason, those that run are asked to stop.

    Members that are added meanwhile are cancelled, too. Returns the ids of those that had not ended.
    """
    _check(ids)
    return _acted(
        "cancel_workflows",
        array("workflow_ids", list(ids), BigInteger()),
        bindparam("reason", reason, Text),
        schema=schema,
    )


def retry_workflow(id: int, *, from_node: int | None = None, schema: str = SCHEMA) -> Executable:
    """Retry what failed or was cancelled in a workflow: each such job waits for its parents again, with all its attempts before it.

    `from_node`: the id of a job; then only this one, and those below it that were cancelled because of others. Returns the ids of the jobs
    that come back. A unique job whose key another one has does not.
    """
    _check([id])
    if from_node is not None and type(from_node) is not int:
        raise TypeError(f"from_node is the id of a job, not {from_node!r}; a node has it as job_id")
    return _acted(
        "retry_workflow",
        bindparam("workflow", id, BigInteger),
        bindparam("from_node", from_node, BigInteger),
        schema=schema,
    )


def pause_workflows(*ids: int, schema: str = SCHEMA) -> Executable:
    """Start no more jobs of these workflows; those that run go on. Returns the ids of those that were not paused."""
    _check(ids)
    return _acted("pause_workflows", array("workflow_ids", list(ids), BigInteger()), schema=schema)


def resume_workflows(*ids: int, schema: str = SCHEMA) -> Executable:
    """Let paused workflows go on. Returns the ids of those that were paused."""
    _check(ids)
    return _acted("resume_workflows", array("workflow_ids", list(ids), BigInteger()), schema=schema)


def _check(ids: Sequence[object]) -> None:
    for one in ids:
        if type(one) is not int:
            raise TypeError(f"workflows are given by their ids, not by {one!r}")


# ---- what a member takes


def inputs_of(
    ids: Sequence[int],
    *,
    most: int,
    size: int,
    job: type[Job] = Job,
    dependency: type[WorkflowDependency] = WorkflowDependency,
) -> Executable:
    """What the parents of these jobs have returned: child_id, position, policy, parent_id, status, result, error as JSON text, and total.

    A job with more than `most` parents, or more than `size` bytes, has one row, without a position.
    """
    child = func.unnest(array("child_ids", list(ids), BigInteger())).table_valued("id", name="child").render_derived()
    of_child = (
        _inputs(table_of(job), table_of(dependency), child.c.id)
        .limit(bindparam("most", most + 1, Integer))
        .lateral("input")
    )
    per_child = func.count().over(partition_by=child.c.id)
    bytes_of_child = func.sum(func.octet_length(of_child.c.result)).over(partition_by=child.c.id)
    too_much = (per_child > literal_column(str(most))) | (func.coalesce(bytes_of_child, 0) > literal_column(str(size)))
    found = select(
        child.c.id.label("child_id"), of_child, too_much.label("too_much"),
        func.row_number().over(partition_by=child.c.id, order_by=of_child.c.position).label("number"),
    ).select_from(child.join(of_child, literal_column("true"))).subquery("found")  # fmt: skip
    columns = found.c
    return (
        select(
            columns.child_id,
            case((not_(columns.too_much), columns.position)).label("position"),
            columns.policy, columns.parent_id, columns.status,
            case((not_(columns.too_much), columns.result)).label("result"),
            case((not_(columns.too_much), columns.error)).label("error"),
        )
        .where(not_(columns.too_much) | (columns.number == 1))
        .order_by(columns.child_id, columns.position)
    )  # fmt: skip


def page_of_inputs(
    id: int,
    *,
    after: int = -1,
    limit: int,
    job: type[Job] = Job,
    dependency: type[WorkflowDependency] = WorkflowDependency,
) -> Executable:
    """A page of what the parents of one job have returned, from the position `after` (exclusive) on: the columns of `inputs_of`."""
    edge = table_of(dependency).c
    child = bindparam("child_id", id, BigInteger)
    # The page is cut first, and only its parents are read.
    page = (
        select(edge.child_id, edge.parent_id, edge.policy, edge.position)
        .where(edge.child_id == child, edge.position > bindparam("after", after, Integer))
        .order_by(edge.position)
        .limit(bindparam("page", limit, Integer))
        .cte("page")
        .prefix_with("MATERIALIZED")
    )
    found: Executable = _inputs(table_of(job), page, child)
    return found


def _inputs(parent: Any, edge: Any, child: Any) -> Any:
    last = parent.c.errors.op("->", return_type=JSONB())(literal_column("-1"))
    found: Any = (
        select(
            edge.c.position,
            edge.c.policy,
            edge.c.parent_id,
            parent.c.status,
            cast(parent.c.result, Text).label("result"),
            case((parent.c.status != status_literal(JobStatus.COMPLETED), cast(last, Text))).label("error"),
        )
        .select_from(edge.outerjoin(parent, parent.c.id == edge.c.parent_id))
        .where(edge.c.child_id == child, edge.c.position.is_not(None))
        .order_by(edge.c.position)
    )
    return found


# ---- looking


def workflow_nodes(
    id: int,
    *,
    after: int = FIRST_ID,
    limit: int = 1_000,
    job: type[Job] = Job,
    dependency: type[WorkflowDependency] = WorkflowDependency,
) -> Executable:
    """The members of a workflow, by id, from `after` (exclusive) on: id, task, queue, status, attempt, blocked_by, created_at, claimed_at,
    finished_at, the last error, and parents, an array of ids.
    """
    columns = table_of(job).c
    edge = table_of(dependency)
    parents = (
        select(func.array_agg(edge.c.parent_id, type_=ARRAY(BigInteger)))
        .where(edge.c.child_id == columns.id)
        .correlate(table_of(job))
        .scalar_subquery()
    )
    last = columns.errors.op("->", return_type=JSONB())(literal_column("-1"))
    return (
        select(
            columns.id, columns.task, columns.queue, columns.status, columns.attempt, columns.blocked_by, columns.created_at,
            columns.claimed_at, columns.finished_at, last.label("error"), parents.label("parents"),
        )
        .where(columns.workflow_id == bindparam("of_workflow", id, BigInteger), columns.id > bindparam("after_id", after, BigInteger))
        .order_by(columns.id)
        .limit(bindparam("page", limit, Integer))
    )  # fmt: skip


def count_members(ids: Sequence[int], *, job: type[Job] = Job) -> Executable:
    """How many members of these workflows have which status: workflow_id, status, number."""
    columns = table_of(job).c
    return (
        select(columns.workflow_id, columns.status, func.count().label("number"))
        .where(columns.workflow_id == func.any(array("workflow_ids", list(ids), BigInteger())))
        .group_by(columns.workflow_id, columns.status)
    )


def workflow_callbacks(id: int, *, callback: type[WorkflowCallback] = WorkflowCallback) -> Executable:
    """What is to be enqueued when something happens to a workflow: event, task, queue, fired_at."""
    return (
        select(callback.event, callback.task, callback.queue, callback.fired_at)
        .where(callback.workflow_id == bindparam("of_workflow", id, BigInteger))
        .order_by(callback.number)
    )


# ---- keeping order


def heal_members(
    *,
    after: int = FIRST_ID,
    limit: int,
    job: type[Job] = Job,
    event: type[WorkflowEvent] = WorkflowEvent,
) -> Executable:
    """Look at a page of the members that wait for another, by what they wait for. Where that has ended, or is gone, without an event, by
    plain SQL by hand, an event is appended.

    Returns one row: the last that was waited for, NULL if there are no more, and how many events were appended.
    """
    table = table_of(job)
    columns = table.c
    page = (
        select(columns.blocked_by, columns.workflow_id)
        .where(columns.status == status_literal(JobStatus.BLOCKED), columns.blocked_by > bindparam("after_id", after, BigInteger))
        .order_by(columns.blocked_by)
        .limit(bindparam("page", limit, Integer))
        .cte("page")
        .prefix_with("MATERIALIZED")
    )  # fmt: skip
    parent = table.alias("parent")
    happened = table_of(event)
    lives = (
        select(parent.c.id)
        .where(parent.c.id == page.c.blocked_by, not_(status_in(parent.c.status, FINISHED)))
        .correlate(page)
    )
    known = (
        select(happened.c.id)
        .where(happened.c.workflow_id == page.c.workflow_id, happened.c.job_id == page.c.blocked_by)
        .correlate(page)
    )
    strays = (
        select(page.c.workflow_id, page.c.blocked_by, cast(literal_column("false"), Boolean))
        .where(page.c.blocked_by > literal_column("0"), not_(lives.exists()), not_(known.exists()))
        .distinct()
    )
    appended = (
        happened.insert()
        .from_select(["workflow_id", "job_id", "completed"], strays, include_defaults=False)
        .returning(happened.c.id)
        .cte("appended")
    )
    last = select(func.max(page.c.blocked_by)).scalar_subquery()
    return select(last.label("last"), select(func.count()).select_from(appended).scalar_subquery().label("healed"))


def heal_workflows(
    *,
    after: int = FIRST_ID,
    limit: int,
    job: type[Job] = Job,
    workflow: type[WorkflowRow] = WorkflowRow,
    dependency: type[WorkflowDependency] = WorkflowDependency,
    join: type[WorkflowJoin] = WorkflowJoin,
    event: type[WorkflowEvent] = WorkflowEvent,
) -> Executable:
    """Look at a page of the workflows, by id. Where all members of one that goes on have ended without an event, or all parents of a member
    that needs some of them, by plain SQL by hand, an event is appended.

    Returns one row: the last workflow, NULL if there are no more, and how many events were appended.
    """
    jobs, happened, edge = table_of(job), table_of(event), table_of(dependency)
    page = (
        select(workflow.id, workflow.watched_id, workflow.finished_at)
        .where(workflow.id > bindparam("after_id", after, BigInteger))
        .order_by(workflow.id)
        .limit(bindparam("page", limit, Integer))
        .cte("page")
        .prefix_with("MATERIALIZED")
    )
    # OFFSET 0 is a fence: each is looked up by an index.
    fence: ColumnElement[Any] = literal_column("0")
    parent, child = jobs.alias("parent"), jobs.alias("child")
    goes_on = and_(
        page.c.finished_at.is_(None),
        not_(select(happened.c.id).where(happened.c.workflow_id == page.c.id).offset(fence).correlate(page).exists()),
    )
    watched = select(jobs.c.id).where(jobs.c.id == page.c.watched_id, not_(status_in(jobs.c.status, FINISHED)))
    lives = select(jobs.c.id).where(jobs.c.workflow_id == page.c.id, not_(status_in(jobs.c.status, FINISHED)))
    over = select(page.c.id, (-page.c.id).label("job_id"), cast(null(), Boolean)).where(
        goes_on,
        not_(watched.offset(fence).correlate(page).exists()),
        not_(lives.offset(fence).correlate(page).exists()),
    )
    waits = (
        select(child.c.id)
        .where(
            child.c.id == join.job_id, child.c.status == status_literal(JobStatus.BLOCKED),
            child.c.blocked_by == literal_column("0"),
        )
        .offset(fence)
        .correlate(table_of(join))
    )  # fmt: skip
    has_parent = (
        select(edge.c.parent_id)
        .select_from(edge.join(parent, parent.c.id == edge.c.parent_id))
        .where(edge.c.child_id == join.job_id, edge.c.policy == literal_column("'count'"), not_(status_in(parent.c.status, FINISHED)))
        .offset(fence)
        .correlate(table_of(join))
    )  # fmt: skip
    joins = (
        select(page.c.id, join.job_id, cast(null(), Boolean))
        .select_from(page.join(table_of(join), join.workflow_id == page.c.id))
        .where(goes_on, waits.exists(), not_(has_parent.exists()))
    )
    appended = (
        happened.insert()
        .from_select(["workflow_id", "job_id", "completed"], over.union_all(joins), include_defaults=False)
        .returning(happened.c.id)
        .cte("appended")
    )
    last = select(func.max(page.c.id)).scalar_subquery()
    return select(last.label("last"), select(func.count()).select_from(appended).scalar_subquery().label("healed"))


def stray_members(*, limit: int, job: type[Job] = Job, event: type[WorkflowEvent] = WorkflowEvent) -> Executable:
    """The ids of members that wait for one that has ended or is gone, and of which no event says so, among the first `limit`."""
    table = table_of(job)
    first = (
        select(table.c.id, table.c.blocked_by, table.c.workflow_id)
        .where(table.c.status == status_literal(JobStatus.BLOCKED), table.c.blocked_by > literal_column("0"))
        .order_by(table.c.blocked_by)
        .limit(bindparam("sample", limit, Integer))
        .subquery("waiting")
    )
    parent, happened = table.alias("parent"), table_of(event)
    # OFFSET 0 is a fence: each is looked up by its id.
    lives = (
        select(parent.c.id)
        .where(parent.c.id == first.c.blocked_by, not_(status_in(parent.c.status, FINISHED)))
        .offset(literal_column("0"))
    )
    known = (
        select(happened.c.id)
        .where(happened.c.workflow_id == first.c.workflow_id, happened.c.job_id == first.c.blocked_by)
        .offset(literal_column("0"))
    )
    return select(first.c.id).where(not_(lives.exists()), not_(known.exists())).order_by(first.c.id)


def blocked_edges(
    *, limit: int, job: type[Job] = Job, dependency: type[WorkflowDependency] = WorkflowDependency
) -> Executable:
    """Of blocked members, for which others that are blocked they wait: child_id, parent_id; at most `limit` rows."""
    table, edge = table_of(job), table_of(dependency)
    child, parent = table.alias("child"), table.alias("parent")
    blocked = status_literal(JobStatus.BLOCKED)
    return (
        select(edge.c.child_id, edge.c.parent_id)
        .select_from(child.join(edge, edge.c.child_id == child.c.id).join(parent, parent.c.id == edge.c.parent_id))
        .where(child.c.status == blocked, child.c.blocked_by.is_not(None), parent.c.status == blocked)
        .limit(bindparam("sample", limit, Integer))
    )


def _is_over(workflow: type[WorkflowRow], event: type[WorkflowEvent]) -> ColumnElement[bool]:
    """Whether its time is over, and nothing has happened in it since, such as a retry of one of its jobs."""
    unread = select(event.id).where(event.workflow_id == workflow.id).correlate(table_of(workflow))
    return and_(workflow.purge_at <= func.now(), not_(unread.exists()))


def workflows_over(
    *, limit: int, workflow: type[WorkflowRow] = WorkflowRow, event: type[WorkflowEvent] = WorkflowEvent
) -> Executable:
    """The ids of workflows whose time to be kept is over."""
    return (
        select(workflow.id)
        .where(_is_over(workflow, event))
        .order_by(workflow.purge_at)
        .limit(bindparam("page", limit, Integer))
    )


def prune_members(
    id: int,
    *,
    limit: int,
    job: type[Job] = Job,
    progress: type[Progress] = Progress,
    log: type[LogPart] = LogPart,
    dependency: type[WorkflowDependency] = WorkflowDependency,
    workflow: type[WorkflowRow] = WorkflowRow,
    event: type[WorkflowEvent] = WorkflowEvent,
) -> Executable:
    """Delete a page of the members of a workflow whose time is over, and what each waited for. Returns their ids.

    None is deleted if the workflow has come back meanwhile.
    """
    columns = table_of(job).c
    flow = bindparam("of_workflow", id, BigInteger)
    over = (
        select(workflow.id)
        .where(workflow.id == flow, _is_over(workflow, event))
        .with_for_update(key_share=True, skip_locked=True)
        .cte("over")
        .prefix_with("MATERIALIZED")
    )
    page = (
        select(columns.id)
        .where(members(columns.workflow_id, select(over.c.id)), status_in(columns.status, FINISHED))
        .order_by(columns.id)
        .limit(bindparam("page", limit, Integer))
        .with_for_update()
        .cte("chosen")
        .prefix_with("MATERIALIZED")
    )
    ids = select(page.c.id)
    edges = delete(dependency).where(members(table_of(dependency).c.child_id, ids)).cte("edges")
    gone = delete(job).where(members(columns.id, ids)).execution_options(**UNSYNCHRONIZED)
    return gone.add_cte(*delete_notes(ids, progress=progress, log=log), edges).returning(columns.id)


def forget_workflows(
    ids: Sequence[int],
    *,
    job: type[Job] = Job,
    workflow: type[WorkflowRow] = WorkflowRow,
    callback: type[WorkflowCallback] = WorkflowCallback,
    join: type[WorkflowJoin] = WorkflowJoin,
    event: type[WorkflowEvent] = WorkflowEvent,
) -> Executable:
    """Delete workflows whose time is over and that have no members left, and what else there is of them. Returns their ids."""
    columns = table_of(job).c
    has_members = select(columns.id).where(columns.workflow_id == workflow.id).correlate(table_of(workflow)).exists()
    these = array("workflow_ids", list(ids), BigInteger())
    chosen = (
        select(workflow.id)
        .where(workflow.id == func.any(these), _is_over(workflow, event), not_(has_members))
        .with_for_update()
    )
    found = chosen.cte("chosen").prefix_with("MATERIALIZED")
    mine = select(found.c.id)
    also = [
        delete(one).where(members(table_of(one).c.workflow_id, mine)).cte(name)
        for one, name in ((callback, "callbacks"), (join, "joins"), (event, "events"))
    ]
    gone = delete(workflow).where(members(table_of(workflow).c.id, mine)).execution_options(**UNSYNCHRONIZED)
    return gone.add_cte(*also).returning(workflow.id)


def postpone_workflow(id: int, *, workflow: type[WorkflowRow] = WorkflowRow) -> Executable:
    """A workflow that could not be deleted is due again after a day."""
    later = func.now() + literal_column("interval '1 day'")
    due = update(workflow).where(and_(workflow.id == bindparam("of_workflow", id, BigInteger)))
    return due.values(purge_at=later).execution_options(**UNSYNCHRONIZED)

"""Why a queued job is not started: what limits its queue, its task and its key now, as the claims see it.

>>> from sa_jobqueue.statements import why_waiting
>>> print(why_waiting(7).selected_columns.keys()[:4])
['owner', 'name', 'key', 'what']
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    ColumnElement,
    DateTime,
    Float,
    Integer,
    Label,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    not_,
    null,
    or_,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.sql.selectable import LateralFromClause
from sqlalchemy.types import TypeEngine

from ..lifecycle import LIVE, JobStatus
from ..models import (
    Job,
    JobMixin,
    KeyRow,
    LimitRow,
    LimitState,
    WorkflowDependency,
    WorkflowRow,
    schema_function,
    status_in,
    status_literal,
)
from .beside import with_companions
from .limits import FIRST_KEY
from .parts import in_calendar, in_seconds, table_of

__all__ = ["why_waiting"]

#: How many jobs are named.
_NAMED = 20
_RATE = ("rate_count", "rate_seconds", "rate_burst")
_QUEUED, _RUNNING = status_literal(JobStatus.QUEUED), status_literal(JobStatus.RUNNING)
_QUEUE, _TASK = literal_column("'queue'", Text), literal_column("'task'", Text)
_NOW = func.statement_timestamp(type_=DateTime(timezone=True))

#: The columns after `what`, in their order.
_DETAILS: dict[str, TypeEngine[Any]] = {
    "limit": Integer(),
    "used": BigInteger(),
    "job_ids": ARRAY(BigInteger()),
    "until": DateTime(timezone=True),
    "seconds": Float(),
    "reason": Text(),
}


@with_companions
def why_waiting(
    job_id: int,
    *,
    job: type[JobMixin] = Job,
    limit: type[LimitRow] = LimitRow,
    limit_key: type[KeyRow] = KeyRow,
    limit_state: type[LimitState] = LimitState,
    dependency: type[WorkflowDependency] = WorkflowDependency,
    workflow: type[WorkflowRow] = WorkflowRow,
) -> Select[Any]:
    """A row for each thing that keeps a queued or blocked job from being started now: `WaitReason(*row)` says it in a sentence.

    Columns: `owner`, "queue" or "task", and its `name`; `key`, NULL if it holds for all jobs of the owner; `what`, one of "running",
    "rate", "paused", "blocked", "strict", and, without an owner, "later", where the job is not due, "parents", where it waits for others
    of its workflow, and "held", where that is paused; `limit` and `used`, how many
    may run and how many do, or for a rate how many units may start in `seconds`; `job_ids`, the first 20 that run, or that are
    tried again before it; `until`, when it is over, if that is known; `reason`, of a pause.

    No row: the job does not wait, or nothing but free slots and the turns of others keeps it waiting.
    """
    table = table_of(job)
    asked = _asked(table, job_id)
    scope = _scopes(asked, table_of(limit), table_of(limit_key), table_of(limit_state))
    reasons = [
        _row(0, "later", until=asked.c.run_at).where(asked.c.run_at > _NOW),
        _row(1, "paused", scope, reason=scope.c.pause_reason).where(scope.c.paused_at.is_not(None)),
        _row(2, "blocked", scope, until=scope.c.blocked_until).where(scope.c.blocked_until > _NOW),
        _behind_a_retry(table, asked, scope),
        _full(table, scope, of_key=False),
        _full(table, scope, of_key=True),
        _too_fast(table, asked, scope),
        _behind_parents(table, job_id, table_of(dependency)),
        _row(7, "held").where(
            select(workflow.id)
            .join(table, table.c.workflow_id == workflow.id)
            .where(_blocked(table, job_id), workflow.paused_at.is_not(None))
            .exists()
        ),
    ]
    found = union_all(*reasons).subquery("found")
    shown = [column for column in found.c if column.key != "place"]
    return select(*shown).order_by(found.c.place, found.c.owner, found.c.key.nulls_first())


def _blocked(table: Table, job_id: int) -> ColumnElement[bool]:
    return and_(
        table.c.id == bindparam("job_id", job_id, BigInteger), table.c.status == status_literal(JobStatus.BLOCKED)
    )


def _behind_parents(table: Table, job_id: int, edge: Table) -> Select[Any]:
    """Others of its workflow have not ended."""
    me, parent = table.alias("me"), table.alias("parent")
    number = func.count()
    ids = func.array_agg(aggregate_order_by(parent.c.id, parent.c.id), type_=ARRAY(BigInteger))
    named = func.trim_array(
        ids, cast(func.greatest(number - literal_column(str(_NAMED)), literal_column("0")), Integer)
    )
    these = (
        select(number.label("number"), cast(named, ARRAY(BigInteger)).label("ids"))
        .select_from(me.join(edge, edge.c.child_id == me.c.id).join(parent, parent.c.id == edge.c.parent_id))
        .where(
            me.c.id == bindparam("job_id", job_id, BigInteger),
            me.c.status == status_literal(JobStatus.BLOCKED),
            status_in(parent.c.status, LIVE),
        )
        .subquery("parents")
    )
    return _row(6, "parents", used=these.c.number, job_ids=these.c.ids).where(these.c.number > literal_column("0"))


def _asked(table: Table, job_id: int) -> CTE:
    """The job, if it is queued. The `concurrency_key` of a limited task's jobs may stand for none."""
    key = table.c.concurrency_key
    return (
        select(
            table.c.id,
            table.c.queue,
            table.c.task,
            table.c.run_at,
            case((key >= FIRST_KEY, key)).label("key"),
            func.coalesce(table.c.units, literal_column("1"), type_=Integer()).label("units"),
        )
        .where(table.c.id == bindparam("job_id", job_id, BigInteger), table.c.status == _QUEUED)
        .cte("asked")
    )


def _scopes(asked: CTE, limits: Table, keys: Table, states: Table) -> CTE:
    """What holds for all jobs of its queue, for all of its task, and for those of its key in either."""
    owner = union_all(
        select(_QUEUE.label("owner"), asked.c.queue.label("name"), asked.c.key),
        select(_TASK, asked.c.task, asked.c.key),
    ).subquery("its_owner")
    its_limits = and_(limits.c.owner == owner.c.owner, limits.c.name == owner.c.name)
    its_key = and_(keys.c.owner == owner.c.owner, keys.c.name == owner.c.name, keys.c.key == owner.c.key)
    own_rate = keys.c.rate_count.is_not(None)
    # Of a task without limits claims know no keys.
    holds = or_(owner.c.owner == _QUEUE, limits.c.name.is_not(None))
    of_owner = (
        select(
            owner.c.owner,
            owner.c.name,
            cast(null(), Text).label("key"),
            limits.c.running,
            *(limits.c[name] for name in _RATE),
            limits.c.paused_at,
            limits.c.pause_reason,
            literal_column("false").label("strict"),
        )
        .select_from(owner.outerjoin(limits, its_limits))
        .where(holds)
    )
    of_key = (
        select(
            owner.c.owner,
            owner.c.name,
            owner.c.key,
            func.coalesce(keys.c.running, limits.c.key_running),
            *(case((own_rate, keys.c[name]), else_=limits.c[f"key_{name}"]) for name in _RATE),
            keys.c.paused_at,
            keys.c.pause_reason,
            limits.c.strict,
        )
        .select_from(owner.outerjoin(limits, its_limits).outerjoin(keys, its_key))
        .where(holds, owner.c.key.is_not(None))
    )
    scope = union_all(of_owner, of_key).subquery("its_scope")
    kept = and_(
        states.c.owner == scope.c.owner,
        states.c.name == scope.c.name,
        states.c.key == func.coalesce(scope.c.key, literal_column("''")),
    )
    return (
        select(*scope.c, states.c.free_at, states.c.owed_at, states.c.owed, states.c.blocked_until)
        .select_from(scope.outerjoin(states, kept))
        .cte("scope")
    )


def _row(place: int, what: str, scope: CTE | None = None, /, **details: ColumnElement[Any]) -> Select[Any]:
    """The columns of a reason; those that are not given are NULL."""
    of = [cast(null(), Text).label(name) if scope is None else scope.c[name] for name in ("owner", "name", "key")]
    if (until := details.get("until")) is not None:
        details["until"] = in_calendar(until)
    said = [details.get(name, cast(null(), kind)).label(name) for name, kind in _DETAILS.items()]
    number: Label[int] = literal_column(str(place), Integer).label("place")
    return select(number, *of, literal_column(f"'{what}'", Text).label("what"), *said)


def _full(table: Table, scope: CTE, *, of_key: bool) -> Select[Any]:
    """As many run as may. Those of a key are read by its index, all others by that of the running jobs."""
    if of_key:
        runs = _named(table, *_running(table, scope), _of(table, scope))
    else:
        runs = _named(table, table.c.status == _RUNNING, _of(table, scope))
    of = scope.c.key.is_not(None) if of_key else scope.c.key.is_(None)
    return (
        _row(4, "running", scope, limit=scope.c.running, used=runs.c.number, job_ids=runs.c.ids)
        .select_from(scope.join(runs, true()))
        .where(of, scope.c.running.is_not(None), scope.c.running <= runs.c.number)
    )


def _behind_a_retry(table: Table, asked: CTE, scope: CTE) -> Select[Any]:
    """Another job of its key waits to be tried again, and the queue or the task is strict."""
    # Said so that only the index of such jobs can be used.
    later = not_(table.c.run_at <= func.greatest(table.c.created_at, table.c.ready_at))
    others = table.c.id != select(asked.c.id).scalar_subquery()
    first = _named(table, _begun(table, scope), table.c.status != _RUNNING, later, _of(table, scope), others)
    return (
        _row(3, "strict", scope, job_ids=first.c.ids, until=first.c.last)
        .select_from(scope.join(first, true()))
        .where(scope.c.strict, first.c.number > literal_column("0"))
    )


def _too_fast(table: Table, asked: CTE, scope: CTE) -> Select[Any]:
    """A rate lets fewer units start now than the job has; one with more than its burst starts when the whole of it is free."""
    count, seconds, burst = (scope.c[name] for name in _RATE)
    state = (scope.c.free_at, scope.c.owed_at, scope.c.owed)
    owed = schema_function("rate_owed", table.schema, *state, _NOW, count, seconds, of=Float(53))
    # A millionth of a unit is nothing, as claims have it.
    behind = owed + func.least(asked.c.units, burst) - burst
    until = in_seconds(func.least(behind * seconds / cast(count, Float(53)), literal_column("1e10")), after=_NOW)
    return (
        _row(5, "rate", scope, limit=count, until=until, seconds=seconds)
        .select_from(scope.join(asked, true()))
        .where(count.is_not(None), behind > literal_column("0.000001"))
    )


def _named(table: Table, *where: ColumnElement[bool]) -> LateralFromClause:
    """How many jobs there are, the first of them, and when the last one is due."""
    number = func.count()
    # `+ 0`, so that no plan reads all jobs in this order.
    ids = func.array_agg(aggregate_order_by(table.c.id, table.c.id + literal_column("0")), type_=ARRAY(BigInteger))
    others = func.greatest(number - literal_column(str(_NAMED)), literal_column("0"))
    named = func.trim_array(ids, cast(others, Integer), type_=ARRAY(BigInteger))
    last = func.max(table.c.run_at)
    return select(number.label("number"), named.label("ids"), last.label("last")).where(*where).lateral("these")


def _of(table: Table, scope: CTE) -> ColumnElement[bool]:
    """Whether a job is one of this queue, or of this task."""
    return case((scope.c.owner == _QUEUE, table.c.queue == scope.c.name), else_=table.c.task == scope.c.name)


def _running(table: Table, scope: CTE) -> Sequence[ColumnElement[bool]]:
    """The running jobs of this key, as claims read them: from where they begin in the index."""
    key = table.c.concurrency_key
    return (
        tuple_(key, table.c.status != _QUEUED, table.c.id) >= tuple_(scope.c.key, true(), literal_column("0")),
        key <= scope.c.key,
        _is_begun(table),
    )


def _begun(table: Table, scope: CTE) -> ColumnElement[bool]:
    """As the index `job_key_begun_idx` says it, of this key."""
    return and_(table.c.concurrency_key == scope.c.key, _is_begun(table))


def _is_begun(table: Table) -> ColumnElement[bool]:
    claimed_before = and_(table.c.status == _QUEUED, table.c.claims > literal_column("0"))
    return and_(table.c.concurrency_key.is_not(None), or_(table.c.status == _RUNNING, claimed_before))

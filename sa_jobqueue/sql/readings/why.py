"""Why a queued job is not started: the limits and pauses of its queue, its task and its key, as claims see them.

>>> from sa_jobqueue.statements import why_waiting
>>> print(why_waiting(7).selected_columns.keys()[:4])
['owner', 'name', 'key', 'what']
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.sql.selectable import LateralFromClause
from sqlalchemy.types import TypeEngine

from ...models import Job, JobMixin, companions_of, schema_function, status_in, status_literal
from ...rules.lifecycle import LIVE, JobStatus
from ..limits.state import FIRST_KEY
from ..parts import ONE, ZERO, array, columns_of, in_calendar, in_seconds, rows, table_of

#: The most jobs that are named, and the most characters of a question.
_NAMED, _LONGEST = 20, 200
_RATE = ("rate_count", "rate_seconds", "rate_burst")
_QUEUED, _RUNNING = status_literal(JobStatus.QUEUED), status_literal(JobStatus.RUNNING)
_QUEUE, _TASK = sa.literal_column("'queue'", sa.Text), sa.literal_column("'task'", sa.Text)
_NOW = sa.func.statement_timestamp(type_=sa.DateTime(timezone=True))

#: The columns after `what`, in their order.
_DETAILS: dict[str, TypeEngine[Any]] = {
    "limit": sa.Integer(),
    "used": sa.BigInteger(),
    "job_ids": sa.ARRAY(sa.BigInteger()),
    "until": sa.DateTime(timezone=True),
    "seconds": sa.Float(),
    "reason": sa.Text(),
    "since": sa.DateTime(timezone=True),
}


def why_waiting(job_id: int, *, job: type[JobMixin] = Job) -> sa.Select[Any]:
    """A row for each reason why a queued or blocked job is not started now: `WaitReason(*row)` is a sentence as text.

    Columns:

    - `owner`: "queue" or "task"; `name`: the name of the owner, or of a signal; `key`: NULL if the reason holds for all jobs of the owner; of a key
      that only limits its name and value, as "provider=openai".
    - `what`: with an owner "running", "rate", "paused", "breaker", "blocked" or "strict". Without an owner "later", if the job is not due; "parents", if it
      waits for other jobs of its workflow; "held", if the workflow is paused; "signal", "join", "sleep" or "differs", if its handler waits.
    - `limit` and `used`: how many jobs may run and how many run; for a rate, how many units may start in `seconds`.
    - `job_ids`: the first 20 jobs that run, or that are tried again before this job, or for which it waits.
    - `until`: when the reason ends, if that is known; `since`: when the handler began to wait.
    - `reason`: the reason of a pause, the unit of a rate, the question to a person whose signal the handler waits for, or the name of a step.

    No row: the job does not wait, or nothing but free slots and the turns of others keeps it waiting.
    """
    return _reasons(sa.bindparam("job_id", job_id, sa.BigInteger), job)


def why_all_wait(job_ids: Sequence[int], *, job: type[JobMixin] = Job) -> sa.Select[Any]:
    """The rows of `why_waiting` of several jobs, each behind the job's `id`."""
    waiting = rows("waiting", id=array("job_ids", job_ids, sa.BigInteger()))
    # A name, and no column: it must not become a table of the subquery.
    reasons = _reasons(sa.literal_column("waiting.id", sa.BigInteger), job).lateral("reasons")
    return sa.select(waiting.c.id, *reasons.c).select_from(waiting.join(reasons, sa.true()))


def _reasons(job_id: sa.ColumnElement[int], job: type[JobMixin]) -> sa.Select[Any]:
    tables = companions_of(job)
    table = table_of(job)
    asked = _asked(table, job_id)
    scope = _scopes(asked, table_of(tables.limit), table_of(tables.key), table_of(tables.limit_state))
    reasons = [
        _row(0, "later", until=asked.c.run_at).where(asked.c.run_at > _NOW),
        _row(1, "paused", scope, reason=scope.c.pause_reason).where(scope.c.paused_at.is_not(None)),
        _row(2, "breaker", scope, until=sa.case((scope.c.broken_until > _NOW, scope.c.broken_until))).where(
            sa.or_(scope.c.broken_until > _NOW, _probes(table, scope))
        ),
        _row(2, "blocked", scope, until=scope.c.blocked_until).where(scope.c.blocked_until > _NOW),
        _behind_a_retry(table, asked, scope),
        _full(table, scope, of_key=False),
        _full(table, scope, of_key=True),
        _too_fast(table, asked, scope),
        _further(table, asked),
        _behind_parents(table, job_id, table_of(tables.dependency)),
        _row(7, "held").where(
            sa.select(tables.workflow.id)
            .join(table, table.c.workflow_id == tables.workflow.id)
            .where(_blocked(table, job_id), tables.workflow.paused_at.is_not(None))
            .exists()
        ),
        _suspended(table, job_id, table_of(tables.wait)),
    ]
    found = sa.union_all(*reasons).subquery("found")
    shown = [column for column in found.c if column.key != "place"]
    ordered = sa.select(*shown).order_by(found.c.place, found.c.owner, found.c.key.nulls_first())
    return ordered.add_cte(asked, scope, nest_here=True)


def _blocked(table: sa.FromClause, job_id: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.id == job_id, table.c.status == status_literal(JobStatus.BLOCKED))


def _suspended(table: sa.Table, job_id: sa.ColumnElement[int], waits: sa.Table) -> sa.Select[Any]:
    """The handler waits in a step."""
    wait = waits.c
    kinds = ((wait.signal.is_not(None), "signal"), (wait.jobs.is_not(None), "join"), (wait.until.is_not(None), "sleep"))
    what = sa.case(
        *((there, sa.literal_column(f"'{kind}'")) for there, kind in kinds), else_=sa.literal_column("'differs'")
    )
    live = sa.func.array(
        sa.select(table.c.id)
        .where(table.c.id == sa.func.any(wait.jobs), status_in(table.c.status, LIVE))
        .order_by(table.c.id)
        .limit(sa.literal_column(str(_NAMED)))
        .correlate(waits)
        .scalar_subquery()
    )
    blocked = sa.select(ONE).where(_blocked(table.alias("me"), job_id)).exists()
    details: dict[str, sa.ColumnElement[Any]] = {
        "used": sa.cast(sa.func.cardinality(wait.jobs), sa.BigInteger),
        "job_ids": sa.case((wait.jobs.is_not(None), sa.type_coerce(live, sa.ARRAY(sa.BigInteger)))),
        "until": wait.until,
        "name": wait.signal,
        "reason": sa.case(
            (wait.signal.is_(None), wait.step), else_=sa.func.left(wait.question["text"].astext, _LONGEST)
        ),
        "since": wait.since,
    }
    return _row(8, what, **details).where(wait.job_id == job_id, wait.resumed_at.is_(None), blocked)


def _behind_parents(table: sa.Table, job_id: sa.ColumnElement[int], edge: sa.Table) -> sa.Select[Any]:
    """Others of its workflow have not ended."""
    me, parent = table.alias("me"), table.alias("parent")
    number = sa.func.count()
    ids = sa.func.array_agg(aggregate_order_by(parent.c.id, parent.c.id), type_=sa.ARRAY(sa.BigInteger))
    named = sa.func.trim_array(
        ids, sa.cast(sa.func.greatest(number - sa.literal_column(str(_NAMED)), ZERO), sa.Integer)
    )
    these = (
        sa.select(number.label("number"), sa.cast(named, sa.ARRAY(sa.BigInteger)).label("ids"))
        .select_from(me.join(edge, edge.c.child_id == me.c.id).join(parent, parent.c.id == edge.c.parent_id))
        .where(_blocked(me, job_id), status_in(parent.c.status, LIVE))
        .subquery("parents")
    )
    return _row(6, "parents", used=these.c.number, job_ids=these.c.ids).where(these.c.number > ZERO)


def _asked(table: sa.Table, job_id: sa.ColumnElement[int]) -> sa.CTE:
    """The job, if it is queued. The `concurrency_key` of a limited task's jobs may stand for none."""
    key = table.c.concurrency_key
    return (
        sa.select(
            *columns_of(table.c, "id queue task run_at"),
            sa.case((key >= FIRST_KEY, key)).label("key"),
            sa.func.coalesce(table.c.units, ONE, type_=sa.Integer()).label("units"),
        )
        .where(table.c.id == job_id, table.c.status == _QUEUED)
        .cte("asked")
    )


def _scopes(asked: sa.CTE, limits: sa.Table, keys: sa.Table, states: sa.Table) -> sa.CTE:
    """The limits of all jobs of its queue, of all jobs of its task, and of the jobs of its key in either."""
    owner = sa.union_all(
        sa.select(_QUEUE.label("owner"), asked.c.queue.label("name"), asked.c.key),
        sa.select(_TASK, asked.c.task, asked.c.key),
    ).subquery("its_owner")
    its_limits = sa.and_(limits.c.owner == owner.c.owner, limits.c.name == owner.c.name)
    its_key = sa.and_(keys.c.owner == owner.c.owner, keys.c.name == owner.c.name, keys.c.key == owner.c.key)
    own_rate = keys.c.rate_count.is_not(None)
    # Of a task without limits claims know no keys.
    holds = sa.or_(owner.c.owner == _QUEUE, limits.c.name.is_not(None))
    of_owner = (
        sa.select(
            owner.c.owner,
            owner.c.name,
            sa.cast(sa.null(), sa.Text).label("key"),
            limits.c.running,
            *(limits.c[name] for name in _RATE),
            limits.c.paused_at,
            limits.c.pause_reason,
            limits.c.broken_until,
            sa.literal_column("false").label("strict"),
        )
        .select_from(owner.outerjoin(limits, its_limits))
        .where(holds)
    )
    of_key = (
        sa.select(
            *columns_of(owner.c, "owner name key"),
            sa.func.coalesce(keys.c.running, limits.c.key_running),
            *(sa.case((own_rate, keys.c[name]), else_=limits.c[f"key_{name}"]) for name in _RATE),
            keys.c.paused_at,
            keys.c.pause_reason,
            keys.c.broken_until,
            limits.c.strict,
        )
        .select_from(owner.outerjoin(limits, its_limits).outerjoin(keys, its_key))
        .where(holds, owner.c.key.is_not(None))
    )
    scope = sa.union_all(of_owner, of_key).subquery("its_scope")
    kept = sa.and_(
        states.c.owner == scope.c.owner,
        states.c.name == scope.c.name,
        states.c.key == sa.func.coalesce(scope.c.key, sa.literal_column("''")),
    )
    return (
        sa.select(*scope.c, states.c.free_at, states.c.owed_at, states.c.owed, states.c.blocked_until)
        .select_from(scope.outerjoin(states, kept))
        .cte("scope")
    )


def _row(
    place: int, what: str | sa.ColumnElement[str], scope: sa.CTE | None = None, /, **details: sa.ColumnElement[Any]
) -> sa.Select[Any]:
    """The columns of a reason; those that are not given are NULL."""
    of = [
        details.get(name, sa.cast(sa.null(), sa.Text)).label(name) if scope is None else scope.c[name]
        for name in ("owner", "name", "key")
    ]
    details |= {name: in_calendar(details[name]) for name in ("until", "since") if name in details}
    columns = [details.get(name, sa.cast(sa.null(), kind)).label(name) for name, kind in _DETAILS.items()]
    number: sa.Label[int] = sa.literal_column(str(place), sa.Integer).label("place")
    kind = sa.literal_column(f"'{what}'", sa.Text) if isinstance(what, str) else sa.cast(what, sa.Text)
    return sa.select(number, *of, kind.label("what"), *columns)


def _full(table: sa.Table, scope: sa.CTE, *, of_key: bool) -> sa.Select[Any]:
    """As many jobs run as may. Jobs of a key are read by its index, all others by the index of the running jobs."""
    if of_key:
        runs = _named(table, *_running(table, scope), _of(table, scope))
    else:
        runs = _named(table, table.c.status == _RUNNING, _of(table, scope))
    of = scope.c.key.is_not(None) if of_key else scope.c.key.is_(None)
    return (
        _row(4, "running", scope, limit=scope.c.running, used=runs.c.number, job_ids=runs.c.ids)
        .select_from(scope.join(runs, sa.true()))
        .where(of, scope.c.running.is_not(None), scope.c.running <= runs.c.number)
    )


def _probes(table: sa.Table, scope: sa.CTE) -> sa.ColumnElement[bool]:
    """Whether a job that probes for this breaker runs."""
    its_key = sa.or_(scope.c.key.is_(None), table.c.concurrency_key == scope.c.key)
    its_own = (table.c.status == _RUNNING, table.c.task == scope.c.name, its_key)
    return sa.select(ONE).where(*its_own, table.c.claimed_at >= scope.c.broken_until).correlate(scope).exists()


def _behind_a_retry(table: sa.Table, asked: sa.CTE, scope: sa.CTE) -> sa.Select[Any]:
    """Another job of its key waits to be tried again, and the queue or the task is strict."""
    # Phrased so that the planner can match only the index of such jobs.
    later = sa.not_(table.c.run_at <= sa.func.greatest(table.c.created_at, table.c.ready_at))
    others = table.c.id != sa.select(asked.c.id).scalar_subquery()
    first = _named(table, _begun(table, scope), table.c.status != _RUNNING, later, _of(table, scope), others)
    return (
        _row(3, "strict", scope, job_ids=first.c.ids, until=first.c.last)
        .select_from(scope.join(first, sa.true()))
        .where(scope.c.strict, first.c.number > ZERO)
    )


def _too_fast(table: sa.Table, asked: sa.CTE, scope: sa.CTE) -> sa.Select[Any]:
    """A rate lets fewer units start now than the job has. A job with more units than the burst starts when the whole burst is free."""
    count, seconds, burst = (scope.c[name] for name in _RATE)
    state = (scope.c.free_at, scope.c.owed_at, scope.c.owed)
    owed = schema_function("rate_owed", table.schema, *state, _NOW, count, seconds, of=sa.Float(53))
    # A millionth of a unit is nothing, as claims have it.
    behind = owed + sa.func.least(asked.c.units, burst) - burst
    until = in_seconds(
        sa.func.least(behind * seconds / sa.cast(count, sa.Float(53)), sa.literal_column("1e10")), after=_NOW
    )
    return (
        _row(5, "rate", scope, limit=count, until=until, seconds=seconds)
        .select_from(scope.join(asked, sa.true()))
        .where(count.is_not(None), behind > sa.literal_column("0.000001"))
    )


def _further(table: sa.Table, asked: sa.CTE) -> sa.Select[Any]:
    """A further rate lets fewer units start now than the job takes, and `reason` is the name of the unit; or another key of the job is full."""
    call: Any = schema_function("further_full", table.schema, asked.c.id, of=sa.Text())
    kinds: dict[str, Any] = {"owner": sa.Text(), "name": sa.Text(), "key": sa.Text(), "unit": sa.Text(), "count": sa.Integer(),
             "seconds": sa.Float(), "until": sa.DateTime(timezone=True), "used": sa.BigInteger()}  # fmt: skip
    full = call.table_valued(*(sa.column(name, kind) for name, kind in kinds.items()), name="further").lateral()
    of = {name: full.c[name] for name in ("owner", "name", "key", "until", "seconds", "used")}
    unit = sa.func.nullif(full.c.unit, sa.literal_column("''"))
    what = sa.case((full.c.used.is_(None), sa.literal_column("'rate'")), else_=sa.literal_column("'running'"))
    return _row(5, what, limit=full.c["count"], reason=unit, **of).select_from(asked.join(full, sa.true()))


def _named(table: sa.Table, *where: sa.ColumnElement[bool]) -> LateralFromClause:
    """The number of jobs, the first of them, and when the last is due."""
    number = sa.func.count()
    # `+ 0`, so that no plan reads all jobs in this order.
    ids = sa.func.array_agg(aggregate_order_by(table.c.id, table.c.id + ZERO), type_=sa.ARRAY(sa.BigInteger))
    others = sa.func.greatest(number - sa.literal_column(str(_NAMED)), ZERO)
    named = sa.func.trim_array(ids, sa.cast(others, sa.Integer), type_=sa.ARRAY(sa.BigInteger))
    last = sa.func.max(table.c.run_at)
    return sa.select(number.label("number"), named.label("ids"), last.label("last")).where(*where).lateral("these")


def _of(table: sa.Table, scope: sa.CTE) -> sa.ColumnElement[bool]:
    """Whether a job is one of this queue, or of this task."""
    return sa.case((scope.c.owner == _QUEUE, table.c.queue == scope.c.name), else_=table.c.task == scope.c.name)


def _running(table: sa.Table, scope: sa.CTE) -> Sequence[sa.ColumnElement[bool]]:
    """The running jobs of this key, as claims read them: from where they begin in the index."""
    key = table.c.concurrency_key
    return (
        sa.tuple_(key, table.c.status != _QUEUED, table.c.id) >= sa.tuple_(scope.c.key, sa.true(), ZERO),
        key <= scope.c.key,
        _is_begun(table),
    )


def _begun(table: sa.Table, scope: sa.CTE) -> sa.ColumnElement[bool]:
    """As the index `job_key_begun_idx` says it, of this key."""
    return sa.and_(table.c.concurrency_key == scope.c.key, _is_begun(table))


def _is_begun(table: sa.Table) -> sa.ColumnElement[bool]:
    claimed_before = sa.and_(table.c.status == _QUEUED, table.c.claims > ZERO)
    return sa.and_(table.c.concurrency_key.is_not(None), sa.or_(table.c.status == _RUNNING, claimed_before))

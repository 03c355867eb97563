"""What there is to know of jobs, to say why they are not run: their rows, who could run them, and what is ahead of them.

>>> from sa_jobqueue.statements.job_facts import job_facts
>>> print(job_facts([7]).selected_columns.keys()[:4])
['asked', 'now', 'newest', 'id']
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    DateTime,
    FromClause,
    Integer,
    Label,
    ScalarSelect,
    Select,
    Table,
    Text,
    and_,
    cast,
    column,
    func,
    literal_column,
    not_,
    or_,
    select,
    table,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql.selectable import LateralFromClause

from ..lifecycle import JobStatus
from ..models import Job, JobMixin, WorkerRow, status_literal
from ..reasons import MOST_AHEAD
from .beside import with_companions
from .ends import is_held
from .overview import STALE
from .parts import array, in_calendar, in_seconds, rows, table_of
from .workers import served_by

__all__ = ["job_facts"]

_NOW = func.statement_timestamp(type_=DateTime(timezone=True))
_QUEUED = status_literal(JobStatus.QUEUED)
_LOCKS = table(
    "pg_locks", column("locktype"), column("transactionid"), column("granted"), column("pid"), schema="pg_catalog"
)
#: In the slots of a worker: all queues that it does not name.
_OTHERS = literal_column("'*'", Text)
#: What is read of a job.
_COLUMNS = (
    "id", "status", "queue", "task", "priority", "attempt", "max_attempts", "rescues", "claims", "run_at", "created_at", "claimed_at",
    "lease_expires_at", "finished_at", "cancel_requested_at", "expires_at", "deadline_at", "concurrency_key", "workflow_id", "worker",
    "duplicate_of",
)  # fmt: skip
#: Those of them that are times.
_TIMES = tuple(name for name in _COLUMNS if name.endswith("_at"))


@with_companions
def job_facts(ids: Sequence[int], *, job: type[JobMixin] = Job, worker: type[WorkerRow] = WorkerRow) -> Select[Any]:
    """A row for each of these ids, `asked`, in their order; its `id` is NULL if there is no such job.

    `now`, the database's time; `newest`, the highest id of all jobs; columns of the job, and its last `error`; `host`, `pid` and `seen_at`
    of the worker that holds it. Of a job that waits: `live`, how many workers are alive, `serving`, how many of them its queue has, and
    `knowing`, how many of those know its task, with their `slots` for its queue and how many jobs hold these, `busy`; how many are under `pressure_on`, and
    the `pressure`; how many skip it, `refused_by`, one of them, `refused_at`, and why, `refusal`. Of a queued job: `locked_by`, the server
    process that may have locked its row, and how many jobs are `ahead` of it in its queue, or in its key: at most `MOST_AHEAD` + 1.
    """
    asked = rows("asked", job_id=array("job_ids", ids, BigInteger()))
    me = _row(table_of(job), asked)
    workers = table_of(worker)
    holder = (
        select(workers.c.host, workers.c.pid, workers.c.seen_at)
        .where(cast(workers.c.id, Text) == me.c.worker)
        .limit(literal_column("1"))
        .lateral("holder")
    )
    crew = _crew(me, workers)
    held = _held(table_of(job), me, crew, workers.alias("holding"))
    ahead = _ahead(table_of(job))
    return (
        select(
            asked.c.job_id.label("asked"),
            _NOW.label("now"),
            _newest(table_of(job)).label("newest"),
            *(in_calendar(me.c[name]).label(name) if name in _TIMES else me.c[name] for name in (*_COLUMNS, "error")),
            *(holder.c[name] for name in ("host", "pid", "seen_at")),
            *(one for one in crew.c if one.key != "ids"),
            held.c.busy,
            ahead.c.ahead,
            _locked_by(me).label("locked_by"),
        )
        .select_from(
            asked.outerjoin(me, true())
            .outerjoin(holder, true())
            .outerjoin(crew, true())
            .outerjoin(held, true())
            .outerjoin(ahead, true())
        )
        .order_by(asked.c.job_id)
    )


def _newest(jobs: Table) -> ScalarSelect[int]:
    """The highest id. Not by max(): a plan that was made while there was no job reads all of an index for that."""
    return select(jobs.c.id).order_by(jobs.c.id.desc()).limit(literal_column("1")).scalar_subquery()


def _row(jobs: Table, asked: FromClause) -> LateralFromClause:
    """The job. With a LIMIT, because a join with all jobs in the order of their ids may look cheap."""
    one = jobs.alias("one")
    error = one.c.errors[literal_column("-1", Integer)].label("error")
    locker: Label[Any] = literal_column("one.xmax").label("locker")
    return (
        select(*(one.c[name] for name in _COLUMNS), error, locker)
        .where(one.c.id == asked.c.job_id)
        .limit(literal_column("1"))
        .lateral("me")
    )


def _crew(me: FromClause, workers: Table) -> LateralFromClause:
    """The workers that are alive, and what they could do for the job."""
    row = workers.c
    serves = served_by(row.queues, me.c.queue)
    path: ColumnElement[Any] = literal_column("""'$.*.aliases[*] ? (@ == $task)'::jsonpath""")
    # A worker of an older release says nothing of its tasks, and may know any.
    knows = or_(
        row.tasks == literal_column("'{}'::jsonb"),
        row.tasks.has_key(me.c.task),
        func.jsonb_path_exists(row.tasks, path, func.jsonb_build_object(literal_column("'task'"), me.c.task)),
    )
    able = and_(serves, knows)
    its_id = cast(me.c.id, Text)
    refuses = and_(serves, row.skipped.has_key(its_id))
    place = func.concat(row.host, literal_column("':'"), cast(row.pid, Text))
    refused_at = func.min(place, type_=Text()).filter(refuses)
    # Only with one of them is the reason surely its own; the first by its text will do.
    refusal = func.min(row.skipped[its_id].astext, type_=Text()).filter(refuses)
    number = func.count()
    slots = func.coalesce(
        cast(row.slots[me.c.queue].astext, Integer), cast(row.slots[_OTHERS].astext, Integer), row.concurrency
    )
    return (
        select(
            number.label("live"),
            number.filter(serves).label("serving"),
            number.filter(able).label("knowing"),
            cast(func.coalesce(func.sum(slots).filter(able), literal_column("0")), Integer).label("slots"),
            number.filter(able, row.pressure.is_not(None)).label("pressure_on"),
            func.min(row.pressure, type_=Text()).filter(able).label("pressure"),
            number.filter(refuses).label("refused_by"),
            refused_at.label("refused_at"),
            refusal.label("refusal"),
            func.array_agg(cast(row.id, Text), type_=ARRAY(Text)).filter(able).label("ids"),
        )
        .where(row.seen_at > in_seconds(literal_column(str(-STALE)), after=_NOW), me.c.finished_at.is_(None))
        .lateral("crew")
    )


def _held(jobs: Table, me: FromClause, crew: LateralFromClause, workers: FromClause) -> LateralFromClause:
    """How many jobs hold slots that this job could have: those of its queue; where a worker does not name the queue, those of all others
    that it does not name.
    """
    named = func.coalesce(workers.c.slots, literal_column("'{}'::jsonb"), type_=JSONB())
    shared = and_(not_(named.has_key(me.c.queue)), not_(named.has_key(jobs.c.queue)))
    return (
        select(func.count().label("busy"))
        .select_from(workers.join(jobs, jobs.c.worker == cast(workers.c.id, Text)))
        .where(
            is_held(jobs),
            me.c.status == _QUEUED,
            jobs.c.worker == func.any(crew.c.ids),
            or_(jobs.c.queue == me.c.queue, shared),
        )
        .lateral("held")
    )


def _ahead(jobs: Table) -> LateralFromClause:
    """How many queued jobs a claim would take before it: each part is read in the order of an index, to a bound."""
    other = jobs.alias("other")
    # As text: SQLAlchemy would give each of the nested queries a FROM for it.
    me = {name: literal_column(f"me.{name}", jobs.c[name].type) for name in _COLUMNS}
    one: ColumnElement[Any] = literal_column("1")
    bound: ColumnElement[Any] = literal_column(str(MOST_AHEAD + 1))
    plain = and_(other.c.status == _QUEUED, other.c.queue == me["queue"], other.c.concurrency_key.is_(None))
    due = other.c.run_at <= _NOW
    waits = and_(me["status"] == _QUEUED, me["run_at"] <= _NOW)
    has_no_key = and_(waits, me["concurrency_key"].is_(None))
    level = (
        func.generate_series(me["priority"] + one, literal_column("9"))
        .table_valued("priority", name="level")
        .render_derived(name="level")
    )
    of_level = (
        select(one.label("one"))
        .where(has_no_key, plain, other.c.priority == level.c.priority, due)
        .order_by(other.c.run_at, other.c.id)
        .limit(bound)
        .lateral("of_level")
    )
    higher = select(of_level.c.one).select_from(level.join(of_level, true()))
    before = (
        select(one.label("one"))
        .where(
            has_no_key,
            plain,
            other.c.priority == me["priority"],
            tuple_(other.c.run_at, other.c.id) < tuple_(me["run_at"], me["id"]),
        )
        .order_by(other.c.run_at, other.c.id)
        .limit(bound)
        .subquery("before")
    )
    of_key = (
        select(one.label("one"))
        .where(
            waits,
            me["concurrency_key"].is_not(None),
            other.c.status == _QUEUED,
            other.c.queue == me["queue"],
            other.c.concurrency_key == me["concurrency_key"],
            other.c.run_at <= func.greatest(other.c.created_at, other.c.ready_at),
            tuple_(-other.c.priority, other.c.run_at, other.c.id) < tuple_(-me["priority"], me["run_at"], me["id"]),
        )
        .order_by(-other.c.priority, other.c.run_at, other.c.id)
        .limit(bound)
        .subquery("of_key")
    )
    parts = union_all(higher, select(before.c.one), select(of_key.c.one)).subquery("parts")
    found = select(parts.c.one).limit(bound).subquery("found")
    return select(func.count().label("ahead")).select_from(found).lateral("ahead")


def _locked_by(me: FromClause) -> ScalarSelect[int]:
    """The transaction that has locked, or is changing, the row, if it goes on. Its `xmax` does not tell the strength of the lock: with the
    weakest, of a foreign key, claims do not pass the row by.
    """
    return (
        select(cast(func.min(_LOCKS.c.pid), Integer))
        .where(
            me.c.status == _QUEUED,
            _LOCKS.c.locktype == literal_column("'transactionid'"),
            _LOCKS.c.granted,
            _LOCKS.c.transactionid == me.c.locker,
            _LOCKS.c.pid != func.pg_backend_pid(),
        )
        .correlate(me)
        .scalar_subquery()
    )

"""Facts about jobs, to explain why they are not run: their rows, the workers that could run them, and the jobs ahead of them.

>>> from sa_jobqueue.sql.readings.job_facts import job_facts
>>> print(job_facts([7]).selected_columns.keys()[:4])
['asked', 'now', 'newest', 'id']
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql.selectable import LateralFromClause

from ...models import Job, JobMixin, companions_of, status_literal
from ...rules.lifecycle import JobStatus
from ...rules.reasons import MOST_AHEAD
from ..claims import version_of
from ..ends import is_held
from ..parts import ONE, ZERO, array, in_calendar, in_seconds, rows, table_of
from ..workers import served_by
from .depths import STALE

_NOW = sa.func.statement_timestamp(type_=sa.DateTime(timezone=True))
_QUEUED = status_literal(JobStatus.QUEUED)
_LOCKS = sa.table(
    "pg_locks",
    sa.column("locktype"),
    sa.column("transactionid"),
    sa.column("granted"),
    sa.column("pid"),
    schema="pg_catalog",
)
#: In the slots of a worker: all queues that it does not name.
_OTHERS = sa.literal_column("'*'", sa.Text)
#: Whether the tasks of a worker have a name or an alias `$task`, and its version is at least `$version`.
_KNOWS = "'$.keyvalue() ? (@.key == $task || @.value.aliases[*] == $task) ? ($version <= 1 || @.value.version >= $version)'::jsonpath"
#: What is read of a job.
_COLUMNS = (
    "id", "status", "queue", "task", "priority", "attempt", "max_attempts", "rescues", "claims", "run_at", "created_at", "claimed_at",
    "lease_expires_at", "finished_at", "cancel_requested_at", "expires_at", "deadline_at", "concurrency_key", "workflow_id", "worker",
    "duplicate_of",
)  # fmt: skip
#: The columns among them that are times.
_TIMES = tuple(name for name in _COLUMNS if name.endswith("_at"))


def job_facts(ids: Sequence[int], *, job: type[JobMixin] = Job) -> sa.Select[Any]:
    """A row for each of these ids, `asked`, in their order; its `id` is NULL if there is no such job.

    `now`, the database's time; `newest`, the highest id of all jobs; columns of the job, and its last `error`; `host`, `pid` and `seen_at`
    of the worker that holds it; `version`, the version of its arguments, NULL for 1. Of a job that waits: `live`, how many workers are alive, `serving`, how many of them its queue has, and
    `knowing`, how many of those know its task, with their `slots` for its queue and how many jobs hold these, `busy`; how many are under `pressure_on`, and
    the `pressure`; how many skip it, `refused_by`, one of them, `refused_at`, and why, `refusal`. Of a queued job: `locked_by`, the server
    process that may have locked its row, and how many jobs are `ahead` of it in its queue, or in its key: at most `MOST_AHEAD` + 1.
    """
    asked = rows("asked", job_id=array("job_ids", ids, sa.BigInteger()))
    me = _row(table_of(job), asked)
    workers = table_of(companions_of(job).worker)
    holder = (
        sa.select(workers.c.host, workers.c.pid, workers.c.seen_at)
        .where(sa.cast(workers.c.id, sa.Text) == me.c.worker)
        .limit(ONE)
        .lateral("holder")
    )
    crew = _crew(me, workers)
    held = _held(table_of(job), me, crew, workers.alias("holding"))
    ahead = _ahead(table_of(job))
    return (
        sa.select(
            asked.c.job_id.label("asked"),
            _NOW.label("now"),
            _newest(table_of(job)).label("newest"),
            *(in_calendar(me.c[name]).label(name) if name in _TIMES else me.c[name] for name in (*_COLUMNS, "error")),
            version_of(me).label("version"),
            *(holder.c[name] for name in ("host", "pid", "seen_at")),
            *(column for column in crew.c if column.key != "ids"),
            held.c.busy,
            ahead.c.ahead,
            _locked_by(me).label("locked_by"),
        )
        .select_from(
            asked.outerjoin(me, sa.true())
            .outerjoin(holder, sa.true())
            .outerjoin(crew, sa.true())
            .outerjoin(held, sa.true())
            .outerjoin(ahead, sa.true())
        )
        .order_by(asked.c.job_id)
    )


def _newest(jobs: sa.Table) -> sa.ScalarSelect[int]:
    """The highest id. Not by max(): a plan that was made while there was no job reads all of an index for that."""
    return sa.select(jobs.c.id).order_by(jobs.c.id.desc()).limit(ONE).scalar_subquery()


def _row(jobs: sa.Table, asked: sa.FromClause) -> LateralFromClause:
    """The job. With a LIMIT, because a join with all jobs in the order of their ids may look cheap."""
    asked_job = jobs.alias("one")
    error = asked_job.c.errors[sa.literal_column("-1", sa.Integer)].label("error")
    locker: sa.Label[Any] = sa.literal_column("one.xmax").label("locker")
    return (
        sa.select(*(asked_job.c[name] for name in _COLUMNS), asked_job.c.extras, error, locker)
        .where(asked_job.c.id == asked.c.job_id)
        .limit(ONE)
        .lateral("me")
    )


def _crew(me: sa.FromClause, workers: sa.Table) -> LateralFromClause:
    """The workers that are alive, and what they could do for the job."""
    row = workers.c
    serves = served_by(row.queues, me.c.queue)
    # The row of a worker of an older release lists no tasks, so the worker may know any. A task without a version has version 1.
    knows = sa.or_(
        row.tasks == sa.literal_column("'{}'::jsonb"),
        # Silent, because the JSON of a row may be of any type.
        sa.func.jsonb_path_exists(
            row.tasks, sa.literal_column(_KNOWS), _task_and_version(me), sa.literal_column("true")
        ),
    )
    able = sa.and_(serves, knows)
    its_id = sa.cast(me.c.id, sa.Text)
    refuses = sa.and_(serves, row.skipped.has_key(its_id))
    place = sa.func.concat(row.host, sa.literal_column("':'"), sa.cast(row.pid, sa.Text))
    refused_at = sa.func.min(place, type_=sa.Text()).filter(refuses)
    # Only with one of them is the reason surely its own; the first by its text will do.
    refusal = sa.func.min(row.skipped[its_id].astext, type_=sa.Text()).filter(refuses)
    number = sa.func.count()
    slots = sa.func.coalesce(
        sa.cast(row.slots[me.c.queue].astext, sa.Integer),
        sa.cast(row.slots[_OTHERS].astext, sa.Integer),
        row.concurrency,
    )
    return (
        sa.select(
            number.label("live"),
            number.filter(serves).label("serving"),
            number.filter(able).label("knowing"),
            sa.cast(sa.func.coalesce(sa.func.sum(slots).filter(able), ZERO), sa.Integer).label("slots"),
            number.filter(able, row.pressure.is_not(None)).label("pressure_on"),
            sa.func.min(row.pressure, type_=sa.Text()).filter(able).label("pressure"),
            number.filter(refuses).label("refused_by"),
            refused_at.label("refused_at"),
            refusal.label("refusal"),
            sa.func.array_agg(sa.cast(row.id, sa.Text), type_=sa.ARRAY(sa.Text)).filter(able).label("ids"),
        )
        .where(row.seen_at > in_seconds(sa.literal_column(str(-STALE)), after=_NOW), me.c.finished_at.is_(None))
        .lateral("crew")
    )


def _task_and_version(me: sa.FromClause) -> sa.ColumnElement[Any]:
    name = sa.literal_column("'version'", sa.Text)
    version = sa.func.coalesce(me.c.extras.op("->")(name), sa.literal_column("'1'::jsonb"), type_=JSONB())
    return sa.func.jsonb_build_object(sa.literal_column("'task'"), me.c.task, name, version, type_=JSONB())


def _held(jobs: sa.Table, me: sa.FromClause, crew: LateralFromClause, workers: sa.FromClause) -> LateralFromClause:
    """How many jobs hold slots that this job could have: those of its queue; where a worker does not name the queue, those of all others
    that it does not name.
    """
    named = sa.func.coalesce(workers.c.slots, sa.literal_column("'{}'::jsonb"), type_=JSONB())
    shared = sa.and_(sa.not_(named.has_key(me.c.queue)), sa.not_(named.has_key(jobs.c.queue)))
    return (
        sa.select(sa.func.count().label("busy"))
        .select_from(workers.join(jobs, jobs.c.worker == sa.cast(workers.c.id, sa.Text)))
        .where(
            is_held(jobs),
            me.c.status == _QUEUED,
            jobs.c.worker == sa.func.any(crew.c.ids),
            sa.or_(jobs.c.queue == me.c.queue, shared),
        )
        .lateral("held")
    )


def _ahead(jobs: sa.Table) -> LateralFromClause:
    """How many queued jobs a claim would take before it: each part is read in the order of an index, to a bound."""
    other = jobs.alias("other")
    # As text: SQLAlchemy would give each of the nested queries a FROM for it.
    me = {name: sa.literal_column(f"me.{name}", jobs.c[name].type) for name in _COLUMNS}
    bound: sa.ColumnElement[Any] = sa.literal_column(str(MOST_AHEAD + 1))
    plain = sa.and_(other.c.status == _QUEUED, other.c.queue == me["queue"], other.c.concurrency_key.is_(None))
    due = other.c.run_at <= _NOW
    waits = sa.and_(me["status"] == _QUEUED, me["run_at"] <= _NOW)
    has_no_key = sa.and_(waits, me["concurrency_key"].is_(None))
    level = (
        sa.func.generate_series(me["priority"] + ONE, sa.literal_column("9"))
        .table_valued("priority", name="level")
        .render_derived(name="level")
    )
    of_level = (
        sa.select(ONE.label("one"))
        .where(has_no_key, plain, other.c.priority == level.c.priority, due)
        .order_by(other.c.run_at, other.c.id)
        .limit(bound)
        .lateral("of_level")
    )
    higher = sa.select(of_level.c.one).select_from(level.join(of_level, sa.true()))
    before = (
        sa.select(ONE.label("one"))
        .where(
            has_no_key,
            plain,
            other.c.priority == me["priority"],
            sa.tuple_(other.c.run_at, other.c.id) < sa.tuple_(me["run_at"], me["id"]),
        )
        .order_by(other.c.run_at, other.c.id)
        .limit(bound)
        .subquery("before")
    )
    of_key = (
        sa.select(ONE.label("one"))
        .where(
            waits,
            me["concurrency_key"].is_not(None),
            other.c.status == _QUEUED,
            other.c.queue == me["queue"],
            other.c.concurrency_key == me["concurrency_key"],
            other.c.run_at <= sa.func.greatest(other.c.created_at, other.c.ready_at),
            sa.tuple_(-other.c.priority, other.c.run_at, other.c.id)
            < sa.tuple_(-me["priority"], me["run_at"], me["id"]),
        )
        .order_by(-other.c.priority, other.c.run_at, other.c.id)
        .limit(bound)
        .subquery("of_key")
    )
    parts = sa.union_all(higher, sa.select(before.c.one), sa.select(of_key.c.one)).subquery("parts")
    found = sa.select(parts.c.one).limit(bound).subquery("found")
    return sa.select(sa.func.count().label("ahead")).select_from(found).lateral("ahead")


def _locked_by(me: sa.FromClause) -> sa.ScalarSelect[int]:
    """The transaction that has locked, or is changing, the row, if it goes on. Its `xmax` does not tell the strength of the lock: with the
    weakest, of a foreign key, claims do not pass the row by.
    """
    return (
        sa.select(sa.cast(sa.func.min(_LOCKS.c.pid), sa.Integer))
        .where(
            me.c.status == _QUEUED,
            _LOCKS.c.locktype == sa.literal_column("'transactionid'"),
            _LOCKS.c.granted,
            _LOCKS.c.transactionid == me.c.locker,
            _LOCKS.c.pid != sa.func.pg_backend_pid(),
        )
        .correlate(me)
        .scalar_subquery()
    )

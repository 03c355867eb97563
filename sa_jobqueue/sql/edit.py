"""Changing what jobs are to do, and running them once more as new jobs.

>>> from sa_jobqueue import Job
>>> statement = edit_jobs(Job.id == 7, args={"order_id": 8}, priority=9)
>>> again = copy_jobs(Job.id == 7)

Neither knows the task: arguments are checked as those of a task known by name are, and the worker checks whether they fit the handler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, aggregate_order_by

from ..arguments.storable import encode_plain
from ..errors import OptionError
from ..models import GATE, Job, JobMixin, checked_due, companions_of, schema_function, status_in
from ..rules.job_fields import JOB_FIELDS
from ..rules.lifecycle import FINISHED, HELD, JobStatus
from ..rules.retry import Duration, seconds_of
from ..tasks.options import MAX_PRIORITY, checked_int, checked_name
from .admin import Criterion, Locked, check_chosen, check_locked, with_those_left
from .limits.state import FIRST_KEY
from .parts import in_seconds, lock_in_order, materialized, members, table_of
from .secrets import has_marks
from .unique import key_of

#: The worker that runs a job has its arguments already.
EDITABLE = tuple(JobStatu for JobStatu in JobStatus if JobStatu not in HELD)
#: What the copy of a unique job leaves out of its rule: a copy whose key is taken is a duplicate, and changes no other job.
_ON_CLASH: sa.ColumnElement[Any] = sa.literal_column("'{on_clash,replace,max_wait}'::text[]")
#: The columns of a step that a fork copies.
_RECORD = ("job_id", "claim_token", "ended_at", "took", "revision", "kind", "name", "digest", "result")
#: The most steps of a job that an error names.
_LISTED: sa.ColumnElement[int] = sa.literal_column("30")


def edit_jobs(
    *where: Criterion,
    args: Mapping[str, Any] | None = None,
    queue: str | None = None,
    priority: int | None = None,
    run_at: datetime | timedelta | None = None,
    locked: Locked = "wait",
    job: type[JobMixin] = Job,
) -> sa.Executable:
    """Change the arguments, the queue, the priority or the due time of jobs that are not running. Returns the ids of those that it changed.

    `args`: all arguments, as plain JSON; they replace those that are there. `run_at`: a datetime with a time zone, or a timedelta from
    the database's now(). What is None stays as it is, and so does all else: a unique job keeps the key that was made of its former
    arguments. With `args`, jobs with secret or sensitive arguments are not changed: `Task.edit` changes them. A job that has ended keeps its
    status; `retry_jobs` runs it again.

    Raises PayloadError for arguments that cannot be stored or are too large, OptionError for another value that cannot be used.
    """
    check_chosen("edit_jobs", where)
    check_locked("edit_jobs", locked)
    values = dict(_edited(args, queue, priority, run_at))
    if not values:
        raise ValueError("edit_jobs() is to change something: give it args, queue, priority or run_at")
    table = table_of(job)
    allowed = status_in(table.c.status, EDITABLE)
    if args is not None:
        allowed &= ~has_marks(table.c.args)
    mine = lock_in_order(table, allowed, *where, skip_locked=locked == "skip", nowait=locked == "nowait")
    changed = (
        sa.update(job).where(members(table.c.id, sa.select(mine.c.id)), allowed).values(values).returning(table.c.id)
    )
    done: sa.Executable = with_those_left(changed, table, [allowed, *where], locked)
    return done


def _edited(args: Any, queue: Any, priority: Any, run_at: Any) -> Iterator[tuple[str, sa.ColumnElement[Any]]]:
    """The columns to change, with values that have been checked."""
    if args is not None:
        if not isinstance(args, Mapping):
            raise TypeError(f"edit_jobs(args=...) takes arguments by name, not {type(args).__name__}")
        text = encode_plain(args, what="edit_jobs()")
        yield "args", sa.cast(sa.bindparam("edited_args", text, sa.Text), JSONB)
    if queue is not None:
        yield "queue", sa.bindparam("edited_queue", checked_name(queue, "queue", OptionError), sa.Text)
    if priority is not None:
        checked = checked_int(priority, "priority", 0, MAX_PRIORITY, OptionError)
        yield "priority", sa.bindparam("edited_priority", checked, sa.SmallInteger)
    if run_at is not None:
        due = checked_due(run_at)
        if isinstance(due, timedelta):
            yield "run_at", in_seconds(due.total_seconds(), name="delay_seconds")
        else:
            zoned = sa.DateTime(timezone=True)
            yield "run_at", sa.cast(sa.bindparam("edited_time", due, zoned), zoned)


def copy_jobs(*where: Criterion, delay: Duration = 0, job: type[JobMixin] = Job) -> sa.Executable:
    """Enqueue a copy of each of these jobs, however they ended, to be run after `delay`.

    A copy has their task, arguments, options, subject, key and your own columns, and all its attempts before it; an expiry or a deadline
    is as far away as it was for them. It is of no schedule and no workflow: jobs that take the results of others are not copied. The
    copy of a unique job takes the same key, and is a duplicate while another job has it.

    Returns a row for each copy: `id`, and `duplicate_of`, NULL unless it is a duplicate.
    """
    check_chosen("copy_jobs", where)
    table = table_of(job)
    columns = _copied(table, in_seconds(seconds_of(delay, what="copy_jobs(delay=...)"), name="delay_seconds"))
    source = (
        sa.select(*columns.values())
        .where(table.c.inputs.is_(None), table.c.task != sa.literal_column(f"'{GATE}'"), *where)
        # In the order in which all statements take unique keys, so that two of them cannot deadlock.
        .order_by(key_of(table), table.c.id)
    )
    made = sa.insert(table).from_select(list(columns), source, include_defaults=False)
    return made.returning(table.c.id, table.c.duplicate_of)


def fork_job(id: int, *, from_step: str, delay: Duration = 0, job: type[JobMixin] = Job) -> sa.Executable:
    """Enqueue a new job that repeats an ended job from one of its recorded steps on. Returns the `id` of the new job.

    The new job is a copy, as by `copy_jobs`, with the records of the steps that had ended before `from_step`. All other steps run. The
    old job does not change. The new job has no unique key. Because it has another id, `ctx.idempotency_key` differs, and other systems treat its
    requests as new. `from_step`: the full name of the record, such as "charge#2". To change the new job, execute `edit_jobs` in the same
    transaction.

    The statement fails, with the SQLSTATE 22023 and the reason, if there is no such job or step, if the job has not ended, or if it takes the
    results of other jobs.
    """
    if not isinstance(from_step, str):
        raise TypeError(f"fork_job(from_step=...) takes the name of a step, not {from_step!r}")
    table, steps = table_of(job), table_of(companions_of(job).step)
    of_job = sa.bindparam("of_job", id, sa.BigInteger)
    place = sa.func.row_number().over(order_by=(steps.c.ended_at, steps.c.name)).label("place")
    recorded = materialized(sa.select(*steps.c, place).where(steps.c.job_id == of_job), "recorded")
    first = sa.select(recorded.c.place).where(recorded.c.name == sa.bindparam("from_step", from_step, sa.Text))
    columns = _copied(table, in_seconds(seconds_of(delay, what="fork_job(delay=...)"), name="delay_seconds"))
    columns["uniqueness"] = sa.cast(sa.null(), JSONB)
    may = table.c.id == of_job, status_in(table.c.status, FINISHED), table.c.inputs.is_(None), first.exists()
    source = sa.select(*columns.values()).where(*may)
    made = sa.insert(table).from_select(list(columns), source, include_defaults=False).returning(table.c.id).cte("made")
    # Later than the job: records that are older than their job belong to an earlier job of the same id.
    at = sa.func.now() + recorded.c.place * sa.literal_column("interval '1 microsecond'")
    kept = {name: recorded.c[name] for name in _RECORD} | {"job_id": made.c.id, "ended_at": at}
    earlier = sa.select(*kept.values()).select_from(made.join(recorded, recorded.c.place < first.scalar_subquery()))
    copied = sa.insert(steps).from_select(list(kept), earlier, include_defaults=False).cte("copied")
    refused = schema_function("refuse_argument", table.schema, _not_forked(id, from_step, table, recorded), of=JSONB())
    forked = sa.func.coalesce(sa.select(made.c.id).scalar_subquery(), sa.cast(refused, sa.BigInteger))
    return sa.select(forked.label("id")).add_cte(copied)


def _not_forked(id: int, step: str, table: sa.Table, recorded: sa.CTE) -> sa.ColumnElement[str]:
    """Why a job cannot be forked from this step."""
    of_job = table.c.id == sa.bindparam("of_job", id, sa.BigInteger)
    status = sa.select(sa.cast(table.c.status, sa.Text)).where(of_job).scalar_subquery()
    takes = sa.select(table.c.inputs).where(of_job).scalar_subquery().is_not(None)
    listed = aggregate_order_by(sa.literal_column("', '", sa.Text), recorded.c.place)
    names = sa.select(sa.func.string_agg(recorded.c.name, listed, type_=sa.Text())).where(recorded.c.place <= _LISTED)
    there = sa.func.coalesce(names.scalar_subquery(), sa.literal_column("'no steps at all'"), type_=sa.Text())
    return sa.case(
        (status.is_(None), sa.literal(f"there is no job {id}", sa.Text)),
        (
            sa.not_(status_in(status, FINISHED)),
            sa.literal(f"only a job that has ended can be forked, and job {id} is ", sa.Text) + status,
        ),
        (takes, sa.literal(f"job {id} takes the results of others: retry its workflow", sa.Text)),
        else_=sa.literal(f"job {id} has no step {step!r}, but ", sa.Text) + there,
    )


def _copied(table: sa.Table, due: sa.ColumnElement[Any]) -> dict[str, sa.ColumnElement[Any]]:
    """What a copy's columns are made of, by name."""
    alike = (field.column for field in JOB_FIELDS)
    key, rule = table.c.concurrency_key, table.c.uniqueness
    own_key = sa.case((key >= FIRST_KEY, key), else_=sa.null())
    ours = frozenset(column.name for column in table_of(Job).c)
    own = {
        column.name: column
        for column in table.c
        if column.name not in ours and column.computed is None and column.identity is None
    }
    return {
        **{name: table.c[name] for name in alike},
        "run_at": due,
        "uniqueness": rule.op("-", return_type=JSONB())(_ON_CLASH),
        "expires_at": _as_far(table.c.expires_at, table.c.created_at),
        "deadline_at": _as_far(table.c.deadline_at, table.c.created_at),
        "concurrency_key": own_key,
        **own,
    }


def _as_far(limit: sa.ColumnElement[Any], since: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """A time that is as far from now as `limit` was from `since`; NULL where there was no limit, or `limit` was over then."""
    distance = sa.type_coerce(limit - since, sa.Interval())
    return sa.case(
        (sa.not_(limit <= since), sa.type_coerce(sa.func.now() + distance, sa.DateTime(timezone=True))), else_=sa.null()
    )


# ---- What operators did: written in the transaction of the action, and read again.


def record_action(
    action: str, *, who: str, target: Mapping[str, Any], count: int, job: type[JobMixin] = Job
) -> sa.Insert:
    """Note that `who` has done this to `count` things. It is for the transaction that does it, so there is both or neither.

    >>> statement = record_action("retry", who="ada", target={"queue": ["mail"]}, count=12)
    """
    return sa.insert(companions_of(job).audit).values(action=action, who=who, target=dict(target), count=count)


def list_audit(
    *,
    before: int | None = None,
    who: str | None = None,
    action: str | None = None,
    limit: int = 50,
    job: type[JobMixin] = Job,
) -> sa.Select[Any]:
    """What was done, the last first: id, at, who, action, target, count.

    `before`: only what has a lower id. `who`, `action`: only what this operator did, only what was done so.
    """
    audit = companions_of(job).audit
    columns = table_of(audit).c
    query = sa.select(*(columns[name] for name in ("id", "at", "who", "action", "target", "count")))
    if before is not None:
        query = query.where(audit.id < before)
    if who is not None:
        query = query.where(audit.who == who)
    if action is not None:
        query = query.where(audit.action == action)
    return query.order_by(audit.id.desc()).limit(limit)

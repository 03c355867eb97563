"""What an operator does to jobs. Each is a statement, so it joins the caller's transaction:

>>> from sa_jobqueue import Job
>>> statement = cancel_jobs(Job.queue == "mail", Job.is_scheduled)

The criteria are those of `select(Job).where(...)`. A statement touches only jobs in a state that the life cycle allows
it for, and returns the ids it touched. Rows are locked in the order of their ids, so two operators cannot deadlock.

`locked`: what to do about a row that another transaction has locked. "wait" for it; "nowait": fail at once with SQLSTATE
55P03, and change nothing; "skip": leave it. With "skip" a statement returns a row (id, changed) for each job that matched, so
it says which it left.

Job objects that are already loaded keep what they show until they are refreshed (`synchronize_session=False`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import OID
from sqlalchemy.exc import ArgumentError

from ..models import Job, JobMixin, StatusText, companions_of, schema_function, status_in, status_literal
from ..rules.failures import entry
from ..rules.lifecycle import FINISHED, TRANSITIONS, Event, JobStatus, Rules, sources
from ..rules.retry import Duration, seconds_of
from .apply import append_error, as_entry
from .ends import at_end, ended, ended_id, is_held
from .expiry import is_late
from .limits.claims import permits_freed
from .parts import ONE, ZERO, array, in_seconds, lock_in_order, materialized, members, rows, table_of
from .steps import differs, forget_waits
from .unique import given_back, key_of, takes_key
from .workflows.actions import LOOK, NOT_COMPLETED, member_events

Criterion = sa.ColumnExpressionArgument[bool]

#: What an operator's statement does about a row that another transaction has locked.
Locked: TypeAlias = Literal["wait", "nowait", "skip"]

#: Of the table whose row is updated.
_TABLE_OID = sa.literal_column("tableoid", OID)

UNSYNCHRONIZED = {"synchronize_session": False}


def cancel_jobs(*where: Criterion, locked: Locked = "wait", job: type[JobMixin] = Job) -> sa.Executable:
    """Cancel jobs: a waiting job is cancelled, a running job is asked to stop and not retried.

    The running job becomes `completed` if it completes all the same, `failed` if its last attempt fails, and else
    cancelled. It is one UPDATE, so it holds against a claim at the same moment. Workers that listen are told at the commit.
    """
    columns = table_of(job).c
    held = is_held(table_of(job))
    cancelled = status_literal(TRANSITIONS[JobStatus.QUEUED, Event.CANCEL])
    end = ended(
        sa.type_coerce(sa.case((sa.not_(held), cancelled), else_=columns.status), StatusText()),
        retain=Rules().retain,
        only=sa.not_(held),
        of=table_of(job),
    )
    end["lease_expires_at"] = sa.case((held, columns.lease_expires_at))  # its worker goes on until it hears of it
    telling = schema_function("tell_workers", table_of(job).schema, _TABLE_OID, of=sa.DateTime(timezone=True))
    requested = sa.func.coalesce(columns.cancel_requested_at, sa.case((held, telling), else_=at_end()))
    values = {**end, "cancel_requested_at": requested}
    return _act("cancel_jobs", job, Event.CANCEL, where, values=values, locked=locked, ends=sa.not_(held))


def retry_jobs(
    *where: Criterion,
    spread: Duration = 0,
    as_before: bool = False,
    locked: Locked = "wait",
    job: type[JobMixin] = Job,
) -> sa.Executable:
    """Run jobs again, now, however they ended, with all their attempts before them; `errors` is kept.

    A job that waits for a later time (scheduled, or retrying) becomes due now and keeps its count of attempts. A unique job
    takes its key again; it is left as it is, and not returned, while another job has the key. A member of a workflow waits for its
    parents again, and its queued children for it; those that were cancelled because it had failed come back by `retry_workflow`.

    Recorded steps are kept, so the job repeats none of them; a wait that has not ended starts again. A job that `@task(steps="hold")` holds
    goes on with the record of the step.

    `spread`: seconds or a timedelta over which they become due, evenly, in the order of their ids; the first becomes due now.
    `as_before`: jobs keep their due time, their place, their attempts and their limits of time, as when a cancel is taken back.
    """
    columns = table_of(job).c
    finished = status_in(columns.status, FINISHED)
    waits = sa.and_(columns.status != status_literal(JobStatus.QUEUED), columns.workflow_id.is_not(None))
    reopened = status_literal(TRANSITIONS[JobStatus.FAILED, Event.REOPEN])
    queued = status_literal(TRANSITIONS[JobStatus.FAILED, Event.REQUEUE])
    values = {
        "status": sa.type_coerce(sa.case((waits, reopened), else_=queued), StatusText()),
        "blocked_by": sa.case((waits, -columns.workflow_id), else_=columns.blocked_by),
        "run_at": sa.func.least(columns.run_at, sa.func.now()),
        "attempt": sa.case((finished, ZERO), else_=columns.attempt),
        "rescues": ZERO,
        "finished_at": sa.null(),
        "purge_at": sa.null(),
        "cancel_requested_at": sa.null(),
        "lease_expires_at": sa.null(),
        "result": sa.null(),
        "_duplicate_of": sa.null(),
        # A limit that is over would end it again at once.
        "expires_at": sa.case((columns.expires_at > sa.func.now(), columns.expires_at)),
        "deadline_at": sa.case((columns.deadline_at > sa.func.now(), columns.deadline_at)),
    }
    if as_before:
        values |= {name: columns[name] for name in ("run_at", "attempt", "rescues", "expires_at", "deadline_at")}
    seconds = seconds_of(spread, what="retry_jobs(spread=...)")
    return _act(
        "retry_jobs", job, Event.REQUEUE, where, values=values, locked=locked, spread=seconds, as_before=as_before
    )


def may_retry(job: type[JobMixin]) -> sa.ColumnElement[bool]:
    """Whether `retry_jobs` runs a job again: the job has ended, is queued, or is held because the arguments of a step differ."""
    return sa.or_(status_in(table_of(job).c.status, sources(Event.REQUEUE)), differs(job))


def discard_jobs(
    *where: Criterion,
    reason: str | None = "discarded by an operator",
    locked: Locked = "wait",
    job: type[JobMixin] = Job,
) -> sa.Executable:
    """Give up jobs that wait: they end as `failed`, with `reason` in `errors`. A running job is not touched: cancel it.

    `reason`: None leaves `errors` as they are.
    """
    if reason is not None and not isinstance(reason, str):
        raise TypeError(f"the reason must be a string, not {reason!r}")
    table = table_of(job)
    failed = status_literal(TRANSITIONS[JobStatus.QUEUED, Event.DISCARD])
    values = ended(failed, retain=Rules().retain_failed, of=table)
    if reason is not None:
        values["errors"] = append_error(table, as_entry(entry("Discard", reason)))
    return _act("discard_jobs", job, Event.DISCARD, where, values=values, locked=locked, ends=sa.true())


def release_jobs(
    *where: Criterion, delay: Duration = 0, locked: Locked = "wait", job: type[JobMixin] = Job
) -> sa.Executable:
    """Give running jobs back to the queue, to be claimed again after `delay`; no attempt is spent. Without a delay they keep their place.

    Their workers, if they still work on them, lose them at once. A job that was asked to cancel ends as cancelled. Workers that
    listen and wait for a permit are told at the commit.
    """
    columns = table_of(job).c
    asked = columns.cancel_requested_at.is_not(None)
    back, cancelled = TRANSITIONS[JobStatus.RUNNING, Event.RELEASE], TRANSITIONS[JobStatus.RUNNING, Event.CANCEL]
    seconds = seconds_of(delay, what="release_jobs(delay=...)")
    later = in_seconds(seconds, name="delay_seconds") if seconds else sa.func.least(columns.run_at, sa.func.now())
    end = ended(
        sa.type_coerce(sa.case((asked, status_literal(cancelled)), else_=status_literal(back)), StatusText()),
        retain=Rules().retain,
        only=asked,
        of=table_of(job),
    )
    values = {
        **end,
        "run_at": sa.case((asked, columns.run_at), else_=later),
        "attempt": sa.func.greatest(columns.attempt - ONE, ZERO),
    }
    return _act("release_jobs", job, Event.RELEASE, where, values=values, locked=locked, ends=asked, frees=True)


def held_by(worker: str, *, but: Collection[tuple[int, int | None]], job: type[JobMixin] = Job) -> Criterion:
    """The running jobs that bear this worker's id, without the claims `but`, as (id, token)."""
    columns = table_of(job).c
    kept = rows(
        "kept",
        id=array("kept_ids", [job_id for job_id, _ in but], sa.BigInteger()),
        token=array("kept_tokens", [token for _, token in but], sa.BigInteger()),
    )
    known = (
        sa.select(kept.c.id)
        .where(kept.c.id == columns.id, kept.c.token == columns.claim_token)
        .correlate(table_of(job))
    )
    return sa.and_(columns.worker == sa.bindparam("of_worker", worker, sa.Text), sa.not_(known.exists()))


def _act(
    name: str,
    job: type[JobMixin],
    event: Event,
    where: Sequence[Criterion],
    *,
    values: Mapping[str, Any],
    locked: Locked,
    ends: sa.ColumnElement[bool] | None = None,
    frees: bool = False,
    spread: float = 0,
    as_before: bool = False,
) -> sa.Executable:
    """The statement of `name`: jobs that match and are in a state `event` is allowed in; looked at again under the lock.

    `ends`: which of the jobs end by it. They give their unique keys back, and the programs and workflows that wait for them are notified.
    `frees`: the jobs had permits, and workers that wait for permits are notified. `spread`: the seconds over which jobs that are queued
    again become due. `as_before`: waits are kept.
    """
    check_chosen(name, where)
    check_locked(name, locked)
    table = table_of(job)
    allowed = may_retry(job) if event is Event.REQUEUE else status_in(table.c.status, sources(event))
    ends_of_it = sa.true() if ends is None else ends
    workflow = sa.case((ends_of_it, table.c.workflow_id)).label("workflow_id")
    also: list[sa.ColumnElement[Any]] = [sa.case((ends_of_it, key_of(table))).label("key"), workflow]
    if event is Event.REQUEUE:
        # A waiting job whose time is over may have lost its key, too.
        keyless = sa.or_(status_in(table.c.status, FINISHED), is_late(table))
        rests = table.c.status != status_literal(JobStatus.QUEUED)
        back, rested = sa.case((rests, table.c.workflow_id)), sa.case((rests, table.c.id))
        also = [table.c.uniqueness, keyless.label("keyless"), back.label("workflow_id"), rested.label("rested")]
    mine = lock_in_order(table, allowed, *where, skip_locked=locked == "skip", nowait=locked == "nowait", also=also)
    chosen: Any = sa.select(mine.c.id)
    if event is Event.REQUEUE:
        may = materialized(
            sa.select(
                mine.c.id,
                takes_key(table, mine.c.id, mine.c.uniqueness, mine.c.keyless).label("may"),
                mine.c.workflow_id,
                mine.c.rested,
            ),
            "may_be_queued",
        )
        chosen = sa.select(may.c.id).where(may.c.may)
        back_in = sa.select(may.c.id, may.c.workflow_id).where(may.c.may).cte("back_in")
        also_done = [
            member_events([back_in], LOOK, notify=True, job=job),
            _children_taken_back(table, table_of(companions_of(job).dependency), back_in, mine),
            *(() if as_before else forget_waits(sa.select(may.c.rested).where(may.c.may), job=job)),
        ]
    else:
        also_done = [*given_back([mine], job), member_events([mine], NOT_COMPLETED, notify=True, job=job)]
    changed_id: sa.ColumnElement[int] = table.c.id if ends is None else ended_id(table, follows=event is Event.DISCARD)
    if frees:
        # Called once for all rows, if there are any. It returns void, which is not NULL.
        telling = permits_freed(job=job).scalar_subquery()
        changed_id = sa.case((telling.is_not(None), changed_id)).label("id")
    is_chosen = members(table.c.id, chosen)
    if spread:
        place = _places(chosen)
        is_chosen = table.c.id == place.c.id  # alone: with the array, too, each row would be searched in all places
        values = {**values, "run_at": in_seconds(place.c.share * sa.bindparam("spread_seconds", spread, sa.Float))}
    statement: Any = sa.update(job).where(is_chosen, allowed).values(**values).returning(changed_id)
    done: sa.Executable = with_those_left(statement, table, [allowed, *where], locked).add_cte(*also_done)
    return done


def _places(chosen: Any) -> sa.CTE:
    """For each id the `share` of the ids that come before it, from 0 on."""
    ids = chosen.subquery("again")
    before = sa.func.row_number().over(order_by=ids.c.id) - ONE
    share = sa.cast(before, sa.Float) / sa.func.count().over()
    return sa.select(ids.c.id, share.label("share")).cte("place")


def _children_taken_back(table: sa.Table, edge: sa.Table, parents: sa.CTE, mine: sa.CTE) -> sa.CTE:
    """Let members that are past these parents wait for them again, as by the function `take_back_children`. Locked members, and those in
    `mine`, are left to `advance`, which reads the state of the parents.
    """
    came = (
        sa.select(edge.c.child_id, sa.func.min(edge.c.parent_id).label("parent_id"))
        .join(parents, parents.c.id == edge.c.parent_id)
        .where(parents.c.workflow_id.is_not(None), edge.c.policy != sa.literal_column("'count'"))
        .group_by(edge.c.child_id)
        .cte("came_back")
    )
    blocked = TRANSITIONS[JobStatus.QUEUED, Event.PAUSE]
    later = sa.and_(
        table.c.status == status_literal(blocked),
        sa.or_(table.c.blocked_by == ZERO, table.c.blocked_by > came.c.parent_id),
    )
    children = materialized(
        sa.select(table.c.id, came.c.parent_id)
        .join(came, came.c.child_id == table.c.id)
        .where(
            sa.or_(table.c.status == status_literal(JobStatus.QUEUED), later), table.c.id.not_in(sa.select(mine.c.id))
        )
        .with_for_update(key_share=True, skip_locked=True, of=table),
        "children",
    )
    return (
        sa.update(table)
        .where(table.c.id == children.c.id, status_in(table.c.status, (JobStatus.QUEUED, blocked)))
        # Of several UPDATEs of a table in a statement, the server asks only the last whether it sets what a trigger is for: `job_due`.
        .values(status=status_literal(blocked), blocked_by=children.c.parent_id, run_at=table.c.run_at)
        .returning(table.c.id)
        .cte("taken_back")
    )


def with_those_left(statement: Any, table: sa.Table, where: Sequence[Criterion], locked: Locked) -> Any:
    """The UPDATE of the rows that match `where`, which returns their ids; with "skip" a row (id, changed) for each that matches."""
    if locked != "skip":
        return statement.execution_options(**UNSYNCHRONIZED)
    matched, changed = sa.select(table.c.id).where(*where).cte("matched"), statement.cte("changed")
    return (
        sa.select(matched.c.id, changed.c.id.is_not(None).label("changed"))
        .select_from(matched.outerjoin(changed, changed.c.id == matched.c.id))
        .order_by(matched.c.id)
    )


def check_chosen(name: str, where: Sequence[Criterion]) -> None:
    """Raise ValueError where no criteria are given, and TypeError for a value that is no criterion."""
    if not where:
        raise ValueError(f"say which jobs: {name}(Job.queue == 'mail'), or {name}(true()) for all of them")
    check_criteria(name, where)


def check_locked(name: str, locked: str) -> None:
    """Raise ValueError for an unknown value of `locked`."""
    if locked not in get_args(Locked):
        raise ValueError(f"{name}(locked=...) must be one of {', '.join(get_args(Locked))}, not {locked!r}")


def check_criteria(name: str, where: Sequence[Criterion]) -> None:
    """Raise TypeError for a value that is no condition: an id, a list of ids, a string."""
    for criterion in where:
        try:
            sa.and_(criterion)
        except ArgumentError as error:
            raise TypeError(f"{name} takes conditions, as in {name}(Job.id == 3), not {criterion!r}") from error

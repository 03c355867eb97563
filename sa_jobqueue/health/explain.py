"""Why a job is not running: the reasons, in words and as data.

>>> from sqlalchemy.orm import Session
>>> def say_why(session: Session, job_id: int) -> None:
...     print(explain_job(session, job_id))  # job 7 (shop.send) waits for pause mail to end: the provider is down

`reasons_of` decides, of what two statements have read: `job_facts`, and for a job that waits `why_waiting`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, TypeAlias, overload

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from ..models import TASK_GROUP, Job, JobMixin
from ..rules.failures import error_text
from ..rules.lifecycle import FINISHED, JobStatus
from ..rules.reasons import KINDS, WaitReason, What
from ..rules.words import age, versioned
from ..sql.archived import archive_parts, archived_facts
from ..sql.parts import table_of
from ..sql.readings.depths import STALE
from ..sql.readings.job_facts import job_facts
from ..sql.readings.why import why_all_wait
from ..util.log import one_line
from ..util.schema import schema_on

_PLACE = {what: place for place, what in enumerate(KINDS)}

SyncPlace: TypeAlias = Session | scoped_session[Any] | sa.Connection
AsyncPlace: TypeAlias = AsyncSession | async_scoped_session[Any] | AsyncConnection


@dataclass(frozen=True, slots=True)
class JobExplanation:
    """Why a job is not being run, or what has become of it. As text it is a sentence."""

    job_id: int
    status: JobStatus | None
    """None: there is no such job."""
    task: str | None
    queue: str | None
    at: datetime
    """When this was so, by the database's clock."""
    reasons: tuple[WaitReason, ...]
    """At least one reason. The first decides; each of the others would hold the job back as well, or belongs to the first."""
    archived_at: datetime | None = None
    """When it was moved to the archive, if it was."""

    @property
    def needs_help(self) -> bool:
        """Whether one of the reasons does not pass by itself: the job will not run, or not again, if nothing is done."""
        return any(reason.needs_help for reason in self.reasons)

    def __iter__(self) -> Iterator[WaitReason]:
        return iter(self.reasons)

    def __str__(self) -> str:
        return self.said()

    def said(self, moment: Callable[[datetime], str] | None = None) -> str:
        """The sentence. `moment` writes a time as text; without it, a time is followed by how far away it is."""
        said = "; ".join(reason.said(moment or self.distant) for reason in self.reasons)
        return f"job {self.job_id}{'' if self.task is None else f' ({self.task})'} {said}"

    def distant(self, time: datetime) -> str:
        """A time, to the second, and how far it is from `at`."""
        seconds = (time - self.at).total_seconds()
        far = f"in {age(seconds)}" if seconds > 0 else f"{age(seconds)} ago"
        return f"{time.isoformat(sep=' ', timespec='seconds')} ({far})"


@overload
def explain_job(place: SyncPlace, id: int, *, job: type[JobMixin] = Job) -> JobExplanation: ...
@overload
def explain_job(place: AsyncPlace, id: int, *, job: type[JobMixin] = Job) -> Coroutine[Any, Any, JobExplanation]: ...
def explain_job(place: SyncPlace | AsyncPlace, id: int, *, job: type[JobMixin] = Job) -> Any:
    """Why the job with this id is not being run; or by which worker it is, or how it has ended.

    `place`: a session or a connection. With one of SQLAlchemy's asyncio extension the call is awaited. It reads, in the transaction of
    `place`, what the database says now: one statement, and a second one of a job that waits. A job that is not there is looked for in the
    archive, if there is one.

    What only a worker knows is in its row within a second: that its claims skip the job because the database refuses them.
    """
    if not isinstance(id, int) or isinstance(id, bool):
        raise TypeError(f"explain_job takes the id of a job, not {id!r}: after a flush it is job.id")
    if not -(2**63) <= id < 2**63:
        raise ValueError(f"{id} cannot be the id of a job: ids have 64 bits")
    own: Any = place() if isinstance(place, (scoped_session, async_scoped_session)) else place
    if isinstance(own, (AsyncSession, AsyncConnection)):
        return own.run_sync(lambda sync: _explain(sync, id, job))
    if not isinstance(own, (Session, sa.Connection)):
        raise TypeError(f"explain_job takes a Session, an AsyncSession or a connection of either, not {own!r}")
    return _explain(own, id, job)


def _explain(place: Session | sa.Connection, id: int, job: type[JobMixin]) -> JobExplanation:
    if isinstance(place, Session):
        if place.autoflush:
            place.flush()
        place = place.connection(bind_arguments={"mapper": job.__mapper__})
    (explanation,) = explain_each(place, [id], job)
    if explanation.status is None and (found := _look_into_archive(place, id, job)) is not None:
        reasons = (_archived(found),)
        return JobExplanation(id, found.status, found.task, found.queue, explanation.at, reasons, found.archived_at)
    return explanation


def explain_each(connection: sa.Connection, ids: Sequence[int], job: type[JobMixin]) -> list[JobExplanation]:
    """Explain each of these jobs of the table, by id. Two statements, or a single one if none of them waits."""
    return [
        JobExplanation(row.asked, row.status, row.task, row.queue, row.now, reasons_of(row, waits))
        for row, waits in read_facts(connection, ids, job)
    ]


def read_facts(
    connection: sa.Connection, ids: Sequence[int], job: type[JobMixin]
) -> list[tuple[Any, list[WaitReason]]]:
    """What is known of each of these jobs: a row of `job_facts`, and its rows of `why_waiting`."""
    found = connection.execute(_facts_of(job), {"job_ids": ids}).all()
    waits = defaultdict[int, list[WaitReason]](list)
    if waiting := [row.id for row in found if row.status in (JobStatus.QUEUED, JobStatus.BLOCKED)]:
        for job_id, *reason in connection.execute(_waits_of(job), {"job_ids": waiting}):
            waits[job_id].append(WaitReason(*reason))
    return [(row, waits[row.asked]) for row in found]


def _look_into_archive(connection: sa.Connection, id: int, job: type[JobMixin]) -> Any:
    """What has become of a job that is not in its table any more; None: there is no archive, or it is not there, either."""
    table = table_of(job)
    if connection.execute(archive_parts(schema=schema_on(connection, table), table=table.name)).first() is None:
        return None
    return connection.execute(archived_facts(id, job=job)).one_or_none()


# Made once: to build them takes 7 and 9 ms of CPU, to execute them 0.7 each (November 2026).


@cache
def _facts_of(job: type[JobMixin]) -> sa.Select[Any]:
    return job_facts([], job=job)


@cache
def _waits_of(job: type[JobMixin]) -> sa.Select[Any]:
    return why_all_wait([], job=job)


# ---- deciding


@dataclass(frozen=True, slots=True)
class Crew:
    """The workers that could run a job."""

    live: int
    """How many are alive."""
    serving: int
    """How many of them serve its queue."""
    knowing: int
    """How many of those know its task."""
    slots: int = 0
    """How many jobs of its queue these run at once."""
    busy: int = 0
    """How many they do."""
    pressure: str | None = None
    """Why all of these claim less; None: not all do."""
    refused_by: int = 0
    """How many skip it, because they cannot claim it."""
    refused_at: str | None = None
    """One of them."""
    refusal: str | None = None
    """Why; None: it waits until another job whose workers have died has ended there."""

    @classmethod
    def of(cls, row: Any) -> Crew:
        """What a row of `job_facts` says."""
        pressure = row.pressure if row.pressure_on == row.knowing else None
        return cls(
            row.live, row.serving, row.knowing, row.slots, row.busy, pressure, row.refused_by, row.refused_at, row.refusal
        )  # fmt: skip


def reasons_of(row: Any, waits: Sequence[WaitReason], crew: Crew | None = None) -> tuple[WaitReason, ...]:
    """Why a job is not being run, the deciding reason first. `row`: of `job_facts`. `waits`: of `why_waiting`.

    `crew`: the workers, if they are not those of the database.
    """
    if row.id is None:
        return (_missing(row),)
    if row.status in FINISHED:
        return (_ended(row)._replace(workflow_id=row.workflow_id),)
    crew = Crew.of(row) if crew is None else crew
    if row.status is JobStatus.RUNNING:
        found = [*_held(row, crew), *_limits(row)]
    elif row.status is JobStatus.BLOCKED:
        found = [*(reason._replace(workflow_id=row.workflow_id) for reason in waits), *_limits(row)]
        if not waits:
            found += [_reason("released", workflow_id=row.workflow_id), *_alone(crew)]
    else:
        found = [*_queued(row, waits, crew), *_limits(row)]
    return tuple(sorted(found, key=lambda reason: _PLACE[reason.what]))


def _reason(what: What, name: str | None = None, **details: Any) -> WaitReason:
    return WaitReason(None, name, None, what, **details)


def _missing(row: Any) -> WaitReason:
    newest = "there is none in this database" if row.newest is None else f"the newest is job {row.newest}"
    if row.newest is None or row.asked > row.newest:
        return _reason("missing", reason=f"{newest}, so it was not committed, or is in another database")
    return _reason("missing", reason="it was deleted after its time of retention, or its INSERT was not committed")


def _archived(row: Any) -> WaitReason:
    """How it had ended. Nothing can be done about it any more."""
    ended = _ended(row)
    said = {
        "failed": f"it has failed after {ended.used} of {ended.limit} attempts",
        "duplicate": f"it is a duplicate of {f'job {row.duplicate_of}' if row.duplicate_of else 'another job'}",
        "cancelled": "it was cancelled",
    }.get(ended.what, "it has completed")
    because = f"{' ' if (ended.reason or '').startswith('on request') else ': '}{ended.reason}" if ended.reason else ""
    return ended._replace(what="archived", reason=f"{said}{because}")


def _ended(row: Any) -> WaitReason:
    at, error = row.finished_at, _error(row)
    if row.status is JobStatus.COMPLETED:
        return _reason("completed", since=at)
    if row.status is JobStatus.FAILED:
        return _reason("failed", used=row.attempt, limit=row.max_attempts, since=at, reason=error)
    if row.duplicate_of is not None:
        return _reason("duplicate", job_ids=[row.duplicate_of] if row.duplicate_of else None, since=at)
    if row.cancel_requested_at is None:
        return _reason("cancelled", since=at, reason=error)
    return _reason("cancelled", since=at, reason="on request" + (f"; its last error: {error}" if error else ""))


def _error(row: Any) -> str | None:
    """The last error in a line. The application may have written into the column, too."""
    if not isinstance(row.error, dict):
        return None
    message = next(iter(str(row.error.get("message") or "").strip().splitlines()), "")
    return one_line(error_text(row.error.get("type"), message))


def _alone(crew: Crew) -> list[WaitReason]:
    """No worker is there to do anything."""
    return [] if crew.live else [_reason("unserved")]


def _held(row: Any, crew: Crew) -> list[WaitReason]:
    """By a worker that runs it, or should."""
    name = f"{row.host}:{row.pid}" if row.host is not None else f"worker {row.worker or 'unknown'}"
    lease = row.lease_expires_at
    if lease is None or lease <= row.now:
        return [_reason("overdue", name, since=row.claimed_at, until=lease), *_alone(crew)]
    # A worker that has just begun may not have written its row yet.
    seen = row.claimed_at if row.seen_at is None else row.seen_at
    if seen is None or (row.now - seen).total_seconds() > STALE:
        return [_reason("lost", name, since=row.seen_at, until=lease), *_alone(crew)]
    asked = None if row.cancel_requested_at is None else "it was asked to cancel"
    return [_reason("claimed", name, since=row.claimed_at, until=lease, reason=asked)]


def _limits(row: Any) -> list[WaitReason]:
    """An expiry or a deadline; whether it is over already."""
    limits: list[tuple[What, str, datetime]] = []
    if row.expires_at is not None and row.attempt == 0:
        limits.append(("expires", "expiry", row.expires_at))
    if row.deadline_at is not None:
        limits.append(("deadline", "deadline", row.deadline_at))
    found = list[WaitReason]()
    for what, name, at in limits:
        if at <= row.now and row.status is JobStatus.QUEUED:
            found.append(_reason("expired", until=at, reason=name))
        else:
            never = row.status is JobStatus.QUEUED and row.run_at >= at
            found.append(_reason(what, until=at, reason="it is not due before" if never else None))
    return found


def _queued(row: Any, waits: Sequence[WaitReason], crew: Crew) -> list[WaitReason]:
    found = [_retry(row) if reason.what == "later" and row.attempt else reason for reason in waits]
    is_due = not any(reason.what in ("later", "retry") for reason in found)
    if not crew.serving:
        found.append(_reason("unserved", row.queue))
    elif not crew.knowing:
        gave_back = row.claims > 0 and row.attempt == 0 and not is_due
        found = [reason for reason in found if not (gave_back and reason.what == "later")]
        found.append(
            _reason(
                "unknown", versioned(row.task, row.version), limit=crew.serving, until=row.run_at if gave_back else None
            )
        )
    if not is_due:
        return found
    if crew.refused_by and crew.refusal is None:
        found.append(_reason("suspect", crew.refused_at, used=row.rescues))
    elif crew.refused_by:
        found.append(
            _reason("refused", crew.refused_at, used=crew.refused_by, limit=crew.serving, reason=crew.refusal)
        )  # fmt: skip
    if row.locked_by is not None:
        found.append(_reason("locked", pid=row.locked_by or None))
    if crew.pressure is not None and crew.knowing:
        found.append(_reason("pressure", reason=crew.pressure))
    if crew.knowing and crew.slots and crew.busy >= crew.slots:
        on = "the worker" if crew.knowing == 1 else f"all {crew.knowing} workers"
        found.append(_reason("busy", row.queue, used=crew.busy, limit=crew.slots, reason=f"{on} that can run it"))
    return [*found, _turn(row)] if row.ahead or not found else found


def _retry(row: Any) -> WaitReason:
    return _reason("retry", until=row.run_at, used=row.attempt, limit=row.max_attempts, reason=_error(row))


def _turn(row: Any) -> WaitReason:
    key = row.concurrency_key
    if key is None:
        return WaitReason("queue", row.queue, None, "turn", used=row.ahead)
    if key.startswith(TASK_GROUP):
        return WaitReason("task", row.task, None, "turn", used=row.ahead)
    return WaitReason("queue", row.queue, key, "turn", used=row.ahead)

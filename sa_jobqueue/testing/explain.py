"""Why jobs are not run: one reason for each that waits, in words and as data."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, overload

from sqlalchemy import Float, func, select, type_coerce
from sqlalchemy.orm import Session

from ..lifecycle import JobStatus
from ..models import Job, JobMixin
from ..reasons import WaitReason
from ..statements.why import why_waiting
from ..tasks import Registry, default_registry
from .sides import AsyncSide, Side, SyncSide, on

__all__ = ["Explanation", "Unrun", "explain", "explain_in"]

#: Jobs of which a reason is given.
_SHOWN = 50


@dataclass(frozen=True, slots=True)
class Unrun:
    """A job that has not ended, and why it is not run."""

    job_id: int
    task: str
    queue: str
    reason: str
    waits_for: tuple[WaitReason, ...] = ()
    """What limits and pauses say of it."""

    def __str__(self) -> str:
        return f"job {self.job_id} ({self.task}) {self.reason}"


class Explanation(Sequence[Unrun]):
    """A reason for each job that has not ended, the oldest first. As text, all of them."""

    def __init__(self, jobs: Sequence[Unrun], ended: int, more: int) -> None:
        self._jobs, self.ended, self.more = tuple(jobs), ended, more

    @overload
    def __getitem__(self, index: int) -> Unrun: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Unrun]: ...
    def __getitem__(self, index: int | slice) -> Unrun | Sequence[Unrun]:
        return self._jobs[index]

    def __iter__(self) -> Iterator[Unrun]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    def __str__(self) -> str:
        if not self._jobs:
            ended = f"{self.ended:,} {'has' if self.ended == 1 else 'have'} ended" if self.ended else "there is none"
            return f"no job waits in this session's database; {ended}"
        more = [f"and {self.more:,} more"] if self.more else []
        return "; ".join([*map(str, self._jobs), *more])

    __repr__ = __str__


@overload
def explain(
    session: SyncSide,
    *,
    queues: Collection[str] | None = None,
    registry: Registry = default_registry,
    job: type[JobMixin] = Job,
) -> Explanation: ...
@overload
def explain(
    session: AsyncSide,
    *,
    queues: Collection[str] | None = None,
    registry: Registry = default_registry,
    job: type[JobMixin] = Job,
) -> Coroutine[Any, Any, Explanation]: ...
def explain(
    session: Side,
    *,
    queues: Collection[str] | None = None,
    registry: Registry = default_registry,
    job: type[JobMixin] = Job,
) -> Any:
    """Why `drain`, with the same arguments, does not run what waits. Of an `AsyncSession` the call is awaited.

    The reasons: it is due later, or its retry is; its queue is not among `queues`; the registry does not know its task; its queue, task
    or key is paused or at a limit; another connection has it locked; it is running.
    """

    def work(session: Session) -> Explanation:
        session.flush()
        return explain_in(session, queues=queues, registry=registry, job=job)

    return on(session, work)


def explain_in(
    session: Session, *, queues: Collection[str] | None, registry: Registry, job: type[JobMixin]
) -> Explanation:
    """The same, in a `Session`."""
    count = select(func.count()).select_from(job)
    live, ended = session.scalar(count.where(job.is_live)) or 0, session.scalar(count.where(job.is_finished)) or 0
    seconds = type_coerce(func.extract("epoch", job.run_at - func.clock_timestamp()), Float)
    columns = (job.id, job.task, job.queue, job.status, job.run_at, job.attempt, job.worker)
    rows = session.execute(
        select(*columns, seconds.label("seconds")).where(job.is_live).order_by(job.id).limit(_SHOWN)
    ).all()
    free = _unlocked(session, [row.id for row in rows], job)
    found = [_reason(session, row, free, queues=queues, registry=registry, job=job) for row in rows]
    return Explanation(found, ended, live - len(found))


def _unlocked(session: Session, ids: Sequence[int], job: type[JobMixin]) -> set[int]:
    locked = select(job.id).where(job.id.in_(ids)).with_for_update(key_share=True, skip_locked=True)
    return set(session.scalars(locked))


def _reason(
    session: Session,
    row: Any,
    free: Collection[int],
    *,
    queues: Collection[str] | None,
    registry: Registry,
    job: type[JobMixin],
) -> Unrun:
    waits: tuple[WaitReason, ...] = ()
    if row.status is JobStatus.RUNNING:
        why = f"is being run by {row.worker}"
    elif row.status is JobStatus.BLOCKED:
        waits = tuple(_waits(session, row.id, job))
        why = ", ".join(one.said(_moment) for one in waits) or "waits for other jobs"
    elif queues is not None and row.queue not in queues:
        why = f"is in the queue {row.queue!r}, and only {', '.join(sorted(queues))} is looked at"
    elif registry.get(row.task) is None:
        why = "has a task that is not known here: import its module, or give the registry that has it"
    elif row.seconds > 0:
        retry = f", for attempt {row.attempt + 1}" if row.attempt else ""
        why = f"is due in {_lasting(row.seconds)}{retry}: move_clock() lets that time pass"
    elif row.id not in free:
        why = "is locked by another connection"
    elif waits := tuple(one for one in _waits(session, row.id, job) if one.what != "later"):
        why = ", ".join(one.said(_moment) for one in waits)
    else:
        why = "is due: drain() would run it"
    return Unrun(row.id, row.task, row.queue, why, waits)


def _waits(session: Session, job_id: int, job: type[JobMixin]) -> list[WaitReason]:
    return [WaitReason(*row) for row in session.execute(why_waiting(job_id, job=job))]


def _moment(at: datetime) -> str:
    return at.isoformat(sep=" ", timespec="seconds")


def _lasting(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"

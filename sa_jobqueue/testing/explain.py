"""Why jobs are not run: a reason for each waiting job, in words and as data."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Any, overload

import sqlalchemy as sa
from sqlalchemy.orm import Session

from ..health.explain import Crew, read_facts, reasons_of
from ..models import JobMixin
from ..rules.reasons import WaitReason
from ..tasks.registry import Registry, default_registry
from ..tasks.upcasts import newer
from ..worker.running.joined import connection_of
from .transaction import AsyncSide, Listed, Side, SyncSide, on

#: Jobs whose reasons are given.
_SHOWN = 50
#: What does not keep a job from being run by `drain`.
_HARMLESS = frozenset({"turn", "expires", "deadline"})


@dataclass(frozen=True, slots=True)
class Unrun:
    """A job that has not ended, and why it is not run."""

    job_id: int
    task: str
    queue: str
    reason: str
    reasons: tuple[WaitReason, ...] = ()
    """As data, as `explain_job` has them: the deciding reason first."""

    def __str__(self) -> str:
        return f"job {self.job_id} ({self.task}) {self.reason}"


class Explanation(Listed[Unrun]):
    """A reason for each job that has not ended, the oldest first. As text, all of them."""

    def __init__(self, jobs: Sequence[Unrun], ended: int, more: int) -> None:
        super().__init__(jobs)
        self.ended, self.more = ended, more

    def __str__(self) -> str:
        if not self.listed:
            ended = f"{self.ended:,} {'has' if self.ended == 1 else 'have'} ended" if self.ended else "there is none"
            return f"no job waits in this session's database; {ended}"
        more = [f"and {self.more:,} more"] if self.more else []
        return "; ".join([*map(str, self.listed), *more])

    __repr__ = __str__


@overload
def explain(
    session: SyncSide,
    *,
    queues: Collection[str] | None = None,
    registry: Registry = default_registry,
    job: type[JobMixin] | None = None,
) -> Explanation: ...
@overload
def explain(
    session: AsyncSide,
    *,
    queues: Collection[str] | None = None,
    registry: Registry = default_registry,
    job: type[JobMixin] | None = None,
) -> Coroutine[Any, Any, Explanation]: ...
def explain(
    session: Side,
    *,
    queues: Collection[str] | None = None,
    registry: Registry = default_registry,
    job: type[JobMixin] | None = None,
) -> Any:
    """Why `drain`, with the same arguments, does not run what waits. Of an `AsyncSession` the call is awaited.

    `job`: the class of the jobs, if it is not the registry's.

    The reasons: it is due later, or its retry is; its queue is not among `queues`; the registry does not know its task; its queue, task
    or key is paused or at a limit; another connection has it locked; it is running.
    """

    def work(session: Session) -> Explanation:
        session.flush()
        return explain_in(session, queues=queues, registry=registry, job=job or registry.job)

    return on(session, work)


def explain_in(
    session: Session, *, queues: Collection[str] | None, registry: Registry, job: type[JobMixin]
) -> Explanation:
    """Explain the jobs, in a `Session`."""
    count = sa.select(sa.func.count()).select_from(job)
    live, ended = session.scalar(count.where(job.is_live)) or 0, session.scalar(count.where(job.is_finished)) or 0
    ids = session.scalars(sa.select(job.id).where(job.is_live).order_by(job.id).limit(_SHOWN)).all()
    free = _unlocked(session, ids, job)
    found = list[Unrun]()
    for row, waits in read_facts(connection_of(session, job), ids, job):
        task = registry.get(row.task)
        knows = task is not None and not newer(row.version, task.version)
        crew = Crew(1, int(queues is None or row.queue in queues), int(knows))
        exactly = {"locked_by": None if row.id in free else row.locked_by or 0}
        reasons = reasons_of(SimpleNamespace(**{**row._mapping, **exactly}), waits, crew)  # noqa: SLF001
        found.append(Unrun(row.id, row.task, row.queue, _in_words(reasons, row, queues), reasons))
    return Explanation(found, ended, live - len(found))


def _unlocked(session: Session, ids: Sequence[int], job: type[JobMixin]) -> set[int]:
    locked = sa.select(job.id).where(job.id.in_(ids)).with_for_update(key_share=True, skip_locked=True)
    return set(session.scalars(locked))


def _in_words(reasons: Sequence[WaitReason], row: Any, queues: Collection[str] | None) -> str:
    """The deciding reasons in the words of a test, with what it can do about them."""
    left_out = [reason for reason in reasons if reason.what in ("unserved", "unknown")]
    deciding = left_out or [reason for reason in reasons if reason.what not in _HARMLESS]
    return ", ".join(_in_a_test(reason, row, queues) for reason in deciding) or "is due: drain() would run it"


def _in_a_test(reason: WaitReason, row: Any, queues: Collection[str] | None) -> str:
    match reason.what:
        case "claimed" | "lost" | "overdue":
            return f"is being run by {row.worker}"
        case "unserved":
            return f"is in the queue {row.queue!r}, and only {', '.join(sorted(queues or ()))} is looked at"
        case "unknown":
            return "has a task that is not known here: import its module, or give the registry that has it"
        case "later" | "retry":
            retry = f", for attempt {row.attempt + 1}" if row.attempt else ""
            seconds = (row.run_at - row.now).total_seconds()
            return f"is due in {_lasting(seconds)}{retry}: move_clock() lets that time pass"
        case "signal" | "sleep":
            after = "signal() sends it" if reason.what == "signal" else "move_clock() lets that time pass"
            return f"{reason.said(_moment)}: {after}"
        case "locked":
            return "is locked by another connection"
        case _:
            return reason.said(_moment)


def _moment(at: datetime) -> str:
    return at.isoformat(sep=" ", timespec="seconds")


def _lasting(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"

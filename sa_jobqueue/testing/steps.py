"""Steps in tests: signals that a test sends, and runs that end in the middle as if their worker had been killed."""

from __future__ import annotations

import warnings
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, overload

from sqlalchemy.orm import Session

from ..models import Job, JobMixin
from ..rules.retry import Duration
from ..sql.steps import send_signal
from ..worker.running.joined import JoinedSteps
from .transaction import AsyncSide, Side, SyncSide, on


@overload
def signal(
    session: SyncSide,
    name: str,
    payload: object = None,
    *,
    expires_in: Duration | None = None,
    job: type[JobMixin] = Job,
) -> None: ...
@overload
def signal(
    session: AsyncSide,
    name: str,
    payload: object = None,
    *,
    expires_in: Duration | None = None,
    job: type[JobMixin] = Job,
) -> Coroutine[Any, Any, None]: ...
def signal(
    session: Side, name: str, payload: object = None, *, expires_in: Duration | None = None, job: type[JobMixin] = Job
) -> Any:
    """Send a signal in the session's transaction: the next `drain` runs the job that waits for it. Of an `AsyncSession` the call is awaited.

    The arguments and what is raised are those of `Signal`. `job`: the class of the jobs, if it is one of your own.
    """

    def work(own: Session) -> None:
        own.execute(send_signal(name, payload, expires_in=expires_in, job=job))

    return on(session, work)


@dataclass(slots=True)
class _Crash:
    step: str
    recorded: bool
    has_come: bool = False
    met: list[str] = field(default_factory=list[str])


_crash: ContextVar[_Crash | None] = ContextVar("sa_jobqueue_crash", default=None)


class _Killed(BaseException):
    """Ends a run in place of the signal that kills a process."""


@contextmanager
def crash_after(step: str, *, recorded: bool = True) -> Generator[None]:
    """End a run right after this step was recorded, as if its worker had been killed there. The next `drain` rescues the job and runs it again.

    `with crash_after("label"): drain(session)`, also around an awaited `drain`. That drain ends with the run, whose outcome is "crashed"; other
    jobs wait for the next drain. What the handler has written by `ctx.session` is undone. `finally` blocks of the handler run, which a kill
    would not let run.

    `step`: the name of the step; "label#2" for the second of a name, "signal:NAME", "sleep" or "join" for a wait that is over. `recorded`: False
    lets the run end right before the record, so that the step is done and its record is lost. Of a `step_session` both are lost.

    Raises AssertionError at the end of the block if no run came there.
    """
    crash = _Crash(step, recorded)
    token = _crash.set(crash)
    try:
        yield
    finally:
        _crash.reset(token)
    if not crash.has_come:
        met = ", ".join(map(repr, crash.met)) or "none"
        raise AssertionError(f"no run came to the end of a step {step!r}; the steps that ended: {met}")


class KitSteps(JoinedSteps):
    """The steps of a run that may be killed."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.is_killed = False
        self.recorded: list[str] = []
        """What was recorded in this run, and steps that are called with other arguments than those that were recorded."""

    def lose(self, name: str) -> None:
        """Warn, because a worker would keep it."""
        warnings.warn(
            f"job {self._job.id}: what step {name!r} wrote was undone with ctx.session, which had written before or was used in the step's block: "
            "both are on one connection here. The next run does it again; a worker keeps what the step wrote.",
            RuntimeWarning,
            stacklevel=2,
        )

    def passing(self, name: str, *, recorded: bool) -> None:
        """Kill the run, if it is to end here."""
        if recorded:
            self.recorded.append(name)
        if (crash := _crash.get()) is not None and not crash.has_come:
            if recorded:
                crash.met.append(name)
            crash.has_come = self.is_killed = (name, recorded) == (crash.step, crash.recorded)
        if self.is_killed:
            raise _Killed(f"the run was ended at step {name!r} by crash_after")

    async def idle(self) -> None:
        """Wait for steps of other tasks, unless the run was killed."""
        for step in self._running if self.is_killed else ():
            step.cancel()
        await super().idle()

    def _differs(self, name: str) -> None:
        self.recorded.append(name)
        super()._differs(name)

"""Steps in tests: send a signal, and end a run at a step as if its worker had been killed."""

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
    """Send a signal in the session's transaction. The next `drain` runs the job that waits for the signal. With an `AsyncSession`, await the call.

    The other arguments, and the exceptions, are those of `Signal`. `job`: your own class of jobs, if you have one.
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
    """End a run right after this step was recorded, as if its worker had been killed. The next `drain` rescues the job and runs it again.

    Use it as `with crash_after("label"): drain(session)`, also around an awaited `drain`. The drain ends with this run, whose outcome is "crashed";
    other jobs wait for the next drain. Writes through `ctx.session` are undone. Unlike a kill, this lets the handler's `finally` blocks run.

    `step`: the full name of the step: "label", "label#2" for the second step of that name, or "signal:NAME", "sleep" or "join" for a wait that is
    over. `recorded`: False ends the run right before the record, so the function was called but its result is lost. With a `step_session`, its
    writes are lost too.

    Raises AssertionError at the end of the block if no run reached the end of the step.
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
        """The steps that this run recorded, and the steps whose arguments differ from their records."""

    def lose(self, name: str) -> None:
        """Warn that the writes of the step's session are lost, because a worker would keep them."""
        warnings.warn(
            f"job {self._job.id}: the writes of step {name!r} were undone together with those of ctx.session, which had written before the step or in its "
            "block: in tests, both use one connection. The next run repeats the step; a worker would keep its writes.",
            RuntimeWarning,
            stacklevel=2,
        )

    def passing(self, name: str, *, recorded: bool) -> None:
        """End the run, if `crash_after` names this step."""
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

"""Running one job in a child process: a thread of the worker's hands it over, waits, and kills the child where that is due."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import sqlalchemy as sa

from ...errors import TaskError
from ...failures import describe, entry
from ...log import get_logger
from ...outcomes import Crashed, ErrorEntry, Failed, Outcome, Released
from ..running.ending import Lost, RunEnding
from ..running.executor import Executor
from ..running.joblog import lasting
from ..running.notes import Notes
from ..running.run import Run
from ..running.timeouts import timed_out, timeout_of
from ..running.verdict import of_stop, unstarted
from .channel import Message
from .child import Child, ChildUnavailable, say
from .messages import ending_of, is_said_of, line_of, message_of_job
from .pool import Children

__all__ = ["ChildRunner"]

logger = get_logger(__name__)

#: Seconds between two looks at the memory of a child whose task has a limit.
_LOOK = 0.05
#: Seconds, on average, that a job waits which went back because there was no child for it.
_AGAIN = 10.0


@dataclass(frozen=True, slots=True)
class _DecidedHere:
    """The outcome of a job that no child has ended: none was to be had, or it was killed, or has died. `note`: what the log adds."""

    outcome: Outcome | Lost
    note: str = ""


class _DiedIdle(Exception):
    """The child has died while it had no job, and so has not begun this one."""


class ChildRunner:
    """Runs jobs in `children`. What a child decides `executor` reports; what becomes of a job whose child is killed, it decides.

    `grace`: seconds between asking a handler to stop and killing its child. `pause(queue, engine, why)`: as of `Executor`, with
    the worker's own `engine`. `notes`: what takes what handlers say.
    """

    def __init__(
        self,
        children: Children,
        executor: Executor,
        *,
        grace: float,
        engine: sa.Engine,
        pause: Callable[[str, sa.Engine, str], None],
        notes: Notes,
    ) -> None:
        self._children, self._executor, self._grace = children, executor, grace
        self._engine, self._pause, self._notes = engine, pause, notes

    def run(self, run: Run) -> None:
        """Run a job, on the thread that calls. When this returns, its child is free, or dead."""
        try:
            ending = self._run_in_child(run)
        except _DiedIdle as died:
            # It was killed while it had no job. One that dies of the job's message takes the new child along, and that counts.
            logger.warning("%s before it began a job; another takes its place", died)
            run.started = None
            ending = self._run_in_child(run, new=True)
        if isinstance(ending, _DecidedHere):
            self._executor.give_up(run, ending.outcome, ending.note)
        else:
            self._adopt(run, ending)

    def _run_in_child(self, run: Run, *, new: bool = False) -> Message | _DecidedHere:
        """Run a job in a free child, or in a `new` one. Raises _DiedIdle if a free one has died meanwhile."""
        if (outcome := unstarted(run)) is not None:
            return _DecidedHere(outcome)
        try:
            child = self._children.take(run.task.memory_limit, new=new)
        except ChildUnavailable as error:
            logger.error(
                "%s[%d] goes back, no attempt spent, because there is no child process for it: %s",
                run.job.task, run.job.id, error, extra=run.job.fields,
            )  # fmt: skip
            return _DecidedHere(Released(_AGAIN * random.uniform(0.5, 1.5)))
        run.wake = child.wake  # before the second look: from here on it is told of a stop
        if (outcome := unstarted(run)) is not None:  # a child may take seconds to start
            run.wake = None
            self._children.give_back(child)
            return _DecidedHere(outcome)
        try:
            ending = self._follow(run, child, new)
        except BaseException:
            self._children.drop(child)
            raise
        finally:
            run.wake = None
        if child.killed or isinstance(ending, _DecidedHere):
            self._children.drop(child)
        else:
            self._children.give_back(child)
        return ending

    def _adopt(self, run: Run, message: Message) -> None:
        if "not found" in message:
            error = TaskError(message["not found"])
            self._executor.give_up(run, Failed(error, describe(error)))
            return
        if (why := message.get("unopened")) is not None:
            self._pause(run.job.queue, self._engine, why)
        ending: RunEnding = ending_of(message)
        self._executor.adopt(run, ending)

    def _follow(self, run: Run, child: Child, new: bool) -> Message | _DecidedHere:
        """Give the child its job, and wait for its end or that of the child."""
        run.started = monotonic()
        watch = _Watch(run, child, self._grace)
        begun = new
        try:
            child.jobs += 1
            child.send(message_of_job(run.job, run.task, run.elapsed))
            while True:
                messages = child.receive(watch.pause())
                begun = begun or _has_begun(messages)
                if (ending := self._ended_in(run, messages)) is not None:
                    return ending
                if (killed := watch.check()) is not None:
                    child.kill()
                    return self._ended_in(run, child.last_words()) or killed
        except (OSError, EOFError):
            child.kill()
            words = child.last_words()
            how = self._children.drop(child)
            if (ending := self._ended_in(run, words)) is not None:
                return ending
            if not begun and not _has_begun(words):
                raise _DiedIdle(f"the child process {child.pid} {how}") from None
            return _crashed(run, f"its child process {how}")

    def _ended_in(self, run: Run, messages: list[Message]) -> Message | None:
        """What came of the job, if these messages say so. The others are heeded, also those that came behind the last of the job:
        another thread of the child may have logged.
        """
        found: Message | None = None
        for message in messages:
            if _is_last(message):
                found = message
            else:
                self._heed(run, message)
        return found

    def _heed(self, run: Run, message: Message) -> None:
        """What a child says beside the end of a job."""
        if "claim" in message and not is_said_of(message, run.job):
            return
        if "progress" in message:
            self._notes.report(run.job, *message["progress"])
        elif "line" in message:
            self._notes.add_line(run.job, run.task.keep_logs, line_of(message))
        else:
            say(message)


class _Watch:
    """When the child of a run is to be killed, and why."""

    def __init__(self, run: Run, child: Child, grace: float) -> None:
        self._run, self._child, self._grace = run, child, grace
        assert run.started is not None
        limit = run.task.memory_limit
        self._timeout_at = timeout_of(run, run.started)
        self._limit = limit if limit is not None and child.resident() is not None else None
        self._kill_at: float | None = None

    def pause(self) -> float | None:
        """Seconds until something is due; None: nothing is."""
        times = [at for at in (self._timeout_at, self._kill_at) if at is not None]
        if self._limit is not None:
            times.append(monotonic() + _LOOK)
        return min(times) - monotonic() if times else None

    def check(self) -> _DecidedHere | None:
        """Tell the child what it was not told yet. Returns why it is to be killed now, if it is."""
        run, now = self._run, monotonic()
        if run.stop is not None and self._kill_at is None:
            self._kill_at = now + self._grace
            self._child.send({"stop": run.stop.value})
        if self._timeout_at is not None and self._timeout_at <= now:
            error = timed_out(run)
            return _DecidedHere(Failed(error, describe(error)), "; its child process was killed")
        if self._kill_at is not None and self._kill_at <= now:
            logger.warning(
                "%s[%d] did not stop within %s; its child process is killed",
                run.job.task, run.job.id, lasting(self._grace), extra=run.job.fields,
            )  # fmt: skip
            return _DecidedHere(of_stop(run))
        if self._limit is not None and (used := self._child.resident() or 0) > self._limit:
            return _crashed(
                run,
                f"its child process was killed: {used:,} bytes were resident (memory_limit {self._limit:,})",
                "MemoryLimit",
            )
        return None


def _crashed(run: Run, how: str, kind: str = "ChildDied") -> _DecidedHere:
    reason: ErrorEntry = entry(kind, how)
    # A handler that was asked to stop has had its time, whatever ended its process.
    return _DecidedHere(of_stop(run) if run.stop is not None else Crashed(reason))


def _has_begun(messages: list[Message]) -> bool:
    return any("begun" in message for message in messages)


def _is_last(message: Message) -> bool:
    """Whether it is the last that a child says of a job."""
    return "ended" in message or "not found" in message

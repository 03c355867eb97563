"""Running a job in a child process: a thread of the worker hands it over, waits, and kills the child where necessary."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from time import monotonic, sleep
from typing import NamedTuple

import sqlalchemy as sa

from ...errors import ConfigurationError, TaskError
from ...rules.failures import describe, entry
from ...rules.outcomes import Crashed, Failed, Outcome, Released
from ...sql.workers import serves
from ...tasks.registry import Registry
from ...tasks.tasks import AnyTask
from ...util.log import get_logger
from ..running.attempt_end import Lost, RunEnding
from ..running.executor import Executor
from ..running.joblog import lasting
from ..running.notes import JobReports
from ..running.run import Run
from ..running.timeouts import timed_out, timeout_of
from ..running.verdict import of_stop, unstarted
from .child import Child, ChildUnavailable, log_here
from .loading import ChildSetup
from .messages import Message, is_of_claim, message_of_job

logger = get_logger(__name__)

#: Seconds that a child may take to end when it was asked to.
_LEAVE = 10.0
#: Seconds between two checks whether they have, while a worker leaves.
_LEAVE_CHECK = 0.02
#: A child may keep memory that its jobs needed, and the next job would be killed for it. So a job with a memory limit gets another
#: child if this child keeps more than this share of the memory that the limit leaves a new child.
_KEPT = 0.5


class Children:
    """Child processes that run one job at a time each. There are as many as jobs have run in them at the same time.

    `max_jobs`: a child that has run this many jobs is replaced. For any thread.
    """

    def __init__(self, setup: ChildSetup, *, max_jobs: int | None) -> None:
        self._setup, self._max_jobs = setup, max_jobs
        self._lock = threading.Lock()
        # All under the lock.
        self._all: set[Child] = set()
        self._idle: list[Child] = []
        """Children without a job; the child whose job ended last gets the next job."""
        self._leaving: list[tuple[float, Child]] = []
        """Children that were asked to end, and until when they may take."""
        self._closed = False
        self._hooked: Collection[AnyTask] = ()
        """A task of each registry whose hooks the children call. Written before there is a child."""
        self._leave_gently = False
        """Whether a child may have something to do when it ends. Written before there is a child."""

    def check(self, registry: Registry, queues: Collection[str]) -> None:
        """Start a child, if these queues may have jobs for it, and let it find their tasks. It waits for the first job.

        Raises ConfigurationError if it cannot be started, or does not know a task: then no job could run.
        """
        tasks = [task for task in registry if task.executor is not None]  # an operator may add their queue
        homes = {id(task.registry): task for task in tasks if task.registry.start_hooks or task.registry.stop_hooks}
        self._hooked = homes.values()
        self._leave_gently = bool(homes) or any(task.injected is not None for task in tasks)
        served = [task for task in tasks if serves(queues, task.queue)]
        if not served:
            return
        try:
            self.give_back(self._start(served))
        except ChildUnavailable as error:
            raise ConfigurationError(f'a child process for tasks of executor="process": {error}') from None

    def take(self, memory_limit: int | None, *, new: bool = False) -> Child:
        """A child for a job, a `new` child or any free child; `give_back` or `drop` comes next. Raises ChildUnavailable."""
        while not new:
            self._end_leaving()
            with self._lock:
                if not self._idle:
                    break
                child = self._idle.pop()
            if not child.is_ready():
                logger.warning(
                    "the child process %d %s while it had no job; another takes its place", child.pid, self.drop(child)
                )
            elif memory_limit is not None and _keeps_much(child, memory_limit):
                self._retire(child)
            else:
                return child
        return self._start(())

    def give_back(self, child: Child) -> None:
        """Let a child whose job has ended wait for the next job."""
        if self._max_jobs is not None and child.jobs >= self._max_jobs:
            self._retire(child)
            return
        with self._lock:
            if not self._closed:
                self._idle.append(child)
                return
        self.drop(child)

    def drop(self, child: Child) -> str:
        """Kill a child, or its group if it has died. Returns how it ended, for people."""
        how = child.end()
        with self._lock:
            self._all.discard(child)
        return how

    def close(self) -> None:
        """Kill all children, with or without a job, and start no more. Those without a job may call their stop hooks first."""
        with self._lock:
            self._closed = True
            everyone, idle = list(self._all), self._idle
            self._idle = []
            leaving, self._leaving = self._leaving, []
        if self._leave_gently:
            until = monotonic() + _LEAVE
            for child in idle:
                child.leave()
            while monotonic() < until and any(child.is_ready() for child in idle):
                sleep(_LEAVE_CHECK)
        for child in everyone:
            child.kill()
        for child in (*idle, *(child for _, child in leaving)):
            self.drop(child)

    def _start(self, tasks: Iterable[AnyTask]) -> Child:
        with self._lock:
            if self._closed:
                raise ChildUnavailable("the worker leaves")
            child = Child()
            self._all.add(child)
        begun = monotonic()
        try:
            child.begin(self._setup.now(tasks, self._hooked))
        except BaseException:
            with self._lock:
                self._all.discard(child)
            raise
        logger.debug("the child process %d is ready, after %.2f s", child.pid, monotonic() - begun)
        return child

    def _retire(self, child: Child) -> None:
        """Let a child end by itself, without waiting for that."""
        child.leave()
        self._wait_for(monotonic() + _LEAVE, child)
        self._end_leaving()

    def _wait_for(self, until: float, child: Child) -> None:
        """Note a child that was asked to end. If the worker leaves, kill it."""
        with self._lock:
            if not self._closed:
                self._leaving.append((until, child))
                return
        self.drop(child)

    def _end_leaving(self) -> None:
        """Forget the children that have ended when they were asked to, and kill those that do not."""
        with self._lock:
            if not self._leaving:
                return
            leaving, self._leaving = self._leaving, []
        for until, child in leaving:
            if child.has_ended() or monotonic() >= until:
                self.drop(child)
            else:
                self._wait_for(until, child)


def _keeps_much(child: Child, memory_limit: int) -> bool:
    kept = (child.resident() or 0) - child.memory_unused
    return kept > (memory_limit - child.memory_unused) * _KEPT


#: Seconds between two checks of the memory of a child whose task has a limit.
_MEMORY_EVERY = 0.05
#: Seconds, on average, until a job runs again that went back because there was no child for it.
_AGAIN = 10.0


class _DecidedHere(NamedTuple):
    """The outcome of a job that no child has ended: there was no child, or it was killed, or died. `note` is added to the log line."""

    outcome: Outcome | Lost
    note: str = ""


class _DiedIdle(Exception):
    """The child died while it had no job, so it has not begun this job."""


@dataclass(frozen=True)
class ChildRunner:
    """Runs jobs in `children`. `executor` reports the ending that a child decides, and decides for a job whose child is killed.

    `grace`: seconds between asking a handler to stop and killing its child. `pause(queue, engine, why)`: as of `Executor`, with
    the worker's own `engine`. `notes` receives handlers' progress and log lines.
    """

    children: Children
    executor: Executor
    grace: float
    engine: sa.Engine
    pause: Callable[[str, sa.Engine, str], None]
    notes: JobReports

    def run(self, run: Run) -> None:
        """Run a job, on the calling thread. When this returns, its child is free, or dead."""
        try:
            ending = self._run_in_child(run)
        except _DiedIdle as died:
            # It was killed while it had no job. If the job's message kills a child, the new child dies, too, and that counts.
            logger.warning("%s before it began a job; another takes its place", died)
            run.started = None
            ending = self._run_in_child(run, new=True)
        if isinstance(ending, _DecidedHere):
            self.executor.give_up(run, ending.outcome, ending.note)
        else:
            self._adopt(run, ending)

    def _run_in_child(self, run: Run, *, new: bool = False) -> Message | _DecidedHere:
        """Run a job in a free child, or in a `new` child. Raises _DiedIdle if a free child has died meanwhile."""
        if (outcome := unstarted(run)) is not None:
            return _DecidedHere(outcome)
        try:
            child = self.children.take(run.task.memory_limit, new=new)
        except ChildUnavailable as error:
            logger.error(
                "%s[%d] goes back, no attempt spent, because there is no child process for it: %s",
                run.job.task, run.job.id, error, extra=run.job.fields,
            )  # fmt: skip
            return _DecidedHere(Released(_AGAIN * random.uniform(0.5, 1.5)))
        run.wake = child.wake  # before the second check: from here on a stop wakes us
        if (outcome := unstarted(run)) is not None:  # a child may take seconds to start
            run.wake = None
            self.children.give_back(child)
            return _DecidedHere(outcome)
        try:
            ending = self._follow(run, child, new)
        except BaseException:
            self.children.drop(child)
            raise
        finally:
            run.wake = None
        if child.killed or isinstance(ending, _DecidedHere):
            self.children.drop(child)
        else:
            self.children.give_back(child)
        return ending

    def _adopt(self, run: Run, message: Message) -> None:
        if "not found" in message:
            error = TaskError(message["not found"])
            self.executor.give_up(run, Failed(error, describe(error)))
            return
        if (why := message.get("unopened")) is not None:
            self.pause(run.job.queue, self.engine, why)
        ending: RunEnding = message["ended"]
        self.executor.adopt(run, ending)

    def _follow(self, run: Run, child: Child, new: bool) -> Message | _DecidedHere:
        """Give the child its job, and wait for the end of the job or of the child."""
        run.started = monotonic()
        watch = _Watch(run, child, self.grace)
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
            how = self.children.drop(child)
            if (ending := self._ended_in(run, words)) is not None:
                return ending
            if not begun and not _has_begun(words):
                raise _DiedIdle(f"the child process {child.pid} {how}") from None
            return _crashed(run, f"its child process {how}")

    def _ended_in(self, run: Run, messages: list[Message]) -> Message | None:
        """The last message about the job, if it is among these messages. The others are processed, also those after it: another
        thread of the child may have logged.
        """
        last: Message | None = None
        for message in messages:
            if "ended" in message or "not found" in message:
                last = message
            elif "claim" in message and not is_of_claim(message, run.job):
                continue
            elif "progress" in message:
                self.notes.report(run.job, *message["progress"])
            elif "used" in message:
                self.notes.use(run.job, message["used"])
            elif "line" in message:
                self.notes.add_line(run.job, run.task.keep_logs, message["line"])
            else:
                log_here(message)
        return last


class _Watch:
    """Decides when the child of a run must be killed, and why."""

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
            times.append(monotonic() + _MEMORY_EVERY)
        return min(times) - monotonic() if times else None

    def check(self) -> _DecidedHere | None:
        """Pass a stop on to the child. Returns the outcome if the child must be killed now."""
        run, now = self._run, monotonic()
        if run.stop is not None and self._kill_at is None:
            self._kill_at = now + self._grace
            self._child.send({"stop": run.stop})
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
            how = f"its child process was killed: {used:,} bytes were resident (memory_limit {self._limit:,})"
            return _crashed(run, how, "MemoryLimit")
        return None


def _crashed(run: Run, how: str, kind: str = "ChildDied") -> _DecidedHere:
    # A handler that was asked to stop has had its time, however its process ended.
    return _DecidedHere(of_stop(run) if run.stop is not None else Crashed(entry(kind, how)))


def _has_begun(messages: list[Message]) -> bool:
    return any("begun" in message for message in messages)

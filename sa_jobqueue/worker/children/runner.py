"""Running one job in a child process: a thread of the worker's hands it over, waits, and kills the child where that is due."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from time import monotonic

import sqlalchemy as sa

from ...errors import ConfigurationError, TaskError
from ...rules.failures import describe, entry
from ...rules.outcomes import Crashed, ErrorEntry, Failed, Outcome, Released
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
from .child import Child, ChildUnavailable, say
from .loading import ChildSetup
from .messages import Message, is_said_of, message_of_job

logger = get_logger(__name__)

#: Seconds that a child which was asked to end may take for it.
_LEAVE = 10.0
#: A child may keep what its jobs needed, and the next job would be killed for it. So another child runs a job with a memory limit if
#: this one keeps more than this share of what the limit leaves a new child.
_KEPT = 0.5


class Children:
    """Children, each of which runs one job at a time. There are as many as jobs have run in them at the same time.

    `max_jobs`: a child that has run this many jobs is replaced. For any thread.
    """

    def __init__(self, setup: ChildSetup, *, max_jobs: int | None) -> None:
        self._setup, self._max_jobs = setup, max_jobs
        self._lock = threading.Lock()
        # All under the lock.
        self._all: set[Child] = set()
        self._idle: list[Child] = []
        """Those that have a job no more; the one that had it last is the next to get one."""
        self._leaving: list[tuple[float, Child]] = []
        """Those that were asked to end, and until when they may take."""
        self._closed = False

    def check(self, registry: Registry, queues: Collection[str]) -> None:
        """Start a child, if these queues may have jobs for it, and let it look up their tasks. It waits for the first job.

        Raises ConfigurationError if it cannot be started, or does not know a task: then no job could run.
        """
        tasks = [task for task in registry if task.executor is not None and serves(queues, task.queue)]
        if not tasks:
            return
        try:
            self.give_back(self._start(tasks))
        except ChildUnavailable as error:
            raise ConfigurationError(f'a child process for tasks of executor="process": {error}') from None

    def take(self, memory_limit: int | None, *, new: bool = False) -> Child:
        """A child for one job, which is `new` or any that is free; `give_back` or `drop` comes next. Raises ChildUnavailable."""
        while not new and (child := self._pop()) is not None:
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
        """Its job has ended, and it waits for the next one."""
        if self._max_jobs is not None and child.jobs >= self._max_jobs:
            self._retire(child)
            return
        with self._lock:
            if not self._closed:
                self._idle.append(child)
                return
        self.drop(child)

    def drop(self, child: Child) -> str:
        """It has died, or is to: kill what is left. Returns how it ended, for people."""
        how = child.end()
        with self._lock:
            self._all.discard(child)
        return how

    def close(self) -> None:
        """Kill all children, also those that have a job, and start no more."""
        with self._lock:
            self._closed = True
            everyone, idle = list(self._all), self._idle
            self._idle = []
            leaving, self._leaving = self._leaving, []
        for child in everyone:
            child.kill()
        for child in (*idle, *(child for _, child in leaving)):
            self.drop(child)

    def _pop(self) -> Child | None:
        self._end_leaving()
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _start(self, tasks: Iterable[AnyTask]) -> Child:
        with self._lock:
            if self._closed:
                raise ChildUnavailable("the worker leaves")
            child = Child()
            self._all.add(child)
        begun = monotonic()
        try:
            child.begin(self._setup.now(tasks))
        except BaseException:
            with self._lock:
                self._all.discard(child)
            raise
        logger.debug("the child process %d is ready, after %.2f s", child.pid, monotonic() - begun)
        return child

    def _retire(self, child: Child) -> None:
        """Let it end by itself; nothing waits for that."""
        child.leave()
        self._wait_for(monotonic() + _LEAVE, child)
        self._end_leaving()

    def _wait_for(self, until: float, child: Child) -> None:
        """It was asked to end. If the worker leaves, it is killed."""
        with self._lock:
            if not self._closed:
                self._leaving.append((until, child))
                return
        self.drop(child)

    def _end_leaving(self) -> None:
        """Forget the children that have ended, as they were asked to, and kill those that do not."""
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
        notes: JobReports,
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
        ending: RunEnding = message["ended"]
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
            self._notes.add_line(run.job, run.task.keep_logs, message["line"])
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

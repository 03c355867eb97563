"""The children of a worker: started when they are needed, used again, replaced."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from time import monotonic

from ...errors import ConfigurationError
from ...log import get_logger
from ...statements.workers import serves
from ...tasks import AnyTask, Registry
from .child import Child, ChildUnavailable
from .setup import ChildSetup

__all__ = ["Children"]

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

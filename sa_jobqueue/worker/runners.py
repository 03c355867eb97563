"""What runs handlers: coroutines on the event loop, and daemon threads of the worker's own.

A thread of a `ThreadPoolExecutor` would hold up the process's exit when a handler does not come back.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from .executor import Executor
from .lanes import Kind, Lane

__all__ = ["Runners"]

logger = logging.getLogger(__name__)


class Runners:
    """Starts runners for lanes; each pulls jobs from its lane until there is none."""

    def __init__(self, loop: asyncio.AbstractEventLoop, executor: Executor, wake: Callable[[], None]) -> None:
        self._loop, self._executor, self._wake = loop, executor, wake
        self._tasks: set[asyncio.Task[None]] = set()
        self._tickets: SimpleQueue[Lane] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0

    def start(self, lane: Lane, kind: Kind, runners: int) -> None:
        """Start `runners` more for this lane; from any thread."""
        if kind is Kind.ASYNC:
            try:
                self._loop.call_soon_threadsafe(self._spawn, lane, runners)
            except RuntimeError:
                logger.debug("the event loop is closed; the jobs' leases will run out")
        else:
            self._spread(lane, runners)

    def _spawn(self, lane: Lane, runners: int) -> None:
        for _ in range(runners):
            task = self._loop.create_task(self._pull_async(lane))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pull_async(self, lane: Lane) -> None:
        run, wake = self._executor.run_async, self._wake
        while (flight := lane.next(Kind.ASYNC)) is not None:
            if not flight.settled:
                try:
                    await run(flight)
                except asyncio.CancelledError as error:
                    if self._executor.leaving():
                        raise
                    self._executor.broke(flight, error)
                except BaseException as error:
                    self._executor.broke(flight, error)
            lane.ended(flight)
            wake()

    def _spread(self, lane: Lane, runners: int) -> None:
        """A ticket per runner; a new thread for each that no idle thread will take."""
        with self._lock:
            missing = runners - self._idle
            self._idle -= min(runners, self._idle)
            for started in range(max(missing, 0)):
                thread = threading.Thread(target=self._work, name=f"sa-jobqueue handler {self._threads}", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the host allows no more threads
                    logger.error("a handler's thread cannot be started: %s", error)
                    lane.spare(missing - started)
                    runners -= missing - started
                    break
                self._threads += 1
        for _ in range(runners):
            self._tickets.put(lane)

    def _work(self) -> None:
        run, wake = self._executor.run, self._wake
        while True:
            lane = self._tickets.get()
            while (flight := lane.next(Kind.THREAD)) is not None:
                if not flight.settled:
                    try:
                        run(flight)
                    except BaseException as error:
                        self._executor.broke(flight, error)
                lane.ended(flight)
                wake()
            wake()
            with self._lock:
                self._idle += 1

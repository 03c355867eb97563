"""Runners of handlers: tasks on the event loop, and the worker's own daemon threads.

A thread of a `ThreadPoolExecutor` would delay the process's exit when a handler does not come back.
"""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from time import monotonic
from typing import Any

from ...util.log import get_logger
from .batches import BatchExecutor
from .executor import Executor
from .run import Kind, Run
from .slots import Slots

logger = get_logger(__name__)

#: Seconds after which a runner whose handlers never wait lets the event loop do something else.
_TURN = 0.005


class Runners:
    """Brings runners to slots; each runner pulls jobs from its slots until there is none. `in_child` runs a job in a child process.

    A runner begins with the context variables of the worker's start. When a handler leaves others behind, its runner
    ends, so that the next job does not see them. Each job gets a copy of the decimal context, because that value changes in place.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        batches: BatchExecutor,
        ended: Callable[[Slots, str], None],
        in_child: Callable[[Run], None],
    ) -> None:
        self._loop, self._executor, self._ended = loop, executor, ended
        self._execute: Mapping[Kind, Callable[[Any], None]] = {
            Kind.THREAD: executor.run, Kind.PROCESS: in_child, Kind.BATCH_THREAD: batches.run
        }  # fmt: skip
        self._execute_async: Mapping[Kind, Callable[[Any, asyncio.Task[Any]], Awaitable[None]]] = {
            Kind.ASYNC: executor.run_async, Kind.BATCH_ASYNC: batches.run_async
        }  # fmt: skip
        self._loop_thread = threading.get_ident()
        self._context = contextvars.copy_context()
        self._decimal = self._context.run(own_decimal_context)
        """The decimal context of `_context`; no job changes it."""
        self._tasks: set[asyncio.Task[None]] = set()  # the loop's own: it keeps only weak references to tasks
        self._coming: deque[tuple[Slots, Kind] | None] = deque()
        """The slots that need a thread, and for which kind of jobs; None: a thread must end. Each entry has a ticket."""
        self._tickets: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._idle = 0  # any thread writes and reads these, under the lock

    def call(self, slots: Slots, kind: Kind) -> None:
        """Bring one more runner to these slots, or note there that none comes. For any thread."""
        try:
            if kind not in self._execute_async:
                self._call_thread(slots, kind)
            elif threading.get_ident() == self._loop_thread:
                self._loop.call_soon(self._spawn, slots, kind)
            else:
                self._loop.call_soon_threadsafe(self._spawn, slots, kind)
        except Exception as error:  # the host allows no more threads, or has no memory for one; the loop is closed
            self._not_coming(slots, error)

    def _not_coming(self, slots: Slots, error: Exception) -> None:
        slots.not_coming()
        log = logger.debug if self._loop.is_closed() else logger.error
        log("no job of queue %r can be started just now: %r", slots.name, error)

    def finish(self) -> None:
        """End the threads: idle ones now, the others when their handlers have come back."""
        with self._lock:
            for _ in range(self._threads):
                self._send(None)

    # ---- tasks

    def _spawn(self, slots: Slots, kind: Kind) -> None:
        coming = [slots]
        runner = self._pull_async(slots, kind, coming)
        try:
            # Not by `context=`, which a task factory of the application's need not take.
            task = self._context.copy().run(self._loop.create_task, runner)
        except Exception as error:  # a task factory's
            runner.close()
            self._not_coming(slots, error)
            return

        def gone(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if coming:  # a task that is cancelled at once does not even begin
                slots.not_coming()

        self._tasks.add(task)
        task.add_done_callback(gone)

    async def _pull_async(self, slots: Slots, kind: Kind, coming: list[Slots]) -> None:
        coming.clear()
        execute = self._execute_async[kind]
        runner = asyncio.current_task()
        assert runner is not None
        turn = monotonic()
        run = slots.next(kind)
        while run is not None:
            if not run.settled:
                try:
                    decimal.setcontext(self._decimal.copy())
                    await execute(run, runner)
                except asyncio.CancelledError as error:
                    if self._executor.leaving():
                        raise
                    self._broke(run, error)
                except BaseException as error:
                    self._broke(run, error)
                if run.started is not None and run.started > turn + _TURN:
                    self._ended(slots, run.job.queue)
                    await self._let_others(runner)
                    turn = run.started
            run = self._following(run, slots)

    async def _let_others(self, runner: asyncio.Task[Any]) -> None:
        """Let the event loop do something else. A cancel that comes just now is for a handler that has ended."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self._executor.leaving():
                raise
            while runner.cancelling():
                runner.uncancel()

    # ---- threads

    def _call_thread(self, slots: Slots, kind: Kind) -> None:
        """Send an idle or a new thread to these slots."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                name = f"sa-jobqueue handler {self._threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._threads += 1
        self._send((slots, kind))

    def _send(self, coming: tuple[Slots, Kind] | None) -> None:
        self._coming.append(coming)
        self._tickets.put(None)

    def _work(self) -> None:
        while (coming := self._wait()) is not None:
            slots, kind = coming
            running: list[Run] = []
            try:
                self._context.copy().run(self._pull, slots, kind, running)
            except BaseException as error:
                self._interrupted(slots, running, error)
            with self._lock:
                self._idle += 1

    def _wait(self) -> tuple[Slots, Kind] | None:
        """Wait for a ticket.

        Some libraries end slow code by an exception that they set on its thread from another thread. It may come after the
        handler has ended, while this thread waits: then a ticket may be lost, but not the slots it was for.
        """
        while True:
            with suppress(BaseException):
                self._tickets.get()
            with suppress(IndexError):
                return self._coming.popleft()

    def _interrupted(self, slots: Slots, running: list[Run], error: BaseException) -> None:
        """Handle such an exception between two jobs. `running`: the job that still has its slot, if any."""
        logger.error("a thread of handlers was interrupted between two jobs: %r", error)
        slots.not_coming()
        run = running[0] if running else None
        if run is not None:
            self._broke(run, error)
        slots.next(None, ended=run)  # this calls another thread
        self._ended(slots, run.job.queue if run is not None else slots.name)

    def _pull(self, slots: Slots, kind: Kind, running: list[Run]) -> None:
        execute = self._execute[kind]
        run = slots.next(kind)
        while run is not None:
            running.append(run)
            if not run.settled:
                try:
                    decimal.setcontext(self._decimal.copy())
                    execute(run)
                except BaseException as error:
                    self._broke(run, error)
            run = self._following(run, slots, running)

    # ---- both

    def _broke(self, unit: Run, error: BaseException) -> None:
        for run in unit.runs:
            self._executor.broke(run, error)

    def _following(self, run: Run, slots: Slots, running: list[Run] | None = None) -> Run | None:
        """The next job for the runner of `run`, which has ended. None where that left context variables behind.

        `running` is emptied as the slot is given back.
        """
        kind: Kind | None = run.kind
        try:
            decimal.setcontext(self._decimal)
            if contextvars.copy_context() != self._context:
                kind = None
        except BaseException:  # of the application's values, whose == may have no truth value, as that of an array
            kind = None
        if running is not None:
            running.clear()
        following = slots.next(kind, ended=run)
        self._ended(slots, run.job.queue)
        return following


def own_decimal_context() -> decimal.Context:
    """Give the current context variables a copy of the current decimal context."""
    decimal.setcontext(own := decimal.getcontext().copy())
    return own

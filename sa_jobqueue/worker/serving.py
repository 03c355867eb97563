"""A `serve()` from its beginning to its end: begin, watch, and leave in two steps."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

from ..errors import WorkerBroken
from ..util.log import get_logger
from .process.inside import Ending, resident
from .running.run import Stop
from .running.timeouts import StuckQueues
from .services import Services, WorkerSpec
from .tally import Tally, WorkerState, outcomes_of

logger = get_logger(__name__)

T = TypeVar("T")

#: Seconds after the grace time that a handler which was asked to stop may take.
LAST_CALL = 1.0
#: Seconds without an answer after which the event loop counts as blocked, when everything should have ended.
_BEAT = 0.5
#: Seconds between two tries to store the limits that the code declares.
_DECLARE_AGAIN = 0.5
#: Seconds between two checks whether to end; the second where `max_jobs` is set.
_CHECK, _CHECK_JOBS = 1.0, 0.1

#: The most seconds for closing shared values and calling stop hooks; as for an idle child process.
_LAST_HOOKS = 10.0

#: Outcomes that the last log line words differently than the tally.
_PAST = {"released": "given back", "retried": "to be retried"}


class Serving:
    """A `serve()`. Made and run by the task that serves; `stop` and `end_if_blocked` are for any thread.

    `own_process`: whether the process is the worker's own, and may be ended with it. Fields that threads share: `_stopping` is
    set once, by any thread; `_ending` is written by the loop, by the watchdog's thread only while the loop is blocked, and by the
    claimer's once no job is due; `_threads_until` belongs to the watchdog's thread; `under_way` is written by the loop and
    read by any thread.
    """

    def __init__(self, spec: WorkerSpec, tally: Tally, *, until_idle: bool, own_process: bool = False) -> None:
        self._spec, self._tally, self._own_process = spec, tally, own_process
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()
        self._ending = Ending.INTERRUPTED if until_idle else Ending.STOPPED
        self._stopping = False
        self._stuck = StuckQueues()
        self._threads_until: float | None = None
        """Until when handlers on threads may finish. Set once the event loop is blocked permanently."""
        self.under_way = False
        """Whether it has begun, and not yet ended."""
        self._services = Services(
            spec,
            tally,
            leaving=self._leaving,
            idle=self._found_nothing if until_idle else None,
            drain=self.stop,
            hopeless=self._end_hopeless,
        )

    async def serve(self) -> Ending:
        """Serve until `stop()` is called or there is a reason to be restarted. Returns why it ended."""
        engines = self._spec.engines
        try:
            await _apart(engines.check)
            await self._begin_life()
            await _apart(self._services.check_children)
            await self._declare_limits()
        except BaseException:
            await self._end_life()
            self._services.children.close()
            await engines.dispose()
            raise
        queues = ", ".join(f"{name}={limit}" for name, limit in self._spec.queues.items())
        self._log("worker %s serves %s", queues)
        self.under_way = True
        try:
            self._services.start()
            await self._watch()
        finally:
            await self._leave_whatever_comes()
        return self._ending

    def state(self) -> WorkerState:
        """The state of the worker just now. For any thread."""
        return self._services.state(outcomes_of(self._tally.snapshot()), serving=self.under_way)

    def stop(self, *, now: bool = False) -> None:
        """Claim no more and let running jobs finish; `now`: do not wait for them."""
        self._stopping = True
        try:
            self._loop.call_soon_threadsafe(self._stop.set)
            if now:
                self._loop.call_soon_threadsafe(self._hurry.set)
        except RuntimeError:
            logger.debug("the event loop is closed: the worker has ended")

    def _found_nothing(self) -> None:
        """End a drain: no job is due any more, and none runs."""
        if not self._stopping:
            self._ending = Ending.STOPPED
        self.stop()

    def end_if_blocked(self) -> None:
        """After the time to leave: if a handler blocks the event loop, give back the jobs held, and end the process."""
        beat = threading.Event()
        if not self.under_way:
            return
        try:
            self._loop.call_soon_threadsafe(beat.set)
        except RuntimeError:
            return  # it is closed: run() is about to return
        if beat.wait(_BEAT):
            return
        with suppress(BaseException):  # a log filter's
            logger.error("a handler blocks the event loop; what runs is given back, and the process ends")
        self._services.close_slots()
        self._services.give_back(self._services.runs)
        self._services.finish()
        logging.shutdown()
        os._exit(self._ending)

    def _end_hopeless(self) -> None:
        """Called repeatedly by the watchdog while a handler blocks the event loop though its attempt was given up.

        If the process is our own, it ends, to be restarted: at first as by a signal, then without the loop.
        """
        grace, found = self._spec.settings.grace, "a handler that timed out goes on blocking the event loop"
        if self._threads_until is None:
            self._threads_until = monotonic() + grace
            if not self._own_process:
                logger.error("%s; async jobs wait for it until this process is restarted", found)
                return
            if not self._stopping:
                self._ending = Ending.RECYCLE
            self.stop()
            self._services.close_slots()
            logger.error("%s; the process ends, to be restarted: def handlers have %g s to finish", found, grace)
        if self._own_process:
            on_threads = any(not run.task.is_async for run in self._services.running())
            if not on_threads or monotonic() >= self._threads_until:
                self.end_if_blocked()

    async def _begin_life(self) -> None:
        """Call the start hooks, until `stop()`: then no job is claimed. Raises HookError."""
        hooks, stop = (asyncio.ensure_future(work) for work in (self._services.life.begin(_apart), self._stop.wait()))
        try:
            await asyncio.wait([hooks, stop], return_when=asyncio.FIRST_COMPLETED)
            if hooks.done():
                hooks.result()
            else:
                self._services.close_slots()
        finally:
            hooks.cancel()
            stop.cancel()

    async def _end_life(self) -> None:
        """Close the shared values of handlers, and call the stop hooks."""
        try:
            async with asyncio.timeout(_LAST_HOOKS):
                await self._services.life.end(_apart)
        except TimeoutError:
            logger.error(
                "leaving without them: stop hooks, or what closes shared values, took longer than %g s", _LAST_HOOKS
            )

    async def _declare_limits(self) -> None:
        """Store the limits that the code declares. Before the first claim, which must not take more jobs than they allow."""
        limits = self._services.limits
        while limits.declares and not self._stop.is_set() and not await _apart(limits.begin):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), timeout=_DECLARE_AGAIN)
        if limits.declares and self._stop.is_set():
            self._services.close_slots()

    def _leaving(self) -> bool:
        """Whether all tasks of the loop are being cancelled: along with the task that serves, or after its end."""
        return not self.under_way or (self._task is not None and self._task.cancelling() > 0)

    async def _watch(self) -> None:
        """Wait until it is time to stop, by `stop()` or to be restarted."""
        while not self._stop.is_set():
            try:
                check = _CHECK if self._spec.max_jobs is None else _CHECK_JOBS
                await asyncio.wait_for(self._stop.wait(), timeout=check)
            except TimeoutError:
                if (part := self._services.ended_part()) is not None:
                    raise WorkerBroken(f"the thread {part.name!r} has ended: {part.error!r}") from part.error
                if (reason := self._wants_recycling()) is not None:
                    logger.warning("%s: ending, to be restarted", reason)
                    self._ending = Ending.RECYCLE
                    return

    def _wants_recycling(self) -> str | None:
        claimed, all_slots = self._services.claimer.claimed, list(self._services.all_slots.values())
        max_jobs, max_memory = self._spec.max_jobs, self._spec.max_memory
        if max_jobs is not None and claimed >= max_jobs and not any(slots.waiting for slots in all_slots):
            return f"{claimed} jobs were claimed (max_jobs {max_jobs})"
        if max_memory is not None and (bytes_now := resident()) > max_memory:
            return f"{bytes_now:,} bytes are resident (max_memory {max_memory:,})"
        if (stuck := self._stuck.check(all_slots)) is not None:
            return f"all {stuck.limit} slots of queue {stuck.name!r} are held by handlers that timed out"
        return None

    async def _leave_whatever_comes(self) -> None:
        """Leave completely. If our task is cancelled meanwhile, once or repeatedly, do not wait for handlers."""
        cancelled, leaving = False, asyncio.ensure_future(self._leave())
        while not leaving.done():
            try:
                await asyncio.wait([leaving])
            except asyncio.CancelledError:
                cancelled = True
                self._hurry.set()
            if leaving.cancelled():  # with all the tasks of the loop
                leaving = asyncio.ensure_future(self._leave())
        self.under_way = False
        leaving.result()
        if cancelled:
            raise asyncio.CancelledError

    async def _leave(self) -> None:
        """In two steps: let running jobs finish; after the grace time or a second signal, stop them and give them back."""
        services = self._services
        services.close_slots()
        await self._wait_while(services.running, self._spec.settings.grace, unless=self._hurry)
        if left := services.running():
            logger.warning("jobs that still run are stopped and given back: %d", len(left))
            for run in left:
                services.runs.stop(run, Stop.SHUTDOWN)
            await self._wait_while(services.running, LAST_CALL)
            services.give_back(left)
        else:  # the last outcomes are counted
            await self._wait_while(services.reporting, LAST_CALL)
        await self._end_life()
        await _apart(services.finish)
        await self._spec.engines.dispose()
        counted = ", ".join(
            f"{number} {_PAST.get(what, what)}" for what, number in sorted(outcomes_of(self._tally.snapshot()).items())
        )
        self._log("worker %s has left: %s", counted or "no jobs")

    def _log(self, message: str, detail: str) -> None:
        """Log with the worker's place, which is for people; its id, which the tables have, is added at DEBUG."""
        place, worker = self._spec.place, str(self._spec.id)
        shown = f"{place} ({worker})" if logger.isEnabledFor(logging.DEBUG) else place
        logger.info(message, shown, detail, extra={"worker": worker})

    @staticmethod
    async def _wait_while(busy: Callable[[], Any], seconds: float, *, unless: asyncio.Event | None = None) -> None:
        """Wait while something is busy, at most `seconds`."""
        until = monotonic() + seconds
        while monotonic() < until and busy():
            if unless is not None and unless.is_set():
                return
            await asyncio.sleep(0.02)


async def _apart(work: Callable[[], T]) -> T:
    """Do `work` on a thread of its own. asyncio's threads may all be taken by handlers that do not end."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # the work goes on, even if the task that awaits it is cancelled

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    try:
        threading.Thread(target=run, name="sa-jobqueue worker", daemon=True).start()
    except RuntimeError:  # the host allows no more threads
        run()
    return await asyncio.wrap_future(done)

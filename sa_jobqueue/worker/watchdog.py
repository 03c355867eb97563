"""The watchdog: once a second, on a thread of its own, it checks that no service connection has been silent for too long and
that the event loop still answers.

An `async def` handler that blocks its loop stops everything that runs there, timeouts too. Only another thread can notice that.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from ..arguments.context import ClaimedJob
from ..util.log import get_logger
from .connections.pool import Deadline
from .process.inside import ServiceThread
from .running.run import Run, Runs
from .running.timeouts import Patience

logger = get_logger(__name__)

#: Seconds between two checks, and the number of checks without an answer after which the event loop counts as blocked. Checks are
#: counted, not seconds, because a suspended host makes none.
_EVERY, _SILENT_CHECKS = 1.0, 5


class Watchdog:
    """Checks the deadlines of service connections, and `loop`.

    `hopeless()` is called at each check while a handler blocks the loop though its attempt was given up. All fields are the
    watchdog thread's, except `_answered_at` and `_lag`, which the loop writes, and `_silent`, which `blocked` reads.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, runs: Runs, hopeless: Callable[[], None]) -> None:
        self._loop, self._runs, self._hopeless = loop, runs, hopeless
        self._deadlines: Sequence[Deadline] = ()
        self._asked_at = monotonic()
        self._answered_at: float | None = None
        self._lag = 0.0
        """How long the loop took for its last answer. The loop writes it."""
        self._silent = 0
        """Checks since the loop was asked, all without an answer."""
        self._held: set[Run] = set()
        """The runs on the loop while it is blocked, including runs that were given up since."""
        self._patience = Patience()
        self._end = threading.Event()
        self.thread = ServiceThread("watchdog", self._watch)

    @property
    def blocked(self) -> bool:
        """Whether the event loop is known not to answer. For any thread."""
        return self._silent >= _SILENT_CHECKS and self._answered_at is None

    @property
    def lag(self) -> float:
        """Seconds that the event loop took for its last answer, or for which it has not answered yet. For any thread."""
        if self._answered_at is not None or not self.thread.is_alive():  # the watchdog does not ask yet, or any more
            return self._lag
        return max(self._lag, monotonic() - self._asked_at)

    def start(self, deadlines: Sequence[Deadline]) -> None:
        """Begin."""
        self._deadlines = deadlines
        self.thread.start()

    def finish(self, timeout: float) -> None:
        """End; waits at most `timeout` seconds for the current check."""
        self._end.set()
        if threading.current_thread() is not self.thread:
            self.thread.join(timeout)

    def _watch(self) -> None:
        self._ask()
        while not self._end.wait(_EVERY):
            try:
                for deadline in self._deadlines:
                    deadline.check()
                self._check_loop()
            except BaseException:  # of the application's code: a log filter, the repr of a task
                with suppress(BaseException):
                    logger.debug("a check of the watchdog failed", exc_info=True)

    def _ask(self) -> None:
        self._silent, self._asked_at, self._answered_at = 0, monotonic(), None
        self._held = set()
        self._patience.renew()
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            logger.debug("the event loop is closed: the worker has ended")
            self._end.set()

    def _answer(self) -> None:
        now = monotonic()
        self._lag, self._answered_at = now - self._asked_at, now

    def _check_loop(self) -> None:
        if self._answered_at is not None:
            silent, took = self._silent, self._answered_at - self._asked_at
            self._ask()
            if silent >= _SILENT_CHECKS:
                logger.warning("the event loop answers again, after %.1f s", took)
            return
        self._silent += 1
        if self._silent < _SILENT_CHECKS:
            return
        self._held.update(run for run in self._runs.all() if run.runner is not None)
        current = asyncio.current_task(self._loop)
        blocking = next((run for run in self._held if run.runner is current), None)
        if self._silent == _SILENT_CHECKS:
            self._log_blocked(current, None if blocking is None else blocking.job)
        if self._patience.is_over(self._held, blocking):
            self._hopeless()

    def _log_blocked(self, current: asyncio.Task[Any] | None, job: ClaimedJob | None) -> None:
        culprit = "what runs on it is no task" if current is None else f"{current!r} blocks it"
        if job is not None:
            culprit = f"job {job.id} ({job.task}) blocks it"
        logger.warning(
            "the event loop has not answered for %.1f s: %s. The other async jobs of this process wait, and their leases are "
            "renewed. Make a handler that blocks `def`, or let it `await asyncio.to_thread(...)` for the part that does",
            monotonic() - self._asked_at, culprit, extra={} if job is None else job.fields,
        )  # fmt: skip

"""How a run ends, and the callbacks of middleware at the end of an attempt."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import Final, TypeAlias

from ...arguments.context import ClaimedJob
from ...rules.lifecycle import OUTCOMES, Change
from ...tasks.middleware import Attempt, Callback
from ...util.log import get_logger


class ToWrite:
    """The change must still be written, by the writer."""

    # No named tuple: it would take 0.08 µs longer for each job (November 2026).
    __slots__ = ("change",)

    def __init__(self, change: Change) -> None:
        self.change = change


class InDoubt(ToWrite):
    """The change must still be written, but the handler's own commit, whose answer was lost, may have written `committed`."""

    __slots__ = ("committed",)

    def __init__(self, change: Change, committed: Change) -> None:
        super().__init__(change)
        self.committed = committed


@dataclass(slots=True)
class Written:
    """The change is in the database: it was committed together with what the handler wrote."""

    change: Change


@dataclass(slots=True)
class MaybeWritten:
    """The claim is over. The handler's own commit of `change`, whose answer was lost, may have ended it."""

    change: Change


class Lost(Enum):
    """The claim is over: there is nothing to write, and what the handler wrote is discarded."""

    LOST = "lost"


LOST: Final = Lost.LOST

RunEnding: TypeAlias = Written | ToWrite | MaybeWritten | Lost

logger = get_logger(__name__)

#: Shared by all attempts: it is held for a few instructions, and a lock for each attempt would cost more.
_lock = threading.Lock()


def outcome_of(ending: RunEnding) -> str:
    """The name of an attempt's outcome, as callbacks get it."""
    if type(ending) is not ToWrite and (ending is LOST or isinstance(ending, MaybeWritten)):
        return "lost"
    return OUTCOMES[ending.change.event]


class AttemptEnd(Attempt):
    """An attempt, with its callbacks, each called once. For any thread: a run may be given up while its handler still runs."""

    __slots__ = ("_callbacks", "_end")

    def __init__(self, job: ClaimedJob, jobs: Sequence[Attempt] | None = None) -> None:  # pyright: ignore[reportMissingSuperCall]
        self._job, self._began, self._meta, self._jobs = (
            job,
            time.time(),
            None,
            jobs,
        )  # not by super(), which takes 0.1 µs
        self._callbacks: list[Callback] | None = None  # under the lock
        self._end: tuple[str | RunEnding, BaseException | None] | None = None  # under the lock

    def at_end(self, callback: Callback) -> None:
        """Call `callback` at the end of the attempt, or now if the attempt has ended already."""
        with _lock:
            if (end := self._end) is None:
                self._callbacks = [*(self._callbacks or ()), callback]
                return
        ending, error = end
        self._call(callback, ending if isinstance(ending, str) else outcome_of(ending), error)

    def end_unheard(self, ending: RunEnding, error: BaseException | None) -> bool:
        """End the attempt if it has no callback. Returns False if it has a callback; then call `tell`."""
        with _lock:
            if self._callbacks is None:
                self._end = ending, _without_traceback(error)
        return self._end is not None

    def tell(self, outcome: str, error: BaseException | None) -> None:
        """Call the callbacks with how the attempt has ended; the second time does nothing."""
        with _lock:
            if self._end is not None:
                return
            self._end = outcome, _without_traceback(error)
            callbacks, self._callbacks = self._callbacks, None
        if callbacks is not None:
            for callback in reversed(callbacks):
                self._call(callback, outcome, error)

    def _call(self, callback: Callback, outcome: str, error: BaseException | None) -> None:
        try:
            callback(outcome, error)
        except BaseException as failure:
            with suppress(BaseException):
                logger.error(
                    "job %d: a callback of its middleware failed at the end of the attempt: %r", self._job.id, failure,
                    exc_info=failure, extra=self._job.fields,
                )  # fmt: skip


def _without_traceback(error: BaseException | None) -> BaseException | None:
    """The exception if it has no traceback. A traceback refers to the run and so to the attempt, a cycle that only the garbage collector frees."""
    return None if error is None or error.__traceback__ is not None else error


class Telling:
    """Knows which callbacks are being called, so that a leaving worker waits for them.

    For attempts that were given up it calls them on extra threads: the thread that gives up renews leases, or is the event loop's.
    """

    def __init__(self) -> None:
        self._threads: set[threading.Thread] = set()  # each thread takes itself out; others only put one in
        self._lock = threading.Lock()  # held until a thread has started: before that `finish` cannot wait for it
        self._told_here = threading.Condition()
        self._here = 0  # threads of handlers that call callbacks themselves; under the condition

    def tell(self, end: AttemptEnd, outcome: str, error: BaseException | None) -> None:
        """Call an attempt's callbacks on a thread of their own. Returns at once."""

        def tell() -> None:
            try:
                end.tell(outcome, error)
            finally:
                self._threads.discard(thread)

        thread = threading.Thread(target=tell, name="sa-jobqueue end of an attempt", daemon=True)
        try:
            with self._lock:
                self._threads.add(thread)
                thread.start()
        except RuntimeError:  # the host allows no more threads
            self._threads.discard(thread)
            end.tell(outcome, error)

    @contextmanager
    def here(self) -> Generator[None]:
        """In this block the calling thread reports an outcome, after which the worker could leave, and then calls the callbacks."""
        with self._told_here:
            self._here += 1
        try:
            yield
        finally:
            with self._told_here:
                self._here -= 1
                self._told_here.notify_all()

    def finish(self, seconds: float) -> None:
        """Wait until all callbacks have been called, for at most `seconds`."""
        until = monotonic() + seconds
        with self._told_here:
            self._told_here.wait_for(lambda: not self._here, seconds)
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(until - monotonic(), 0.0))

"""The process of a worker: whether it can have a worker, its exit code, garbage collection, memory and threads."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from enum import IntEnum
from typing import ClassVar

from ...errors import ConfigurationError

_inside = threading.Event()


def enter_child() -> None:
    """Mark this process as a child."""
    _inside.set()


def refuse_in_child() -> None:
    """Raise ConfigurationError in a child. It imports the script of its worker, which must not start another worker there."""
    if _inside.is_set():
        raise ConfigurationError(
            'a child process that runs executor="process" tasks imports the script of its worker again, and that has '
            'started a worker: put it under `if __name__ == "__main__":`, as multiprocessing needs it, too'
        )


def refuse_patched() -> None:
    """Raise ConfigurationError where gevent or eventlet have replaced threads: a worker would run no job, and hear no signal."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and gevent.is_module_patched("threading"):
        by = "gevent (monkey.patch_all())"
    elif eventlet is not None and eventlet.is_monkey_patched("thread"):
        by = "eventlet (monkey_patch())"
    else:
        return
    raise ConfigurationError(
        f"{by} has patched the threads of this process, and a worker cannot run so: declare the tasks in a module whose import "
        "patches nothing, and name that module to the worker"
    )


# ---- Why a worker ended, as its exit code.


class Ending(IntEnum):
    """Why `run()` returned, as an exit code."""

    STOPPED = 0
    """It was stopped, by a signal, `stop()` or an operator; with `until_idle`: nothing was due any more."""
    INTERRUPTED = 4
    """With `until_idle`: it was stopped before it knew that no job is due."""
    RECYCLE = 75
    """It asks to be restarted: max_jobs, max_memory, all slots stuck, or the event loop blocked permanently."""


# ---- Python's garbage collector, tuned for a process that only runs a worker.

#: New objects that start a search of the young generation. With Python's 700, or 2,000, some dozens of concurrent handlers would cause
#: searches all the time, which find nothing, because the objects are in use.
_YOUNG = 5_000


def tune_gc() -> None:
    """Search less often, and never through the objects loaded so far. Call it after all imports, before the first job."""
    gc.collect()
    gc.freeze()
    young, *older = gc.get_threshold()
    if 0 < young < _YOUNG:  # 0: the application has turned it off
        gc.set_threshold(_YOUNG, *older)


def resident() -> int:
    """Bytes of memory resident now; where the system does not tell that, the maximum so far."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


class AutoResetEvent:
    """An auto-reset event for a single waiting thread: `wait()` returns once for each `set()`.

    Waking a thread by `threading.Event`, which is written in Python, took 70 µs in an idle process; by a bare lock 33 µs
    (November 2026).
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held while the event is not set."""
        self._lock.acquire()

    @property
    def is_set(self) -> bool:
        """Whether `set()` was called since the last `clear()` or `wait()`."""
        return not self._lock.locked()

    def set(self) -> None:
        """Wake the thread that waits, or let the next `wait()` return at once. For any thread."""
        if self._lock.locked():
            with suppress(RuntimeError):  # another thread has just released it
                self._lock.release()

    def wait(self, timeout: float) -> None:
        """Sleep until the event is set, at most `timeout` seconds, and reset it."""
        self._lock.acquire(timeout=max(timeout, 0.0))

    def clear(self) -> None:
        """Reset it."""
        self._lock.acquire(blocking=False)


class ServiceThread(threading.Thread):
    """A thread of the worker's own: it runs `work` until the worker ends. `Serving` checks `has_ended` once a second."""

    inside: ClassVar[list[Callable[[], AbstractContextManager[object]]]] = []
    """Context managers around all work of each thread; tracing adds one to suppress its spans. Changed before a worker starts."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        super().__init__(name=f"sa-jobqueue {name}", daemon=True)
        self._work = work
        self.error: BaseException | None = None
        """The error that ended it. Written by the thread, read after its end."""

    def run(self) -> None:
        try:
            with ExitStack() as stack:
                for make_context in self.inside:
                    stack.enter_context(make_context())
                self._work()
        except BaseException as error:  # SystemExit as well, which would end a thread silently
            self.error = error

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end; not at all if it could not be started."""
        if self.ident is not None:
            super().join(timeout)

    @property
    def has_ended(self) -> bool:
        """Whether it was started and has ended."""
        return self.ident is not None and not self.is_alive()

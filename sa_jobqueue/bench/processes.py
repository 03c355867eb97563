"""The processes of a measurement: each gets ready first, then all begin at once.

with processes(2, work, url) as group:
    group.go()
    ...
group.results
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.urls import mask_passwords

__all__ = ["Processes", "Ready", "processes"]

_SPAWN = multiprocessing.get_context("spawn")

_INTERRUPTS = {signal.SIGINT, signal.SIGTERM}

#: A program calls it when it is ready. It returns when the program may begin: the pipe that will tell it to stop.
Ready = Callable[[], Connection]


class Processes:
    """Processes that run the same program."""

    def __init__(self, size: int, work: Callable[..., Any], arguments: tuple[Any, ...], numbered: bool) -> None:
        self._returned: dict[int, Any] = {}
        self._started: list[tuple[SpawnProcess, Connection]] = []
        try:
            for number in range(size):
                with _without_interrupts():  # until `kill` knows of it
                    self._started.append(_start(work, (number, *arguments) if numbered else arguments))
            for _, pipe in self._started:
                _answer(pipe)
        except BaseException:
            self.kill()
            raise

    @property
    def results(self) -> list[Any]:
        """What the ended processes returned."""
        return list(self._returned.values())

    @property
    def pids(self) -> list[int]:
        """Their process numbers."""
        return [process.pid or 0 for process, _ in self._started]

    def go(self) -> None:
        """Let them begin."""
        for _, pipe in self._started:
            pipe.send(None)

    def stop(self) -> None:
        """Tell them to stop; some may have ended by themselves."""
        for _, pipe in self._started:
            with suppress(OSError):
                pipe.send(None)

    def check(self) -> None:
        """Raise what a process has died of; note the results of those that have ended."""
        for number, (_, pipe) in enumerate(self._started):
            if number not in self._returned and pipe.poll():
                self._returned[number] = _answer(pipe)

    @property
    def ended(self) -> bool:
        """Whether all have."""
        self.check()
        return len(self._returned) == len(self._started)

    def wait(self) -> None:
        """Until all have ended."""
        for number, (process, pipe) in enumerate(self._started):
            if number not in self._returned:
                self._returned[number] = _answer(pipe)
            process.join()

    def kill(self) -> None:
        """End them at once."""
        for process, _ in self._started:
            process.kill()
            process.join()


@contextmanager
def processes(size: int, work: Callable[..., Any], *arguments: Any, numbered: bool = False) -> Generator[Processes]:
    """Start `work(ready, *arguments)` in `size` processes; each calls `ready()`, which returns when all may begin.

    `numbered`: each gets its number, from 0 on, before the arguments.

    The end of the block waits for them; an error kills them. Raises JobQueueError if one failed.
    """
    group = Processes(size, work, arguments, numbered)
    try:
        yield group
        group.wait()
    except BaseException:
        group.kill()
        raise


def _start(work: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[SpawnProcess, Connection]:
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_run, args=(work, theirs, arguments), daemon=True)
    process.start()
    theirs.close()
    return process, ours


@contextmanager
def _without_interrupts() -> Generator[None]:
    """Put off Ctrl-C and SIGTERM: a process that is just starting could not handle them, and inherits that they wait.

    In this process another thread may get the signal, so a handler puts it off, too.
    """
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    resource_tracker.ensure_running()  # the first start would start it, and it lets Ctrl-C through again
    heard: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _: heard.append(number)) for number in _INTERRUPTS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if heard:
            signal.raise_signal(heard[0])


def _answer(pipe: Connection) -> Any:
    try:
        what, said = pipe.recv()
    except EOFError:
        raise JobQueueError("a process of the measurement has died") from None
    if what == "error":
        message, details = (mask_passwords(text) for text in said)
        failure = JobQueueError(f"a process of the measurement failed: {message}")
        failure.add_note(details)
        raise failure
    return said


def _run(work: Callable[..., Any], pipe: Connection, arguments: tuple[Any, ...]) -> None:
    # Ctrl-C in a terminal reaches all processes; the measuring one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)

    def ready() -> Connection:
        pipe.send(("ready", None))
        pipe.recv()
        return pipe

    with suppress(EOFError, BrokenPipeError):  # the measuring process has gone
        try:
            pipe.send(("result", work(ready, *arguments)))
        except EOFError:
            raise
        except BaseException as error:
            reason = getattr(error, "orig", None) or error
            pipe.send(("error", (f"{type(error).__name__}: {reason}", traceback.format_exc())))

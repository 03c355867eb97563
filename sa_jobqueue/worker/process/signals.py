"""Signals, handled on a thread: an event loop that a handler blocks would not react to them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from time import monotonic
from types import FrameType
from typing import Any

#: Seconds in which a repeated signal is ignored: GNU `timeout` and others signal a process, and then its group.
_SAME = 1.0
#: Seconds between two calls of `overdue`, once the time to leave is over.
_REMIND = 1.0


@contextmanager
def signals_go_to(handler: Callable[[int, FrameType | None], None]) -> Generator[dict[signal.Signals, Any]]:
    """In this block `handler` gets SIGTERM and SIGINT, except a signal repeated within a second. Yields the previous handlers.
    For the main thread.
    """
    heard: dict[int, float] = {}

    def hear(number: int, frame: FrameType | None) -> None:
        now = monotonic()
        if now - heard.get(number, -_SAME) >= _SAME:
            heard[number] = now
            handler(number, frame)

    before = {number: signal.signal(number, hear) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield before
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def start_deaf(thread: threading.Thread) -> None:
    """Start a thread that takes no SIGTERM and no SIGINT, and neither do the threads that it starts.

    A signal may be taken by a thread that is just being started, before the main thread is awake. If the main thread waits for a lock,
    it then sleeps on, and Python's handler, which runs only there, is not called. A server that starts a thread for each request lost
    half of the signals in this way (November 2026).
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def hearing_signals(heed: Callable[[signal.Signals], float], overdue: Callable[[], None]) -> Generator[None]:
    """In this block SIGTERM and SIGINT call `heed` on a thread; it returns the seconds until everything should have ended.

    After that time `overdue` is called every second. For the main thread.
    """
    heard: SimpleQueue[signal.Signals | None] = SimpleQueue()
    pid = os.getpid()

    def note(number: int, frame: FrameType | None) -> None:
        if os.getpid() != pid:  # a child that a handler has forked does not have the thread
            signal.signal(number, before[signal.Signals(number)])
            os.kill(os.getpid(), number)
            return
        # SimpleQueue.put may interrupt a put or get; a log call here could deadlock with a log call that it interrupts.
        heard.put(signal.Signals(number))

    def listen() -> None:
        leave_at: float | None = None
        while True:
            try:
                number = heard.get(timeout=None if leave_at is None else max(leave_at - monotonic(), 0.0))
            except Empty:
                overdue()
                leave_at = monotonic() + _REMIND
                continue
            if number is None:
                return
            leave_at = monotonic() + heed(number)

    try:
        with signals_go_to(note) as before:
            threading.Thread(target=listen, name="sa-jobqueue signals", daemon=True).start()
            yield
    finally:
        heard.put(None)

"""Threads that leave signals to the main thread."""

from __future__ import annotations

import signal
import threading

from sa_jobqueue.worker.process.signals import start_deaf


def test_a_deaf_thread_and_those_that_it_starts_take_no_signal_to_end() -> None:
    """The thread that started it goes on hearing them."""
    masks: list[set[signal.Signals]] = []

    def note() -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))  # type: ignore[arg-type]

    def note_and_start() -> None:
        note()
        inner = threading.Thread(target=note)
        inner.start()
        inner.join()

    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    thread = threading.Thread(target=note_and_start)
    start_deaf(thread)
    thread.join()
    assert len(masks) == 2
    assert all({signal.SIGTERM, signal.SIGINT} <= mask for mask in masks)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before

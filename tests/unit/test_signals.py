"""Signals: which count, and threads that leave them to the main thread."""

from __future__ import annotations

import signal
import threading

import pytest

from sa_jobqueue.worker.process.signals import signals_go_to, start_deaf


def test_the_same_signal_again_within_a_second_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """GNU `timeout` and others signal a process, and then its group. Another signal, or a later one, is a second one."""
    now = 100.0
    monkeypatch.setattr("sa_jobqueue.worker.process.signals.monotonic", lambda: now)
    heard: list[int] = []
    with signals_go_to(lambda number, frame: heard.append(number)):
        for number, at in ((signal.SIGTERM, 0.0), (signal.SIGTERM, 0.9), (signal.SIGINT, 0.9), (signal.SIGTERM, 1.0)):
            now = 100.0 + at
            signal.raise_signal(number)
    assert heard == [signal.SIGTERM, signal.SIGINT, signal.SIGTERM]


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

"""The event on which the service thread sleeps."""

from __future__ import annotations

import threading

from sa_jobqueue.worker.process.inside import AutoResetEvent
from tests.support.waiting import wait_until


def test_set_wakes_the_waiting_thread() -> None:
    """Long before the time is over."""
    bell, woken = AutoResetEvent(), threading.Event()

    def sleep() -> None:
        bell.wait(60)
        woken.set()

    thread = threading.Thread(target=sleep, daemon=True)
    thread.start()
    bell.set()
    wait_until(woken.is_set)
    thread.join()
    assert not bell.is_set


def test_rung_before_it_does_not_let_sleep_once() -> None:
    """However often it was rung."""
    bell = AutoResetEvent()
    bell.set()
    bell.set()
    assert bell.is_set
    bell.wait(60)
    assert not bell.is_set
    bell.wait(0)
    bell.wait(-1)


def test_what_was_rung_can_be_forgotten() -> None:
    """And rung again."""
    bell = AutoResetEvent()
    bell.set()
    bell.clear()
    bell.clear()
    assert not bell.is_set
    bell.set()
    assert bell.is_set


def test_many_may_ring_at_once() -> None:
    """None of them fails, and no ring is lost: the waiting thread sees all that was done before it."""
    bell, given, errors = AutoResetEvent(), [0] * 4, []
    taken = 0

    def set(number: int) -> None:
        try:
            for _ in range(5_000):
                given[number] += 1
                bell.set()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=set, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while taken < 20_000:
        bell.wait(60)
        taken = sum(given)
    for thread in threads:
        thread.join()
    assert errors == []

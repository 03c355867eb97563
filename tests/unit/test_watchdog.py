"""What the watchdog says of an event loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sa_jobqueue.worker.watchdog import Watchdog


def watchdog() -> Watchdog:
    """Of a loop that never answers."""
    loop: Any = SimpleNamespace(call_soon_threadsafe=lambda answer: None)
    runs: Any = SimpleNamespace(all=list)
    return Watchdog(loop, runs, lambda: None)


def test_a_loop_that_was_not_asked_has_no_lag() -> None:
    """A worker that has just begun does not say that its loop was silent since the machine was started."""
    assert watchdog().lag == 0.0


def test_the_lag_does_not_grow_after_the_worker_has_left() -> None:
    """The last question of the watchdog may go without an answer, because the loop has ended."""
    ended = watchdog()
    ended.start([])
    ended.finish(20)
    assert ended.lag == 0.0

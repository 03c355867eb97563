"""Queues that wait for a connection of their handlers'."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from unittest.mock import MagicMock, Mock

from sa_jobqueue.worker.running.reopening import Reopening
from tests.support.waiting import wait_until


class PausedAgain:
    """Slots whose first job fails to get a connection just as it is resumed."""

    def __init__(self) -> None:
        self.paused, self.again = False, threading.Thread()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.again = threading.Thread(target=self.pause_again)
        self.again.start()
        self.again.join(0.3)
        self.paused = False

    def pause_again(self) -> None:
        raise NotImplementedError


def test_a_queue_that_must_wait_again_as_it_is_resumed_waits() -> None:
    """Else it would be claimed from, and its jobs given back, for as long as there is no connection."""
    slots, resumed = PausedAgain(), threading.Event()
    connect = MagicMock(side_effect=[MagicMock(), *[OSError("away")] * 100])
    engine: Any = Mock(connect=connect, dialect=Mock(is_async=False), pool=Mock())
    all_slots: Any = {"default": slots}
    loop = asyncio.new_event_loop()
    reopening = Reopening(loop, all_slots, resumed.set)
    slots.pause_again = lambda: reopening.pause("default", engine, "away")  # type: ignore[method-assign]
    reopening.pause("default", engine, "away")
    wait_until(resumed.is_set)
    slots.again.join()
    reopening.finish()
    loop.close()
    assert slots.paused

"""Queues that wait for a connection of their handlers'."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock, Mock, PropertyMock, call

import pytest

from sa_jobqueue.worker.running.reopening import Reopening
from sa_jobqueue.worker.running.reopening import logger as reopening_logger
from tests.support.waiting import wait_until


class PausedAgain:
    """Slots whose first job fails to get a connection just as it is resumed."""

    def __init__(self) -> None:
        self.paused, self.again, self.name = False, threading.Thread(), "default"

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


def named_slots() -> Mock:
    slots = Mock()
    slots.name = "default"
    return slots


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def test_a_queue_is_resumed_though_the_pool_is_replaced_as_it_is_paused(loop: asyncio.AbstractEventLoop) -> None:
    """The worker replaces it when a connection of its own breaks, which is when handlers get none, either."""
    slots, resumed, pools = named_slots(), threading.Event(), itertools.count()
    engine: Any = Mock(connect=MagicMock(), dialect=Mock(is_async=False))
    type(engine).pool = PropertyMock(side_effect=lambda: next(pools))
    reopening = Reopening(loop, {"default": slots}, resumed.set)
    reopening.pause("default", engine, "away")
    wait_until(resumed.is_set)
    reopening.finish()
    assert slots.method_calls == [call.pause(), call.resume()]


def test_a_queue_is_resumed_whatever_a_filter_of_logs_raises(loop: asyncio.AbstractEventLoop) -> None:
    """Else it would wait for a thread that was never started, or that has ended."""
    slots, resumed = named_slots(), threading.Event()
    connect = MagicMock(side_effect=[OSError("away"), MagicMock()])
    engine: Any = Mock(connect=connect, dialect=Mock(is_async=False), pool=Mock())

    class Leaves(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise SystemExit

    leaves, level = Leaves(), reopening_logger.level
    reopening_logger.addFilter(leaves)
    reopening_logger.setLevel(logging.DEBUG)
    try:
        reopening = Reopening(loop, {"default": slots}, resumed.set)
        reopening.pause("default", engine, "away")
        wait_until(resumed.is_set)
        reopening.finish()
    finally:
        reopening_logger.removeFilter(leaves)
        reopening_logger.setLevel(level)
    assert slots.method_calls == [call.pause(), call.resume()]

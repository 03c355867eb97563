"""The worker before it has a database: where it can run at all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from sa_jobqueue import Worker
from sa_jobqueue.errors import ConfigurationError

NOWHERE = "postgresql://me@127.0.0.1:1/nowhere"


async def test_run_in_a_running_loop_says_what_to_use_instead() -> None:
    with pytest.raises(ConfigurationError, match=r"an event loop is running here: use `await worker\.serve\(\)`"):
        Worker(NOWHERE, {"default": 1}).run()


def test_run_on_a_thread_says_what_to_use_instead() -> None:
    """Not what Python's `signal` says of itself."""
    with (
        ThreadPoolExecutor() as threads,
        pytest.raises(ConfigurationError, match=r"use `asyncio\.run\(worker\.serve\(\)\)`"),
    ):
        threads.submit(Worker(NOWHERE, {"default": 1}).run).result()

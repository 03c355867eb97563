"""Fixtures that several files of tests share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sa_jobqueue import JobContext, Registry, task
from sa_jobqueue.waiting import subscription
from tests.support import pooler


@pytest.fixture
def registry() -> Registry:
    """Without tasks: each test declares its own."""
    return Registry()


# ---- for the tests of `explain_job`


@pytest.fixture
def held(registry: Registry) -> Iterator[threading.Event]:
    """Jobs of the task "hold" run until this is set."""
    free = threading.Event()

    @task(registry=registry, name="hold")
    def hold(ctx: JobContext) -> None:
        free.wait(60)

    yield free
    free.set()


# ---- for the tests of `wait_for`


@pytest.fixture
def told_only(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Listeners look when they are told, and not by themselves."""
    if pooler.is_pooled(url):
        pytest.skip("behind a pooler nothing is told")
    monkeypatch.setattr(subscription, "_FIRST_POLL", 3_600.0)
    monkeypatch.setattr(subscription, "_LAST_POLL", 3_600.0)


@pytest.fixture
def soon_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection of a listener does not stay open for long after the last wait."""
    monkeypatch.setattr(subscription, "_LINGER", 0.2)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Threads that wait."""
    with ThreadPoolExecutor(64) as made:
        yield made

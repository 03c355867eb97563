"""The client's deadline for what it asks of the server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sa_jobqueue.worker.connections import pool as deadlines
from sa_jobqueue.worker.connections.pool import Deadline


class Clock:
    now = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    monkeypatch.setattr(Clock, "now", 100.0)
    monkeypatch.setattr(deadlines, "monotonic", lambda: Clock.now)
    return Clock


@pytest.fixture
def line() -> Iterator[tuple[Any, socket.socket]]:
    """A connection, as far as a watch looks at it, and the server's end of it."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with ours, theirs:
        dbapi = SimpleNamespace(pgconn=SimpleNamespace(socket=ours.fileno()))
        yield SimpleNamespace(connection=SimpleNamespace(dbapi_connection=dbapi)), theirs


def is_cut(theirs: socket.socket) -> bool:
    try:
        return theirs.recv(1) == b""
    except BlockingIOError:
        return False


def test_what_takes_too_long_is_cut_off(clock: type[Clock], line: tuple[Any, socket.socket]) -> None:
    """And nothing else is."""
    connection, theirs = line
    deadline = Deadline(15.0)
    with deadline.over(connection):
        clock.now += 14
    clock.now += 14
    deadline.check()
    assert not is_cut(theirs)
    with deadline.over(connection):
        clock.now += 15
        deadline.check()
        assert is_cut(theirs)


def test_what_is_watched_by_itself_has_its_own_time(clock: type[Clock], line: tuple[Any, socket.socket]) -> None:
    """Many steps that each are in time are not cut off; what comes after them is watched again."""
    connection, theirs = line
    deadline = Deadline(15.0)
    with deadline.over(connection):
        for _ in range(3):
            clock.now += 14
            with deadline.over(connection):
                clock.now += 14
                deadline.check()
        clock.now += 14
        deadline.check()
        assert not is_cut(theirs)
        clock.now += 1
        deadline.check()
        assert is_cut(theirs)

"""Receiving notifications about ends, and sleeping until then: with a driver for threads, or a driver for asyncio.

| driver | how it is notified |
|---|---|
| psycopg, sync and async | its socket becomes readable, or a notification comes with an answer |
| psycopg2 | the same |
| asyncpg | it calls back |
| others; a pooler | not at all: the listener polls |
"""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from time import monotonic
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.util import await_only

from ..util import forks


class ConnectionLost(SQLAlchemyError):
    """The connection broke while nothing was asked, or the server did not answer in time."""


class Receiver(Protocol):
    """Receives the ids of jobs that have ended. Any thread may call `wake` and `cut_off`."""

    def wake(self) -> None:
        """End this sleep, or the next."""

    def listen(self, connection: sa.Connection, channel: str) -> bool:
        """LISTEN on this channel. False if this driver or a pooler cannot."""
        ...

    def within(self, seconds: float, connection: sa.Connection) -> AbstractContextManager[None]:
        """What is asked inside, on this connection, has this much time. What takes longer ends by an error."""
        ...

    def cut_off(self) -> None:
        """End what has taken longer, where it cannot end by itself."""

    def sleep(self, seconds: float) -> set[int]:
        """Sleep until a notification comes, or `wake` is called, or the time is over. Returns the ids that have come since the last
        time. Raises ConnectionLost.
        """
        ...

    def forget(self) -> None:
        """The connection is about to be closed."""

    def close(self) -> None:
        """It is not used any more."""


class _Notifications:
    """The common part of receivers: the notifications of a psycopg or psycopg2 connection, and the ids that came by any driver."""

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self._raw: Any = None

    def note(self, payload: str) -> None:
        with suppress(ValueError):  # anyone may NOTIFY, with anything
            self.ids.add(int(payload))

    def _note_one(self, notification: Any) -> None:
        self.note(notification.payload)

    def take(self) -> set[int]:
        ids, self.ids = self.ids, set()
        return ids

    def listen(self, connection: sa.Connection, channel: str) -> bool:
        raw: Any = connection.connection.driver_connection
        if hasattr(raw, "pgconn"):
            backend = raw.info.backend_pid
        elif connection.dialect.driver == "psycopg2":
            backend = raw.get_backend_pid()
        else:
            return False
        if _is_elsewhere(connection, backend):
            return False
        if hasattr(raw, "pgconn"):
            forks.guard(raw)
            raw.add_notify_handler(self._note_one)  # of those that come with an answer
        connection.exec_driver_sql(f'LISTEN "{channel}"')
        self._raw = raw
        return True

    def forget(self) -> None:
        self._raw = None

    def socket(self) -> int | None:
        """What becomes readable when a notification comes; None with another driver, or without LISTEN."""
        if self._raw is None:
            return None
        try:
            return int(self._raw.fileno())
        except Exception as error:
            raise ConnectionLost(str(error)) from error

    def read(self) -> None:
        """Take what has come."""
        if self._raw is None:
            return
        try:
            if hasattr(self._raw, "pgconn"):
                self._raw.pgconn.consume_input()
                while (notification := self._raw.pgconn.notifies()) is not None:
                    self.note(notification.extra.decode("ascii", "replace"))
            else:
                self._raw.poll()
                while self._raw.notifies:
                    self.note(self._raw.notifies.pop(0).payload)
        except Exception as error:
            raise ConnectionLost(str(error)) from error


def _is_elsewhere(connection: sa.Connection, backend: int) -> bool:
    """Whether a pooler answers, which may give the next statement to another server process: LISTEN would hear nothing."""
    return bool(connection.scalar(sa.select(sa.func.pg_backend_pid())) != backend)


class ThreadReceiver(_Notifications):
    """A receiver with a driver that blocks its thread."""

    def __init__(self) -> None:
        super().__init__()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._busy: tuple[float, sa.Connection] | None = None
        """Until when the server may take, on which connection. Its own thread writes it, waiting threads read it."""

    def wake(self) -> None:
        with suppress(OSError):  # it was woken already, or has ended just now
            self._waker.send(b".")

    @contextmanager
    def within(self, seconds: float, connection: sa.Connection) -> Generator[None]:
        self._busy = (monotonic() + seconds, connection)
        try:
            yield
        finally:
            self._busy = None

    def cut_off(self) -> None:
        busy = self._busy
        if busy is None or monotonic() < busy[0]:
            return
        with suppress(Exception):  # it is closed, or the driver has no such method
            raw: Any = busy[1].connection.driver_connection
            with socket.socket(fileno=os.dup(raw.fileno())) as silent:
                silent.shutdown(socket.SHUT_RDWR)

    def sleep(self, seconds: float) -> set[int]:
        self.read()
        if not self.ids:
            file = self.socket()
            with selectors.DefaultSelector() as selector:
                selector.register(self._woken, selectors.EVENT_READ)
                if file is not None:
                    selector.register(file, selectors.EVENT_READ)
                selector.select(seconds)
            self.read()
        with suppress(BlockingIOError):
            self._woken.recv(4096)
        return self.take()

    def close(self) -> None:
        self._woken.close()
        self._waker.close()


class LoopReceiver(_Notifications):
    """A receiver with a driver for asyncio: in a greenlet of SQLAlchemy's, in a task of `loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._woken = asyncio.Event()
        self._listens_on: Any = None
        """asyncpg's connection."""
        self._is_lost = False
        """Whether asyncpg has reported that this connection was closed."""

    def wake(self) -> None:
        with suppress(RuntimeError):  # the loop has ended just now
            self._loop.call_soon_threadsafe(self._woken.set)

    def listen(self, connection: sa.Connection, channel: str) -> bool:
        if connection.dialect.driver != "asyncpg":
            return super().listen(connection, channel)
        raw: Any = connection.connection.driver_connection
        if _is_elsewhere(connection, raw.get_server_pid()):
            return False
        self._listens_on = raw
        await_only(raw.add_listener(channel, self._note))
        raw.add_termination_listener(self._note_lost)
        return True

    def _note(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        self.note(str(payload))
        self._woken.set()

    def _note_lost(self, connection: object) -> None:
        if connection is self._listens_on:
            self._is_lost = True
            self._woken.set()

    @contextmanager
    def within(self, seconds: float, connection: sa.Connection) -> Generator[None]:
        limit = asyncio.timeout(seconds)
        await_only(limit.__aenter__())
        try:
            yield
        except BaseException as error:
            try:
                await_only(limit.__aexit__(type(error), error, error.__traceback__))
            except TimeoutError:
                raise ConnectionLost(f"the server did not answer within {seconds:g} s") from error
            raise
        await_only(limit.__aexit__(None, None, None))

    def cut_off(self) -> None:
        """Nothing: what is awaited ends by itself."""

    def sleep(self, seconds: float) -> set[int]:
        self.read()
        if not self.ids:
            if (file := self.socket()) is not None:
                self._loop.add_reader(file, self._woken.set)
            try:
                with suppress(TimeoutError):
                    await_only(asyncio.wait_for(self._woken.wait(), seconds))
            finally:
                if file is not None:
                    self._loop.remove_reader(file)
            self.read()
        self._woken.clear()
        if self._is_lost:
            raise ConnectionLost("the connection was closed")
        return self.take()

    def forget(self) -> None:
        self._listens_on, self._is_lost = None, False
        super().forget()

    def close(self) -> None:
        pass

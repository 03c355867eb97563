"""Hearing of new jobs: LISTEN on a connection of its own.

Wake-ups only make a worker fast: polling finds every job. So the listener may fail and come back. It pings its connection, replaces
it when it is broken, and subscribes again.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...errors import ConfigurationError
from ...rules.retry import backoff
from ...sql.readings.depths import LISTENS_FOR
from ...sql.store import Store, default_store
from ...util import forks
from ...util.log import get_logger
from ..process.inside import ServiceThread
from . import pool as driver
from .pool import Deadline, drop_idle, hang_up
from .service import lasting_settings, setting

if TYPE_CHECKING:
    import psycopg


logger = get_logger(__name__)

#: The name tells for which worker the connection listens: every role may see it, unlike the query. The URL's own name
#: follows as far as there is room.
_NAME = "SELECT set_config('application_name', left(concat_ws(' ', %s::text, current_setting('application_name')), 63), false)"
#: Seconds without a message after which the connection is pinged.
_PING = 15.0
#: Seconds after which an answer is not expected any more.
_SILENCE = 10.0
_RETRY_MOST = 10.0


class Listener:
    """Calls `heard(queue)` for each wake-up of `worker`, and `heard(None)` after it (again) begins to listen."""

    def __init__(
        self, engine: sa.Engine, heard: Callable[[str | None], None], *, worker: str, store: Store = default_store
    ) -> None:
        self._engine, self._heard, self._worker, self._store = engine, heard, worker, store
        self._end = threading.Event()
        self._waker: socket.socket | None = None
        """A socket that the thread reads in addition to its connection; `finish` sends to it."""
        self.thread = ServiceThread("listener", self._loop)
        self.deadline = Deadline(_SILENCE)
        self.listening = False
        """Whether wake-ups are received now. The listener's thread writes it, any thread reads it."""

    def start(self) -> None:
        """Begin."""
        self.thread.start()

    def finish(self, timeout: float) -> None:
        """End."""
        self._end.set()
        if (waker := self._waker) is not None:
            with suppress(OSError):  # the thread has just closed it
                waker.send(b".")
        self.thread.join(timeout)

    def _loop(self) -> None:
        failures = 0
        while not self._end.is_set():
            connection: sa.Connection | None = None
            try:
                connection = self._engine.connect()
                forks.guard(driver.psycopg_of(connection))
                with self.deadline.over(connection):
                    raw, channel = self._subscribe(connection)
                again, failures, self.listening = failures > 0, 0, True
                self._heard(None)
                if again:
                    with suppress(BaseException):  # as below
                        logger.warning("listening again")
                self._listen(connection, raw, channel)
            except BaseException as error:
                failures += 1
                self.listening = False
                with suppress(BaseException):  # of the application's log filters
                    if failures == 1:
                        drop_idle(self._engine)
                        reason = error.orig if isinstance(error, DBAPIError) else error
                        text = " ".join(str(reason).split())
                        logger.warning("not listening for wake-ups (%s); polling meanwhile", text)
            self.listening = False
            if connection is not None:
                with suppress(BaseException):
                    hang_up(connection)
            if failures:
                self._end.wait(backoff(failures, first=0.2, most=_RETRY_MOST))

    def _subscribe(self, connection: sa.Connection) -> tuple[psycopg.Connection, str]:
        """Take the connection out of the pool permanently, and LISTEN on it."""
        import psycopg
        from psycopg import sql

        channel = self._store.channel(connection)
        connection.commit()
        connection.detach()
        raw = connection.connection.dbapi_connection
        if not isinstance(raw, psycopg.Connection):
            raise ConfigurationError(f"listening needs psycopg 3, not {type(raw).__module__}")
        raw.autocommit = True
        raw.execute(_NAME, [f"{LISTENS_FOR}{self._worker}"])
        raw.execute(setting(lasting_settings(_SILENCE)).encode())
        raw.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        return raw, channel

    def _listen(self, connection: sa.Connection, raw: psycopg.Connection, channel: str) -> None:
        """Sleep until there is something to read or to ask, or the end: regular checks would cost an idle worker more than everything
        else.
        """
        raw.add_notify_handler(lambda notification: self._heard(notification.payload))  # those that come with an answer
        asked = monotonic()
        woken, waker = socket.socketpair()
        with woken, waker, selectors.DefaultSelector() as selector:
            selector.register(raw.fileno(), selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            self._waker = waker
            while not self._end.is_set():
                self._hear(raw)
                if monotonic() - asked < _PING:
                    selector.select(max(asked + _PING - monotonic(), 0.0))
                    continue
                with self.deadline.over(connection):
                    current = self._store.channel(connection)
                    connection.commit()
                if current != channel:
                    return  # the table was created again; subscribe again
                asked = monotonic()

    def _hear(self, raw: psycopg.Connection) -> None:
        """Read notifications. psycopg's `notifies()` would ask the system once more whether there are any."""
        raw.pgconn.consume_input()
        while (notification := raw.pgconn.notifies()) is not None:
            self._heard(notification.extra.decode(raw.info.encoding))

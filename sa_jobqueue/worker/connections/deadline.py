"""The client's own deadline for a service connection."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import sqlalchemy as sa

from ...log import get_logger

__all__ = ["CLIENT_MARGIN", "Deadline"]

logger = get_logger(__name__)

#: Seconds that the client waits after the server should have ended a statement.
CLIENT_MARGIN = 5.0


class Deadline:
    """A deadline of the client's: a service transaction that takes longer than `limit` seconds is cut off.

    The server ends a statement after its timeout. What takes longer still waits on a socket whose server is gone. Its thread
    writes `_busy`; the watchdog reads it, and may cut the connection off.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._busy: tuple[float, sa.Connection] | None = None

    @contextmanager
    def over(self, connection: sa.Connection) -> Generator[None]:
        """Watch what happens inside. A nested `over` has a time of its own, and the rest after it begins a new one."""
        outer, self._busy = self._busy, (monotonic(), connection)
        try:
            yield
        finally:
            self._busy = None if outer is None else (monotonic(), outer[1])

    def check(self) -> None:
        """Cut off what has taken too long; its thread gets an error, and makes a new connection."""
        busy = self._busy
        if busy is None or monotonic() - busy[0] < self._limit:
            return
        try:
            raw: Any = busy[1].connection.dbapi_connection
            with socket.socket(fileno=os.dup(raw.pgconn.socket)) as stalled:
                stalled.shutdown(socket.SHUT_RDWR)
        except Exception:
            logger.debug("the connection was broken already", exc_info=True)
        logger.warning("a service connection has been silent for %g s; it is cut off", self._limit)

"""A child that a handler forks has no part in the worker's connections.

A child inherits their sockets. While it has them open, the server does not notice that the worker has died, and keeps the locks of
its transactions. A child that executes another program loses them by itself, because libpq opens them close-on-exec.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any
from weakref import WeakSet

_guarded: WeakSet[Any] = WeakSet()


def guard(raw: Any) -> None:
    """From now on a forked child loses this connection of psycopg's: what the child sends on it reaches no server."""
    if raw is not None:
        _guarded.add(raw)


def _let_go() -> None:
    """In the child: replace each socket by a dead one. A descriptor that was only closed could become another file's."""
    with suppress(Exception):
        dead, other = socket.socketpair()
        other.close()
        with dead:
            for raw in list(_guarded):
                with suppress(Exception):  # it is closed
                    os.dup2(dead.fileno(), raw.pgconn.socket, inheritable=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)

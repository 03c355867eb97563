"""The socket between a worker and one of its children. A message is a JSON object on a line of its own; nothing is pickled."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any, TypeAlias

__all__ = ["Channel", "Message"]

Message: TypeAlias = dict[str, Any]

#: Bytes read at a time.
_CHUNK = 65_536


class Channel:
    """One end. Any thread may send; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._parts: list[bytes] = []
        """The beginning of a message whose rest has not come yet."""
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """The descriptor, to wait for."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send a message. Raises OSError if the other end is gone, or takes nothing in for as long as the socket's timeout."""
        text = json.dumps(message).encode() + b"\n"
        with self._lock:
            self._socket.sendall(text)

    def receive(self) -> list[Message]:
        """The messages that have come by now; none if the first is not there to its end. Waits only if nothing has come at all.

        Raises EOFError if the other end is gone.
        """
        try:
            chunk = self._socket.recv(_CHUNK)
        except ConnectionError:  # it had not read everything
            chunk = b""
        if not chunk:
            raise EOFError
        head, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            self._parts.append(chunk)
            return []
        whole = b"".join((*self._parts, head))
        self._parts = [rest] if rest else []
        return [json.loads(line) for line in whole.split(b"\n")]

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

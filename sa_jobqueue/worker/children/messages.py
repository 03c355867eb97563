"""Messages between a worker and its children: a job, how its run ended, a log record. Each is a pickle, as a line of base64."""

from __future__ import annotations

import io
import json
import logging
import pickle
import socket
import threading
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ...arguments.context import ClaimedJob
from ...tasks.tasks import AnyTask
from ..running.notes import line_from

Message: TypeAlias = dict[str, Any]

#: Bytes read at a time.
_CHUNK = 65_536
_OURS = __name__.partition(".")[0]
#: Makes a plain value of a text or a number, also where its class has methods of its own.
_PLAIN: dict[type, Callable[[Any], Any]] = {str: str.__str__, float: float.__float__, int: int.__int__}


class _Pickler(pickle.Pickler):
    """Sends texts and numbers of the application's own classes as plain values: the other end may not have these classes."""

    def reducer_override(self, value: Any) -> Any:
        if type(value).__module__.partition(".")[0] != _OURS:
            for kind, plain in _PLAIN.items():
                if isinstance(value, kind):
                    return kind, (plain(value),)
        return NotImplemented


def to_line(message: Message) -> bytes:
    """The message as a line, so that a reader knows without waiting whether a message is complete: its sender may hang or die."""
    pickled = io.BytesIO()
    _Pickler(pickled).dump(message)
    return b2a_base64(pickled.getvalue())


def from_line(line: bytes) -> Message:
    """The message in a line of `to_line`. Raises ValueError for any other line: a handler may have written to the socket."""
    try:
        message: Message = pickle.loads(a2b_base64(line, strict_mode=True))  # noqa: S301 -- from the worker or its child
    except Exception as error:
        raise ValueError(f"not a message: {line[:80]!r}") from error
    return message


class Channel:
    """An end of the socket. Any thread may send; a single thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._parts: list[bytes] = []
        """The beginning of a message whose rest has not come yet."""
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """The descriptor, to wait for."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send a message. Raises OSError if the other end is gone, or receives nothing within the socket's timeout."""
        line = to_line(message)
        with self._lock:
            self._socket.sendall(line)

    def receive(self) -> list[Message]:
        """The messages that have come by now; none if the first is not complete. Waits only if nothing has come at all.

        Raises EOFError if the other end is gone.
        """
        try:
            chunk = self._socket.recv(_CHUNK)
        except ConnectionError:  # the other end had not read everything
            chunk = b""
        if not chunk:
            raise EOFError
        head, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            self._parts.append(chunk)
            return []
        whole = b"".join((*self._parts, head))
        self._parts = [rest] if rest else []
        return [from_line(line) for line in whole.split(b"\n")]

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


# ---- jobs


def place_of_task(task: AnyTask) -> list[str]:
    """Where a child finds the task: its name, and the module and name of its handler."""
    return [task.name, task.handler.__module__, task.handler.__qualname__]


def message_of_job(job: ClaimedJob, task: AnyTask, elapsed: float) -> Message:
    """A job to run. `elapsed`: seconds since its claim, from which its limits are counted."""
    return {"job": job, "task": place_of_task(task), "elapsed": elapsed}


# ---- a handler's progress and log lines


def message_of_progress(job: ClaimedJob, fraction: float, message: str | None) -> Message:
    """The progress of a job."""
    return {"progress": [fraction, message], "claim": _claim_of(job)}


def message_of_use(job: ClaimedJob, used: Mapping[str, int]) -> Message:
    """The named units that a job has used."""
    return {"used": dict(used), "claim": _claim_of(job)}


def message_of_line(job: ClaimedJob, record: logging.LogRecord) -> Message:
    """A log line to keep."""
    return {"line": line_from(record), "claim": _claim_of(job)}


def is_of_claim(message: Message, job: ClaimedJob) -> bool:
    """Whether a message with a claim belongs to this claim. A thread that another handler has left may still send its own."""
    return bool(message["claim"] == _claim_of(job))


def _claim_of(job: ClaimedJob) -> list[int]:
    return [job.id, job.claim_token]


# ---- log records

#: The attributes of every log record.
_STANDARD = frozenset(vars(logging.makeLogRecord({})))
_SCALARS = (str, int, float, bool, type(None))
_FORMATTER = logging.Formatter()


def message_of_record(record: logging.LogRecord) -> Message:
    """A log record. Its exception is formatted here, and extra attributes that JSON cannot represent become text."""
    values: Message = {
        name: value for name, value in vars(record).items() if name in _STANDARD and isinstance(value, _SCALARS)
    }
    args = record.args
    if isinstance(record.msg, str) and isinstance(args, tuple) and args and all(type(arg) in _SCALARS for arg in args):
        values["args"] = args  # error trackers group by the template
    else:
        values["msg"], values["args"] = record.getMessage(), None
    if record.exc_info and not record.exc_text:
        values["exc_text"] = _FORMATTER.formatException(record.exc_info)
    own = {name: _plain(value) for name, value in vars(record).items() if name not in _STANDARD}
    return {"log": values | own}


def record_of(message: Message) -> logging.LogRecord:
    """The record in a message of `message_of_record`."""
    values = message["log"]
    return logging.makeLogRecord(values | {"args": tuple(values.get("args") or ()) or None})


def _plain(value: object) -> Any:
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return str(value)

"""What a worker and its children say to each other, as JSON: a job, how its run ended, a record of the log."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Mapping
from typing import Any, TypeAlias

from ...arguments.context import ClaimedJob
from ...rules.lifecycle import Change, Event, JobStatus
from ...rules.outcomes import ErrorEntry
from ...tasks.tasks import AnyTask
from ..running.attempt_end import LOST, InDoubt, MaybeWritten, RunEnding, ToWrite, Written
from ..running.notes import Line, line_from

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


# ---- What a worker and its children say to each other, as JSON: a job, how its run ended, a record of the log.

#: What every record of the log has.
_STANDARD = frozenset(vars(logging.makeLogRecord({})))
_SCALARS = (str, int, float, bool, type(None))
_FORMATTER = logging.Formatter()


# ---- jobs


def place_of_task(task: AnyTask) -> list[str]:
    """Where a child finds the task: its name, and the module and name of its handler."""
    return [task.name, task.handler.__module__, task.handler.__qualname__]


def message_of_job(job: ClaimedJob, task: AnyTask, elapsed: float) -> Message:
    """A job to run. `elapsed`: seconds since its claim, from which its limits are counted."""
    return {"job": list(job), "task": place_of_task(task), "elapsed": elapsed}


def job_of(message: Message) -> ClaimedJob:
    """The job of such a message."""
    return ClaimedJob(*message["job"])


# ---- endings


def message_of_ending(ending: RunEnding) -> Message:
    """How a run ended. The exception stays in the child: what is to be written of it is in the change, as text."""
    if ending is LOST:
        return {"ended": "lost"}
    message = {"ended": _ENDED[type(ending)], "change": _said_of(ending.change)}
    if isinstance(ending, InDoubt):
        message["committed"] = _said_of(ending.committed)
    return message


def ending_of(message: Message) -> RunEnding:
    """The ending of such a message."""
    match message["ended"]:
        case "lost":
            return LOST
        case "written":
            return Written(_change_of(message["change"]))
        case "maybe written":
            return MaybeWritten(_change_of(message["change"]))
        case "in doubt":
            return InDoubt(_change_of(message["change"]), _change_of(message["committed"]))
        case _:
            return ToWrite(_change_of(message["change"]))


#: The words for endings that have a change.
_ENDED: Mapping[type[object], str] = {
    Written: "written",
    ToWrite: "to write",
    InDoubt: "in doubt",
    MaybeWritten: "maybe written",
}


def _said_of(change: Change) -> dict[str, Any]:
    return change._asdict() | {"error": _texts(change.error)}


def _change_of(said: Any) -> Change:
    return Change(
        **said
        | {
            "event": Event(said["event"]),
            "status": JobStatus(said["status"]),
            "if_cancelled": JobStatus(said["if_cancelled"]),
            "error": None if said["error"] is None else ErrorEntry(*said["error"]),
        }
    )


def _texts(error: ErrorEntry | None) -> list[str] | None:
    return None if error is None else [error.type, error.message, error.traceback]


# ---- what a handler says


def message_of_progress(job: ClaimedJob, fraction: float, message: str | None) -> Message:
    """How far the job is."""
    return {"progress": [fraction, message], "claim": _claim_of(job)}


def message_of_line(job: ClaimedJob, record: logging.LogRecord) -> Message:
    """A line that is to be kept."""
    return {"line": line_from(record), "claim": _claim_of(job)}


def is_said_of(message: Message, job: ClaimedJob) -> bool:
    """Whether such a message is of this claim. A thread that another handler has left may still say something of its own."""
    return bool(message["claim"] == _claim_of(job))


def _claim_of(job: ClaimedJob) -> list[int]:
    return [job.id, job.claim_token]


def line_of(message: Message) -> Line:
    """The line of such a message."""
    at, level, text = message["line"]
    return at, level, text


# ---- records of the log


def message_of_record(record: logging.LogRecord) -> Message:
    """A record of the log. Its exception is formatted here, and of its own fields what JSON has no form for becomes text."""
    said: Message = {
        name: value for name, value in vars(record).items() if name in _STANDARD and isinstance(value, _SCALARS)
    }
    args = record.args
    if isinstance(record.msg, str) and isinstance(args, tuple) and args and all(type(arg) in _SCALARS for arg in args):
        said["args"] = args  # error trackers group by the template
    else:
        said["msg"], said["args"] = record.getMessage(), None
    if record.exc_info and not record.exc_text:
        said["exc_text"] = _FORMATTER.formatException(record.exc_info)
    own = {name: _plain(value) for name, value in vars(record).items() if name not in _STANDARD}
    return {"log": said | own}


def record_of(message: Message) -> logging.LogRecord:
    """The record of such a message."""
    said = message["log"]
    args = said.get("args")
    return logging.makeLogRecord(said | {"args": tuple(args) if args else None})


def _plain(value: object) -> Any:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return str(value)
    return value

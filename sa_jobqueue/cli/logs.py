"""The format of log lines, as text or as JSON, and the log lines of jobs that `show` prints."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from ..rules.failures import describe
from ..tasks.middleware import add_job_fields
from ..util.urls import mask_passwords, masked
from .output import cleaned, escaped_as_json, note, print_json, say

#: The attributes that every record has; all others are extras.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class LogFormat(StrEnum):
    """How a log line is written."""

    TEXT = "text"
    JSON = "json"


class _JsonFormatter(logging.Formatter):
    """A record as one JSON object on one line, with its extras, without passwords."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": mask_passwords(record.getMessage()),
            "pid": record.process,
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = mask_passwords(describe(record.exc_info[1]).traceback).rstrip()
        for name, value in vars(record).items():
            if name not in _STANDARD:
                line[f"extra_{name}" if name in line else name] = masked(value)
        text = json.dumps(line, default=lambda value: mask_passwords(str(value)), ensure_ascii=False)
        return text if text.isprintable() else "".join(map(escaped_as_json, text))


def set_log_format(wanted: LogFormat) -> None:
    """Set the format of log lines. As JSON, log lines of handlers have the fields of their jobs."""
    if wanted is LogFormat.JSON:
        for handler in logging.getLogger().handlers:
            handler.setFormatter(_JsonFormatter())
            add_job_fields(handler)


# ---- The log lines that are kept of a job.

_LEVELS = {"DEBUG": "dim", "WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}

#: Log lines that `show` prints unless all are asked for.
_LAST_LINES = 20


def show_lines(lines: Sequence[Any], *, json: bool) -> None:
    """Print all log lines of a job."""
    if json:
        print_json([line._asdict() | {"message": mask_passwords(line.message)} for line in lines])
    elif lines:
        _print_lines(lines)
    else:
        note("no log lines of this job are kept: a task keeps them with @task(keep_logs=True)")


def _print_lines(lines: Sequence[Any]) -> None:
    attempt = None
    for line in lines:
        if line.attempt != attempt:
            attempt = line.attempt
            say(f"\nlog of attempt {attempt}", "bold")
        first, *more = cleaned(mask_passwords(line.message), keep="\n\t").split("\n")
        say(f"  {line.at.astimezone():%m-%d %H:%M:%S} {cleaned(line.level):<7} {first}", _LEVELS.get(line.level, ""))
        if more:
            say("\n".join(f"    {text}" for text in more), "dim")


def show_last_lines(lines: Sequence[Any]) -> None:
    """Print the last log lines of a job."""
    _print_lines(lines[-_LAST_LINES:])
    if len(lines) > _LAST_LINES:
        note(f"the last {_LAST_LINES} of {len(lines)} log lines; --logs shows all")

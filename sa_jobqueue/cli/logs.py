"""How log lines are written: as text, or as one JSON object each."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sa_jobqueue.failures import describe
from sa_jobqueue.job_fields import add_job_fields
from sa_jobqueue.urls import mask_passwords

from .output import masked

__all__ = ["LogFormat", "set_log_format"]


#: What every record has; anything else is an extra.
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
        if text.isprintable():
            return text
        return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


def set_log_format(wanted: LogFormat) -> None:
    """Write all that is logged from now on so. As JSON, what handlers log carries the fields of their jobs."""
    if wanted is LogFormat.JSON:
        for handler in logging.getLogger().handlers:
            handler.setFormatter(_JsonFormatter())
            add_job_fields(handler)

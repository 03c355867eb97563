"""What of a job's own values reaches a page: masked as the application says, without passwords, and not longer than a page bears."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import urlsplit

from ..failures import moment_said
from ..health.one_job import JobSeen
from ..log import get_logger
from ..objects import Subject
from ..urls import mask_passwords, masked
from ..words import size
from .look import FormatArgs, LinkSubject, Part
from .strings import text

__all__ = ["Value", "archived_lines", "errors_of", "safe_address", "subject_link", "value_of"]

logger = get_logger(__name__)

#: Characters of a value that are shown.
_MOST = 20_000
#: Errors that are shown.
_ERRORS = 100


@dataclass(frozen=True, slots=True)
class Value:
    """Arguments, meta or a result as a page shows them."""

    said: str | None = None
    """JSON, indented; None: there is nothing to be shown."""
    note: str = ""
    """Why it is not there, or only in part."""
    is_whole: bool = False
    """Whether it is what the row holds, all of it."""


def value_of(part: Part, seen: JobSeen, format_args: FormatArgs | None) -> Value:
    """This part of the job, as `format_args` returns it. Where that fails, nothing is shown: it may be what hides a secret."""
    if part in seen.sizes:
        return Value(note=text("value.large", size=size(seen.sizes[part])))
    given = getattr(seen.job, part)
    if given is None:
        return Value()
    try:
        before = _written(given)
        if format_args is not None:
            given = format_args(seen.job.task, part, given)
        said = _written(masked(given))
    except Exception as error:  # of the application's function, or of what it returned
        logger.warning("format_args failed for the %s of job %s: %s", part, seen.job.id, type(error).__name__)
        return Value(note=text("value.refused", error=type(error).__name__))
    if len(said) > _MOST:
        return Value(said[:_MOST], text("value.cut", shown=f"{_MOST:,}", all=f"{len(said):,}"))
    return Value(said, is_whole=said == before)


def _written(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True)
class Failure:
    """An entry of a job's errors."""

    attempt: str
    at: Any
    name: str
    message: str
    traceback: str


def errors_of(seen: JobSeen) -> tuple[list[Failure], int]:
    """The errors of its last attempts, the last one first, and how many are left out. The application may have written there, too: that is
    shown as it is.
    """
    found: object = seen.job.errors
    entries = cast(Sequence[object], found if isinstance(found, list) else [] if found is None else [found])
    last = entries[-_ERRORS:]
    return [_failure(one) for one in reversed(last)], len(entries) - len(last)


def _failure(entry: object) -> Failure:
    if not isinstance(entry, dict):
        return Failure("?", None, "", mask_passwords(str(entry)), "")
    said = cast(dict[str, Any], entry)
    name, message, traceback = (mask_passwords(str(said.get(key) or "")) for key in ("type", "message", "traceback"))
    return Failure(str(said.get("attempt", "?")), moment_said(said.get("at")), name, message, traceback.rstrip())


def archived_lines(job: Any) -> list[dict[str, Any]]:
    """The log lines of a job of the archive, which were its last attempt's. What is no line of ours is left out."""
    found: list[dict[str, Any]] = []
    for one in job.logs if isinstance(job.logs, list) else ():
        try:
            seconds, level, message = one
            at = datetime.fromtimestamp(seconds, UTC)
        except (TypeError, ValueError, OverflowError, OSError):
            continue
        found.append({"attempt": job.attempt, "at": at, "level": str(level), "message": str(message)})
    return found


def subject_link(subject: Subject, link: LinkSubject | None) -> str | None:
    """The address of the page of this row, as the application says it. None: it says none, or none that may be a link."""
    if link is None:
        return None
    try:
        return safe_address(link(subject))
    except Exception as error:  # of the application's function
        logger.warning("link_subject failed for %s: %s", subject.type, type(error).__name__)
        return None


def safe_address(given: object) -> str | None:
    """The address, if it leads to a page: by http, https, or within this site. A key of a row may be in it, and say `javascript:`."""
    if not isinstance(given, str) or not given or any(one <= " " or one in "\\\x7f" for one in given):
        return None
    try:
        parts = urlsplit(given)
    except ValueError:
        return None
    if parts.scheme:
        return given if parts.scheme in ("http", "https") and parts.netloc else None
    return None if given.startswith("//") else given

"""The log lines that are kept of one claim: the last ones, in parts as they were written."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from ...context import ClaimedJob
from ...failures import clean, describe
from ...store import LogLines

__all__ = ["MAX_LINE", "MAX_LOG", "KeptLog", "Line", "line_from"]

#: Characters kept of a line's text, and of its traceback the last ones.
MAX_LINE = 2_000
#: Characters kept of all lines of one claim.
MAX_LOG = 64_000

Line: TypeAlias = tuple[float, str, str]
"""Seconds since 1970, the level, the text."""


class KeptLog:
    """The last lines of one claim: those that are to be written, and in which parts the others were.

    Any thread adds; the maintenance thread takes. All is written and read under the lock.
    """

    def __init__(self, job: ClaimedJob, limit: int, news: Callable[[], None]) -> None:
        self._job, self._limit, self._news = job, limit, news
        self._lock = threading.RLock()  # as that of `Notes`
        self._lines: deque[Line] = deque()
        self._sent: list[Line] = []
        self._parts: deque[tuple[int, int, int]] = deque()
        """Number, lines and characters of the parts that were written, or are being written."""
        self._number = 0
        self._ended = self._closed = False
        self.size = 0
        """Characters that wait."""

    def add(self, record: logging.LogRecord) -> None:
        """Keep this line. The application's code may be called, to make a text of it."""
        self.add_line(line_from(record))

    def add_line(self, line: Line) -> None:
        """Keep this line, if the claim is not over."""
        with self._lock:
            if self._closed or self._ended:
                return
            is_first = not self._lines
            self._lines.append(line)
            self.size += len(line[2])
            self._trim()
        if is_first:
            self._news()

    def end(self) -> bool:
        """The claim has ended: nothing is added. Whether there is something to write."""
        with self._lock:
            self._ended = True
            return bool(self._lines or self._sent)

    def close(self) -> None:
        """The claim is lost: nothing is added, nor written."""
        with self._lock:
            self._closed = True
            self._lines.clear()
            self.size = 0

    def take(self) -> LogLines | None:
        """The lines to write now."""
        with self._lock:
            if not self._lines or self._sent:
                return None
            self._sent = list(self._lines)
            self._lines.clear()
            parts = self._parts
            parts.append((self._number, len(self._sent), self.size))
            self.size = 0
            while (
                sum(lines for _, lines, _ in parts) - parts[0][1] >= self._limit
                or sum(size for _, _, size in parts) - parts[0][2] >= MAX_LOG
            ) and len(parts) > 1:
                parts.popleft()
            lines, first, ended = self._sent, parts[0][0], self._ended
        job = self._job
        return LogLines(job.id, job.claim_token, self._number, first, job.attempt, _as_json(lines), ended)

    def settle(self, *, written: bool) -> bool:
        """What was taken is written, or is to be written again. Whether there is something to write."""
        with self._lock:
            if written:
                self._number += 1
            elif not self._closed:
                self._parts.pop()
                self._lines.extendleft(reversed(self._sent))
                self.size = sum(len(text) for _, _, text in self._lines)
                self._trim()
            self._sent = []
            return bool(self._lines)

    def _trim(self) -> None:
        while len(self._lines) > self._limit or self.size > MAX_LOG:
            self.size -= len(self._lines.popleft()[2])


_encode = json.JSONEncoder(ensure_ascii=False).encode


def _as_json(lines: list[Line]) -> str:
    """As PostgreSQL can store it. To clean each text takes a third of the time (November 2026), and nearly none needs it."""
    text = _encode(lines)
    if "\\u0000" not in text and clean(text) == text:
        return text
    return _encode([(at, clean(level), clean(said)) for at, level, said in lines])


def line_from(record: logging.LogRecord) -> Line:
    """The line that is kept of a record."""
    return (record.created, record.levelname[:20], _text_of(record))


def _text_of(record: logging.LogRecord) -> str:
    """What the line says. A text that the application cannot make is said so."""
    try:
        text = record.getMessage()
    except Exception as error:
        text = f"<a line that cannot be formatted: {type(error).__name__}> {_template_of(record)}"
    said = _cut(text)
    raised = record.exc_info[1] if record.exc_info else None
    if raised is not None:
        said += "\n" + describe(raised).traceback.rstrip()[-MAX_LINE:]
    return said


def _template_of(record: logging.LogRecord) -> str:
    return record.msg[:200] if isinstance(record.msg, str) else ""


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LINE else text[: MAX_LINE - 1] + "…"

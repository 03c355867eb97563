"""What running jobs say, on its way to the database: how far they are, and the log lines of tasks that keep them.

Handlers leave it here, which takes a microsecond, and the maintenance thread writes what all of them have left in one statement.
Only the last report of a job and its last lines are kept. So what waits is bounded, however long the database is away.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeAlias

from ...arguments.context import ClaimedJob
from ...rules.failures import clean, describe
from ...rules.lifecycle import Change
from ...sql.notes import LogLines, Report

#: Characters kept of a line's text, and of its traceback the last ones.
MAX_LINE = 2_000
#: Characters kept of all lines of one claim.
MAX_LOG = 64_000

Line: TypeAlias = tuple[float, str, str]
"""Seconds since 1970, the level, the text."""


class KeptLog:
    """The last lines of a claim: those to be written, and the parts in which the others were.

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
    """The line's text; a message that cannot be formatted is reported as such."""
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


#: Characters of lines of ended jobs that wait while the database is away, and their reports. (Jobs that do nothing but report end
#: faster than their reports are written: with 10,000 kept, 478 of 60,000 were lost.)
_MAX_WAITING, _MAX_REPORTS = 8_000_000, 50_000
#: Seconds between two writes of the lines of a job that runs.
_LINES_EVERY = 1.0
#: Jobs in one statement at most, and characters of their lines, beside those of one job.
_PAGE, _MAX_BATCH = 1_000, 2_000_000
#: How often a report is written that the database refuses: its claim may have ended just now, and this process not know it yet.
_TRIES = 3

_Key: TypeAlias = tuple[int, int | None]


class _Waiting:
    """A report that waits. Written and read under the lock of `Notes`."""

    __slots__ = ("ended", "fraction", "message", "tries")

    def __init__(self, fraction: float, message: str | None) -> None:
        self.fraction, self.message = fraction, message
        self.ended = False
        self.tries = 0


@dataclass(slots=True)
class Batch:
    """What the maintenance thread writes in one transaction."""

    reports: list[Report] = field(default_factory=list)
    logs: list[LogLines] = field(default_factory=list)
    more: bool = False
    """There is more to write than fits into one transaction."""

    def parts(self) -> list[Batch]:
        """What to write in its place where a text of it is to blame: its halves; or the one that it has, in ASCII. Else nothing."""
        notes: list[Report | LogLines] = [*self.reports, *self.logs]
        if len(notes) > 1:
            half = len(notes) // 2
            return [_batch_of(notes[:half]), _batch_of(notes[half:])]
        plain = [_in_ascii(one) for one in notes]
        return [] if plain == notes else [_batch_of(plain)]


def _batch_of(notes: Iterable[Report | LogLines]) -> Batch:
    batch = Batch()
    for one in notes:
        if isinstance(one, Report):
            batch.reports.append(one)
        else:
            batch.logs.append(one)
    return batch


def _in_ascii(note: Report | LogLines) -> Report | LogLines:
    """The same with a "?" for each other character, for a database whose encoding lacks some."""
    if isinstance(note, LogLines):
        return note._replace(lines=_plain(note.lines))
    return note._replace(message=None if note.message is None else _plain(note.message))


def _plain(text: str) -> str:
    return text.encode("ascii", "replace").decode("ascii")


class Notes:
    """Collects handlers' progress and log lines. Any thread may add; the maintenance thread alone takes them, and reports the result."""

    def __init__(self) -> None:
        # Reentrant: a garbage collection may come while it is held, and run the application's code.
        self._lock = threading.RLock()
        # All of these are written and read under the lock, except to see whether they are empty.
        self._reports: dict[_Key, _Waiting] = {}
        self._sent: dict[_Key, _Waiting] = {}
        self._logs: dict[_Key, KeptLog] = {}
        """Of the claims that are held here."""
        self._over: dict[_Key, KeptLog] = {}
        """Of claims that have ended, while there are lines to be written."""
        self._over_size = 0
        """Characters that wait in `_over`, or some more: what was written is not taken off at once."""
        # A log of a claim that is held has new lines. Any thread sets it; maintenance clears it.
        self._lines = False
        self._lines_at = 0.0
        self.wake: Callable[[], None] = _nothing
        """Called when there is something to write and there was not. Set once, before handlers run."""

    # ---- told by handlers

    def report(self, job: ClaimedJob, fraction: float, message: str | None) -> None:
        """Take how far the job is: `fraction` from 0 to 1, and perhaps a text."""
        key = (job.id, job.claim_token)
        with self._lock:
            waiting = self._reports.get(key)
            if waiting is None:
                is_first = not self._reports
                self._reports[key] = _Waiting(fraction, message)
            elif waiting.ended:
                return  # a thread that was left behind
            else:
                is_first = False
                waiting.fraction, waiting.message = fraction, message
        if is_first:
            self.wake()

    def keep(self, job: ClaimedJob, limit: int) -> Callable[[logging.LogRecord], None]:
        """The sink for this claim's log records; it keeps the last `limit`."""
        log = KeptLog(job, limit, self._has_lines)
        with self._lock:
            self._logs[job.id, job.claim_token] = log
        return log.add

    def add_line(self, job: ClaimedJob, limit: int, line: Line) -> None:
        """Keep a line that was logged in a child process."""
        key = (job.id, job.claim_token)
        with self._lock:
            log = self._logs.get(key)
            if log is None:
                log = self._logs[key] = KeptLog(job, limit, self._has_lines)
        log.add_line(line)

    def _has_lines(self) -> None:
        if not self._lines:
            self._lines = True
            self.wake()

    # ---- told by the runs

    @property
    def any(self) -> bool:
        """Whether anything of a job is still here: otherwise the end of a claim need not be reported."""
        return bool(self._reports or self._sent or self._logs)

    def end(self, changes: Iterable[Change], *, applied: bool) -> None:
        """These claims have ended. `applied`: their outcomes are written; otherwise what they reported is dropped."""
        with self._lock:
            for change in changes:
                self._end((change.id, change.claim_token), applied=applied)
        self.wake()

    def drop(self, job: ClaimedJob) -> None:
        """This claim is lost."""
        with self._lock:
            self._end((job.id, job.claim_token), applied=False)

    def _end(self, key: _Key, *, applied: bool) -> None:
        if (sent := self._sent.get(key)) is not None:
            sent.ended = applied
        if (waiting := self._reports.get(key)) is not None:
            waiting.ended = applied
            if not applied or len(self._reports) > _MAX_REPORTS:
                del self._reports[key]
        log = self._logs.pop(key, None)
        if log is None:
            return
        if applied and log.end():
            self._over[key] = log
            self._over_size += log.size
            if self._over_size > _MAX_WAITING:
                self._drop_oldest()
        elif not applied:
            log.close()

    def _drop_oldest(self) -> None:
        self._over_size = sum(one.size for one in self._over.values())
        while self._over_size > _MAX_WAITING:
            self._over_size -= self._over.pop(next(iter(self._over))).size

    # ---- taken by maintenance

    def due_at(self) -> float:
        """When there is something to write, by the monotonic clock; infinity while there is nothing."""
        if self._reports or self._over:
            return 0.0
        return self._lines_at + _LINES_EVERY if self._lines else float("inf")

    def take(self, *, all: bool = False) -> Batch:
        """What to write now. `settle` or `put_back` reports the result. `all`: also lines that could wait."""
        batch = Batch()
        with self._lock:
            for key in list(self._reports)[:_PAGE]:
                one = self._sent[key] = self._reports.pop(key)
                said = one.message and clean(one.message)
                batch.reports.append(Report(key[0], key[1] or 0, one.fraction, said, one.ended))
            batch.more = bool(self._reports)
            logs = list(self._over.values())
            if all or (self._lines and monotonic() >= self._lines_at + _LINES_EVERY):
                logs += self._logs.values()
                self._lines, self._lines_at = False, monotonic()
        length = 0
        for log in logs:
            if len(batch.logs) >= _PAGE or length > _MAX_BATCH:
                batch.more = self._lines = True
                break
            if (part := log.take()) is not None:
                batch.logs.append(part)
                length += len(part.lines)
        return batch

    def settle(self, batch: Batch, reported: Container[_Key], written: Container[_Key]) -> None:
        """The batch was written; these claims were valid."""
        with self._lock:
            for report in batch.reports:
                one = self._sent.pop((report.id, report.token), None)
                if one is None or (report.id, report.token) in reported or report.ended:
                    continue
                one.tries += 1
                if one.tries < _TRIES:
                    self._reports.setdefault((report.id, report.token), one)
            for part in batch.logs:
                key = (part.id, part.token)
                self._settle_lines(key, written=key in written or part.ended)

    def put_back(self, batch: Batch, *, drop: bool = False) -> None:
        """The batch was not written. `drop`: it is given up; else it is tried again."""
        with self._lock:
            for report in batch.reports:
                one = self._sent.pop((report.id, report.token), None)
                if one is not None and not drop:
                    newer = self._reports.setdefault((report.id, report.token), one)
                    newer.ended = newer.ended or one.ended
            for part in batch.logs:
                self._settle_lines((part.id, part.token), written=drop)

    def _settle_lines(self, key: _Key, *, written: bool) -> None:
        log = self._logs.get(key) or self._over.get(key)
        if log is None:
            return
        if not log.settle(written=written):
            self._over.pop(key, None)
        elif not written:
            self._lines = True


def _nothing() -> None:
    """Not told yet whom to wake."""

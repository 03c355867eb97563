"""Progress reports and kept log lines of running jobs, on their way to the database.

Handlers leave them here, which takes a microsecond, and the maintenance thread writes those of all jobs in one statement. Only the
last report of a job and its last lines are kept, so memory stays bounded however long the database is away.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeAlias

from ...arguments.context import ClaimedJob
from ...rules.failures import clean, describe
from ...rules.lifecycle import Change
from ...sql.notes import LogLines, Report

#: Characters kept of a line's text, and of the end of its traceback.
MAX_LINE = 2_000
#: Characters kept of all lines of one claim.
MAX_LOG = 64_000

Line: TypeAlias = tuple[float, str, str]
"""Seconds since 1970, the level, the text."""


class KeptLog:
    """The last log lines of a claim: those to be written, and the sizes of the parts already written.

    Any thread adds; the maintenance thread takes. All fields are written and read under the lock.
    """

    def __init__(self, job: ClaimedJob, limit: int, news: Callable[[], None]) -> None:
        self._job, self._limit, self._news = job, limit, news
        self._lock = threading.RLock()  # as that of `JobReports`
        self._lines: deque[Line] = deque()
        self._sent: list[Line] = []
        self._parts: deque[tuple[int, int, int]] = deque()
        """Number, lines and characters of the parts that were written, or are being written."""
        self._number = 0
        self._ended = self._closed = False
        self.size = 0
        """Characters that wait to be written."""

    def add(self, record: logging.LogRecord) -> None:
        """Keep this record as a line. To format it, the application's code may be called."""
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
        """Accept no more lines: the claim has ended. Returns whether there is something to write."""
        with self._lock:
            self._ended = True
            return bool(self._lines or self._sent)

    def close(self) -> None:
        """Accept and write no more lines: the claim is lost."""
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
        """Note whether the lines that `take` returned are `written`; if not, keep them. Returns whether there is something to write."""
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
    """The lines as JSON that PostgreSQL can store. Cleaning each text takes a third of the time (November 2026); few need it."""
    text = _encode(lines)
    if "\\u0000" not in text and clean(text) == text:
        return text
    return _encode([(at, clean(level), clean(message)) for at, level, message in lines])


def line_from(record: logging.LogRecord) -> Line:
    """The line that is kept of a record; a message that cannot be formatted is reported as such."""
    try:
        text = record.getMessage()
    except Exception as error:
        template = record.msg[:200] if isinstance(record.msg, str) else ""
        text = f"<a line that cannot be formatted: {type(error).__name__}> {template}"
    text = text if len(text) <= MAX_LINE else text[: MAX_LINE - 1] + "…"
    raised = record.exc_info[1] if record.exc_info else None
    if raised is not None:
        text += "\n" + describe(raised).traceback.rstrip()[-MAX_LINE:]
    return (record.created, record.levelname[:20], text)


#: Characters of lines of ended jobs that wait while the database is away, and their reports. (Jobs that do nothing but report end
#: faster than their reports are written: with 10,000 kept, 478 of 60,000 were lost.)
_MAX_WAITING, _MAX_REPORTS = 8_000_000, 50_000
#: Seconds between two writes of the lines of a job that runs.
_LINES_EVERY = 1.0
#: Jobs in one statement at most; and after how many characters of lines no other job is added to it.
_PAGE, _MAX_BATCH = 1_000, 2_000_000
#: How often a report is written that the database refuses: its claim may have just ended, before this process knows it.
_TRIES = 3

_Key: TypeAlias = tuple[int, int | None]


@dataclass(slots=True)
class _Waiting:
    """A report that waits. Written and read under the lock of `JobReports`."""

    fraction: float
    message: str | None
    ended: bool = False
    tries: int = 0


@dataclass(slots=True)
class Batch:
    """The reports and lines that the maintenance thread writes in one transaction."""

    reports: list[Report] = field(default_factory=list)
    logs: list[LogLines] = field(default_factory=list)
    more: bool = False
    """There is more to write than fits into one transaction."""

    def parts(self) -> list[Batch]:
        """The batches to write instead if the database refuses one of the texts: two halves, or a single text in ASCII, or nothing."""
        entries: list[Report | LogLines] = [*self.reports, *self.logs]
        if len(entries) > 1:
            half = len(entries) // 2
            return [_batch_of(entries[:half]), _batch_of(entries[half:])]
        plain = [_in_ascii(entry) for entry in entries]
        return [] if plain == entries else [_batch_of(plain)]


def _batch_of(entries: Sequence[Report | LogLines]) -> Batch:
    return Batch(
        [entry for entry in entries if isinstance(entry, Report)],
        [entry for entry in entries if isinstance(entry, LogLines)],
    )


def _in_ascii(entry: Report | LogLines) -> Report | LogLines:
    """`entry` with a "?" for each other character, for a database whose encoding lacks some."""
    text = (entry.lines if isinstance(entry, LogLines) else entry.message or "").encode("ascii", "replace").decode()
    return entry._replace(lines=text) if isinstance(entry, LogLines) else entry._replace(message=text or entry.message)


class JobReports:
    """Collects handlers' progress and log lines. Any thread may add; the maintenance thread alone takes them, and notes the result."""

    def __init__(self) -> None:
        # Reentrant: a garbage collection may come while it is held, and run the application's code.
        self._lock = threading.RLock()
        # All of these are written and read under the lock, except to see whether they are empty.
        self._reports: dict[_Key, _Waiting] = {}
        self._sent: dict[_Key, _Waiting] = {}
        self._uses: dict[_Key, dict[str, tuple[int | None, int]]] = {}
        """By unit: the number that its rates have taken, None for the job's estimate; and the used number."""
        self._used: dict[_Key, dict[str, int]] = {}
        """The reports of the jobs that run here, by unit."""
        self._logs: dict[_Key, KeptLog] = {}
        """The logs of claims that are held here."""
        self._over: dict[_Key, KeptLog] = {}
        """The logs of claims that have ended, while they have lines to be written."""
        self._over_size = 0
        """At least the number of characters that wait in `_over`: what was written is not subtracted at once."""
        # A log of a claim that is held has new lines. Any thread sets it; maintenance clears it.
        self._lines = False
        self._lines_at = 0.0
        self.wake: Callable[[], None] = lambda: None
        """Called when the first text waits to be written. Set once, before handlers run."""

    # ---- called by handlers

    def report(self, job: ClaimedJob, fraction: float, message: str | None) -> None:
        """Take a job's progress: `fraction` from 0 to 1, and perhaps a text."""
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

    def use(self, job: ClaimedJob, used: Mapping[str, int]) -> None:
        """Take a job's report of used units."""
        key = (job.id, job.claim_token)
        with self._lock:
            before, waiting = self._used.setdefault(key, {}), self._uses.setdefault(key, {})
            for unit, amount in used.items():
                waiting[unit] = (waiting[unit][0] if unit in waiting else before.get(unit), amount)
            before.update(used)
            if len(self._used) > _MAX_REPORTS:  # of threads that were left behind
                del self._used[next(iter(self._used))]
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

    # ---- called by the runs

    @property
    def any(self) -> bool:
        """Whether any job has reports or lines here: otherwise the end of a claim need not be reported."""
        return bool(self._reports or self._sent or self._logs or self._used)

    def end(self, changes: Iterable[Change], *, applied: bool) -> None:
        """Note that these claims have ended. `applied`: their outcomes are written; otherwise their reports are dropped."""
        with self._lock:
            for change in changes:
                self._end((change.id, change.claim_token), applied=applied)
        self.wake()

    def drop(self, job: ClaimedJob) -> None:
        """Drop the reports and lines of a lost claim."""
        with self._lock:
            self._end((job.id, job.claim_token), applied=False)

    def _end(self, key: _Key, *, applied: bool) -> None:
        if (sent := self._sent.get(key)) is not None:
            sent.ended = applied
        if (waiting := self._reports.get(key)) is not None:
            waiting.ended = applied
            if not applied or len(self._reports) > _MAX_REPORTS:
                del self._reports[key]
        self._used.pop(key, None)
        log = self._logs.pop(key, None)
        if log is None:
            return
        if applied and log.end():
            self._over[key] = log
            self._over_size += log.size
            if self._over_size > _MAX_WAITING:
                self._over_size = sum(ended.size for ended in self._over.values())
            while self._over_size > _MAX_WAITING:  # the oldest go
                self._over_size -= self._over.pop(next(iter(self._over))).size
        elif not applied:
            log.close()

    # ---- called by maintenance

    def due_at(self) -> float:
        """When there is something to write, by the monotonic clock; infinity while there is nothing."""
        if self._reports or self._over or self._uses:
            return 0.0
        return self._lines_at + _LINES_EVERY if self._lines else float("inf")

    def take_use(self) -> tuple[int, int | None, str] | None:
        """The id and the token of a claim, and its report of used units as JSON; None without a report. Call `put_back_use` if the write failed."""
        with self._lock:
            if not self._uses:
                return None
            key = next(iter(self._uses))
            return *key, json.dumps(self._uses.pop(key))

    def put_back_use(self, use: tuple[int, int | None, str]) -> None:
        """Keep a report whose write failed."""
        with self._lock:
            newer = self._uses.setdefault(use[:2], {})
            for unit, (before, amount) in json.loads(use[2]).items():
                newer[unit] = (before, newer[unit][1] if unit in newer else amount)

    def take(self, *, all: bool = False) -> Batch:
        """The batch to write now; `settle` or `put_back` comes next. `all`: also lines that could wait."""
        batch = Batch()
        with self._lock:
            for key in list(self._reports)[:_PAGE]:
                waiting = self._sent[key] = self._reports.pop(key)
                text = waiting.message and clean(waiting.message)
                batch.reports.append(Report(key[0], key[1] or 0, waiting.fraction, text, waiting.ended))
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
        """Note that the batch was written. The claims in `reported` and `written` were valid."""
        with self._lock:
            for report in batch.reports:
                key = (report.id, report.token)
                sent = self._sent.pop(key, None)
                if sent is None or key in reported or report.ended:
                    continue
                sent.tries += 1
                if sent.tries < _TRIES:
                    self._reports.setdefault(key, sent)
            for part in batch.logs:
                self._settle_lines(part, written=(part.id, part.token) in written or part.ended)

    def put_back(self, batch: Batch, *, drop: bool = False) -> None:
        """Note that the batch was not written: it is tried again, or given up if `drop` is set."""
        with self._lock:
            for report in batch.reports:
                sent = self._sent.pop((report.id, report.token), None)
                if sent is not None and not drop:
                    newer = self._reports.setdefault((report.id, report.token), sent)
                    newer.ended = newer.ended or sent.ended
            for part in batch.logs:
                self._settle_lines(part, written=drop)

    def _settle_lines(self, part: LogLines, *, written: bool) -> None:
        key = (part.id, part.token)
        log = self._logs.get(key) or self._over.get(key)
        if log is None:
            return
        if not log.settle(written=written):
            self._over.pop(key, None)
        elif not written:
            self._lines = True

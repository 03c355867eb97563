"""What running jobs say: how far they are, and their log lines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from ..statements.notes import drop_old_logs, drop_stray_logs, drop_stray_progress, write_logs, write_progress
from ..statements.parts import FIRST_ID
from .tables import OfTables

__all__ = ["JobNotes", "LogLines", "Report"]

#: Claims as (id, token).
Claims: TypeAlias = frozenset[tuple[int, int]]


class Report(NamedTuple):
    """How far the job of one claim is."""

    id: int
    token: int
    fraction: float
    message: str | None
    ended: bool
    """The outcome of the claim is written."""


class LogLines(NamedTuple):
    """Some log lines of one claim."""

    id: int
    token: int
    part: int
    """Its number among the parts of the claim, from 0 on."""
    first: int
    """The first part that is kept."""
    attempt: int
    lines: str
    """JSON text: see `LogPart.lines`."""
    ended: bool
    """The outcome of the claim is written."""


class JobNotes(OfTables):
    """Writing what running jobs say, and deleting what was kept of jobs that are gone."""

    def write_progress(self, connection: sa.Connection, reports: Sequence[Report]) -> Claims:
        """Write how far jobs are. Returns the claims that are still valid."""
        names = ("note_ids", "note_tokens", "note_fractions", "note_messages", "note_ended")
        return self._write(connection, self._write_progress, names, reports)

    def write_logs(self, connection: sa.Connection, parts: Sequence[LogLines]) -> Claims:
        """Write log lines. Returns the claims that are still valid, or have just ended."""
        names = ("log_ids", "log_tokens", "log_parts", "log_first", "log_attempts", "log_lines", "log_ended")
        written = self._write(connection, self._write_logs, names, parts)
        if begun := [part.id for part in parts if part.part == 0]:
            connection.execute(self._drop_old_logs, {"log_ids": begun})
        return written

    def drop_stray_notes(
        self, connection: sa.Connection, *, after: tuple[int, int] = (FIRST_ID, FIRST_ID), limit: int = 1_000
    ) -> tuple[tuple[int, int], int]:
        """Look at a page of each table, and delete what jobs that are gone have left behind.

        Returns where the next pages begin, and how many rows were deleted.
        """
        reached, deleted = [], 0
        for statement, place in zip((self._stray_progress, self._stray_logs), after, strict=True):
            found = connection.execute(statement, {"after_id": place, "page": limit}).one()
            reached.append(int(found.last) if found.looked_at == limit else FIRST_ID)
            deleted += found.gone
        return (reached[0], reached[1]), deleted

    @staticmethod
    def _write(
        connection: sa.Connection, statement: Any, names: Sequence[str], notes: Sequence[tuple[Any, ...]]
    ) -> Claims:
        columns = dict(zip(names, map(list, zip(*notes, strict=True)), strict=True))
        return frozenset((row.job_id, row.claim_token) for row in connection.execute(statement, columns))

    # The values are given at each execution.

    @cached_property
    def _write_progress(self) -> Any:
        return write_progress(
            ids=[], tokens=[], fractions=[], messages=[], ended=[], job=self.tables.job, progress=self.tables.progress
        )

    @cached_property
    def _write_logs(self) -> Any:
        return write_logs(
            ids=[], tokens=[], parts=[], first=[], attempts=[], lines=[], ended=[], job=self.tables.job, log=self.tables.log
        )  # fmt: skip

    @cached_property
    def _drop_old_logs(self) -> Any:
        return drop_old_logs([], log=self.tables.log)

    @cached_property
    def _stray_progress(self) -> Any:
        return drop_stray_progress(after=FIRST_ID, limit=0, job=self.tables.job, progress=self.tables.progress)

    @cached_property
    def _stray_logs(self) -> Any:
        return drop_stray_logs(after=FIRST_ID, limit=0, job=self.tables.job, log=self.tables.log)

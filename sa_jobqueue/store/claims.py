"""Claiming jobs, and fetching the arguments that did not come along."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from ..context import ClaimedJob
from ..statements.claim import (
    NOTHING_INLINE,
    ClaimRequest,
    claim_jobs,
    claim_listed,
    claim_parameters,
    due_jobs,
    due_parameters,
    listed_parameters,
    lock_listed,
    lock_parameters,
)
from ..statements.fetch import fetch_args
from .compiled import Compiled
from .tables import OfTables

__all__ = ["MOST_TEXT", "Claims", "Texts", "in_order"]

#: Bytes of text that are fetched of a job's arguments, and of its meta, unless a worker is told otherwise.
MOST_TEXT = 64 * 2**20

_DUE = attrgetter("run_at", "id")
_PRIORITY = attrgetter("priority")


class Texts(NamedTuple):
    """A job's arguments and meta as JSON text, None where they are too long; and how many bytes each would be."""

    args: str | None
    meta: str | None
    args_bytes: int
    meta_bytes: int


class Claims(OfTables):
    """Claiming: due jobs in general, or listed ones; and locking them, to see what a claim would take."""

    def claim(self, connection: sa.Connection, request: ClaimRequest) -> list[ClaimedJob]:
        """Claim due jobs. They come in the order to run them."""
        statement = self._claim_but if request.but else self._claim
        return in_order(statement.rows(connection, claim_parameters(request)))

    def claim_these(
        self, connection: sa.Connection, ids: Sequence[int], *, worker: str, lease: float
    ) -> list[ClaimedJob]:
        """Claim those of these jobs that are due and not locked by another; without their arguments and meta."""
        parameters = listed_parameters(ids, worker=worker, lease=lease, args_limit=NOTHING_INLINE)
        return in_order(self._claim_listed.rows(connection, parameters))

    def lock_due(
        self, connection: sa.Connection, queues: Mapping[str, int], *, but: Sequence[int] = (), known: int | None = None
    ) -> dict[int, str]:
        """The jobs that a claim would take, by id their queue, in its order. They are locked till the transaction ends.

        `known`: the versions of the limits that the worker has read.
        """
        return dict(self._due.rows(connection, due_parameters(queues=queues, but=but, known=known)))

    def lock_these(
        self, connection: sa.Connection, ids: Sequence[int], *, queues: Collection[str] = (), known: int | None = None
    ) -> list[int]:
        """The same for those among these, of these queues, that are due."""
        parameters = lock_parameters(ids, queues=queues, known=known)
        return [row[0] for row in self._lock_listed.rows(connection, parameters)]

    def fetch_args(self, connection: sa.Connection, id: int, *, most: int = MOST_TEXT) -> Texts | None:
        """One job's arguments and meta, unless they are longer than `most` bytes as text; None if the row is gone."""
        row = connection.execute(fetch_args(id, most=most, job=self.tables.job)).one_or_none()
        return None if row is None else Texts._make(row)

    # The values are given at each execution.

    def claim_statement(self, *, some_left_out: bool) -> sa.Update:
        """A claim to be executed often; a completion may have it in it."""
        return claim_jobs(
            worker="",
            queues={},
            lease=0,
            but=[] if some_left_out else None,
            job=self.tables.job,
            limit=self.tables.limit,
        )

    @cached_property
    def _claim(self) -> Compiled:
        return Compiled(self.claim_statement(some_left_out=False), binary=True)

    @cached_property
    def _claim_but(self) -> Compiled:
        return Compiled(self.claim_statement(some_left_out=True), binary=True)

    @cached_property
    def _claim_listed(self) -> Compiled:
        return Compiled(claim_listed(ids=[], worker="", lease=0, job=self.tables.job), binary=True)

    @cached_property
    def _due(self) -> Compiled:
        return Compiled(due_jobs(queues={}, but=[], job=self.tables.job, limit=self.tables.limit), binary=True)

    @cached_property
    def _lock_listed(self) -> Compiled:
        return Compiled(lock_listed(ids=[], job=self.tables.job, limit=self.tables.limit), binary=True)


def in_order(rows: Iterable[tuple[Any, ...]]) -> list[ClaimedJob]:
    """The rows of a claim as jobs, in the order to run them."""
    jobs = list(map(ClaimedJob._make, rows))
    jobs.sort(key=_DUE)
    jobs.sort(key=_PRIORITY, reverse=True)  # keeps the order of equals
    return jobs

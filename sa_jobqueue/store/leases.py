"""Leases: renewing what a worker holds, and finding what a dead worker held."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from ..lifecycle import Claim
from ..statements.admin import held_by, release_jobs
from ..statements.leases import (
    attest_uptime,
    cancel_requests,
    expired_leases,
    expired_parameters,
    held_parameters,
    renew_leases,
    renewal_parameters,
    uptime_parameters,
)
from ..statements.parts import FIRST_ID
from ..statements.prune import limit_statements
from ..statements.workers import places_of
from .outcomes import Answer
from .tables import OfTables

__all__ = ["Expired", "Leases", "Renewal"]


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a renewal says: the ids whose claim is lost, those locked just now, those asked to cancel."""

    lost: frozenset[int]
    locked: frozenset[int]
    cancel_requested: frozenset[int]


@dataclass(frozen=True, slots=True)
class Expired:
    """A running job whose lease has run out."""

    claim: Claim
    task: str
    queue: str
    worker: str | None
    place: str
    """The worker's host and process: "web-1:4711"; its id where it is not known any more."""
    claimed_at: float | None
    """Seconds since 1970."""
    overdue: float | None
    """Seconds since the lease ran out, by the database's clock."""


class Leases(OfTables):
    """Renewing leases, and finding those that have run out."""

    def renew(
        self, connection: sa.Connection, held: Mapping[int, int], *, lease: float, seconds: float | None = None
    ) -> Renewal:
        """Let the leases of `held` (id -> token) end `lease` seconds from now. `seconds`: after which that is given up."""
        if seconds is not None:
            connection.execute(limit_statements(seconds))
        answers = connection.execute(self._renew, renewal_parameters(held, lease=lease)).all()
        return Renewal(
            lost=frozenset(row.id for row in answers if row.answer == Answer.LOST),
            locked=frozenset(row.id for row in answers if row.answer == Answer.LOCKED),
            cancel_requested=frozenset(row.id for row in answers if row.cancel_requested),
        )

    def cancelled_among(self, connection: sa.Connection, held: Mapping[int, int]) -> frozenset[int]:
        """The ids among `held` (id -> token) for which a cancel was asked for."""
        return frozenset(connection.scalars(self._cancel_requests, held_parameters(held)))

    def attest(self, connection: sa.Connection, *, lease: float, outage: float) -> bool:
        """Bear witness that leases can be renewed now; whether they could be during the whole of the last `lease` seconds.

        What has run out since the transaction began, or before, may then be rescued. `outage`: the most seconds between
        two witnesses for which the two still vouch.
        """
        return bool(connection.scalar(self._attest, uptime_parameters(lease=lease, outage=outage)))

    def expired(self, connection: sa.Connection, *, after: int = FIRST_ID, limit: int = 100) -> list[Expired]:
        """A page of running jobs whose lease has run out, by id from `after` (exclusive) on."""
        found = connection.execute(self._expired, expired_parameters(after=after, limit=limit)).all()
        places = self._places(connection, {row.worker for row in found}) if found else {}
        return [
            Expired(
                Claim(row.id, row.claim_token, row.attempt, row.max_attempts, row.rescues, row.extra), row.task, row.queue, row.worker,
                places.get(row.worker, str(row.worker)), row.claimed_at, row.overdue,
            )
            for row in found
        ]  # fmt: skip

    def release_unknown(
        self, connection: sa.Connection, *, worker: str, known: Collection[tuple[int, int | None]]
    ) -> list[int]:
        """Give back the running jobs that bear this worker's id without being `known`, as (id, token): a commit's answer
        was lost.
        """
        job = self.tables.job
        return list(
            connection.scalars(release_jobs(held_by(worker, but=known, job=job), job=job, events=self.tables.event))
        )

    def _places(self, connection: sa.Connection, workers: Iterable[str | None]) -> dict[str | None, str]:
        """Where these workers run, or ran, as far as their rows are still there. (Any text may stand for a worker.)"""
        ids: list[uuid.UUID] = []
        for worker in workers:
            with suppress(ValueError, TypeError):
                ids.append(uuid.UUID(worker))
        rows = connection.execute(places_of(ids, worker=self.tables.worker))
        return {str(row.id): f"{row.host}:{row.pid}" for row in rows}

    # The values are given at each execution.

    @cached_property
    def _renew(self) -> Any:
        return renew_leases(ids=[], tokens=[], lease=0, job=self.tables.job)

    @cached_property
    def _cancel_requests(self) -> Any:
        return cancel_requests(ids=[], tokens=[], job=self.tables.job)

    @cached_property
    def _attest(self) -> Any:
        return attest_uptime(lease=0, outage=0, job=self.tables.job, uptime=self.tables.uptime)

    @cached_property
    def _expired(self) -> Any:
        return expired_leases(job=self.tables.job)

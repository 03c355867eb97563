"""Leases: renewing what a worker holds, finding what a dead worker held.

A renewal names each claim, and never "all jobs of this worker": a worker that slept past its lease must not renew a job
that was claimed again since, by itself or by another worker.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from ..models import Job, JobMixin, companions_of
from ..rules.lifecycle import Claim
from .admin import held_by, release_jobs
from .apply import Answer
from .claims import extra_of
from .ends import answered, fence, has_run_out, is_held
from .parts import FIRST_ID, array, columns_of, epoch, epoch_of, in_seconds, lock_in_order, members, rows, table_of
from .prune import limit_statements
from .tables import StorePart
from .workers import places_of


def _held_parameters(held: Mapping[int, int]) -> dict[str, Any]:
    return {"lease_ids": list(held), "lease_tokens": list(held.values())}


def renew_leases(
    *, ids: Sequence[int], tokens: Sequence[int], lease: float, job: type[JobMixin] = Job
) -> sa.Executable:
    """Let the leases of these claims end `lease` seconds from now.

    Returns a row per claim: id, token, answer, cancel_requested. The answer is "applied"; "lost": the claim is no
    longer valid; or "locked": another transaction has locked the row, try again.
    """
    table = table_of(job)
    columns = table.c
    id_array, held = _held(ids, tokens)
    locked = lock_in_order(table, columns.id == sa.func.any(id_array), is_held(table))
    valid = fence(table, id=held.c.id, token=held.c.token)
    renewed = (
        sa.update(table)
        .where(members(columns.id, sa.select(locked.c.id)), valid)
        .values(lease_expires_at=in_seconds(lease, name="lease_seconds"))
        .returning(columns.id, columns.claim_token, columns.cancel_requested_at)
        .cte("renewed")
    )
    return (
        sa.select(
            held.c.id,
            held.c.token,
            answered(renewed.c.id.is_not(None), valid, of=held),
            renewed.c.cancel_requested_at.is_not(None).label("cancel_requested"),
        )
        .select_from(held.outerjoin(renewed, sa.and_(renewed.c.id == held.c.id, renewed.c.claim_token == held.c.token)))
        .add_cte(locked)
    )


def _held(ids: Sequence[int], tokens: Sequence[int]) -> tuple[sa.ColumnElement[Any], sa.TableValuedAlias]:
    """The ids, and the claims as rows."""
    id_array = array("lease_ids", ids, sa.BigInteger())
    return id_array, rows("held", id=id_array, token=array("lease_tokens", tokens, sa.BigInteger()))


def expired_leases(*, after: int = FIRST_ID, limit: int = 100, job: type[JobMixin] = Job) -> sa.Executable:
    """Running jobs whose lease has run out, by id, from `after` (exclusive) on, at most `limit`.

    Columns: id, claim_token, task, queue, attempt, max_attempts, rescues, extra, worker; claimed_at, in seconds since 1970; overdue,
    the seconds since the lease ran out.
    """
    table = table_of(job)
    columns = table.c
    return (
        sa.select(
            *columns_of(columns, "id claim_token task queue attempt max_attempts rescues"),
            extra_of(table),
            columns.worker,
            epoch_of(columns.claimed_at),
            # Not the difference of the times: infinite times have none.
            (epoch(sa.func.now()) - epoch(columns.lease_expires_at)).label("overdue"),
        )
        .select_from(job)  # so that a session that is bound by class finds its engine
        .where(is_held(table), has_run_out(table), columns.id > sa.bindparam("after_id", after, sa.BigInteger))
        .order_by(columns.id)
        .limit(sa.bindparam("page", limit, sa.Integer))
    )


def cancel_requests(*, ids: Sequence[int], tokens: Sequence[int], job: type[JobMixin] = Job) -> sa.Executable:
    """The ids among these claims for which a cancel was asked for. Takes no lock."""
    table = table_of(job)
    columns = table.c
    id_array, held = _held(ids, tokens)
    return sa.select(columns.id).where(
        columns.id == sa.func.any(id_array),
        fence(table, id=held.c.id, token=held.c.token),
        columns.cancel_requested_at.is_not(None),
    )


def attest_uptime(*, lease: float, outage: float, job: type[JobMixin] = Job) -> sa.Executable:
    """Whether leases of `lease` seconds could be renewed during the whole of the last such time: a row with a boolean.

    Each execution is a witness, and reads the rows of earlier witnesses, whose processes may have ended since. The time between
    two witnesses that are more than `outage` seconds apart counts as an outage. Only the database's clock counts. A step of that
    clock is treated as an outage, because it makes leases look expired as an outage does.
    """
    uptime = companions_of(job).uptime
    length = sa.bindparam("lease_ms", round(lease * 1000), sa.BigInteger)
    now, apart = sa.func.now(), sa.bindparam("outage", outage, sa.Float) * sa.literal_column("interval '1 second'")
    known = sa.select(uptime.since, uptime.until).where(uptime.lease == length).cte("known")
    # It fails where a renewal would: if the table is locked, if the database is read-only, or without the right to update.
    tried = sa.update(job).where(sa.false()).values(lease_expires_at=now).cte("tried")
    unbroken = sa.select(known.c.since).where(known.c.until.between(now - apart, now + apart)).scalar_subquery()
    # The row is written rarely, however many workers there are: under a held snapshot each write leaves a version that all
    # must walk over.
    lately = sa.exists().where(known.c.until.between(now - apart * sa.literal_column("0.25"), now))
    row = sa.select(length, sa.func.coalesce(unbroken, now), now).where(~lately)
    written = insert(uptime).from_select(["lease", "since", "until"], row)
    news = {name: written.excluded[name] for name in ("since", "until")}
    attested = (
        written.on_conflict_do_update(index_elements=["lease"], set_=news).returning(uptime.since).cte("attested")
    )
    since = sa.func.coalesce(sa.select(attested.c.since).scalar_subquery(), sa.select(known.c.since).scalar_subquery())
    whole = sa.bindparam("lease_seconds", lease, sa.Float) * sa.literal_column("interval '1 second'")
    return sa.select((since <= now - whole).label("attested")).add_cte(tried)


# ---- Leases: renewing what a worker holds, and finding what a dead worker held.


@dataclass(frozen=True, slots=True)
class Renewal:
    """The result of a renewal: the ids whose claim is lost, those locked just now, those asked to cancel."""

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
    """The worker's host and process: "web-1:4711"; the worker's id where its row is gone."""
    claimed_at: float | None
    """Seconds since 1970."""
    overdue: float | None
    """Seconds since the lease ran out, by the database's clock."""


class Leases(StorePart):
    """Renewing leases, and finding those that have run out."""

    def renew(
        self, connection: sa.Connection, held: Mapping[int, int], *, lease: float, seconds: float | None = None
    ) -> Renewal:
        """Let the leases of `held` (id -> token) end `lease` seconds from now. The statement is given up after `seconds`."""
        if seconds is not None:
            connection.execute(limit_statements(seconds))
        answers = connection.execute(self._renew, _held_parameters(held) | {"lease_seconds": lease}).all()
        return Renewal(
            lost=frozenset(row.id for row in answers if row.answer == Answer.LOST),
            locked=frozenset(row.id for row in answers if row.answer == Answer.LOCKED),
            cancel_requested=frozenset(row.id for row in answers if row.cancel_requested),
        )

    def cancelled_among(self, connection: sa.Connection, held: Mapping[int, int]) -> frozenset[int]:
        """The ids among `held` (id -> token) for which a cancel was asked for."""
        return frozenset(connection.scalars(self._cancel_requests, _held_parameters(held)))

    def attest(self, connection: sa.Connection, *, lease: float, outage: float) -> bool:
        """Bear witness that leases can be renewed now. Returns whether they could be during the whole of the last `lease` seconds.

        What has run out since the transaction began, or before, may then be rescued. `outage`: the most seconds between
        two witnesses for which the two still vouch.
        """
        given = {"lease_ms": round(lease * 1000), "lease_seconds": lease, "outage": outage}
        return bool(connection.scalar(self._attest, given))

    def expired(self, connection: sa.Connection, *, after: int = FIRST_ID, limit: int = 100) -> list[Expired]:
        """A page of running jobs whose lease has run out, by id from `after` (exclusive) on."""
        found = connection.execute(self._expired, {"after_id": after, "page": limit}).all()
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
        """Give back the running jobs of this worker that are not `known` to it, as (id, token): the commit of their claim was not
        answered. Returns their ids.
        """
        job = self.job
        return list(connection.scalars(release_jobs(held_by(worker, but=known, job=job), job=job)))

    def _places(self, connection: sa.Connection, workers: Iterable[str | None]) -> dict[str | None, str]:
        """Host and process of these workers, by id, as far as their rows are still there. (Any text may stand for a worker.)"""
        ids: list[uuid.UUID] = []
        for worker in workers:
            with suppress(ValueError, TypeError):
                ids.append(uuid.UUID(worker))
        rows = connection.execute(places_of(ids, job=self.job))
        return {str(row.id): f"{row.host}:{row.pid}" for row in rows}

    # The values are given at each execution.

    _renew = cached_property(lambda self: renew_leases(ids=[], tokens=[], lease=0, job=self.job))
    _cancel_requests = cached_property(lambda self: cancel_requests(ids=[], tokens=[], job=self.job))
    _attest = cached_property(lambda self: attest_uptime(lease=0, outage=0, job=self.job))
    _expired = cached_property(lambda self: expired_leases(job=self.job))

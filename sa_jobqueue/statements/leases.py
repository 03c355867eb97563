"""Leases: renewing what a worker holds, finding what a dead worker held.

Renewal goes by (id, claims, worker), never by "all that bear my name": a worker that slept past its lease must not renew
a job that it, or somebody else, has claimed since.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    BigInteger,
    Boolean,
    Executable,
    Integer,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    or_,
    select,
    update,
)

from ..lifecycle import Event, sources
from ..models import Job, status_in
from ._parts import array, held_by_claimer, in_seconds, lock_in_order, members, rows, table_of

__all__ = ["expired_leases", "renew_leases"]


def renew_leases(
    *, ids: Sequence[int], claims: Sequence[int], lease: float, worker: str | None = None, job: type[Job] = Job
) -> Executable:
    """Let the leases of these claims end `lease` seconds from now.

    Returns a row per claim: id, claims, answer, cancel_requested. The answer is "applied"; "lost": the claim is no
    longer valid; or "locked": somebody has the row locked just now, try again.
    """
    table = table_of(job)
    columns = table.c
    id_array, claim_array = array("lease_ids", ids, BigInteger()), array("lease_claims", claims, Integer())
    held = rows("held", id=id_array, claims=claim_array)
    locked = lock_in_order(table, columns.id == func.any(id_array), status_in(columns.status, sources(Event.RELEASE)))
    fence = and_(
        columns.id == held.c.id,
        columns.claims == held.c.claims,
        held_by_claimer(table, worker),
        status_in(columns.status, sources(Event.RELEASE)),
    )
    renewed = (
        update(table)
        .where(members(columns.id, select(locked.c.id)), fence)
        .values(lease_expires_at=in_seconds(lease, name="lease_seconds"))
        .returning(columns.id, columns.claims, columns.cancel_requested_at)
        .cte("renewed")
    )
    # Not EXISTS, which may be planned as a hash over all that runs.
    still_ours = select(literal_column("true", Boolean)).where(fence).correlate(held).scalar_subquery()
    return (
        select(
            held.c.id,
            held.c.claims,
            case(
                (renewed.c.id.is_not(None), literal_column("'applied'")),
                (still_ours, literal_column("'locked'")),
                else_=literal_column("'lost'"),
            ).label("answer"),
            renewed.c.cancel_requested_at.is_not(None).label("cancel_requested"),
        )
        .select_from(held.outerjoin(renewed, and_(renewed.c.id == held.c.id, renewed.c.claims == held.c.claims)))
        .add_cte(locked)
    )


def expired_leases(*, after: int = -(2**63), limit: int = 100, job: type[Job] = Job) -> Executable:
    """Running jobs whose lease has run out, by id, from `after` (exclusive) on, at most `limit`.

    Columns: id, claims, task, queue, attempt, max_attempts, rescues, worker.
    """
    columns = table_of(job).c
    return (
        select(
            columns.id,
            columns.claims,
            columns.task,
            columns.queue,
            columns.attempt,
            columns.max_attempts,
            columns.rescues,
            columns.worker,
        )
        .select_from(job)  # so that a session that is bound by class finds its engine
        .where(
            status_in(columns.status, sources(Event.RESCUE)),
            or_(columns.lease_expires_at.is_(None), columns.lease_expires_at <= func.now()),
            columns.id > bindparam("after_id", after, BigInteger),
        )
        .order_by(columns.id)
        .limit(bindparam("page", limit, Integer))
    )


def cancel_requests(
    *, ids: Sequence[int], claims: Sequence[int], worker: str | None = None, job: type[Job] = Job
) -> Executable:
    """The ids among these claims for which a cancel was asked for. Takes no lock."""
    table = table_of(job)
    columns = table.c
    id_array, claim_array = array("lease_ids", ids, BigInteger()), array("lease_claims", claims, Integer())
    held = rows("held", id=id_array, claims=claim_array)
    return select(columns.id).where(
        columns.id == func.any(id_array),
        columns.id == held.c.id,
        columns.claims == held.c.claims,
        held_by_claimer(table, worker),
        status_in(columns.status, sources(Event.RELEASE)),
        columns.cancel_requested_at.is_not(None),
    )

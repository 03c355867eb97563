"""Claiming: one statement picks due jobs, locks them, takes them and hands them over.

The picking walks slots. A slot is one (queue, priority), read in the order of the index, so that neither future jobs
at a higher priority nor other queues are walked over; a plain `ORDER BY priority DESC, run_at` over several queues
has to sort them all.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import sqlalchemy as sa

from ..lifecycle import TRANSITIONS, Event, JobStatus, sources
from ..models import Job, JobMixin, LimitRow, status_in, status_literal
from ..options import MAX_PRIORITY
from .beside import with_companions
from .extra import extra_of
from .limits import knows_limits
from .parts import (
    FIRST_ID,
    FIRST_TIME,
    array,
    epoch_of,
    in_seconds,
    lock_in_order,
    members,
    packed,
    packed_texts,
    rows,
    table_of,
)

__all__ = [
    "INLINE_LIMIT",
    "NOTHING_INLINE",
    "PRIORITIES",
    "ClaimRequest",
    "Point",
    "Slot",
    "claim_jobs",
    "claim_listed",
    "claim_parameters",
    "due_jobs",
    "due_parameters",
    "listed_parameters",
    "lock_listed",
    "lock_parameters",
    "new_token",
    "taken",
    "taken_by",
]

#: The priorities, the order in which they are served.
PRIORITIES = tuple(range(MAX_PRIORITY, -1, -1))

#: Bytes of text up to which arguments, and meta, come along with their claim.
INLINE_LIMIT = 65_536
#: No text is as short, so only `{}` comes along, and nothing else is converted. (Not -1: psycopg sends a number as the
#: smallest type that holds it, and would prepare the claim once more for another type.)
NOTHING_INLINE = -65_536
#: jsonb of at most 8 bytes is `{}` or `[]`, as nearly every `meta` is. Without a look at its length a claim of 100 takes 1 to
#: 2 % longer than one without a limit, and with that look 1 to 3.5 % (PostgreSQL 18, November 2026).
_EMPTY = sa.literal_column("8", sa.Integer)

#: (queue, priority)
Slot: TypeAlias = tuple[str, int]
#: (run_at, id) of a row, run_at in seconds since 1970
Point: TypeAlias = tuple[float, int]
#: Before all rows.
_FRONT: Point = (FIRST_TIME, FIRST_ID)


def new_token() -> int:
    """The fence of the jobs that one execution of `claim_jobs` claims: 63 random bits, which no other execution will have.

    A counter in the row, or a sequence, would not do: a promoted standby, or a restored backup, gives its numbers a second
    time. The randomness is the system's, because a forked process would continue with the same numbers as its parent.
    """
    return secrets.randbits(63)


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What one claim is to take: at most `queues[name]` due jobs of each queue, for `worker`, for `lease` seconds."""

    worker: str
    queues: Mapping[str, int]
    lease: float
    after: Mapping[Slot, Point] | None = None
    """Resume points: the rows behind which to begin. None: at the front."""
    but: Sequence[int] = ()
    """Ids of jobs that are not to be claimed."""
    known: int | None = None
    """The versions of the limits that the worker has read."""
    inline: bool = True
    """Whether short arguments and meta come along. Otherwise only empty ones do, so what a row holds cannot make the claim fail."""


def claim_parameters(request: ClaimRequest) -> dict[str, Any]:
    """The parameters of `claim_jobs`, by name, to execute a statement again that was built once."""
    due = due_parameters(queues=request.queues, after=request.after, but=request.but or None, known=request.known)
    return due | taken_by(request.worker, request.lease, INLINE_LIMIT if request.inline else NOTHING_INLINE)


def listed_parameters(
    ids: Iterable[int], *, worker: str, lease: float, args_limit: int = INLINE_LIMIT
) -> dict[str, Any]:
    """The same of `claim_listed`."""
    return _listed_ids(ids) | taken_by(worker, lease, args_limit)


def lock_parameters(ids: Iterable[int], *, queues: Iterable[str] = (), known: int | None = None) -> dict[str, Any]:
    """The same of `lock_listed`."""
    return _listed_ids(ids) | {"queue_names": packed_texts(queues), "known_limits": known}


def _listed_ids(ids: Iterable[int]) -> dict[str, Any]:
    return {"listed_ids": packed(ids)}


def taken_by(worker: str, lease: float, args_limit: int) -> dict[str, Any]:
    """The parameters of `taken`, by name."""
    return {"by_worker": worker, "by_token": new_token(), "lease_seconds": lease, "inline_limit": args_limit}


def due_parameters(
    *,
    queues: Mapping[str, int],
    after: Mapping[Slot, Point] | None = None,
    but: Iterable[int] | None = None,
    known: int | None = None,
) -> dict[str, Any]:
    """The same of `due_jobs`."""
    queues = {queue: free for queue, free in queues.items() if free > 0}
    parameters: dict[str, Any] = {
        **_slots(tuple(queues)),
        "queue_free": packed(queues.values()),
        "known_limits": known,
    }
    if but is not None:
        parameters["but_ids"] = packed(but)
    if after:
        points = [after.get((queue, level), _FRONT) for queue in queues for level in PRIORITIES]
        parameters["slot_times"] = packed([at for at, _ in points])
        parameters["slot_ids"] = packed([id_ for _, id_ in points])
    return parameters


@lru_cache
def _slots(queues: tuple[str, ...]) -> Mapping[str, str]:
    """The parameters that are the same for each claim from the front of these queues."""
    slots = [(queue, level) for queue in queues for level in PRIORITIES]
    return {
        "queue_names": packed_texts(queues),
        "slot_queues": packed_texts([queue for queue, _ in slots]),
        "slot_levels": packed([level for _, level in slots]),
        "slot_times": packed([_FRONT[0]] * len(slots)),
        "slot_ids": packed([_FRONT[1]] * len(slots)),
    }


@with_companions
def claim_jobs(
    *,
    worker: str,
    queues: Mapping[str, int],
    lease: float,
    after: Mapping[Slot, Point] | None = None,
    but: Sequence[int] | None = None,
    known: int | None = None,
    args_limit: int = INLINE_LIMIT,
    job: type[JobMixin] = Job,
    limit: type[LimitRow] = LimitRow,
) -> sa.Update:
    """Claim due jobs: at most `queues[name]` of each queue, higher priority first, then earlier `run_at`, then `id`.

    `worker`: who holds them from now on. `lease`: seconds until others may rescue them. `after`: resume points,
    by (queue, priority) the (run_at, id) of a row behind which to begin, as a claim returned them; jobs at or before it
    are not seen. `but`: ids of jobs that are not seen either.
    `args_limit`: arguments larger than this come back as NULL, and so does such a `meta`: in bytes of text, or as stored
    where that is more. Below zero: all do that are not empty.

    It takes no account of limits, nor of keys: where a queue has some, or there are other limits than those of the version that the
    worker has `known` (see `read_limits`), it fails with SQLSTATE SJQ03. Only `Worker` claims from such queues.

    Returns the columns of `sa_jobqueue.context.ClaimedJob`, in no particular order.
    """
    given = due_parameters(queues=queues, after=after, but=but, known=known)
    # MATERIALIZED: without the fence the planner may evaluate the picking again and take more rows than LIMIT.
    picked = _due(table_of(job), given, limit=limit).cte("picked").prefix_with("MATERIALIZED")
    return taken(table_of(job), sa.select(picked.c.id), worker=worker, lease=lease, args_limit=args_limit)


def claim_listed(
    *,
    ids: Sequence[int],
    worker: str,
    lease: float,
    args_limit: int = INLINE_LIMIT,
    job: type[JobMixin] = Job,
) -> sa.Update:
    """Claim these, as far as they are due and not locked by another. Returns what `claim_jobs` does."""
    locked = _listed(table_of(job), ids)
    return taken(table_of(job), sa.select(locked.c.id), worker=worker, lease=lease, args_limit=args_limit)


def due_jobs(
    *,
    queues: Mapping[str, int],
    after: Mapping[Slot, Point] | None = None,
    but: Sequence[int] | None = None,
    known: int | None = None,
    job: type[JobMixin] = Job,
    limit: type[LimitRow] = LimitRow,
) -> sa.Select[Any]:
    """The id and the queue of the jobs that `claim_jobs` would claim, in that order; they are locked."""
    given = due_parameters(queues=queues, after=after, but=but, known=known)
    return _due(table_of(job), given, limit=limit, named=True)


def lock_listed(
    *,
    ids: Sequence[int],
    queues: Sequence[str] = (),
    known: int | None = None,
    job: type[JobMixin] = Job,
    limit: type[LimitRow] = LimitRow,
) -> sa.Select[Any]:
    """The ids of those among these that `claim_listed` would claim; they are locked. They are of these `queues`, where, as in
    `claim_jobs`, there are no limits that the worker has not `known`.
    """
    table = table_of(job)
    given = {"queue_names": queues, "known_limits": known}
    return sa.select(_listed(table, ids).c.id).where(knows_limits(table, table_of(limit), given))


def _listed(table: sa.Table, ids: Sequence[int]) -> sa.CTE:
    columns = table.c
    return lock_in_order(
        table,
        columns.id == sa.func.any(array("listed_ids", ids, sa.BigInteger())),
        status_in(columns.status, sources(Event.CLAIM)),
        columns.run_at <= sa.func.now(),
    )


def _due(table: sa.Table, given: Mapping[str, Any], *, limit: type[LimitRow], named: bool = False) -> sa.Select[Any]:
    """The ids of the due jobs, locked; with their queues if these are to be `named`."""
    columns = table.c
    queue = rows(
        "queue",
        name=array("queue_names", given["queue_names"], sa.Text()),
        free=array("queue_free", given["queue_free"], sa.Integer()),
    )
    slot = rows(
        "slot",
        queue=array("slot_queues", given["slot_queues"], sa.Text()),
        level=array("slot_levels", given["slot_levels"], sa.SmallInteger()),
        at=array("slot_times", given["slot_times"], sa.Float(53)),
        id=array("slot_ids", given["slot_ids"], sa.BigInteger()),
    )
    due = (
        sa.select(columns.id)
        .where(
            columns.queue == slot.c.queue,
            columns.priority == slot.c.level,
            status_in(columns.status, sources(Event.CLAIM)),
            columns.concurrency_key.is_(None),
            columns.run_at <= sa.func.now(),
            sa.tuple_(columns.run_at, columns.id) > sa.tuple_(sa.func.to_timestamp(slot.c.at), slot.c.id),
            *_but(columns.id, given),
        )
        .order_by(columns.run_at, columns.id)
        .limit(queue.c.free)
        # NO KEY: a user's row that references the job by foreign key must not hide it.
        .with_for_update(key_share=True, skip_locked=True)
        .correlate(queue, slot)
        .lateral("due")
    )
    candidate = (
        sa.select(due.c.id)
        .select_from(slot.join(due, sa.true()))
        .where(slot.c.queue == queue.c.name)
        .limit(queue.c.free)
        .correlate(queue)
        .lateral("candidate")
    )
    found = [candidate.c.id, queue.c.name] if named else [candidate.c.id]
    return (
        sa.select(*found)
        .select_from(queue.join(candidate, sa.true()))
        .where(knows_limits(table, table_of(limit), given))
    )


def _but(id: sa.Column[int], given: Mapping[str, Any]) -> list[sa.ColumnElement[bool]]:
    if "but_ids" not in given:
        return []
    return [id != sa.func.all(array("but_ids", given["but_ids"], sa.BigInteger()))]


def taken(
    table: sa.Table,
    ids: sa.Select[Any],
    *,
    worker: str,
    lease: float,
    args_limit: int,
    at: sa.ColumnElement[Any] | None = None,
) -> sa.Update:
    """Claim the rows with these ids. `at`: when; the transaction's now() if None."""
    columns = table.c
    limit = sa.bindparam("inline_limit", args_limit, sa.Integer)
    return (
        sa.update(table)
        .where(members(columns.id, ids))
        .values(
            status=status_literal(TRANSITIONS[JobStatus.QUEUED, Event.CLAIM]),
            # Made at each execution: a statement that is executed again must not give the token of an old claim.
            claim_token=sa.bindparam("by_token", callable_=new_token, type_=sa.BigInteger),
            # At the limit of its type a counter stays as it is, so that it does not fail the whole claim.
            claims=sa.func.least(columns.claims, sa.literal_column("2147483646")) + sa.literal_column("1"),
            attempt=sa.func.least(columns.attempt, sa.literal_column("32766")) + sa.literal_column("1"),
            worker=sa.bindparam("by_worker", worker, sa.Text),
            claimed_at=sa.func.now() if at is None else at,
            lease_expires_at=in_seconds(lease, name="lease_seconds"),
        )
        .returning(
            columns.id,
            columns.claim_token,
            columns.queue,
            columns.task,
            columns.priority,
            epoch_of(columns.run_at),
            columns.attempt,
            columns.max_attempts,
            columns.rescues,
            _inline(columns.args, limit),
            _inline(columns.meta, limit),
            epoch_of(columns.created_at),
            extra_of(table),
        )
    )


def _inline(column: sa.Column[Any], limit: sa.ColumnElement[int]) -> sa.ColumnElement[Any]:
    """A column's JSON as text, or NULL if it is longer than `limit`.

    The stored size says little about that: 64 KiB of text may be compressed to 1, and a number of a few bytes may have
    130,000 digits. But a value whose stored size is above the limit is not converted at all; hence CASE, because AND has no
    order. OFFSET 0 is a fence: without it the text would be made twice, at three times the cost for arguments of 200 bytes.
    """
    size = sa.func.pg_column_size(column)
    text = (
        sa.select(sa.cast(column, sa.Text).label("text"))
        .correlate(column.table)
        .offset(sa.literal_column("0"))
        .subquery("made")
    )
    short = sa.select(sa.case((sa.func.octet_length(text.c.text) <= limit, text.c.text))).correlate(column.table)
    return sa.case((size <= _EMPTY, sa.cast(column, sa.Text)), (size <= limit, short.scalar_subquery())).label(
        column.key
    )

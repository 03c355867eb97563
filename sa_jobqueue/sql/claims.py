"""Claiming: one statement picks due jobs, locks them, takes them and hands them over.

The picking walks slots. A slot is one (queue, priority), read in the order of the index, so that neither future jobs
at a higher priority nor other queues are walked over; a plain `ORDER BY priority DESC, run_at` over several queues
has to sort them all.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DBAPIError

from ..arguments.context import ClaimedJob
from ..models import ArchivedJob, Job, JobMixin, companions_of, status_in, status_literal
from ..rules.lifecycle import TRANSITIONS, Event, JobStatus, sources
from ..tasks.options import MAX_PRIORITY
from .limits.state import LIMITS_CHANGED, knows_limits
from .parts import (
    FIRST_ID,
    FIRST_TIME,
    ONE,
    ZERO,
    array,
    columns_of,
    epoch,
    epoch_of,
    in_seconds,
    lock_in_order,
    members,
    packed,
    packed_texts,
    rows,
    table_of,
)
from .tables import Compiled, StorePart
from .unique import started_key


def fetch_args(id: int, *, most: int, job: type[JobMixin] = Job) -> sa.Executable:
    """One job's arguments and meta as JSON text, NULL where that has more than `most` bytes; and how many bytes each has."""
    columns = table_of(job).c
    made = (
        sa.select(sa.cast(columns.args, sa.Text).label("args"), sa.cast(columns.meta, sa.Text).label("meta"))
        .where(columns.id == id)
        .offset(ZERO)  # a fence: else each would be made three times
        .subquery("made")
        .c
    )
    sizes = sa.func.octet_length(made.args), sa.func.octet_length(made.meta)
    short = (sa.case((size <= most, text)) for text, size in zip((made.args, made.meta), sizes, strict=True))
    return sa.select(*short, *sizes)


# ---- Rare attributes of a job, claimed as one JSON column. It is NULL for most jobs, which then cost one test.

_TRUE = sa.literal_column("'true'::jsonb", JSONB)


def _seconds_to(time: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    # Not by an interval: there is none to infinity before PostgreSQL 17.
    return sa.func.to_jsonb(epoch(time) - epoch(sa.func.now()))


def extra_of(table: sa.FromClause) -> sa.ColumnElement[str | None]:
    """The rare attributes of a job as a JSON object in text, named `extra`; NULL for a job without any. See `lifecycle.Claimed.extra`."""
    columns = table.c
    # key -> (the column that says whether a job has it, the value)
    parts: dict[str, tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]]] = {
        "unique": (
            columns.uniqueness,
            sa.case((columns.uniqueness.is_not(None), sa.func.coalesce(sa.func.to_jsonb(started_key(table)), _TRUE))),
        ),
        # In seconds. Only for the first attempt, which the claim has counted already, if no claim was rescued.
        "expires": (
            columns.expires_at,
            sa.case((sa.and_(columns.attempt <= ONE, columns.rescues == ZERO), _seconds_to(columns.expires_at))),
        ),
        "deadline": (columns.deadline_at, _seconds_to(columns.deadline_at)),
        "tick": (columns.tick_at, _tick(columns)),
        "workflow": (columns.workflow_id, columns.workflow_id),
        "inputs": (columns.inputs, columns.inputs),
        "version": (columns.extras, version_of(table)),
        "follows": (columns.extras, sa.case((_is_followed(table), _TRUE))),
    }
    pairs = [part for key, (_, value) in parts.items() for part in (sa.literal_column(f"'{key}'"), value)]
    # Tests that the server makes by itself: a function of them all, num_nonnulls(), would be called for each job.
    has_none = sa.and_(*(column.is_(None) for column, _ in parts.values()))
    found = sa.cast(sa.func.jsonb_strip_nulls(sa.func.jsonb_build_object(*pairs)), sa.Text)
    # Most members of a workflow have no other rare attribute. To build a JSON object for them takes three times as long.
    is_member = sa.and_(*(column.is_(None) for name, (column, _) in parts.items() if name != "workflow"))
    member = sa.func.concat(
        sa.literal_column("'{\"workflow\": '"), columns.workflow_id, sa.literal_column("'}'"), type_=sa.Text
    )
    return sa.case((has_none, sa.null()), (is_member, member), else_=found).label("extra")


def version_of(table: sa.FromClause) -> sa.ColumnElement[str | None]:
    """The version of a job's arguments, as text of at most 8 characters, because `extras` may be any JSON; NULL for version 1."""
    return version_in(table.c.extras)


def version_in(extras: sa.ColumnElement[Any]) -> sa.ColumnElement[str | None]:
    """The version in these `extras`, as `version_of`."""
    name = sa.literal_column("'version'", sa.Text)
    stored = extras.op("->", return_type=JSONB())(name)
    text = sa.func.left(extras.op("->>", return_type=sa.Text())(name), sa.literal_column("8"), type_=sa.Text())
    kind = sa.func.jsonb_typeof(stored)
    return sa.case(
        (kind == sa.literal_column("'number'"), text), (kind.is_not(None), sa.literal_column("'?'", sa.Text))
    )


def _is_followed(table: sa.FromClause) -> sa.ColumnElement[bool]:
    """Whether the job has a follow-up for its completion. Failures always use the general statement, which checks by itself."""
    return table.c.extras.op("?", return_type=sa.Boolean())(sa.literal_column("'on_success'", sa.Text))


def _tick(columns: Any) -> sa.ColumnElement[Any]:
    """[seconds since 1970, for how many ticks the job stands], or NULL."""
    return sa.case((columns.tick_at.is_not(None), sa.func.jsonb_build_array(epoch(columns.tick_at), columns.ticks)))


#: The priorities, the order in which they are served.
PRIORITIES = tuple(range(MAX_PRIORITY, -1, -1))

#: Bytes of text up to which arguments, and meta, come along with their claim.
INLINE_LIMIT = 65_536
#: Only `{}` comes along then, and nothing else is converted, because no text has a negative length. (Not -1: psycopg sends a number
#: as the smallest type that holds it, and would prepare the claim once more for another type.)
NOTHING_INLINE = -65_536
#: jsonb of at most 8 bytes is `{}` or `[]`, as nearly every `meta` is. With this test a claim of 100 jobs takes 1 to 2 % longer than a
#: claim without a limit; if the text were measured, 1 to 3.5 % (PostgreSQL 18, November 2026).
_EMPTY = sa.literal_column("8", sa.Integer)

#: (queue, priority)
Slot: TypeAlias = tuple[str, int]
#: (run_at, id) of a row, run_at in seconds since 1970
Point: TypeAlias = tuple[float, int]
#: Before all rows.
_FRONT: Point = (FIRST_TIME, FIRST_ID)


def new_token() -> int:
    """A token for the jobs that an execution of `claim_jobs` claims: 63 random bits, which no other execution will have.

    A counter in the row, or a sequence, would not do: a promoted standby, or a restored backup, gives its numbers a second
    time. The randomness is the system's, because a forked process would continue with the same numbers as its parent.
    """
    return secrets.randbits(63)


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """The parameters of a claim: at most `queues[name]` due jobs of each queue, for `worker`, for `lease` seconds."""

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
    """Whether short arguments and meta come along. Otherwise only `{}` does, so the content of a row cannot make the claim fail."""


def claim_parameters(request: ClaimRequest) -> dict[str, Any]:
    """The parameters of `claim_jobs`, by name, to execute a statement again that was built once."""
    due = due_parameters(queues=request.queues, after=request.after, but=request.but or None, known=request.known)
    return due | taken_by(request.worker, request.lease, INLINE_LIMIT if request.inline else NOTHING_INLINE)


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
    """The parameters of `due_jobs`, by name."""
    queues = {queue: free for queue, free in queues.items() if free > 0}
    parameters: dict[str, Any] = {**_slots(tuple(queues)), "queue_free": packed(queues.values()), "known_limits": known}
    if but is not None:
        parameters["but_ids"] = packed(but)
    if after:
        parameters["slot_times"], parameters["slot_ids"] = packed_points(queues, after)
    return parameters


def packed_points(queues: Iterable[str], after: Mapping[Slot, Point]) -> tuple[str, str]:
    """The times and the ids of the resume points of all slots of these queues."""
    points = [after.get((queue, level), _FRONT) for queue in queues for level in PRIORITIES]
    return packed([at for at, _ in points]), packed([id_ for _, id_ in points])


@lru_cache
def _slots(queues: tuple[str, ...]) -> Mapping[str, str]:
    """The parameters that all claims from the front of these queues share."""
    slots = [(queue, level) for queue in queues for level in PRIORITIES]
    return {
        "queue_names": packed_texts(queues),
        "slot_queues": packed_texts([queue for queue, _ in slots]),
        "slot_levels": packed([level for _, level in slots]),
        "slot_times": packed([_FRONT[0]] * len(slots)),
        "slot_ids": packed([_FRONT[1]] * len(slots)),
    }


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
) -> sa.Update:
    """Claim due jobs: at most `queues[name]` of each queue, higher priority first, then earlier `run_at`, then `id`.

    `worker`: who holds them from now on. `lease`: seconds until others may rescue them. `after`: resume points,
    by (queue, priority) the (run_at, id) of a row behind which to begin, as a claim returned them; jobs at or before it
    are not seen. `but`: ids of jobs that are not seen either.
    `args_limit`: arguments larger than this come back as NULL, and so does such a `meta`: in bytes of text, or as stored
    where that is more. If negative, only empty values are returned.

    It takes no account of limits, nor of keys: where a queue has some, or there are other limits than those of the version that the
    worker has `known` (see `read_limits`), it fails with SQLSTATE SJQ03. Only `Worker` claims from such queues.

    Returns the columns of `sa_jobqueue.arguments.context.ClaimedJob`, in no particular order.
    """
    given = due_parameters(queues=queues, after=after, but=but, known=known)
    # MATERIALIZED: without the fence the planner may evaluate the picking again and take more rows than LIMIT.
    picked = _due(table_of(job), given, job=job).cte("picked").prefix_with("MATERIALIZED")
    return taken(table_of(job), sa.select(picked.c.id), worker=worker, lease=lease, args_limit=args_limit)


def claim_listed(
    *, ids: Sequence[int], worker: str, lease: float, args_limit: int = INLINE_LIMIT, job: type[JobMixin] = Job
) -> sa.Update:
    """Claim those of these jobs that are due and not locked by another transaction. Returns the columns of `claim_jobs`."""
    locked = _listed(table_of(job), ids)
    return taken(table_of(job), sa.select(locked.c.id), worker=worker, lease=lease, args_limit=args_limit)


def due_jobs(
    *,
    queues: Mapping[str, int],
    after: Mapping[Slot, Point] | None = None,
    but: Sequence[int] | None = None,
    known: int | None = None,
    job: type[JobMixin] = Job,
) -> sa.Select[Any]:
    """The id and the queue of the jobs that `claim_jobs` would claim, in that order; they are locked."""
    given = due_parameters(queues=queues, after=after, but=but, known=known)
    return _due(table_of(job), given, named=True, job=job)


def lock_listed(
    *, ids: Sequence[int], queues: Sequence[str] = (), known: int | None = None, job: type[JobMixin] = Job
) -> sa.Select[Any]:
    """Lock those of these jobs that `claim_listed` would claim, and return their ids. As `claim_jobs` does, it fails if `queues`, the
    queues of the jobs, have limits that the worker has not `known`.
    """
    table = table_of(job)
    given = {"queue_names": queues, "known_limits": known}
    return sa.select(_listed(table, ids).c.id).where(knows_limits(table, table_of(companions_of(job).limit), given))


def _listed(table: sa.Table, ids: Sequence[int]) -> sa.CTE:
    columns = table.c
    return lock_in_order(
        table,
        columns.id == sa.func.any(array("listed_ids", ids, sa.BigInteger())),
        status_in(columns.status, sources(Event.CLAIM)),
        columns.run_at <= sa.func.now(),
    )


def _due(table: sa.Table, given: Mapping[str, Any], *, job: type[JobMixin], named: bool = False) -> sa.Select[Any]:
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
        .where(knows_limits(table, table_of(companions_of(job).limit), given))
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
    return (
        sa.update(table)
        .where(members(columns.id, ids))
        .values(
            status=status_literal(TRANSITIONS[JobStatus.QUEUED, Event.CLAIM]),
            # Made at each execution: a statement that is executed again must not give the token of an old claim.
            claim_token=sa.bindparam("by_token", callable_=new_token, type_=sa.BigInteger),
            # At the limit of its type a counter stays as it is, so that it does not fail the whole claim.
            claims=sa.func.least(columns.claims, sa.literal_column("2147483646")) + ONE,
            attempt=sa.func.least(columns.attempt, sa.literal_column("32766")) + ONE,
            worker=sa.bindparam("by_worker", worker, sa.Text),
            claimed_at=sa.func.now() if at is None else at,
            lease_expires_at=in_seconds(lease, name="lease_seconds"),
        )
        .returning(*_of_claim(table, args_limit))
    )


def as_claimed(id: int, *, args_limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """The row that the last claim of a job has returned, or would have. Nothing is claimed or locked."""
    table = table_of(job)
    return sa.select(*_of_claim(table, args_limit)).where(table.c.id == id)


def _of_claim(table: sa.Table, args_limit: int) -> list[sa.ColumnElement[Any]]:
    """The fields of a `ClaimedJob`."""
    columns, limit = table.c, sa.bindparam("inline_limit", args_limit, sa.Integer)
    return [
        *columns_of(columns, "id claim_token queue task priority"),
        epoch_of(columns.run_at),
        *columns_of(columns, "attempt max_attempts rescues"),
        _inline(columns.args, limit),
        _inline(columns.meta, limit),
        epoch_of(columns.created_at),
        extra_of(table),
    ]


def _inline(column: sa.Column[Any], limit: sa.ColumnElement[int]) -> sa.ColumnElement[Any]:
    """A column's JSON as text, or NULL if it is longer than `limit`.

    The stored size says little about that: 64 KiB of text may be compressed to 1, and a number of a few bytes may have
    130,000 digits. But a value whose stored size is above the limit is not converted at all; hence CASE, because AND has no
    order. OFFSET 0 is a fence: without it the text would be made twice, at three times the cost for arguments of 200 bytes.
    """
    size = sa.func.pg_column_size(column)
    text = sa.select(sa.cast(column, sa.Text).label("text")).correlate(column.table).offset(ZERO).subquery("made")
    short = sa.select(sa.case((sa.func.octet_length(text.c.text) <= limit, text.c.text))).correlate(column.table)
    return sa.case((size <= _EMPTY, sa.cast(column, sa.Text)), (size <= limit, short.scalar_subquery())).label(
        column.key
    )


# ---- Claiming jobs, and fetching the arguments that did not come along.

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


class Claims(StorePart):
    """Claiming due jobs or listed jobs; and locking them, to see what a claim would take."""

    def claim(self, connection: sa.Connection, request: ClaimRequest) -> list[ClaimedJob]:
        """Claim due jobs. Returns them in the order to run them."""
        statement = self._claim_but if request.but else self._claim
        return in_order(statement.rows(connection, claim_parameters(request)))

    def claim_these(
        self, connection: sa.Connection, ids: Sequence[int], *, worker: str, lease: float
    ) -> list[ClaimedJob]:
        """Claim those of these jobs that are due and not locked by another transaction, without their arguments and meta."""
        parameters = {"listed_ids": packed(ids)} | taken_by(worker, lease, NOTHING_INLINE)
        return in_order(self._claim_listed.rows(connection, parameters))

    def lock_due(
        self, connection: sa.Connection, queues: Mapping[str, int], *, but: Sequence[int] = (), known: int | None = None
    ) -> dict[int, str]:
        """Lock the jobs that a claim would take, until the transaction ends. Returns their queues by id, in the order of the claim.

        `known`: the versions of the limits that the worker has read.
        """
        return dict(self._due.rows(connection, due_parameters(queues=queues, but=but, known=known)))

    def lock_these(
        self, connection: sa.Connection, ids: Sequence[int], *, queues: Collection[str] = (), known: int | None = None
    ) -> list[int]:
        """Lock the due jobs among `ids`, which are in `queues`, and return their ids."""
        parameters = {"listed_ids": packed(ids), "queue_names": packed_texts(queues), "known_limits": known}
        return [row[0] for row in self._lock_listed.rows(connection, parameters)]

    def fetch_args(self, connection: sa.Connection, id: int, *, most: int = MOST_TEXT) -> Texts | None:
        """One job's arguments and meta, unless they are longer than `most` bytes as text; None if the row is gone."""
        row = connection.execute(fetch_args(id, most=most, job=self.job)).one_or_none()
        return None if row is None else Texts._make(row)

    # The values are given at each execution.

    def claim_statement(self, *, some_left_out: bool) -> sa.Update:
        """A claim to be executed often, alone or as a part of a completion."""
        return claim_jobs(worker="", queues={}, lease=0, but=[] if some_left_out else None, job=self.job)

    @cached_property
    def _claim(self) -> Compiled:
        return Compiled(self.claim_statement(some_left_out=False), binary=True)

    @cached_property
    def _claim_but(self) -> Compiled:
        return Compiled(self.claim_statement(some_left_out=True), binary=True)

    @cached_property
    def _claim_listed(self) -> Compiled:
        return Compiled(claim_listed(ids=[], worker="", lease=0, job=self.job), binary=True)

    _due = cached_property(lambda self: Compiled(due_jobs(queues={}, but=[], job=self.job), binary=True))
    _lock_listed = cached_property(lambda self: Compiled(lock_listed(ids=[], job=self.job), binary=True))


def in_order(rows: Iterable[tuple[Any, ...]]) -> list[ClaimedJob]:
    """The rows of a claim as jobs, in the order to run them."""
    jobs = list(map(ClaimedJob._make, rows))
    jobs.sort(key=_DUE)
    jobs.sort(key=_PRIORITY, reverse=True)  # keeps the order of equals
    return jobs


# ---- Whether the database or a row is to blame for an error.

#: Classes of SQLSTATE. The server, its resources or its connections are out of order; or another transaction was in the way.
_AWAY = frozenset({"08", "0A", "25", "26", "28", "3D", "40", "53", "57"})
#: The server refuses, and may not do so for good: a privilege, what a trigger misses, a damaged page, another server's failure.
_REFUSED = frozenset({"0L", "0P", "20", "24", "2B", "2F", "34", "3B", "3F", "42", "55", "58", "72", "F0", "HV", "XX"})
#: query_canceled, by `statement_timeout` for example, and lock_not_available.
_LATE = frozenset({"57014", "55P03"})
#: A row may be to blame for these, or else the server: no memory left, a statement that took too long.
_TOO_MUCH = frozenset({"53200", "57014"})


class Fault(Enum):
    """What is to blame for an error."""

    AWAY = "there is no use in asking it for anything just now"
    LATE = "a lock could not be had in time, or the statement took too long"
    REFUSED = "it answers, and refuses; the rows may be to blame, or who asks"
    ROW = "a row or its values are to blame: data, constraints, limits, and what the application's triggers raise"


def fault_of(error: DBAPIError) -> Fault:
    """What is to blame, by SQLSTATE. A code that PostgreSQL does not know, of the application's own, is the row's fault."""
    state = getattr(error.orig, "sqlstate", None) or ""
    if error.connection_invalidated or not state:
        return Fault.AWAY
    if state in _LATE:
        return Fault.LATE
    if state[:2] in _AWAY:
        return Fault.AWAY
    return Fault.REFUSED if state[:2] in _REFUSED else Fault.ROW


def is_data_fault(error: DBAPIError) -> bool:
    """Whether a row or its values are to blame."""
    return fault_of(error) is Fault.ROW


def is_too_much(error: DBAPIError) -> bool:
    """Whether a row may hold more than the server can turn into text in its time and its memory."""
    if error.connection_invalidated:
        return False
    return is_data_fault(error) or getattr(error.orig, "sqlstate", None) in _TOO_MUCH


def is_limits_changed(error: BaseException) -> bool:
    """Whether a claim failed because its worker has not read the limits that there are."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) == LIMITS_CHANGED


def is_month_missing(error: DBAPIError) -> bool:
    """Whether a job could not be moved because the archive has no partition for the month in which it finished."""
    diag = getattr(error.orig, "diag", None)
    if getattr(error.orig, "sqlstate", None) != "23514" or diag is None:
        return False
    return diag.table_name == ArchivedJob.__tablename__ and diag.constraint_name is None

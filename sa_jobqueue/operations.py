"""The I/O edge: what the worker does to the database, as functions of a `sqlalchemy.Connection`, written once.

They run in whatever transaction the connection is in, and never commit. Statements are built once per mapped class.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, StrEnum
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Connection,
    Text,
    Update,
    case,
    cast,
    column,
    delete,
    func,
    literal_column,
    select,
    table,
    text,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError

from .compiled import Compiled
from .context import ClaimedJob
from .lifecycle import Change, Claim
from .log import get_logger
from .models import Job, WorkerRow
from .statements._parts import packed
from .statements.admin import first_over, held_by, postpone_purge, prune_jobs, prune_page, release_jobs
from .statements.apply import apply_changes, apply_parameters
from .statements.claim import (
    INLINE_LIMIT,
    NOTHING_INLINE,
    Point,
    Slot,
    claim_jobs,
    claim_listed,
    claim_parameters,
    due_jobs,
    due_parameters,
    listed_parameters,
    lock_listed,
)
from .statements.complete import complete_job, complete_jobs, completion_parameters, delete_completed
from .statements.gates import channel_of, open_gates
from .statements.leases import attest_uptime, cancel_requests, expired_leases, renew_leases

__all__ = [
    "MOST_TEXT",
    "Answer",
    "Expired",
    "Fault",
    "Pruned",
    "Renewal",
    "Texts",
    "alike",
    "apply",
    "apply_one",
    "attest",
    "cancelled_among",
    "channel",
    "claim",
    "claim_these",
    "end_backend",
    "enrol",
    "exchange",
    "expired",
    "fault_of",
    "fetch_args",
    "forget_workers",
    "is_data_fault",
    "is_too_much",
    "kept_for_now",
    "leave",
    "listen_for",
    "lock_due",
    "lock_these",
    "prune",
    "prune_first",
    "release_unknown",
    "renew",
    "schema_of",
]

logger = get_logger(__name__)

_DUE = attrgetter("run_at", "id")
_PRIORITY = attrgetter("priority")
_ARGS = ClaimedJob._fields.index("args")

#: Classes of SQLSTATE. The server, its resources or its connections are out of order; a transaction of others was in the way.
_AWAY = frozenset({"08", "0A", "25", "26", "28", "3D", "40", "53", "57"})
#: It refuses, and may not do so for good: a privilege, what a trigger misses, a damaged page, another server's failure.
_REFUSED = frozenset({"0L", "0P", "20", "24", "2B", "2F", "34", "3B", "3F", "42", "55", "58", "72", "F0", "HV", "XX"})
#: query_canceled, by `statement_timeout` for one, and lock_not_available.
_LATE = frozenset({"57014", "55P03"})
#: And what a row may be to blame for, or else the server: no memory left, a statement that took too long.
_TOO_MUCH = frozenset({"53200", "57014"})
#: A completed job that a foreign key keeps from being deleted at once stays this long before pruning tries; the second
#: where it only could not be deleted in time.
_UNDELETABLE_RETAIN, _UNDELETED_RETAIN = 86_400.0, 60.0
#: Bytes of text that are fetched of a job's arguments, and of its meta, unless a worker is told otherwise.
MOST_TEXT = 64 * 2**20


class Fault(Enum):
    """What an error says of the database."""

    AWAY = "there is no use in asking it for anything just now"
    LATE = "a lock was not to be had in time, or what was asked took too long"
    REFUSED = "it answers, and refuses; the rows may be to blame, or who asks"
    ROW = "a row or its values are to blame: data, constraints, limits, and what the application's triggers raise"


class Answer(StrEnum):
    """What a fenced write says of each row."""

    APPLIED = "applied"
    LOST = "lost"
    LOCKED = "locked"


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


class Texts(NamedTuple):
    """A job's arguments and meta as JSON text, None where they are too long; and how many bytes that would be."""

    args: str | None
    meta: str | None
    args_bytes: int
    meta_bytes: int


@lru_cache
def _claim(job: type[Job], some_left_out: bool) -> Compiled:
    return Compiled(_claim_statement(job, some_left_out), binary=True)


def _claim_statement(job: type[Job], some_left_out: bool) -> Update:
    return claim_jobs(worker="", queues={}, lease=0, but=[] if some_left_out else None, job=job)


@lru_cache
def _claim_listed(job: type[Job]) -> Compiled:
    return Compiled(claim_listed(ids=[], worker="", lease=0, job=job), binary=True)


@lru_cache
def _due(job: type[Job]) -> Compiled:
    return Compiled(due_jobs(queues={}, but=[], job=job), binary=True)


@lru_cache
def _lock_listed(job: type[Job]) -> Compiled:
    return Compiled(lock_listed(ids=[], job=job), binary=True)


@lru_cache
def _apply_statement(job: type[Job], skip_locked: bool) -> Any:
    return apply_changes([], skip_locked=skip_locked, job=job)


@lru_cache
def _complete(job: type[Job]) -> Compiled:
    return Compiled(complete_jobs(ids=[], tokens=[], retain=[], job=job))


@lru_cache
def _exchange(job: type[Job], kept: bool, some_left_out: bool) -> Compiled:
    claim = _claim_statement(job, some_left_out)
    if kept:
        return Compiled(complete_jobs(ids=[], tokens=[], retain=[], claim=claim, job=job), binary=True)
    return Compiled(delete_completed(ids=[], tokens=[], claim=claim, job=job), binary=True)


@lru_cache
def _complete_one(job: type[Job]) -> Compiled:
    return Compiled(complete_job(id=0, token=0, retain=0.0, job=job))


@lru_cache
def _delete(job: type[Job]) -> Compiled:
    return Compiled(delete_completed(ids=[], tokens=[], job=job))


@lru_cache
def _renew_statement(job: type[Job]) -> Any:
    return renew_leases(ids=[], tokens=[], lease=0, job=job)


@lru_cache
def _attest_statement(job: type[Job]) -> Any:
    return attest_uptime(lease=0, outage=0, job=job)


@lru_cache
def _expired_statement(job: type[Job]) -> Any:
    return expired_leases(job=job)


@lru_cache
def _cancelled_statement(job: type[Job]) -> Any:
    return cancel_requests(ids=[], tokens=[], job=job)


def claim(
    connection: Connection,
    *,
    worker: str,
    queues: Mapping[str, int],
    lease: float,
    after: Mapping[Slot, Point] | None = None,
    but: Sequence[int] = (),
    inline: bool = True,
    job: type[Job] = Job,
) -> list[ClaimedJob]:
    """Claim at most `queues[name]` due jobs of each queue for `lease` seconds, in the order to run them.

    `but`: not these. `inline`: short arguments and meta come along. Otherwise none that is not empty: what a row holds
    cannot make it fail.
    """
    limit = INLINE_LIMIT if inline else NOTHING_INLINE
    parameters = claim_parameters(
        worker=worker, queues=queues, lease=lease, after=after, but=but or None, args_limit=limit
    )  # fmt: skip
    return _in_order(_claim(job, bool(but)).rows(connection, parameters))


def claim_these(
    connection: Connection, ids: Sequence[int], *, worker: str, lease: float, job: type[Job] = Job
) -> list[ClaimedJob]:
    """Claim these, as far as they are due and nobody else has locked them; without their arguments and meta."""
    parameters = listed_parameters(ids, worker=worker, lease=lease, args_limit=NOTHING_INLINE)
    return _in_order(_claim_listed(job).rows(connection, parameters))


def lock_due(
    connection: Connection, queues: Mapping[str, int], *, but: Sequence[int] = (), job: type[Job] = Job
) -> dict[int, str]:
    """The jobs that a claim would take, by id their queue, in its order. They are locked till the transaction ends."""
    return dict(_due(job).rows(connection, due_parameters(queues=queues, but=but)))


def lock_these(connection: Connection, ids: Sequence[int], *, job: type[Job] = Job) -> list[int]:
    """The same for those among these that are due."""
    return [row[0] for row in _lock_listed(job).rows(connection, {"listed_ids": packed(ids)})]


def _in_order(rows: Iterable[tuple[Any, ...]]) -> list[ClaimedJob]:
    jobs = list(map(ClaimedJob._make, rows))
    jobs.sort(key=_DUE)
    jobs.sort(key=_PRIORITY, reverse=True)  # keeps the order of equals
    return jobs


def exchange(
    connection: Connection,
    changes: Sequence[Change],
    *,
    worker: str,
    queues: Mapping[str, int],
    lease: float,
    after: Mapping[Slot, Point] | None = None,
    but: Sequence[int] = (),
    inline: bool = True,
    job: type[Job] = Job,
) -> tuple[dict[int, Answer], list[ClaimedJob]]:
    """Write `changes`, which are `alike`, and claim, in one statement: it can be its own transaction.

    A change that was not written has no answer, and is for `apply`.
    """
    if not changes:
        found = claim(
            connection, worker=worker, queues=queues, lease=lease, after=after, but=but, inline=inline, job=job
        )
        return {}, found
    limit = INLINE_LIMIT if inline else NOTHING_INLINE
    kept = not changes[0].deletes
    parameters = claim_parameters(
        worker=worker, queues=queues, lease=lease, after=after, but=but or None, args_limit=limit
    )  # fmt: skip
    parameters |= completion_parameters(changes, kept=kept)
    answer, *claimed = _exchange(job, kept, bool(but)).rows(connection, parameters)
    written: str | None = answer[_ARGS]
    ids = map(int, written[1:-1].split(",")) if written else ()
    return dict.fromkeys(ids, Answer.APPLIED), _in_order(claimed)


def alike(changes: Sequence[Change]) -> bool:
    """Whether one of the faster statements can write them all."""
    deletes = bool(changes) and changes[0].deletes
    return all(change.plain and change.deletes is deletes for change in changes)


def apply(connection: Connection, changes: Sequence[Change], *, job: type[Job] = Job) -> dict[int, Answer]:
    """Write `changes`, each behind its fence. Returns the answer for each job id.

    Those that say no more than "done" are written by faster statements; what is left over by them, too, is asked about.
    """
    kept = [change for change in changes if change.plain and not change.deletes]
    gone = [change for change in changes if change.plain and change.deletes] if len(kept) < len(changes) else []
    answers: dict[int, Answer] = {}
    if kept:
        ((written,),) = _complete(job).rows(connection, completion_parameters(kept))
        answers |= dict.fromkeys(written or (), Answer.APPLIED)
    if gone:
        ((written,),) = _delete(job).rows(connection, completion_parameters(gone, kept=False))
        answers |= dict.fromkeys(written or (), Answer.APPLIED)
    if len(answers) < len(changes):
        left = [change for change in changes if change.id not in answers]
        for row in connection.execute(_apply_statement(job, True), apply_parameters(left)):
            answers[row.id] = Answer(row.answer)
    return answers


def apply_one(connection: Connection, change: Change, *, job: type[Job] = Job) -> Answer:
    """Write one change in the transaction of its handler; waits for a row that somebody has locked just now.

    So it is applied, or lost: to whoever had the lock, perhaps.
    """
    if change.plain and not change.deletes:
        parameters = {"done_id": change.id, "done_token": change.claim_token, "done_retain": change.retain}
        written = bool(_complete_one(job).rows(connection, parameters))
    else:
        (row,) = connection.execute(_apply_statement(job, False), apply_parameters([change]))
        written = row.answer == Answer.APPLIED
    return Answer.APPLIED if written else Answer.LOST


def kept_for_now(change: Change, fault: Fault) -> Change:
    """What to write in place of a change that would delete its row and, for this fault, cannot."""
    return change.kept(_UNDELETED_RETAIN if fault is Fault.LATE else _UNDELETABLE_RETAIN)


def renew(connection: Connection, held: Mapping[int, int], *, lease: float, job: type[Job] = Job) -> Renewal:
    """Let the leases of `held` (id -> token) end `lease` seconds from now."""
    parameters = {**_held(held), "lease_seconds": lease}
    answers = connection.execute(_renew_statement(job), parameters).all()
    return Renewal(
        lost=frozenset(row.id for row in answers if row.answer == Answer.LOST),
        locked=frozenset(row.id for row in answers if row.answer == Answer.LOCKED),
        cancel_requested=frozenset(row.id for row in answers if row.cancel_requested),
    )


def cancelled_among(connection: Connection, held: Mapping[int, int], *, job: type[Job] = Job) -> frozenset[int]:
    """The ids among `held` (id -> token) for which a cancel was asked for."""
    return frozenset(connection.scalars(_cancelled_statement(job), _held(held)))


def _held(held: Mapping[int, int]) -> dict[str, Any]:
    return {"lease_ids": list(held), "lease_tokens": list(held.values())}


def attest(connection: Connection, *, lease: float, outage: float, job: type[Job] = Job) -> bool:
    """Bear witness that leases can be renewed now; whether they could be during the whole of the last `lease` seconds.

    What has run out since the transaction began, or before, may then be rescued. `outage`: seconds between two witnesses
    after which nobody knows.
    """
    parameters = {"lease_ms": round(lease * 1000), "lease_seconds": lease, "outage": outage}
    return bool(connection.scalar(_attest_statement(job), parameters))


def expired(connection: Connection, *, after: int = -(2**63), limit: int = 100, job: type[Job] = Job) -> list[Expired]:
    """A page of running jobs whose lease has run out, by id from `after` (exclusive) on."""
    found = connection.execute(_expired_statement(job), {"after_id": after, "page": limit}).all()
    places = _places(connection, {row.worker for row in found}) if found else {}
    return [
        Expired(
            Claim(row.id, row.claim_token, row.attempt, row.max_attempts, row.rescues), row.task, row.queue, row.worker,
            places.get(row.worker, str(row.worker)), row.claimed_at, row.overdue,
        )
        for row in found
    ]  # fmt: skip


def _places(connection: Connection, workers: Iterable[str | None]) -> dict[str | None, str]:
    """Where these workers run, or ran, as far as their rows are still there. (Any text may stand for a worker.)"""
    ids: list[uuid.UUID] = []
    for worker in workers:
        with suppress(ValueError, TypeError):
            ids.append(uuid.UUID(worker))
    rows = connection.execute(select(WorkerRow.id, WorkerRow.host, WorkerRow.pid).where(WorkerRow.id.in_(ids)))
    return {str(row.id): f"{row.host}:{row.pid}" for row in rows}


def release_unknown(
    connection: Connection, *, worker: str, known: Collection[tuple[int, int | None]], job: type[Job] = Job
) -> list[int]:
    """Give back the running jobs that bear this worker's id without being `known`, as (id, token): a commit's answer was
    lost.
    """
    return list(connection.scalars(release_jobs(held_by(worker, but=known, job=job), job=job)))


def end_backend(connection: Connection, pid: int, *, application: str, seconds: float) -> None:
    """End the server process of a connection that broke, if it is still there, and wait for that at most so long. Its last
    statement may be at work, unnoticed, and would commit.

    It has to bear this `application_name` and belong to a role of ours: the number may be another's by now.
    """
    processes = table("pg_stat_activity", column("pid"), column("application_name"), column("usesysid")).c
    ended = func.pg_terminate_backend(processes.pid, cast(int(seconds * 1000), BigInteger))
    connection.execute(
        select(ended).where(
            processes.pid == pid,
            processes.pid != func.pg_backend_pid(),
            processes.application_name == application,
            func.pg_has_role(processes.usesysid, "USAGE"),
        )
    )


def fetch_args(connection: Connection, id: int, *, most: int = MOST_TEXT, job: type[Job] = Job) -> Texts | None:
    """One job's arguments and meta, unless they are longer than `most` bytes as text; None if the row is gone."""
    columns = job.__table__.c
    made = (
        select(cast(columns.args, Text).label("args"), cast(columns.meta, Text).label("meta"))
        .where(columns.id == id)
        .offset(literal_column("0"))  # a fence: else each would be made three times
        .subquery("made")
        .c
    )
    sizes = func.octet_length(made.args), func.octet_length(made.meta)
    short = (case((size <= most, one)) for one, size in zip((made.args, made.meta), sizes, strict=True))
    row = connection.execute(select(*short, *sizes)).one_or_none()
    return None if row is None else Texts._make(row)


def fault_of(error: DBAPIError) -> Fault:
    """What is wrong, by SQLSTATE. A code of the application's own, which PostgreSQL does not know, is the row's fault."""
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
    """Whether what a row holds may be too much as text: more than the server can make, in its time and its memory."""
    if error.connection_invalidated:
        return False
    return is_data_fault(error) or getattr(error.orig, "sqlstate", None) in _TOO_MUCH


class Pruned(NamedTuple):
    """How many jobs a page of pruning has deleted, and up to which time it has come, in seconds since 1970."""

    jobs: int
    reached: float


def prune(
    connection: Connection,
    *,
    limit: int = 1_000,
    seconds: float | None = None,
    after: float = float("-inf"),
    job: type[Job] = Job,
) -> Pruned:
    """Delete at most `limit` jobs whose time to be kept is over, from those on whose time was over at `after`.

    `seconds`: after which the DELETE is given up. One row that cannot be deleted keeps the others, too: the error is raised,
    and a smaller `limit` may do; `prune_first` gets past such a row.
    """
    _refuse_soon(connection, seconds)
    gone = connection.execute(prune_page(after=after, limit=limit, job=job)).all()
    return Pruned(len(gone), max((row.purge_at for row in gone), default=after))


def prune_first(
    connection: Connection, *, seconds: float | None = None, after: float = float("-inf"), job: type[Job] = Job
) -> bool | None:
    """Delete the job whose time has been over for longest: whether it could be; None if there is none.

    One that a foreign key of the application's needs stays, and so does one that cannot be deleted in time: it is looked
    at again after a day, and is said once.
    """
    columns = job.__table__.c
    # Locked to the end: another worker may not put off the next in its place.
    first: int | None = connection.scalars(first_over(after=after, job=job)).first()
    if first is None:
        return None
    try:
        with connection.begin_nested():
            _refuse_soon(connection, seconds)
            connection.execute(prune_jobs(columns.id == first, job=job))
    except DBAPIError as error:
        if fault_of(error) is Fault.AWAY:
            raise
        connection.execute(postpone_purge(columns.id == first, by=timedelta(days=1), job=job))
        logger.warning("job %d cannot be deleted; it stays for another day: %s", first, error.orig)
        return False
    return True


def _refuse_soon(connection: Connection, seconds: float | None) -> None:
    """Let a DELETE say that it cannot be done by itself, and in time."""
    # A deferred foreign key would refuse only at the commit, and with it everything.
    connection.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))
    if seconds is not None:
        connection.execute(select(func.set_config("statement_timeout", f"{int(seconds * 1000)}ms", True)))


def listen_for(connection: Connection, queues: Sequence[str], *, seconds: float, job: type[Job] = Job) -> None:
    """Ask to be woken for `queues` during the next `seconds`."""
    connection.execute(open_gates(queues=queues, seconds=seconds, schema=schema_of(connection, job)))


def channel(connection: Connection, *, job: type[Job] = Job) -> str:
    """The channel on which wake-ups come."""
    return str(connection.scalar(channel_of(table=job.__tablename__, schema=schema_of(connection, job))))


def schema_of(connection: Connection, job: type[Job]) -> str:
    """The schema where this connection finds the table."""
    translated = connection.schema_for_object(job.__table__)  # type: ignore[arg-type]
    return translated or str(connection.dialect.default_schema_name)


def enrol(
    connection: Connection,
    worker: uuid.UUID,
    *,
    host: str,
    pid: int,
    queues: Sequence[str],
    concurrency: int,
    version: str,
) -> None:
    """Write this worker process down; also after its row was pruned while it was away."""
    values = {
        "id": worker, "host": host, "pid": pid, "queues": list(queues),
        "concurrency": concurrency, "version": version,
    }  # fmt: skip
    statement = insert(WorkerRow).values(values)
    connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_={"seen_at": func.now()}))


def forget_workers(connection: Connection, *, unseen_for: timedelta) -> int:
    """Strike off the workers that have not been seen for so long; how many they were."""
    unseen = select(WorkerRow.id).where(WorkerRow.seen_at < func.now() - unseen_for).with_for_update(skip_locked=True)
    return connection.execute(delete(WorkerRow).where(WorkerRow.id.in_(unseen))).rowcount


def leave(connection: Connection, worker: uuid.UUID) -> None:
    """Strike this worker off."""
    connection.execute(delete(WorkerRow).where(WorkerRow.id == worker))

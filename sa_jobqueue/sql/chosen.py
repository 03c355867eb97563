"""Queued jobs in the order in which they are due, oldest first, for people who look for ONE.

The indexes of claims lead to them. Each index holds lines of jobs that are ordered by their time: a line for each queue and priority of
jobs without a key, for each queue, key and priority of jobs whose key is ready, and for each queue of the other jobs. A line is read from
its front, up to a number of jobs, so it takes milliseconds, however many jobs there are. Where a line was not read to its end, jobs that
are due later than the last job read of it are not in the answer: an unread job of that line may be due before them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.orm import InstrumentedAttribute

from ..arguments.subjects import Subject
from ..models import ArchivedJob, Job, JobMixin, WorkerRow, in_schema, schema_of, status_literal
from ..rules.lifecycle import JobStatus
from .claims import PRIORITIES
from .limits.state import is_keyless, is_later, is_queued, is_ready
from .parts import ONE, array, rows, table_of
from .readings.depths import first_of_turns, queue_names

#: Queues that are read, and keys and priorities of each queue.
_QUEUES, _TURNS = 1_000, 1_000


def queued_in_order(
    *where: sa.ColumnElement[bool], queues: Collection[str] | None = None, keys: Collection[str] = (),
    times: Sequence[sa.ColumnElement[bool]] = (), after: tuple[str, int] | None = None, each: int, limit: int, job: type[JobMixin] = Job,
) -> sa.Executable:  # fmt: skip
    """A row per queued job that meets the criteria: `id`, `due` as text, `fits` and `ends`. Oldest due first.

    A row that `ends` marks how far the jobs were read: jobs behind it may fit, too. It need not fit itself. `cut`: a queue has more keys
    than were read; it comes in a row without an id where no job was found.

    `queues`, `keys`: only of these. `times`: criteria of `run_at`. `after`: begin behind the job with this time and this id. `each`: jobs that are read of a line.
    """
    table = table_of(job)
    columns = table.c
    names = queue_names(job, _QUEUES, queues)
    slot = rows("slot", priority=array("priorities", PRIORITIES, sa.SmallInteger()))
    turn = first_of_turns(job, names, columns.id, _TURNS) if not keys else _turns_of(names, keys)
    place = columns.run_at, columns.id
    behind = []
    if after is not None:
        since = sa.cast(sa.bindparam("after_time", after[0], sa.Text), sa.DateTime(timezone=True))
        behind = [sa.tuple_(*place) > sa.tuple_(since, sa.bindparam("after_id", after[1], sa.BigInteger))]

    def line(name: str, beside: Sequence[Any], *of: sa.ColumnElement[bool]) -> Any:
        number = sa.func.row_number().over(order_by=place).label("number")
        fits = sa.case((sa.and_(sa.true(), *where), sa.true()), else_=False).label("fits")
        front = sa.select(*place, number, fits).where(*of, *behind, *times).order_by(*place)
        return front.limit(sa.bindparam("each", each, sa.Integer)).correlate(*beside).lateral(name)

    of_queue = columns.queue == names.c.queue
    of_turn = columns.queue == turn.c.queue, columns.concurrency_key == turn.c.key, -columns.priority == turn.c.turn
    keyless = line("keyless", [names, slot], is_keyless(table), of_queue, columns.priority == slot.c.priority)
    later = line("later", [names], is_later(table), of_queue)
    ready = line("ready", [turn], is_ready(table), *of_turn)
    found = sa.union_all(
        sa.select(keyless).select_from(names.join(slot, sa.true()).join(keyless, sa.true())),
        sa.select(later).select_from(names.join(later, sa.true())),
        sa.select(ready).select_from(turn.join(ready, sa.true())),
    ).cte("found")
    ends = sa.select(found.c.run_at, found.c.id).where(found.c.number == sa.bindparam("each", each, sa.Integer))
    end = ends.order_by(found.c.run_at, found.c.id).limit(ONE).cte("ending")
    within = sa.or_(end.c.id.is_(None), sa.tuple_(found.c.run_at, found.c.id) <= sa.tuple_(end.c.run_at, end.c.id))
    wanted = (
        sa.select(found.c.id, found.c.run_at, found.c.fits, (found.c.id == end.c.id).label("ends"))
        .select_from(found.outerjoin(end, sa.true()))
        .where(within, sa.or_(found.c.fits, found.c.id == end.c.id))
        .order_by(found.c.run_at, found.c.id)
        .limit(sa.bindparam("most", limit, sa.Integer))
        .subquery("wanted")
    )
    many = sa.func.coalesce(sa.func.max(turn.c.number), 0) >= _TURNS
    cut = sa.select(many.label("cut")).subquery("turns")
    return (
        sa.select(wanted.c.id, sa.cast(wanted.c.run_at, sa.Text).label("due"), wanted.c.fits, wanted.c.ends, cut.c.cut)
        .select_from(cut.outerjoin(wanted, sa.true()))
        .order_by(wanted.c.run_at, wanted.c.id)
    )


def _turns_of(names: sa.CTE, keys: Collection[str]) -> sa.CTE:
    of = rows("of", key=array("keys", list(keys), sa.Text()))
    slot = rows("level", priority=array("priorities", PRIORITIES, sa.SmallInteger()))
    every = names.join(of, sa.true()).join(slot, sa.true())
    return (
        sa.select(names.c.queue, of.c.key, (-slot.c.priority).label("turn"), ONE.label("number"))
        .select_from(every)
        .cte("turn")
    )


# ---- Jobs by filters: the criteria that the command line, the dashboard and code share.

#: Jobs in their own table, or in the archive.
Jobs: TypeAlias = type[JobMixin] | type[ArchivedJob]
Moment: TypeAlias = datetime | sa.ColumnElement[datetime]


class Status(StrEnum):
    """The statuses of a job, and readings of them."""

    QUEUED = "queued"
    SCHEDULED = "scheduled"
    RETRYING = "retrying"
    DUE = "due"
    BLOCKED = "blocked"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LIVE = "live"
    FINISHED = "finished"


def reading_of(job: Jobs = Job) -> sa.ColumnElement[str]:
    """What a job is called: its status, or the reading of `queued` that fits."""
    return sa.case((job.is_retrying, "retrying"), (job.is_scheduled, "scheduled"), else_=job.status)


def error_type(job: Jobs = Job) -> sa.ColumnElement[str | None]:
    """The class of the last error of a job; NULL if the job has completed since."""
    return sa.case((job.status != status_literal(JobStatus.COMPLETED), job.errors[-1]["type"].astext))


def criteria_of(
    *,
    queue: Collection[str] = (),
    task: Collection[str] = (),
    status: Collection[Status | str] = (),
    tag: Collection[str] = (),
    subject: Collection[str] = (),
    error: Collection[str] = (),
    key: Collection[str] = (),
    workflow: Collection[int] = (),
    worker: Collection[str] = (),
    args: Mapping[str, Any] | None = None,
    since: Moment | None = None,
    older_than: timedelta | None = None,
    newer_than: timedelta | None = None,
    finished_since: Moment | None = None,
    finished_before: Moment | None = None,
    by: InstrumentedAttribute[Any] | None = None,
    job: Jobs = Job,
) -> list[sa.ColumnElement[bool]]:
    """The criteria for `select(Job).where(...)`: a criterion for each filter that is given.

    A job has any of the values of a filter, except of `tag`: it has all of them. `subject`: "Order:7", or "Order" for any row of
    that type. `error`: a class, with or without its module. `key`: the key of limits. `workflow`: its id.
    `worker`: the worker that holds the job, or held it last: "host:pid", "host" for any process there, or its id. `args`: values that the arguments have, by name.
    `by`: the time from which ages count; by default when a job was enqueued.

    Raises ValueError for a status that there is not, and for a subject that cannot be read.
    """
    time = job.created_at if by is None else by
    found: list[sa.ColumnElement[bool]] = []
    for column, values in (
        (job.queue, queue), (job.task, task), (job.concurrency_key, key), (job.workflow_id, workflow),
    ):  # fmt: skip
        if values:
            found.append(column.in_(list(values)))
    if status:
        found.append(sa.or_(*(_has(Status(name), job) for name in status)))
    if tag:
        found.append(job.meta.contains({"tags": list(tag)}))
    if subject:
        found.append(sa.or_(*(_is_about(text, job) for text in subject)))
    if error:
        found.append(sa.or_(*(_is_class(error_type(job), name) for name in error)))
    if worker:
        found.append(_is_held_by(worker, job))
    if args:
        found.append(job.args.contains(dict(args)))
    of_times: list[sa.ColumnElement[bool] | None] = [
        None if since is None else time >= since,
        None if older_than is None else time < sa.func.now() - older_than,
        None if newer_than is None else time >= sa.func.now() - newer_than,
        None if finished_since is None else job.finished_at >= finished_since,
        None if finished_before is None else job.finished_at < finished_before,
    ]
    return [*found, *(criterion for criterion in of_times if criterion is not None)]


def _has(status: Status, job: Jobs) -> Any:
    match status:
        case Status.QUEUED | Status.SCHEDULED | Status.RETRYING | Status.DUE if issubclass(job, ArchivedJob):
            return sa.false()
        case Status.QUEUED:
            return is_queued(table_of(job))
        case Status.SCHEDULED:
            return sa.and_(is_queued(table_of(job)), job.is_scheduled)
        case Status.RETRYING:
            return sa.and_(is_queued(table_of(job)), job.is_retrying)
        case Status.DUE:
            return sa.and_(is_queued(table_of(job)), job.run_at <= sa.func.now())
        case Status.LIVE:
            return job.is_live
        case Status.FINISHED:
            return job.is_finished
        case _:
            return job.status == status_literal(JobStatus(status.value))


def is_worker(name: str, worker: type[WorkerRow] = WorkerRow) -> sa.ColumnElement[bool]:
    """Whether a worker has this name: `web-1:4711`, or `web-1` for all workers of the host."""
    host, _, pid = name.rpartition(":")
    if host and pid.isascii() and pid.isdecimal() and len(pid) < 10:
        return sa.and_(worker.host == host, worker.pid == int(pid))
    return worker.host == name


def _is_held_by(names: Collection[str], job: Jobs) -> sa.ColumnElement[bool]:
    known: type[WorkerRow] = in_schema(WorkerRow, schema_of(job))
    ids = sa.select(sa.cast(known.id, sa.Text)).where(sa.or_(*(is_worker(name, known) for name in names)))
    return sa.or_(job.worker.in_(list(names)), job.worker.in_(ids))


def _is_about(text: str, job: Jobs) -> sa.ColumnElement[bool]:
    """Whether a job has this subject: `Order:7`, or `Order` for any subject of the type."""
    return job.subject == Subject.parse(text) if ":" in text else job.subject_type == text


def _is_class(column: sa.ColumnElement[str | None], name: str) -> sa.ColumnElement[bool]:
    """Whether a qualified name is that of the class `name`, which may have its module or not."""
    return sa.or_(column == name, column.endswith(f".{name}", autoescape=True))

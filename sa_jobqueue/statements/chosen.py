"""Which jobs, said in the words of a filter: the same criteria for the command line, the dashboard and code.

>>> from sa_jobqueue.models import Job
>>> len(criteria_of(status=["failed"], queue=["mail"], job=Job))
2
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.orm import InstrumentedAttribute

from ..lifecycle import JobStatus
from ..models import ArchivedJob, Job, JobMixin, WorkerRow, in_schema, schema_of, status_literal
from ..objects import Subject
from .limits import is_queued
from .parts import table_of

__all__ = ["Jobs", "Status", "criteria_of", "error_type", "is_worker", "reading_of"]

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
    """The class of the error that a job is in trouble with: its last one, unless it has completed since."""
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
    """The criteria for `select(Job).where(...)`: one for each that is given, none where none is.

    Of several values of one filter any will do, except of `tag`: a job has all of them. `subject`: "Order:7", or "Order" for any row of
    that type. `error`: a class, with or without its module. `key`: the key of limits. `workflow`: its id.
    `worker`: the one that holds the job, or held it last: "host:pid", "host" for any process there, or its id. `args`: values that the arguments have, by name.
    `by`: the time from which ages count; when a job was enqueued, unless it is said.

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
    """Whether a worker is called so: `web-1:4711`, or `web-1` as all of its host."""
    host, _, pid = name.rpartition(":")
    if host and pid.isascii() and pid.isdecimal() and len(pid) < 10:
        return sa.and_(worker.host == host, worker.pid == int(pid))
    return worker.host == name


def _is_held_by(names: Collection[str], job: Jobs) -> sa.ColumnElement[bool]:
    known: type[WorkerRow] = in_schema(WorkerRow, schema_of(job))
    ids = sa.select(sa.cast(known.id, sa.Text)).where(sa.or_(*(is_worker(name, known) for name in names)))
    return sa.or_(job.worker.in_(list(names)), job.worker.in_(ids))


def _is_about(text: str, job: Jobs) -> sa.ColumnElement[bool]:
    """Whether a job's subject is written so: `Order:7`, or `Order` for any of the type."""
    return job.subject == Subject.parse(text) if ":" in text else job.subject_type == text


def _is_class(column: sa.ColumnElement[str | None], name: str) -> sa.ColumnElement[bool]:
    """Whether a qualified name is that of the class `name`, which may have its module or not."""
    return sa.or_(column == name, column.endswith(f".{name}", autoescape=True))

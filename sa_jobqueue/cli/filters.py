"""Which jobs: the options that narrow them down, and the criteria for `select(Job).where(...)` that they make."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer
from sqlalchemy import ColumnElement, and_, case, false, func, literal, or_
from sqlalchemy.orm import InstrumentedAttribute

from sa_jobqueue.lifecycle import JobStatus
from sa_jobqueue.models import ArchivedJob, Job, status_literal
from sa_jobqueue.objects import Subject
from sa_jobqueue.statements.limits import is_queued
from sa_jobqueue.statements.parts import table_of

from .options import Options, parse_duration, parse_moment

__all__ = ["ERROR_TYPE", "PANEL", "READING", "Filters", "Queues", "Status", "error_type", "reading_of"]

Jobs = type[Job] | type[ArchivedJob]


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


def _criterion(status: Status, job: Jobs) -> Any:
    match status:
        case Status.QUEUED | Status.SCHEDULED | Status.RETRYING | Status.DUE if job is ArchivedJob:
            return false()
        case Status.QUEUED:
            return is_queued(table_of(Job))
        case Status.SCHEDULED:
            return and_(is_queued(table_of(Job)), Job.is_scheduled)
        case Status.RETRYING:
            return and_(is_queued(table_of(Job)), Job.is_retrying)
        case Status.DUE:
            return and_(is_queued(table_of(Job)), Job.run_at <= func.now())
        case Status.LIVE:
            return job.is_live
        case Status.FINISHED:
            return job.is_finished
        case _:
            return job.status == status_literal(JobStatus(status.value))


def reading_of(job: Jobs) -> ColumnElement[Any]:
    """What a job is called: its status, or the reading of `queued` that fits."""
    return case((job.is_retrying, "retrying"), (job.is_scheduled, "scheduled"), else_=job.status)


def error_type(job: Jobs) -> ColumnElement[Any]:
    """The class of the error that a job is in trouble with: its last one, unless it has completed since."""
    return case((job.status != status_literal(JobStatus.COMPLETED), job.errors[-1]["type"].astext))


READING, ERROR_TYPE = reading_of(Job), error_type(Job)

#: The heading of these options in the help.
PANEL = "Which jobs"

Queues = Annotated[
    list[str],
    typer.Option("--queue", "-q", metavar="NAME", help="Of this queue. May be repeated.", rich_help_panel=PANEL),
]


def _parse_since(text: str) -> ColumnElement[datetime]:
    """`text` as a time, of this machine where it has no zone, or as a duration before the server's now."""
    moment = parse_moment(text)
    return literal(moment) if isinstance(moment, datetime) else func.now() - moment


_filter = partial(typer.Option, rich_help_panel=PANEL)


@dataclass(frozen=True)
class Filters(Options):
    """Which jobs, by what they are: those that meet every filter; all jobs where none was given."""

    queue: Queues = field(default_factory=list)
    task: Annotated[list[str], _filter("--task", "-t", metavar="NAME", help="Of this task. May be repeated.")] = field(
        default_factory=list
    )
    status: Annotated[
        list[Status],
        _filter(
            "--status",
            "-s",
            metavar="STATUS",
            help="In this state: queued, blocked, running, completed, failed, cancelled; or in other words: scheduled "
            "(queued for later), due (queued, its time has come), retrying (queued after a failure), live (not "
            "finished), finished. May be repeated.",
        ),
    ] = field(default_factory=list)
    tag: Annotated[list[str], _filter("--tag", metavar="TEXT", help="With this tag; repeated: with each.")] = field(
        default_factory=list
    )
    subject: Annotated[
        list[str],
        _filter(
            "--subject",
            metavar="TYPE[:ID]",
            help="About this row, as Order:7, or about any row of the type Order. May be repeated.",
        ),
    ] = field(default_factory=list)
    error: Annotated[
        list[str],
        _filter(
            "--error",
            metavar="TYPE",
            help="Whose last error is of this class, with or without its module, and that have not completed since. "
            "May be repeated.",
        ),
    ] = field(default_factory=list)
    since: Annotated[
        ColumnElement[datetime] | None,
        _filter(
            metavar="TIME",
            parser=_parse_since,
            help="Enqueued (for prune: finished) since then: 2030-01-31, 2030-01-31T09:00+01:00; or within the last 2h.",
        ),
    ] = None
    older_than: Annotated[
        timedelta | None,
        _filter(
            metavar="AGE",
            parser=parse_duration,
            help="Enqueued (for prune: finished) longer ago than this: 45s, 10m, 2h, 3d, 1w.",
        ),
    ] = None
    newer_than: Annotated[
        timedelta | None,
        _filter(metavar="AGE", parser=parse_duration, help="Enqueued (for prune: finished) within this time."),
    ] = None

    def __bool__(self) -> bool:
        """Whether any filter was given."""
        return bool(self.criteria())

    def criteria(self, *, by: InstrumentedAttribute[Any] | None = None, job: Jobs = Job) -> list[ColumnElement[bool]]:
        """The criteria; none where no filter was given. `by`: the time from which ages count, by default when it was enqueued."""
        by = job.created_at if by is None else by
        found: list[ColumnElement[bool]] = []
        if self.queue:
            found.append(job.queue.in_(self.queue))
        if self.task:
            found.append(job.task.in_(self.task))
        if self.status:
            found.append(or_(*(_criterion(status, job) for status in self.status)))
        if self.tag:
            found.append(job.meta.contains({"tags": list(self.tag)}))
        if self.subject:
            found.append(or_(*(_is_about(one, job) for one in self.subject)))
        if self.error:
            found.append(or_(*(_is_class(error_type(job), name) for name in self.error)))
        if self.since is not None:
            found.append(by >= self.since)
        if self.older_than is not None:
            found.append(by < func.now() - self.older_than)
        if self.newer_than is not None:
            found.append(by >= func.now() - self.newer_than)
        return found


def _is_about(text: str, job: Jobs) -> ColumnElement[bool]:
    """Whether a job's subject is written so: `Order:7`, or `Order` for any of the type."""
    return job.subject == Subject.parse(text) if ":" in text else job.subject_type == text


def _is_class(column: ColumnElement[str | None], name: str) -> ColumnElement[bool]:
    """Whether a qualified name is that of the class `name`, which may have its module or not."""
    return or_(column == name, column.endswith(f".{name}", autoescape=True))

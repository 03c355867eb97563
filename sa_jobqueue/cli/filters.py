"""Which jobs: the options that narrow them down, and the criteria for `select(Job).where(...)` that they make."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

import sqlalchemy as sa
import typer
from sqlalchemy.orm import InstrumentedAttribute

from ..errors import ConfigurationError
from ..models import Job, WorkerRow
from ..sql.chosen import Jobs, Status, criteria_of, error_type, is_worker, reading_of
from .config import Options, parse_duration, parse_moment, parse_workflow

#: What a job is called, and the class of its error.
READING, ERROR_TYPE = reading_of(), error_type()

#: The heading of these options in the help.
PANEL = "Which jobs"

Queues = Annotated[
    list[str],
    typer.Option("--queue", "-q", metavar="NAME", help="Of this queue. May be repeated.", rich_help_panel=PANEL),
]


def _parse_since(text: str) -> sa.ColumnElement[datetime]:
    """`text` as a time, of this machine where it has no zone, or as a duration before the server's now."""
    moment = parse_moment(text)
    return sa.literal(moment) if isinstance(moment, datetime) else sa.func.now() - moment


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
    key: Annotated[list[str], _filter("--key", metavar="KEY", help="With this key of limits. May be repeated.")] = (
        field(default_factory=list)
    )
    workflow: Annotated[
        list[int],
        _filter("--workflow", metavar="ID", parser=parse_workflow, help="Of this workflow. May be repeated."),
    ] = field(default_factory=list)
    worker: Annotated[
        list[str],
        _filter(
            "--worker",
            metavar="WORKER",
            help="Held, or held last, by this worker: HOST:PID as `workers` shows it, a HOST, or its id. A worker that has left is found by its id alone. May be repeated.",
        ),
    ] = field(default_factory=list)
    since: Annotated[
        sa.ColumnElement[datetime] | None,
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
    finished_since: Annotated[
        sa.ColumnElement[datetime] | None,
        _filter(
            metavar="TIME",
            parser=_parse_since,
            help="Ended since then: a time, or a duration before now, as of --since.",
        ),
    ] = None
    finished_before: Annotated[
        sa.ColumnElement[datetime] | None, _filter(metavar="TIME", parser=_parse_since, help="Ended before then.")
    ] = None

    def __bool__(self) -> bool:
        """Whether any filter was given."""
        return bool(self.criteria())

    def check_workers(self, connection: sa.Connection) -> None:
        """Refuse a HOST:PID that no worker has: the row of a worker goes when it leaves, and its jobs have its id alone."""
        for name in self.worker:
            if ":" in name and connection.scalar(sa.select(WorkerRow.id).where(is_worker(name)).limit(1)) is None:
                raise ConfigurationError(
                    f"no worker {name} is known: `sa-jobqueue workers` lists those that are. Jobs of a worker that has left are found by its "
                    "id, which `sa-jobqueue show ID` of a job prints"
                )

    def criteria(
        self, *, by: InstrumentedAttribute[Any] | None = None, job: Jobs = Job
    ) -> list[sa.ColumnElement[bool]]:
        """The criteria; none where no filter was given. `by`: the time from which ages count, by default when it was enqueued."""
        return criteria_of(**{option.name: getattr(self, option.name) for option in fields(Filters)}, by=by, job=job)

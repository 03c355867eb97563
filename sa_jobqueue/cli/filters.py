"""Options that choose jobs, and the criteria for `select(Job).where(...)` that they make."""

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
from ..sql.chosen import Jobs, Status, criteria_of, is_worker, reading_of
from .config import Options, duration_option, parse_moment, parse_workflow

READING = reading_of()

#: The heading of these options in the help.
PANEL = "Which jobs"

Queues = Annotated[
    list[str],
    typer.Option("--queue", "-q", metavar="NAME", help="Of this queue. Can be repeated.", rich_help_panel=PANEL),
]


def _parse_since(text: str) -> sa.ColumnElement[datetime]:
    """Parse a time, in this machine's zone if it names none, or a duration before the server's now."""
    moment = parse_moment(text)
    return sa.literal(moment) if isinstance(moment, datetime) else sa.func.now() - moment


_filter, _age = (partial(option, rich_help_panel=PANEL) for option in (typer.Option, duration_option))
_when = partial(_filter, metavar="TIME", parser=_parse_since)


@dataclass(frozen=True)
class Filters(Options):
    """The jobs that meet every given filter; all jobs if no filter is given."""

    queue: Queues = field(default_factory=list)
    task: Annotated[list[str], _filter("--task", "-t", metavar="NAME", help="Of this task. Can be repeated.")] = field(
        default_factory=list
    )
    status: Annotated[
        list[Status],
        _filter(
            "--status",
            "-s",
            metavar="STATUS",
            help="In this state: queued, blocked, running, completed, failed, cancelled; or scheduled (queued for later), due "
            "(queued, its time has come), retrying (queued after a failure), live (not finished), finished. Can be repeated.",
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
            help="About this row, as in Order:7, or any row of type Order. Can be repeated.",
        ),
    ] = field(default_factory=list)
    error: Annotated[
        list[str],
        _filter(
            "--error",
            metavar="TYPE",
            help="Whose last error has this class and that have not completed since. Can be repeated.",
        ),
    ] = field(default_factory=list)
    key: Annotated[list[str], _filter("--key", metavar="KEY", help="With this key of limits. Can be repeated.")] = (
        field(default_factory=list)
    )
    workflow: Annotated[
        list[int], _filter("--workflow", metavar="ID", parser=parse_workflow, help="Of this workflow. Can be repeated.")
    ] = field(default_factory=list)
    worker: Annotated[
        list[str],
        _filter(
            "--worker",
            metavar="WORKER",
            help="Held, or last held, by this worker: HOST:PID as `workers` shows it, a HOST, or its id; after it has left, its id. Can be repeated.",
        ),
    ] = field(default_factory=list)
    since: Annotated[
        sa.ColumnElement[datetime] | None,
        _when(help="Enqueued (for prune: finished) since: 2030-01-31, 2030-01-31T09:00+01:00; or within the last 2h."),
    ] = None
    older_than: Annotated[
        timedelta | None, _age(metavar="AGE", help="Enqueued (for prune: finished) longer ago: 45s, 10m, 2h, 3d, 1w.")
    ] = None
    newer_than: Annotated[
        timedelta | None, _age(metavar="AGE", help="Enqueued (for prune: finished) within this time.")
    ] = None
    finished_since: Annotated[
        sa.ColumnElement[datetime] | None, _when(help="Ended since then: a time, or a duration before now.")
    ] = None
    finished_before: Annotated[sa.ColumnElement[datetime] | None, _when(help="Ended before then.")] = None

    def __bool__(self) -> bool:
        """Whether any filter was given."""
        return bool(self.criteria())

    def check_workers(self, connection: sa.Connection) -> None:
        """Refuse an unknown HOST:PID: the row of a worker goes when the worker leaves, and its jobs only have its id."""
        for name in self.worker:
            if ":" in name and connection.scalar(sa.select(WorkerRow.id).where(is_worker(name)).limit(1)) is None:
                raise ConfigurationError(
                    f"no worker {name} is known: `sa-jobqueue workers` lists the known workers. If it has left, give its id, which "
                    "`sa-jobqueue show ID` prints for each of its jobs"
                )

    def criteria(
        self, *, by: InstrumentedAttribute[Any] | None = None, job: Jobs = Job
    ) -> list[sa.ColumnElement[bool]]:
        """The criteria; none without filters. `by`: the time from which ages count, by default when the job was enqueued."""
        return criteria_of(**{option.name: getattr(self, option.name) for option in fields(Filters)}, by=by, job=job)

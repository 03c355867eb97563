"""Which jobs: options that choose them, as criteria for `select(Job).where(...)`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

import typer
from sqlalchemy import ColumnElement, and_, case, func, or_
from sqlalchemy.orm import InstrumentedAttribute

from sa_jobqueue.lifecycle import JobStatus
from sa_jobqueue.models import Job, status_literal

__all__ = [
    "ERROR_TYPE", "PANEL", "READING", "Chosen", "Queues", "Status", "parse_duration", "parse_id",
]  # fmt: skip

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_DURATION = re.compile(rf"(?:{_PART.pattern})+", re.IGNORECASE)


def parse_duration(text: str | timedelta) -> timedelta:
    """`text` as a duration: "90" seconds, "45s", "10m", "2h", "3d", "1w", "1h30m". For Typer: `parser=parse_duration`."""
    if isinstance(text, timedelta):
        return text
    try:
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return timedelta(seconds=float(text))
        if _DURATION.fullmatch(text):
            return timedelta(seconds=sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(text.lower())))
    except OverflowError:
        pass
    raise typer.BadParameter(f"{text!r} is not a duration; expected 45s, 10m, 2h, 3d, 1w or 1h30m")


def parse_since(text: str | timedelta | datetime) -> timedelta | datetime:
    """`text` as a time, of this machine where it has no zone, or as a duration before now. For Typer."""
    if not isinstance(text, str):
        return text
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        pass
    try:
        return parse_duration(text)
    except typer.BadParameter:
        raise typer.BadParameter(
            f"{text!r} is neither a time, as in 2030-01-31 or 2030-01-31T09:00+01:00, nor a duration, as in 45s, 10m, 2h, 3d"
        ) from None


def parse_id(text: str | int) -> int:
    """`text` as the number of a job. For Typer: `parser=parse_id`."""
    try:
        number = int(text)
    except ValueError:
        raise typer.BadParameter(f"{str(text)[:80]!r} is not a job's number") from None
    if not -(2**63) <= number < 2**63:
        raise typer.BadParameter(f"{str(text)[:80]!r} is not a job's number: no job has more than 19 digits")
    return number


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


def _criterion(status: Status) -> Any:
    match status:
        case Status.SCHEDULED:
            return Job.is_scheduled
        case Status.RETRYING:
            return Job.is_retrying
        case Status.DUE:
            return and_(Job.status == status_literal(JobStatus.QUEUED), Job.run_at <= func.now())
        case Status.LIVE:
            return Job.is_live
        case Status.FINISHED:
            return Job.is_finished
        case _:
            return Job.status == status_literal(JobStatus(status.value))


#: What a job is called: its status, or the reading of `queued` that fits.
READING = case((Job.is_retrying, "retrying"), (Job.is_scheduled, "scheduled"), else_=Job.status)

#: The class of the error that a job is in trouble with: its last one, unless it has completed since.
ERROR_TYPE = case((Job.status != status_literal(JobStatus.COMPLETED), Job.errors[-1]["type"].astext))

#: The heading of these options in the help.
PANEL = "Which jobs"

Queues = Annotated[
    list[str],
    typer.Option("--queue", "-q", metavar="NAME", help="Of this queue. May be repeated.", rich_help_panel=PANEL),
]

_OPTIONS: Mapping[str, tuple[Any, Any]] = {
    "queue": (Queues, []),
    "task": (
        Annotated[
            list[str],
            typer.Option("--task", "-t", metavar="NAME", help="Of this task. May be repeated.", rich_help_panel=PANEL),
        ],
        [],
    ),
    "status": (
        Annotated[
            list[Status],
            typer.Option(
                "--status",
                "-s",
                metavar="STATUS",
                help="In this state: queued, blocked, running, completed, failed, cancelled; or in other words: scheduled "
                "(queued for later), due (queued, its time has come), retrying (queued after a failure), live (not "
                "finished), finished. May be repeated.",
                rich_help_panel=PANEL,
            ),
        ],
        [],
    ),
    "tag": (
        Annotated[
            list[str],
            typer.Option("--tag", metavar="TEXT", help="With this tag; repeated: with each.", rich_help_panel=PANEL),
        ],
        [],
    ),
    "error": (
        Annotated[
            list[str],
            typer.Option(
                "--error",
                metavar="TYPE",
                help="Whose last error is of this class, with or without its module, and that have not completed since. "
                "May be repeated.",
                rich_help_panel=PANEL,
            ),
        ],
        [],
    ),
    "since": (
        Annotated[
            datetime | None,
            typer.Option(
                metavar="TIME",
                parser=parse_since,
                help="Enqueued (for prune: finished) since then: 2030-01-31, 2030-01-31T09:00+01:00; or within the last 2h.",
                rich_help_panel=PANEL,
            ),
        ],
        None,
    ),
    "older_than": (
        Annotated[
            timedelta | None,
            typer.Option(
                metavar="AGE",
                parser=parse_duration,
                help="Enqueued (for prune: finished) longer ago than this: 45s, 10m, 2h, 3d, 1w.",
                rich_help_panel=PANEL,
            ),
        ],
        None,
    ),
    "newer_than": (
        Annotated[
            timedelta | None,
            typer.Option(
                metavar="AGE",
                parser=parse_duration,
                help="Enqueued (for prune: finished) within this time.",
                rich_help_panel=PANEL,
            ),
        ],
        None,
    ),
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The jobs that somebody chose by what they are; all jobs where nothing was said."""

    options: ClassVar[Mapping[str, tuple[Any, Any]]] = _OPTIONS

    queue: Sequence[str] = ()
    task: Sequence[str] = ()
    status: Sequence[Status] = ()
    tag: Sequence[str] = ()
    error: Sequence[str] = ()
    since: datetime | timedelta | None = None
    older_than: timedelta | None = None
    newer_than: timedelta | None = None

    @classmethod
    def from_options(cls, **given: Any) -> Self:
        """From what Typer found."""
        return cls(**given)

    def __bool__(self) -> bool:
        """Whether anything was said."""
        return bool(self.criteria())

    def criteria(self, *, by: InstrumentedAttribute[Any] = Job.created_at) -> list[ColumnElement[bool]]:
        """As criteria; none for all jobs. `by`: the time from which ages count."""
        found: list[ColumnElement[bool]] = []
        if self.queue:
            found.append(Job.queue.in_(self.queue))
        if self.task:
            found.append(Job.task.in_(self.task))
        if self.status:
            found.append(or_(*(_criterion(status) for status in self.status)))
        if self.tag:
            found.append(Job.meta.contains({"tags": list(self.tag)}))
        if self.error:
            found.append(or_(*(_is_class(ERROR_TYPE, name) for name in self.error)))
        if self.since is not None:
            found.append(by >= (self.since if isinstance(self.since, datetime) else func.now() - self.since))
        if self.older_than is not None:
            found.append(by < func.now() - self.older_than)
        if self.newer_than is not None:
            found.append(by >= func.now() - self.newer_than)
        return found


def _is_class(column: ColumnElement[str | None], name: str) -> ColumnElement[bool]:
    """Whether a qualified name is that of the class `name`, which may have its module or not."""
    return or_(column == name, column.endswith(f".{name}", autoescape=True))

"""The timeline of a job, as a drawing and as a list: enqueued, waited, ran, failed, ran again, ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ..health.one_job import JobSeen, StepSeen
from ..rules.lifecycle import FINISHED, JobStatus
from .render import Failure

#: The width of the drawing.
WIDTH = 1_000
#: The least width of a visible bar.
_LEAST = 5

_COLOURS = {
    JobStatus.COMPLETED: "good",
    JobStatus.FAILED: "bad",
    JobStatus.CANCELLED: "stop",
    JobStatus.RUNNING: "busy",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of the line."""

    kind: str
    """Its colour: wait, busy, good, bad, stop, later."""
    x: int
    width: int
    label: str


@dataclass(frozen=True, slots=True)
class Moment:
    """An event, its time, and the time since the previous event."""

    at: datetime
    what: str
    detail: str = ""
    after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """The line and the list."""

    bars: Sequence[Bar]
    moments: Sequence[Moment]
    waited: timedelta | None
    """How long it had been due at the start of its last attempt."""
    ran: timedelta | None
    """How long that attempt ran, or has been running."""


def timeline_of(
    seen: JobSeen, failures: Sequence[Failure], steps: Sequence[StepSeen] = (), waits: Sequence[Mapping[str, Any]] = ()
) -> Timeline:
    """The timeline of a job. `failures`: the entries of its errors, last first. `waits`: the wait in which it is suspended."""
    job, now = seen.job, seen.now
    failed = [failure for failure in reversed(failures) if failure.at is not None]
    end = _end_of_run(job, now, failed)
    ran = None if job.claimed_at is None or end is None or end < job.claimed_at else end - job.claimed_at
    waited = None
    if ran is not None and job.claimed_at >= job.run_at:
        waited = job.claimed_at - job.run_at
    return Timeline(_bars(job, now, failed, end, steps), _moments(job, failed, steps, waits), waited, ran)


def _end_of_run(job: Any, now: datetime, failed: Sequence[Failure]) -> datetime | None:
    """The end of the last attempt; now if it is running. A job that has failed may have been retried and cancelled since."""
    if job.claimed_at is None:
        return None
    if job.status is JobStatus.RUNNING:
        return now
    ended = [failure.at for failure in failed if failure.at is not None and failure.at >= job.claimed_at]
    if job.finished_at is not None and job.finished_at >= job.claimed_at:
        ended = [job.finished_at] if job.status is JobStatus.COMPLETED else [*ended, job.finished_at]
    return ended[0] if ended else None


def _bars(
    job: Any, now: datetime, failed: Sequence[Failure], end: datetime | None, steps: Sequence[StepSeen]
) -> list[Bar]:
    first = job.created_at
    is_later = job.status is JobStatus.QUEUED and job.run_at > now
    last = max(first, job.finished_at or (job.run_at if is_later else now))
    whole = (last - first).total_seconds()

    def place(at: datetime) -> int:
        if whole <= 0:
            return 0
        share: float = (at - first).total_seconds() / whole
        return round(min(max(share, 0.0), 1.0) * WIDTH)

    def bar(kind: str, begin: datetime, until: datetime, label: str) -> Bar:
        x = min(place(begin), WIDTH - _LEAST)
        return Bar(kind, x, max(place(until) - x, _LEAST), label)

    bars = [Bar("wait", 0, WIDTH, "waited")]
    if is_later:
        bars.append(bar("later", max(now, first), last, "waits for its time"))
    if end is not None:
        kind = _COLOURS.get(job.status, "bad")
        bars.append(bar(kind, job.claimed_at, end, f"attempt {job.attempt} ran"))
    bars += [
        bar("step", step.ended_at - timedelta(seconds=step.took or 0.0), step.ended_at, step.name) for step in steps
    ]
    for failure in failed:
        x = min(place(failure.at), WIDTH - _LEAST)
        bars.append(Bar("bad", x, _LEAST, f"attempt {failure.attempt} ended: {failure.name}"))
    return bars


def _beginning(wait: Mapping[str, Any]) -> Moment:
    if wait["signal"] is None:
        return Moment(wait["since"], "began to wait in step", wait["step"])
    return Moment(wait["since"], "began to wait for signal", wait["signal"])


def _moments(
    job: Any, failed: Sequence[Failure], steps: Sequence[StepSeen], waits: Sequence[Mapping[str, Any]]
) -> list[Moment]:
    found = [Moment(job.created_at, "enqueued")]
    found += [Moment(step.ended_at, "step recorded", step.name) for step in steps]
    found += [Moment(error.at, f"attempt {error.attempt} ended", error.name) for error in failed]
    found += [_beginning(wait) for wait in waits]
    if job.claimed_at is not None:
        # Only the last claim of a suspended attempt is known.
        before = max([job.created_at, *(error.at for error in failed if error.at <= job.claimed_at)])
        went_on = job.claims > 1 and any(before <= step.ended_at < job.claimed_at for step in steps)
        found.append(Moment(job.claimed_at, f"attempt {max(job.attempt, 1)} {'went on' if went_on else 'started'}"))
    if job.cancel_requested_at is not None:
        found.append(Moment(job.cancel_requested_at, "cancel asked for"))
    if job.finished_at is not None:
        found.append(Moment(job.finished_at, str(job.status)))
        if job.archived_at is not None:
            found.append(Moment(job.archived_at, "moved to the archive"))
    elif job.status is JobStatus.QUEUED and job.run_at > job.created_at:
        found.append(Moment(job.run_at, "due"))
    if job.status not in FINISHED:
        ends = {
            "expires, if it has not started": job.expires_at,
            "deadline": job.deadline_at,
            "lease ends": job.lease_expires_at,
        }
        found += [Moment(at, what) for what, at in ends.items() if at is not None]
    # Stable: events of the same time keep their order.
    found.sort(key=lambda moment: moment.at)
    return [
        Moment(moment.at, moment.what, moment.detail, None if before is None else moment.at - before.at)
        for before, moment in zip([None, *found], found, strict=False)
    ]

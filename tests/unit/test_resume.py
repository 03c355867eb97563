"""Where claims go on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.worker.claiming import shortage as resume
from sa_jobqueue.worker.claiming.shortage import ResumePoints

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(resume, "monotonic", clock)
    return clock


def job(id: int, *, at: int = 0, queue: str = "default", priority: int = 4) -> ClaimedJob:
    due = NOON + at
    return ClaimedJob(id, 1, queue, "task", priority, due, 1, 10, 0, "{}", "{}", due)


def claim(points: ResumePoints, *jobs: ClaimedJob, took: float = 0.01, queues: Sequence[str] = ("default",)) -> object:
    """One claim: behind which points it was, and what it found."""
    after = points.begin(queues)
    seen = None if after is None else dict(after)
    points.end(queues, jobs, took, swept=after is None)
    return seen


def test_claims_go_on_behind_the_last_job_of_each_slot(clock: Clock) -> None:
    """A slot is a queue and a priority; each has a point of its own."""
    points = ResumePoints()

    first = claim(points, job(7, priority=9), job(1), job(2), job(3, at=1, queue="mail"))
    second = claim(points, job(4, at=2))
    third = claim(points)

    assert first is None
    assert second == {
        ("default", 9): (NOON, 7),
        ("default", 4): (NOON, 2),
        ("mail", 4): (NOON + 1, 3),
    }
    assert isinstance(third, dict)
    assert third["default", 4] == (NOON + 2, 4)


@pytest.mark.parametrize(("took", "pause"), [(0.0001, 0.05), (0.01, 0.2), (3.0, 0.8)])
def test_a_claim_from_the_front_sets_the_time_of_the_next_by_what_it_took(
    clock: Clock, took: float, pause: float
) -> None:
    """A twentieth of the time at most, and within a second whatever it takes."""
    points = ResumePoints()
    claim(points, job(1), took=took)

    clock.now += pause - 0.001
    before = claim(points, job(2), took=9.0)
    clock.now += 0.002
    after = claim(points, job(3), took=took)

    assert before is not None
    assert after is None


def test_jobs_that_become_visible_behind_a_point_are_claimed(clock: Clock) -> None:
    """The point stays where it was, and each claim begins at the front as long as that finds something."""
    points = ResumePoints()
    claim(points, job(50, at=50))
    clock.now += 1

    late = [claim(points, job(id, at=id)) for id in (10, 11)]
    past = claim(points, job(51, at=51))
    then = claim(points)

    assert late == [None, None]
    assert past is None
    assert then == {("default", 4): (NOON + 51, 51)}


def test_a_claim_that_finds_nothing_moves_no_point(clock: Clock) -> None:
    """And a worker that has claimed nothing yet begins at the front."""
    points = ResumePoints()

    assert claim(points) is None
    assert claim(points) is None
    claim(points, job(1))
    assert claim(points) == claim(points) == {("default", 4): (NOON, 1)}


def test_a_slower_queue_begins_at_the_front_again_too(clock: Clock) -> None:
    """A sweep of the queues that were wanted just then is none of those that were not."""
    points = ResumePoints()
    claim(points, job(1), job(2, queue="mail"), queues=["default", "mail"])
    clock.now += 1

    swept = claim(points, job(3, queue="mail"), queues=["mail"])
    again = claim(points, job(4, queue="mail"), queues=["mail"])
    late = claim(points, queues=["default", "mail"])
    then = claim(points, queues=["default", "mail"])

    assert [swept, late] == [None, None]
    assert isinstance(again, dict)
    assert isinstance(then, dict)

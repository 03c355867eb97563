"""For how long a job of an unknown task goes back, and how often that is said."""

from __future__ import annotations

import pytest

from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.worker.claiming import intake as unknown
from sa_jobqueue.worker.claiming.intake import UnknownTasks
from tests.unit.test_resume import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(unknown, "monotonic", clock)
    return clock


def job(task: str) -> ClaimedJob:
    return ClaimedJob(1, 1, "default", task, 4, 0.0, 1, 10, 0, "{}", "{}", 0.0)


def test_jobs_of_a_task_go_back_for_as_long_as_it_has_been_unknown(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """At first for what is set, later for five minutes; each task by itself, and each is said once."""
    tasks = UnknownTasks(15.0)

    seconds = []
    for _ in range(8):
        seconds.append(tasks.seconds(job("new")))
        clock.now += seconds[-1]

    assert seconds == [15, 15, 30, 60, 120, 240, 300, 300]
    assert tasks.seconds(job("another")) == 15
    assert [caplog.text.count(f"no task named {name!r}") for name in ("new", "another")] == [1, 1]


def test_a_task_whose_jobs_came_no_more_is_new_when_one_comes_again(clock: Clock) -> None:
    """That of the last deployment, a week ago, says nothing of this one."""
    tasks = UnknownTasks(15.0)
    tasks.seconds(job("new"))
    assert tasks.names() == ["new"]
    clock.now += 604_800

    assert tasks.names() == []
    assert tasks.seconds(job("new")) == 15


@pytest.mark.parametrize(("first", "longest"), [(0.0, 300.0), (3_600.0, 3_600.0)])
def test_the_first_delay_may_be_longer_than_the_last_or_none(clock: Clock, first: float, longest: float) -> None:
    """It is what was set, whatever that is."""
    tasks = UnknownTasks(first)

    seconds = []
    for _ in range(9):
        seconds.append(tasks.seconds(job("new")))
        clock.now += 50

    assert (seconds[0], seconds[-1]) == (first, longest)


def test_names_without_end_are_neither_all_kept_nor_all_said(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """They come out of rows; those beyond a thousand count as one."""
    tasks = UnknownTasks(15.0)

    for number in range(5_000):
        assert tasks.seconds(job(f"task {number}")) == 15

    assert caplog.text.count("no task named") == 1_001

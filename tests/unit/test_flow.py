"""Arrivals from differences of the backlog, and the verdict whether workers keep up."""

from __future__ import annotations

from typing import Any

import pytest

from sa_jobqueue.health.backlog import Depth, Flow

HOUR = 3_600.0


def flow(*depths: Any, left: list[int], seconds: float = 60.0) -> Flow:
    """Steps between these depths: due jobs, or None where nothing was counted."""
    counted = [Depth(due=depth, oldest=1.0) if isinstance(depth, int) else depth for depth in depths]
    return Flow([seconds] * len(left), counted, left)


@pytest.mark.parametrize(
    ("depths", "left", "arrived"),
    [
        ((0, 5, 5), [10, 10], [15, 10]),
        ((10, 0), [10], [0]),
        ((Depth(running=2), Depth(due=3)), [4], [5]),  # a job that is claimed, or goes back, does not arrive
        ((0, None, 6), [1, 1], [4, 4]),  # no count: both steps have their share
        ((None, 5, 5), [10, 10], [None, 10]),
        ((5, Depth(due=9, more=True), Depth(due=9, more=True)), [1, 1], [None, None]),
        ((0, 20, 0, 0), [0, 10, 10], [20, 0, 0]),  # outcomes of the second step that were counted in the third
        ((500, 3, 5, 6), [0, 1, 1], [0, 0, 2]),  # an operator has cancelled most of them
    ],
)
def test_what_arrived_is_what_left_and_what_there_is_more(depths: Any, left: list[int], arrived: list[Any]) -> None:
    assert flow(*depths, left=left).arrived == arrived


OLD = Depth(due=240, oldest=HOUR)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (flow(None, left=[]), "Not known yet: workers count once a minute how many jobs wait."),
        (flow(0, 0, left=[60], seconds=HOUR), "Keeps up: 60 in, 60 out in 1h; nothing waits."),
        (
            flow(0, Depth(20, oldest=70.0), left=[1_180], seconds=24 * HOUR),
            "Keeps up: 1,200 in, 1,180 out in 1d; 20 wait, the oldest for 1m 10s.",
        ),
        (flow(0, OLD, left=[60], seconds=2 * HOUR), "Falls behind: 300 in, 60 out in 2h; grows by 120 an hour."),
        (flow(OLD, OLD, left=[0], seconds=HOUR), "Falls behind: 0 in, 0 out in 1h; 240 wait, the oldest for 1h."),
        (
            flow(Depth(9_900, oldest=2 * HOUR), Depth(10_000, oldest=3 * HOUR), left=[9_900], seconds=HOUR),
            "Falls behind: 10,000 in, 9,900 out in 1h; grows by 100 an hour.",
        ),
        (
            flow(Depth(9_950, oldest=3 * HOUR), Depth(10_000, oldest=3 * HOUR), left=[9_950], seconds=HOUR),
            "Keeps up: 10,000 in, 9,950 out in 1h; 10,000 wait, the oldest for 3h.",
        ),
        (flow(300, OLD, left=[90], seconds=HOUR), "Keeps up: 30 in, 90 out in 1h; empty in 4h at this rate."),
        (flow(0, Depth(running=9), left=[0], seconds=HOUR), "Keeps up: 9 in, 0 out in 1h; nothing waits."),
        (
            flow(Depth(99, oldest=HOUR, more=True), Depth(99, oldest=2 * HOUR, more=True), left=[5], seconds=HOUR),
            "Falls behind: at least 99 wait, the oldest for 2h, 1h longer than 1h before.",
        ),
        (
            flow(Depth(99, oldest=2 * HOUR, more=True), Depth(40, oldest=HOUR), left=[5], seconds=HOUR),
            "Keeps up: 40 wait, the oldest for 1h, 1h less than 1h before.",
        ),
    ],
)
def test_a_verdict_is_said_with_its_numbers(found: Flow, words: str) -> None:
    assert found.verdict().words == words


def test_workers_that_fell_behind_within_the_last_hour_are_told_of_in_a_day() -> None:
    """A time that a viewer has chosen does not say so, nor does a day with a good last hour."""
    day = {"left": [100] * 95 + [0], "seconds": 900.0}
    stopped = flow(*[0] * 96, Depth(due=100, oldest=900.0), **day)
    assert stopped.verdict(time="24h").words == "Falls behind: 400 in, 300 out in 1h; grows by 100 an hour."
    assert stopped.verdict().state == flow(*[0] * 97, **day).verdict(time="24h").state == "keeps up"


def test_a_paused_queue_is_not_said_to_fall_behind() -> None:
    """It grows, because an operator wants it to wait."""
    verdict = flow(0, OLD, left=[0], seconds=HOUR).verdict(paused=True)
    assert (verdict.state, verdict.words) == ("paused", "Paused: 240 in, 0 out in 1h; grows by 240 an hour.")


def test_the_time_is_that_of_all_steps_although_the_last_is_not_counted_yet() -> None:
    assert flow(0, 0, None, left=[7, 3]).verdict(time="24h").words == "Keeps up: 7 in, 7 out in 24h; nothing waits."
    assert (
        flow(None, None, 0, 0, left=[7, 3, 2]).verdict(time="24h").words.endswith("2 in, 2 out in 1m; nothing waits.")
    )

"""Which ticks of a schedule become jobs after a worker was late, and which are left out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_jobqueue.rules.schedules import MOST_COUNTED, Missed, due_ticks, every, rule_of

SEVEN = datetime(2026, 3, 2, 7, tzinfo=UTC)
HOURLY = rule_of("0 * * * *")


def hours(number: float) -> timedelta:
    return timedelta(hours=number)


# missed, catch_up in hours, hours after 7:00 -> (hour, number) of each job, hour of the next tick, ticks left out
CASES: dict[str, tuple[Missed, float | None, float, list[tuple[int, int]], int, int]] = {
    "nothing is due": ("once", None, -0.01, [], 7, 0),
    "in time": ("once", None, 0.0, [(7, 1)], 8, 0),
    "one that came late": ("once", None, 0.9, [(7, 1)], 8, 0),
    "one job for four": ("once", None, 3.5, [(10, 4)], 11, 0),
    "one job for those that are not too old": ("once", 1.6, 3.5, [(10, 2)], 11, 2),
    "all are too old": ("once", 0.25, 3.5, [], 11, 4),
    "as old as may be": ("once", 3.5, 3.5, [(10, 4)], 11, 0),
    "in time, and none is kept": ("skip", None, 0.0, [(7, 1)], 8, 0),
    "in time by a little": ("skip", None, 1 / 60, [(7, 1)], 8, 0),
    "no longer in time": ("skip", None, 1 / 59, [], 8, 1),
    "only the last one is in time": ("skip", None, 3.0, [(10, 1)], 11, 3),
    "none is in time": ("skip", None, 3.5, [], 11, 4),
    "none is in time, and some are too old": ("skip", 1.6, 3.5, [], 11, 4),
    "each": ("all", None, 2.5, [(7, 1), (8, 1), (9, 1)], 10, 0),
    "each that is not too old": ("all", 1.6, 2.5, [(8, 1), (9, 1)], 10, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_due(case: str) -> None:
    """By what `missed` and `catch_up` say."""
    missed, catch_up, late, jobs, next_hour, left_out = CASES[case]
    due = due_ticks(
        HOURLY, SEVEN, SEVEN + hours(late), missed=missed, catch_up=None if catch_up is None else hours(catch_up)
    )
    assert [(at.hour, number) for at, number in due.ticks] == jobs
    assert (due.next_at, due.left_out, due.goes_on) == (SEVEN.replace(hour=next_hour), left_out, False)


def test_many_come_in_parts() -> None:
    """Each part goes on where the one before has ended."""
    ticks: list[datetime] = []
    due = due_ticks(HOURLY, SEVEN, SEVEN + hours(9.5), missed="all", most=4)
    while due.goes_on:
        ticks += [at for at, _ in due.ticks]
        due = due_ticks(HOURLY, due.next_at, SEVEN + hours(9.5), missed="all", most=4)
    ticks += [at for at, _ in due.ticks]
    assert ticks == [SEVEN + hours(number) for number in range(10)]


@pytest.mark.parametrize(("rule", "step"), [(every(1), 1), (rule_of("* * * * *"), 60)], ids=["every", "cron"])
@pytest.mark.parametrize("missed", ["once", "skip"])
def test_after_years_nothing_counts_each_tick(rule: object, step: int, missed: Missed) -> None:
    """Nothing reports so large a number, and counting it would take long."""
    due = due_ticks(rule, SEVEN, SEVEN + timedelta(days=2_000), missed=missed)  # type: ignore[arg-type]
    last = SEVEN + timedelta(days=2_000)
    assert due.ticks == [(last, MOST_COUNTED if missed == "once" else 1)]
    assert due.next_at == last + timedelta(seconds=step)


@given(
    st.sampled_from(
        [HOURLY, rule_of("*/7 * * * *", "Europe/Vienna"), every(1_000), rule_of("30 2 * * *", "Europe/Vienna")]
    ),
    st.sampled_from(get_args(Missed)),
    st.none() | st.floats(0, 90_000).map(lambda seconds: timedelta(seconds=seconds)),
    st.lists(st.floats(0, 100_000), min_size=1, max_size=8),
)
def test_each_tick_is_dealt_with_once(
    rule: object, missed: Missed, catch_up: timedelta | None, looks: list[float]
) -> None:
    """Whenever workers look: it becomes a job, or part of one, or is left out."""
    start = datetime(2026, 3, 28, tzinfo=UTC)
    first = next_at = rule.after(start)  # type: ignore[attr-defined]
    now, dealt_with, before = start, 0, start
    for pause in looks:
        now += timedelta(seconds=pause)
        goes_on = True
        while goes_on:
            due = due_ticks(rule, next_at, now, missed=missed, catch_up=catch_up, most=3)  # type: ignore[arg-type]
            for at, number in due.ticks:
                assert before < at <= now
                assert catch_up is None or at >= now - catch_up
                before, dealt_with = at, dealt_with + number
            dealt_with += due.left_out
            next_at, goes_on = due.next_at, due.goes_on
        assert next_at > now
    assert dealt_with == rule.count(first, now, most=10_000)  # type: ignore[attr-defined]

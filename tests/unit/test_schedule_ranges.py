"""The ticks of a rule in a range of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_jobqueue.errors import OptionError
from sa_jobqueue.rules.schedules import every, rule_of, ticks_between

DAY = datetime(2026, 3, 1, tzinfo=UTC)


def test_the_start_belongs_to_the_range_and_the_end_does_not() -> None:
    """So two ranges side by side share no tick."""
    hourly = rule_of("0 * * * *")
    hours = [at.hour for at in ticks_between(hourly, DAY, DAY + timedelta(hours=3), anchor=DAY)]
    assert hours == [0, 1, 2]
    assert list(ticks_between(hourly, DAY, DAY, anchor=DAY)) == []


def test_a_zone_is_kept_over_a_change_of_the_clocks() -> None:
    """Seven in Vienna is six in UTC, and five from 29 March on."""
    rule = rule_of("0 7 * * *", "Europe/Vienna")
    start = datetime(2026, 3, 28, tzinfo=UTC)
    ticks = list(ticks_between(rule, start, start + timedelta(days=2), anchor=DAY))
    assert [(at.day, at.hour, at.tzinfo) for at in ticks] == [(28, 6, UTC), (29, 5, UTC)]


@given(
    seconds=st.integers(1, 100_000), anchor=st.integers(-1_000_000, 1_000_000),
    start=st.integers(-1_000_000, 1_000_000), length=st.integers(0, 500_000),
)  # fmt: skip
def test_ticks_of_an_interval_lie_on_its_grid_wherever_it_is_anchored(
    seconds: int, anchor: int, start: int, length: int
) -> None:
    """Before the anchor and after it; none is left out."""
    found = ticks_between(
        every(seconds),
        DAY + timedelta(seconds=start),
        DAY + timedelta(seconds=start + min(length, seconds * 50)),
        anchor=DAY + timedelta(seconds=anchor),
    )
    expected = [one for one in range(start, start + min(length, seconds * 50)) if (one - anchor) % seconds == 0]
    assert [(at - DAY).total_seconds() for at in found] == expected


def test_a_rule_without_later_times_ends() -> None:
    """Not every rule goes on for ever; and years that Python does not have are refused."""
    assert list(ticks_between(rule_of("0 0 1 1 *"), datetime(9_998, 6, 1, tzinfo=UTC), DAY, anchor=DAY)) == []
    with pytest.raises(OptionError, match="give a later time"):
        list(ticks_between(rule_of("0 * * * *"), datetime.min.replace(tzinfo=UTC), DAY, anchor=DAY))

"""When a schedule's ticks are: cron expressions in their zones, and intervals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_jobqueue.errors import OptionError
from sa_jobqueue.rules.schedules import Cron, Rule, every, expression_of, rule_of


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def following(rule: Rule, moment: datetime, number: int) -> list[datetime]:
    ticks: list[datetime] = []
    for _ in range(number):
        moment = rule.after(moment)
        ticks.append(moment)
    return ticks


def said(ticks: list[datetime]) -> list[str]:
    return [f"{at:%m-%d %H:%M}" for at in ticks]


# (zone, expression, after this time, the next ticks), all in UTC
IN_ZONES: dict[str, tuple[str, str, str, list[str]]] = {
    "a time that is skipped comes with the next moment there is": (
        "Europe/Vienna", "30 2 * * *", "2026-03-28 00:00", ["03-28 01:30", "03-29 01:00", "03-30 00:30"]
    ),
    "two times that are skipped are one tick": (
        "Europe/Vienna", "0,30 2 * * *", "2026-03-29 00:00", ["03-29 01:00", "03-30 00:00", "03-30 00:30"]
    ),
    "a time that comes twice is one tick": (
        "Europe/Vienna", "30 2 * * *", "2026-10-24 00:00", ["10-24 00:30", "10-25 00:30", "10-26 01:30"]
    ),
    "after the second coming of an hour there is no tick of the first": (
        "Europe/Vienna", "45 2 * * *", "2026-10-25 01:30", ["10-26 01:45"]
    ),
    "every half hour goes on as time does where an hour comes twice": (
        "Europe/Vienna", "*/30 * * * *", "2026-10-25 00:15", ["10-25 00:30", "10-25 01:00", "10-25 01:30", "10-25 02:00"]
    ),
    "and where an hour is skipped": (
        "Europe/Vienna", "*/30 * * * *", "2026-03-29 00:15", ["03-29 00:30", "03-29 01:00", "03-29 01:30"]
    ),
    "every hour goes on as time does": (
        "America/New_York", "0 * * * *", "2026-11-01 04:30", ["11-01 05:00", "11-01 06:00", "11-01 07:00"]
    ),
    "New York skips its hour at another time": (
        "America/New_York", "15 2 * * *", "2026-03-07 08:00", ["03-08 07:00", "03-09 06:15"]
    ),
    "half an hour is skipped on Lord Howe": (
        "Australia/Lord_Howe", "15 2 * * *", "2026-10-02 00:00", ["10-02 15:45", "10-03 15:30", "10-04 15:15"]
    ),
    "half an hour comes twice on Lord Howe": (
        "Australia/Lord_Howe", "45 1 * * *", "2026-04-03 00:00", ["04-03 14:45", "04-04 14:45", "04-05 15:15"]
    ),
    "every hour goes on where half an hour comes twice": (
        "Australia/Lord_Howe", "30 * * * *", "2026-04-04 13:00",
        ["04-04 13:30", "04-04 14:30", "04-04 15:00", "04-04 16:00"]
    ),
    "and where half an hour is skipped": (
        "Australia/Lord_Howe", "30 * * * *", "2026-10-03 13:59", ["10-03 14:00", "10-03 15:00", "10-03 15:30", "10-03 16:30"]
    ),
    "every other hour begins there": (
        "Australia/Lord_Howe", "0 */2 * * *", "2026-04-04 12:59", ["04-04 13:00", "04-04 15:30", "04-04 17:30"]
    ),
    "a zone that has given up summer time": (
        "America/Sao_Paulo", "0 0 * * *", "2019-02-15 12:00", ["02-16 02:00", "02-17 03:00", "02-18 03:00"]
    ),
    "a zone that has left out a day": (
        "Pacific/Apia", "0 12 * * *", "2011-12-28 23:00", ["12-29 22:00", "12-30 10:00", "12-30 22:00"]
    ),
    "29 February": ("UTC", "0 0 29 2 *", "2026-01-01 00:00", ["02-29 00:00", "02-29 00:00"]),
    "the last day of a month": ("UTC", "0 0 L * *", "2026-01-15 00:00", ["01-31 00:00", "02-28 00:00", "03-31 00:00"]),
    "the end of a year": ("Europe/Vienna", "0 0 1 1 *", "2026-06-01 00:00", ["12-31 23:00", "12-31 23:00"]),
    "weekdays by their names": (
        "Europe/Vienna", "30 7 * * mon-fri", "2026-10-23 12:00", ["10-26 06:30", "10-27 06:30", "10-28 06:30"]
    ),
    "the second Tuesday": ("UTC", "0 9 * * tue#2", "2026-01-01 00:00", ["01-13 09:00", "02-10 09:00"]),
    "a day of the month or a weekday": ("UTC", "0 0 13 * fri", "2026-03-01 00:00", ["03-06 00:00", "03-13 00:00"]),
    "by a name": ("Europe/Vienna", "@daily", "2026-07-01 12:00", ["07-01 22:00", "07-02 22:00"]),
}  # fmt: skip


@pytest.mark.parametrize("case", IN_ZONES)
def test_a_cron_expression_is_read_in_its_zone(case: str) -> None:
    """Also where clocks are changed."""
    zone, expression, after, expected = IN_ZONES[case]
    assert said(following(rule_of(expression, zone), utc(after), len(expected))) == expected


@given(
    st.sampled_from(sorted({(zone, expression) for zone, expression, _, _ in IN_ZONES.values()})),
    st.integers(1_200_000_000, 2_200_000_000),
    st.integers(0, 400),
)
def test_no_tick_is_lost_or_repeated_wherever_one_begins(of: tuple[str, str], start: int, hours: int) -> None:
    """Ticks ascend, and are the same from a later start; counting them and looking for the last one agree with that."""
    zone, expression = of
    rule, begin = rule_of(expression, zone), datetime.fromtimestamp(start, UTC)
    ticks = following(rule, begin, 12)
    assert all(earlier < later for earlier, later in pairwise([begin, *ticks]))
    for number, tick in enumerate(ticks[:-1]):
        assert rule.after(tick) == ticks[number + 1]
        assert rule.after(tick - timedelta(seconds=1)) == tick
    until = ticks[0] + timedelta(hours=hours)
    before = [tick for tick in ticks if tick <= until]
    if len(before) < len(ticks):
        assert rule.last(ticks[0], until) == before[-1]
        assert rule.count(ticks[0], until, most=100) == len(before)
    assert rule.count(ticks[0], ticks[-1], most=5) == 5
    assert rule.first_from(ticks[0], ticks[3]) == ticks[3]
    assert rule.first_from(ticks[0], ticks[3] + timedelta(microseconds=1)) == ticks[4]


def test_an_interval_does_not_know_of_clocks() -> None:
    """A day is 24 hours, also when summer time begins."""
    start = utc("2026-03-28 07:00")
    assert said(following(every(timedelta(days=1)), start, 2)) == ["03-29 07:00", "03-30 07:00"]


@given(st.floats(1, 1e5), st.integers(0, 10**6), st.floats(0, 0.99))
def test_an_interval_counts_without_going_through_its_ticks(seconds: float, steps: int, part: float) -> None:
    """A year of seconds is one division."""
    rule, first = every(seconds), utc("2026-01-01 00:00")
    step = timedelta(seconds=seconds)
    until = first + step * steps + step * part
    assert rule.last(first, until) == first + step * steps
    assert rule.count(first, until, most=1_000) == min(steps + 1, 1_000)
    assert rule.first_from(first, first + step * steps) == first + step * steps
    assert rule.first_from(first, first + step * steps + timedelta(microseconds=1)) == first + step * (steps + 1)


@pytest.mark.parametrize(
    "rule", [every(1), every(timedelta(minutes=5)), every(1.5), rule_of("@hourly"), rule_of("0 7 * * mon-fri")]
)
def test_a_rule_is_stored_as_text(rule: Rule) -> None:
    """And read from it; a rule is one already."""
    assert rule_of(expression_of(rule)) == rule
    assert rule_of(rule) is rule


def test_spaces_do_not_matter() -> None:
    """Nor does the case of a name."""
    assert rule_of("  0 7  * *\tmon-fri ") == Cron("0 7 * * mon-fri")
    assert rule_of("@Daily") == Cron("@daily")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("x", r'must be a cron expression such as "30 7 \* \* mon-fri" .*, not \'x\': wrong number of fields'),
        ("61 * * * *", r"not '61 \* \* \* \*': the minute is wrong"),
        ("* * * * monday", "the day-of-week is wrong"),
        ("0 0 30 2 *", "the day-of-month is wrong"),
        ("0 0 * 2 mon#6", "the day-of-week is wrong"),
        ("@reboot", "wrong number of fields"),
        ("*/5 * * * * 0", "it has six fields, and a cron expression has no seconds here"),
        ("", "wrong number of fields"),
        (
            "every 5 minutes",
            r"an interval is given as every\(300\) or every\(timedelta\(minutes=5\)\), .*, not 'every 5 minutes'",
        ),
        ("every nan s", "an interval is given as"),
        ("every x s", "an interval is given as"),
        ("every 0.5 s", "at least 1 second, not 0.5"),
        (300, r"or every\(...\), not 300"),
        (timedelta(minutes=5), r"or every\(...\), not datetime.timedelta"),
        (None, "not None"),
    ],
)
def test_what_is_no_rule_is_refused(value: object, message: str) -> None:
    """The error names the value, and shows a rule."""
    with pytest.raises(OptionError, match=message):
        rule_of(value)


@pytest.mark.parametrize("interval", [0, -1, 0.5, float("nan"), float("inf"), timedelta(0), "5 minutes", True, None])
def test_what_is_no_interval_is_refused(interval: object) -> None:
    """It names what was given."""
    with pytest.raises(OptionError, match="every"):
        every(interval)  # type: ignore[arg-type]


@pytest.mark.parametrize("zone", ["Nowhere/Town", "", "../etc/passwd", "Europe", "\0", "CEST+1"])
def test_what_is_no_zone_is_refused(zone: str) -> None:
    """Whatever reading it would raise."""
    with pytest.raises(OptionError, match=r"there is no time zone .* give an IANA name such as 'Europe/Vienna'"):
        rule_of("0 7 * * *", zone)

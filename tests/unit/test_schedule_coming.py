"""What people see of a schedule: its rule in words, its next times, its state."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from sa_jobqueue.rules.schedules import coming_ticks, every, rule_in_words, rule_of, state_of, zone_of

NOW = datetime(2026, 10, 23, 12, tzinfo=UTC)


def row(**columns: Any) -> dict[str, Any]:
    return {
        "now": NOW,
        "counts_from": NOW,
        "next_at": None,
        "paused_at": None,
        "paused_by": None,
        "error": None,
        **columns,
    }


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("* * * * *", "Every minute"),
        ("30 7 * * mon-fri", "At 07:30 on Monday through Friday"),
        ("0 3 L * *", "At 03:00 on the last day of every month"),
        ("@daily", "At 00:00 every day"),
        ("@HOURLY", "At the start of every hour"),
        ("every 1 s", "Every 1s"),
        ("every 90 s", "Every 1m 30s"),
        ("every 1.5 s", "Every 1.5s"),
        ("every 604800 s", "Every 7d"),
        ("every 93784 s", "Every 1d 2h 3m 4s"),
    ],
)  # fmt: skip
def test_a_rule_is_said_in_words(rule: str, words: str) -> None:
    assert rule_in_words(rule_of(rule)) == words


@pytest.mark.parametrize("name", ["@yearly", "@annually", "@monthly", "@weekly", "@midnight"])
def test_each_name_of_cron_is_said(name: str) -> None:
    assert rule_in_words(rule_of(name)).startswith("At 00:00")


def test_ticks_begin_with_the_one_of_the_row() -> None:
    """Also one that has passed, about which no worker has decided."""
    rule = every(3_600)
    late = row(next_at=NOW - timedelta(minutes=5))
    assert [f"{at:%H:%M}" for at in islice(coming_ticks(rule, late), 3)] == ["11:55", "12:55", "13:55"]
    assert [f"{at:%H:%M}" for at in islice(coming_ticks(rule, row()), 2)] == ["13:00", "14:00"]


def test_of_a_paused_schedule_they_count_from_now() -> None:
    """Unless it is paused because no code declares it: it would go on where it was."""
    before = {"next_at": NOW - timedelta(days=3), "paused_at": NOW - timedelta(days=4)}
    rule = rule_of("0 * * * *")
    assert next(coming_ticks(rule, row(**before, paused_by="operator"))) == NOW + timedelta(hours=1)
    assert next(coming_ticks(rule, row(**before, paused_by="undeclared"))) == before["next_at"]


def test_they_end_where_there_is_no_later_one() -> None:
    end = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert list(coming_ticks(every(86_400), row(next_at=end))) == [end]


def test_they_are_of_utc() -> None:
    rule = rule_of("30 7 * * *", "Europe/Vienna")
    at = next(coming_ticks(rule, row(next_at=datetime(2026, 10, 24, 7, 30, tzinfo=ZoneInfo("Europe/Vienna")))))
    assert at.isoformat() == "2026-10-24T05:30:00+00:00"
    assert zone_of(rule) == ZoneInfo("Europe/Vienna")
    assert zone_of(every(60)) is UTC


def test_a_schedule_is_active_paused_or_bad() -> None:
    assert state_of(row()) == "active"
    assert state_of(row(error="no such task")) == "bad"
    assert state_of(row(error="no such task", paused_at=NOW)) == "paused"

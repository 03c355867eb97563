"""Whether a finding that an operator has acknowledged is worse than it was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sa_jobqueue.doctor import Finding
from sa_jobqueue.doctor.finding import Acknowledged, acknowledged

NOW = datetime(2030, 1, 31, 9, tzinfo=UTC)


def mark(detail: str, level: str = "problem", **values: Any) -> dict[str, Any]:
    given = {"check": "locks", "action": "acknowledge", "at": NOW, "now": NOW, "who": "ada", "for": "1h"}
    return {**given, "detail": detail, "level": level, **values}


@pytest.mark.parametrize(
    ("before", "now", "is_worse"),
    [
        ("1 job running with an expired lease", "1,250 jobs running with an expired lease", False),
        ("12 jobs due, the oldest for 59s; more than 10s is too long", "9 jobs due, the oldest for 3m 20s; more than 10s is too long", False),
        ("job_idx has 31 kB, 12 times the need", "job_idx has 1.2 GB, 9 times the need", False),
        ("send: 1 of 20 jobs failed for good", "send: 17 of 20 jobs failed for good", False),
        ("send: 1 of 20 jobs failed for good; pay: 2 of 3 jobs failed for good", "pay: 3 of 3 jobs failed for good", False),
        ("no worker serves: mail-2 (3)", "no worker serves: mail-3 (3)", True),
        ("no worker serves: a, b, c, d, e and 3 more", "no worker serves: a, b, c, d, e and 4 more", True),
        ("process 123 (psql) holds a snapshot for 6m", "process 456 (psql) holds a snapshot for 6m", True),
        ("no worker serves: 42 (3)", "no worker serves: 42 (3), 43 (1)", True),
        ("paused: queue a key 42 (for 6m; 3 due)", "paused: queue a key 43 (for 6m; 3 due)", True),
        ("paused: queue 1 key 42 (for 6m; 3 due)", "paused: queue 1 key 42 (for 8m; 5 due)", False),
        ("not read: workflows 7, 9", "not read: workflows 7, 9, 11", True),
        ("not seen: web-1:4711", "not seen: web-1:4711, web-2:4711", True),
    ],
)  # fmt: skip
def test_another_subject_is_worse_and_another_measure_is_not(before: str, now: str, is_worse: bool) -> None:
    found = acknowledged([Finding("locks", "problem", now)], [mark(before)])
    assert found == ({} if is_worse else {"locks": Acknowledged("ada", NOW + timedelta(hours=1))})


def test_the_newest_mark_counts_until_its_time_or_a_higher_level() -> None:
    finding, x = Finding("locks", "problem", "x"), mark("x")
    assert acknowledged([finding], [x, mark("x", action="unacknowledge")])
    for marks in (
        [mark("x", action="unacknowledge"), x], [mark("x", level="notice")], [mark("x", now=NOW + timedelta(hours=1))], [mark("x", **{"for": "9y"})],
    ):  # fmt: skip
        assert acknowledged([finding], marks) == {}
    assert acknowledged([Finding("locks", "notice", "x")], [x])
    assert acknowledged([Finding("locks", "ok", "x"), Finding("plans", "problem", "x")], [x]) == {}

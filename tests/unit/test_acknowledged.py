"""Whether a finding that an operator has acknowledged is worse than it was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sa_jobqueue.doctor import Finding
from sa_jobqueue.doctor.finding import Acknowledged, acknowledged, named

NOW = datetime(2030, 1, 31, 9, tzinfo=UTC)


def mark(detail: str, level: str = "problem", **values: Any) -> dict[str, Any]:
    given = {"check": "locks", "action": "acknowledge", "at": NOW, "now": NOW, "who": "ada", "for": "1h"}
    return {**given, "detail": detail, "level": level, "about": "", **values}


@pytest.mark.parametrize(
    ("before", "now", "is_worse"),
    [
        ("1 job running with an expired lease", "1,250 jobs running with an expired lease", False),
        ("12 jobs due, the oldest for 59s; more than 10s is too long", "9 jobs due, the oldest for 3m 20s; more than 10s is too long", False),
        ("job_idx has 31 kB, 12 times the need", "job_idx has 1.2 GB, 9 times the need", False),
        ("send: jobs failed for good 1 of 20 times", "send: jobs failed for good 17 of 20 times", False),
        ("send: jobs failed for good 1 of 20 times; pay: jobs failed for good 2 of 3 times", "pay: jobs failed for good 3 of 3 times", False),
        ("send: jobs failed for good 9 of 9 times", "jobs: jobs failed for good 9 of 9 times; send: jobs failed for good 9 of 9 times", True),
        ("no worker serves: keys (3)", "no worker serves: keys (3), rows (1)", True),
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
    assert found == {"locks": Acknowledged("ada", NOW + timedelta(hours=1), f"“{before}”" if is_worse else "")}


@pytest.mark.parametrize("name", ["7", "5m", "a (b)", "jobs", "x\ny"])
def test_a_name_that_reads_like_a_measure_is_a_subject(name: str) -> None:
    """It is among the names in the mark."""
    alone, both = (
        Finding("failures", "problem", f"{detail}: failed", about=about)
        for detail, about in (("8", [("task", "8")]), (f"8, {name}", [("task", "8"), ("task", name)]))
    )
    for first, then, was in ((both, alone, ""), (alone, both, "“8: failed”")):
        kept = mark(first.detail, check="failures", about=named(first))
        assert acknowledged([then], [kept])["failures"].was == was


def test_the_newest_mark_counts_until_its_time_or_a_higher_level() -> None:
    finding, x = Finding("locks", "problem", "x"), mark("x")
    assert acknowledged([finding], [x, mark("x", action="unacknowledge")])
    for marks in (
        [mark("x", action="unacknowledge"), x], [mark("x", now=NOW + timedelta(hours=1))], [mark("x", **{"for": "9y"})],
    ):  # fmt: skip
        assert acknowledged([finding], marks) == {}
    assert acknowledged([finding], [mark("x", level="notice")])["locks"].was == "a notice"
    assert acknowledged([Finding("locks", "notice", "x")], [x])
    assert acknowledged([Finding("locks", "ok", "x"), Finding("plans", "problem", "x")], [x]) == {}

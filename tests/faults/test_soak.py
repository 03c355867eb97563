"""The soak in small, and its verdicts: that each of them can be broken. `nox -s soak` has the half hour."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sa_jobqueue import JobStatus
from tests.faults.soak.ledger import miscounts
from tests.faults.soak.page import BEGIN, END, write
from tests.faults.soak.run import Plan, Soak, is_complaint
from tests.faults.soak.tasks import KINDS, ON_PURPOSE, Mix
from tests.faults.soak.verdicts import Sample, Seen, judge

MIX = Mix(seed=4)
JOBS = 3 * sum(kind.weight for kind in KINDS)


def steady(minute: int, **others: Any) -> Sample:
    """A sample of a run on which all is well."""
    values: dict[str, Any] = {
        "at": minute * 60.0, "enqueued": minute * 6_000, "finished": minute * 6_000 - 50, "most_due": 3, "oldest_due": 0.1,
        "oldest_running": 3.0, "rows": 12_000, "heap": 8_000_000, "toast": 30_000_000, "indexes": 2_000_000,
        "dead": 5_000, "oldest_snapshot": 0.0, "slowness": 1.0, "flush": 0.01, "memory": {11: 80_000_000, 12: 81_000_000}, "complaints": 0,
    }  # fmt: skip
    return Sample(**{**values, **others})


def thirty(**growing: Any) -> Seen:
    """Thirty samples; `growing`: functions of the minute."""
    samples = [
        steady(minute, **{name: value(minute) for name, value in growing.items()}) for minute in range(1, 31)
    ]  # fmt: skip
    return Seen(samples, rate=100.0, longest=3.0)


def broken(seen: Seen) -> list[str]:
    """The promises that were not kept."""
    return [verdict.promise for verdict in judge(seen) if not verdict.kept]


def test_a_steady_run_keeps_every_promise() -> None:
    """In the first third a table grows to its size."""
    filling = thirty(heap=lambda minute: 1_000_000 * min(minute, 10))
    assert [broken(thirty()), broken(filling)] == [[], []]


@pytest.mark.parametrize(
    ("growing", "promise"),
    [
        ({"heap": lambda minute: 8_000_000 * minute}, "the table:"),
        ({"toast": lambda minute: 30_000_000 + 1_500_000 * minute}, "the table:"),
        ({"indexes": lambda minute: 2_000_000 + 100_000 * minute}, "its indexes:"),
        ({"memory": lambda minute: {11: 80_000_000, 12: 80_000_000 + 1_500_000 * minute}}, "memory of worker 2:"),
        ({"memory": lambda minute: {11: 8_000_000, 12 + minute // 20: 8_000_000}}, "the same worker processes"),
        ({"oldest_due": lambda minute: 5.1 if minute == 17 else 0.1}, "no job due for longer"),
        ({"oldest_running": lambda minute: 9.0 if minute == 30 else 3.0}, "no job running for longer"),
        ({"enqueued": lambda minute: 5_000 * minute}, "the load was"),
    ],
)
def test_what_grows_waits_or_is_missing_breaks_its_promise(growing: dict[str, Any], promise: str) -> None:
    """And that one among the others, where one process gives way to another."""
    assert any(one.startswith(promise) for one in broken(thirty(**growing)))


def test_a_job_may_be_older_in_the_first_minute_alone() -> None:
    """The look at its end belongs to it."""
    assert broken(thirty(oldest_due=lambda minute: 20.0 if minute == 1 else 0.1)) == []
    assert len(broken(thirty(oldest_due=lambda minute: 20.0 if minute == 2 else 0.1))) == 1


def test_miscounts_complaints_and_missing_samples_break_their_promises() -> None:
    """Too few samples show nothing, so nothing is promised by them."""
    assert len(broken(replace(thirty(), miscounts=["job 7"]))) == 1
    assert len(broken(replace(thirty(), complaints=["job 7 rescued"]))) == 1
    assert len(broken(Seen([], rate=100.0, longest=3.0))) >= 5


def traces() -> dict[str, list[int]]:
    """What `JOBS` jobs leave behind when all is well."""
    kinds = [MIX.kind(number) for number in range(JOBS)]
    return {
        "runs": [number for number, kind in enumerate(kinds) for _ in range(kind.runs)],
        "effects": [number for number, kind in enumerate(kinds) for _ in range(kind.effects)],
        "failed": [number for number, kind in enumerate(kinds) if kind.ends is JobStatus.FAILED],
    }


def test_the_ledger_is_content_with_each_job_once() -> None:
    """Each kind as often as it should."""
    assert miscounts(MIX, JOBS, **traces()) == []


@pytest.mark.parametrize("trace", ["runs", "effects", "failed"])
def test_the_ledger_misses_a_trace_and_sees_one_too_many(trace: str) -> None:
    """And one of a job that was never enqueued."""
    left = traces()
    number = left[trace].pop(5)
    (less,) = miscounts(MIX, JOBS, **left)
    left[trace] += [number, number, JOBS]
    unknown, more = miscounts(MIX, JOBS, **left)
    assert [less.split()[:2], more.split()[:2]] == [["job", str(number)]] * 2
    assert unknown.startswith(f"job {JOBS} ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"level": "info", "message": "worker process 1 started (pid 7)"}', False),
        (
            f'{{"level": "warning", "message": "a[7] failed in attempt 1 of 3, again in 1 s: RuntimeError: {ON_PURPOSE} (tasks.py, line 1, in a)"}}',
            False,
        ),
        (
            '{"level": "warning", "message": "a[7] failed in attempt 1 of 3, for good: ValueError: 12 characters came (tasks.py, line 1, in a)"}',
            True,
        ),
        (
            '{"level": "warning", "message": "a[7] rescued from worker web-1:4711, which claimed it at ...; its lease ran out 12 s ago"}',
            True,
        ),
        ('{"level": "info", "message": "job 7: the outcome (complete) came too late; its claim was over"}', True),
        ("Traceback (most recent call last):", True),
    ],
)
def test_only_failures_on_purpose_belong_in_the_log(text: str, expected: bool) -> None:
    """Whatever else is a warning, or no line of ours."""
    assert is_complaint(text) is expected


def test_any_stretch_of_numbers_has_the_mix() -> None:
    """One deck after the other, and the same job for the same number in any process."""
    deck = sum(kind.weight for kind in KINDS)
    assert {MIX.kind(number) for number in range(700, 700 + deck)} == set(KINDS)
    assert [MIX.job(number).call() for number in range(50)] == [Mix(seed=4).job(number).call() for number in range(50)]


@pytest.fixture(scope="module")
def small() -> dict[str, Any]:
    """A soak of seconds."""
    said: list[str] = []
    plan = Plan(minutes=0.05, seed=4, every=1.0, measured=1.5, warm_up=1.0, backlog=400, retain=2.0, pace=0.05)
    return {**Soak(plan, say=said.append).run(), "said": said}


@pytest.mark.nightly
def test_a_small_soak_with_the_archive_keeps_each_job_once() -> None:
    """What the workers take away is in the archive, and nowhere else."""
    plan = Plan(
        minutes=0.05, seed=4, every=1.0, measured=1.5, warm_up=1.0, backlog=400, retain=1.0, pace=0.05, archive=True
    )
    seen = Soak(plan, say=lambda _: None).run()
    assert (seen["miscounts"], seen["complaints"]) == ([], [])
    assert seen["samples"][-1]["archive"] > 0


@pytest.mark.nightly
def test_a_small_soak_loses_nothing_and_does_nothing_twice(small: dict[str, Any]) -> None:
    """Every job comes to its end; what it writes is there as often as it should be; nothing is amiss in the log."""
    assert small["miscounts"] == []
    assert small["complaints"] == []
    assert small["jobs"] > small["samples"][-1]["enqueued"] > 0
    kept = {verdict["promise"]: verdict["kept"] for verdict in small["verdicts"]}
    assert [kept[promise] for promise in kept if promise.startswith(("every job", "nothing in", "the same"))] == [
        True
    ] * 3


@pytest.mark.nightly
def test_a_small_soak_says_what_it_sees(small: dict[str, Any]) -> None:
    """A line for each sample, sizes and the memory of each worker in it."""
    samples = small["samples"]
    assert 2 <= len(samples) <= 3  # one each second, in three seconds
    assert all(min(sample["heap"], sample["toast"], sample["indexes"]) > 0 for sample in samples)
    assert all(len(sample["memory"]) == 2 for sample in samples)
    assert all(sample["slowness"] > 0 and sample["flush"] > 0 for sample in samples)
    assert small["said"][0].startswith("capacity ")
    assert len([line for line in small["said"] if "MiB" in line]) == len(samples)


@pytest.mark.nightly
def test_a_soak_is_written_into_a_page(small: dict[str, Any], tmp_path: Path) -> None:
    """The verdicts and the picture, between the markers; the rest of the page stays."""
    pytest.importorskip("matplotlib")
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{BEGIN}\n\nold\n\n{END}\n\nafter\n")
    write(page, small)
    written = page.read_text()
    assert written.startswith(f"before\n\n{BEGIN}\n\n")
    assert written.endswith(f"\n\n{END}\n\nafter\n")
    assert all(verdict["promise"] in written for verdict in small["verdicts"])
    assert "old" not in written.split(BEGIN)[1].split(END)[0].split()
    assert "<svg" in (tmp_path / "pictures/soak.svg").read_text()

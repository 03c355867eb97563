"""What a tally counts, against a plain model; durations in buckets, and quantiles of them."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.rules.lifecycle import OUTCOMES, TRANSITIONS, Change, Event, JobStatus
from sa_jobqueue.rules.tally import BOUNDS, BUCKETS, TaskTally, bucket_of, quantile
from sa_jobqueue.worker.tally import Tally, outcomes_of

NOW = 1_000_000.0
"""By `monotonic()`."""
TASKS = [SimpleNamespace(name=name) for name in ("send", "resize")]


@dataclass
class FakeRun:
    job: ClaimedJob
    task: Any
    started: float | None
    ended: float | None


def change(event: Event, id: int = 1) -> Change:
    status = TRANSITIONS[JobStatus.RUNNING, event]
    return Change(id, 7, event, status, status)


def claimed(queue: str, run_at: float, created_at: float = 0.0) -> ClaimedJob:
    return ClaimedJob(1, 7, queue, "any", 4, run_at, 1, 10, 0, "{}", "{}", created_at)


durations = st.sampled_from([0.0, 1e-6, 0.005, 0.0050001, 0.3, 3_600.0, 4_000.0]) | st.floats(0, 5_000)
runs = st.lists(
    st.tuples(
        st.sampled_from(["mail", "media"]),
        st.sampled_from(TASKS),
        st.sampled_from(sorted(OUTCOMES)),
        st.none() | durations,
        durations | st.sampled_from([-3.0, math.inf]),
    ),
    max_size=30,
)


@given(batches=st.lists(runs, max_size=4))
def test_a_tally_counts_what_a_plain_loop_counts(
    batches: list[list[tuple[str, Any, Event, float | None, float]]],
) -> None:
    """Whatever the order of queues, tasks, outcomes and durations; a job that was not started has no durations."""
    tally = Tally()
    tally.zero = 5_000.0
    outcomes: Counter[tuple[str, str, str]] = Counter()
    took: dict[Any, list[float]] = defaultdict(list)
    waited: dict[Any, list[float]] = defaultdict(list)
    for batch in batches:
        ended = []
        for queue, task, event, seconds, wait in batch:
            started = None if seconds is None else NOW
            job = claimed(queue, NOW + tally.zero - wait, created_at=NOW + tally.zero - 2.0)
            ended.append(FakeRun(job, task, started, None if seconds is None else NOW + seconds))
            outcomes[queue, task.name, OUTCOMES[event]] += 1
            if seconds is not None:
                took[queue, task.name].append((NOW + seconds) - NOW)
                due = NOW + tally.zero - max(job.run_at, job.created_at)
                waited[queue, task.name].append(max(due, 0.0))
        tally.add([change(event) for _, _, event, _, _ in batch], ended)

    found = {one.key: one for one in tally.snapshot()}

    assert {(*key, name): getattr(one, name) for key, one in found.items() for name in OUTCOMES.values() if getattr(one, name)} == outcomes  # fmt: skip
    for key, one in found.items():
        for counts, seconds, expected in (
            (one.runs, one.run_seconds, took[key]),
            (one.waits, one.wait_seconds, waited[key]),
        ):
            assert counts == tuple(Counter(map(bucket_of, expected))[number] for number in range(BUCKETS))
            assert seconds == pytest.approx(sum(expected))


@pytest.mark.parametrize("created_at", [-math.inf, math.inf, 2 * NOW, -1e10])
def test_a_job_that_waits_since_ever_by_its_row_spoils_no_sum(created_at: float) -> None:
    """A row that was written by hand may say so of both its times. The job counts as one that did not wait."""
    tally = Tally()
    tally.zero = 0.0
    tally.add([change(Event.COMPLETE)], [FakeRun(claimed("mail", -math.inf, created_at), TASKS[0], NOW, NOW)])
    (found,) = tally.snapshot()
    assert (found.wait_seconds, found.waits[0]) == (0.0, 1)


def test_what_has_changed_is_taken_once_and_in_parts() -> None:
    """So that a worker with thousands of tasks writes those that had jobs, some at a time."""
    tally = Tally()
    for task in ("send", "resize", "charge"):
        tally.add_one("mail", task, Event.RELEASE)
    first = tally.take_changed(2)
    rest = tally.take_changed(2)
    assert (len(first), len(rest)) == (2, 1)
    assert sorted(one.task for one in (*first, *rest)) == ["charge", "resize", "send"]
    assert tally.take_changed(2) == []
    tally.lose("mail", "send")
    assert [(one.task, one.released, one.lost) for one in tally.take_changed(2)] == [("send", 1, 1)]


def test_a_change_without_a_run_is_left_to_those_who_know_its_job() -> None:
    """Nothing is counted for it, and what is beside it is."""
    tally = Tally()
    run = FakeRun(claimed("mail", NOW), TASKS[0], None, None)
    tally.add([change(Event.RELEASE, 1), change(Event.FAIL, 2)], [None, run])
    assert outcomes_of(tally.snapshot()) == {"failed": 1}


def test_jobs_of_unknown_tasks_are_counted_under_one_name() -> None:
    """Their names come out of rows, and there may be any number of them."""
    tally = Tally()
    for _ in range(3):
        tally.add_one("mail", None, Event.RELEASE)
    tally.lose("mail", "send")
    assert outcomes_of(tally.snapshot()) == {"released": 3, "unknown": 3, "lost": 1}
    assert [one.key for one in tally.snapshot()] == [("mail", "(unknown)"), ("mail", "send")]


def test_queues_that_are_not_served_here_have_a_bound() -> None:
    """Any worker rescues the jobs of any queue."""
    tally = Tally()
    for number in range(2_100):
        tally.add_one(f"queue {number}", "send", Event.RESCUE)
    found = tally.snapshot()
    assert len(found) == 2_001
    assert sum(one.rescued for one in found) == 2_100
    assert {one.queue: one.rescued for one in found}["(other)"] == 100


def test_a_queue_that_is_counted_already_stays_so_beyond_the_bound() -> None:
    """Also its jobs of unknown tasks; and jobs that are lost have the same bound as others."""
    tally = Tally()
    tally.add_one("mail", None, Event.RELEASE)
    for number in range(2_100):
        tally.lose(f"queue {number}", "send")
    tally.add_one("mail", None, Event.RELEASE)
    found = {one.key: one for one in tally.snapshot()}
    assert len(found) == 2_001
    assert found["mail", "(unknown)"].released == 2


def test_what_has_come_since_is_a_difference_that_can_be_added_again() -> None:
    """Sums and each bucket."""
    before = TaskTally("mail", "send", completed=2, run_seconds=0.5, runs=(2, *(0,) * (BUCKETS - 1)))
    after = TaskTally("mail", "send", completed=5, failed=1, run_seconds=1.0, runs=(5, 1, *(0,) * (BUCKETS - 2)))
    since = after.minus(before)
    assert (since.completed, since.failed, since.run_seconds, since.runs[:2]) == (3, 1, 0.5, (3, 1))
    assert before.plus(since) == after
    assert after.jobs == 6


def test_the_outcomes_are_those_of_every_event_that_ends_a_claim() -> None:
    """An event that is added to the life cycle cannot be forgotten here."""
    assert set(OUTCOMES) == {event for status, event in TRANSITIONS if status is JobStatus.RUNNING}


@given(st.lists(st.floats(0, 3_600), min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_is_in_the_bucket_of_the_true_one(seconds: list[float], q: float) -> None:
    """It lies between the bounds of the bucket that has the duration of that rank."""
    counts = [0] * BUCKETS
    for one in seconds:
        counts[bucket_of(one)] += 1
    rank = max(math.ceil(q * len(seconds) - 1e-9), 1)
    number = bucket_of(sorted(seconds)[rank - 1])
    found = quantile(counts, q)
    assert found is not None
    assert (BOUNDS[number - 1] if number else 0.0) <= found <= BOUNDS[number] + 1e-9


def test_quantiles_at_the_edges() -> None:
    """Of nothing there is none; of what is longer than all bounds it is the last bound."""
    assert quantile([0] * BUCKETS, 0.5) is None
    counts = [0] * BUCKETS
    counts[-1] = 3
    assert quantile(counts, 0.99) == BOUNDS[-1]


def test_the_clock_of_a_tally_is_that_of_this_machine_until_the_database_is_asked() -> None:
    """So that the first waits are not counted from 1970 on."""
    assert Tally().zero + monotonic() == pytest.approx(time.time(), abs=60.0)

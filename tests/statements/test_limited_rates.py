"""Rates: never more starts than a plain model of the generic cell rate algorithm allows, and not fewer for long."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, select, text

from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.statements import why_waiting
from tests.support.factory import TABLE
from tests.support.limits import LIMITS, Claimant, end, fill, key, limit, rate
from tests.support.nightly import examples


@dataclass
class Model:
    """What a rate lets start: `count` units in `seconds`, `burst` of them at once."""

    count: int
    seconds: float
    burst: int
    free_at: float = field(default=float("-inf"))
    """The theoretical arrival time."""

    @property
    def step(self) -> float:
        return self.seconds / self.count

    def allows(self, now: float, units: int) -> bool:
        """Jobs of more units than the burst start where all of that is free. A millionth of a unit is nothing."""
        most = self.burst * self.step + self.step * 1e-6 + 1e-5
        return max(self.free_at - now, 0.0) + min(units, self.burst) * self.step <= most

    def start(self, now: float, units: int) -> None:
        self.free_at = max(self.free_at, now) + units * self.step


def starts(connection: Connection, *where: Any) -> list[tuple[float, int]]:
    """When jobs started, and their units, in order."""
    at = text("extract(epoch FROM claimed_at)::float8")
    found = connection.execute(
        select(at, TABLE.c.units, TABLE.c.id).where(TABLE.c.claimed_at.is_not(None), *where).order_by(TABLE.c.claimed_at, TABLE.c.id)
    )  # fmt: skip
    return [(float(when), units or 1) for when, units, _ in found]


def most_in_a_window(found: list[tuple[float, int]], seconds: float) -> int:
    """The most units that started within any stretch of this length."""
    return max(
        (sum(units for at, units in found if begin <= at < begin + seconds - 1e-5) for begin, _ in found), default=0
    )


def shift(connection: Connection, seconds: float) -> None:
    """Let this time pass, for the rates and the starts so far."""
    for statement in (
        "UPDATE sa_jobqueue.limit_state SET free_at = free_at - :gone * interval '1 s', owed_at = owed_at - :gone * interval '1 s'",
        "UPDATE sa_jobqueue.job SET claimed_at = claimed_at - :gone * interval '1 s' WHERE claimed_at IS NOT NULL",
    ):
        connection.execute(text(statement), {"gone": seconds})


PLACES = ["queue", "key", "one key", "task", "key of a task", "one key of a task"]


def set_rate(connection: Connection, place: str, count: int, seconds: float, burst: int) -> None:
    """Say this of what each of the jobs of this test belongs to: the queue "default", the task "a_task", the key "a"."""
    owner = "task" if place.endswith("task") else "queue"
    name = "a_task" if owner == "task" else "default"
    if place in ("queue", "task"):
        limit(connection, name, owner=owner, **rate(count, seconds, burst))
    elif place.startswith("key"):
        limit(connection, name, owner=owner, **rate(count, seconds, burst, prefix="key_"))
    else:
        limit(connection, name, owner=owner)
        key(connection, "a", name, owner=owner, **rate(count, seconds, burst))


@pytest.mark.parametrize("place", PLACES)
@settings(examples(4, nightly=15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(1, 50),
    seconds=st.sampled_from([1.0, 7.0, 60.0, 3600.0]),
    burst=st.integers(1, 12),
    units=st.lists(st.sampled_from([1, 1, 1, 2, 3, 7, 15]), min_size=12, max_size=40),
    steps=st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 9)), min_size=3, max_size=15),
)
def test_claims_start_what_the_model_allows_and_no_less(
    engine: Engine,
    place: str,
    count: int,
    seconds: float,
    burst: int,
    units: list[int],
    steps: list[tuple[float, int]],
) -> None:
    """At each claim the next jobs of the key start, as long as the model lets them, and then no other."""
    model = Model(count, seconds, burst)
    with engine.connect() as connection:
        set_rate(connection, place, count, seconds, burst)
        waiting = [(fill(connection, 1, "a", units=one)[0], one) for one in units]
        claimant = Claimant(connection)
        for gone, free in steps:
            shift(connection, gone * seconds / count)
            model.free_at -= gone * seconds / count
            before = time.time()
            jobs = claimant.claim(free)
            now = time_of(connection, jobs)
            expected = []
            while now is not None and len(expected) < free and waiting and model.allows(now, waiting[0][1]):
                model.start(now, waiting[0][1])
                expected.append(waiting.pop(0)[0])
            assert [job.id for job in jobs] == expected
            if not jobs and waiting:
                assert not model.allows(before - 1.0, waiting[0][1])
            end(connection, jobs)
        connection.rollback()


def time_of(connection: Connection, jobs: list[ClaimedJob]) -> float | None:
    """When these were started."""
    if not jobs:
        return None
    at = text("extract(epoch FROM claimed_at)::float8")
    (found,) = set(connection.scalars(select(at).select_from(TABLE).where(TABLE.c.id.in_([job.id for job in jobs]))))
    return float(found)


@pytest.mark.parametrize("place", ["queue", "key", "task", "key of a task"])
def test_in_no_window_start_more_than_the_rate_and_its_burst(connection: Connection, place: str) -> None:
    """By the times of the claims, of two claimants that take as many as they can."""
    set_rate(connection, place, 20, 1.0, 4)
    fill(connection, 200, "a")
    claimants = [Claimant(connection), Claimant(connection, name="other")]
    begun = 0
    while begun < 27:  # for longer than a second
        for claimant in claimants:
            begun += len(jobs := claimant.claim(10))
            end(connection, jobs)

    found = starts(connection)
    assert most_in_a_window(found, 1.0) <= 24
    assert most_in_a_window(found, 0.5) <= 14
    assert all(earlier <= later for (earlier, _), (later, _) in pairwise(found))


def test_an_unused_rate_saves_no_more_than_its_burst(connection: Connection) -> None:
    """After an hour of nothing no more start at once than after a second."""
    set_rate(connection, "queue", 10, 1.0, 3)
    fill(connection, 50, "a")
    claimant = Claimant(connection)
    assert len(claimant.claim(20)) == 3
    shift(connection, 3600.0)
    assert len(claimant.claim(20)) == 3


def test_a_claim_says_when_its_rate_allows_more(connection: Connection) -> None:
    """Of the queue, the task and the key: the earliest."""
    for place in PLACES:
        set_rate(connection, place, 1, 60.0, 1)
    fill(connection, 3, "a")
    claimant = Claimant(connection)

    assert len(claimant.claim(5)) == 1
    assert claimant.claim(5) == []
    assert claimant.state.rate_in is not None
    assert 30 < claimant.state.rate_in <= 60


@pytest.mark.parametrize("place", PLACES)
def test_a_job_of_several_units_waits_for_all_of_them_and_the_claim_says_how_long(
    connection: Connection, place: str
) -> None:
    """Also where some are free already: those behind it do not take them."""
    set_rate(connection, place, 1, 60.0, 5)
    fill(connection, 1, "a", units=3)
    (large,) = fill(connection, 1, "a", units=4)
    fill(connection, 5, "a")
    claimant = Claimant(connection)
    assert len(claimant.claim(1)) == 1

    assert claimant.claim(5) == []
    assert claimant.state.rate_in is not None
    assert 90 < claimant.state.rate_in <= 120
    shift(connection, 120.0)
    assert [job.id for job in claimant.claim(5)] == [large]


@pytest.mark.parametrize("place", ["queue", "task"])
@pytest.mark.parametrize("keys", [("a", "b", "c"), (None, None, None)])
def test_small_jobs_of_others_do_not_hold_up_a_large_one_for_ever(
    connection: Connection, place: str, keys: tuple[str | None, ...]
) -> None:
    """Its turn comes, and then it waits for its units, and the others wait for it."""
    set_rate(connection, place, 1, 60.0, 3)
    fill(connection, 1, keys[0])
    claimant = Claimant(connection)
    end(connection, claimant.claim(1))
    (large,) = fill(connection, 1, keys[0], units=3)
    for one in keys[1:]:
        fill(connection, 40, one)
    served: list[int] = []
    while large not in served and len(served) < 40:
        jobs = claimant.claim(5)
        end(connection, jobs)
        served += [job.id for job in jobs]
        shift(connection, 60.0)

    assert large in served
    assert len(served) <= 12


def test_keys_take_turns_under_a_rate_of_several_units(connection: Connection) -> None:
    """One job uses up what the queue may start: the next claim begins with the next key."""
    set_rate(connection, "queue", 3, 60.0, 3)
    for one in ("a", "b", "c"):
        fill(connection, 5, one, units=3)
    claimant = Claimant(connection)
    served = []
    for _ in range(6):
        served += claimant.keys(9)
        end(connection, connection.scalars(select(TABLE.c.id).where(TABLE.c.status == "running")))
        shift(connection, 60.0)

    assert served == ["a", "b", "c", "a", "b", "c"]


def test_a_rate_that_is_set_later_begins_anew(connection: Connection) -> None:
    """And one that is lowered holds from then on."""
    fill(connection, 100, "a")
    limit(connection)
    claimant = Claimant(connection)
    assert len(claimant.claim(10)) == 10
    set_rate(connection, "queue", 100, 60.0, 5)
    assert len(claimant.claim(10)) == 5
    set_rate(connection, "queue", 1, 60.0, 1)
    assert claimant.claim(10) == []
    connection.execute(LIMITS.update().values(rate_count=None, rate_seconds=None, rate_burst=None))
    assert len(claimant.claim(10)) == 10


#: Two of them in the run of each change, all in the nights.
FEW = [
    place if place in ("queue", "key of a task") else pytest.param(place, marks=pytest.mark.nightly) for place in PLACES
]


@pytest.mark.parametrize("place", FEW)
def test_a_raised_rate_holds_from_its_commit(connection: Connection, place: str) -> None:
    """What the slow rate has let start counts against the new burst, and for no longer than the new rate says."""
    set_rate(connection, place, 1, 30 * 86_400.0, 10)
    fill(connection, 30, "a")
    claimant = Claimant(connection)
    assert len(claimant.claim(12)) == 10

    set_rate(connection, place, 1, 3_600.0, 15)
    assert len(claimant.claim(12)) == 5
    assert claimant.claim(12) == []
    assert claimant.state.rate_in is not None
    assert 3_500 < claimant.state.rate_in <= 3_600
    set_rate(connection, place, 1_000, 1.0, 100)
    assert len(claimant.claim(12)) == 12


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1, 31_557_600.0, 2**31 - 1), (1, 31_557_600.0, 2**31 - 1)),
        ((1, 31_557_600.0, 2**31 - 1), (2**31 - 1, 0.000_001, 1)),
        ((2**31 - 1, 0.000_001, 2**31 - 1), (1, 31_557_600.0, 1)),
    ],
)
@pytest.mark.parametrize("place", FEW)
def test_no_rate_and_no_state_of_one_stops_a_claim(
    connection: Connection, place: str, before: tuple[int, float, int], after: tuple[int, float, int]
) -> None:
    """The slowest and the fastest that can be kept, one after the other, with the largest jobs and a clock that is set back by a century:
    another queue's jobs are claimed, and the reasons of the waiting ones can be asked for.
    """
    fill(connection, 3, queue="other", task="other_task")
    claimant = Claimant(connection, "default", "other")
    for step, numbers in enumerate((before, before, after)):
        set_rate(connection, place, *numbers)
        (last, *_) = fill(connection, 20, "a", units=32_767)
        jobs = claimant.claim({"default": 9, "other": 1})
        assert "other" in {job.queue for job in jobs}
        list(connection.execute(why_waiting(last + 19)))
        if step:
            shift(connection, -100 * 31_557_600.0)

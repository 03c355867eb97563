"""Which jobs claims skip, and when each is tried again."""

from __future__ import annotations

import pytest

from sa_jobqueue.worker.claiming.poison import skipped
from sa_jobqueue.worker.claiming.poison.skipped import MOST, SkippedJobs
from tests.unit.test_resume import Clock

FREE = {"default": 4}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(skipped, "monotonic", clock)
    monkeypatch.setattr(skipped.random, "uniform", lambda low, high: 1.0)
    return clock


def test_each_is_tried_again_at_a_time_of_its_own_and_ever_more_rarely(clock: Clock) -> None:
    """The refusal of another changes nothing."""
    skipped, start = SkippedJobs(), clock.now
    skipped.add_unclaimable(1, "default")
    tried = []
    for tick in range(600):
        clock.now = start + tick / 10
        if tick % 7 == 0:
            skipped.add_unclaimable(2, "default")
        if 1 in skipped.due(FREE, one_waiting=True):
            tried.append(tick / 10)
            skipped.add_unclaimable(1, "default")

    assert tried == pytest.approx([0.2, 0.6, 1.4, 3.0, 6.2, 12.6, 25.4, 51.0], abs=0.15)
    assert skipped.ids() == [1, 2]


def test_when_one_can_be_claimed_the_others_are_tried_soon(clock: Clock) -> None:
    """What kept it may have kept them."""
    skipped = SkippedJobs()
    for _ in range(8):
        skipped.add_unclaimable(1, "default")
        skipped.add_unclaimable(2, "default")
    assert skipped.next_at(FREE, one_waiting=True) == clock.now + 25.6

    skipped.claimed([1])

    assert skipped.next_at(FREE, one_waiting=True) == clock.now + 0.2
    assert skipped.next_at(["other"], one_waiting=True) is None


def test_of_those_that_must_wait_for_another_one_comes_at_a_time(clock: Clock) -> None:
    """In their order, when there is no other and a slot in its queue is free."""
    skipped = SkippedJobs()
    for one, queue in ((1, "default"), (2, "mail"), (3, "default")):
        assert skipped.add_waiting(one, queue)

    assert skipped.due(FREE, one_waiting=False) == {}
    assert skipped.next_at(FREE, one_waiting=False) is None
    assert skipped.due(FREE, one_waiting=True) == {1: "default"}
    assert skipped.due({"default": 0, "mail": 1}, one_waiting=True) == {2: "mail"}
    skipped.claimed([1])
    assert skipped.due(FREE, one_waiting=True) == {3: "default"}


@pytest.mark.parametrize(("took", "in_vain", "rest"), [(0.5, 10, 2.0), (0.01, 10, 0.1)])
def test_trying_takes_little_of_the_time_and_asks_for_few_errors(
    clock: Clock, took: float, in_vain: int, rest: float
) -> None:
    """However many there are, and however long it takes."""
    skipped = SkippedJobs()
    skipped.add_unclaimable(1, "default")
    clock.now += 1
    skipped.rest(took, in_vain=in_vain)

    assert skipped.due(FREE, one_waiting=True) == {}
    assert skipped.due(FREE, one_waiting=True, at_once=True) == {1: "default"}
    assert skipped.next_at(FREE, one_waiting=True) == clock.now + rest
    clock.now += rest
    assert skipped.due(FREE, one_waiting=True) == {1: "default"}


def test_no_more_are_skipped_than_a_claim_can_compare_with(clock: Clock) -> None:
    """What has gone makes room."""
    skipped = SkippedJobs()
    for one in range(MOST + 10):
        assert skipped.add_unclaimable(one, "default") is (one < MOST)

    assert skipped.full
    assert len(skipped.ids()) == MOST
    assert not skipped.add_waiting(-1, "default")
    skipped.forget([3])
    assert skipped.add_waiting(-1, "default")


def test_operators_are_told_of_some_of_them_and_why() -> None:
    """The last reason counts; at most 100 jobs, and 300 characters each. What no JSON can have is replaced."""
    skipped = SkippedJobs()
    assert skipped.told() is None
    skipped.add_unclaimable(1, "default", why="once")
    skipped.add_unclaimable(1, "default", why="a\0" + "b" * 1_000)
    skipped.add_waiting(2, "default")
    told = skipped.told()
    assert told is not None
    assert told["1"] == "a\ufffd" + "b" * 298
    assert told["2"] is None
    for one in range(3, 200):
        skipped.add_unclaimable(one, "default", why="full")
    assert len(skipped.told() or ()) == 100
    skipped.forget(range(200))
    assert skipped.told() is None


def test_each_of_them_is_news() -> None:
    """Then the worker's row is written again; a retry in vain is none."""
    skipped, news = SkippedJobs(), list[int]()
    skipped.changed = lambda: news.append(len(skipped))
    skipped.forget([7])
    skipped.add_unclaimable(1, "default")
    skipped.add_unclaimable(1, "default")
    skipped.add_waiting(2, "default")
    skipped.add_waiting(2, "default")
    skipped.claimed([1])
    assert news == [1, 2, 1]
    skipped.forget([2, 3])
    assert news == [1, 2, 1, 0]

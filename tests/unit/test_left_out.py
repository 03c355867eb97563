"""Which jobs are left out of claims, and when each is tried again."""

from __future__ import annotations

import pytest

from sa_jobqueue.worker.claiming import left_out
from sa_jobqueue.worker.claiming.left_out import MOST, LeftOut
from tests.unit.test_resume import Clock

FREE = {"default": 4}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(left_out, "monotonic", clock)
    monkeypatch.setattr(left_out.random, "uniform", lambda low, high: 1.0)
    return clock


def test_each_is_tried_again_at_a_time_of_its_own_and_ever_more_rarely(clock: Clock) -> None:
    """The refusal of another changes nothing."""
    left_out, start = LeftOut(), clock.now
    left_out.refuse(1, "default")
    tried = []
    for tick in range(600):
        clock.now = start + tick / 10
        if tick % 7 == 0:
            left_out.refuse(2, "default")
        if 1 in left_out.due(FREE, alone=True):
            tried.append(tick / 10)
            left_out.refuse(1, "default")

    assert tried == pytest.approx([0.2, 0.6, 1.4, 3.0, 6.2, 12.6, 25.4, 51.0], abs=0.15)
    assert left_out.ids() == [1, 2]


def test_when_one_can_be_claimed_the_others_are_tried_soon(clock: Clock) -> None:
    """What kept it may have kept them."""
    left_out = LeftOut()
    for _ in range(8):
        left_out.refuse(1, "default")
        left_out.refuse(2, "default")
    assert left_out.next_at(FREE, alone=True) == clock.now + 25.6

    left_out.claimed([1])

    assert left_out.next_at(FREE, alone=True) == clock.now + 0.2
    assert left_out.next_at(["other"], alone=True) is None


def test_of_those_that_must_wait_for_another_one_comes_at_a_time(clock: Clock) -> None:
    """In their order, when there is no other and a slot in its queue is free."""
    left_out = LeftOut()
    for one, queue in ((1, "default"), (2, "mail"), (3, "default")):
        assert left_out.park(one, queue)

    assert left_out.due(FREE, alone=False) == {}
    assert left_out.next_at(FREE, alone=False) is None
    assert left_out.due(FREE, alone=True) == {1: "default"}
    assert left_out.due({"default": 0, "mail": 1}, alone=True) == {2: "mail"}
    left_out.claimed([1])
    assert left_out.due(FREE, alone=True) == {3: "default"}


@pytest.mark.parametrize(("took", "in_vain", "rest"), [(0.5, 10, 2.0), (0.01, 10, 0.1)])
def test_trying_takes_little_of_the_time_and_asks_for_few_errors(
    clock: Clock, took: float, in_vain: int, rest: float
) -> None:
    """However many there are, and however long it takes."""
    left_out = LeftOut()
    left_out.refuse(1, "default")
    clock.now += 1
    left_out.rest(took, in_vain=in_vain)

    assert left_out.due(FREE, alone=True) == {}
    assert left_out.due(FREE, alone=True, at_once=True) == {1: "default"}
    assert left_out.next_at(FREE, alone=True) == clock.now + rest
    clock.now += rest
    assert left_out.due(FREE, alone=True) == {1: "default"}


def test_no_more_are_left_out_than_a_claim_can_compare_with(clock: Clock) -> None:
    """What has gone makes room."""
    left_out = LeftOut()
    for one in range(MOST + 10):
        assert left_out.refuse(one, "default") is (one < MOST)

    assert left_out.full
    assert len(left_out.ids()) == MOST
    assert not left_out.park(-1, "default")
    left_out.forget([3])
    assert left_out.park(-1, "default")

"""What the pressure governor decides, reading by reading, and what that leaves to each queue."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_jobqueue import WorkerSettings
from sa_jobqueue.sql.workers import Pressure
from sa_jobqueue.worker.claiming.demand import Throttle
from sa_jobqueue.worker.maintenance.chore import Governor, Turned
from sa_jobqueue.worker.running.slots import Slots
from tests.support.nightly import examples

CALM = Pressure(0.0, 0, 0, None, None, 0, 0, 0)
THRESHOLDS = {"max_snapshot_age": 60.0, "max_lock_waits": 10, "max_replication_lag": 5.0, "max_active_connections": 50}
#: Settings and what passes them.
OVER: dict[str, tuple[dict[str, Any], str]] = {
    "max_snapshot_age": ({"snapshot_seconds": 720.0}, "a transaction has been open for 12 min (max_snapshot_age is 60)"),
    "max_lock_waits": ({"lock_waits": 11}, "11 sessions wait for locks (max_lock_waits is 10)"),
    "max_replication_lag": ({"replication_seconds": 5.5}, "a standby is 5.5 s behind (max_replication_lag is 5)"),
    "max_active_connections": ({"active": 1_200}, "1,200 sessions are active (max_active_connections is 50)"),
}  # fmt: skip


def pressure(**values: Any) -> Pressure:
    return Pressure(**{name: getattr(CALM, name) for name in Pressure.__slots__} | values)


@pytest.mark.parametrize("name", THRESHOLDS)
def test_each_threshold_holds_back_and_says_why(name: str) -> None:
    """With what was measured, and the name and value of the setting."""
    values, reason = OVER[name]
    governor = Governor(THRESHOLDS)

    assert governor.hear(pressure(**values)) is Turned.BEGUN
    assert (governor.share, governor.reason) == (0.5, reason)


@pytest.mark.parametrize("name", THRESHOLDS)
def test_a_threshold_that_is_not_set_holds_nothing_back(name: str) -> None:
    """Whatever is measured."""
    governor = Governor({other: value for other, value in THRESHOLDS.items() if other != name})

    assert governor.hear(pressure(**OVER[name][0])) is None
    assert (governor.share, governor.reason) == (1.0, None)


def test_the_thresholds_are_those_of_the_settings_that_are_set() -> None:
    """By default there are none."""
    assert WorkerSettings().thresholds == {}
    assert WorkerSettings(max_lock_waits=0, max_snapshot_age=5.0).thresholds == {
        "max_snapshot_age": 5.0,
        "max_lock_waits": 0,
    }


def test_a_threshold_of_no_waits_is_passed_by_the_first() -> None:
    """0 is a threshold, too."""
    governor = Governor({"max_lock_waits": 0})

    assert governor.hear(CALM) is None
    assert governor.hear(pressure(lock_waits=1)) is Turned.BEGUN


def test_the_beginning_and_the_recovery_are_told_once() -> None:
    """However long either takes; and the next time again."""
    governor = Governor({"max_lock_waits": 10})
    over = pressure(lock_waits=11)
    for _ in range(2):
        turns = [governor.hear(over) for _ in range(20)] + [governor.hear(CALM) for _ in range(20)]
        assert [turn for turn in turns if turn] == [Turned.BEGUN, Turned.RECOVERED]


def test_a_value_just_below_its_threshold_lets_recover_slowly() -> None:
    """So that it does not pass the threshold again at once."""
    near, far = Governor({"max_lock_waits": 10}), Governor({"max_lock_waits": 10})
    for governor, waits in ((near, 9), (far, 8)):
        for _ in range(3):
            governor.hear(pressure(lock_waits=11))
        governor.hear(pressure(lock_waits=waits))

    assert near.share == pytest.approx(0.125 + 0.02)
    assert far.share == pytest.approx(0.125 + 0.1)


def readings_up_to(times: int) -> st.SearchStrategy[Pressure]:
    """Values up to this number of times their thresholds."""
    return st.builds(
        pressure,
        snapshot_seconds=st.floats(0, 60 * times),
        lock_waits=st.integers(0, 10 * times),
        replication_seconds=st.none() | st.floats(0, 5 * times),
        active=st.integers(0, 50 * times),
    )


READINGS = readings_up_to(2)


def is_over(reading: Pressure) -> bool:
    return (
        reading.snapshot_seconds > 60
        or reading.lock_waits > 10
        or (reading.replication_seconds or 0) > 5
        or reading.active > 50
    )


@given(st.lists(READINGS, max_size=60))
def test_the_share_falls_while_a_threshold_is_passed_and_grows_while_none_is(readings: list[Pressure]) -> None:
    """It stays above 0 and at most 1; there is a reason exactly while it is below 1; and each turn is told."""
    governor = Governor(THRESHOLDS)
    for reading in readings:
        before, held = governor.share, governor.reason is not None
        turned = governor.hear(reading)
        if is_over(reading):
            assert governor.share <= max(before / 2, 1e-4)
        else:
            assert governor.share > before or before == 1.0
        assert 0 < governor.share <= 1
        assert (governor.reason is not None) == (governor.share < 1.0)
        holds = governor.reason is not None
        assert turned == {(False, True): Turned.BEGUN, (True, False): Turned.RECOVERED}.get((held, holds))


@examples(25, nightly=100)
@given(st.lists(READINGS, max_size=60), st.lists(readings_up_to(1), min_size=50))
def test_it_recovers_wherever_the_values_stay_below_the_thresholds(
    readings: list[Pressure], calm: list[Pressure]
) -> None:
    """Also just below them: no value that is allowed holds the worker back for ever."""
    governor = Governor(THRESHOLDS)
    for reading in [*readings, *calm]:
        governor.hear(reading)

    assert (governor.share, governor.reason) == (1.0, None)


# ---- what that leaves to a queue


def slots_of(limit: int, *, running: int = 0, stuck: int = 0, buffer: float = 0.0) -> Slots:
    slots = Slots("mail", limit, buffer=1_000, call=lambda *_: None)
    slots.running, slots.stuck, slots._buffer = running, stuck, buffer
    return slots


def test_a_throttle_that_holds_nothing_back_leaves_what_the_slots_say() -> None:
    """With the jobs that are claimed ahead."""
    assert Throttle().room(slots_of(10, running=3, buffer=100)) == 107


@pytest.mark.parametrize(
    ("share", "running", "room"), [(0.5, 0, 5), (0.5, 3, 2), (0.5, 5, 0), (0.5, 9, 0), (0.01, 0, 1), (0.01, 1, 0)]
)
def test_a_share_of_the_slots_is_claimed_for_and_nothing_ahead(share: float, running: int, room: int) -> None:
    """One job at a time at least."""
    throttle = Throttle()
    throttle.share = share

    assert throttle.room(slots_of(10, running=running, buffer=100)) == room


@given(st.integers(1, 10_000), st.floats(1e-4, 1.0, exclude_max=True), st.integers(0, 10_000), st.integers(0, 500))
def test_less_is_claimed_than_without_and_never_nothing_while_nothing_runs(
    limit: int, share: float, running: int, buffer: int
) -> None:
    """Whatever the numbers."""
    slots, throttle = slots_of(limit, running=min(running, limit), buffer=buffer), Throttle()
    throttle.share = share

    assert 0 <= throttle.room(slots) <= slots.free()
    slots.running = 0
    assert 1 <= throttle.room(slots) <= max(limit * share, 1)


def test_a_slot_that_a_stuck_handler_holds_is_not_the_one_that_is_left() -> None:
    """It may hold it for ever, and the queue would stand still for as long as the pressure lasts."""
    throttle = Throttle()
    throttle.share = 0.1

    assert throttle.room(slots_of(10, running=1, stuck=1)) == 1
    assert throttle.room(slots_of(2, running=2, stuck=2)) == 0


def test_a_queue_that_stands_still_gets_one_more_job_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its running jobs may take hours, and an urgent one not wait for them; a queue whose slots are all taken gets none."""
    now = 100.0
    monkeypatch.setattr("sa_jobqueue.worker.claiming.demand.monotonic", lambda: now)
    throttle, slots = Throttle(), slots_of(4, running=2)
    throttle.share = 0.1

    assert throttle.room(slots) == 0
    now += 59
    assert throttle.room(slots) == 0
    now += 1
    assert throttle.room(slots) == 1
    slots.running = 3  # it came
    assert throttle.room(slots) == 0
    now += 60
    assert throttle.room(slots) == 1
    slots.running = 4
    assert throttle.room(slots) == 0
    now += 600
    assert throttle.room(slots) == 0

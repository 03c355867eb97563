"""Claims that go round the keys of a queue: when they have seen all."""

from __future__ import annotations

import pytest

from sa_jobqueue.sql.limits.claims import KeyCursor, QueueAnswer
from sa_jobqueue.worker.claiming.limited import KeyScan


def answer(
    stopped: str, *, unseen: bool = True, again: bool = False, rate_in: float | None = None, due_in: float | None = None
) -> QueueAnswer:
    return QueueAnswer(KeyCursor(stopped), again, unseen, permit=False, picked=0, rate_in=rate_in, due_in=due_in)


@pytest.mark.parametrize(
    ("begin", "stops"),
    [
        (None, ["k", "t", "c"]),
        ("", ["k", "t", "c"]),
        ("m", ["t", "c", "k", "p"]),
        ("m", ["t", "c", "m"]),
        ("m", ["z", "", "m"]),
        ("m", ["c", "n"]),
        ("m", ["m"]),
        ("z", ["c", "t", "b"]),
        ("ä", ["b", "ä"]),
    ],
)
def test_it_is_round_when_a_claim_comes_by_its_beginning(begin: str | None, stops: list[str]) -> None:
    """And not before, wherever in the order of the keys that is."""
    scan = KeyScan.at(KeyCursor(begin))
    *others, last = stops
    assert [scan.go_on(answer(stop), 0.0) for stop in others] == [None] * len(others)
    assert scan.go_on(answer(last), 0.0) is not None


def test_a_claim_that_has_seen_all_keys_is_a_circle_of_its_own() -> None:
    """As nearly every one is."""
    assert KeyScan.at(KeyCursor("m")).go_on(answer("p", unseen=False), 0.0) == answer("p", unseen=False)


def test_together_they_say_the_first_time_and_whether_any_has_left_jobs() -> None:
    """Times by the clock: an answer of a second ago says a second less."""
    scan = KeyScan.at(KeyCursor("m"))
    assert scan.go_on(answer("t", rate_in=5.0, due_in=1.0), 100.0) is None
    assert scan.go_on(answer("c", rate_in=50.0, again=True), 101.0) is None
    assert scan.go_on(answer("p", due_in=7.0), 102.0) == answer("p", again=True, rate_in=3.0, due_in=7.0)

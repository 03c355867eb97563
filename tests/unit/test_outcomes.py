"""The words a handler may say."""

from __future__ import annotations

import pickle
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_jobqueue.rules.outcomes import Cancel, Discard, RateLimited, Retry, Snooze
from sa_jobqueue.rules.retry import MAX_DELAY, Duration, seconds_of


@pytest.mark.parametrize(
    ("given_", "seconds"),
    [(0, 0.0), (5, 5.0), (0.25, 0.25), (timedelta(minutes=1, microseconds=1), 60.000001), (MAX_DELAY, MAX_DELAY)],
)
def test_a_duration_is_seconds_or_a_timedelta(given_: Duration, seconds: float) -> None:
    """Both become seconds."""
    assert seconds_of(given_, what="x") == seconds


@pytest.mark.parametrize(
    "wrong",
    [-1, -0.001, float("nan"), float("inf"), -float("inf"), timedelta(-1), timedelta.max, MAX_DELAY * 1.01, 10**400],
)
def test_a_duration_outside_the_century_is_refused_by_name(wrong: Duration) -> None:
    """PostgreSQL could not add it to now()."""
    with pytest.raises(ValueError, match="my delay must be between 0 seconds and 100 years"):
        seconds_of(wrong, what="my delay")


@pytest.mark.parametrize("wrong", [True, False, "5", None, [1], 1j])
def test_what_is_no_duration_is_refused_by_name(wrong: object) -> None:
    """A bool is a slip, not a number of seconds."""
    with pytest.raises(TypeError, match="my delay must be seconds or a timedelta"):
        seconds_of(wrong, what="my delay")  # type: ignore[arg-type]


@given(st.floats(0, MAX_DELAY))
def test_a_timedelta_and_its_seconds_agree(seconds: float) -> None:
    """To the microsecond."""
    assert seconds_of(timedelta(seconds=seconds), what="x") == pytest.approx(seconds, abs=1e-6)


def test_signals_carry_what_was_said() -> None:
    """They are values that may also be raised."""
    assert Retry().seconds is None
    assert Retry(after=timedelta(hours=1)).seconds == 3_600.0
    assert Retry(0).seconds == 0.0
    assert Snooze(1).seconds == 1.0
    assert RateLimited(timedelta(minutes=1)).seconds == 60.0
    assert RateLimited(timedelta(days=300)).seconds == 86_400.0  # a wrong header does not stop a queue for so long
    assert Cancel("why").reason == "why"
    assert Discard().reason == "the handler discarded the job"
    assert all(isinstance(one, Exception) for one in (Retry(), Snooze(0), RateLimited(0), Cancel(), Discard()))


@pytest.mark.parametrize(
    "make", [lambda: Retry(-1), lambda: Snooze(-1), lambda: Snooze(float("nan")), lambda: RateLimited(-1)]
)
def test_a_wrong_time_is_refused_where_it_is_said(make: object) -> None:
    """In the handler, so that its traceback shows the line."""
    with pytest.raises(ValueError, match=r"(Retry\(after=\.\.\.\)|Snooze\(\.\.\.\)|RateLimited\(retry_after=\.\.\.\))"):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    "signal", [Retry(5, reason="busy"), Retry(), Snooze(2.5), RateLimited(3), Cancel("c"), Discard("d")]
)
def test_signals_survive_a_process_pool(signal: Exception) -> None:
    """A handler may hand its work to another process; what it raises there comes back whole."""
    copy = pickle.loads(pickle.dumps(signal))

    assert (type(copy), copy.__dict__, str(copy)) == (type(signal), signal.__dict__, str(signal))

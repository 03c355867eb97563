"""How long to wait before the next attempt."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_jobqueue.rules.retry import MAX_DELAY, RetryPolicy, next_delay

# ---- the formula


@pytest.mark.parametrize(
    ("attempt", "seconds"), [(0, 10), (1, 10), (2, 20), (3, 40), (4, 80), (5, 100), (6, 100), (32_767, 100)]
)
def test_the_delay_doubles_up_to_the_cap(attempt: int, seconds: float) -> None:
    """`base * factor ** (attempt - 1)`, at most `cap`; no attempt is too large for the power."""
    assert RetryPolicy(base=10, factor=2, cap=100, jitter=0).backoff(attempt, 0.9) == seconds


def test_times_may_be_timedeltas() -> None:
    """As everywhere."""
    policy = RetryPolicy(base=timedelta(minutes=1), cap=timedelta(minutes=3), jitter=0)

    assert [policy.backoff(n, 0) for n in (1, 2, 3)] == [60, 120, 180]


@pytest.mark.parametrize("attempt", [1, 2, 2_000, 32_767])
def test_a_base_of_nothing_never_waits(attempt: int) -> None:
    """Not even where the power overflows."""
    assert RetryPolicy(base=0, factor=3).backoff(attempt, 0.99) == 0


policies = st.builds(
    RetryPolicy,
    base=st.floats(0, MAX_DELAY),
    factor=st.one_of(st.floats(1, 1e300), st.integers(1, 10)),
    cap=st.floats(0, MAX_DELAY),
    jitter=st.floats(0, 1),
)


@given(policies, st.integers(-5, 32_767), st.floats(0, 1, exclude_max=True))
def test_the_delay_stays_within_the_cap_and_its_jitter(policy: RetryPolicy, attempt: int, random: float) -> None:
    """`cap` bounds what is jittered, a century bounds everything."""
    delay = policy.backoff(attempt, random)
    plain = RetryPolicy(policy.base, policy.factor, policy.cap, jitter=0).backoff(attempt, 0)

    assert 0 <= delay <= MAX_DELAY
    assert plain <= policy.cap  # type: ignore[operator]
    slack = 1 + 1e-9
    assert plain * (1 - policy.jitter) / slack <= delay <= max(plain * (1 + policy.jitter), plain) * slack


@given(policies, st.integers(1, 100))
def test_the_delay_never_shrinks(policy: RetryPolicy, attempt: int) -> None:
    """A later attempt waits as long or longer, for the same random number."""
    assert policy.backoff(attempt, 0.5) <= policy.backoff(attempt + 1, 0.5)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"base": -1}, "base must be between"),
        ({"cap": float("nan")}, "cap must be between"),
        ({"base": "5"}, "base must be seconds"),
        ({"factor": 0.5}, "factor must be at least 1"),
        ({"factor": float("inf")}, "factor must be at least 1"),
        ({"factor": float("nan")}, "factor must be at least 1"),
        ({"jitter": -0.1}, "jitter must be between 0 and 1"),
        ({"jitter": 1.1}, "jitter must be between 0 and 1"),
        ({"jitter": float("nan")}, "jitter must be between 0 and 1"),
        ({"no_retry": ("ValueError",)}, "no_retry holds exception classes"),
        ({"no_retry": (int,)}, "no_retry holds exception classes"),
        ({"no_retry": ValueError}, r"no_retry holds exception classes: \(ValueError,\)"),
        ({"no_retry": (ValueError("an instance"),)}, "no_retry holds exception classes"),
    ],
)
def test_a_wrong_policy_is_refused_at_once(wrong: dict[str, object], said: str) -> None:
    """Where it is written, not when the first job fails."""
    with pytest.raises((ValueError, TypeError), match=said):
        RetryPolicy(**wrong)  # type: ignore[arg-type]


# ---- rules of one's own


def test_no_retry_holds_for_subclasses() -> None:
    """As `except` does."""
    policy = RetryPolicy(no_retry=(LookupError, SystemExit), jitter=0)

    assert next_delay(policy, KeyError("k"), 1, 0.5) is None
    assert next_delay(policy, SystemExit(), 1, 0.5) is None
    assert next_delay(policy, ValueError(), 1, 0.5) == 15


def test_no_retry_may_be_any_sequence() -> None:
    """A list is what people write."""
    policy = RetryPolicy(no_retry=[ValueError])  # type: ignore[arg-type]

    assert next_delay(policy, ValueError(), 1, 0.5) is None
    assert hash(policy) == hash(RetryPolicy(no_retry=(ValueError,)))


@pytest.mark.parametrize(("own", "seconds"), [(7, 7.0), (0, 0.0), (timedelta(minutes=1), 60.0), (None, None)])
def test_a_function_of_ones_own_takes_the_place_of_the_formula(own: object, seconds: float | None) -> None:
    """It is given the exception and the attempt; None means no more attempts. It is not jittered."""
    seen = []

    def delay(exception: BaseException, attempt: int) -> object:
        seen.append((str(exception), attempt))
        return own

    assert next_delay(RetryPolicy(delay=delay), ValueError("no"), 3, 0.9) == seconds  # type: ignore[arg-type]
    assert seen == [("no", 3)]


def test_no_retry_comes_before_the_function() -> None:
    """The function is not asked."""
    policy = RetryPolicy(no_retry=(ValueError,), delay=lambda exception, attempt: 1)

    assert next_delay(policy, ValueError(), 1, 0.5) is None


@pytest.mark.parametrize("own", [-1, float("nan"), float("inf"), "soon", True, object(), timedelta(-1), 1e30, [1]])
def test_a_function_that_returns_nonsense_is_replaced_by_the_formula(
    own: object, caplog: pytest.LogCaptureFixture
) -> None:
    """The job goes on, and the log says why."""
    policy = RetryPolicy(base=5, jitter=0, delay=lambda exception, attempt: own)  # type: ignore[arg-type,return-value]

    with caplog.at_level(logging.ERROR):
        assert next_delay(policy, ValueError(), 2, 0.5) == 10
    assert "RetryPolicy.delay failed" in caplog.text


def test_a_function_that_raises_is_replaced_by_the_formula(caplog: pytest.LogCaptureFixture) -> None:
    """A bug in it must not lose the outcome of a job."""

    def delay(exception: BaseException, attempt: int) -> float:
        raise ZeroDivisionError("my own fault")

    assert next_delay(RetryPolicy(base=5, jitter=0, delay=delay), ValueError(), 1, 0.5) == 5
    assert "my own fault" in caplog.text

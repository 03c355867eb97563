"""Hypothesis strategies for the words of the life cycle."""

from __future__ import annotations

from hypothesis import strategies as st

from sa_jobqueue.rules.failures import describe
from sa_jobqueue.rules.lifecycle import Rules
from sa_jobqueue.rules.outcomes import (
    Cancel,
    Cancelled,
    Completed,
    Crashed,
    Discard,
    ErrorEntry,
    Failed,
    Outcome,
    RateLimited,
    Released,
    Rescued,
    Retry,
    Snooze,
    Undecodable,
)
from sa_jobqueue.rules.retry import RetryPolicy

ENTRY = ErrorEntry("Boom", "it went wrong")

#: The delays are 0 or far away, so that "due" is a plain yes or no.
delays = st.sampled_from([0.0, 86_400.0])

failures = st.sampled_from([ValueError("no"), KeyError("k"), SystemExit(1)]).map(lambda e: Failed(e, describe(e)))

#: What a run can end in, of those after which plain claims go on: no limit of a queue comes from them.
plain_outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.sampled_from([None, '{"a": 1}', "null"]).map(Completed),
    st.just(Completed(error=ENTRY)),
    failures,
    st.just(Undecodable(ENTRY)),
    st.builds(Released, delays, started=st.booleans()),
    st.just(Crashed(ENTRY)),
    st.sampled_from([None, ENTRY]).map(Cancelled),
    st.one_of(st.none(), delays).map(Retry),
    delays.map(Snooze),
    st.sampled_from(["", "enough"]).map(Cancel),
    st.sampled_from(["", "useless"]).map(Discard),
)
#: Whatever a run can end in; `Rescued` is decided by others and has a strategy of its own.
run_outcomes: st.SearchStrategy[Outcome] = st.one_of(plain_outcomes, delays.map(RateLimited))

rescues: st.SearchStrategy[Outcome] = st.booleans().map(lambda retry: Rescued(ENTRY, retry))

all_rules = st.builds(
    Rules,
    policy=st.builds(
        RetryPolicy,
        base=delays,
        factor=st.just(1.0),
        jitter=st.just(0.0),
        cap=st.just(86_400.0),
        no_retry=st.sampled_from([(), (ValueError,), (LookupError, SystemExit)]),
    ),
    retain=st.sampled_from([0.0, 60.0, None]),
    retain_failed=st.sampled_from([0.0, 60.0, None]),
    max_rescues=st.integers(0, 4),
    rescue=st.booleans(),
)

"""The state machine: what each outcome makes of a job, and what no sequence of them can do."""

from __future__ import annotations

import json
import math
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sa_jobqueue import Breaker
from sa_jobqueue.errors import ObjectMissing
from sa_jobqueue.rules.failures import MAX_MESSAGE
from sa_jobqueue.rules.lifecycle import (
    DEADLINE_OVER,
    EXPIRED,
    FINISHED,
    HELD,
    LIVE,
    TRANSITIONS,
    Change,
    Claim,
    Event,
    JobStatus,
    Rules,
    decide,
    not_started,
    sources,
    unwritable,
)
from sa_jobqueue.rules.outcomes import (
    Cancel,
    Cancelled,
    Completed,
    Discard,
    ErrorEntry,
    Failed,
    NotStarted,
    Outcome,
    RateLimited,
    Released,
    Rescued,
    Retry,
    Snooze,
    Undecodable,
)
from sa_jobqueue.rules.retry import RetryPolicy
from tests.support.model import ModelJob
from tests.support.nightly import examples
from tests.support.outcomes import all_rules, rescues, run_outcomes

ERROR = ErrorEntry("builtins.ValueError", "no", "trace")
BOOM = Failed(ValueError("no"), ERROR)
RULES = Rules(RetryPolicy(base=10, jitter=0), retain=70.0, retain_failed=300.0, max_rescues=3)
QUEUED, RUNNING = JobStatus.QUEUED, JobStatus.RUNNING
COMPLETED, FAILED, CANCELLED = JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED


def claimed(attempt: int = 1, max_attempts: int = 3, rescues: int = 0) -> Claim:
    return Claim(id=7, claim_token=4, attempt=attempt, max_attempts=max_attempts, rescues=rescues)


def again(event: Event, **fields: object) -> Change:
    return Change(7, 4, event, QUEUED, CANCELLED, retain=70.0, **fields)  # type: ignore[arg-type]


def final(event: Event, status: JobStatus, **fields: object) -> Change:
    return Change(7, 4, event, status, status, **fields)  # type: ignore[arg-type]


TOO_LATE = "its deadline is over before it could be tried again"
#: Seconds from the claim to the outcome in all cases.
ELAPSED = 10.0


def limited(**limits: float) -> Claim:
    return claimed()._replace(extra=json.dumps(limits))


def late(event: Event, **fields: object) -> Change:
    return Change(7, 4, event, FAILED, CANCELLED, retain=300.0, **fields)  # type: ignore[arg-type]


CASES: dict[str, tuple[Claim, Outcome, Change]] = {
    "a plain return completes": (claimed(), Completed(), final(Event.COMPLETE, COMPLETED, retain=70.0)),
    "a recorded result is kept": (
        claimed(), Completed("[1]"), final(Event.COMPLETE, COMPLETED, result="[1]", retain=70.0),
    ),
    "a result that cannot be stored leaves an error and completes": (
        claimed(), Completed(error=ERROR), final(Event.COMPLETE, COMPLETED, error=ERROR, retain=70.0),
    ),
    "an exception retries after the policy's delay": (
        claimed(2), BOOM, again(Event.RETRY, delay=20.0, error=ERROR),
    ),
    "the last attempt's exception fails the job": (
        claimed(3), BOOM, final(Event.FAIL, FAILED, error=ERROR, retain=300.0),
    ),
    "an attempt beyond the last fails it too": (
        claimed(4), BOOM, final(Event.FAIL, FAILED, error=ERROR, retain=300.0),
    ),
    "with a single attempt the first exception fails it": (
        claimed(1, 1), BOOM, final(Event.FAIL, FAILED, error=ERROR, retain=300.0),
    ),
    "Retry without a time waits as the policy says": (
        claimed(1), Retry(reason="busy"), again(Event.RETRY, delay=10.0, error=ErrorEntry("Retry", "busy")),
    ),
    "Retry with a time waits that long": (
        claimed(1), Retry(timedelta(minutes=2)),
        again(Event.RETRY, delay=120.0, error=ErrorEntry("Retry", "the handler asked for a retry")),
    ),
    "Retry after 0 seconds is not the policy's delay": (
        claimed(1), Retry(0, reason="now"), again(Event.RETRY, delay=0.0, error=ErrorEntry("Retry", "now")),
    ),
    "Retry on the last attempt fails": (
        claimed(3), Retry(5, reason="busy"),
        final(Event.FAIL, FAILED, error=ErrorEntry("Retry", "busy"), retain=300.0),
    ),
    "Snooze gives the attempt back": (claimed(3), Snooze(30), again(Event.SNOOZE, delay=30.0, attempt=-1)),
    "RateLimited is a snooze that keeps others waiting": (
        claimed(3), RateLimited(30), again(Event.SNOOZE, delay=30.0, attempt=-1, blocks=30.0),
    ),
    "RateLimited for no time is a snooze": (claimed(3), RateLimited(0), again(Event.SNOOZE, delay=0.0, attempt=-1)),
    "a release gives the attempt back, and the job keeps its place": (
        claimed(1), Released(), again(Event.RELEASE, delay=None, attempt=-1),
    ),
    "a release may wait": (claimed(1), Released(9.0), again(Event.RELEASE, delay=9.0, attempt=-1)),
    "a run that its worker's leaving interrupts gives the attempt back and counts as a rescue": (
        claimed(3, rescues=1), Released(started=True),
        again(
            Event.RELEASE, delay=None, error=ErrorEntry("Interrupted", "the worker left while it ran"), attempt=-1, rescues=1
        ),
    ),
    "the last interruption fails the job and says how often": (
        claimed(1, rescues=2), Released(started=True),
        final(
            Event.FAIL, FAILED, rescues=1, retain=300.0,
            error=ErrorEntry("Interrupted", "its worker died or left 3 times; the worker left while it ran"),
        ),
    ),
    "Cancel ends as cancelled": (
        claimed(), Cancel("enough"), final(Event.CANCEL, CANCELLED, error=ErrorEntry("Cancel", "enough"), retain=70.0),
    ),
    "a run stopped by a cancel ends as cancelled": (
        claimed(), Cancelled(), final(Event.CANCEL, CANCELLED, retain=70.0),
    ),
    "Discard ends as failed, attempts left or not": (
        claimed(), Discard("bad"), final(Event.FAIL, FAILED, error=ErrorEntry("Discard", "bad"), retain=300.0),
    ),
    "arguments that do not fit end as failed": (
        claimed(), Undecodable(ERROR), final(Event.FAIL, FAILED, error=ERROR, retain=300.0),
    ),
    "a rescue gives the attempt back and counts itself": (
        claimed(3, rescues=1), Rescued(ERROR),
        again(Event.RESCUE, delay=None, error=ERROR, attempt=-1, rescues=1, expired=True),
    ),
    "the last rescue fails the job and says how often": (
        claimed(1, rescues=2), Rescued(ErrorEntry("Rescued", "lease ran out")),
        final(
            Event.FAIL, FAILED, error=ErrorEntry("Rescued", "its worker died or left 3 times; lease ran out"),
            rescues=1, expired=True, retain=300.0,
        ),
    ),
    "a job whose expiry is over is cancelled, and no attempt counts": (
        claimed(), NotStarted(failed=False), final(Event.CANCEL, CANCELLED, error=EXPIRED, attempt=-1, retain=70.0),
    ),
    "a job whose deadline is over fails, and no attempt counts": (
        claimed(), NotStarted(failed=True), final(Event.FAIL, FAILED, error=DEADLINE_OVER, attempt=-1, retain=300.0),
    ),
    "a retry before the deadline is made": (
        limited(deadline=21.0), BOOM, again(Event.RETRY, delay=10.0, error=ERROR),
    ),
    "a retry after the deadline is not made": (
        limited(deadline=20.0), BOOM, late(Event.FAIL, error=ErrorEntry(ERROR.type, f"no; {TOO_LATE}", "trace")),
    ),
    "a snooze beyond the deadline fails the job": (
        limited(deadline=20.0), Snooze(10.0), late(Event.FAIL, error=DEADLINE_OVER, attempt=-1),
    ),
    "RateLimited beyond the deadline fails the job, and keeps others waiting": (
        limited(deadline=20.0), RateLimited(10.0), late(Event.FAIL, error=DEADLINE_OVER, attempt=-1, blocks=10.0),
    ),
    "a rescue after the deadline fails the job": (
        limited(deadline=10.0), Rescued(ERROR),
        late(Event.FAIL, error=ErrorEntry(ERROR.type, f"no; {TOO_LATE}", "trace"), attempt=-1, rescues=1, expired=True),
    ),
    "a completion after the deadline counts": (
        limited(deadline=1.0), Completed(), final(Event.COMPLETE, COMPLETED, retain=70.0),
    ),
    "an expiry does not keep a retry from being made": (
        limited(expires=1.0), BOOM, again(Event.RETRY, delay=10.0, error=ERROR),
    ),
    "a task that must not run twice fails when its worker dies": (
        claimed(1), Rescued(ERROR, retry=False),
        final(Event.FAIL, FAILED, error=ERROR, rescues=1, expired=True, retain=300.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("claim", "outcome", "change"), CASES.values(), ids=CASES.keys())
def test_each_outcome_becomes_its_change(claim: Claim, outcome: Outcome, change: Change) -> None:
    """`decide` is a table."""
    assert decide(claim, outcome, RULES, random=0.5, elapsed=ELAPSED) == change


def test_a_task_without_rescue_fails_when_its_worker_dies() -> None:
    """`rescue=False` in the rules is enough."""
    change = decide(claimed(), Rescued(ERROR, retry=True), Rules(rescue=False), random=0.5)

    assert (change.status, change.expired) == (FAILED, True)


def test_a_task_without_rescue_fails_when_its_worker_leaves_it() -> None:
    """What had not begun goes back all the same."""
    started, waiting = (
        decide(claimed(), Released(started=begun), Rules(rescue=False), random=0.5) for begun in (True, False)
    )

    assert (started.status, started.expired) == (FAILED, False)
    assert started.error == ErrorEntry(
        "Interrupted", "the worker left while it ran, and it may not run twice (rescue=False)"
    )
    assert (waiting.status, waiting.rescues) == (QUEUED, 0)


def test_no_retry_ends_the_job_whatever_attempts_are_left() -> None:
    """The rule of the exception's class comes first."""
    rules = Rules(RetryPolicy(no_retry=(ValueError,)))

    assert decide(claimed(1, 9), BOOM, rules, random=0.5).status is FAILED


@pytest.mark.parametrize("probes", [False, True])
def test_a_job_whose_object_is_missing_tells_the_breaker_nothing(probes: bool) -> None:
    """Its handler was not called: the other side has neither failed nor answered. Another job probes."""
    claim = claimed()._replace(extra='{"probes": true}' if probes else None)
    for on in (Exception, TimeoutError):
        rules = Rules(breaker=Breaker(on=on))
        missing = decide(claim, Failed(ObjectMissing("Order 7 is gone"), ERROR), rules, random=0.5)
        other = decide(claim, BOOM, rules, random=0.5)
        assert missing.tells is None
        assert (other.tells is None) == (on is TimeoutError and not probes)


def test_jitter_moves_the_delay_by_the_random_number() -> None:
    """Randomness is an argument."""
    rules = Rules(RetryPolicy(base=10, jitter=0.5))

    assert [decide(claimed(1), BOOM, rules, random=r).delay for r in (0.0, 0.5, 0.75)] == [5.0, 10.0, 12.5]


@pytest.mark.parametrize(
    "outcome",
    [Cancel("a\x00b\ud800" + "x" * 9_999), Discard("\x00"), Retry(reason="\udfff"), Retry(reason="y" * 9_999)],
)
@pytest.mark.parametrize("attempt", [1, 3])
def test_the_reason_of_a_signal_can_be_stored(outcome: Outcome, attempt: int) -> None:
    """A handler's words are cleaned and cut as an exception's are: they must not break the batch they are written in."""
    error = decide(claimed(attempt), outcome, RULES, random=0.5).error

    assert error is not None
    assert len(error.message) <= MAX_MESSAGE
    assert "\x00" not in error.message
    error.message.encode()


def test_the_last_rescue_keeps_the_message_within_its_length() -> None:
    """What is put before it is cut with it."""
    error = decide(claimed(rescues=2), Rescued(ErrorEntry("Rescued", "x" * MAX_MESSAGE)), RULES, random=0.5).error

    assert error is not None
    assert len(error.message) <= MAX_MESSAGE


# ---- the table


def test_live_and_finished_part_the_statuses() -> None:
    """Every status is one or the other."""
    assert set(JobStatus) == LIVE | FINISHED
    assert not LIVE & FINISHED


def test_a_final_state_is_left_by_an_operators_retry_only() -> None:
    """Nothing else starts there."""
    assert {event for status, event in TRANSITIONS if status in FINISHED} == {Event.REQUEUE, Event.REOPEN}


def test_only_the_queue_is_claimed_and_only_a_claim_runs() -> None:
    """Running is entered in one way."""
    assert sources(Event.CLAIM) == (QUEUED,)
    assert {event for (_, event), after in TRANSITIONS.items() if after is RUNNING} == {Event.CLAIM}


def test_every_event_has_a_source_and_every_status_but_the_first_a_way_to_it() -> None:
    """No word of the table is idle."""
    assert all(sources(event) for event in Event)
    assert {QUEUED, *TRANSITIONS.values()} == set(JobStatus)


def test_sources_come_in_the_order_of_the_life_cycle() -> None:
    """Statements are built from them, and their text must not vary."""
    assert sources(Event.CANCEL) == (QUEUED, JobStatus.BLOCKED, RUNNING)
    assert sources(Event.REQUEUE) == (QUEUED, COMPLETED, FAILED, CANCELLED)


def test_each_event_after_a_claim_is_for_a_held_job() -> None:
    """What a worker writes of a job that it has claimed needs the status that the claim left."""
    after_a_claim = (Event.COMPLETE, Event.RETRY, Event.SNOOZE, Event.RELEASE, Event.RESCUE, Event.FAIL)
    assert {frozenset(sources(event)) for event in after_a_claim} == {HELD}
    assert frozenset({TRANSITIONS[QUEUED, Event.CLAIM]}) == HELD


def test_an_unwritable_outcome_becomes_a_failure_that_is_kept() -> None:
    """The job fails with the reason, cleaned of what cannot be stored; its counters move as they would have."""
    change = decide(claimed(), Rescued(ERROR), RULES, random=0.5)._replace(result="1", delay=5.0)
    failure = unwritable(change, "no room\0" + "!" * MAX_MESSAGE)
    assert failure is not None
    assert (failure.event, failure.status, failure.if_cancelled) == (Event.FAIL, FAILED, FAILED)
    assert (failure.result, failure.delay, failure.retain) == (None, 0.0, None)
    assert (failure.rescues, failure.attempt, failure.expired) == (change.rescues, change.attempt, change.expired)
    assert failure.error is not None
    assert failure.error.type == "OutcomeNotWritten"
    assert failure.error.message.startswith("no room\ufffd!")
    assert len(failure.error.message) == MAX_MESSAGE
    assert unwritable(failure, "no room either") is None


def test_a_completion_that_cannot_delete_its_row_is_kept_instead() -> None:
    """Nothing else changes."""
    change = decide(claimed(), Completed(), Rules(retain=0.0), random=0.5)
    assert change.deletes
    assert not change.kept(60.0).deletes
    assert change.kept(60.0) == change._replace(retain=60.0)
    assert not decide(claimed(), Discard("no"), Rules(retain=0.0, retain_failed=0.0), random=0.5).deletes


# ---- properties

claims = st.builds(
    Claim,
    id=st.integers(1, 2**63 - 1),
    claim_token=st.integers(0, 2**63 - 1),
    attempt=st.integers(1, 32_767),
    max_attempts=st.integers(1, 32_767),
    rescues=st.integers(0, 32_767),
    extra=st.sampled_from([None, '{"unique": true}']),
)


@given(claims, st.one_of(run_outcomes, rescues), all_rules, st.floats(0, 1, exclude_max=True))
def test_a_change_is_always_in_the_table(claim: Claim, outcome: Outcome, rules: Rules, random: float) -> None:
    """From `running`, by its event, to its status; and by a cancel to the other one."""
    change = decide(claim, outcome, rules, random=random)

    assert TRANSITIONS[RUNNING, change.event] is change.status
    assert (change.id, change.claim_token) == (claim.id, claim.claim_token)
    if change.status in FINISHED:
        assert change.if_cancelled is change.status
        assert (change.delay, change.attempt) == (0, 0)
    else:
        assert change.if_cancelled is TRANSITIONS[RUNNING, Event.CANCEL]
        assert change.result is None
    assert change.delay is None or 0 <= change.delay < math.inf
    assert change.expired == isinstance(outcome, Rescued)
    assert change.unique == (claim.extra is not None)
    assert change.retain in {rules.retain, rules.retain_failed}


@given(claims, st.one_of(run_outcomes, rescues), all_rules)
def test_no_change_retries_a_last_attempt(claim: Claim, outcome: Outcome, rules: Rules) -> None:
    """What goes back without the attempt given back has attempts left."""
    change = decide(claim, outcome, rules, random=0.5)

    if change.status is QUEUED and change.attempt == 0:
        assert claim.attempt < claim.max_attempts
    if change.status is QUEUED and change.rescues:
        assert claim.rescues + 1 < rules.max_rescues


class Life(RuleBasedStateMachine):
    """A job in the hands of handlers, dying workers and operators."""

    @initialize(max_attempts=st.integers(1, 4), rules=all_rules)
    def enqueue(self, max_attempts: int, rules: Rules) -> None:
        self.job = ModelJob(max_attempts, rules)
        self.held: list[Claim] = []
        self.asked = self.deleted = False
        self.attempts = self.rescues = 0

    @rule()
    def claim(self) -> None:
        held = self.job.claim()
        if held is not None:
            assert not self.asked, "it runs although a cancel was asked for"
            self.held.append(held)
            self.attempts += 1
            assert held.attempt <= held.max_attempts

    @precondition(lambda self: self.held)
    @rule(data=st.data(), outcome=run_outcomes)
    def end(self, data: st.DataObject, outcome: Outcome) -> None:
        """Any claim ever taken reports, valid or not."""
        self._end(data.draw(st.sampled_from(self.held)), outcome)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), outcome=rescues)
    def rescue(self, data: st.DataObject, outcome: Outcome) -> None:
        self._end(data.draw(st.sampled_from(self.held[-2:])), outcome)

    def _end(self, claim: Claim, outcome: Outcome) -> None:
        before = (self.job.status, self.job.claims)
        valid = before == (RUNNING, claim.claim_token) and not self.job.deleted
        change = self.job.end(claim, outcome)
        if not valid:
            assert (self.job.status, self.job.claims) == before
            return
        self.attempts += change.attempt
        self.rescues += change.rescues
        if self.asked:
            assert self.job.status in FINISHED

    @rule()
    def time_passes(self) -> None:
        self.job.time_passes()

    @rule()
    def cancel(self) -> None:
        self.asked = self.job.cancel() or self.asked

    @rule()
    def discard(self) -> None:
        self.job.discard()

    @rule()
    def release(self) -> None:
        if self.job.release():
            self.attempts -= 1

    @rule()
    def retry(self) -> None:
        finished = self.job.status in FINISHED
        if self.job.retry():
            self.asked, self.rescues = False, 0
            if finished:
                self.attempts = 0

    @invariant()
    def bounds_hold(self) -> None:
        assert 0 <= self.attempts == self.job.attempt <= self.job.max_attempts
        assert self.rescues == self.job.rescues <= max(self.job.rules.max_rescues, 1)
        assert all(step in TRANSITIONS for step in self.job.walked)
        if self.asked and self.job.status is not RUNNING:
            assert self.job.status in FINISHED

    @invariant()
    def final_states_are_left_by_a_retry_only(self) -> None:
        assert all(event is Event.REQUEUE for status, event in self.job.walked if status in FINISHED)


Life.TestCase.settings = settings(examples(60, nightly=300), stateful_step_count=40)
TestLife = Life.TestCase


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [
        ({}, None),
        ({"expires": 10.1, "deadline": 10.1}, None),
        ({"expires": 10.0}, NotStarted(failed=False)),
        ({"deadline": 10.0}, NotStarted(failed=True)),
        ({"expires": 1.0, "deadline": 1.0}, NotStarted(failed=True)),
        ({"deadline": "Infinity"}, None),
        ({"deadline": "-Infinity"}, NotStarted(failed=True)),
    ],
)
def test_a_job_whose_time_is_over_is_not_to_be_started(limits: dict[str, float], outcome: Outcome | None) -> None:
    """Counted from the claim; a deadline that is over says more than an expiry."""
    assert not_started(limited(**limits), ELAPSED) == outcome

"""The state machine of a job, in one place.

`TRANSITIONS` is the table: statements build their `WHERE status IN (...)` from it, and the diagram in the docs is tested
against it. `decide` returns the change of a claimed job after an outcome. It is pure: no clock, no SQL,
and randomness is an argument.

>>> from sa_jobqueue.rules.outcomes import Completed
>>> decide(Claim(id=1, claim_token=7, attempt=1, max_attempts=10), Completed(), Rules(), random=0.5).status
<JobStatus.COMPLETED: 'completed'>
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from ..errors import ObjectMissing
from .failures import entry
from .limits import Breaker, Told
from .outcomes import (
    Cancel,
    Cancelled,
    Completed,
    Crashed,
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
    Suspended,
    Undecodable,
)
from .retry import RetryPolicy, next_delay


class JobStatus(StrEnum):
    """Where a job is in its life. "Scheduled" and "retrying" are readings of `queued`, not states."""

    QUEUED = "queued"
    BLOCKED = "blocked"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Event(StrEnum):
    """What can happen to a job."""

    CLAIM = "claim"  # a worker takes it
    COMPLETE = "complete"  # the handler returned
    RETRY = "retry"  # the attempt failed, attempts are left
    SNOOZE = "snooze"  # the handler asked for later
    SUSPEND = "suspend"  # the handler waits for a signal, a time or other jobs
    RELEASE = "release"  # the worker gives it back unstarted or unfinished
    RESCUE = "rescue"  # its worker or its child process died; it goes back
    FAIL = "fail"  # attempts or rescues exhausted, or the handler discarded it
    CANCEL = "cancel"  # an operator or the handler cancelled it
    DISCARD = "discard"  # an operator gives it up
    UNBLOCK = "unblock"  # what it waited for is done
    REQUEUE = "requeue"  # an operator retries it
    PAUSE = "pause"  # its workflow is paused
    REOPEN = "reopen"  # an operator retries it, and it waits for the others of its workflow again
    OPEN = "open"  # a gate, which has no handler: what it waited for is done


_S = JobStatus

#: (status, event) -> the status after it. What is not here cannot happen.
TRANSITIONS: dict[tuple[JobStatus, Event], JobStatus] = {
    (_S.BLOCKED, Event.UNBLOCK): _S.QUEUED,
    (_S.BLOCKED, Event.CANCEL): _S.CANCELLED,
    (_S.BLOCKED, Event.DISCARD): _S.FAILED,
    (_S.BLOCKED, Event.OPEN): _S.COMPLETED,
    (_S.QUEUED, Event.CLAIM): _S.RUNNING,
    (_S.QUEUED, Event.CANCEL): _S.CANCELLED,
    (_S.QUEUED, Event.DISCARD): _S.FAILED,
    (_S.QUEUED, Event.REQUEUE): _S.QUEUED,
    (_S.QUEUED, Event.PAUSE): _S.BLOCKED,
    (_S.RUNNING, Event.COMPLETE): _S.COMPLETED,
    (_S.RUNNING, Event.RETRY): _S.QUEUED,
    (_S.RUNNING, Event.SNOOZE): _S.QUEUED,
    (_S.RUNNING, Event.SUSPEND): _S.BLOCKED,
    (_S.RUNNING, Event.RELEASE): _S.QUEUED,
    (_S.RUNNING, Event.RESCUE): _S.QUEUED,
    (_S.RUNNING, Event.FAIL): _S.FAILED,
    (_S.RUNNING, Event.CANCEL): _S.CANCELLED,
    (_S.COMPLETED, Event.REQUEUE): _S.QUEUED,
    (_S.FAILED, Event.REQUEUE): _S.QUEUED,
    (_S.CANCELLED, Event.REQUEUE): _S.QUEUED,
    (_S.COMPLETED, Event.REOPEN): _S.BLOCKED,
    (_S.FAILED, Event.REOPEN): _S.BLOCKED,
    (_S.CANCELLED, Event.REOPEN): _S.BLOCKED,
}

#: The outcome of a claim in a word, by the event that ends it. Jobs are counted by these words everywhere, and middleware gets
#: them. An outcome that came too late for its claim is "lost".
OUTCOMES: Mapping[Event, str] = {
    Event.COMPLETE: "completed",
    Event.RETRY: "retried",
    Event.FAIL: "failed",
    Event.CANCEL: "cancelled",
    Event.SNOOZE: "snoozed",
    Event.SUSPEND: "suspended",
    Event.RELEASE: "released",
    Event.RESCUE: "rescued",
}
#: All outcomes that are counted, in the order in which they are shown.
COUNTED = (*OUTCOMES.values(), "lost")

LIVE = frozenset({_S.QUEUED, _S.BLOCKED, _S.RUNNING})
FINISHED = frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELLED})
#: A worker holds the job by a claim. Each write that follows a claim is for a job in this state alone.
HELD = frozenset({_S.RUNNING})


def sources(event: Event) -> tuple[JobStatus, ...]:
    """The statuses in which `event` can happen, in the order of the life cycle."""
    return tuple(status for status in JobStatus if (status, event) in TRANSITIONS)


class Claimed(Protocol):
    """What `decide` and the fence need to know of a claimed job.

    `claim_token` is the fence: a random number that no other claim has. `attempt` already counts this claim. `rescues` counts
    the claims whose worker died, or left before the handler had ended.

    `extra`: rare attributes of a job, a JSON object as text; None for most jobs. Its keys: "unique", of a job with a unique
    key: the key if the job gives it back when it is started, else true; "expires" (only for the first attempt) and "deadline":
    seconds from the claim; "tick": the seconds since 1970 of its schedule's tick, and the number of ticks for which it stands; "workflow": the
    workflow that it is a member of; "inputs": how many of its first parameters are results of others, 0 for a list of them all; "version":
    the version of its arguments as text, unless it is 1; "follows": true if its completion enqueues a follow-up; "probes": true if a breaker of its
    task was not closed when the job was claimed.
    """

    @property
    def id(self) -> int: ...

    @property
    def claim_token(self) -> int | None: ...

    @property
    def attempt(self) -> int: ...

    @property
    def max_attempts(self) -> int: ...

    @property
    def rescues(self) -> int: ...

    @property
    def extra(self) -> str | None: ...


class Claim(NamedTuple):
    """The smallest value that is `Claimed`."""

    id: int
    claim_token: int | None
    attempt: int
    max_attempts: int
    rescues: int = 0
    extra: str | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """A task's rules for its jobs. Durations in seconds; None means forever."""

    policy: RetryPolicy = field(default_factory=RetryPolicy)
    retain: float | None = 7 * 86_400.0
    retain_failed: float | None = 30 * 86_400.0
    max_rescues: int = 5
    rescue: bool = True
    breaker: Breaker | None = None


#: Used three times for each job. Python 3.11 needs longer to find a member of an enum than for the rest of the test.
_COMPLETE = Event.COMPLETE


class Change(NamedTuple):
    """A fenced write: job `id` goes from `running` to `status`, if `claim_token` is still that of its last claim.

    `if_cancelled` is the status to take if a cancel was asked for meanwhile. `delay` is the time until the next
    claim and `retain` the time until the row may be deleted, both in seconds from the database's now; `delay` None: the job keeps
    its place in the queue; `retain` 0 on a completion deletes the row at once, None keeps it. `attempt` and `rescues` are added to the counters.
    `expired`: only if the lease has run out, looked at again in the write itself. `unique`: the job has a key to give back
    when it ends. `blocks`: the time for which no other job of its key is to be started, or of its queue if it has none; a cancel
    does not change that. `workflow`: the id of the workflow that the job belongs to; its end is an event there. `follows`: a completion enqueues
    a follow-up. `tells`: the report to the breaker of its task.
    """

    id: int
    claim_token: int | None
    event: Event
    status: JobStatus
    if_cancelled: JobStatus
    delay: float | None = 0.0
    attempt: int = 0
    rescues: int = 0
    error: ErrorEntry | None = None
    result: str | None = None
    retain: float | None = None
    expired: bool = False
    unique: bool = False
    blocks: float | None = None
    workflow: int | None = None
    follows: bool = False
    tells: Told | None = None

    @property
    def plain(self) -> bool:
        """Whether it is a completion without an error and a unique key, as nearly all outcomes are. Such a change is written fastest.

        False for a job whose end needs more than what `statements.ends.ended()` writes: only `apply_changes` writes more.
        """
        return (
            self.event is _COMPLETE
            and self.error is None
            and not self.unique
            and not self.follows
            and self.tells is None
        )

    @property
    def deletes(self) -> bool:
        """Whether the row is deleted at once."""
        return self.retain == 0 and self.event is _COMPLETE

    @property
    def cancelled(self) -> Change:
        """The change that was written in its place because a cancel had been asked for."""
        return self._replace(event=Event.CANCEL, status=self.if_cancelled)

    def kept(self, seconds: float) -> Change:
        """The change for a row that cannot be deleted now: it is kept for `seconds`, and pruning tries again."""
        return self._replace(retain=seconds)


#: The errors of a job that was not started in time, or only to be snoozed, and of a job whose deadline was over.
EXPIRED = ErrorEntry("Expired", "no attempt was made before its expiry")
DEADLINE_OVER = ErrorEntry("DeadlineOver", "its deadline was over while it waited")
_COMPLETED = TRANSITIONS[_S.RUNNING, Event.COMPLETE]
_UNWRITABLE = "OutcomeNotWritten"
_INTERRUPTED = ErrorEntry("Interrupted", "the worker left while it ran")
_NOT_TWICE = ErrorEntry("Interrupted", "the worker left while it ran, and it may not run twice (rescue=False)")


def decide(claim: Claimed, outcome: Outcome, rules: Rules, *, random: float, elapsed: float = 0.0) -> Change:
    """The change of the job of `claim` after `outcome`. `random`: uniform in [0, 1), for the jitter. `elapsed`: seconds since the claim.

    A job that would be queued again for a time after its deadline fails instead.
    """
    change = _decide(claim, outcome, rules, random)
    # If an object is missing, the handler was not called.
    if isinstance(outcome, Failed) and not isinstance(outcome.exception, ObjectMissing):
        breaker = _BY_HAND if rules.breaker is None and "probes" in extra(claim) else rules.breaker
        if breaker is not None and ((failed := isinstance(outcome.exception, breaker.on)) or "probes" in extra(claim)):
            change = change._replace(tells=breaker.told(failed=failed))
    if claim.extra is None or change.status is not _S.QUEUED:
        return change
    return _in_time(claim, change, rules, elapsed)


def completed(claim: Claimed, outcome: Completed, rules: Rules) -> Change:
    """Fast path of `decide` for a completion: needs neither randomness nor a clock."""
    if claim.extra is None:
        return Change(
            claim.id, claim.claim_token, _COMPLETE, _COMPLETED, _COMPLETED,
            0.0, 0, 0, outcome.error, outcome.result, rules.retain, False,
        )  # fmt: skip
    rare = extra(claim)
    workflow, follows = rare.get("workflow"), "follows" in rare
    tells = (rules.breaker or _BY_HAND).told(failed=False) if "probes" in rare else None
    retain = _BRIEFLY if (follows or tells) and rules.retain == 0 else rules.retain
    return Change(
        claim.id, claim.claim_token, _COMPLETE, _COMPLETED, _COMPLETED,
        0.0, 0, 0, outcome.error, outcome.result, _kept(retain, workflow), False, "unique" in rare, None, workflow, follows, tells,
    )  # fmt: skip


#: The breaker of a task that declares none, as long as an operator's is not closed. Its failures are not counted, or hardly ever.
_BY_HAND = Breaker(failures=1_000, per=1.0)

#: Seconds that a completed job with `retain=0` is kept if a follow-up or a breaker needs its row.
_BRIEFLY = 1.0


def _kept(retain: float | None, workflow: int | None) -> float | None:
    """A member stays as long as its workflow, because others may read its result."""
    return retain if workflow is None else None


def _decide(claim: Claimed, outcome: Outcome, rules: Rules, random: float) -> Change:
    match outcome:
        case Completed():
            return completed(claim, outcome, rules)
        case NotStarted(failed):
            event, kept, error = (
                (Event.FAIL, rules.retain_failed, DEADLINE_OVER) if failed else (Event.CANCEL, rules.retain, EXPIRED)
            )
            return _change(claim, event, kept, attempt=-1, error=error)
        case Suspended():
            return _change(claim, Event.SUSPEND, rules.retain, delay=None, attempt=-1)
        case Snooze() | RateLimited():
            return _snoozed(claim, outcome, rules)
        case Released() | Rescued() | Crashed():
            return _interrupted(claim, outcome, rules, random)
        case Cancelled(error):
            return _change(claim, Event.CANCEL, rules.retain, error=error)
        case Cancel():
            return _change(claim, Event.CANCEL, rules.retain, error=entry("Cancel", outcome.reason))
        case Discard():
            return _change(claim, Event.FAIL, rules.retain_failed, error=entry("Discard", outcome.reason))
        case Undecodable(error):
            return _change(claim, Event.FAIL, rules.retain_failed, error=error)
        case Retry():
            error = entry("Retry", outcome.reason)
            delay = outcome.seconds if outcome.seconds is not None else rules.policy.backoff(claim.attempt, random)
            return _retry(claim, error, delay, rules)
        case Failed(exception, error):
            return _retry(claim, error, next_delay(rules.policy, exception, claim.attempt, random), rules)


def seconds_left(claim: Claimed, limit: Literal["expires", "deadline"], elapsed: float) -> float:
    """Seconds until the job's expiry or deadline, `elapsed` seconds after the claim; infinite if it has none."""
    return float(extra(claim).get(limit, "inf")) - elapsed


def not_started(claim: Claimed, elapsed: float) -> NotStarted | None:
    """The outcome if the job is not to be started any more, `elapsed` seconds after the claim."""
    if seconds_left(claim, "deadline", elapsed) <= 0:
        return NotStarted(failed=True)
    return NotStarted(failed=False) if seconds_left(claim, "expires", elapsed) <= 0 else None


def _in_time(claim: Claimed, change: Change, rules: Rules, elapsed: float) -> Change:
    if (change.delay or 0.0) < seconds_left(claim, "deadline", elapsed):
        return change
    error, why = change.error, "its deadline is over before it could be tried again"
    error = DEADLINE_OVER if error is None else entry(error.type, f"{error.message}; {why}", error.traceback)
    failed = TRANSITIONS[_S.RUNNING, Event.FAIL]
    return change._replace(
        event=Event.FAIL, status=failed, error=error, delay=0.0, retain=_kept(rules.retain_failed, change.workflow)
    )


def extra(claim: Claimed) -> Mapping[str, Any]:
    """`claim.extra` as a dict, empty for nearly all jobs."""
    return {} if claim.extra is None else _parsed(claim.extra)


@lru_cache(1_000)
def _parsed(text: str) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return MappingProxyType(found)


def unwritable(change: Change, reason: str) -> Change | None:
    """The change in place of an outcome that the database cannot store: the job fails with `reason`, and is kept.

    None if `change` is such a failure already.
    """
    if change.error is not None and change.error.type == _UNWRITABLE:
        return None
    failed = TRANSITIONS[_S.RUNNING, Event.FAIL]
    return change._replace(
        event=Event.FAIL, status=failed, if_cancelled=failed,
        error=entry(_UNWRITABLE, reason), result=None, delay=0.0, retain=None, blocks=None,
    )  # fmt: skip


def _snoozed(claim: Claimed, outcome: Snooze | RateLimited, rules: Rules) -> Change:
    change = _change(claim, Event.SNOOZE, rules.retain, delay=outcome.seconds, attempt=-1)
    blocks = isinstance(outcome, RateLimited) and outcome.seconds > 0  # else no other job has to wait
    return change._replace(blocks=outcome.seconds) if blocks else change


def _retry(claim: Claimed, error: ErrorEntry, delay: float | None, rules: Rules) -> Change:
    if delay is None or claim.attempt >= claim.max_attempts:
        return _change(claim, Event.FAIL, rules.retain_failed, error=error)
    return _change(claim, Event.RETRY, rules.retain, delay=delay, error=error)


def _interrupted(claim: Claimed, outcome: Released | Rescued | Crashed, rules: Rules, random: float) -> Change:
    match outcome:
        case Released(seconds, started=False):
            return _change(claim, Event.RELEASE, rules.retain, delay=seconds or None, attempt=-1)
        case Released(seconds):
            error = _INTERRUPTED if rules.rescue else _NOT_TWICE
            return _lost_worker(claim, Event.RELEASE, error, rules.rescue, rules, delay=seconds or None)
        case Rescued(error, retry):
            return _lost_worker(claim, Event.RESCUE, error, retry and rules.rescue, rules, expired=True)
        case Crashed(error):  # what killed it may do so again at once
            delay = rules.policy.backoff(claim.rescues + 1, random)
            return _lost_worker(claim, Event.RESCUE, error, rules.rescue, rules, delay=delay)


def _lost_worker(
    claim: Claimed,
    event: Event,
    error: ErrorEntry,
    retry: bool,
    rules: Rules,
    *,
    delay: float | None = None,
    expired: bool = False,
) -> Change:
    """The change of a job whose worker died, or left while the handler ran. The attempt does not count, but a rescue does. Rescues
    have a bound, because the job may be the reason why its workers end.
    """
    times = claim.rescues + 1
    if retry and times < rules.max_rescues:
        return _change(
            claim, event, rules.retain, delay=delay, attempt=-1, rescues=1, error=error, expired=expired
        )  # fmt: skip
    if retry:
        error = entry(
            error.type,
            f"its worker died or left {times} time{'' if times == 1 else 's'}; {error.message}",
            error.traceback,
        )
    return _change(claim, Event.FAIL, rules.retain_failed, rescues=1, error=error, expired=expired)


def _change(
    claim: Claimed,
    event: Event,
    retain: float | None,
    *,
    delay: float | None = 0.0,
    attempt: int = 0,
    rescues: int = 0,
    error: ErrorEntry | None = None,
    expired: bool = False,
) -> Change:
    """The change of the job by `event`. A cancel that was asked for meanwhile prevents its return to the queue, and has nothing
    to stop where the job ends anyway.
    """
    status = TRANSITIONS[_S.RUNNING, event]
    if_cancelled = status if status in FINISHED else TRANSITIONS[_S.RUNNING, Event.CANCEL]
    rare = extra(claim)
    workflow = rare.get("workflow")
    return Change(
        claim.id, claim.claim_token, event, status, if_cancelled, delay, attempt, rescues, error,
        retain=_kept(retain, workflow), expired=expired, unique="unique" in rare, workflow=workflow,
    )  # fmt: skip

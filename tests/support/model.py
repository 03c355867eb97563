"""A job as a plain Python object that obeys the same rules as the row, to be driven through random lives.

The unit tests look at what `decide` makes of it; the statement tests drive a real row alongside and compare the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sa_jobqueue.rules.failures import MAX_ERRORS
from sa_jobqueue.rules.lifecycle import FINISHED, TRANSITIONS, Change, Claim, Event, JobStatus, Rules, decide, sources
from sa_jobqueue.rules.outcomes import Outcome
from sa_jobqueue.sql.apply import Answer


@dataclass
class ModelJob:
    """What the row holds, and (`walked`) the transitions that it has gone through."""

    max_attempts: int
    rules: Rules = field(default_factory=Rules)
    status: JobStatus = JobStatus.QUEUED
    claims: int = 0
    claim_token: int | None = None
    attempt: int = 0
    rescues: int = 0
    errors: int = 0
    due: bool = True
    cancel_requested: bool = False
    deleted: bool = False
    walked: list[tuple[JobStatus, Event]] = field(default_factory=list)

    def can(self, event: Event) -> bool:
        return not self.deleted and self.status in sources(event)

    def claim(self, token: int | None = None) -> Claim | None:
        """`token`: the claim's; by default the number of claims."""
        if not (self.can(Event.CLAIM) and self.due):
            return None
        self._go(Event.CLAIM)
        self.claims += 1
        self.attempt += 1
        self.claim_token = self.claims if token is None else token
        return Claim(1, self.claim_token, self.attempt, self.max_attempts, self.rescues)

    def end(self, claim: Claim, outcome: Outcome, *, random: float = 0.5) -> Change:
        """Decide and apply, behind the fence."""
        change = decide(claim, outcome, self.rules, random=random)
        self.apply(change)
        return change

    def apply(self, change: Change) -> Answer:
        if self.deleted or self.status is not JobStatus.RUNNING or self.claim_token != change.claim_token:
            return Answer.LOST
        if change.status is JobStatus.COMPLETED and change.retain == 0:
            self.deleted = True
        cancelled = self.cancel_requested and change.if_cancelled is not change.status
        self._go(Event.CANCEL if cancelled else change.event)
        assert self.status is (change.if_cancelled if self.cancel_requested else change.status)
        self.attempt = max(self.attempt + change.attempt, 0)
        self.rescues += change.rescues
        self.errors = min(self.errors + (change.error is not None), MAX_ERRORS)
        if self.status is JobStatus.QUEUED:
            self.due = not change.delay
        return Answer.CANCELLED if cancelled else Answer.APPLIED

    def time_passes(self) -> None:
        self.due = True

    def cancel(self) -> bool:
        if not self.can(Event.CANCEL):
            return False
        self.cancel_requested = True
        if self.status is not JobStatus.RUNNING:
            self._go(Event.CANCEL)
        return True

    def discard(self) -> bool:
        if not self.can(Event.DISCARD):
            return False
        self._go(Event.DISCARD)
        self.errors = min(self.errors + 1, MAX_ERRORS)
        return True

    def release(self) -> bool:
        if not self.can(Event.RELEASE):
            return False
        self._go(Event.CANCEL if self.cancel_requested else Event.RELEASE)
        self.attempt = max(self.attempt - 1, 0)
        self.due = True
        return True

    def retry(self) -> bool:
        if not self.can(Event.REQUEUE):
            return False
        if self.status in FINISHED:
            self.attempt = 0
        self._go(Event.REQUEUE)
        self.rescues = 0
        self.cancel_requested = False
        self.due = True
        return True

    def _go(self, event: Event) -> None:
        step = (self.status, event)
        self.walked.append(step)
        self.status = TRANSITIONS[step]

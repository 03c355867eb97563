"""The auditor: whether what is in the database and in the handlers' files agrees with what was promised.

It is a function of rows and lines alone, which `collect` fetches.

    findings = audit(collect(url, folder, producer.fates))
    assert findings == []
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from sa_jobqueue.rules.lifecycle import FINISHED, TRANSITIONS, JobStatus
from tests.faults import audited_steps, audited_workflows
from tests.faults.evidence import Evidence, Row, Step, Tick, Ticking, Written
from tests.faults.workload import DOOMED, MAX_RESCUES, WITHOUT_SESSION, Fate, Word


class Finding(NamedTuple):
    """A promise that was broken, and by what."""

    rule: str
    about: str


# ---- the promises


def committed_jobs_end(given: Evidence) -> Iterator[str]:
    """A job whose enqueueing transaction committed comes to a final state, and to the one that its handler brings about."""
    rows = {row.key: row for row in given.rows}
    for key, fate in given.fates.items():
        row = rows.get(key)
        if row is not None and key in given.members:
            continue  # `audited_workflows` knows how it ends
        if row is None:
            if fate is Fate.COMMITTED:
                yield f"{key} was committed, and there is no such job"
        elif fate is not Fate.ROLLED_BACK:
            expected = JobStatus.FAILED if row.task == DOOMED else JobStatus.COMPLETED
            if row.duplicate_of is not None:
                expected = JobStatus.CANCELLED
            if row.status != expected and not _may_end_otherwise(row):
                yield f"{row} should be {expected}"


def _may_end_otherwise(row: Row) -> bool:
    """Whether that was an expiry, a deadline, or the next tick of a schedule that cancels."""
    if row.status == JobStatus.CANCELLED and row.error == "Expired":
        return row.expires_at is not None and (row.finished_at or 0.0) >= row.expires_at
    if row.status == JobStatus.CANCELLED:
        return row.overlap == "cancel_running"
    # Before the deadline a job fails whose next attempt would be after it.
    return row.status == JobStatus.FAILED and row.deadline_at is not None


def rolled_back_jobs_never_run(given: Evidence) -> Iterator[str]:
    """A job whose enqueueing transaction rolled back is nowhere."""
    for what in (*given.rows, *given.steps, *given.effects, *given.said):
        if given.fates.get(what.key) is Fate.ROLLED_BACK:
            yield f"rolled back, and yet: {what}"


def one_claim_is_valid(given: Evidence) -> Iterator[str]:
    """A job is claimed only when no claim of it is valid: each change follows from the one before it, by the table."""
    for steps in given.by_key.values():
        before: Step | None = None
        for step in steps:
            if (before.now, before.claims) != (step.was, step.claims_was) if before else step.was is not None:
                yield f"{step} does not follow {before}"
            elif step.was == JobStatus.RUNNING == step.now:
                yield f"claimed while claimed: {step}"
            elif before and step.claims != (before.claims or 0) + (step.now == JobStatus.RUNNING):
                yield f"claims were miscounted: {step}"
            elif before and (step.was, step.now) not in _ALLOWED:
                yield f"no such change: {step}"
            before = step


_ALLOWED = {(source.value, target.value) for (source, _), target in TRANSITIONS.items()}


def live_claims_are_not_rescued(given: Evidence) -> Iterator[str]:
    """A job is rescued only after its lease has run out, or counted as rescued because its own worker gave it back."""
    for step in given.steps:
        rescued = step.rescues is not None and step.rescues > (step.rescues_was or 0)
        if rescued and step.error != "Interrupted" and step.lease_was is not None and step.lease_was > step.at:
            yield f"rescued {step.lease_was - step.at:.3f} s before its lease ended: {step}"


def session_effects_happen_once(given: Evidence) -> Iterator[str]:
    """A completed job's writes are there once, by the claim and the transaction that completed it; others have none."""
    rows = {row.key: row for row in given.rows}
    effects: dict[str, list[Written]] = defaultdict(list)
    for effect in given.effects:
        effects[effect.key].append(effect)
    for key, row in rows.items():
        completed = row.status == JobStatus.COMPLETED and row.task not in WITHOUT_SESSION
        if len(effects[key]) != completed:
            yield f"{len(effects[key])} effects through ctx.session of {row}"
    for effect in given.effects:
        end = given.ends.get(effect.key)
        if end is None or (end.token, end.xid) != (effect.token, effect.xid):
            yield f"{effect} was not committed with the completion, which is {end}"


def handlers_end_before_completions(given: Evidence) -> Iterator[str]:
    """What a completed job does outside the database was done by the very claim that is completed, and before that."""
    did: dict[tuple[str, int | None], float] = {}
    for line in given.said:
        if line.what == Word.DID:
            run = (line.key, line.token)
            did[run] = min(line.at, did.get(run, line.at))
    for key, end in given.ends.items():
        if end.now == JobStatus.COMPLETED:
            at = did.get((key, end.token))
            if at is None or at > end.at + TOLERANCE:
                yield f"completed when the handler of that claim {'never' if at is None else 'not yet'} came to its end: {end}"


TOLERANCE = 0.05
"""Seconds by which the files' times may differ from the server's: `read_words` looks at two clocks that an administrator may set."""


def effects_outside_follow_claims(given: Evidence) -> Iterator[str]:
    """What is done outside the database is done by a claim, and each claim runs a handler once at most."""
    claimed = {(step.key, step.token) for step in given.steps if step.now == JobStatus.RUNNING}
    for what in Word:
        runs = Counter((line.key, line.token) for line in given.said if line.what == what and given.remembered(line))
        for run, times in runs.items():
            if times > 1:
                yield f"{run} {what} {times} times in one claim"
            if run not in claimed and given.fates.get(run[0]) is not Fate.UNKNOWN:
                yield f"{run} {what}, and there was no such claim"


def counters_stay_in_bounds(given: Evidence) -> Iterator[str]:
    """No job has more attempts, or more rescues, than it may have, and none that its claims do not account for."""
    for row in given.rows:
        if row.attempt > row.max_attempts or row.rescues > MAX_RESCUES or row.attempt + row.rescues > row.claims:
            yield f"{row}"


def no_job_runs_without_a_lease(given: Evidence) -> Iterator[str]:
    """At the end no job is `running` without a live lease."""
    for row in given.rows:
        if row.status == JobStatus.RUNNING and not row.lease:
            yield f"{row}"


def one_job_has_a_key(given: Evidence) -> Iterator[str]:
    """While a job has a key, each other one that is made with it is a duplicate."""
    for rows in given.holders.values():
        for before, after in pairwise(rows):
            if not _has_let_go(given, before, given.by_key[after.key][0]):
                yield f"{after} was made when {before} had its key"


def _has_let_go(given: Evidence, holder: Row, made: Step) -> bool:
    """Whether the key of `holder` was free when another job was made."""
    steps, period = given.by_key[holder.key], holder.period or 0.0
    # A job that its worker gave back before its handler began counts as not started.
    last = max((step for step in steps if step.n < made.n), key=lambda step: step.n)
    was_started = last.now == JobStatus.RUNNING or bool(last.attempt) or bool(last.rescues)
    if not was_started and not period and made.at >= min(holder.expires_at or math.inf, holder.deadline_at or math.inf):
        return True  # it will not be run
    if holder.scope == "window":
        return made.at >= holder.created_at + period
    if holder.scope == "queued":
        return any(step.was == JobStatus.QUEUED and step.n < made.n for step in steps)
    ended = any(step.now in FINISHED and step.n < made.n for step in steps)
    return ended and made.at >= (holder.finished_at or math.inf) + period


def keys_are_held_by_jobs(given: Evidence) -> Iterator[str]:
    """A key without a time is that of a job that has not ended; and a job that has not ended has its key."""
    live = {row.id: row for row in given.rows if row.status not in FINISHED and row.duplicate_of is None}
    held = {(one.unique, one.id) for one in given.held}
    for one in given.held:
        if not one.until and (one.id not in live or live[one.id].unique != one.unique):
            yield f"{one} is held by no job that is live"
    for row in live.values():
        keeps = row.scope in ("started", "finished") or (row.scope == "queued" and row.claims == 0)
        if row.unique is not None and keeps and (row.unique, row.id) not in held:
            yield f"{row} does not have its key"


def duplicates_name_their_holder(given: Evidence) -> Iterator[str]:
    """A duplicate was never claimed, and names a job with its key that is none."""
    rows = {row.id: row for row in given.rows}
    for row in given.rows:
        if row.duplicate_of is None:
            continue
        holder = rows.get(row.duplicate_of)
        if row.claims:
            yield f"a duplicate was claimed: {row}"
        if row.duplicate_of == 0 or (
            holder is not None and (holder.unique != row.unique or holder.duplicate_of is not None)
        ):
            yield f"{row} is said to be a duplicate of {holder}"


def changes_are_seen_by_a_later_run(given: Evidence) -> Iterator[str]:
    """With the scope "queued", the job whose duplicate was enqueued begins after that, and so sees what came with it."""
    began: dict[str, float] = defaultdict(float)
    for line in given.said:
        if line.what == Word.BEGAN:
            began[line.key] = max(line.at, began[line.key])
    rows = {row.id: row for row in given.rows}
    for row in given.rows:
        holder = rows.get(row.duplicate_of or 0)
        if holder is not None and row.scope == "queued" and holder.status == JobStatus.COMPLETED:
            made = given.by_key[row.key][0]
            if began[holder.key] < made.at - TOLERANCE:
                yield f"{holder} began before its duplicate {row} was made, and not again"


LATE = 1.0
"""Seconds from a look at the clock to the handler's first line on the disk of a busy machine, at most."""


def jobs_are_not_started_after_their_expiry(given: Evidence) -> Iterator[str]:
    """The first attempt of a job begins before its expiry, and no job ends as expired before that."""
    first = {
        (step.key, step.token) for step in given.steps
        if step.now == JobStatus.RUNNING and (step.attempt, step.rescues) == (1, 0)
    }  # fmt: skip
    until = {row.key: row.expires_at for row in given.rows if row.expires_at is not None}
    for line in given.said:
        if (
            line.what == Word.BEGAN
            and (line.key, line.token) in first
            and line.at > until.get(line.key, math.inf) + LATE
        ):
            yield f"it expired at {until[line.key]}, and yet: {line}"
    for row in given.rows:
        if row.error == "Expired" and (row.expires_at is None or (row.finished_at or 0.0) < row.expires_at):
            yield f"too early: {row}"


def no_attempt_begins_after_its_deadline(given: Evidence) -> Iterator[str]:
    """Nor does the first."""
    until = {row.key: row.deadline_at for row in given.rows if row.deadline_at is not None}
    for line in given.said:
        if line.what == Word.BEGAN and line.at > until.get(line.key, math.inf) + LATE:
            yield f"its deadline was {until[line.key]}, and yet: {line}"


def each_tick_has_one_job(given: Evidence) -> Iterator[str]:
    """No tick has two jobs, or is counted by two; and none has one that is still to come."""
    for schedule, ticks in _by_schedule(given):
        counted = Counter(place for tick in ticks for place in _places(schedule, tick))
        for place, times in counted.items():
            if times > 1:
                yield f"{times} jobs for the tick {schedule.at(place)} of {schedule.name!r}"
            if not 0 <= place < schedule.place(schedule.next_at):
                yield f"a job for the tick {schedule.at(place)} of {schedule.name!r}, which is still to come"


def no_tick_is_lost(given: Evidence) -> Iterator[str]:
    """Each tick has a job, unless `catch_up` or `overlap` leave it out; and those that they leave out are counted."""
    for schedule, ticks in _by_schedule(given):
        counted = {place for tick in ticks for place in _places(schedule, tick)}
        missing = [place for place in range(schedule.place(schedule.next_at)) if place not in counted]
        for place in missing:
            if not _may_be_left_out(given, schedule, ticks, schedule.at(place)):
                yield f"no job for the tick {schedule.at(place)} of {schedule.name!r}"
        if more := len(missing) - schedule.left_out:  # said so that it stays the same while time goes on
            yield f"{more} more ticks of {schedule.name!r} have no job than it has left out"


def _may_be_left_out(given: Evidence, schedule: Ticking, ticks: Sequence[Tick], at: float) -> bool:
    if schedule.catch_up is not None:
        # What passed it over made the next job, too, if it made any.
        later = [tick.made_at for tick in ticks if tick.at > at]
        return not later or min(later) - at > schedule.catch_up
    if schedule.overlap == "skip":
        ends = [given.ends[tick.key].at if tick.key in given.ends else math.inf for tick in ticks if tick.at < at]
        return any(end > at - UNCOMMITTED for end in ends)
    return False


UNCOMMITTED = 5.0
"""Seconds for which the end of a job may have been written, and not be committed: a network that is silent just then."""


def jobs_of_a_schedule_do_not_overlap(given: Evidence) -> Iterator[str]:
    """Where it says so, a job is made when the one before has ended."""
    for schedule, ticks in _by_schedule(given):
        if schedule.overlap not in ("skip", "queue_one"):
            continue
        for before, after in pairwise(ticks):
            made, end = given.by_key.get(after.key, [])[:1], given.ends.get(before.key)
            if made and (end is None or end.n > made[0].n):
                yield f"{after} was made when {before} had not ended"


def _by_schedule(given: Evidence) -> Iterator[tuple[Ticking, list[Tick]]]:
    """Each schedule with its jobs, in the order of their ticks."""
    for schedule in given.schedules:
        ticks = [tick for tick in given.ticks if tick.schedule == schedule.name]
        yield schedule, sorted(ticks, key=lambda tick: tick.at)


def _places(schedule: Ticking, tick: Tick) -> range:
    """The ticks for which a job stands."""
    last = schedule.place(tick.at)
    return range(last - tick.number + 1, last + 1)


RULES: dict[str, Callable[[Evidence], Iterator[str]]] = (
    {
        rule.__name__: rule
        for rule in (
            committed_jobs_end,
            rolled_back_jobs_never_run,
            one_claim_is_valid,
            live_claims_are_not_rescued,
            session_effects_happen_once,
            handlers_end_before_completions,
            effects_outside_follow_claims,
            counters_stay_in_bounds,
            no_job_runs_without_a_lease,
            one_job_has_a_key,
            keys_are_held_by_jobs,
            duplicates_name_their_holder,
            changes_are_seen_by_a_later_run,
            jobs_are_not_started_after_their_expiry,
            no_attempt_begins_after_its_deadline,
            each_tick_has_one_job,
            no_tick_is_lost,
            jobs_of_a_schedule_do_not_overlap,
        )
    }
    | audited_workflows.RULES
    | audited_steps.RULES
)


def audit(given: Evidence) -> list[Finding]:
    """What does not agree; nothing, if all is well."""
    return [Finding(name, about) for name, rule in RULES.items() for about in rule(given)]

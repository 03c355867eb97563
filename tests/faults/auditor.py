"""The auditor: whether what is in the database and in the handlers' files agrees with what was promised.

It is a function of rows and lines alone; `collect` fetches them. Jobs are told apart by the key that their producer gave
them, because an id whose transaction was lost in a crash may be given out again.

    findings = audit(collect(url, folder, producer.fates))
    assert findings == []
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import create_engine, text

from sa_jobqueue.lifecycle import FINISHED, TRANSITIONS, JobStatus
from tests.faults.workload import DOOMED, MAX_RESCUES, WITHOUT_SESSION, Fate, Word


class Row(NamedTuple):
    """A job as it is at the end; `lease`: its lease is live. Its rule, if it is a unique one; times in seconds of the epoch."""

    key: str
    id: int
    task: str
    status: str
    claims: int
    attempt: int
    max_attempts: int
    rescues: int
    lease: bool
    unique: str | None = None
    scope: str | None = None
    period: float | None = None
    duplicate_of: int | None = None
    created_at: float = 0.0
    finished_at: float | None = None
    expires_at: float | None = None
    deadline_at: float | None = None
    error: str | None = None
    overlap: str | None = None
    """Of the schedule that made it."""


class Step(NamedTuple):
    """A change of a job's state, as the observer saw it; `n` counts them. Times are seconds of the epoch."""

    key: str
    n: int
    at: float
    xid: str
    was: str | None
    claims_was: int | None
    rescues_was: int | None
    lease_was: float | None
    now: str | None
    claims: int | None
    rescues: int | None
    attempt: int | None = None
    worker: str | None = None
    error: str | None = None
    token: int | None = None


class Written(NamedTuple):
    """What a handler wrote through its session."""

    key: str
    token: int
    xid: str


class Said(NamedTuple):
    """A line of a handler's file; `at` is seconds of the epoch, of the host's clock."""

    key: str
    what: str
    token: int
    pid: int
    at: float


class Held(NamedTuple):
    """A unique key that is taken; `until`: it has a time until which it is."""

    unique: str
    id: int
    until: bool


class Tick(NamedTuple):
    """A job of a schedule: for which tick it is, for how many it stands; when it was made. Times are seconds of the epoch."""

    schedule: str
    key: str
    at: float
    number: int
    made_at: float


class Ticking(NamedTuple):
    """A schedule as it is at the end. `first`: its first tick; `next_at`: the first about which nothing is done yet."""

    name: str
    interval: float
    first: float
    next_at: float
    overlap: str
    catch_up: float | None
    left_out: int

    def place(self, at: float) -> int:
        """The number of the tick at this time, from 0 on. Fails for a time that is no tick."""
        place = round((at - self.first) / self.interval)
        assert abs(self.at(place) - at) < _MILLISECOND, f"{at} is no tick of {self}"
        return place

    def at(self, place: int) -> float:
        return self.first + place * self.interval


_MILLISECOND = 0.001


class Finding(NamedTuple):
    """A promise that was broken, and by what."""

    rule: str
    about: str


@dataclass(frozen=True)
class Evidence:
    """All that the auditor looks at.

    `forgotten`: from when to when (seconds of the epoch), for each failover, a server was asked whose commits are lost. What
    was claimed in that time is in the files alone.
    """

    fates: Mapping[str, Fate]
    rows: list[Row] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    effects: list[Written] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    forgotten: Sequence[tuple[float, float]] = ()
    held: list[Held] = field(default_factory=list)
    schedules: list[Ticking] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)

    def of(self, keys: Collection[str]) -> Evidence:
        """The part that is about these keys; of the schedules it is all."""
        chosen = set(keys)
        others = {row.id for row in self.rows if row.key not in chosen}
        return replace(
            self,
            fates={key: fate for key, fate in self.fates.items() if key in chosen},
            rows=[row for row in self.rows if row.key in chosen],
            steps=[step for step in self.steps if step.key in chosen],
            effects=[effect for effect in self.effects if effect.key in chosen],
            said=[line for line in self.said if line.key in chosen],
            held=[one for one in self.held if one.id not in others],
        )

    @cached_property
    def by_key(self) -> dict[str, list[Step]]:
        """Each job's changes, in their order."""
        found: dict[str, list[Step]] = defaultdict(list)
        for step in sorted(self.steps, key=lambda step: step.n):
            found[step.key].append(step)
        return found

    @cached_property
    def ends(self) -> dict[str, Step]:
        """Each job's last change, if it was into a final state."""
        last = {key: steps[-1] for key, steps in self.by_key.items()}
        return {key: step for key, step in last.items() if step.now in FINISHED}

    def ends_of_claims(self, since: float) -> list[float]:
        """When jobs ended whose last claim was made since then, in order."""
        claimed = {
            step.key: step.at for steps in self.by_key.values() for step in steps if step.now == JobStatus.RUNNING
        }
        return sorted(end.at for key, end in self.ends.items() if claimed.get(key, 0.0) >= since)

    @cached_property
    def holders(self) -> dict[str, list[Row]]:
        """The unique jobs that are no duplicates, by their key, in the order in which they were made."""
        found: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows:
            if row.unique is not None and row.duplicate_of is None and row.key in self.by_key:
                found[row.unique].append(row)
        for rows in found.values():
            rows.sort(key=lambda row: self.by_key[row.key][0].n)
        return found

    def remembered(self, line: Said) -> bool:
        """Whether the server that is asked now can know what led to this line."""
        return not any(begun <= line.at <= over for begun, over in self.forgotten)

    def duplicates(self, since: float = 0.0) -> int:
        """How many effects outside the database happened once more than they had to, and did so `since` then."""
        done: dict[str, list[float]] = defaultdict(list)
        for line in self.said:
            if line.what == Word.DID:
                done[line.key].append(line.at)
        return sum(at >= since for times in done.values() for at in sorted(times)[1:])


# ---- the promises


def committed_jobs_end(given: Evidence) -> Iterator[str]:
    """A job whose enqueueing transaction committed comes to a final state, and to the one that its handler brings about."""
    rows = {row.key: row for row in given.rows}
    for key, fate in given.fates.items():
        row = rows.get(key)
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


RULES: dict[str, Callable[[Evidence], Iterator[str]]] = {
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


def audit(given: Evidence) -> list[Finding]:
    """What does not agree; nothing, if all is well."""
    return [Finding(name, about) for name, rule in RULES.items() for about in rule(given)]


# ---- where it comes from

_ROWS = """
    SELECT audit.key(job), job.id, job.task, status, claims, attempt, job.max_attempts, rescues,
           coalesce(lease_expires_at > clock_timestamp(), false),
           job.uniqueness->>'key', CASE WHEN job.uniqueness IS NOT NULL THEN coalesce(job.uniqueness->>'scope', 'started') END,
           (job.uniqueness->>'period')::float8, duplicate_of,
           extract(epoch FROM job.created_at)::float8, extract(epoch FROM finished_at)::float8,
           extract(epoch FROM expires_at)::float8, extract(epoch FROM deadline_at)::float8, errors->-1->>'type', overlap
    FROM sa_jobqueue.job LEFT JOIN sa_jobqueue.schedule ON schedule.id = schedule_id WHERE audit.key(job) IS NOT NULL
"""
_STEPS = """
    SELECT key, n, extract(epoch FROM at)::float8, xid, was, claims_was, rescues_was,
           extract(epoch FROM lease_was)::float8, now, claims, rescues, attempt, worker, error, token
    FROM audit.history WHERE key IS NOT NULL
"""
_EFFECTS = "SELECT key, token, xid FROM audit.effect"
_TICKING = """
    SELECT name, split_part(expression, ' ', 2)::float8, split_part(expression, ' ', 2)::float8 + extract(epoch FROM counts_from)::float8,
           extract(epoch FROM next_at)::float8, overlap, catch_up, left_out
    FROM sa_jobqueue.schedule WHERE next_at IS NOT NULL
"""
_TICKS = """
    SELECT meta->>'schedule', audit.key(job), extract(epoch FROM tick_at)::float8, ticks, extract(epoch FROM created_at)::float8
    FROM sa_jobqueue.job WHERE schedule_id IS NOT NULL
"""
_HELD = "SELECT key, job_id, expires_at IS NOT NULL FROM sa_jobqueue.unique_key"


def collect(
    url: str, folder: Path, fates: Mapping[str, Fate], *, forgotten: Sequence[tuple[float, float]] = ()
) -> Evidence:
    """Fetch the evidence, all rows in one snapshot."""
    engine = create_engine(url, isolation_level="REPEATABLE READ")
    with engine.begin() as connection:
        rows = [Row._make(row) for row in connection.execute(text(_ROWS))]
        steps = [Step._make(row) for row in connection.execute(text(_STEPS))]
        effects = [Written._make(row) for row in connection.execute(text(_EFFECTS))]
        held = [Held._make(row) for row in connection.execute(text(_HELD))]
        schedules = [Ticking._make(row) for row in connection.execute(text(_TICKING))]
        ticks = [Tick._make(row) for row in connection.execute(text(_TICKS))]
    engine.dispose()
    said = read_words(folder)
    fates = {**_fates_of_ticks(said, ticks, forgotten), **fates}
    return Evidence(fates, rows, steps, effects, said, forgotten, held, schedules, ticks)


def _fates_of_ticks(
    said: Sequence[Said], ticks: Sequence[Tick], forgotten: Sequence[tuple[float, float]]
) -> dict[str, Fate]:
    """The jobs of schedules are committed, unless a failover may have lost them, and what came of them."""
    fates = {tick.key: Fate.COMMITTED for tick in ticks}
    times = {tick.key: tick.at for tick in ticks}
    for line in said:
        if "@" in line.key:
            times.setdefault(line.key, int(line.key.rpartition("@")[2]) / 1e6)
            fates.setdefault(line.key, Fate.COMMITTED)
    for key, at in times.items():
        if any(begun - CAUGHT_UP <= at <= over for begun, over in forgotten):
            fates[key] = Fate.UNKNOWN
    return fates


CAUGHT_UP = 60.0
"""Seconds by which a tick may be late, where the faults before were long."""


def read_words(folder: Path) -> list[Said]:
    """All whole lines of the handlers' files (a killed process may leave half a line)."""
    epoch = _epoch()
    said: list[Said] = []
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().split("\n")[:-1]:
            found = json.loads(line)
            said.append(Said(found["key"], found["what"], found["token"], found["pid"], epoch + found["at"]))
    return said


def _epoch() -> float:
    """What the host's clock said when its monotonic clock was 0, by the closest pair of looks at both."""
    pairs = [(time.monotonic(), time.time(), time.monotonic()) for _ in range(20)]
    before, now, after = min(pairs, key=lambda pair: pair[2] - pair[0])
    return now - (before + after) / 2

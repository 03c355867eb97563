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

    def of(self, keys: Collection[str]) -> Evidence:
        """The part that is about these keys."""
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
            if row.status != expected:
                yield f"{row} should be {expected}"


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


def nobody_holds_what_is_over(given: Evidence) -> Iterator[str]:
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
        nobody_holds_what_is_over,
        one_job_has_a_key,
        keys_are_held_by_jobs,
        duplicates_name_their_holder,
        changes_are_seen_by_a_later_run,
    )
}


def audit(given: Evidence) -> list[Finding]:
    """What does not agree; nothing, if all is well."""
    return [Finding(name, about) for name, rule in RULES.items() for about in rule(given)]


# ---- where it comes from

_ROWS = """
    SELECT meta->>'key', id, task, status, claims, attempt, max_attempts, rescues,
           coalesce(lease_expires_at > clock_timestamp(), false),
           uniqueness->>'key', CASE WHEN uniqueness IS NOT NULL THEN coalesce(uniqueness->>'scope', 'started') END,
           (uniqueness->>'period')::float8, duplicate_of,
           extract(epoch FROM created_at)::float8, extract(epoch FROM finished_at)::float8
    FROM sa_jobqueue.job WHERE meta ? 'key'
"""
_STEPS = """
    SELECT key, n, extract(epoch FROM at)::float8, xid, was, claims_was, rescues_was,
           extract(epoch FROM lease_was)::float8, now, claims, rescues, attempt, worker, error, token
    FROM audit.history WHERE key IS NOT NULL
"""
_EFFECTS = "SELECT key, token, xid FROM audit.effect"
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
    engine.dispose()
    return Evidence(dict(fates), rows, steps, effects, read_words(folder), forgotten, held)


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

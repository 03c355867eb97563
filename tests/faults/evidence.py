"""What the auditor looks at: rows, steps that the observer saw, lines of the handlers' files. `collect` fetches them.

Jobs are told apart by the key that their producer gave them, because an id whose transaction was lost in a crash may be given out again.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import create_engine, text

from sa_jobqueue.rules.lifecycle import FINISHED, JobStatus
from tests.faults.planned import EVENTS, Plan
from tests.faults.workload import Fate, Word


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


class Recorded(NamedTuple):
    """A recorded step. `n` numbers it together with the changes of jobs."""

    key: str
    n: int
    xid: str
    name: str
    kind: str
    token: int


class Signalled(NamedTuple):
    """A signal that was sent, or taken."""

    id: int
    n: int
    xid: str
    name: str
    was_sent: bool


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


class Flow(NamedTuple):
    """A workflow as it is at the end. `events`: how many are not read yet; `sizes`: how many edges, joins and callbacks it has."""

    key: str
    id: int
    status: str
    finished: bool
    events: int
    sizes: tuple[int, int, int]


@dataclass(frozen=True)
class Evidence:
    """All that the auditor looks at.

    `forgotten`: from when to when (seconds of the epoch), for each failover, a server was asked whose commits are lost. What
    was claimed in that time is in the files alone. `plans`: of the workflows that the producer has enqueued, or tried to. `mended`: what
    workers say of ends of members that had not been told.
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
    plans: Sequence[Plan] = ()
    workflows: list[Flow] = field(default_factory=list)
    mended: Sequence[str] = ()
    recorded: Sequence[Recorded] = ()
    step_effects: Sequence[tuple[str, str]] = ()
    """For each write of a step's session: the key of its job, and its transaction."""
    signals: Sequence[Signalled] = ()

    def of(self, keys: Collection[str]) -> Evidence:
        """The part that is about these keys; of the schedules it is all."""
        chosen = set(keys)
        plans = [plan for plan in self.plans if not chosen.isdisjoint(plan.jobs)]
        chosen.update(plan.callback(event) for plan in plans for event in EVENTS)
        others = {row.id for row in self.rows if row.key not in chosen}
        return replace(
            self,
            fates={key: fate for key, fate in self.fates.items() if key in chosen},
            rows=[row for row in self.rows if row.key in chosen],
            steps=[step for step in self.steps if step.key in chosen],
            effects=[effect for effect in self.effects if effect.key in chosen],
            said=[line for line in self.said if line.key in chosen],
            held=[one for one in self.held if one.id not in others],
            plans=plans,
            recorded=[step for step in self.recorded if step.key in chosen],
            step_effects=[effect for effect in self.step_effects if effect[0] in chosen],
            signals=[signal for signal in self.signals if signal.name.removeprefix("go:") in chosen],
        )

    @cached_property
    def by_key(self) -> dict[str, list[Step]]:
        """Each job's changes, in their order."""
        found: dict[str, list[Step]] = defaultdict(list)
        for step in sorted(self.steps, key=lambda step: step.n):
            found[step.key].append(step)
        return found

    @cached_property
    def members(self) -> dict[str, Row]:
        """The jobs that are members of the producer's workflows."""
        rows = {row.key: row for row in self.rows}
        return {key: rows[key] for plan in self.plans for key in plan.jobs if key in rows}

    @cached_property
    def flows(self) -> dict[str, list[Flow]]:
        """The workflows, by the key of their plan."""
        found: dict[str, list[Flow]] = defaultdict(list)
        for flow in self.workflows:
            found[flow.key].append(flow)
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
_WORKFLOWS = """
    SELECT w.meta->>'key', w.id, w.status, w.finished_at IS NOT NULL,
           (SELECT count(*) FROM sa_jobqueue.workflow_event AS event WHERE event.workflow_id = w.id),
           (SELECT count(*) FROM sa_jobqueue.workflow_dependency AS d JOIN sa_jobqueue.job ON job.id = d.child_id WHERE job.workflow_id = w.id),
           (SELECT count(*) FROM sa_jobqueue.workflow_join AS j WHERE j.workflow_id = w.id),
           (SELECT count(*) FROM sa_jobqueue.workflow_callback AS c WHERE c.workflow_id = w.id)
    FROM sa_jobqueue.workflow AS w WHERE w.meta ? 'key'
"""
_RECORDED = "SELECT key, n, xid, name, kind, token FROM audit.recorded WHERE key IS NOT NULL"
_STEP_EFFECTS = "SELECT key, xid FROM audit.step_effect"
_SIGNALS = "SELECT id, n, xid, name, was_sent FROM audit.signalled"
_HELD = "SELECT key, job_id, expires_at IS NOT NULL FROM sa_jobqueue.unique_key"


def collect(
    url: str,
    folder: Path,
    fates: Mapping[str, Fate],
    *,
    forgotten: Sequence[tuple[float, float]] = (),
    plans: Sequence[Plan] = (),
    mended: Sequence[str] = (),
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
        workflows = [Flow(*row[:5], tuple(row[5:])) for row in connection.execute(text(_WORKFLOWS))]
        recorded = [Recorded._make(row) for row in connection.execute(text(_RECORDED))]
        step_effects = [(key, xid) for key, xid in connection.execute(text(_STEP_EFFECTS))]
        signals = [Signalled._make(row) for row in connection.execute(text(_SIGNALS))]
    engine.dispose()
    said = read_words(folder)
    fates = {**_fates_of_ticks(said, ticks, forgotten), **fates}
    return Evidence(
        fates, rows, steps, effects, said, forgotten, held, schedules, ticks, plans, workflows, mended, recorded, step_effects, signals
    )  # fmt: skip


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

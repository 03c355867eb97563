"""Texts that several parts of these functions share."""

from __future__ import annotations

from textwrap import indent

__all__ = [
    "BEGUN",
    "BEGUN_AND_LATER",
    "BEGUN_AND_LATER_OR_ELSEWHERE",
    "BEGUN_AND_READY",
    "FREE",
    "HAS_STATES",
    "LATER",
    "OF_JOB",
    "READY",
    "TURN",
    "WITHOUT_KEY",
    "first_without_key",
    "free_at",
    "inside",
    "needed_at",
    "next_at",
    "owed_of",
    "room_of",
    "running_of_key",
]

#: The conditions of the indexes: jobs with a key that are ready, those that will be, and those that may have a permit.
READY = (
    "job.concurrency_key IS NOT NULL AND job.status = 'queued' AND job.run_at <= GREATEST(job.created_at, job.ready_at)"
)
LATER = (
    "job.concurrency_key IS NOT NULL AND job.status = 'queued' AND job.run_at > GREATEST(job.created_at, job.ready_at)"
)
BEGUN = "job.concurrency_key IS NOT NULL AND (job.status = 'running' OR (job.status = 'queued' AND job.claims > 0))"
TURN = "(- job.priority), job.run_at, job.id"
# Said so that only the index of the condition can be used, not that of the ready jobs.
BEGUN_AND_READY = f"{BEGUN} AND job.status <> 'running' AND NOT job.run_at > GREATEST(job.created_at, job.ready_at)"
_NOT_READY = "NOT job.run_at <= GREATEST(job.created_at, job.ready_at)"
BEGUN_AND_LATER = f"{BEGUN} AND job.status <> 'running' AND {_NOT_READY}"
BEGUN_AND_LATER_OR_ELSEWHERE = f"{BEGUN} AND job.status <> 'running' AND ({_NOT_READY} OR job.queue <> this)"
# What the statement that calls the function can see, too. A job that was enqueued while this one waited for a lock is none of its rows.
# Of the ages, those far below zero are of rows that are older than any transaction that goes on.
FREE = (
    "((age(job.xmin) > newest AND NOT job.xmin = ANY (unfinished))"
    " OR age(job.xmin) < -1000000 OR job.xmin = own OR newest IS NULL)"
    " AND job.id <> ALL (but_ids) AND job.id <> ALL (picked) AND job.id <> ALL (skipped)"
)
# A job of a savepoint has a transaction id of its own, of which that snapshot says nothing; it is higher than that of its transaction. So
# if transactions that went on then have ended since, the jobs behind the first of them may be theirs, and would use up a rate in vain.
_ENDED_SINCE = (
    "SELECT max(age(x::xid)) FROM pg_snapshot_xip(visible) AS x WHERE pg_visible_in_snapshot(x, pg_current_snapshot())"
)
SURE = (
    f"(NOT has_any_rate OR age(job.xmin) >= coalesce(({_ENDED_SINCE}), newest)"
    " OR age(job.xmin) < -1000000 OR coalesce(job.xmin = own, false) OR newest IS NULL)"
)
WITHOUT_KEY = "job.queue = this AND job.priority = p.level AND job.status = 'queued' AND job.concurrency_key IS NULL AND job.run_at <= clock"
OF_JOB = f"job.id, job.task, coalesce(job.units, 1)::integer AS units, {SURE} AS sure"

# Whether anything is kept of a key of this queue. Another claim writes it under the lock of the key; so it is asked behind that lock.
HAS_STATES = "EXISTS (SELECT FROM {schema}.limit_state AS s WHERE s.owner = 'queue' AND s.name = this AND s.key > '')"


def owed_of(state: str, count: str, seconds: str) -> str:
    """How many units of this rate are used up."""
    return f"{{schema}}.rate_owed({state}.free_at, {state}.owed_at, {state}.owed, clock, {count}, {seconds})"


def inside(text: str, spaces: int) -> str:
    """A part of a function, to stand at `spaces` behind the margin."""
    return indent(text, " " * spaces).strip()


def first_without_key(most: int, *, but: str = "") -> str:
    """The first jobs of this queue without a key, of whatever tasks, in their order: id and task."""
    return f"""SELECT front.* FROM generate_series(9, 0, -1) AS p (level) CROSS JOIN LATERAL (
    SELECT job.id, job.task FROM {{schema}}.job WHERE {WITHOUT_KEY}{but}
    ORDER BY job.run_at, job.id LIMIT {most}) AS front LIMIT {most}"""


def running_of_key(key: str, lowest: str = "0") -> str:
    """The condition of the jobs of a key that run, where none of them has a lower id than `lowest`.

    Said so that no plan can read all jobs from an id on, and the index is entered where they begin in it.
    """
    begin = f"(job.concurrency_key, job.status <> 'queued', job.id) >= ({key}, true, {lowest})"
    return f"{begin} AND job.concurrency_key <= {key} AND {BEGUN}"


def free_at(owed: str, step: str) -> str:
    """When a rate will be as if nothing had started: at most in 30,000 years, of which a time can still be written."""
    return f"CASE WHEN {owed} IS NOT NULL THEN clock + least({owed} * ({step}), 1e12) * interval '1 second' END"


def room_of(owed: str, burst: str) -> str:
    """How many units a rate lets start, of whose burst `owed` units are used up. NULL without a rate."""
    return f"CASE WHEN {owed} IS NOT NULL THEN floor({burst} - least({owed}, {burst}) + 0.000001)::integer END"


def next_at(owed: str, limit: str) -> str:
    """When a rate would let the next unit start."""
    return _later(f"{owed} + 1 - {limit}burst", f"{limit}seconds / {limit}count")


def needed_at(*, owed: str, step: str, burst: str, used: str, units: str, found: str) -> str:
    """When a rate would let these `units` of one job start, behind those that are `used` in this claim.

    `found`: the units of all jobs up to it that were found now. `step`: seconds for one unit.
    """
    behind = f"coalesce({used}, 0) + coalesce({found}, 0) - {units}"
    return _later(f"{owed} + {behind} + least({units}, {burst}) - {burst}", step)


def _later(units: str, step: str) -> str:
    """When a rate has let so many `units` start; NULL without a rate. At most in 300 years, so that no number of units makes a claim fail."""
    return f"CASE WHEN {step} IS NOT NULL THEN clock + greatest(least(({units}) * ({step}), 1e10), 0) * interval '1 second' END"

"""Limits: pauses that keep jobs waiting, permits that are not released, and unknown names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from ...health.work import LimitUse, PausedKey
from ...rules.words import age, listed
from ...sql.limits.use import KEYS, count_states, ready_of_keys, stuck_permits
from ...sql.readings.depths import CAP, capped
from ...sql.readings.stats import MINUTE
from ...util.log import escaped, one_line
from ..examination import Examination
from ..finding import Fault, Finding, Level, beyond, found
from .tasks import known_tasks

_DAY = timedelta(days=1)
_ILL: tuple[Level, ...] = ("problem", "notice")
#: The most pauses and limits that are listed.
_NAMED = 3
#: The number of keys of a queue from which on it is mentioned.
_MANY_KEYS = 100


def check_limits(examination: Examination) -> Finding:
    """Pauses that keep jobs waiting, limits whose permits are all stuck, and limits of unknown names."""
    uses, keys = examination.limit_uses, examination.paused_keys
    paused: list[LimitUse | PausedKey] = [*(use for use in uses if use.paused is not None), *keys]
    waiting = [use for use in paused if _waits(examination, use)]
    stuck = _stuck(examination)
    states = examination.connection.scalar(count_states(job=examination.store.job)) or 0
    keys_by_queue = examination.ready_keys
    facts = "; ".join(
        [
            _number_of_limits(len(uses)),
            *_busy_queues(keys_by_queue),
            *([f"{capped(states)} states are kept"] if states else []),
        ]
    )
    faults = [
        *_pauses(examination, waiting),
        *_breakers(examination, uses),
        *_held(stuck),
        *_unknown(examination, uses),
    ]
    if faults:
        faults.append(("ok", facts, ""))
    return found(
        "limits",
        facts,
        *faults,
        about=[(use.owner, use.name) for use in waiting],
        limits=len(uses),
        paused=len(paused),
        waiting=sum(use.due for use in waiting),
        stuck=len(stuck),
        keys=max(keys_by_queue.values(), default=0),
        states=states,
    )


def _number_of_limits(number: int) -> str:
    if not number:
        return "no queue and no task has limits"
    if number == 1:
        return "1 queue or task has limits or a pause"
    return f"{number:,} queues and tasks have limits or a pause"


# ---- Pauses.


def _waits(examination: Examination, use: LimitUse | PausedKey) -> bool:
    """Whether jobs wait because of the pause. For a task that no claim has skipped yet, only a sample tells."""
    is_task = isinstance(use, LimitUse) and use.owner == "task"
    return use.due > 0 or (is_task and any(task == use.name for _, task in examination.queued_tasks))


def _pauses(examination: Examination, waiting: Sequence[LimitUse | PausedKey]) -> Iterator[Fault]:
    levels = [beyond(use.paused or 0.0, examination.thresholds.paused) for use in waiting]
    for level in _ILL:
        its = [use for use, other in zip(waiting, levels, strict=True) if other == level]
        if not its:
            continue
        its.sort(key=lambda use: -use.due)
        names = listed([f"{_named(use.owner, use.name, _key(use))} {_since(use)}" for use in its], _NAMED)
        yield level, f"jobs wait because of a pause: {names}", _how_to_resume(its)


def _breakers(examination: Examination, uses: Sequence[LimitUse]) -> Iterator[Fault]:
    """Breakers of tasks that have queued jobs."""
    if names := [_named(use.owner, use.name, None) for use in uses if use.broken and _waits(examination, use)]:
        advice = "`sa-jobqueue limits list` tells until when; `sa-jobqueue errors` why, and `limits close NAME` starts the jobs"
        yield "notice", f"jobs wait because of a breaker: {listed(names, _NAMED)}", advice


def _since(use: LimitUse | PausedKey) -> str:
    reason = f", {escaped(one_line(use.pause_reason))!r}" if use.pause_reason else ""
    number = f"{capped(use.due)} due" if use.due else "some are queued"
    return f"(for {age(use.paused)}{reason}; {number})"


def _key(use: LimitUse | PausedKey) -> str | None:
    return use.key if isinstance(use, PausedKey) else None


def _named(owner: str, name: str, key: str | None) -> str:
    """Return a name like "queue mail", "task shop.send", "queue sync key 42"."""
    return f"{owner} {escaped(name)}" + ("" if key is None else f" key {escaped(key)}")


def _how_to_resume(its: Sequence[LimitUse | PausedKey]) -> str:
    commands = [
        f"`sa-jobqueue resume {escaped(use.name)}"
        + (" --task" if use.owner == "task" else "")
        + ("`" if (key := _key(use)) is None else f" --key {escaped(key)}`")
        for use in its
    ]
    return f"when the reason is gone: {listed(commands, _NAMED)}"


# ---- Permits.


def _stuck(examination: Examination) -> list[Any]:
    """Limits whose permits are all held by jobs of dead workers, or for a long time while other jobs wait."""
    statement = stuck_permits(seconds=examination.thresholds.permits_held, job=examination.store.job)
    rows = examination.connection.execute(statement).all()
    awaited = _awaited_keys(examination, [row for row in rows if row.key is not None and not row.expired])
    return [row for row in rows if row.expired or _is_awaited(examination, row, awaited)]


def _awaited_keys(examination: Examination, rows: Sequence[Any]) -> set[tuple[str, str, str]]:
    """The keys among these that have ready jobs."""
    if not rows:
        return set()
    owners, names, keys = ([getattr(row, part) for row in rows] for part in ("owner", "name", "key"))
    counted = examination.connection.execute(ready_of_keys(owners, names, keys, job=examination.store.job))
    return {(row.owner, row.name, row.key) for row in counted if row.due}


def _is_awaited(examination: Examination, row: Any, awaited: set[tuple[str, str, str]]) -> bool:
    if row.key is not None:
        return (row.owner, row.name, row.key) in awaited
    if row.owner == "queue":
        return any(depth.due for depth in examination.depths if depth.queue == row.name)
    return any(task == row.name for _, task in examination.queued_tasks)


def _held(stuck: Sequence[Any]) -> Iterator[Fault]:
    if lapsed := [row for row in stuck if row.expired]:
        names = listed([_permits(row) for row in lapsed], _NAMED)
        advice = "any worker rescues them within seconds: start one, or see the workers' log"
        yield "problem", f"all permits are held by jobs whose lease has expired: {names}", advice
    if long := [row for row in stuck if not row.expired]:
        names = listed([f"{_permits(row)[:-1]}, for {age(row.seconds)} or more)" for row in long], _NAMED)
        advice = "see whether their handlers hang (`sa-jobqueue show ID`); @task(timeout=...) ends such runs"
        yield "notice", f"all permits have been held for a long time, and jobs wait for them: {names}", advice


def _permits(row: Any) -> str:
    ids = ", ".join(map(str, row.job_ids)) + (", …" if row.used > len(row.job_ids) else "")
    return f"{_named(row.owner, row.name, row.key)} ({row.used:,} of {row.limit:,}: job{'s' if row.used > 1 else ''} {ids})"


# ---- Names.


def _unknown(examination: Examination, uses: Sequence[LimitUse]) -> Iterator[Fault]:
    """Limited or paused names that no job of the last day, no schedule and no live worker has."""
    asked = [use for use in uses if (use.held or use.paused is not None) and not use.due]
    names = {owner: _names(examination, owner) for owner in {use.owner for use in asked}}
    lost = [use for use in asked if use.name not in names[use.owner]]
    # Without workers, or with a worker that does not list its tasks, any task may be known.
    if not examination.abilities or not lost:
        return
    if not all(worker.tasks for worker in examination.abilities):
        lost = [use for use in lost if use.owner == "queue"]
    if lost:
        unknown = listed([_named(use.owner, use.name, None) for use in lost])
        advice = "check the name; `sa-jobqueue limits remove NAME` and `resume NAME` undo the change"
        yield "notice", f"limited or paused, but no job, schedule or live worker has that name: {unknown}", advice


def _names(examination: Examination, owner: str) -> set[str]:
    """The names of known queues or tasks."""
    tables = examination.store.tables
    at = 0 if owner == "queue" else 1
    used = {pair[at] for pair in examination.queued_tasks}
    schedule = tables.schedule.queue if owner == "queue" else tables.schedule.task
    used |= set(examination.connection.scalars(sa.select(schedule).distinct()))
    if owner == "task":
        used |= known_tasks(examination) | (examination.tasks or frozenset())
        return used | {row.task for row in examination.stats(_DAY)}
    used |= {name for worker in examination.workers for name in worker.queues}
    # By the index alone.
    lately = [tables.stat.seconds == MINUTE, tables.stat.at >= sa.func.now() - _DAY]
    return used | set(examination.connection.scalars(sa.select(tables.stat.queue).where(*lately).distinct()))


def _busy_queues(keys_by_queue: Mapping[str, int]) -> list[str]:
    not_all = sum(keys_by_queue.values()) >= CAP  # each was counted up to its share

    def of(name: str, number: int) -> str:
        return f"{KEYS - 1:,}+ in {name}" if number == KEYS else f"{number:,}{'+' if not_all else ''} in {name}"

    long = sorted(((number, name) for name, number in keys_by_queue.items() if number >= _MANY_KEYS), reverse=True)
    detail = [of(escaped(name), number) for number, name in long]
    return [f"keys that take turns: {listed(detail, _NAMED)}"] if detail else []

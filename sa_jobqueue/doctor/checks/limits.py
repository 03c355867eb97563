"""Limits: pauses that keep jobs waiting, permits that do not come free, and names that nothing has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from ...health.work import LimitUse, PausedKey
from ...rules.words import age, listed
from ...sql.limits.use import KEYS, count_states, ready_of_keys, stuck_permits
from ...sql.readings.depths import CAP, capped
from ...sql.readings.stats import By, sum_stats
from ...util.log import escaped, one_line
from ..examination import Examination
from ..finding import Finding, Level, beyond, found
from .tasks import known_tasks

_Ill = tuple[Level, str, str]

_DAY = timedelta(days=1)
_BY_QUEUE: tuple[By, ...] = ("queue",)
_ILL: tuple[Level, ...] = ("problem", "notice")
#: Pauses and limits that are named.
_NAMED = 3
#: Keys that take turns in a queue, from which on they are told.
_MANY_KEYS = 100


def check_limits(examination: Examination) -> Finding:
    """What a pause keeps waiting, limits whose permits are all stuck, and limits of names that no job has."""
    uses, keys = examination.limit_uses, examination.paused_keys
    paused: list[LimitUse | PausedKey] = [*(one for one in uses if one.paused is not None), *keys]
    waiting = [one for one in paused if _waits(examination, one)]
    stuck = _stuck(examination)
    states = examination.connection.scalar(count_states(job=examination.store.job)) or 0
    rings = examination.ready_keys
    facts = "; ".join(
        [_said(len(uses)), *_long_rings(rings), *([f"{capped(states)} states are kept"] if states else [])]
    )
    ill = [*_pauses(examination, waiting), *_held(stuck), *_unknown(examination, uses)]
    if ill:
        ill.append(("ok", facts, ""))
    return found(
        "limits",
        facts,
        *ill,
        limits=len(uses),
        paused=len(paused),
        waiting=sum(one.due for one in waiting),
        stuck=len(stuck),
        keys=max(rings.values(), default=0),
        states=states,
    )


def _said(number: int) -> str:
    if not number:
        return "no queue and no task has limits"
    return (
        "1 queue or task has limits or a pause"
        if number == 1
        else f"{number:,} queues and tasks have limits or a pause"
    )


# ---- pauses


def _waits(examination: Examination, one: LimitUse | PausedKey) -> bool:
    """Whether jobs wait because of it. Of a task that no claim has passed yet, only a sample tells."""
    is_task = isinstance(one, LimitUse) and one.owner == "task"
    return one.due > 0 or (is_task and any(task == one.name for _, task in examination.queued_tasks))


def _pauses(examination: Examination, waiting: Sequence[LimitUse | PausedKey]) -> Iterator[_Ill]:
    levels = [beyond(one.paused or 0.0, examination.thresholds.paused) for one in waiting]
    for level in _ILL:
        its = [one for one, other in zip(waiting, levels, strict=True) if other == level]
        if not its:
            continue
        its.sort(key=lambda one: -one.due)
        names = listed([f"{_named(one.owner, one.name, _key(one))} {_since(one)}" for one in its], _NAMED)
        yield level, f"jobs wait because of a pause: {names}", _how_to_resume(its)


def _since(one: LimitUse | PausedKey) -> str:
    reason = f", {escaped(one_line(one.pause_reason))!r}" if one.pause_reason else ""
    number = f"{capped(one.due)} due" if one.due else "some are queued"
    return f"(for {age(one.paused)}{reason}; {number})"


def _key(one: LimitUse | PausedKey) -> str | None:
    return one.key if isinstance(one, PausedKey) else None


def _named(owner: str, name: str, key: str | None) -> str:
    """As in "queue mail", "task shop.send", "queue sync key 42"."""
    return f"{owner} {escaped(name)}" + ("" if key is None else f" key {escaped(key)}")


def _how_to_resume(its: Sequence[LimitUse | PausedKey]) -> str:
    commands = [
        f"`sa-jobqueue resume {escaped(one.name)}"
        + (" --task" if one.owner == "task" else "")
        + ("`" if (key := _key(one)) is None else f" --key {escaped(key)}`")
        for one in its
    ]
    return f"when the reason is gone: {listed(commands, _NAMED)}"


# ---- permits


def _stuck(examination: Examination) -> list[Any]:
    """Limits all of whose permits are held by jobs of dead workers, or for long while others wait."""
    statement = stuck_permits(
        seconds=examination.thresholds.permits_held,
        job=examination.store.job,
    )
    rows = examination.connection.execute(statement).all()
    awaited = _awaited_keys(examination, [row for row in rows if row.key is not None and not row.expired])
    return [row for row in rows if row.expired or _is_awaited(examination, row, awaited)]


def _awaited_keys(examination: Examination, rows: Sequence[Any]) -> set[tuple[str, str, str]]:
    """Those of these keys that have ready jobs."""
    if not rows:
        return set()
    owners, names, keys = ([getattr(row, part) for row in rows] for part in ("owner", "name", "key"))
    counted = examination.connection.execute(ready_of_keys(owners, names, keys, job=examination.store.job))
    return {(row.owner, row.name, row.key) for row in counted if row.due}


def _is_awaited(examination: Examination, row: Any, awaited: set[tuple[str, str, str]]) -> bool:
    if row.key is not None:
        return (row.owner, row.name, row.key) in awaited
    if row.owner == "queue":
        return any(one.due for one in examination.depths if one.queue == row.name)
    return any(task == row.name for _, task in examination.queued_tasks)


def _held(stuck: Sequence[Any]) -> Iterator[_Ill]:
    if lapsed := [row for row in stuck if row.expired]:
        names = listed([_permits(row) for row in lapsed], _NAMED)
        advice = "any worker rescues them within seconds: start one, or see the log of those that run"
        yield "problem", f"all permits are held by jobs whose lease has run out: {names}", advice
    if long := [row for row in stuck if not row.expired]:
        names = listed([f"{_permits(row)[:-1]}, for {age(row.seconds)} or more)" for row in long], _NAMED)
        advice = "see whether their handlers hang (`sa-jobqueue show ID`); @task(timeout=...) ends such runs"
        yield "notice", f"all permits have been held for long, and jobs wait for them: {names}", advice


def _permits(row: Any) -> str:
    ids = ", ".join(map(str, row.job_ids)) + (", …" if row.used > len(row.job_ids) else "")
    return f"{_named(row.owner, row.name, row.key)} ({row.used:,} of {row.limit:,}: job{'s' if row.used > 1 else ''} {ids})"


# ---- names


def _unknown(examination: Examination, uses: Sequence[LimitUse]) -> Iterator[_Ill]:
    """What operators have limited or paused, and nothing bears that name: no job of the last day, no schedule, no live worker."""
    asked = [one for one in uses if one.held or one.paused is not None]
    lost = [one for one in asked if not one.due and one.name not in _names(examination, one.owner)] if asked else []
    # Without workers, or where one does not say which tasks it knows, any may be known.
    if not examination.abilities or not lost:
        return
    if not all(worker.tasks for worker in examination.abilities):
        lost = [one for one in lost if one.owner == "queue"]
    if lost:
        names = listed([_named(one.owner, one.name, None) for one in lost])
        advice = (
            "see whether the name is right; `sa-jobqueue limits remove NAME` and `resume NAME` take back what was said"
        )
        yield "notice", f"limited or paused, but no job, schedule or live worker has that name: {names}", advice


def _names(examination: Examination, owner: str) -> set[str]:
    """The names of queues or tasks that there are."""
    tables = examination.store.tables
    at = 0 if owner == "queue" else 1
    used = {pair[at] for pair in examination.queued_tasks}
    schedule = tables.schedule.queue if owner == "queue" else tables.schedule.task
    used |= set(examination.connection.scalars(sa.select(schedule).distinct()))
    if owner == "task":
        used |= known_tasks(examination) | (examination.tasks or frozenset())
        return used | {row.task for row in examination.stats(_DAY)}
    used |= {name for worker in examination.workers for name in worker.queues}
    counted = sum_stats(since=_DAY, by=_BY_QUEUE, stat=tables.stat)
    return used | {row.queue for row in examination.connection.execute(counted)}


def _long_rings(rings: Mapping[str, int]) -> list[str]:
    not_all = sum(rings.values()) >= CAP  # each was counted up to its share

    def of(name: str, number: int) -> str:
        return f"{KEYS - 1:,}+ in {name}" if number == KEYS else f"{number:,}{'+' if not_all else ''} in {name}"

    long = sorted(((number, name) for name, number in rings.items() if number >= _MANY_KEYS), reverse=True)
    said = [of(escaped(name), number) for number, name in long]
    return [f"keys that take turns: {listed(said, _NAMED)}"] if said else []

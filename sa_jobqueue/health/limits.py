"""Limits and pauses: how many permits are used, what waits because of a pause, and how many keys take turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from ..statements import limit_use
from ..store import Store, default_store

__all__ = ["LimitUse", "PausedKey", "read_limit_uses", "read_paused_keys", "read_ready_keys"]


@dataclass(frozen=True, slots=True)
class LimitUse:
    """A queue or a task that has limits or is paused."""

    owner: str
    """Whether it is a "queue" or a "task"."""
    name: str
    limited: bool
    held: bool
    """Whether an operator has set its limits."""
    running: int | None
    """How many of its jobs may run at once."""
    used: int | None
    """How many do, where that is limited; 10,001 running jobs are counted."""
    paused: float | None
    """For how many seconds it is paused; None: it is not."""
    pause_reason: str | None
    due: int = 0
    """Where it is paused: its jobs that are due, counted up to 10,001. Of a task, those without a key, from when a claim has passed them."""


@dataclass(frozen=True, slots=True)
class PausedKey:
    """A paused key of a queue or a task, whose other keys may go on."""

    owner: str
    name: str
    key: str
    paused: float
    """For how many seconds."""
    pause_reason: str | None
    due: int = 0
    """Its jobs that are due, counted up to 10,001."""


def read_limit_uses(connection: sa.Connection, store: Store = default_store) -> list[LimitUse]:
    """The queues and tasks with limits or a pause, by owner and name; the first 1,000. Without any it is one look at an empty table."""
    tables = store.tables
    said = connection.execute(limit_use.limits_said(limit=tables.limit)).all()
    used: Counter[tuple[str, str]] = Counter()
    if any(row.running is not None for row in said):
        for row in connection.execute(limit_use.running_of_tasks(job=tables.job)):
            used["queue", row.queue] += row.running
            used["task", row.task] += row.running
    paused = [(row.owner, row.name) for row in said if row.paused is not None]
    due = _due(connection, paused, store)
    return [
        LimitUse(
            row.owner,
            row.name,
            row.limited,
            row.held,
            row.running,
            None if row.running is None else used[row.owner, row.name],
            row.paused,
            row.pause_reason,
            due.get((row.owner, row.name), 0),
        )
        for row in said
    ]


def _due(connection: sa.Connection, paused: Sequence[tuple[str, str]], store: Store) -> dict[tuple[str, str], int]:
    """The due jobs of queues and tasks that are paused."""
    job = store.tables.job
    due: dict[tuple[str, str], int] = {}
    if queues := [name for owner, name in paused if owner == "queue"]:
        rows = connection.execute(limit_use.due_of_queues(queues, job=job))
        due |= {("queue", row.name): row.due for row in rows}
    if tasks := [name for owner, name in paused if owner == "task"]:
        of_tasks = limit_use.ready_of_keys(["task"] * len(tasks), tasks, [None] * len(tasks), job=job)
        due |= {("task", row.name): row.due for row in connection.execute(of_tasks)}
    return due


def read_paused_keys(connection: sa.Connection, store: Store = default_store) -> list[PausedKey]:
    """The paused keys; 100 at most, among the first 10,001 that operators have said something of."""
    tables = store.tables
    said = connection.execute(limit_use.paused_keys(limit_key=tables.key)).all()
    if not said:
        return []
    owners, names, keys = ([getattr(row, part) for row in said] for part in ("owner", "name", "key"))
    counted = connection.execute(limit_use.ready_of_keys(owners, names, keys, job=tables.job))
    due = {(row.owner, row.name, row.key): row.due for row in counted}
    return [
        PausedKey(
            row.owner, row.name, row.key, row.paused, row.pause_reason, due.get((row.owner, row.name, row.key), 0)
        )
        for row in said
    ]


def read_ready_keys(connection: sa.Connection, store: Store = default_store) -> dict[str, int]:
    """How many keys of each queue have ready jobs; counted up to 1,001 of a queue, and up to 10,001 of all."""
    rows = connection.execute(limit_use.ready_keys(job=store.tables.job))
    return {row.queue: row.number for row in rows}

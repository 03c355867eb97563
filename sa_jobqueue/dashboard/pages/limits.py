"""The limits, their use, the jobs that hold full limits, and pauses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from ...health.work import LimitUse, PausedKey, read_limit_uses, read_paused_keys
from ...rules.limits import rate_said
from ...sql.limits.use import due_of_queues, full_rates, ready_of_keys, running_of_keys, stuck_permits
from ...sql.parts import table_of
from ...sql.store import store_of
from ..actions.limits import is_mine, shown_limits
from ..request import Page, PageContext

#: The most rows of a table.
_MOST = 100
_RATES = ("", "key_")


def read_limits(context: PageContext) -> dict[str, Any]:
    """The limits. A viewer who may see only some queues is shown the limits of these queues, and not those of tasks."""
    connection, store, access = context.connection, store_of(context.job), context.access
    used = _used(context)
    owners = [_shown(row, None, used) for row in _rows(context, context.tables.limit, sa.literal(""))]
    key = table_of(context.tables.key).c.key
    wanted = [key == context.query.one("key")] if context.query.one("key") else []
    keys = [_shown(row, row["key"], used) for row in _rows(context, context.tables.key, key, *wanted)]
    paused: list[LimitUse | PausedKey] = [use for use in read_limit_uses(connection, store) if use.paused is not None]
    paused += read_paused_keys(connection, store)
    now: Any = context.now()
    return {
        "now": now,
        "name": context.query.one("name"),
        "key": context.query.one("key"),
        "full": _full(context),
        "rates": _full_rates(context, now),
        "paused": [
            {
                "owner": use.owner, "name": use.name, "key": _key_of(use), "place": _place(use.owner, use.name, _key_of(use)),
                "since": use.paused, "reason": use.pause_reason, "due": use.due,
            }
            for use in paused
            if is_mine(context, use.owner, use.name)
        ],
        "owners": owners[:_MOST],
        "keys": keys[:_MOST],
        "cut": len(owners) > _MOST or len(keys) > _MOST,
        "most": _MOST,
        "may_limit": access.may("limit"),
        "may_pause": access.may("pause"),
    }  # fmt: skip


def _key_of(use: LimitUse | PausedKey) -> str | None:
    return use.key if isinstance(use, PausedKey) else None


def _place(owner: str, name: str, key: str | None) -> list[tuple[str, str]]:
    """The hidden fields of a form about a queue, a task or a key."""
    return [("owner", owner), ("name", name), *([] if key is None else [("key", key)])]


def _used(context: PageContext) -> Counter[tuple[str, str, str | None]]:
    """The numbers of running jobs by queue, task and key."""
    used: Counter[tuple[str, str, str | None]] = Counter()
    for row in context.connection.execute(running_of_keys(job=context.job)):
        for owner, name in (("queue", row.queue), ("task", row.task)):
            used[owner, name, None] += row.running
            if row.key is not None:
                used[owner, name, row.key] += row.running
    return used


def _rows(context: PageContext, mapped: type[Any], key: Any, *where: sa.ColumnElement[bool]) -> Sequence[sa.RowMapping]:
    """The rows that meet the filter, and that the viewer may see, with the time until which each is blocked."""
    table, state = table_of(mapped), table_of(context.tables.limit_state)
    criteria = list(where)
    if context.queues is not None:
        criteria += [table.c.owner == "queue", table.c.name.in_(sorted(context.queues))]
    if name := context.query.one("name"):
        criteria.append(table.c.name == name)
    its_state = sa.and_(state.c.owner == table.c.owner, state.c.name == table.c.name, state.c.key == key)
    statement = (
        sa.select(*table.c, state.c.blocked_until)
        .select_from(table.outerjoin(state, its_state))
        .where(*criteria)
        .order_by(*table.primary_key.columns)
        .limit(_MOST + 1)
    )
    return context.connection.execute(statement).mappings().all()


def _shown(row: Any, key: str | None, used: Counter[tuple[str, str, str | None]]) -> dict[str, Any]:
    rates: dict[str, str] = {}
    for prefix in _RATES:
        if f"{prefix}rate_count" in row:
            count, seconds, burst = (row[f"{prefix}rate_{part}"] for part in ("count", "seconds", "burst"))
            rates |= {f"{prefix}said": rate_said(count, seconds, burst), f"{prefix}rate": rate_said(count, seconds)}
    place = _place(row["owner"], row["name"], key)
    use = used[row["owner"], row["name"], key]
    return {**row, **rates, "key": key, "seen": shown_limits(row), "place": place, "used": use}


def _full(context: PageContext) -> list[dict[str, Any]]:
    """The limits whose permits are all held: by which jobs, for how long, and how many jobs wait."""
    statement = stuck_permits(seconds=0.0, most=_MOST, job=context.job)
    full = [row for row in context.connection.execute(statement) if is_mine(context, row.owner, row.name)]
    waiting = _waiting(context, full)
    return [
        {
            "owner": row.owner, "name": row.name, "key": row.key, "limit": row.limit, "used": row.used, "seconds": row.seconds,
            "expired": row.expired, "jobs": row.job_ids, "waiting": waiting.get((row.owner, row.name, row.key), 0),
        }
        for row in full
    ]  # fmt: skip


def _full_rates(context: PageContext, now: datetime) -> list[dict[str, Any]]:
    """The rates that hold jobs back now: the number of jobs, and the time of the next start."""
    statement = full_rates(most=_MOST, job=context.job)
    full = [row for row in context.connection.execute(statement) if is_mine(context, row.owner, row.name)]
    waiting = _waiting(context, full)
    return [
        {
            "owner": row.owner, "name": row.name, "key": row.key, "rate": rate_said(row.starts, row.seconds, row.burst),
            "until": now + timedelta(seconds=min(row.left, 1e9)),
            "waiting": number,
        }
        for row in full
        if (number := waiting.get((row.owner, row.name, row.key), 0))
    ]  # fmt: skip


def _waiting(context: PageContext, full: Sequence[Any]) -> dict[tuple[str, str, str | None], int]:
    """The numbers of due jobs that wait for full limits."""
    connection, job = context.connection, context.job
    found: dict[tuple[str, str, str | None], int] = {}
    if queues := [row.name for row in full if row.owner == "queue" and row.key is None]:
        found |= {("queue", row.name, None): row.due for row in connection.execute(due_of_queues(queues, job=job))}
    if others := [row for row in full if row.owner == "task" or row.key is not None]:
        asked = ([getattr(row, part) for row in others] for part in ("owner", "name", "key"))
        counted = connection.execute(ready_of_keys(*asked, job=job))
        found |= {(row.owner, row.name, row.key): row.due for row in counted}
    return found


LIMITS = Page("limits", "Limits and keys", "/limits", read_limits, adds_up=True)

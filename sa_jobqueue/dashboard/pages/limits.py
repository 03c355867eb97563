"""The limits that there are, what of them is used, who waits for whom, and what is paused."""

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

#: Rows of a table.
_MOST = 100
_RATES = ("", "key_")


def read_limits(context: PageContext) -> dict[str, Any]:
    """All of it. A viewer who may see some queues alone is shown the limits of these queues, and not those of tasks."""
    connection, store, access = context.connection, store_of(context.job), context.access
    used = _used(context)
    owners, keys = _owners(context, used), _keys(context, used)
    paused: list[LimitUse | PausedKey] = [one for one in read_limit_uses(connection, store) if one.paused is not None]
    paused += read_paused_keys(connection, store)
    now: Any = connection.scalar(sa.select(sa.func.now()))
    return {
        "now": now,
        "name": context.query.one("name"),
        "key": context.query.one("key"),
        "full": _full(context),
        "rates": _full_rates(context, now),
        "paused": [
            {
                "owner": one.owner, "name": one.name, "key": _key_of(one), "place": _place(one.owner, one.name, _key_of(one)),
                "since": one.paused, "reason": one.pause_reason, "due": one.due,
            }
            for one in paused
            if is_mine(context, one.owner, one.name)
        ],
        "owners": owners[:_MOST],
        "keys": keys[:_MOST],
        "cut": len(owners) > _MOST or len(keys) > _MOST,
        "most": _MOST,
        "may_limit": access.may("limit"),
        "may_pause": access.may("pause"),
    }  # fmt: skip


def _key_of(one: LimitUse | PausedKey) -> str | None:
    return one.key if isinstance(one, PausedKey) else None


def _place(owner: str, name: str, key: str | None) -> list[tuple[str, str]]:
    """The hidden fields of a form about it."""
    return [("owner", owner), ("name", name), *([] if key is None else [("key", key)])]


def _used(context: PageContext) -> Counter[tuple[str, str, str | None]]:
    """How many jobs of each queue, task and key run."""
    used: Counter[tuple[str, str, str | None]] = Counter()
    for row in context.connection.execute(running_of_keys(job=context.job)):
        for owner, name in (("queue", row.queue), ("task", row.task)):
            used[owner, name, None] += row.running
            if row.key is not None:
                used[owner, name, row.key] += row.running
    return used


def _owners(context: PageContext, used: Counter[tuple[str, str, str | None]]) -> list[dict[str, Any]]:
    """The queues and tasks."""
    return [_shown(row, None, used) for row in _rows(context, context.options.beside.limit, sa.literal(""))]


def _keys(context: PageContext, used: Counter[tuple[str, str, str | None]]) -> list[dict[str, Any]]:
    """The single keys of which an operator has said something."""
    mapped = context.options.beside.key
    key = table_of(mapped).c.key
    wanted = context.query.one("key")
    return [_shown(row, row["key"], used) for row in _rows(context, mapped, key, *([key == wanted] if wanted else []))]


def _rows(context: PageContext, mapped: type[Any], key: Any, *where: sa.ColumnElement[bool]) -> Sequence[sa.RowMapping]:
    """The rows that the viewer asks for, and may see, and until when each is blocked."""
    of, state = table_of(mapped), table_of(context.options.beside.limit_state)
    criteria = list(where)
    if context.queues is not None:
        criteria += [of.c.owner == "queue", of.c.name.in_(sorted(context.queues))]
    if name := context.query.one("name"):
        criteria.append(of.c.name == name)
    its_own = sa.and_(state.c.owner == of.c.owner, state.c.name == of.c.name, state.c.key == key)
    statement = (
        sa.select(*of.c, state.c.blocked_until)
        .select_from(of.outerjoin(state, its_own))
        .where(*criteria)
        .order_by(*of.primary_key.columns)
        .limit(_MOST + 1)
    )
    return context.connection.execute(statement).mappings().all()


def _shown(row: Any, key: str | None, used: Counter[tuple[str, str, str | None]]) -> dict[str, Any]:
    said = {f"{prefix}said": rate_said(*_rate(row, prefix)) for prefix in _RATES if f"{prefix}rate_count" in row}
    alone = {f"{prefix}rate": rate_said(*_rate(row, prefix)[:2]) for prefix in _RATES if f"{prefix}rate_count" in row}
    its = {"key": key, "seen": shown_limits(row), "place": _place(row["owner"], row["name"], key)}
    return {**row, **said, **alone, **its, "used": used[row["owner"], row["name"], key]}


def _rate(row: Any, prefix: str) -> tuple[Any, Any, Any]:
    count, seconds, burst = (row[f"{prefix}rate_{part}"] for part in ("count", "seconds", "burst"))
    return count, seconds, burst


def _full(context: PageContext) -> list[dict[str, Any]]:
    """The limits all of whose permits are held: by which jobs, for how long, and how many jobs wait for one."""
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
    """The rates that hold jobs back now: how many jobs, and until when."""
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
    """How many due jobs wait behind each of them."""
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

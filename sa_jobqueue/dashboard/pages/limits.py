"""The limits, their use, the jobs that hold full limits, and pauses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import sqlalchemy as sa

from ...health.one_job import clamped
from ...health.work import LimitUse, PausedKey, read_limit_uses, read_paused_keys, read_workers
from ...models import status_literal
from ...rules.lifecycle import JobStatus
from ...rules.limits import per_said, rate_said, rates_said
from ...sql.limits.use import full_rates, ready_of_key, running_of_keys, running_of_other_keys, stuck_permits
from ...sql.parts import table_of
from ...sql.store import store_of
from ..actions.limits import Place, as_each_key, is_mine, shown_limits, waiting_at
from ..filters import chosen, highest_id, reach, tabs
from ..query import Query
from ..refusals import BadInput
from ..request import Page, PageContext

#: The most rows of a table.
_MOST = 100
_RATES = ("", "key_")
#: Owner, name and key of a limit; without a key, of all jobs of the owner.
_Of: TypeAlias = tuple[str, str, str | None]


def read_limits(context: PageContext) -> dict[str, Any]:
    """The limits. A viewer who may see only some queues is shown the limits of these queues, and not those of tasks."""
    connection, store = context.connection, store_of(context.job)
    used, full, query, key = _used(context), _full(context), context.query, table_of(context.tables.key).c.key
    rows = _rows(context, context.tables.limit, sa.literal(""))
    of_keys = _rows(context, context.tables.key, key, *([key == query.one("key")] if query.one("key") else []))
    waiting: dict[_Of, int] = {_of(found): found["waiting"] for found in full}
    if query.one("name") or query.one("key"):  # of all limits it would take long
        counted = [_of(row) for row in (*rows, *of_keys)]
        # For a whole task, only jobs that claims have passed over could be counted.
        waiting |= waiting_at(context, [place for place in counted if place.owner == "queue" or place.key is not None])
    owners, keys = ([_shown(row, used, waiting) for row in some] for some in (rows, of_keys))
    paused: list[LimitUse | PausedKey] = [use for use in read_limit_uses(connection, store) if use.paused is not None]
    paused += read_paused_keys(connection, store)
    now: Any = context.now()
    return {
        "now": now,
        "name": query.one("name"),
        "key": query.one("key"),
        "full": full,
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
    }  # fmt: skip


def _key_of(use: LimitUse | PausedKey) -> str | None:
    return use.key if isinstance(use, PausedKey) else None


def _place(owner: str, name: str, key: str | None) -> list[tuple[str, str]]:
    """The hidden fields of a form about a queue, a task or a key."""
    return [("owner", owner), ("name", name), *([] if key is None else [("key", key)])]


def _used(context: PageContext) -> Counter[_Of]:
    """The numbers of running jobs by queue, task and key."""
    used: Counter[_Of] = Counter()
    for row in context.connection.execute(running_of_keys(job=context.job)):
        for owner, name in (("queue", row.queue), ("task", row.task)):
            used[owner, name, None] += row.running
            if row.key is not None:
                used[owner, name, row.key] += row.running
    used.update(
        {tuple(row.slot): row.number for row in context.connection.execute(running_of_other_keys(job=context.job))}
    )
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


def _of(row: Any) -> Place:
    return Place(row["owner"], row["name"], row.get("key"))


def _shown(row: Any, used: Counter[_Of], waiting: Mapping[_Of, int]) -> dict[str, Any]:
    of, shown = _of(row), {**row}
    for prefix in _RATES:
        if f"{prefix}rate_count" in row:
            count, seconds = (row[f"{prefix}rate_{part}"] for part in ("count", "seconds"))
            shown |= {f"{prefix}said": rates_said(row, prefix), f"{prefix}rate": rate_said(count, seconds)}
    owner, _, other = of.owner.partition(":")
    more = {
        "owner": owner,
        "of": other,
        "per_said": per_said(row.get("per")),
        "key": of.key,
        "seen": shown_limits(row),
        "place": _place(*of),
        "used": used[of],
        "waiting": waiting.get(of),
    }
    return {**shown, **more}


def _full(context: PageContext) -> list[dict[str, Any]]:
    """The limits whose permits are all held: by which jobs, for how long, and how many jobs wait."""
    statement = stuck_permits(seconds=0.0, most=_MOST, job=context.job)
    full = [row for row in context.connection.execute(statement) if is_mine(context, row.owner, row.name)]
    waiting = waiting_at(context, full)
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
    waiting = waiting_at(context, full)
    return [
        {
            "owner": row.owner, "name": row.name, "key": row.key, "rate": rate_said(row.starts, row.seconds, row.burst),
            "until": now + timedelta(seconds=min(row.left, 1e9)),
            "waiting": number,
        }
        for row in full
        if (number := waiting.get((row.owner, row.name, row.key), 0))
    ]  # fmt: skip


LIMITS = Page("limits", "Limits and keys", "/limits", read_limits, adds_up=True)

# ---- A key.

#: The limits of a key without a row.
_NO_LIMITS = {
    **dict.fromkeys(("running", "rate_count", "rate_seconds", "rate_burst", "rates", "paused_at", "broken_until", "blocked_until")), "weight": 1,
}  # fmt: skip


def read_key(context: PageContext) -> dict[str, Any]:
    """The page of a key: its jobs, their rate and wait, and its share and limits in each queue and task."""
    key, job = context.path["name"], context.job
    if "\0" in key:
        raise BadInput("the address", "NUL", "a key, in which there is no NUL character")
    context = replace(context, query=Query([("key", key)]))
    highest = highest_id(context)
    lowest, within = reach(context, highest + 1)
    failed = sa.func.count().filter(job.status == status_literal(JobStatus.FAILED)).label("failed")
    waited = sa.func.extract("epoch", clamped(job.claimed_at) - clamped(job.run_at))
    p95 = sa.func.percentile_cont(0.95).within_group(waited).label("p95")
    ended = sa.select(sa.func.count().label("ended"), failed, p95)
    lately = job.finished_at > sa.func.now() - timedelta(hours=1)
    places, workers = _places(context, key), read_workers(context.connection, store_of(job), only=context.queues)
    queues = [place for place in places if place["owner"] == "queue"]
    return {
        "now": context.now(), "key": key, "places": places[:_MOST], "tabs": tabs(context, highest),
        "hour": context.connection.execute(ended.where(*chosen(context), *within, lately)).one(),
        "searched": highest - lowest if lowest else None, "slots": sum(worker.slots for worker in workers if not worker.stale),
        **{name: sum(place[name] for place in queues) for name in ("used", "waiting")}, "oldest": max((place["oldest"] for place in queues), default=0),
    }  # fmt: skip


def _places(context: PageContext, key: str) -> list[dict[str, Any]]:
    """The queues with jobs of the key or limits for it, and the tasks that limit it."""
    used, waiting, oldest = _used(context), Counter[_Of](), dict[_Of, float]()
    for ready in context.connection.execute(ready_of_key(key, job=context.job)):
        for place in (("queue", ready.queue, key), ("task", ready.task, key)):
            waiting[place] += ready.due
            oldest[place] = max(oldest.get(place, 0.0), ready.seconds)
    column, names = table_of(context.tables.key).c.key, table_of(context.tables.limit).c.name
    its_own = sa.not_(table_of(context.tables.key).c.owner.contains(":"))
    own: dict[_Of, Any] = {_of(row): row for row in _rows(context, context.tables.key, column, column == key, its_own)}
    found: set[_Of] = {*own, *waiting, *(of for of in used if of[2] == key)}
    rows = _rows(context, context.tables.limit, sa.literal(""), names.in_(sorted({name for _, name, _ in found})))
    of_all: dict[tuple[str, str], Any] = {_of(row)[:2]: row for row in rows}
    shown: list[dict[str, Any]] = []
    for of in sorted(found):
        owner, name, _ = of
        row: Any = of_all.get((owner, name), {})
        each = as_each_key(row)
        if not is_mine(context, owner, name) or not (owner == "queue" or of in own or each):
            continue
        limits = _shown({"owner": owner, "name": name, "key": key, **own.get(of, _NO_LIMITS)}, used, waiting)
        shown.append({
            **limits, "waiting": waiting[of], "oldest": oldest.get(of, 0), "all": used[owner, name, None], "has_row": of in own, "each": each,
            "limit": limits["running"] or row.get("key_running"), "said": limits["said"] or each.get("rate", ""),
        })  # fmt: skip
    return shown


KEY = Page("key", "Key", "/keys/{name:path}", read_key, in_menu=False, adds_up=True)

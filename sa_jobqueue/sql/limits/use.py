"""Limits as operators see them: used permits, jobs that a pause keeps waiting, keys that take turns, and stuck permits.

Each statement reads indexes, and stops counting at `CAP`: so it takes milliseconds, however many jobs, keys and limits there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import aggregate_order_by

from ...models import TASK_GROUP, Job, JobMixin, companions_of, schema_function
from ...rules.limits import Limits
from ..claims import PRIORITIES
from ..ends import has_run_out, is_held
from ..parts import ONE, ZERO, array, columns_of, count_of, materialized, rows, seconds_since, table_of
from ..readings.depths import CAP
from .state import FIRST_KEY, is_keyless, is_later, is_ready

#: Keys of a queue that are counted, and queues whose keys are.
KEYS, _QUEUES = 1_001, 200
#: Jobs, and limits, that are named.
_NAMED, _MOST = 3, 100

_QUEUE, _TASK = sa.literal_column("'queue'", sa.Text), sa.literal_column("'task'", sa.Text)


def limits_said(*, limits: int = 1_000, job: type[JobMixin] = Job) -> sa.Executable:
    """A row per queue and task that has limits or is paused, `limits` at most: `owner` and `name`; whether it is `limited`, and `held`;
    how many may run, `running`; for how many seconds it is paused, `paused`, NULL if it is not; `pause_reason`; and how many breakers are
    `broken`: the breakers of the task and of its keys that are not closed.
    """
    columns, keys = table_of(companions_of(job).limit).c, table_of(companions_of(job).key).c
    of_keys = sa.select(sa.func.count()).where(
        columns.owner == _TASK, keys.name == columns.name, keys.broken_until.is_not(None)
    )
    broken = of_keys.scalar_subquery() + sa.func.num_nonnulls(columns.broken_until)
    # The defaults of `Limits().columns()` mean that there is no limit.
    limited = sa.or_(*(columns[name].is_distinct_from(value) for name, value in Limits().columns().items()))
    return (
        sa.select(
            columns.owner,
            columns.name,
            limited.label("limited"),
            columns.held,
            columns.running,
            seconds_since(columns.paused_at).label("paused"),
            columns.pause_reason,
            broken.label("broken"),
        )
        .order_by(columns.owner, columns.name)
        .limit(sa.bindparam("limits", limits, sa.Integer))
    )


def paused_keys(*, cap: int = CAP, most: int = _MOST, job: type[JobMixin] = Job) -> sa.Executable:
    """A row per paused key, `most` at most, among the first `cap` keys with a row: `owner`, `name`, `key`,
    `paused` seconds, `pause_reason`.
    """
    columns = table_of(companions_of(job).key).c
    first = (
        sa.select(columns.owner, columns.name, columns.key, columns.paused_at, columns.pause_reason)
        .order_by(columns.owner, columns.name, columns.key)
        .limit(sa.bindparam("cap", cap, sa.Integer))
        .subquery("first")
    )
    return (
        sa.select(
            *columns_of(first.c, "owner name key"),
            seconds_since(first.c.paused_at).label("paused"),
            first.c.pause_reason,
        )
        .where(first.c.paused_at.is_not(None))
        .order_by(first.c.owner, first.c.name, first.c.key)
        .limit(sa.bindparam("most", most, sa.Integer))
    )


def running_of_tasks(*, cap: int = CAP, job: type[JobMixin] = Job) -> sa.Executable:
    """A row per queue and task of running jobs: how many there are, `running`, among `cap` of all."""
    columns = table_of(job).c
    held = (
        sa.select(columns.queue, columns.task)
        .where(is_held(table_of(job)))
        .order_by(columns.id)
        .limit(sa.bindparam("cap", cap, sa.Integer))
        .subquery("held")
    )
    return sa.select(held.c.queue, held.c.task, sa.func.count().label("running")).group_by(held.c.queue, held.c.task)


def running_of_keys(*, cap: int = CAP, job: type[JobMixin] = Job) -> sa.Executable:
    """A row per queue, task and key of running jobs: how many there are, `running`, among `cap` of all. The key is NULL where the jobs have none."""
    held = _held(table_of(job), cap)
    key = sa.case((held.c.key >= FIRST_KEY, held.c.key)).label("key")
    return sa.select(held.c.queue, held.c.task, key, sa.func.count().label("running")).group_by(
        held.c.queue, held.c.task, key
    )


def running_of_other_keys(*, job: type[JobMixin] = Job) -> sa.Executable:
    """A row per value of a key that only limits, with running jobs: `slot`, the owner, as "queue:provider", the name and the value; and their `number`."""
    call: Any = schema_function("other_keys_running", table_of(job).schema, sa.true(), of=sa.Text())
    columns = (sa.column("slot", sa.ARRAY(sa.Text)), sa.column("number", sa.BigInteger))
    return sa.select(*call.table_valued(*columns, name="running").c)


def due_of_queues(names: Sequence[str], *, cap: int = CAP, job: type[JobMixin] = Job) -> sa.Executable:
    """A row per given queue: `name`, and how many of its jobs are `due`, counted up to `cap`."""
    table = table_of(job)
    columns = table.c
    most = sa.bindparam("cap", cap, sa.Integer)
    asked = rows("asked", name=array("paused_queues", names, sa.Text()))
    slot = rows("slot", priority=array("priorities", PRIORITIES, sa.SmallInteger()))
    of_queue = columns.queue == asked.c.name
    page = (
        sa.select(ONE.label("one"))
        .where(is_keyless(table), of_queue, columns.priority == slot.c.priority, columns.run_at <= sa.func.now())
        .order_by(columns.run_at)
        .limit(most)
        .correlate(asked, slot)
        .lateral("page")
    )
    keyless = sa.select(ONE).select_from(slot.join(page, sa.true())).limit(most).correlate(asked)
    # Not in turn: an index-only scan has no priorities, only the expression by which they are ordered.
    ready = sa.select(ONE).where(is_ready(table), of_queue).limit(most).correlate(asked)
    later = sa.select(ONE).where(is_later(table), of_queue, columns.run_at <= sa.func.now()).order_by(columns.run_at)
    number = count_of(keyless) + count_of(ready) + count_of(later.limit(most).correlate(asked))
    return sa.select(asked.c.name, sa.func.least(number, most).label("due"))


def ready_of_keys(
    owners: Sequence[str],
    names: Sequence[str],
    keys: Sequence[str | None],
    *,
    cap: int = CAP,
    queues: int = _QUEUES,
    job: type[JobMixin] = Job,
) -> sa.Executable:
    """A row per given key of a queue or task: `owner`, `name`, `key`, and how many of its jobs are `due`, among the first `cap` of the
    key in each queue. A key None of a task stands for its jobs that have none, and which claims have passed over.
    """
    table = table_of(job)
    columns = table.c
    most = sa.bindparam("cap", cap, sa.Integer)
    asked = rows(
        "asked",
        owner=array("paused_owners", owners, sa.Text()),
        name=array("paused_names", names, sa.Text()),
        key=array("paused_keys", keys, sa.Text()),
    )
    place = _queues_with_keys(job, queues)
    key = sa.func.coalesce(asked.c.key, sa.func.chr(sa.literal_column(str(ord(TASK_GROUP)))).concat(asked.c.name))
    page = (
        _in_turn(
            sa.select(columns.task).where(
                is_ready(table), columns.queue == place.c.queue, columns.concurrency_key == key
            ),
            columns,
        )
        .limit(most)
        .correlate(asked, place)
        .lateral("page")
    )
    its_place = sa.or_(asked.c.owner == _TASK, place.c.queue == asked.c.name)
    its_own = sa.or_(asked.c.owner == _QUEUE, page.c.task == asked.c.name)
    number = (
        sa.select(sa.func.count())
        .select_from(place.join(page, sa.true()))
        .where(place.c.queue.is_not(None), its_place, its_own)
        .correlate(asked)
        .scalar_subquery()
    )
    return sa.select(asked.c.owner, asked.c.name, asked.c.key, sa.func.least(number, most).label("due"))


def ready_of_key(key: str, *, cap: int = CAP, queues: int = _QUEUES, job: type[JobMixin] = Job) -> sa.Executable:
    """A row per queue and task with ready jobs of this key: how many are `due`, among the first `cap` of the queue; and the `seconds` since the
    first of them was due.
    """
    table, place = table_of(job), _queues_with_keys(job, queues)
    columns, of_key = table.c, table.c.concurrency_key == sa.bindparam("key", key, sa.Text)
    its_own: Any = sa.select(columns.task, columns.run_at).where(
        is_ready(table), columns.queue == place.c.queue, of_key
    )
    page = _in_turn(its_own, columns).limit(sa.bindparam("cap", cap, sa.Integer)).correlate(place).lateral("page")
    seconds = sa.type_coerce(seconds_since(sa.func.min(page.c.run_at)), sa.Float).label("seconds")
    found = sa.select(place.c.queue, page.c.task, sa.func.count().label("due"), seconds)
    found = found.select_from(place.join(page, sa.true())).where(place.c.queue.is_not(None))
    return found.group_by(place.c.queue, page.c.task)


def ready_keys(*, keys: int = KEYS, cap: int = CAP, queues: int = _QUEUES, job: type[JobMixin] = Job) -> sa.Executable:
    """A row per queue with ready jobs that have keys: the `number` of keys that take turns, counted up to `keys` of a queue, and up to `cap` of
    all together. Each key costs a probe of an index.
    """
    table = table_of(job)
    columns = table.c
    place = _queues_with_keys(job, queues)

    def next_key(of: sa.FromClause, after: sa.ColumnElement[bool]) -> Any:
        found = sa.select(columns.concurrency_key.label("key")).where(
            is_ready(table), columns.queue == of.c.queue, after
        )
        return _in_turn(found, columns).limit(ONE).correlate(of).lateral("next_key")

    start = next_key(place, columns.concurrency_key >= FIRST_KEY)
    begin = sa.select(place.c.queue, start.c.key, ONE.label("number")).select_from(place.join(start, sa.true()))
    ring = begin.cte("ring", recursive=True)
    following = next_key(ring, columns.concurrency_key > ring.c.key)
    more = sa.select(ring.c.queue, following.c.key, ring.c.number + ONE).select_from(ring.join(following, sa.true()))
    ring = ring.union_all(more.where(ring.c.number < sa.bindparam("keys", keys, sa.Integer)))
    # The ring is walked over breadth first, so that each queue has its share of what is counted.
    seen = sa.select(ring.c.queue).limit(sa.bindparam("cap", cap, sa.Integer)).subquery("seen")
    return sa.select(seen.c.queue, sa.func.count().label("number")).group_by(seen.c.queue).order_by(seen.c.queue)


def stuck_permits(*, seconds: float, cap: int = CAP, most: int = _MOST, job: type[JobMixin] = Job) -> sa.Executable:
    """A row per queue, task and key all of whose permits are held by jobs whose lease has run out, or that were claimed `seconds` ago.

    Columns: `owner`, `name`, `key`, NULL for all jobs of the owner; `limit` and `used`; whether all leases have `expired`; the
    `seconds` since the last of the jobs was claimed; `job_ids`, the first three. `most` rows, among `cap` running jobs.
    """
    tables = companions_of(job)
    table = table_of(job)
    limits, keys = table_of(tables.limit), table_of(tables.key)
    held = _held(table, cap)
    given = sa.case((held.c.key >= FIRST_KEY, held.c.key))
    scopes = sa.union_all(
        _scope(held, _QUEUE, held.c.queue, sa.null()),
        _scope(held, _TASK, held.c.task, sa.null()),
        _scope(held, _QUEUE, held.c.queue, given).where(given.is_not(None)),
        _scope(held, _TASK, held.c.task, given).where(given.is_not(None)),
    ).subquery("scopes")
    ids: sa.ColumnElement[Any] = sa.func.array_agg(
        aggregate_order_by(scopes.c.id, scopes.c.id), type_=sa.ARRAY(sa.BigInteger)
    )
    more = sa.func.greatest(sa.func.count() - sa.literal_column(str(_NAMED)), ZERO)
    used = (
        sa.select(
            *columns_of(scopes.c, "owner name key"),
            sa.func.count().label("used"),
            sa.func.bool_and(scopes.c.expired).label("expired"),
            sa.func.min(scopes.c.seconds).label("seconds"),
            sa.func.trim_array(ids, sa.cast(more, sa.Integer), type_=sa.ARRAY(sa.BigInteger)).label("job_ids"),
        )
        .group_by(scopes.c.owner, scopes.c.name, scopes.c.key)
        .having(
            sa.func.bool_and(
                sa.or_(scopes.c.expired, scopes.c.seconds >= sa.bindparam("held_seconds", seconds, sa.Float))
            )
        )
        .subquery("used")
    )
    its_limits = sa.and_(limits.c.owner == used.c.owner, limits.c.name == used.c.name)
    its_key = sa.and_(keys.c.owner == used.c.owner, keys.c.name == used.c.name, keys.c.key == used.c.key)
    most_running = sa.case(
        (used.c.key.is_(None), limits.c.running), else_=sa.func.coalesce(keys.c.running, limits.c.key_running)
    )
    return (
        sa.select(
            *columns_of(used.c, "owner name key"),
            most_running.label("limit"),
            used.c.used,
            used.c.expired,
            sa.type_coerce(used.c.seconds, sa.Float).label("seconds"),
            used.c.job_ids,
        )
        .select_from(used.outerjoin(limits, its_limits).outerjoin(keys, its_key))
        .where(used.c.used >= most_running)
        .order_by(sa.not_(used.c.expired), used.c.owner, used.c.name, used.c.key.nulls_first())
        .limit(sa.bindparam("most", most, sa.Integer))
    )


def count_states(*, cap: int = CAP, job: type[JobMixin] = Job) -> sa.Executable:
    """How many rows claims keep about limits, counted up to `cap`."""
    columns = table_of(companions_of(job).limit_state).c
    page = (
        sa.select(columns.owner)
        .order_by(columns.owner, columns.name, columns.key)
        .limit(sa.bindparam("cap", cap, sa.Integer))
    )
    return sa.select(sa.func.count()).select_from(page.subquery("page"))


def full_rates(*, cap: int = CAP, most: int = _MOST, job: type[JobMixin] = Job) -> sa.Executable:
    """A row per queue, task and key whose rate lets nothing start now: `owner`, `name` and `key`, NULL for all jobs of the owner; the rate,
    `starts` in `seconds` with its `burst`; and `left`, the seconds until the next unit may start. `most` rows, among `cap` states.
    """
    tables = companions_of(job)
    limits, keys, states = table_of(tables.limit), table_of(tables.key), table_of(tables.limit_state)
    page = states.select().limit(sa.bindparam("cap", cap, sa.Integer)).subquery("state")
    of_all, its_own = page.c.key == sa.literal_column("''"), keys.c.rate_count.is_not(None)
    same = [sa.and_(table.c.owner == page.c.owner, table.c.name == page.c.name) for table in (limits, keys)]
    rate = (
        sa.select(
            *page.c,
            *(
                sa.case((of_all, limits.c[f"rate_{name}"]), (its_own, keys.c[f"rate_{name}"]), else_=limits.c[f"key_rate_{name}"]).label(name)
                for name in ("count", "seconds", "burst")
            ),
        )
        .select_from(page.outerjoin(limits, same[0]).outerjoin(keys, sa.and_(same[1], keys.c.key == page.c.key)))
        .subquery("rate")
    )  # fmt: skip
    of = rate.c
    state = (of.free_at, of.owed_at, of.owed, sa.func.statement_timestamp(type_=sa.DateTime(timezone=True)))
    owed = schema_function("rate_owed", limits.schema, *state, of["count"], of.seconds, of=sa.Float(53))
    behind = owed + ONE - of.burst
    return (
        sa.select(
            of.owner,
            of.name,
            sa.func.nullif(of.key, sa.literal_column("''"), type_=sa.Text()).label("key"),
            of["count"].label("starts"),
            of.seconds,
            of.burst,
            (behind * of.seconds / sa.cast(of["count"], sa.Float(53))).label("left"),
        )
        # A millionth of a unit is nothing, as claims have it.
        .where(of["count"].is_not(None), behind > sa.literal_column("0.000001"))
        .order_by(of.owner, of.name, of.key)
        .limit(sa.bindparam("most", most, sa.Integer))
    )


def _held(table: sa.Table, cap: int) -> sa.CTE:
    """The running jobs, `cap` at most."""
    columns = table.c
    return materialized(
        sa.select(
            *columns_of(columns, "id queue task"),
            columns.concurrency_key.label("key"),
            has_run_out(table).label("expired"),
            sa.func.coalesce(seconds_since(columns.claimed_at), sa.literal_column("0.0")).label("seconds"),
        )
        .where(is_held(table))
        .order_by(columns.id)
        .limit(sa.bindparam("cap", cap, sa.Integer)),
        "held",
    )


def _scope(held: sa.CTE, owner: sa.ColumnElement[str], name: sa.ColumnElement[str], key: sa.ColumnElement[Any]) -> Any:
    """The running jobs with the queue or task, and perhaps the key, whose permits they hold."""
    return sa.select(
        owner.label("owner"), name.label("name"), sa.cast(key, sa.Text).label("key"), held.c.id, held.c.expired, held.c.seconds
    )  # fmt: skip


def _queues_with_keys(job: type[JobMixin], most: int) -> sa.CTE:
    """The names of the queues with ready jobs that have keys, followed by NULL. Each name costs a probe of an index."""
    table = table_of(job)
    columns = table.c

    def first(*after: sa.ColumnElement[bool]) -> sa.Select[Any]:
        return sa.select(columns.queue).where(is_ready(table), *after).order_by(columns.queue).limit(ONE)

    start = sa.select(first().scalar_subquery().label("queue"), ONE.label("number"))
    place = start.cte("place", recursive=True)
    following = first(columns.queue > place.c.queue).correlate(place).scalar_subquery()
    more = sa.select(following, place.c.number + ONE).where(
        place.c.queue.is_not(None), place.c.number < sa.bindparam("queues", most, sa.Integer)
    )
    return place.union_all(more)


def _in_turn(query: sa.Select[Any], columns: Any) -> sa.Select[Any]:
    """In the order of the index of ready keys."""
    return query.order_by(columns.queue, columns.concurrency_key, -columns.priority, columns.run_at, columns.id)

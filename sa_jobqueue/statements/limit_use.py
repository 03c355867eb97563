"""What operators see of limits: permits that are used, jobs that a pause keeps waiting, keys that take turns, permits that are stuck.

Each statement reads indexes, and stops counting at `CAP`: so it takes milliseconds, however many jobs, keys and limits there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    ColumnElement,
    DateTime,
    Executable,
    Float,
    FromClause,
    Integer,
    ScalarSelect,
    Select,
    SmallInteger,
    Table,
    Text,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    not_,
    null,
    or_,
    select,
    true,
    type_coerce,
    union_all,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by

from ..limits import Limits
from ..models import TASK_GROUP, Job, JobMixin, KeyRow, LimitRow, LimitState, schema_function
from .claim import PRIORITIES
from .depths import CAP
from .ends import has_run_out, is_held
from .limits import FIRST_KEY, is_keyless, is_later, is_ready
from .parts import array, epoch, rows, table_of

__all__ = [
    "KEYS",
    "count_states",
    "due_of_queues",
    "full_rates",
    "limits_said",
    "paused_keys",
    "ready_keys",
    "ready_of_keys",
    "running_of_keys",
    "running_of_tasks",
    "stuck_permits",
]

#: Keys of a queue that are counted, and queues whose keys are.
KEYS, _QUEUES = 1_001, 200
#: Jobs, and limits, that are named.
_NAMED, _MOST = 3, 100

_ONE: ColumnElement[int] = literal_column("1", Integer)
_QUEUE, _TASK = literal_column("'queue'", Text), literal_column("'task'", Text)


def limits_said(*, limits: int = 1_000, limit: type[LimitRow] = LimitRow) -> Executable:
    """A row per queue and task that has limits or is paused, `limits` at most: `owner` and `name`; whether it is `limited`, and `held`;
    how many may run, `running`; for how many seconds it is paused, `paused`, NULL if it is not; and `pause_reason`.
    """
    columns = table_of(limit).c
    # As `Limits().columns()` says that there is no limit.
    said = [columns[name].is_not(None) for name, value in Limits().columns().items() if value is None]
    limited = or_(*said, columns.strict, columns.when_full != literal_column("'wait'"))
    return (
        select(
            columns.owner,
            columns.name,
            limited.label("limited"),
            columns.held,
            columns.running,
            _seconds_since(columns.paused_at).label("paused"),
            columns.pause_reason,
        )
        .order_by(columns.owner, columns.name)
        .limit(bindparam("limits", limits, Integer))
    )


def paused_keys(*, cap: int = CAP, most: int = _MOST, limit_key: type[KeyRow] = KeyRow) -> Executable:
    """A row per paused key, `most` at most, among the first `cap` that operators have said something of: `owner`, `name`, `key`,
    `paused` seconds, `pause_reason`.
    """
    columns = table_of(limit_key).c
    first = (
        select(columns.owner, columns.name, columns.key, columns.paused_at, columns.pause_reason)
        .order_by(columns.owner, columns.name, columns.key)
        .limit(bindparam("cap", cap, Integer))
        .subquery("first")
    )
    return (
        select(
            first.c.owner,
            first.c.name,
            first.c.key,
            _seconds_since(first.c.paused_at).label("paused"),
            first.c.pause_reason,
        )
        .where(first.c.paused_at.is_not(None))
        .order_by(first.c.owner, first.c.name, first.c.key)
        .limit(bindparam("most", most, Integer))
    )


def running_of_tasks(*, cap: int = CAP, job: type[JobMixin] = Job) -> Executable:
    """A row per queue and task of running jobs: how many there are, `running`, among `cap` of all."""
    columns = table_of(job).c
    held = (
        select(columns.queue, columns.task)
        .where(is_held(table_of(job)))
        .order_by(columns.id)
        .limit(bindparam("cap", cap, Integer))
        .subquery("held")
    )
    return select(held.c.queue, held.c.task, func.count().label("running")).group_by(held.c.queue, held.c.task)


def running_of_keys(*, cap: int = CAP, job: type[JobMixin] = Job) -> Executable:
    """A row per queue, task and key of running jobs: how many there are, `running`, among `cap` of all. The key is NULL where the jobs have none."""
    held = _held(table_of(job), cap)
    key = case((held.c.key >= FIRST_KEY, held.c.key)).label("key")
    return select(held.c.queue, held.c.task, key, func.count().label("running")).group_by(
        held.c.queue, held.c.task, key
    )


def due_of_queues(names: Sequence[str], *, cap: int = CAP, job: type[JobMixin] = Job) -> Executable:
    """A row per given queue: `name`, and how many of its jobs are `due`, counted up to `cap`."""
    table = table_of(job)
    columns = table.c
    most = bindparam("cap", cap, Integer)
    asked = rows("asked", name=array("paused_queues", names, Text()))
    slot = rows("slot", priority=array("priorities", PRIORITIES, SmallInteger()))
    of_queue = columns.queue == asked.c.name
    page = (
        select(_ONE.label("one"))
        .where(is_keyless(table), of_queue, columns.priority == slot.c.priority, columns.run_at <= func.now())
        .order_by(columns.run_at)
        .limit(most)
        .correlate(asked, slot)
        .lateral("page")
    )
    keyless = select(_ONE).select_from(slot.join(page, true())).limit(most).correlate(asked)
    ready = _in_turn(select(_ONE).where(is_ready(table), of_queue), columns).limit(most).correlate(asked)
    later = select(_ONE).where(is_later(table), of_queue, columns.run_at <= func.now()).order_by(columns.run_at)
    number = _number(keyless) + _number(ready) + _number(later.limit(most).correlate(asked))
    return select(asked.c.name, func.least(number, most).label("due"))


def ready_of_keys(
    owners: Sequence[str],
    names: Sequence[str],
    keys: Sequence[str | None],
    *,
    cap: int = CAP,
    queues: int = _QUEUES,
    job: type[JobMixin] = Job,
) -> Executable:
    """A row per given key of a queue or task: `owner`, `name`, `key`, and how many of its jobs are `due`, among the first `cap` of the
    key in each queue. A key None of a task stands for its jobs that have none, and which claims have passed over.
    """
    table = table_of(job)
    columns = table.c
    most = bindparam("cap", cap, Integer)
    asked = rows(
        "asked",
        owner=array("paused_owners", owners, Text()),
        name=array("paused_names", names, Text()),
        key=array("paused_keys", keys, Text()),
    )
    place = _queues_with_keys(job, queues)
    key = func.coalesce(asked.c.key, func.chr(literal_column(str(ord(TASK_GROUP)))).concat(asked.c.name))
    page = (
        _in_turn(
            select(columns.task).where(is_ready(table), columns.queue == place.c.queue, columns.concurrency_key == key),
            columns,
        )
        .limit(most)
        .correlate(asked, place)
        .lateral("page")
    )
    its_place = or_(asked.c.owner == _TASK, place.c.queue == asked.c.name)
    its_own = or_(asked.c.owner == _QUEUE, page.c.task == asked.c.name)
    number = (
        select(func.count())
        .select_from(place.join(page, true()))
        .where(place.c.queue.is_not(None), its_place, its_own)
        .correlate(asked)
        .scalar_subquery()
    )
    return select(asked.c.owner, asked.c.name, asked.c.key, func.least(number, most).label("due"))


def ready_keys(*, keys: int = KEYS, cap: int = CAP, queues: int = _QUEUES, job: type[JobMixin] = Job) -> Executable:
    """A row per queue with ready jobs that have keys: the `number` of keys that take turns, counted up to `keys` of a queue, and up to `cap` of
    all together. One probe of an index for each.
    """
    table = table_of(job)
    columns = table.c
    place = _queues_with_keys(job, queues)

    def next_key(of: FromClause, after: ColumnElement[bool]) -> Any:
        found = select(columns.concurrency_key.label("key")).where(is_ready(table), columns.queue == of.c.queue, after)
        return _in_turn(found, columns).limit(_ONE).correlate(of).lateral("next_key")

    start = next_key(place, columns.concurrency_key >= FIRST_KEY)
    begin = select(place.c.queue, start.c.key, _ONE.label("number")).select_from(place.join(start, true()))
    ring = begin.cte("ring", recursive=True)
    following = next_key(ring, columns.concurrency_key > ring.c.key)
    more = select(ring.c.queue, following.c.key, ring.c.number + _ONE).select_from(ring.join(following, true()))
    ring = ring.union_all(more.where(ring.c.number < bindparam("keys", keys, Integer)))
    # The ring is walked over breadth first, so that each queue has its share of what is counted.
    seen = select(ring.c.queue).limit(bindparam("cap", cap, Integer)).subquery("seen")
    return select(seen.c.queue, func.count().label("number")).group_by(seen.c.queue).order_by(seen.c.queue)


def stuck_permits(
    *,
    seconds: float,
    cap: int = CAP,
    most: int = _MOST,
    job: type[JobMixin] = Job,
    limit: type[LimitRow] = LimitRow,
    limit_key: type[KeyRow] = KeyRow,
) -> Executable:
    """A row per queue, task and key all of whose permits are held by jobs whose lease has run out, or that were claimed `seconds` ago.

    Columns: `owner`, `name`, `key`, NULL for all jobs of the owner; `limit` and `used`; whether all leases have `expired`; the
    `seconds` since the last of the jobs was claimed; `job_ids`, the first three. `most` rows, among `cap` running jobs.
    """
    table = table_of(job)
    limits, keys = table_of(limit), table_of(limit_key)
    held = _held(table, cap)
    given = case((held.c.key >= FIRST_KEY, held.c.key))
    scopes = union_all(
        _scope(held, _QUEUE, held.c.queue, null()),
        _scope(held, _TASK, held.c.task, null()),
        _scope(held, _QUEUE, held.c.queue, given).where(given.is_not(None)),
        _scope(held, _TASK, held.c.task, given).where(given.is_not(None)),
    ).subquery("scopes")
    ids: ColumnElement[Any] = func.array_agg(aggregate_order_by(scopes.c.id, scopes.c.id), type_=ARRAY(BigInteger))
    more = func.greatest(func.count() - literal_column(str(_NAMED)), literal_column("0"))
    used = (
        select(
            scopes.c.owner,
            scopes.c.name,
            scopes.c.key,
            func.count().label("used"),
            func.bool_and(scopes.c.expired).label("expired"),
            func.min(scopes.c.seconds).label("seconds"),
            func.trim_array(ids, cast(more, Integer), type_=ARRAY(BigInteger)).label("job_ids"),
        )
        .group_by(scopes.c.owner, scopes.c.name, scopes.c.key)
        .having(func.bool_and(or_(scopes.c.expired, scopes.c.seconds >= bindparam("held_seconds", seconds, Float))))
        .subquery("used")
    )
    its_limits = and_(limits.c.owner == used.c.owner, limits.c.name == used.c.name)
    its_key = and_(keys.c.owner == used.c.owner, keys.c.name == used.c.name, keys.c.key == used.c.key)
    most_running = case(
        (used.c.key.is_(None), limits.c.running), else_=func.coalesce(keys.c.running, limits.c.key_running)
    )
    return (
        select(
            used.c.owner,
            used.c.name,
            used.c.key,
            most_running.label("limit"),
            used.c.used,
            used.c.expired,
            type_coerce(used.c.seconds, Float).label("seconds"),
            used.c.job_ids,
        )
        .select_from(used.outerjoin(limits, its_limits).outerjoin(keys, its_key))
        .where(used.c.used >= most_running)
        .order_by(not_(used.c.expired), used.c.owner, used.c.name, used.c.key.nulls_first())
        .limit(bindparam("most", most, Integer))
    )


def count_states(*, cap: int = CAP, state: type[LimitState] = LimitState) -> Executable:
    """How many rows claims keep about limits, counted up to `cap`."""
    columns = table_of(state).c
    page = (
        select(columns.owner).order_by(columns.owner, columns.name, columns.key).limit(bindparam("cap", cap, Integer))
    )
    return select(func.count()).select_from(page.subquery("page"))


def full_rates(
    *,
    cap: int = CAP,
    most: int = _MOST,
    limit: type[LimitRow] = LimitRow,
    limit_key: type[KeyRow] = KeyRow,
    limit_state: type[LimitState] = LimitState,
) -> Executable:
    """A row per queue, task and key whose rate lets nothing start now: `owner`, `name` and `key`, NULL for all jobs of the owner; the rate,
    `count` in `seconds` with its `burst`; and `left`, the seconds until the next unit may start. `most` rows, among `cap` states.
    """
    limits, keys, states = table_of(limit), table_of(limit_key), table_of(limit_state)
    page = states.select().limit(bindparam("cap", cap, Integer)).subquery("state")
    of_all, its_own = page.c.key == literal_column("''"), keys.c.rate_count.is_not(None)
    same = [and_(one.c.owner == page.c.owner, one.c.name == page.c.name) for one in (limits, keys)]
    rate = (
        select(
            *page.c,
            *(
                case((of_all, limits.c[f"rate_{name}"]), (its_own, keys.c[f"rate_{name}"]), else_=limits.c[f"key_rate_{name}"]).label(name)
                for name in ("count", "seconds", "burst")
            ),
        )
        .select_from(page.outerjoin(limits, same[0]).outerjoin(keys, and_(same[1], keys.c.key == page.c.key)))
        .subquery("rate")
    )  # fmt: skip
    of = rate.c
    state = (of.free_at, of.owed_at, of.owed, func.statement_timestamp(type_=DateTime(timezone=True)))
    owed = schema_function("rate_owed", limits.schema, *state, of["count"], of.seconds, of=Float(53))
    behind = owed + literal_column("1") - of.burst
    return (
        select(
            of.owner,
            of.name,
            func.nullif(of.key, literal_column("''"), type_=Text()).label("key"),
            of["count"],
            of.seconds,
            of.burst,
            (behind * of.seconds / cast(of["count"], Float(53))).label("left"),
        )
        # A millionth of a unit is nothing, as claims have it.
        .where(of["count"].is_not(None), behind > literal_column("0.000001"))
        .order_by(of.owner, of.name, of.key)
        .limit(bindparam("most", most, Integer))
    )


def _held(table: Table, cap: int) -> CTE:
    """The running jobs, `cap` at most."""
    columns = table.c
    return (
        select(
            columns.id,
            columns.queue,
            columns.task,
            columns.concurrency_key.label("key"),
            has_run_out(table).label("expired"),
            func.coalesce(_seconds_since(columns.claimed_at), literal_column("0.0")).label("seconds"),
        )
        .where(is_held(table))
        .order_by(columns.id)
        .limit(bindparam("cap", cap, Integer))
        .cte("held")
        .prefix_with("MATERIALIZED")
    )


def _scope(held: CTE, owner: ColumnElement[str], name: ColumnElement[str], key: ColumnElement[Any]) -> Any:
    """The running jobs as those of their queue or task, and perhaps of a key of it."""
    return select(
        owner.label("owner"), name.label("name"), cast(key, Text).label("key"), held.c.id, held.c.expired, held.c.seconds
    )  # fmt: skip


def _queues_with_keys(job: type[JobMixin], most: int) -> CTE:
    """The names of the queues with ready jobs that have keys, and behind them NULL: by one probe for each."""
    table = table_of(job)
    columns = table.c

    def first(*after: ColumnElement[bool]) -> Select[Any]:
        return select(columns.queue).where(is_ready(table), *after).order_by(columns.queue).limit(_ONE)

    start = select(first().scalar_subquery().label("queue"), _ONE.label("number"))
    place = start.cte("place", recursive=True)
    following = first(columns.queue > place.c.queue).correlate(place).scalar_subquery()
    more = select(following, place.c.number + _ONE).where(
        place.c.queue.is_not(None), place.c.number < bindparam("queues", most, Integer)
    )
    return place.union_all(more)


def _in_turn(query: Select[Any], columns: Any) -> Select[Any]:
    """In the order of the index of ready keys."""
    return query.order_by(columns.queue, columns.concurrency_key, -columns.priority, columns.run_at, columns.id)


def _seconds_since(time: ColumnElement[Any]) -> ColumnElement[float]:
    return type_coerce(epoch(func.now() - time), Float)


def _number(page: Select[Any]) -> ScalarSelect[int]:
    return select(func.count()).select_from(page.subquery()).scalar_subquery()

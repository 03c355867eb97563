"""The limits that a worker knows, and whether they are still current.

A plain claim takes no account of limits. So each claim names the versions of the limits that its worker has read, and fails where there are
others, or where a queue has jobs with keys. For a queue without limits and keys this costs a read of an empty table and two probes of an
empty index per claim.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from ...models import TASK_GROUP, Job, JobMixin, companions_of, schema_function, status_in
from ...rules.lifecycle import Event, sources
from ...rules.limits import Limits, Told
from ..ends import at_end
from ..parts import ONE, array, columns_of, count_of, in_seconds, materialized, rows, table_of

#: All keys that users give begin here; below are those of limited tasks, see TASK_GROUP.
FIRST_KEY: sa.ColumnElement[str] = sa.literal_column(f"chr({ord(TASK_GROUP) + 1})", sa.Text)
#: The SQLSTATE of a claim that does not know the limits that there are.
LIMITS_CHANGED = "SJQ03"


def _waits(table: sa.Table) -> sa.ColumnElement[bool]:
    return status_in(table.c.status, sources(Event.CLAIM))


def _with_key(table: sa.Table) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.concurrency_key.is_not(None), _waits(table))


def is_keyless(table: sa.Table) -> sa.ColumnElement[bool]:
    """The predicate of `job_claim_idx`: queued and without a key."""
    return sa.and_(_waits(table), table.c.concurrency_key.is_(None))


def is_ready(table: sa.Table) -> sa.ColumnElement[bool]:
    """The predicate of `job_key_ready_idx`: queued, with a key, and may take its turn."""
    return sa.and_(_with_key(table), table.c.run_at <= sa.func.greatest(table.c.created_at, table.c.ready_at))


def is_later(table: sa.Table) -> sa.ColumnElement[bool]:
    """The predicate of `job_key_later_idx`: queued, with a key, and may not take its turn yet."""
    return sa.and_(_with_key(table), table.c.run_at > sa.func.greatest(table.c.created_at, table.c.ready_at))


def is_queued(table: sa.Table) -> sa.ColumnElement[bool]:
    """Whether a job is queued, phrased so that the three partial indexes of queued jobs can be used. No index has all of them."""
    return sa.or_(is_keyless(table), is_ready(table), is_later(table))


def knows_limits(table: sa.Table, limit: sa.Table, given: Mapping[str, Any]) -> sa.ColumnElement[bool]:
    """True; or the statement fails, because there are other limits than those `given`, or jobs with keys in one of the queues.

    The server evaluates it once per execution.
    """
    versions = sa.select(sa.func.bit_xor(limit.c.version, type_=sa.BigInteger)).scalar_subquery()
    known = sa.bindparam("known_limits", given["known_limits"], sa.BigInteger)
    ours = table.c.queue == sa.func.any(array("queue_names", given["queue_names"], sa.Text()))
    ready = sa.select(sa.literal_column("true", sa.Boolean)).select_from(table).where(ours, is_ready(table)).exists()
    due = (
        sa.select(sa.literal_column("true", sa.Boolean))
        .select_from(table)
        .where(ours, is_later(table), table.c.run_at <= sa.func.now())
        .exists()
    )
    # The argument keeps the planner from calling the function.
    failed = schema_function("limits_changed", table.schema, versions, of=sa.Boolean())
    return sa.case(
        (sa.and_(versions.is_not_distinct_from(known), sa.not_(ready), sa.not_(due)), sa.true()), else_=failed
    )


def limits_nothing(limit: sa.Table) -> sa.ColumnElement[bool]:
    """Whether a row of `LimitRow` limits nothing, and is no pause."""
    defaults = (limit.c[name].is_not_distinct_from(value) for name, value in Limits().columns().items())
    return sa.and_(limit.c.paused_at.is_(None), limit.c.broken_until.is_(None), *defaults)


def read_limits(*, queues: Collection[str], job: type[JobMixin] = Job) -> sa.Executable:
    """Read where there are limits, which `claim_jobs` takes no account of.

    Returns one row: `version`, of all limits together, NULL if there are none; `queues`, the given queues that have limits, or are
    paused, or have jobs with keys that wait; `capped`, the given queues that limit how many of their jobs run or start; `tasks`, all that
    have limits, or keys that have; `broken`, the tasks with a breaker that is not closed. Each is NULL if there are none.
    """
    tables = companions_of(job)
    table, limits, keys = table_of(job), table_of(tables.limit), table_of(tables.key)
    asked = rows("asked", name=array("queue_names", list(queues), sa.Text()))
    some = sa.select(sa.literal_column("true", sa.Boolean))
    waiting = some.select_from(table).where(table.c.queue == asked.c.name).correlate(asked)
    own_row = some.where(limits.c.owner == sa.literal_column("'queue'"), limits.c.name == asked.c.name).correlate(asked)
    ways = (own_row, waiting.where(is_ready(table)), waiting.where(is_later(table)))
    limited = (
        sa.select(sa.func.array_agg(asked.c.name)).where(sa.or_(*(way.exists() for way in ways))).scalar_subquery()
    )
    of_task = limits.c.owner == sa.literal_column("'task'")
    # The row of a task stays when the last of its keys is resumed.
    its_keys = some.where(keys.c.name == limits.c.name).correlate(limits)
    some_key = its_keys.where(keys.c.owner == limits.c.owner).exists()
    # Phrased so that the planner can match the index of such keys.
    is_other = sa.or_(keys.c.rates.is_not(None), keys.c.owner.like(sa.literal_column("'%:%'")))
    other_key = its_keys.where(is_other, keys.c.owner.like(sa.literal_column("'task:%'"))).exists()
    limited_tasks = sa.select(sa.func.array_agg(limits.c.name)).where(
        of_task, sa.or_(sa.not_(limits_nothing(limits)), some_key, other_key)
    )
    broken_key = some.where(keys.c.name == limits.c.name, keys.c.broken_until.is_not(None))
    broken = sa.select(sa.func.array_agg(limits.c.name)).where(
        of_task, sa.or_(limits.c.broken_until.is_not(None), broken_key.correlate(limits).exists())
    )
    version = sa.select(sa.func.bit_xor(limits.c.version, type_=sa.BigInteger)).scalar_subquery()
    has_cap = own_row.where(
        sa.or_(*(limits.c[name].is_not(None) for name in ("running", "rate_count", "rates")))
    ).exists()
    capped = sa.select(sa.func.array_agg(asked.c.name)).where(has_cap).scalar_subquery()
    return sa.select(
        version.label("version"),
        limited.label("queues"),
        capped.label("capped"),
        limited_tasks.scalar_subquery().label("tasks"),
        broken.scalar_subquery().label("broken"),
    )


# ---- Limit states: keys and queues that a 429 keeps waiting, and states that no longer affect any claim.

#: A rate or a wait that is over for this long no longer matters, by any claim's clock.
_OVER = timedelta(minutes=1)
#: The longest time for which a breaker counts failures.
_COUNTED = timedelta(days=1)
_QUEUE = sa.literal_column("'queue'", sa.Text)


class StateKey(NamedTuple):
    """The key of a row of `LimitState`."""

    owner: str
    name: str
    key: str


#: Before all of them.
FIRST_STATE = StateKey("", "", "")


def block(ids: Sequence[int], seconds: Sequence[float], *, job: type[JobMixin] = Job) -> sa.Executable:
    """For these `seconds` start no job with the key of any of these jobs, or in its queue if it has no key. A longer wait stays.

    Returns name and key of each; the key is empty where it is the whole queue.
    """
    table, states = table_of(job), table_of(companions_of(job).limit_state)
    given = array("blocking_ids", ids, sa.BigInteger())
    blocking = rows("said", id=given, seconds=array("blocking_seconds", seconds, sa.Float(53)))
    key = sa.case((table.c.concurrency_key >= FIRST_KEY, table.c.concurrency_key), else_=sa.literal_column("''"))
    of = (
        sa.select(table.c.queue.label("name"), key.label("key"), sa.func.max(blocking.c.seconds).label("seconds"))
        .select_from(table.join(blocking, blocking.c.id == table.c.id))
        .where(table.c.id == sa.func.any(given))
        .group_by(table.c.queue, key)
        .subquery("of")
    )
    # In the order in which claims write these rows, so that neither waits for the other.
    found = sa.select(_QUEUE, of.c.name, of.c.key, in_seconds(of.c.seconds, after=at_end())).order_by(
        sa.collate(of.c.name, "C"), sa.collate(of.c.key, "default")
    )
    made = insert(states).from_select(["owner", "name", "key", "blocked_until"], found)
    longest = sa.func.greatest(states.c.blocked_until, made.excluded.blocked_until)
    return made.on_conflict_do_update(
        index_elements=["owner", "name", "key"], set_={"blocked_until": longest}
    ).returning(states.c.name, states.c.key)


def limit_queues(names: Sequence[str], *, job: type[JobMixin] = Job) -> sa.Executable:
    """Let claims from these queues obey limits: a queue that has no row gets a row that limits nothing.

    A statement after `block`, whose lock keeps `forget_states` from deleting such a row meanwhile. It waits for no operator who is
    making a row of the queue; `forget_states` names those that still need theirs.
    """
    given = array("limited_queues", sorted(names), sa.Text())
    return sa.select(schema_function("limit_queues", table_of(job).schema, given, of=sa.Text()))


def tell_breakers(ids: Sequence[int], told: Sequence[Told], *, job: type[JobMixin] = Job) -> sa.Executable:
    """Report the ends of these jobs to the breakers of their tasks, in the transaction that wrote the ends."""
    failed, by_key, failures, per, rest = map(list, zip(*told, strict=True)) if told else ([],) * 5
    given = (
        array("told_ids", ids, sa.BigInteger()),
        array("told_failed", failed, sa.Boolean()),
        array("told_by_key", by_key, sa.Boolean()),
        array("told_failures", failures, sa.Integer()),
        array("told_per", per, sa.Float(53)),
        array("told_rest", rest, sa.Float(53)),
    )
    return sa.select(schema_function("tell_breakers", table_of(job).schema, *given, of=sa.Text()))


def forget_states(*, after: StateKey, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Of `limit` rows from `after` (exclusive) on, delete those that no longer affect any claim, except locked rows. Close the
    breakers that no job has probed for a day.

    If a deleted row has kept a queue waiting, the queue's row that limits nothing is deleted, too. Lowest ids are cleared, so that the next
    claim counts from the start: an operator may have set an older job to running by plain SQL.

    Returns one row: owner, name and key of the last row, NULL if there was none; how many rows were read, and how many are deleted; and
    `unlimited`, the queues that must wait and have no row by which claims would see that: for `limit_queues`. NULL: none.
    """
    tables = companions_of(job)
    states, owners = table_of(tables.limit_state), table_of(tables.limit)
    columns = states.c
    page = materialized(
        sa.select(columns.owner, columns.name, columns.key)
        .where(
            _key(columns)
            > sa.tuple_(*(sa.bindparam(f"after_{part}", text, sa.Text) for part, text in after._asdict().items()))
        )
        .order_by(columns.owner, columns.name, columns.key)
        .limit(sa.bindparam("page", limit, sa.Integer)),
        "page",
    )
    idle = sa.and_(
        *(sa.or_(time.is_(None), time < sa.func.now() - _OVER) for time in (columns.free_at, columns.blocked_until)),
        sa.or_(columns.lowest_id.is_(None), columns.key != sa.literal_column("''")),
        sa.or_(columns.failed_at.is_(None), columns.failed_at[ONE] < sa.func.now() - _COUNTED),
    )
    mine = materialized(
        sa.select(columns.owner, columns.name, columns.key)
        .where(_among(columns, page), sa.or_(idle, columns.lowest_id.is_not(None)))
        .order_by(columns.owner, columns.name, columns.key)
        .with_for_update(skip_locked=True),
        "mine",
    )
    gone = (
        sa.delete(states)
        .where(_among(columns, mine), idle)
        .returning(columns.owner, columns.name, columns.key, columns.blocked_until)
        .cte("gone")
    )
    counted = sa.update(states).where(_among(columns, mine), sa.not_(idle)).values(lowest_id=None).cte("counted")
    waited = sa.select(gone.c.name).where(
        gone.c.owner == _QUEUE, gone.c.key == sa.literal_column("''"), gone.c.blocked_until.is_not(None)
    )
    empty = materialized(
        sa.select(owners.c.name)
        .where(
            owners.c.owner == _QUEUE,
            owners.c.name.in_(waited),
            limits_nothing(owners),
            sa.not_(owners.c.held),
            owners.c.declared.is_(None),
        )
        .with_for_update(skip_locked=True),
        "empty",
    )
    unlimited = (
        sa.delete(owners).where(owners.c.owner == _QUEUE, owners.c.name.in_(sa.select(empty.c.name))).cte("unlimited")
    )
    row = sa.select(owners.c.name).where(owners.c.owner == _QUEUE, owners.c.name == columns.name).correlate(states)
    waits = (
        sa.select(sa.func.array_agg(columns.name))
        .where(
            _among(columns, page),
            columns.owner == _QUEUE,
            columns.key == sa.literal_column("''"),
            columns.blocked_until > sa.func.now(),
            sa.not_(row.exists()),
        )
        .scalar_subquery()
    )
    last = (
        sa.select(page).order_by(page.c.owner.desc(), page.c.name.desc(), page.c.key.desc()).limit(1).subquery("last")
    )
    total = sa.select(sa.func.count().label("looked_at")).select_from(page).subquery("one")
    return (
        sa.select(
            *columns_of(last.c, "owner name key"),
            total.c.looked_at,
            count_of(gone).label("forgotten"),
            waits.label("unlimited"),
            schema_function("forget_breakers", table_of(job).schema, of=sa.Integer()).label("breakers"),
        )
        .select_from(total.outerjoin(last, sa.literal_column("true")))
        .add_cte(counted, unlimited)
    )


def _key(columns: Any) -> Any:
    return sa.tuple_(columns.owner, columns.name, columns.key)


def _among(columns: Any, found: Any) -> sa.ColumnElement[bool]:
    among: sa.ColumnElement[bool] = _key(columns).in_(sa.select(found.c.owner, found.c.name, found.c.key))
    return among

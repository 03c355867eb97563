"""What is kept beside the limits: a key or a queue that the other side has asked to wait, and rows that say nothing any more.

Claims write the rest of it, in the function that picks the jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from ..models import Job, JobMixin, LimitRow, LimitState, schema_function
from .ends import at_end
from .limits import FIRST_KEY, limits_nothing
from .parts import array, in_seconds, rows, table_of

__all__ = ["FIRST_STATE", "StateKey", "block", "forget_states", "limit_queues"]

#: A rate or a wait that is over for this long says nothing any more, by whatever clock a claim has begun.
_OVER = timedelta(minutes=1)
_QUEUE = sa.literal_column("'queue'", sa.Text)


class StateKey(NamedTuple):
    """Which row of `LimitState`."""

    owner: str
    name: str
    key: str


#: Before all of them.
FIRST_STATE = StateKey("", "", "")


def block(
    ids: Sequence[int], seconds: Sequence[float], *, job: type[JobMixin] = Job, state: type[LimitState] = LimitState
) -> sa.Executable:
    """For these `seconds` start no job with the key of one of these jobs, or of its queue if it has none. A longer wait stays.

    Returns name and key of each; the key is empty where it is the whole queue.
    """
    table, states = table_of(job), table_of(state)
    given = array("blocking_ids", ids, sa.BigInteger())
    said = rows("said", id=given, seconds=array("blocking_seconds", seconds, sa.Float(53)))
    key = sa.case((table.c.concurrency_key >= FIRST_KEY, table.c.concurrency_key), else_=sa.literal_column("''"))
    of = (
        sa.select(table.c.queue.label("name"), key.label("key"), sa.func.max(said.c.seconds).label("seconds"))
        .select_from(table.join(said, said.c.id == table.c.id))
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
    """Have these queues claimed from under limits: those that have none get a row that limits nothing.

    A statement after `block`, whose lock keeps `forget_states` from deleting such a row meanwhile. It waits for no operator who is
    making a row of the queue; `forget_states` names those that still need theirs.
    """
    given = array("limited_queues", sorted(names), sa.Text())
    return sa.select(schema_function("limit_queues", table_of(job).schema, given, of=sa.Text()))


def forget_states(
    *,
    after: StateKey,
    limit: int,
    state: type[LimitState] = LimitState,
    limits: type[LimitRow] = LimitRow,
) -> sa.Executable:
    """Of `limit` rows from `after` (exclusive) on, delete those that say nothing any more, except rows that are locked just now.

    Where one has kept a queue waiting, the queue's row that limits nothing goes with it. And lowest ids are forgotten, so that the next
    claim counts from the start: an operator may have set an older job to running by plain SQL.

    Returns one row: owner, name and key of the last one, NULL if there was none; how many were looked at, and how many are deleted; and
    `unlimited`, the queues that are to wait and have no row by which claims would see that: for `limit_queues`. NULL: none.
    """
    states, said = table_of(state), table_of(limits)
    columns = states.c
    page = (
        sa.select(columns.owner, columns.name, columns.key)
        .where(
            _key(columns)
            > sa.tuple_(*(sa.bindparam(f"after_{part}", text, sa.Text) for part, text in after._asdict().items()))
        )
        .order_by(columns.owner, columns.name, columns.key)
        .limit(sa.bindparam("page", limit, sa.Integer))
        .cte("page")
        .prefix_with("MATERIALIZED")
    )
    idle = sa.and_(
        *(sa.or_(time.is_(None), time < sa.func.now() - _OVER) for time in (columns.free_at, columns.blocked_until)),
        sa.or_(columns.lowest_id.is_(None), columns.key != sa.literal_column("''")),
    )
    mine = (
        sa.select(columns.owner, columns.name, columns.key)
        .where(_among(columns, page), sa.or_(idle, columns.lowest_id.is_not(None)))
        .order_by(columns.owner, columns.name, columns.key)
        .with_for_update(skip_locked=True)
        .cte("mine")
        .prefix_with("MATERIALIZED")
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
    empty = (
        sa.select(said.c.name)
        .where(
            said.c.owner == _QUEUE,
            said.c.name.in_(waited),
            limits_nothing(said),
            sa.not_(said.c.held),
            said.c.declared.is_(None),
        )
        .with_for_update(skip_locked=True)
        .cte("empty")
        .prefix_with("MATERIALIZED")
    )
    unlimited = sa.delete(said).where(said.c.owner == _QUEUE, said.c.name.in_(sa.select(empty.c.name))).cte("unlimited")
    row = sa.select(said.c.name).where(said.c.owner == _QUEUE, said.c.name == columns.name).correlate(states)
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
    one = sa.select(sa.func.count().label("looked_at")).select_from(page).subquery("one")
    return (
        sa.select(
            last.c.owner,
            last.c.name,
            last.c.key,
            one.c.looked_at,
            _number(gone).label("forgotten"),
            waits.label("unlimited"),
        )
        .select_from(one.outerjoin(last, sa.literal_column("true")))
        .add_cte(counted, unlimited)
    )


def _key(columns: Any) -> Any:
    return sa.tuple_(columns.owner, columns.name, columns.key)


def _among(columns: Any, found: Any) -> sa.ColumnElement[bool]:
    among: sa.ColumnElement[bool] = _key(columns).in_(sa.select(found.c.owner, found.c.name, found.c.key))
    return among


def _number(of: Any) -> Any:
    return sa.select(sa.func.count()).select_from(of).scalar_subquery()

"""Queued jobs in the order in which they are due, oldest first, for people who look for one.

The indexes of claims lead to them. Each holds several lines of jobs that are ordered by their time: one for each queue and priority of jobs
without a key, one for each queue, key and priority of jobs whose key is ready, and one for each queue of the others. A line is read from its
front, up to a number of jobs, so it takes milliseconds, however many jobs there are. What lies behind the end of the shortest look into
a line is not in the answer, as a job of that line may be due before it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from ..models import Job, JobMixin
from .claim import PRIORITIES
from .depths import first_of_turns, queue_names
from .limits import is_keyless, is_later, is_ready
from .parts import array, rows, table_of

__all__ = ["queued_in_order"]

#: Queues that are looked at, and keys and priorities of each.
_QUEUES, _TURNS = 1_000, 1_000


def queued_in_order(
    *where: sa.ColumnElement[bool], queues: Collection[str] | None = None, keys: Collection[str] = (),
    times: Sequence[sa.ColumnElement[bool]] = (), after: tuple[str, int] | None = None, each: int, limit: int, job: type[JobMixin] = Job,
) -> sa.Executable:  # fmt: skip
    """A row per queued job that meets the criteria: `id`, `due` as text, `fits` and `ends`. Oldest due first.

    A row that `ends` says how far was looked: jobs behind it may fit, too. It need not fit itself. `cut`: a queue has more keys than were
    looked at. It stands in a row without an id where no job was found.

    `queues`, `keys`: only of these. `times`: criteria of `run_at`. `after`: begin behind the job with this time and this id. `each`: jobs that are looked at in a line.
    """
    table = table_of(job)
    columns = table.c
    one: sa.ColumnElement[int] = sa.literal_column("1", sa.Integer)
    names = queue_names(job, _QUEUES) if queues is None else _given(queues)
    slot = rows("slot", priority=array("priorities", PRIORITIES, sa.SmallInteger()))
    turn = first_of_turns(job, names, columns.id, _TURNS) if not keys else _turns_of(names, keys)
    place = columns.run_at, columns.id
    behind = []
    if after is not None:
        since = sa.cast(sa.bindparam("after_time", after[0], sa.Text), sa.DateTime(timezone=True))
        behind = [sa.tuple_(*place) > sa.tuple_(since, sa.bindparam("after_id", after[1], sa.BigInteger))]

    def line(name: str, beside: Sequence[Any], *of: sa.ColumnElement[bool]) -> Any:
        number = sa.func.row_number().over(order_by=place).label("number")
        fits = sa.case((sa.and_(sa.true(), *where), sa.true()), else_=False).label("fits")
        front = sa.select(*place, number, fits).where(*of, *behind, *times).order_by(*place)
        return front.limit(sa.bindparam("each", each, sa.Integer)).correlate(*beside).lateral(name)

    of_queue = columns.queue == names.c.queue
    of_turn = columns.queue == turn.c.queue, columns.concurrency_key == turn.c.key, -columns.priority == turn.c.turn
    keyless = line("keyless", [names, slot], is_keyless(table), of_queue, columns.priority == slot.c.priority)
    later = line("later", [names], is_later(table), of_queue)
    ready = line("ready", [turn], is_ready(table), *of_turn)
    found = sa.union_all(
        sa.select(keyless).select_from(names.join(slot, sa.true()).join(keyless, sa.true())),
        sa.select(later).select_from(names.join(later, sa.true())),
        sa.select(ready).select_from(turn.join(ready, sa.true())),
    ).cte("found")
    ends = sa.select(found.c.run_at, found.c.id).where(found.c.number == sa.bindparam("each", each, sa.Integer))
    end = ends.order_by(found.c.run_at, found.c.id).limit(one).cte("ending")
    within = sa.or_(end.c.id.is_(None), sa.tuple_(found.c.run_at, found.c.id) <= sa.tuple_(end.c.run_at, end.c.id))
    wanted = (
        sa.select(found.c.id, found.c.run_at, found.c.fits, (found.c.id == end.c.id).label("ends"))
        .select_from(found.outerjoin(end, sa.true()))
        .where(within, sa.or_(found.c.fits, found.c.id == end.c.id))
        .order_by(found.c.run_at, found.c.id)
        .limit(sa.bindparam("most", limit, sa.Integer))
        .subquery("wanted")
    )
    many = sa.func.coalesce(sa.func.max(turn.c.number), 0) >= _TURNS
    cut = sa.select(many.label("cut")).subquery("turns")
    return (
        sa.select(wanted.c.id, sa.cast(wanted.c.run_at, sa.Text).label("due"), wanted.c.fits, wanted.c.ends, cut.c.cut)
        .select_from(cut.outerjoin(wanted, sa.true()))
        .order_by(wanted.c.run_at, wanted.c.id)
    )


def _given(queues: Collection[str]) -> sa.CTE:
    of = rows("given", queue=array("queue_names", list(queues), sa.Text()))
    return sa.select(of.c.queue).cte("names")


def _turns_of(names: sa.CTE, keys: Collection[str]) -> sa.CTE:
    of = rows("of", key=array("keys", list(keys), sa.Text()))
    slot = rows("level", priority=array("priorities", PRIORITIES, sa.SmallInteger()))
    one: sa.ColumnElement[int] = sa.literal_column("1", sa.Integer)
    every = names.join(of, sa.true()).join(slot, sa.true())
    return (
        sa.select(names.c.queue, of.c.key, (-slot.c.priority).label("turn"), one.label("number"))
        .select_from(every)
        .cte("turn")
    )

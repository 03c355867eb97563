"""Queued jobs in the order in which they are due, oldest first, for people who look for one.

The indexes of claims lead to them. Each holds several lines of jobs that are ordered by their time: one for each queue and priority of jobs
without a key, one for each queue, key and priority of jobs whose key is ready, and one for each queue of the others. A line is read from its
front, up to a number of jobs, so it takes milliseconds, however many jobs there are. What lies behind the end of the shortest look into
a line is not in the answer, as a job of that line may be due before it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    DateTime,
    Executable,
    Integer,
    SmallInteger,
    Text,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    or_,
    select,
    true,
    tuple_,
    union_all,
)

from ..models import Job, JobMixin
from .claim import PRIORITIES
from .depths import first_of_turns, queue_names
from .limits import is_keyless, is_later, is_ready
from .parts import array, rows, table_of

__all__ = ["queued_in_order"]

#: Queues that are looked at, and keys and priorities of each.
_QUEUES, _TURNS = 1_000, 1_000


def queued_in_order(
    *where: ColumnElement[bool], queues: Collection[str] | None = None, keys: Collection[str] = (),
    times: Sequence[ColumnElement[bool]] = (), after: tuple[str, int] | None = None, each: int, limit: int, job: type[JobMixin] = Job,
) -> Executable:  # fmt: skip
    """A row per queued job that meets the criteria: `id`, `due` as text, `fits` and `ends`. Oldest due first.

    A row that `ends` says how far was looked: jobs behind it may fit, too. It need not fit itself. `cut`: a queue has more keys than were
    looked at. It stands in a row without an id where no job was found.

    `queues`, `keys`: only of these. `times`: criteria of `run_at`. `after`: begin behind the job with this time and this id. `each`: jobs that are looked at in a line.
    """
    table = table_of(job)
    columns = table.c
    one: ColumnElement[int] = literal_column("1", Integer)
    names = queue_names(job, _QUEUES) if queues is None else _given(queues)
    slot = rows("slot", priority=array("priorities", PRIORITIES, SmallInteger()))
    turn = first_of_turns(job, names, columns.id, _TURNS) if not keys else _turns_of(names, keys)
    place = columns.run_at, columns.id
    behind = []
    if after is not None:
        since = cast(bindparam("after_time", after[0], Text), DateTime(timezone=True))
        behind = [tuple_(*place) > tuple_(since, bindparam("after_id", after[1], BigInteger))]

    def line(name: str, beside: Sequence[Any], *of: ColumnElement[bool]) -> Any:
        number = func.row_number().over(order_by=place).label("number")
        fits = case((and_(true(), *where), true()), else_=False).label("fits")
        front = select(*place, number, fits).where(*of, *behind, *times).order_by(*place)
        return front.limit(bindparam("each", each, Integer)).correlate(*beside).lateral(name)

    of_queue = columns.queue == names.c.queue
    of_turn = columns.queue == turn.c.queue, columns.concurrency_key == turn.c.key, -columns.priority == turn.c.turn
    keyless = line("keyless", [names, slot], is_keyless(table), of_queue, columns.priority == slot.c.priority)
    later = line("later", [names], is_later(table), of_queue)
    ready = line("ready", [turn], is_ready(table), *of_turn)
    found = union_all(
        select(keyless).select_from(names.join(slot, true()).join(keyless, true())),
        select(later).select_from(names.join(later, true())),
        select(ready).select_from(turn.join(ready, true())),
    ).cte("found")
    ends = select(found.c.run_at, found.c.id).where(found.c.number == bindparam("each", each, Integer))
    end = ends.order_by(found.c.run_at, found.c.id).limit(one).cte("ending")
    within = or_(end.c.id.is_(None), tuple_(found.c.run_at, found.c.id) <= tuple_(end.c.run_at, end.c.id))
    wanted = (
        select(found.c.id, found.c.run_at, found.c.fits, (found.c.id == end.c.id).label("ends"))
        .select_from(found.outerjoin(end, true()))
        .where(within, or_(found.c.fits, found.c.id == end.c.id))
        .order_by(found.c.run_at, found.c.id)
        .limit(bindparam("most", limit, Integer))
        .subquery("wanted")
    )
    many = func.coalesce(func.max(turn.c.number), 0) >= _TURNS
    cut = select(many.label("cut")).subquery("turns")
    return (
        select(wanted.c.id, cast(wanted.c.run_at, Text).label("due"), wanted.c.fits, wanted.c.ends, cut.c.cut)
        .select_from(cut.outerjoin(wanted, true()))
        .order_by(wanted.c.run_at, wanted.c.id)
    )


def _given(queues: Collection[str]) -> CTE:
    of = rows("given", queue=array("queue_names", list(queues), Text()))
    return select(of.c.queue).cte("names")


def _turns_of(names: CTE, keys: Collection[str]) -> CTE:
    of = rows("of", key=array("keys", list(keys), Text()))
    slot = rows("level", priority=array("priorities", PRIORITIES, SmallInteger()))
    one: ColumnElement[int] = literal_column("1", Integer)
    every = names.join(of, true()).join(slot, true())
    return (
        select(names.c.queue, of.c.key, (-slot.c.priority).label("turn"), one.label("number"))
        .select_from(every)
        .cte("turn")
    )

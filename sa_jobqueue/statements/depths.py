"""How many jobs wait, of which tasks, and how many should be deleted by now.

A count that may be large stops at `CAP`, and reads an index: so each statement takes milliseconds, however many jobs there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import (
    CTE,
    Column,
    ColumnElement,
    Executable,
    Float,
    FromClause,
    Integer,
    ScalarSelect,
    Select,
    SmallInteger,
    bindparam,
    case,
    func,
    literal_column,
    select,
    true,
    tuple_,
    type_coerce,
    union_all,
)

from ..models import Job, JobMixin, Stat
from .claim import PRIORITIES
from .limits import is_keyless, is_later, is_ready
from .parts import array, rows, table_of

__all__ = [
    "CAP",
    "capped",
    "capped_sum",
    "due_queues",
    "first_of_turns",
    "purge_overdue",
    "queue_depths",
    "queue_names",
    "queued_tasks",
    "since_first_job",
]

#: Where counting stops: a number of this size means "more than 10,000".
CAP = 10_001

#: Queues that are looked at.
_QUEUES = 10_000
#: More queues than there can be.
_ALL = 2**31 - 1
#: Keys and priorities of a queue of which the first job is looked at, where more are ready than are counted.
_TURNS = 1_000

#: A time before which no job is due, for PostgreSQL has no difference to -infinity before version 17.
_EARLIEST: ColumnElement[Any] = literal_column("timestamptz '0002-01-01 00:00:00+00'")


def capped(number: int) -> str:
    """A count as people read it: 9,999 or 10,000+."""
    return f"{CAP - 1:,}+" if number >= CAP else f"{number:,}"


def capped_sum(numbers: Iterable[int]) -> str:
    """The sum of such counts; it may be more where one of them was not counted to its end."""
    numbers = list(numbers)
    more = "+" if max(numbers, default=0) >= CAP else ""
    return f"{sum(min(number, CAP - 1) for number in numbers):,}{more}"


def purge_overdue(*, cap: int = CAP, job: type[JobMixin] = Job) -> Executable:
    """One row: how many finished jobs should have been deleted by now, counted up to `cap`, and the `seconds` since the first
    should have been. Where they are many, or their time was over long ago, cleanup is behind.
    """
    columns = table_of(job).c
    since = func.greatest(columns.purge_at, _EARLIEST)
    over = (
        select(since.label("purge_at"))
        .where(columns.purge_at <= func.now())
        .order_by(columns.purge_at)
        .limit(bindparam("cap", cap, Integer))
        .subquery("over")
    )
    age = func.extract("epoch", func.now() - func.min(over.c.purge_at))
    return select(func.count().label("rows"), type_coerce(func.coalesce(age, 0), Float).label("seconds")).select_from(
        over
    )


def since_first_job(*, job: type[JobMixin] = Job, stat: type[Stat] = Stat) -> Executable:
    """The seconds since the oldest job was enqueued, or since a worker first counted one, if that is longer ago; NULL without any."""
    columns = table_of(job).c
    oldest = select(columns.created_at).order_by(columns.id).limit(literal_column("1")).scalar_subquery()
    counted = select(func.min(stat.at + stat.seconds * literal_column("interval '1 second'"))).scalar_subquery()
    return select(type_coerce(func.extract("epoch", func.now() - func.least(oldest, counted)), Float))


def queue_depths(*, cap: int = CAP, queues: int = _QUEUES, job: type[JobMixin] = Job) -> Executable:
    """A row per queue that has queued jobs, by name: `queued` and `due`, each counted up to `cap`, and `oldest_due_age`, the
    seconds since which the first due job waits; NULL if none is due. `queues`: rows at most.

    The names are found by one probe of each index of queued jobs, and each (queue, priority) is read from its front. Jobs with a
    concurrency key are ordered by key first: where `cap` of them are ready, the age is that of the oldest among these, and among the
    first jobs of 1,000 keys and priorities.
    """
    table = table_of(job)
    columns = table.c
    limit = bindparam("cap", cap, Integer)
    one: ColumnElement[int] = literal_column("1")

    names = queue_names(job, queues)
    of_queue = columns.queue == names.c.queue
    slot = rows("slot", priority=array("priorities", PRIORITIES, SmallInteger()))
    due = (
        select(columns.run_at)
        .where(is_keyless(table), of_queue, columns.priority == slot.c.priority, columns.run_at <= func.now())
        .order_by(columns.run_at)
        .correlate(names, slot)
    )
    counted = due.limit(limit).lateral("due")
    all_due = select(one).select_from(slot.join(counted, true())).limit(limit).correlate(names).subquery("all_due")
    keyless = select(func.count().label("due")).select_from(all_due).lateral("keyless")
    front = due.limit(one).lateral("front")
    oldest: Any = select(_first(front.c.run_at)).select_from(slot.join(front, true()))
    ready = _ready(job, names, limit)
    coming = select(columns.run_at).where(is_later(table), of_queue, columns.run_at <= func.now())
    later = _summary(coming.order_by(columns.run_at).limit(limit).correlate(names), "later")
    turn = first_of_turns(job, ready, columns.run_at, min(cap, _TURNS), ready.c.due >= limit)
    first_turn = select(turn.c.queue, _first(turn.c.run_at).label("oldest")).group_by(turn.c.queue).subquery("turns")

    number = keyless.c.due + ready.c.due + later.c.due
    without_key = _number(select(one).where(is_keyless(table), of_queue).limit(limit).correlate(names))
    not_ready = _number(select(one).where(is_later(table), of_queue).limit(limit).correlate(names))
    of_keyless = oldest.correlate(names).scalar_subquery()
    age = func.extract(
        "epoch", func.now() - func.least(of_keyless, ready.c.oldest, first_turn.c.oldest, later.c.oldest)
    )
    return (
        select(
            names.c.queue,
            # Where that number is due, at least as many are queued.
            case((number >= limit, limit), else_=func.least(without_key + ready.c.due + not_ready, limit)).label(
                "queued"
            ),
            func.least(number, limit).label("due"),
            type_coerce(age, Float).label("oldest_due_age"),
        )
        .select_from(
            names.join(keyless, true())
            .join(later, true())
            .join(ready, ready.c.queue == names.c.queue)
            .outerjoin(first_turn, first_turn.c.queue == names.c.queue)
        )
        .order_by(names.c.queue)
    )


def queued_tasks(*, sample: int, job: type[JobMixin] = Job) -> Executable:
    """A row per queue and task of queued jobs: queue, task, and how many there are `jobs` among those looked at.

    Of each queue and priority these are the first `sample` that are due, and the first `sample` that will be: a worker that does
    not know a job's task gives it back for at most five minutes. Of jobs with a concurrency key that are ready, they are the first of
    each key and priority, up to ten times `sample` of a queue; of the others, the first `sample` of a queue that are due, and the first
    that will be.
    """
    table = table_of(job)
    columns = table.c
    names = queue_names(job, _QUEUES)
    slot = rows("slot", priority=array("priorities", PRIORITIES, SmallInteger()))
    number = bindparam("sample", sample, Integer)

    def some(when: ColumnElement[bool]) -> list[Any]:
        first = select(columns.task).where(columns.queue == names.c.queue, when).order_by(columns.run_at).limit(number)
        of_slot = first.where(is_keyless(table), columns.priority == slot.c.priority).correlate(names, slot)
        of_queue = first.where(is_later(table)).correlate(names)
        page, later = of_slot.lateral("some"), of_queue.lateral("later")
        return [
            select(names.c.queue, page.c.task).select_from(names.join(slot, true()).join(page, true())),
            select(names.c.queue, later.c.task).select_from(names.join(later, true())),
        ]

    turn = first_of_turns(job, names, columns.task, sample * len(PRIORITIES))
    parts = [*some(columns.run_at <= func.now()), *some(columns.run_at > func.now()), select(turn.c.queue, turn.c.task)]
    found = union_all(*parts).subquery("found")
    return (
        select(found.c.queue, found.c.task, func.count().label("jobs"))
        .group_by(found.c.queue, found.c.task)
        .order_by(found.c.queue, found.c.task)
    )


def due_queues(*, job: type[JobMixin] = Job) -> Executable:
    """The names of the queues that have due jobs, by some probes of the indexes of queued jobs for each queue with queued ones."""
    table = table_of(job)
    columns = table.c
    names = queue_names(job, _ALL)
    slot = rows("slot", priority=array("priorities", PRIORITIES, SmallInteger()))
    one: ColumnElement[int] = literal_column("1", Integer)

    def first(*where: ColumnElement[bool]) -> Select[Any]:
        return select(one).where(columns.queue == names.c.queue, *where).limit(one).correlate(names, slot)

    # A probe for each priority: behind one condition on them all, jobs of the future would be read.
    keyless = first(is_keyless(table), columns.priority == slot.c.priority, columns.run_at <= func.now())
    found = keyless.order_by(columns.run_at).lateral("found")
    first_keyless = select(one).select_from(slot.join(found, true())).limit(one).correlate(names)
    ready, later = first(is_ready(table)), first(is_later(table), columns.run_at <= func.now())
    # Not EXISTS: for that the planner may read all jobs once, and hash their queues.
    any_due = func.coalesce(*(page.scalar_subquery() for page in (first_keyless, ready, later)))
    return select(names.c.queue).where(names.c.queue.is_not(None), any_due.is_not(None))


def queue_names(job: type[JobMixin], most: int) -> CTE:
    """The names of the queues with queued jobs, and behind them NULL: by one probe of each index of queued jobs for each."""
    table = table_of(job)
    columns = table.c
    one: ColumnElement[int] = literal_column("1", Integer)

    def first(*after: ColumnElement[bool]) -> Any:
        of_indexes = (
            select(columns.queue).where(kind, *after) for kind in (is_keyless(table), is_ready(table), is_later(table))
        )
        return [page.order_by(columns.queue).limit(one) for page in of_indexes]

    start = func.least(*(page.scalar_subquery() for page in first()), type_=columns.queue.type)
    names = select(start.label("queue"), one.label("number")).cte("names", recursive=True)
    following = func.least(
        *(page.correlate(names).scalar_subquery() for page in first(columns.queue > names.c.queue)),
        type_=columns.queue.type,
    )
    more = select(following, names.c.number + one)
    return names.union_all(more.where(names.c.queue.is_not(None), names.c.number < bindparam("queues", most, Integer)))


def _ready(job: type[JobMixin], names: CTE, limit: ColumnElement[int]) -> CTE:
    """Of each queue: how many jobs with a key are ready, and since when the oldest of those that were counted is due."""
    table = table_of(job)
    columns = table.c
    page = select(columns.run_at).where(is_ready(table), columns.queue == names.c.queue).limit(limit).correlate(names)
    found = _summary(page, "found")
    return (
        select(names.c.queue, found.c.due, found.c.oldest)
        .select_from(names.join(found, true()))
        .where(names.c.queue.is_not(None))
        .cte("ready")
        .prefix_with("MATERIALIZED")
    )


def first_of_turns(job: type[JobMixin], queues: CTE, seen: Column[Any], most: int, *where: ColumnElement[bool]) -> CTE:
    """The first ready job of each key and priority, `most` of each queue, by one probe for each: queue, and what is `seen` of it."""
    table = table_of(job)
    columns = table.c
    turn = -columns.priority
    one: ColumnElement[int] = literal_column("1", Integer)

    def front(of: CTE, *after: ColumnElement[bool]) -> Any:
        return (
            select(columns.concurrency_key.label("key"), turn.label("turn"), seen)
            .where(is_ready(table), columns.queue == of.c.queue, *after)
            .order_by(columns.concurrency_key, turn, columns.run_at)
            .limit(one)
            .correlate(of)
            .lateral("front")
        )

    start = front(queues)
    begin = select(queues.c.queue, *start.c, one.label("number")).select_from(queues.join(start, true())).where(*where)
    turns = begin.cte("turn", recursive=True)
    following = front(turns, tuple_(columns.concurrency_key, turn) > tuple_(turns.c.key, turns.c.turn))
    more = select(turns.c.queue, *following.c, turns.c.number + one).select_from(turns.join(following, true()))
    return turns.union_all(more.where(turns.c.number < bindparam("turns", most, Integer)))


def _summary(page: Select[Any], name: str) -> FromClause:
    """How many jobs are on the page, and since when the oldest of them is due."""
    its = page.subquery("page").c
    return select(func.count().label("due"), _first(its.run_at).label("oldest")).lateral(name)


def _first(time: ColumnElement[Any]) -> ColumnElement[Any]:
    # A job that was enqueued after this transaction began may be ready, and due a moment later.
    return func.min(func.least(func.greatest(time, _EARLIEST), func.now()))


def _number(page: Select[Any]) -> ScalarSelect[int]:
    return select(func.count()).select_from(page.subquery()).scalar_subquery()

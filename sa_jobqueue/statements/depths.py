"""How many jobs wait, of which tasks, and how many should be deleted by now.

A count that may be large stops at `CAP`, and reads an index: so each statement takes milliseconds, however many jobs there are.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Executable,
    Float,
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
    type_coerce,
    union_all,
)

from ..lifecycle import JobStatus
from ..models import Job, status_literal
from .claim import PRIORITIES
from .parts import array, rows, table_of

__all__ = ["CAP", "capped", "purge_overdue", "queue_depths", "queued_tasks"]

#: Where counting stops: a number of this size means "more than 10,000".
CAP = 10_001

#: Queues that are looked at.
_QUEUES = 10_000

#: A time before which no job is due, for PostgreSQL has no difference to -infinity before version 17.
_EARLIEST: ColumnElement[Any] = literal_column("timestamptz '0002-01-01 00:00:00+00'")


def capped(number: int) -> str:
    """A count as people read it: 9,999 or 10,000+."""
    return f"{CAP - 1:,}+" if number >= CAP else f"{number:,}"


def purge_overdue(*, cap: int = CAP, job: type[Job] = Job) -> Executable:
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


def queue_depths(*, cap: int = CAP, queues: int = _QUEUES, job: type[Job] = Job) -> Executable:
    """A row per queue that has queued jobs, by name: `queued` and `due`, each counted up to `cap`, and `oldest_due_age`, the
    seconds since which the first due job waits; NULL if none is due. `queues`: rows at most.

    The names are found by one probe of the claim's index each, and each (queue, priority) is read from its front.
    """
    columns = table_of(job).c
    queued = columns.status == status_literal(JobStatus.QUEUED)
    limit = bindparam("cap", cap, Integer)
    one: ColumnElement[int] = literal_column("1")

    names = _queues(job, queues)
    all_of_queue = select(one).where(queued, columns.queue == names.c.queue).limit(limit).correlate(names)
    slot = rows("slot", priority=array("priorities", PRIORITIES, SmallInteger()))
    due = (
        select(columns.run_at)
        .where(
            queued, columns.queue == names.c.queue, columns.priority == slot.c.priority, columns.run_at <= func.now()
        )
        .order_by(columns.run_at)
        .correlate(names, slot)
    )
    counted = due.limit(limit).lateral("due")
    all_due = select(one).select_from(slot.join(counted, true())).limit(limit).correlate(names).subquery("all_due")
    number = select(func.count().label("due")).select_from(all_due).lateral("number")
    # Where that number is due, at least as many are queued.
    full = number.c.due >= limit
    front = due.limit(one).lateral("front")
    oldest: Any = select(func.min(func.greatest(front.c.run_at, _EARLIEST))).select_from(slot.join(front, true()))
    age = func.extract("epoch", func.now() - oldest.correlate(names).scalar_subquery())
    return (
        select(
            names.c.queue,
            case((full, number.c.due), else_=_number(all_of_queue)).label("queued"),
            number.c.due,
            type_coerce(age, Float).label("oldest_due_age"),
        )
        .select_from(names.join(number, true()))
        .where(names.c.queue.is_not(None))
        .order_by(names.c.queue)
    )


def queued_tasks(*, sample: int, job: type[Job] = Job) -> Executable:
    """A row per queue and task of queued jobs: queue, task, and how many there are `jobs` among those looked at.

    Of each queue and priority these are the first `sample` that are due, and the first `sample` that will be: a worker that does
    not know a job's task gives it back for at most five minutes.
    """
    columns = table_of(job).c
    names = _queues(job, _QUEUES)
    slot = rows("slot", priority=array("priorities", PRIORITIES, SmallInteger()))

    def some(when: ColumnElement[bool]) -> Any:
        first = (
            select(columns.task)
            .where(
                columns.status == status_literal(JobStatus.QUEUED),
                columns.queue == names.c.queue,
                columns.priority == slot.c.priority,
                when,
            )
            .order_by(columns.run_at)
            .limit(bindparam("sample", sample, Integer))
            .correlate(names, slot)
        )
        page = first.lateral("some")
        joined = names.join(slot, true()).join(page, true())
        return select(names.c.queue, page.c.task).select_from(joined)

    both = union_all(some(columns.run_at <= func.now()), some(columns.run_at > func.now())).subquery("both")
    return (
        select(both.c.queue, both.c.task, func.count().label("jobs"))
        .group_by(both.c.queue, both.c.task)
        .order_by(both.c.queue, both.c.task)
    )


def _queues(job: type[Job], most: int) -> CTE:
    """The names of the queues with queued jobs, and behind them NULL: by one probe of the claim's index for each."""
    columns = table_of(job).c
    queued = columns.status == status_literal(JobStatus.QUEUED)
    first: Any = select(columns.queue).where(queued).order_by(columns.queue).limit(literal_column("1"))
    one: ColumnElement[int] = literal_column("1", Integer)
    names = select(first.scalar_subquery().label("queue"), one.label("number")).cte("names", recursive=True)
    following = first.where(columns.queue > names.c.queue).correlate(names).scalar_subquery()
    more = select(following, names.c.number + one)
    return names.union_all(more.where(names.c.queue.is_not(None), names.c.number < bindparam("queues", most, Integer)))


def _number(page: Select[Any]) -> ScalarSelect[int]:
    return select(func.count()).select_from(page.subquery()).scalar_subquery()

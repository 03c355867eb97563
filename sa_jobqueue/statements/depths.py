"""How deep the queues are, for a view that asks each second: counted by index, and up to a cap, however many jobs there are.

`count_jobs` reads the whole table. These read at most `cap` entries of an index for each number.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Executable,
    Float,
    Integer,
    Select,
    Table,
    bindparam,
    case,
    func,
    literal_column,
    select,
    true,
    type_coerce,
)

from ..lifecycle import JobStatus
from ..models import Job, status_literal
from .ends import has_run_out, is_held
from .parts import table_of

__all__ = ["count_failed", "queue_depths", "running_jobs"]

_ONE = literal_column("1", Integer)
#: Infinity before PostgreSQL 17 has no difference to a time: a job that is due since ever has waited since the year 2.
_FIRST: ColumnElement[Any] = literal_column("timestamptz '0002-01-01 00:00:00+00'")


def queue_depths(*, cap: int = 10_000, queues: int = 200, job: type[Job] = Job) -> Executable:
    """A row for each queue in which jobs are queued, by name: queue, queued, due, oldest_due_age in seconds.

    `cap`: a number that is equal to it may be larger. `queues`: at most so many rows.
    """
    table = table_of(job)
    names = _queues(table, queues)
    due = _due(table, names, cap)
    # Where there are too many due ones, there are at least as many queued ones: they need not be counted, too.
    queued = case((due.c.due >= _cap(cap), due.c.due), else_=_queued(table, names, cap))
    return (
        select(
            names.c.queue,
            queued.label("queued"),
            due.c.due,
            type_coerce(_oldest(table, names), Float).label("oldest_due_age"),
        )
        .select_from(names.join(due, true()))
        .where(names.c.queue.is_not(None))
        .order_by(names.c.queue)
    )


def running_jobs(*, cap: int = 10_000, job: type[Job] = Job) -> Executable:
    """How many jobs run: a row for each queue and worker: queue, worker, running, and of these those whose lease has `expired`."""
    table = table_of(job)
    held = (
        select(table.c.queue, table.c.worker, has_run_out(table).label("expired"))
        .where(is_held(table))
        .limit(_cap(cap))
        .subquery("held")
    )
    return select(
        held.c.queue,
        held.c.worker,
        func.count().label("running"),
        func.count().filter(held.c.expired).label("expired"),
    ).group_by(held.c.queue, held.c.worker)


def count_failed(*, cap: int = 10_000, job: type[Job] = Job) -> Executable:
    """The number of failed jobs that are kept; if it is equal to `cap`, there may be more."""
    table = table_of(job)
    failed = select(table.c.id).where(table.c.status == status_literal(JobStatus.FAILED)).limit(_cap(cap))
    return select(func.count()).select_from(failed.subquery("failed"))


def _queues(table: Table, most: int) -> CTE:
    """The names of the queues with queued jobs: one look into the index for each, because DISTINCT would read all entries."""
    limit = bindparam("queues", most, Integer)
    found = select(_next_queue(table).label("queue"), _ONE.label("number")).cte("queues", recursive=True)
    following = select(_next_queue(table, found), found.c.number + _ONE)
    return found.union_all(following.where(found.c.queue.is_not(None), found.c.number < limit))


def _next_queue(table: Table, after: CTE | None = None) -> Any:
    one = table.alias()
    query = select(one.c.queue).where(_is_queued(one)).order_by(one.c.queue).limit(_ONE)
    return (query if after is None else query.where(one.c.queue > after.c.queue).correlate(after)).scalar_subquery()


def _is_queued(job: Any) -> ColumnElement[bool]:
    found: ColumnElement[bool] = job.c.status == status_literal(JobStatus.QUEUED)
    return found


def _queued(table: Table, names: CTE, cap: int) -> Any:
    """How many jobs of the queue are queued."""
    one = table.alias()
    some = (
        select(_ONE).where(_is_queued(one), one.c.queue == names.c.queue).correlate(names).limit(_cap(cap)).subquery()
    )
    return select(func.count()).select_from(some).scalar_subquery()


def _due(table: Table, names: CTE, cap: int) -> Any:
    """How many of them are due: the index has those of each priority side by side."""
    one, priorities = table.alias(), _priorities()
    of_one = _due_of(one, names, priorities, _ONE.label("one")).limit(_cap(cap)).lateral()
    some = select(_ONE).select_from(priorities.join(of_one, true())).correlate(names).limit(_cap(cap)).subquery()
    return select(func.count().label("due")).select_from(some).lateral("counted")


def _oldest(table: Table, names: CTE) -> Any:
    """How long the first of them has waited, in seconds."""
    one, priorities = table.alias(), _priorities()
    first = _due_of(one, names, priorities, one.c.run_at).order_by(one.c.run_at).limit(_ONE).lateral()
    oldest = func.min(first.c.run_at)
    return (
        select(func.extract("epoch", func.now() - func.greatest(oldest, _FIRST)))
        .select_from(priorities.join(first, true()))
        .having(oldest.is_not(None))
        .correlate(names)
        .scalar_subquery()
    )


def _due_of(one: Any, names: CTE, priorities: Any, what: ColumnElement[Any]) -> Select[Any]:
    """`what` of the due jobs `one` with this priority."""
    return (
        select(what)
        .where(
            _is_queued(one), one.c.queue == names.c.queue, one.c.priority == priorities.c.priority,
            one.c.run_at <= func.now(),
        )
        .correlate(names, priorities)
    )  # fmt: skip


def _priorities() -> Any:
    numbers = func.generate_series(literal_column("9"), literal_column("0"), literal_column("-1"))
    return numbers.table_valued("priority").render_derived()


def _cap(cap: int) -> Any:
    return bindparam("cap", cap, Integer)

"""Moving finished jobs to the archive, the months of it, and what code says of which tasks are archived.

One statement deletes jobs and inserts those of archived tasks into `archived_job`: so a job is in one of the two tables, whenever a worker
is killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    ColumnElement,
    DateTime,
    Executable,
    Integer,
    Select,
    Table,
    Text,
    all_,
    and_,
    any_,
    bindparam,
    cast,
    column,
    delete,
    func,
    insert,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import JSONB, aggregate_order_by
from sqlalchemy.dialects.postgresql import array as array_of
from sqlalchemy.dialects.postgresql import insert as insert_or_ignore

from ..models import (
    SCHEMA,
    ArchivedJob,
    ArchivedTask,
    Job,
    JobMixin,
    LogPart,
    Progress,
    is_own,
    schema_function,
)
from .parts import array, epoch, members, table_of

__all__ = [
    "archived_names",
    "declare_archived",
    "drop_archive_month",
    "is_not_archived",
    "make_months_ahead",
    "make_months_of",
    "move_jobs",
]

#: What the archive has besides the columns of a job.
_BESIDE = ("progress", "progress_message", "logs")


def archived_names(*, archived_task: type[ArchivedTask] = ArchivedTask) -> ColumnElement[Any]:
    """The names of the tasks whose jobs are archived, as an array."""
    return func.array(select(archived_task.name).scalar_subquery(), type_=ARRAY(Text))


def is_not_archived(job: type[JobMixin], *, archived_task: type[ArchivedTask] = ArchivedTask) -> ColumnElement[bool]:
    """Whether a job is of a task that is not archived. An array, which is read once, leaves the plan of the jobs as it is."""
    return table_of(job).c.task != all_(archived_names(archived_task=archived_task))


def move_jobs(
    ids: Select[Any],
    *,
    job: type[JobMixin] = Job,
    progress: type[Progress] = Progress,
    log: type[LogPart] = LogPart,
    archived_job: type[ArchivedJob] = ArchivedJob,
    archived_task: type[ArchivedTask] = ArchivedTask,
) -> Select[Any]:
    """Delete the jobs that the query `ids` names, and what is kept of what they said; those of archived tasks are in the archive then.

    Returns one row: how many jobs there were, and the latest `purge_at` among them, in seconds since 1970.
    """
    table = table_of(job)
    returned: list[ColumnElement[Any]] = [table.c[name] for name in _common(table, archived_job)]
    if is_own(job):
        returned.append(_own_columns(table))
    gone = delete(table).where(members(table.c.id, ids)).returning(*returned).cte("gone")
    said, logs = table_of(progress), table_of(log)
    said_gone = (
        delete(said)
        .where(members(said.c.job_id, ids))
        .returning(said.c.job_id, said.c.claim_token, said.c.fraction, said.c.message)
        .cte("progress_gone")
    )
    logs_gone = (
        delete(logs)
        .where(members(logs.c.job_id, ids))
        .returning(logs.c.job_id, logs.c.claim_token, logs.c.part, logs.c.lines)
        .cte("logs_gone")
    )
    moved = _moved(gone, said_gone, logs_gone, table=table, archived_job=archived_job, archived_task=archived_task)
    counted: list[ColumnElement[Any]] = [func.count().label("jobs"), func.max(epoch(gone.c.purge_at)).label("reached")]
    return select(*counted).select_from(gone).add_cte(moved)


def _moved(
    gone: CTE,
    said: CTE,
    logs: CTE,
    *,
    table: Table,
    archived_job: type[ArchivedJob],
    archived_task: type[ArchivedTask],
) -> CTE:
    """The INSERT of those of archived tasks, with what they said in their last attempt."""
    lines = _last_lines(gone, logs)
    common = _common(table, archived_job)
    values: dict[str, ColumnElement[Any]] = {
        **{name: gone.c[name] for name in common},
        "finished_at": _finished_at(gone.c.finished_at),
        **dict(zip(_BESIDE, (said.c.fraction, said.c.message, lines.c.lines), strict=True)),
    }
    if "own_columns" in gone.c:
        values["columns"] = gone.c.own_columns
    theirs = gone.outerjoin(said, and_(said.c.job_id == gone.c.id, said.c.claim_token == gone.c.claim_token))
    rows = (
        select(*values.values())
        .select_from(theirs.outerjoin(lines, lines.c.job_id == gone.c.id))
        .where(gone.c.task == any_(archived_names(archived_task=archived_task)))
    )
    # Of Core's own: the dialect's INSERT has no cache key in SQLAlchemy 2.0.
    return insert(table_of(archived_job)).from_select(list(values), rows, include_defaults=False).cte("moved")


def _last_lines(gone: CTE, logs: CTE) -> CTE:
    """By job the log lines of its last claim, as one array."""
    line: ColumnElement[Any] = column("line", JSONB)
    each = (
        func.jsonb_array_elements(logs.c.lines)
        .table_valued(line, with_ordinality="place", name="lines", joins_implicitly=True)
        .render_derived(name="lines")
    )
    ordered: Any = aggregate_order_by(each.c.line, logs.c.part, each.c.place)
    return (
        select(logs.c.job_id, func.jsonb_agg(ordered, type_=JSONB).label("lines"))
        .select_from(logs.join(gone, and_(gone.c.id == logs.c.job_id, gone.c.claim_token == logs.c.claim_token)))
        .group_by(logs.c.job_id)
        .cte("last_lines")
    )


def _common(table: Table, archived_job: type[ArchivedJob]) -> list[str]:
    """The columns that a job has, and the archive as well."""
    archive = table_of(archived_job).c
    return [one.name for one in table_of(Job).c if one.name in archive and one.name in table.c]


def _own_columns(table: Table) -> ColumnElement[Any]:
    """What a table of the user's has besides, also what its class does not name."""
    ours = ",".join(one.name for one in table_of(Job).c)
    whole = literal_column(f"to_jsonb({table.name}.*)", JSONB)
    return whole.op("-", return_type=JSONB())(cast(literal_column(f"'{{{ours}}}'"), ARRAY(Text))).label("own_columns")


def _finished_at(time: ColumnElement[Any]) -> ColumnElement[Any]:
    """A time in a month that the archive can have: plain SQL may have written any, or none."""
    # A time before 1970, as -infinity, is 1970; and LEAST passes over a NULL.
    return func.least(
        func.greatest(func.coalesce(time, func.now()), func.to_timestamp(literal_column("0"))), func.now()
    )


# ---- months


def _make_months(times: ColumnElement[Any], schema: str) -> Executable:
    return select(schema_function("make_archive_months", schema, times, of=Integer()))


def make_months_of(jobs: Select[Any], *, job: type[JobMixin] = Job) -> Executable:
    """Make the missing months in which the jobs have finished that the query `jobs` finds; returns how many were made.

    It fails with the SQLSTATE 55P03 if another transaction is in the way: then it is to be tried again later.
    """
    finished = jobs.with_only_columns(_finished_at(table_of(job).c.finished_at))
    return _make_months(func.array(finished.scalar_subquery()), table_of(job).schema or "")


#: In UTC, as the months are: in the session's zone a month after January 30 is February 28, which may be March in UTC.
_NEXT_MONTH = "(date_trunc('month', now() AT TIME ZONE 'UTC') + interval '1 month') AT TIME ZONE 'UTC'"


def make_months_ahead(*, schema: str = SCHEMA) -> Executable:
    """The same for this month and the next one."""
    return _make_months(array_of([func.now(), literal_column(_NEXT_MONTH, DateTime(timezone=True))]), schema)


def drop_archive_month(kept: int, *, schema: str = SCHEMA) -> Executable:
    """Drop the oldest month of the archive that ended more than `kept` months ago; returns the name of its table, or NULL.

    It fails with the SQLSTATE 55P03 if another transaction is in the way.
    """
    return select(schema_function("drop_archive_month", schema, bindparam("kept", kept, Integer), of=Text()))


# ---- which tasks


def declare_archived(
    add: Sequence[str], remove: Sequence[str], *, archived_task: type[ArchivedTask] = ArchivedTask
) -> Executable:
    """Finished jobs of the tasks in `add` are archived from now on, and those of the tasks in `remove` no longer."""
    table = table_of(archived_task)
    no_longer = delete(table).where(table.c.name == any_(array("archived_no_longer", remove, Text()))).cte("no_longer")
    new = select(func.unnest(array("archived_names", add, Text())))
    return (
        insert_or_ignore(table)
        .from_select(["name"], new)
        .on_conflict_do_nothing(index_elements=["name"])
        .add_cte(no_longer)
    )

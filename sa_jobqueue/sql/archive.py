"""Moving finished jobs to the archive, making and dropping its months, and declaring which tasks are archived.

One statement deletes jobs and inserts those of archived tasks into `archived_job`: so a job is always in exactly one of the two tables,
whenever a worker is killed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, aggregate_order_by
from sqlalchemy.dialects.postgresql import array as array_of
from sqlalchemy.dialects.postgresql import insert as insert_or_ignore

from ..models import Job, JobMixin, companions_of, is_own, schema_function
from ..util.schema import SCHEMA
from .archived import archive_parts
from .notes import delete_notes
from .parts import ZERO, array, epoch, members, table_of
from .steps import step_columns
from .tables import StorePart

#: The columns that the archive has in addition to those of a job.
_MORE = ("progress", "progress_message", "logs", "steps")
#: The longest result of a step that is kept, in bytes. A job may have 10,000 steps.
_SHORT = 1_000


def archived_names(*, job: type[JobMixin] = Job) -> sa.ColumnElement[Any]:
    """The names of the tasks whose jobs are archived, as an array."""
    return sa.func.array(sa.select(companions_of(job).archived_task.name).scalar_subquery(), type_=sa.ARRAY(sa.Text))


def is_not_archived(job: type[JobMixin]) -> sa.ColumnElement[bool]:
    """Whether a job is of a task that is not archived. An array, which is read once, leaves the plan of the jobs as it is."""
    return table_of(job).c.task != sa.all_(archived_names(job=job))


def move_jobs(ids: sa.Select[Any], *, job: type[JobMixin] = Job) -> sa.Select[Any]:
    """Delete the jobs that the query `ids` names, with their progress, log lines, steps and waits; jobs of archived tasks are moved to the archive.

    Returns one row: how many jobs there were, and the latest `purge_at` among them, in seconds since 1970.
    """
    table = table_of(job)
    returned: list[sa.ColumnElement[Any]] = [table.c[name] for name in _common(table, job)]
    if is_own(job):
        returned.append(_own_columns(table))
    gone = sa.delete(table).where(members(table.c.id, ids)).returning(*returned).cte("gone")
    progress, logs, steps, waits = delete_notes(ids, returning=True, job=job)
    moved = _moved(gone, progress, logs, steps, table=table, job=job)
    counted: list[sa.ColumnElement[Any]] = [
        sa.func.count().label("jobs"),
        sa.func.max(epoch(gone.c.purge_at)).label("reached"),
    ]
    return sa.select(*counted).select_from(gone).add_cte(moved, waits)


def _moved(gone: sa.CTE, notes: sa.CTE, logs: sa.CTE, steps: sa.CTE, *, table: sa.Table, job: type[JobMixin]) -> sa.CTE:
    """Insert the jobs of archived tasks into the archive, with the progress and log lines of their last attempt, and their steps."""
    lines, recorded = _last_lines(gone, logs), _recorded(gone, steps)
    common = _common(table, job)
    values: dict[str, sa.ColumnElement[Any]] = {
        **{name: gone.c[name] for name in common},
        "finished_at": _finished_at(gone.c.finished_at),
        **dict(zip(_MORE, (notes.c.fraction, notes.c.message, lines.c.lines, recorded.c.steps), strict=True)),
    }
    if "own_columns" in gone.c:
        values["columns"] = gone.c.own_columns
    theirs = gone.outerjoin(notes, sa.and_(notes.c.job_id == gone.c.id, notes.c.claim_token == gone.c.claim_token))
    theirs = theirs.outerjoin(lines, lines.c.job_id == gone.c.id).outerjoin(recorded, recorded.c.job_id == gone.c.id)
    rows = sa.select(*values.values()).select_from(theirs).where(gone.c.task == sa.any_(archived_names(job=job)))
    # Of Core's own: the dialect's INSERT has no cache key in SQLAlchemy 2.0.
    return (
        sa.insert(table_of(companions_of(job).archived_job))
        .from_select(list(values), rows, include_defaults=False)
        .cte("moved")
    )


def _last_lines(gone: sa.CTE, logs: sa.CTE) -> sa.CTE:
    """For each job the log lines of its last claim, as one array."""
    line: sa.ColumnElement[Any] = sa.column("line", JSONB)
    each = (
        sa.func.jsonb_array_elements(logs.c.lines)
        .table_valued(line, with_ordinality="place", name="lines", joins_implicitly=True)
        .render_derived(name="lines")
    )
    ordered: Any = aggregate_order_by(each.c.line, logs.c.part, each.c.place)
    return (
        sa.select(logs.c.job_id, sa.func.jsonb_agg(ordered, type_=JSONB).label("lines"))
        .select_from(logs.join(gone, sa.and_(gone.c.id == logs.c.job_id, gone.c.claim_token == logs.c.claim_token)))
        .group_by(logs.c.job_id)
        .cte("last_lines")
    )


def _recorded(gone: sa.CTE, steps: sa.CTE) -> sa.CTE:
    """The steps of each job as one array of objects."""
    columns = step_columns(steps, gone, most=_SHORT)
    pairs = (part for column in columns for part in (sa.literal_column(f"'{column.name}'"), column.element))
    step = sa.func.jsonb_build_object(*pairs, type_=JSONB)
    ordered: Any = aggregate_order_by(step, steps.c.ended_at, steps.c.name)
    return (
        sa.select(steps.c.job_id, sa.func.jsonb_agg(ordered, type_=JSONB).label("steps"))
        .select_from(steps.join(gone, gone.c.id == steps.c.job_id))
        .group_by(steps.c.job_id)
        .cte("recorded")
    )


def _common(table: sa.Table, job: type[JobMixin]) -> list[str]:
    """The columns that the job table and the archive share."""
    archive = table_of(companions_of(job).archived_job).c
    return [column.name for column in table_of(Job).c if column.name in archive and column.name in table.c]


def _own_columns(table: sa.Table) -> sa.ColumnElement[Any]:
    """The user's own columns of a job table as one JSON object, also columns that its class does not map."""
    ours = ",".join(column.name for column in table_of(Job).c)
    whole = sa.literal_column(f"to_jsonb({table.name}.*)", JSONB)
    return whole.op("-", return_type=JSONB())(sa.cast(sa.literal_column(f"'{{{ours}}}'"), sa.ARRAY(sa.Text))).label(
        "own_columns"
    )


def _finished_at(time: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """`time` moved into a month that the archive can have: plain SQL may have written any time, or none."""
    # A time before 1970, as -infinity, is 1970; and LEAST passes over a NULL.
    return sa.func.least(
        sa.func.greatest(sa.func.coalesce(time, sa.func.now()), sa.func.to_timestamp(ZERO)), sa.func.now()
    )


# ---- months


def _make_months(times: sa.ColumnElement[Any], schema: str) -> sa.Executable:
    return sa.select(schema_function("make_archive_months", schema, times, of=sa.Integer()))


def make_months_of(jobs: sa.Select[Any], *, job: type[JobMixin] = Job) -> sa.Executable:
    """Make the missing months in which the jobs have finished that the query `jobs` finds; returns how many were made.

    It fails with the SQLSTATE 55P03 if another transaction is in the way: then it is to be tried again later.
    """
    finished = jobs.with_only_columns(_finished_at(table_of(job).c.finished_at))
    return _make_months(sa.func.array(finished.scalar_subquery()), table_of(job).schema or "")


#: In UTC, as the months are: in the session's zone a month after January 30 is February 28, which may be March in UTC.
_NEXT_MONTH = "(date_trunc('month', now() AT TIME ZONE 'UTC') + interval '1 month') AT TIME ZONE 'UTC'"


def make_months_ahead(*, schema: str = SCHEMA) -> sa.Executable:
    """Make this month and the next month of the archive, if they are missing; returns how many were made."""
    return _make_months(array_of([sa.func.now(), sa.literal_column(_NEXT_MONTH, sa.DateTime(timezone=True))]), schema)


def drop_archive_month(kept: int, *, schema: str = SCHEMA) -> sa.Executable:
    """Drop the oldest month of the archive that ended more than `kept` months ago; returns the name of its table, or NULL.

    It fails with the SQLSTATE 55P03 if another transaction is in the way.
    """
    return sa.select(
        schema_function("drop_archive_month", schema, sa.bindparam("kept", kept, sa.Integer), of=sa.Text())
    )


# ---- which tasks


def declare_archived(add: Sequence[str], remove: Sequence[str], *, job: type[JobMixin] = Job) -> sa.Executable:
    """Finished jobs of the tasks in `add` are archived from now on, and those of the tasks in `remove` no longer."""
    table = table_of(companions_of(job).archived_task)
    no_longer = (
        sa.delete(table).where(table.c.name == sa.any_(array("archived_no_longer", remove, sa.Text()))).cte("no_longer")
    )
    new = sa.select(sa.func.unnest(array("archived_names", add, sa.Text())))
    return (
        insert_or_ignore(table)
        .from_select(["name"], new)
        .on_conflict_do_nothing(index_elements=["name"])
        .add_cte(no_longer)
    )


# ---- The archive: its months, and the tasks whose jobs are moved to it. `Pruning` moves them.


class Archive(StorePart):
    """Making and dropping months, and declaring archived tasks. Making and dropping fail with `Fault.LATE` where another transaction
    is in the way.
    """

    def declare_archived(self, connection: sa.Connection, add: Collection[str], remove: Collection[str]) -> None:
        """Finished jobs of the tasks in `add` are archived from now on, and those of the tasks in `remove` no longer."""
        names = sorted(add), sorted(remove)  # in order, so that workers that start together do not deadlock
        connection.execute(declare_archived(*names, job=self.job))

    def archive_parts(self, connection: sa.Connection) -> Sequence[str]:
        """The months of the archive, the newest first; none where the role may not read it."""
        return connection.scalars(archive_parts(schema=self.schema_on(connection), table=self.job.__tablename__)).all()

    def make_months_ahead(self, connection: sa.Connection) -> int:
        """Make the archive's tables for this month and the next, if they are missing; returns how many were made."""
        return int(connection.scalar(make_months_ahead(schema=self.schema)) or 0)

    def drop_archive_month(self, connection: sa.Connection, kept: int) -> str | None:
        """Drop the oldest month that ended more than `kept` months ago. Returns the month, as "2026-11", or None."""
        name: str | None = connection.scalar(drop_archive_month(kept, schema=self.schema))
        return None if name is None else name.removeprefix("archived_job_").replace("_", "-")

"""The tasks, versions of arguments and recorded steps of all jobs that have not ended. Each statement reads all of these jobs."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from ...models import GATE, Job, JobMixin, companions_of, status_in
from ...rules.lifecycle import FINISHED, JobStatus
from ...tasks.followups import FILLED
from ..chosen import reading_of
from ..claims import version_in, version_of
from ..parts import table_of

_UNFINISHED = tuple(status for status in JobStatus if status not in FINISHED)


def unfinished_tasks(*, job: type[JobMixin] = Job) -> sa.Executable:
    """A row per task, `version` of the arguments (text, NULL for 1) and `reading`, with the number of `jobs` that have not ended."""
    table = table_of(job)
    version, reading = version_of(table).label("version"), reading_of(job).label("reading")
    return (
        sa.select(table.c.task, version, reading, sa.func.count().label("jobs"))
        # A gate of a workflow needs no handler.
        .where(status_in(table.c.status, _UNFINISHED), table.c.task != sa.literal_column(f"'{GATE}'"))
        .group_by(table.c.task, version, reading)
        .order_by(table.c.task, version, reading)
    )


def coming_follow_ups(*, job: type[JobMixin] = Job) -> sa.Executable:
    """A row per task and `version` of follow-ups, with the number of `jobs` that have not ended and name such a follow-up."""
    table = table_of(job)
    given = [
        sa.select(
            table.c.extras.op("->", return_type=JSONB())(sa.literal_column(f"'{option}'", sa.Text)).label("given")
        ).where(status_in(table.c.status, _UNFINISHED), table.c.extras.is_not(None))
        for option in FILLED
    ]
    of = sa.union_all(*given).subquery("follow_up").c.given
    task = of.op("->>", return_type=sa.Text())(sa.literal_column("'task'", sa.Text)).label("task")
    version = version_in(of.op("->", return_type=JSONB())(sa.literal_column("'extras'", sa.Text))).label("version")
    counted = sa.select(task, version, sa.func.count().label("jobs")).where(task.is_not(None))
    return counted.group_by(task, version).order_by(task, version)


def recorded_steps(*, job: type[JobMixin] = Job) -> sa.Executable:
    """A row per task and `name` of a recorded step, without its occurrence, with the number of `jobs` that have not ended. Sleeps
    and joins are left out, because code does not name them.
    """
    table, step = table_of(job), table_of(companions_of(job).step)
    name = sa.func.regexp_replace(step.c.name, sa.literal_column(r"'#\d+$'"), sa.literal_column("''"), type_=sa.Text())
    return (
        sa.select(table.c.task, name.label("name"), sa.func.count(step.c.job_id.distinct()).label("jobs"))
        .select_from(step.join(table, table.c.id == step.c.job_id))
        .where(status_in(table.c.status, _UNFINISHED), step.c.kind.not_in(("sleep", "join")))
        .group_by(table.c.task, name)
        .order_by(table.c.task, name)
    )

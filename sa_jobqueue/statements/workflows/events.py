"""Events of workflows: appended by each statement that ends jobs, for those that are members of one.

>>> from sqlalchemy import select
>>> from sa_jobqueue.models import Job
>>> ended = select(Job.id, Job.workflow_id).cte("ended")
>>> "INSERT INTO sa_jobqueue.workflow_event" in str(members_ended([ended]))
True
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from ...models import WorkflowEvent, schema_function
from ..parts import table_of

__all__ = ["COMPLETED", "LOOK", "NOT_COMPLETED", "member_events", "members_ended"]

COMPLETED: sa.ColumnElement[Any] = sa.literal_column("true", sa.Boolean)
NOT_COMPLETED: sa.ColumnElement[Any] = sa.literal_column("false", sa.Boolean)
#: The members are to be looked at.
LOOK: sa.ColumnElement[Any] = sa.cast(sa.null(), sa.Boolean)


def members_ended(
    jobs: Sequence[sa.FromClause],
    completed: sa.ColumnElement[Any] = COMPLETED,
    *,
    event: type[WorkflowEvent] = WorkflowEvent,
) -> sa.Insert:
    """Append an event for each of these jobs that is a member of a workflow.

    `jobs` have the columns `id` and `workflow_id`, which is NULL where there is nothing to say. `completed`: NULL for one that is to be
    looked at.
    """
    ends = [
        sa.select(one.c.workflow_id, one.c.id, completed if "completed" not in one.c else one.c.completed).where(
            one.c.workflow_id.is_not(None)
        )
        for one in jobs
    ]
    source: Any = ends[0] if len(ends) == 1 else ends[0].union_all(*ends[1:])
    return sa.insert(table_of(event)).from_select(
        ["workflow_id", "job_id", "completed"], source, include_defaults=False
    )


def member_events(
    jobs: Sequence[sa.FromClause],
    completed: sa.ColumnElement[Any] = COMPLETED,
    *,
    told: bool = False,
    event: type[WorkflowEvent] = WorkflowEvent,
) -> sa.CTE:
    """The same, to be added to the statement that ends the jobs. `told`: workers that listen are told at the commit."""
    appended = members_ended(jobs, completed, event=event)
    if told:
        telling = schema_function("tell_workflows", table_of(event).schema, of=sa.Text())
        return appended.returning(telling.label("told")).cte("events")
    return appended.cte("events")

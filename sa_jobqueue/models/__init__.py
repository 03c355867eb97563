"""The tables: `Job` and its companions, as SQLAlchemy 2 declarative classes.

`select(Job)` is the query API; jobs are ordinary rows:

>>> from sqlalchemy import select
>>> late = select(Job).where(Job.queue == "mail", Job.is_retrying)

They live in the schema `sa_jobqueue`; `schema_translate_map={"sa_jobqueue": "other"}` moves them and nothing else.
The tables are made by `sa_jobqueue.migrations`, which is frozen per version; a test compares the two.
"""

from __future__ import annotations

from ..util.schema import SCHEMA
from .archive import ArchivedJob, ArchivedTask
from .base import (
    AT_ONCE,
    UNFINISHED,
    Base,
    JsonText,
    StatusText,
    UnfinishedJson,
    checked_due,
    due_text,
    schema_function,
    status_in,
    status_literal,
)
from .companions import Companions, in_schema
from .job import Job, JobMixin, companions_of, is_job_class, own_column
from .job_readings import JobReadings
from .limits import TASK_GROUP, KeyRow, LimitRow, LimitState
from .own_table import is_own, job_schemas, schema_of
from .schedule import Overlap, Schedule
from .steps import Inbox, Signal, Step, Wait
from .tables import AuditEntry, Awaited, Backlog, LogPart, Progress, SchemaVersion, Stat, UniqueKey, Uptime, WorkerRow
from .unique import insert_in_order, listen_to_sessions, put_in_order
from .workflow import GATE, WorkflowCallback, WorkflowDependency, WorkflowEvent, WorkflowJoin, WorkflowRow

__all__ = [
    "AT_ONCE",
    "GATE",
    "SCHEMA",
    "TASK_GROUP",
    "UNFINISHED",
    "ArchivedJob",
    "ArchivedTask",
    "AuditEntry",
    "Awaited",
    "Backlog",
    "Base",
    "Companions",
    "Inbox",
    "Job",
    "JobMixin",
    "JobReadings",
    "JsonText",
    "KeyRow",
    "LimitRow",
    "LimitState",
    "LogPart",
    "Overlap",
    "Progress",
    "Schedule",
    "SchemaVersion",
    "Signal",
    "Stat",
    "StatusText",
    "Step",
    "UnfinishedJson",
    "UniqueKey",
    "Uptime",
    "Wait",
    "WorkerRow",
    "WorkflowCallback",
    "WorkflowDependency",
    "WorkflowEvent",
    "WorkflowJoin",
    "WorkflowRow",
    "checked_due",
    "companions_of",
    "due_text",
    "in_schema",
    "insert_in_order",
    "is_job_class",
    "is_own",
    "job_schemas",
    "listen_to_sessions",
    "own_column",
    "put_in_order",
    "schema_function",
    "schema_of",
    "status_in",
    "status_literal",
]

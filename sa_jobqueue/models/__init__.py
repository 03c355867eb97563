"""The tables: `Job` and its companions, as SQLAlchemy 2 declarative classes.

`select(Job)` is the query API; jobs are ordinary rows:

>>> from sqlalchemy import select
>>> late = select(Job).where(Job.queue == "mail", Job.is_retrying)

They live in the schema `sa_jobqueue`; `schema_translate_map={"sa_jobqueue": "other"}` moves them and nothing else.
The tables are made by `sa_jobqueue.migrations`, which is frozen per version; a test compares the two.
"""

from __future__ import annotations

from .archive import ArchivedJob, ArchivedTask
from .base import SCHEMA, Base
from .companions import Companions, in_schema
from .due_time import AT_ONCE, checked_due, due_text
from .functions import schema_function
from .job import Job, JobMixin, companions_of, is_job_class, own_column
from .job_readings import JobReadings
from .json_text import UNFINISHED, JsonText, UnfinishedJson
from .limits import TASK_GROUP, KeyRow, LimitRow, LimitState
from .notes import LogPart, Progress
from .own_table import is_own, job_schemas, schema_of
from .schedule import Overlap, Schedule
from .stat import Stat
from .status import StatusText, status_in, status_literal
from .tables import Awaited, SchemaVersion, UniqueKey, Uptime, WorkerRow
from .unique import insert_in_order, listen_to_sessions, put_in_order, say_all
from .workflow import GATE, WorkflowCallback, WorkflowDependency, WorkflowEvent, WorkflowJoin, WorkflowRow

__all__ = [
    "AT_ONCE", "GATE", "SCHEMA", "TASK_GROUP", "UNFINISHED", "ArchivedJob", "ArchivedTask", "Awaited", "Base", "Companions", "Job", "JobMixin", "JobReadings", "JsonText", "KeyRow", "LimitRow", "LimitState", "LogPart", "Overlap", "Progress", "Schedule", "SchemaVersion", "Stat",
    "StatusText", "UnfinishedJson", "UniqueKey", "Uptime", "WorkerRow", "WorkflowCallback", "WorkflowDependency", "WorkflowEvent", "WorkflowJoin", "WorkflowRow", "checked_due", "companions_of", "due_text", "in_schema", "insert_in_order", "is_job_class", "is_own", "job_schemas", "listen_to_sessions", "own_column", "put_in_order", "say_all", "schema_function", "schema_of", "status_in",
    "status_literal",
]  # fmt: skip

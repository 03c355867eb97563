"""The companion tables of a job table, as mapped classes: the package's own, and equal tables in another schema.

The queue's functions and triggers are in the schema of its tables, so the jobs of different schemas never meet.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import Mapper, column_property

from ..util.schema import SCHEMA
from .archive import ArchivedJob, ArchivedTask
from .base import DueTime
from .limits import KeyRow, LimitRow, LimitState
from .schedule import Schedule
from .steps import Inbox, Signal, Step, Wait
from .tables import AuditEntry, Awaited, Backlog, LogPart, Progress, Stat, UniqueKey, Uptime, WorkerRow
from .workflow import WorkflowCallback, WorkflowDependency, WorkflowEvent, WorkflowJoin, WorkflowRow


@dataclass(frozen=True, slots=True)
class Companions:
    """The classes of the companion tables in a schema with jobs."""

    worker: type[WorkerRow] = WorkerRow
    uptime: type[Uptime] = Uptime
    unique_key: type[UniqueKey] = UniqueKey
    progress: type[Progress] = Progress
    log: type[LogPart] = LogPart
    schedule: type[Schedule] = Schedule
    awaited: type[Awaited] = Awaited
    stat: type[Stat] = Stat
    backlog: type[Backlog] = Backlog
    limit: type[LimitRow] = LimitRow
    key: type[KeyRow] = KeyRow
    limit_state: type[LimitState] = LimitState
    workflow: type[WorkflowRow] = WorkflowRow
    dependency: type[WorkflowDependency] = WorkflowDependency
    join: type[WorkflowJoin] = WorkflowJoin
    callback: type[WorkflowCallback] = WorkflowCallback
    event: type[WorkflowEvent] = WorkflowEvent
    step: type[Step] = Step
    signal: type[Signal] = Signal
    wait: type[Wait] = Wait
    inbox: type[Inbox] = Inbox
    archived_job: type[ArchivedJob] = ArchivedJob
    archived_task: type[ArchivedTask] = ArchivedTask
    audit: type[AuditEntry] = AuditEntry


_PACKAGES = Companions()


@cache
def companions_in(schema: str) -> Companions:
    """The companions of the jobs in this schema."""
    if schema == SCHEMA:
        return _PACKAGES
    return Companions(**{field.name: in_schema(getattr(_PACKAGES, field.name), schema) for field in fields(Companions)})


@cache
def in_schema(model: type[Any], schema: str) -> type[Any]:
    """A class like `model`, whose table is in `schema`."""
    if schema == SCHEMA:
        return model
    mapper: Mapper[Any] = model.__mapper__
    table = cast(sa.Table, mapper.local_table).to_metadata(sa.MetaData(schema=schema), schema=schema)
    place_in(table, schema)
    # Each table has a class of its own: the classes share only what Python inherits.
    attributes: dict[str, Any] = {
        attribute.key: column_property(table.c[attribute.columns[0].key], deferred=attribute.deferred)
        for attribute in mapper.column_attrs
    }
    keys = [table.c[column.name] for column in mapper.primary_key]  # not all of the table's, where it is partitioned
    named = {"__module__": f"{model.__module__}.{schema}", "__qualname__": model.__qualname__, "__doc__": model.__doc__}
    return type(
        model.__name__,
        (model,),
        {**attributes, **named, "__table__": table, "__mapper_args__": {"concrete": True, "primary_key": keys}},
    )


def place_in(table: sa.Table, schema: str) -> None:
    """Let the columns of `table` find the functions of the queue in `schema`."""
    for column in table.columns:
        if isinstance(column.type, DueTime) and column.type.schema != schema:
            placed: Any = DueTime(schema)
            column.type = placed.evaluates_none() if column.type.should_evaluate_none else placed

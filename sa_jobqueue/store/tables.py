"""The tables of one store: the jobs and their companions."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigurationError
from ..models import (
    Awaited,
    Job,
    KeyRow,
    LimitRow,
    LimitState,
    LogPart,
    Progress,
    Schedule,
    Stat,
    UniqueKey,
    Uptime,
    WorkerRow,
    WorkflowCallback,
    WorkflowDependency,
    WorkflowEvent,
    WorkflowJoin,
    WorkflowRow,
)

__all__ = ["OfTables", "Tables"]


@dataclass(frozen=True, slots=True)
class Tables:
    """A job class and its companions, all of one schema; the wake-up gates are sequences of that schema.

    What one store writes refers to the jobs of no other: their ids may be equal. Raises ConfigurationError where the
    classes are of several schemas.
    """

    job: type[Job] = Job
    worker: type[WorkerRow] = WorkerRow
    uptime: type[Uptime] = Uptime
    unique_key: type[UniqueKey] = UniqueKey
    progress: type[Progress] = Progress
    log: type[LogPart] = LogPart
    schedule: type[Schedule] = Schedule
    awaited: type[Awaited] = Awaited
    stat: type[Stat] = Stat
    limit: type[LimitRow] = LimitRow
    key: type[KeyRow] = KeyRow
    limit_state: type[LimitState] = LimitState
    workflow: type[WorkflowRow] = WorkflowRow
    dependency: type[WorkflowDependency] = WorkflowDependency
    join: type[WorkflowJoin] = WorkflowJoin
    callback: type[WorkflowCallback] = WorkflowCallback
    event: type[WorkflowEvent] = WorkflowEvent

    def __post_init__(self) -> None:
        classes = (
            self.job,
            self.worker,
            self.uptime,
            self.unique_key,
            self.progress,
            self.log,
            self.schedule,
            self.awaited,
            self.stat,
            self.limit,
            self.key,
            self.limit_state,
            self.workflow,
            self.dependency,
            self.join,
            self.callback,
            self.event,
        )
        schemas = {str(one.__table__.schema): one.__name__ for one in classes}
        if len(schemas) > 1:
            found = ", ".join(f"{name} in {schema}" for schema, name in schemas.items())
            raise ConfigurationError(f"the tables of a store must be of one schema, not {found}")

    @property
    def completion(self) -> str:
        """The SQL function by which a handler's transaction completes its job. Its text names the job table, so each has one."""
        return f"complete_{self.job.__tablename__}"

    @property
    def member_completion(self) -> str:
        """The same for a member of a workflow, to which the end is told."""
        name = self.job.__tablename__
        return "complete_member" if name == "job" else f"complete_member_{name}"


class OfTables:
    """What is bound to tables."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

"""The tables of one store: the jobs and their companions."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import sqlalchemy as sa

from ..errors import ConfigurationError
from ..models import Companions, Job, JobMixin, companions_of
from ..schema import schema_on
from ..statements.archived import is_archive_locked

__all__ = ["OfTables", "Tables"]


@dataclass(frozen=True, slots=True)
class Tables(Companions):
    """A job class and its companions, all of one schema; the wake-up gates are sequences of that schema.

    What one store writes refers to the jobs of no other: their ids may be equal. Raises ConfigurationError where the
    classes are of several schemas.
    """

    job: type[JobMixin] = Job

    def __post_init__(self) -> None:
        classes = (self.job, *(getattr(self, one.name) for one in fields(Companions)))
        schemas = {str(one.__table__.schema): one.__name__ for one in classes}
        if len(schemas) > 1:
            found = ", ".join(f"{name} in {schema}" for schema, name in schemas.items())
            raise ConfigurationError(f"the tables of a store must be of one schema, not {found}")

    @classmethod
    def of(cls, job: type[JobMixin]) -> Tables:
        """The class `job` with the companions of its schema."""
        beside = companions_of(job)
        return cls(job=job, **{one.name: getattr(beside, one.name) for one in fields(Companions)})

    @property
    def of_job(self) -> dict[str, Any]:
        """The tables between which a job moves, with what it has said, by the names that the statements have for them."""
        names = ("job", "progress", "log", "archived_job", "archived_task")
        return {name: getattr(self, name) for name in names}

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

    def schema_on(self, connection: sa.Connection) -> str:
        """The schema where this connection finds the tables."""
        return schema_on(connection, self.tables.job.__table__)

    def is_archive_locked(self, connection: sa.Connection) -> bool:
        """Whether no job can be moved to the archive just now, whichever it is."""
        return bool(connection.scalar(is_archive_locked(schema=self.schema_on(connection))))

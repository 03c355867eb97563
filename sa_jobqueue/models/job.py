"""The job as a mapped class: what all job tables have, and the package's own table."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict
from sqlalchemy import event
from sqlalchemy.orm import ColumnProperty, MapperProperty, validates

from ..errors import OptionError, StatusError
from ..rules.lifecycle import JobStatus
from .base import AT_ONCE, Base, checked_due, decode_on_read
from .companions import Companions, companions_in, place_in
from .job_columns import JobColumns
from .job_indexes import AFTER_CREATE, constraints_and_indexes, know_what_came_of_it, load_times
from .job_readings import JobReadings
from .own_table import begin_own_table, column_names, refuse_unbegun, schema_of

#: The first values of the attributes that only the queue's statements change.
_AT_FIRST: Final[dict[str, object]] = {"status": JobStatus.QUEUED, "claims": 0, "claim_token": None}


class JobMixin(JobReadings, JobColumns):
    """What a job is: the columns, constraints and indexes of a job table, and what its rows can do.

    `Job` is the package's own table. For a table with columns of yours, map a class on your own base, in a schema that has no other
    jobs; what else a queue needs comes into that schema with `sa_jobqueue.migrations.upgrade`:

        class Job(JobMixin, Base):
            __table_args__ = {"schema": "shop_queue"}

            tenant_id: Mapped[int] = mapped_column(ForeignKey("tenant.id"))

    Raises ConfigurationError, when the class is made, for what cannot work.
    """

    __tablename__: Any = "job"

    @validates("status", "claims", "claim_token")
    def _refuse(self, key: str, value: object) -> object:
        state = sa.inspect(self)
        current = self.__dict__.get(key, _AT_FIRST[key] if state.key is None else None)
        if value == current:
            return current
        if state.key is None and state.session is not None and "task" not in self.__dict__:
            state.session.expunge(self)  # half made by a merge: its row is gone
        raise StatusError(
            f"job.{key} is not set by hand, nor by merging an older object (to {value!r}): "
            "session.execute(cancel_jobs(Job.id == ...)), retry_jobs(...) or discard_jobs(...) from "
            "sa_jobqueue.statements change it, in this same transaction"
        )

    @validates("run_at", "expires_at", "deadline_at")
    def _refuse_time(self, key: str, value: Any) -> Any:
        if (
            value is not None
            and value is not AT_ONCE
            and not hasattr(value, "__clause_element__")
            and not isinstance(value, sa.ClauseElement)
        ):
            checked_due(value, key)  # here and not in the flush, which would fail with all that it holds
        return value

    def __init_subclass__(cls, **options: Any) -> None:
        own = begin_own_table(cls, JobMixin, constraints_and_indexes)
        super().__init_subclass__(**options)  # maps it
        if own is not None:
            own.check()
            place_in(own.table, own.schema)
            event.listen(cls.status, "init_scalar", lambda *_: JobStatus.QUEUED, retval=True, propagate=True)
            event.listen(cls.errors, "init_scalar", lambda *_: [], retval=True, propagate=True)

    def __init__(self, **columns: Any) -> None:
        super().__init__(**columns)
        # The INSERT does not set it, so that a role that may enqueue cannot insert a job that runs or is done.
        vars(self).pop("status", None)


event.listen(JobMixin, "instrument_class", refuse_unbegun, propagate=True)  # before the first class is mapped


class Job(JobMixin, Base):
    """One job. Made by `enqueue()`, changed by statements; users read it."""


_OURS: Final = frozenset(column_names(JobMixin))


def is_job_class(given: object) -> bool:
    """Whether this is a mapped class of jobs."""
    return isinstance(given, type) and issubclass(given, JobMixin) and "__mapper__" in vars(given)


def companions_of(job: type[JobMixin]) -> Companions:
    """The mapped classes of the companion tables of this job class: schedules, limits, progress and all others.

    Statements that take no `job=` take such a class: `pause_schedules(..., schedule=companions_of(Job).schedule)`.
    """
    return companions_in(schema_of(job))


def own_column(job: type[JobMixin], name: str) -> sa.Column[Any]:
    """The column behind an attribute of the user's own. Raises OptionError for any other attribute."""
    found: MapperProperty[Any] | None = job.__mapper__.attrs.get(name)
    if isinstance(found, ColumnProperty) and name not in _OURS and isinstance(column := found.columns[0], sa.Column):
        return column
    others = sorted(
        attribute.key
        for attribute in job.__mapper__.column_attrs
        if attribute.key not in {*_OURS, "progress", "progress_message"}
    )
    hint = f"; it has {', '.join(others)}" if others else ": see JobMixin"
    raise OptionError(f"columns: {job.__name__} has no column {name!r} of your own{hint}")


for _statement in AFTER_CREATE:
    event.listen(Job.__table__, "after_create", sa.DDL(_statement))  # type: ignore[no-untyped-call]

event.listen(JobMixin, "after_insert", know_what_came_of_it, propagate=True)
event.listen(JobMixin, "after_update", load_times, propagate=True)
event.listen(JobMixin, "attribute_instrument", decode_on_read, propagate=True)

# ---- `JobRead`: a job as an API may show it.


class JobRead(BaseModel):
    """A job for the response of an API (`response_model=JobRead`), made from a `Job` by its attributes.

    It shows no arguments, no `meta`, no result and no errors, which may be confidential. For more, derive a class of your
    own: `class MyJob(JobRead): result: int | None`.
    """

    model_config = ConfigDict(from_attributes=True)

    id: int
    task: str
    queue: str
    status: JobStatus
    priority: int
    attempt: int
    max_attempts: int
    created_at: datetime
    run_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None

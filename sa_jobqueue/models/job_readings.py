"""Attributes of a job that are read from its columns, for jobs in a job table and in the archive."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import Mapped, mapped_column

from ..arguments.ends import JobEnd
from ..arguments.subjects import Subject
from ..rules.lifecycle import FINISHED, LIVE, JobStatus
from .base import partial_index, status_in, status_literal
from .limits import TASK_GROUP

T = TypeVar("T")


class JobReadings:
    """Attributes that are read from the columns of a job."""

    if TYPE_CHECKING:
        __table__: ClassVar[sa.FromClause]
        id: Mapped[int]
        status: Mapped[JobStatus]
        task: Mapped[str]
        run_at: Mapped[datetime]
        created_at: Mapped[datetime]
        attempt: Mapped[int]
        errors: Mapped[list[dict[str, Any]]]
        result: Mapped[Any | None]
        uniqueness: Mapped[dict[str, Any] | None]
        concurrency_key: Mapped[str | None]
        _duplicate_of: Mapped[int | None]

    @hybrid_property
    def duplicate_of(self) -> int | None:
        """The job that held the unique key when this job was inserted. None: this job is no duplicate; or, if it
        `is_duplicate`, the other job could not be seen at the transaction's isolation level.
        """
        return self._duplicate_of or None

    @duplicate_of.inplace.expression
    @classmethod
    def _duplicate_of_expression(cls) -> sa.ColumnElement[int | None]:
        return sa.func.nullif(cls._duplicate_of, sa.literal_column("0"))

    @hybrid_property
    def is_duplicate(self) -> bool:
        """Whether it was cancelled when it was inserted, because another job had its unique key."""
        return self._duplicate_of is not None

    @is_duplicate.inplace.expression
    @classmethod
    def _is_duplicate(cls) -> sa.ColumnElement[bool]:
        return cls._duplicate_of.is_not(None)

    @hybrid_property
    def unique_key(self) -> str | None:
        """The key of a unique job."""
        return None if self.uniqueness is None else self.uniqueness.get("key")

    @unique_key.inplace.expression
    @classmethod
    def _unique_key(cls) -> sa.ColumnElement[str | None]:
        return cast("sa.ColumnElement[str | None]", cls.__table__.c.uniqueness["key"].astext)

    @hybrid_property
    def key(self) -> str | None:
        """The key that orders and limits it."""
        key = self.concurrency_key
        return None if key is None or key.startswith(TASK_GROUP) else key

    @key.inplace.expression
    @classmethod
    def _key(cls) -> sa.ColumnElement[str | None]:
        return sa.case((cls.concurrency_key < sa.literal_column("chr(2)"), sa.null()), else_=cls.concurrency_key)

    @hybrid_property
    def is_scheduled(self) -> bool:
        """Queued for a later time."""
        # Before the flush it may be a delay, or not be set.
        due = cast("datetime | timedelta | None", self.run_at)
        if self.status != JobStatus.QUEUED or due is None:
            return False
        return due > timedelta(0) if isinstance(due, timedelta) else due > datetime.now(UTC)

    @is_scheduled.inplace.expression
    @classmethod
    def _is_scheduled(cls) -> sa.ColumnElement[bool]:
        return sa.and_(cls.status == status_literal(JobStatus.QUEUED), cls.run_at > sa.func.now())

    @hybrid_property
    def is_retrying(self) -> bool:
        """Queued again after a failed attempt."""
        return self.status == JobStatus.QUEUED and (self.attempt or 0) > 0

    @is_retrying.inplace.expression
    @classmethod
    def _is_retrying(cls) -> sa.ColumnElement[bool]:
        return sa.and_(cls.status == status_literal(JobStatus.QUEUED), cls.attempt > 0)

    @hybrid_property
    def is_live(self) -> bool:
        """Not finished yet: queued, blocked or running."""
        return self.status in LIVE

    @is_live.inplace.expression
    @classmethod
    def _is_live(cls) -> sa.ColumnElement[bool]:
        return status_in(cls.status, LIVE)

    @hybrid_property
    def is_finished(self) -> bool:
        """Completed, failed or cancelled."""
        return self.status in FINISHED

    @is_finished.inplace.expression
    @classmethod
    def _is_finished(cls) -> sa.ColumnElement[bool]:
        return status_in(cls.status, FINISHED)

    @property
    def end(self) -> JobEnd:
        """Its end, or its state so far, as `wait_for` would return it."""
        errors: object = self.errors  # plain SQL may have written any JSON
        last = errors[-1] if isinstance(errors, list) and errors else None
        return JobEnd(self.id, self.task, self.status, self.result, last if isinstance(last, dict) else None)

    def result_as(self, type: type[T]) -> T:
        """The result as a value of this type, checked as strictly as arguments are.

        Raises ResultError if the job did not complete, or the result does not fit.
        """
        return self.end.result_as(type)

    def __repr__(self) -> str:
        state, key = self.__dict__, sa.inspect(self).identity
        if key is not None and "task" not in state:
            return f"<{type(self).__name__} {key[0]}, not loaded>"
        status = state.get("status", None if key else JobStatus.QUEUED)
        return f"<{type(self).__name__} {state.get('id')} {state.get('task')!r} in {state.get('queue')!r}: {status}>"


# ---- The subject of a job as columns: a row of the application.


# Left out of the INSERT where `enqueue()` does not set them, and behind all other columns: NULLs there take no byte of a row.
class SubjectColumns:
    """The columns of `Job.subject`, and the attribute that reads them."""

    subject_type: Mapped[str | None] = mapped_column(sa.Text(collation="C").evaluates_none(), sort_order=1)
    """The mapped class of the row that it is about; None: it is about no row."""
    subject_id: Mapped[str | None] = mapped_column(sa.Text(collation="C").evaluates_none(), sort_order=1)
    """The key of that row, as text: see `Subject`."""

    @hybrid_property
    def subject(self) -> Subject | None:
        """The row that it is about, by its class and key. None: it is about none, or that row has no key before the flush.

        In a query: `select(Job).where(Job.subject == Subject.of(order))`.
        """
        of, key = self.subject_type, self.subject_id
        return None if of is None or key is None else Subject(of, key)

    @subject.inplace.expression
    @classmethod
    def _subject(cls) -> sa.ColumnElement[Subject | None]:
        return cast("sa.ColumnElement[Any]", sa.tuple_(cls.subject_type, cls.subject_id))


def subject_index(name: str) -> sa.Index:
    """The index by which the jobs of a row are found. Jobs without a subject are not in it."""
    return partial_index(name, "subject_type", "subject_id", where="subject_type IS NOT NULL")

"""What a job is about, as columns of the job: a row of the application's."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import ColumnElement, Index, Text, text, tuple_
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import Mapped, mapped_column

from ..objects import Subject

__all__ = ["SubjectColumns", "subject_index"]


# Left out of the INSERT where `enqueue()` does not set them, and behind all other columns: NULLs there take no byte of a row.
class SubjectColumns:
    """The columns of `Job.subject`, and what reads them."""

    subject_type: Mapped[str | None] = mapped_column(Text(collation="C").evaluates_none(), sort_order=1)
    """The mapped class of the row that it is about; None: it is about no row."""
    subject_id: Mapped[str | None] = mapped_column(Text(collation="C").evaluates_none(), sort_order=1)
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
    def _subject(cls) -> ColumnElement[Subject | None]:
        return cast("ColumnElement[Any]", tuple_(cls.subject_type, cls.subject_id))


def subject_index(name: str) -> Index:
    """The index by which the jobs of a row are found. Jobs without a subject are not in it."""
    return Index(name, "subject_type", "subject_id", postgresql_where=text("subject_type IS NOT NULL"))

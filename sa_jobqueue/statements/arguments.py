"""Completing the arguments of jobs that had to be inserted before the rows that they name."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from ..models import Job, JobMixin
from ..objects import Subject
from .parts import array, rows, table_of

__all__ = ["complete_arguments"]


def complete_arguments(
    *,
    ids: Sequence[int],
    args: Sequence[str],
    subjects: Sequence[Subject | None] | None = None,
    job: type[JobMixin] = Job,
) -> sa.Update:
    """Give each of these jobs its arguments, as JSON text, and its subject; for a connection, in the transaction that has inserted the jobs.

    `subjects`: None if no job has one; then the statement does not name these columns.
    """
    of = table_of(job)
    columns = {"id": array("job_ids", ids, sa.BigInteger()), "args": array("job_args", args, sa.Text())}
    if subjects is not None:
        columns["subject_type"] = array("subject_types", [one and one.type for one in subjects], sa.Text())
        columns["subject_id"] = array("subject_ids", [one and one.id for one in subjects], sa.Text())
    given = rows("given", **columns)
    values = {name: given.c[name] for name in columns if name not in {"id", "args"}}
    return sa.update(of).where(of.c.id == given.c.id).values(args=sa.cast(given.c.args, JSONB), **values)

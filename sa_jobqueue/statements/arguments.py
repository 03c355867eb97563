"""Completing the arguments of jobs that had to be inserted before the rows that they name."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import BigInteger, Text, Update, cast, update
from sqlalchemy.dialects.postgresql import JSONB

from ..models import Job, JobMixin
from .parts import array, rows, table_of

__all__ = ["complete_arguments"]


def complete_arguments(*, ids: Sequence[int], args: Sequence[str], job: type[JobMixin] = Job) -> Update:
    """Give each of these jobs its arguments, as JSON text; for a connection, in the transaction that has inserted the jobs."""
    of = table_of(job)
    given = rows("given", id=array("job_ids", ids, BigInteger()), args=array("job_args", args, Text()))
    return update(of).where(of.c.id == given.c.id).values(args=cast(given.c.args, JSONB))

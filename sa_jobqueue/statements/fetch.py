"""Fetching the arguments that were too long to come along with their claim."""

from __future__ import annotations

import sqlalchemy as sa

from ..models import Job, JobMixin
from .parts import table_of

__all__ = ["fetch_args"]


def fetch_args(id: int, *, most: int, job: type[JobMixin] = Job) -> sa.Executable:
    """One job's arguments and meta as JSON text, NULL where that has more than `most` bytes; and how many bytes each has."""
    columns = table_of(job).c
    made = (
        sa.select(sa.cast(columns.args, sa.Text).label("args"), sa.cast(columns.meta, sa.Text).label("meta"))
        .where(columns.id == id)
        .offset(sa.literal_column("0"))  # a fence: else each would be made three times
        .subquery("made")
        .c
    )
    sizes = sa.func.octet_length(made.args), sa.func.octet_length(made.meta)
    short = (sa.case((size <= most, one)) for one, size in zip((made.args, made.meta), sizes, strict=True))
    return sa.select(*short, *sizes)

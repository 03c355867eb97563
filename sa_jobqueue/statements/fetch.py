"""Fetching the arguments that were too long to come along with their claim."""

from __future__ import annotations

from sqlalchemy import Executable, Text, case, cast, func, literal_column, select

from ..models import Job, JobMixin
from .parts import table_of

__all__ = ["fetch_args"]


def fetch_args(id: int, *, most: int, job: type[JobMixin] = Job) -> Executable:
    """One job's arguments and meta as JSON text, NULL where that has more than `most` bytes; and how many bytes each has."""
    columns = table_of(job).c
    made = (
        select(cast(columns.args, Text).label("args"), cast(columns.meta, Text).label("meta"))
        .where(columns.id == id)
        .offset(literal_column("0"))  # a fence: else each would be made three times
        .subquery("made")
        .c
    )
    sizes = func.octet_length(made.args), func.octet_length(made.meta)
    short = (case((size <= most, one)) for one, size in zip((made.args, made.meta), sizes, strict=True))
    return select(*short, *sizes)

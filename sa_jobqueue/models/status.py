"""The status as a type, and as literals in SQL."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from ..lifecycle import JobStatus

__all__ = ["StatusText", "status_in", "status_literal"]


class StatusText(sa.TypeDecorator[JobStatus]):
    """A status: text in the table (a CHECK holds the list), `JobStatus` in Python."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: JobStatus | str | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else JobStatus(value).value

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> JobStatus | None:
        return None if value is None else JobStatus(value)


def status_literal(status: JobStatus) -> sa.ColumnElement[JobStatus]:
    """`status` written into the SQL: a generic plan cannot prove that a parameter implies a partial index."""
    return sa.literal_column(f"'{status.value}'", StatusText())


def status_in(column: Any, statuses: Any) -> sa.ColumnElement[bool]:
    """`column IN (...)` over literals, in the order of the life cycle."""
    wanted = [status for status in JobStatus if status in statuses]
    if len(wanted) == 1:
        one: sa.ColumnElement[bool] = column == status_literal(wanted[0])
        return one
    several: sa.ColumnElement[bool] = column.in_([status_literal(status) for status in wanted])
    return several

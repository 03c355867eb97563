"""When a job is due: a time, or a delay that the database adds to its now()."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.types import TypeEngine

from ..errors import OptionError
from .base import schema_function


def checked_due(value: object, what: str = "run_at") -> datetime | timedelta:
    """`value` if it can be a due time or another time called `what`, a datetime in UTC or a delay; else raise OptionError."""
    if isinstance(value, timedelta):
        if value < timedelta(0):
            raise OptionError(f"{what} must be a delay of 0 seconds or more, not {value!r}; func.now() is at once")
        return value
    if not isinstance(value, datetime):
        raise OptionError(f"{what} must be a datetime with a time zone or a timedelta from now, not {value!r}")
    if value.utcoffset() is None:
        raise OptionError(f"{what} must have a time zone, not the naive {value!r}: use datetime.now(UTC) or the like")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise OptionError(f"{what} is outside of the calendar in UTC: {value!r}") from None


#: The due time of a job without a delay.
AT_ONCE = timedelta(0)


class _DueText(sa.TypeDecorator[Any]):
    """How a due time travels: "+90.000000 seconds" or an absolute time, as text."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: datetime | timedelta | None, dialect: sa.Dialect) -> str | None:
        return due_text(value)


def due_text(value: datetime | timedelta | None) -> str | None:
    """What the function `due_at` of the schema takes."""
    if value is None:
        return None
    if value == AT_ONCE:
        return "+0 seconds"
    due = checked_due(value)
    if isinstance(due, timedelta):
        # Seconds alone: in an interval a day is 23 hours when the session's zone changes to summer time.
        return f"+{due.total_seconds():.6f} seconds"
    return due.isoformat()


class DueTime(sa.TypeDecorator[datetime]):
    """A timestamptz that takes a `timedelta` too: that long after the database's now.

    So 1,000 jobs, delayed and not, are one INSERT: the value is always one parameter of one type (an expression on
    the attribute would make every row a statement of its own). A function in the schema tells the two kinds apart,
    because SQLAlchemy's batches allow a parameter once per column (asyncpg fails otherwise; seen on 2.1.9).

    `schema`: where that function is, beside the table.
    """

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def __init__(self, schema: str) -> None:
        super().__init__()
        self.schema = schema

    def bind_expression(self, bindparam: BindParameter[Any]) -> sa.ColumnElement[Any]:
        return schema_function(
            "due_at", self.schema, sa.type_coerce(bindparam, _DueText()), of=sa.DateTime(timezone=True)
        )

    def coerce_compared_value(self, op: Any, value: Any) -> TypeEngine[Any]:
        return sa.DateTime(timezone=True).coerce_compared_value(op, value)

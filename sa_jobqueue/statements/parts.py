"""Pieces that several builders need: arrays as rows, durations, locks in order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    Boolean,
    ColumnElement,
    ColumnExpressionArgument,
    DateTime,
    Dialect,
    Float,
    FromClause,
    Integer,
    Interval,
    Table,
    Text,
    TypeDecorator,
    bindparam,
    case,
    cast,
    column,
    func,
    literal_column,
    select,
    type_coerce,
)
from sqlalchemy.sql.elements import KeyedColumnElement
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import TypeEngine

from ..models import Base, JobMixin

__all__ = [
    "FIRST_ID",
    "FIRST_TIME",
    "array",
    "epoch",
    "epoch_of",
    "in_calendar",
    "in_seconds",
    "lock_in_order",
    "members",
    "packed",
    "packed_texts",
    "rows",
    "table_of",
]

#: Before all ids.
FIRST_ID = -(2**63)
#: Before all times, in seconds since 1970.
FIRST_TIME = -math.inf

_EPOCH = literal_column("'epoch'", Text)
_FIRST_DAY = literal_column("timestamptz '0001-01-02 00:00+00'", DateTime(timezone=True))  # in whatever zone
_LAST_DAY = literal_column("timestamptz '9999-12-30 00:00+00'", DateTime(timezone=True))
_SECOND = literal_column("interval '1 second'", Interval)


def table_of(mapped: type[Base | JobMixin]) -> Table:
    """The table behind a mapped class."""
    table: FromClause = mapped.__table__
    assert isinstance(table, Table)
    return table


def packed(numbers: Iterable[float | None]) -> str:
    """Numbers as the text of an array. psycopg 3.3 dumps them one by one, which takes 5 to 15 times as long."""
    return f"{{{','.join(['NULL' if one is None else str(one) for one in numbers])}}}"


def packed_alike(numbers: Sequence[float | None]) -> str:
    """The same, where most are equal: the text of each is made once, which takes half of the time."""
    texts = {one: "NULL" if one is None else str(one) for one in set(numbers)}
    return f"{{{','.join([texts[one] for one in numbers])}}}"


def packed_texts(texts: Iterable[str | None]) -> str:
    """The same of texts, which take psycopg 4 to 14 times as long."""
    return f"{{{','.join(['NULL' if one is None else _quoted(one) for one in texts])}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class _Packed(TypeDecorator[Sequence[Any] | str]):
    """Takes the values of an array, or the text that `packed` or `packed_texts` made of them."""

    impl = Text
    cache_ok = True

    def __init__(self, of_texts: bool = False) -> None:
        super().__init__()
        self.of_texts = of_texts

    def process_bind_param(self, value: Sequence[Any] | str | None, dialect: Dialect) -> str:
        if isinstance(value, str):
            return value
        values: Sequence[Any] = value or ()
        return packed_texts(values) if self.of_texts else packed(values)


def array(name: str, values: Sequence[Any], of: TypeEngine[Any]) -> ColumnElement[Any]:
    """An array parameter: the statement's text stays the same however many values there are.

    `values`: numbers, or texts as PostgreSQL reads them as `of`; or what `packed` or `packed_texts` made of them.

    On an application's connection, which may scan sequentially, join with `rows`: `= ANY` reads the whole text again for each row of the scan.
    """
    of_texts = not isinstance(of, (Integer, Float, Boolean))
    return cast(bindparam(name, values, _Packed(of_texts)), ARRAY(of))


def rows(alias: str, /, **columns: ColumnElement[Any]) -> TableValuedAlias:
    """`unnest(a, b, ...) AS alias(x, y, ...)`: the arrays side by side, as rows."""
    shapes = [column(key, values.type.item_type) for key, values in columns.items()]  # type: ignore[attr-defined]
    return func.unnest(*columns.values()).table_valued(*shapes, name=alias).render_derived(name=alias)


def members(of: ColumnElement[Any], query: Any) -> ColumnElement[bool]:
    """`of = ANY (ARRAY (SELECT ...))`: the query runs once, and its rows are looked up by index, however many rows the planner
    expects.
    """
    return of == func.any(func.array(query.scalar_subquery()), type_=of.type)


def in_seconds(
    seconds: ColumnElement[Any] | float, *, name: str | None = None, after: ColumnElement[Any] | None = None
) -> ColumnElement[Any]:
    """`seconds` after the database's now(), or after that time."""
    amount = bindparam(name, seconds, Float) if name is not None else seconds
    since = func.now() if after is None else after
    return type_coerce(since + amount * _SECOND, DateTime(timezone=True))


def epoch(time: ColumnElement[Any]) -> ColumnElement[float]:
    """A time in seconds since 1970, exact to the microsecond from 1930 to 2106. Python can hold any such number, infinity
    too, which no `datetime` can. And two datetimes per job took a tenth of the time of a job that does nothing.
    """
    return func.date_part(_EPOCH, time, type_=Float)


def epoch_of(time: KeyedColumnElement[Any]) -> ColumnElement[float]:
    """The same of a column, under its name."""
    return epoch(time).label(time.key)


def in_calendar(time: ColumnElement[Any]) -> ColumnElement[Any]:
    """A time that Python can hold: its first or last one in place of those outside, infinity among them."""
    return case((time < _FIRST_DAY, _FIRST_DAY), (time > _LAST_DAY, _LAST_DAY), else_=time)


def lock_in_order(
    table: Table,
    *where: ColumnExpressionArgument[bool],
    skip_locked: bool = True,
    nowait: bool = False,
    to_delete: bool = False,
    also: Sequence[ColumnElement[Any]] = (),
) -> CTE:
    """The ids that match, locked by this statement, lowest first. So two batches over the same rows cannot deadlock,
    and a row that an operator has locked does not hold up its neighbours.

    `to_delete`: take the stronger lock that a DELETE needs. With the weaker one the DELETE would wait for a row of the
    application's that references the job in a transaction that is still open. `also`: more columns of these rows.
    """
    return (
        select(table.c.id, *also)
        .where(*where)
        .order_by(table.c.id)
        .with_for_update(key_share=not to_delete, skip_locked=skip_locked, nowait=nowait, of=table)
        .cte("locked")
        .prefix_with("MATERIALIZED")
    )

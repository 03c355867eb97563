"""Pieces that several builders need: arrays as rows, durations, locks in order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql.elements import KeyedColumnElement
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import TypeEngine

from ..arguments.subjects import Subject
from ..models import Base, Job, JobMixin

#: Before all ids.
FIRST_ID = -(2**63)
#: Before all times, in seconds since 1970.
FIRST_TIME = -math.inf

ONE: sa.ColumnElement[int] = sa.literal_column("1", sa.Integer)
#: With OFFSET a fence: the planner executes the query as it is written.
ZERO: sa.ColumnElement[int] = sa.literal_column("0", sa.Integer)

_EPOCH = sa.literal_column("'epoch'", sa.Text)
_FIRST_DAY = sa.literal_column("timestamptz '0001-01-02 00:00+00'", sa.DateTime(timezone=True))  # in any zone
_LAST_DAY = sa.literal_column("timestamptz '9999-12-30 00:00+00'", sa.DateTime(timezone=True))
_SECOND = sa.literal_column("interval '1 second'", sa.Interval)


def table_of(mapped: type[Base | JobMixin]) -> sa.Table:
    """The table behind a mapped class."""
    table: sa.FromClause = mapped.__table__
    assert isinstance(table, sa.Table)
    return table


def count_of(query: Any) -> sa.ScalarSelect[int]:
    """The number of rows of a query, or of a subquery."""
    rows = query.subquery() if isinstance(query, sa.Select) else query
    return sa.select(sa.func.count()).select_from(rows).scalar_subquery()


def seconds_since(time: sa.ColumnElement[Any]) -> sa.ColumnElement[float]:
    """The seconds from `time` to now()."""
    return sa.type_coerce(epoch(sa.func.now() - time), sa.Float)


def columns_of(of: Any, names: str) -> list[Any]:
    """The columns `of` a table, a subquery (its `c`) or a mapped class, by their names in one text, separated by blanks."""
    return [getattr(of, name) for name in names.split()]


def packed(numbers: Iterable[float | None]) -> str:
    """Numbers as the text of an array. psycopg 3.3 dumps them one by one, which takes 5 to 15 times as long."""
    return f"{{{','.join(['NULL' if number is None else str(number) for number in numbers])}}}"


def packed_alike(numbers: Sequence[float | None]) -> str:
    """Like `packed`, for numbers that are mostly equal: the text of each is made once, which takes half of the time."""
    texts = {number: "NULL" if number is None else str(number) for number in set(numbers)}
    return f"{{{','.join([texts[number] for number in numbers])}}}"


def packed_texts(texts: Iterable[str | None]) -> str:
    """Like `packed`, for texts. psycopg's own dumper is 4 to 14 times slower."""
    return f"{{{','.join(['NULL' if text is None else _quoted(text) for text in texts])}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class _Packed(sa.TypeDecorator[Sequence[Any] | str]):
    """Takes the values of an array, or the text that `packed` or `packed_texts` made of them."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, of_texts: bool = False) -> None:
        super().__init__()
        self.of_texts = of_texts

    def process_bind_param(self, value: Sequence[Any] | str | None, dialect: sa.Dialect) -> str:
        if isinstance(value, str):
            return value
        values: Sequence[Any] = value or ()
        return packed_texts(values) if self.of_texts else packed(values)


def array(name: str, values: Sequence[Any], of: TypeEngine[Any]) -> sa.ColumnElement[Any]:
    """An array parameter: the statement's text stays the same however many values there are.

    `values`: numbers, or texts as PostgreSQL reads them as `of`; or what `packed` or `packed_texts` made of them.

    On an application's connection, which may scan sequentially, join with `rows`: `= ANY` reads the whole text again for each row of the scan.
    """
    of_texts = not isinstance(of, (sa.Integer, sa.Float, sa.Boolean))
    return sa.cast(sa.bindparam(name, values, _Packed(of_texts)), sa.ARRAY(of))


def rows(alias: str, /, **columns: sa.ColumnElement[Any]) -> TableValuedAlias:
    """`unnest(a, b, ...) AS alias(x, y, ...)`: the arrays side by side, as rows."""
    shapes = [sa.column(key, values.type.item_type) for key, values in columns.items()]  # type: ignore[attr-defined]
    return sa.func.unnest(*columns.values()).table_valued(*shapes, name=alias).render_derived(name=alias)


def members(of: sa.ColumnElement[Any], query: Any) -> sa.ColumnElement[bool]:
    """`of = ANY (ARRAY (SELECT ...))`: the query runs once, and its rows are looked up by index, however many rows the planner
    expects.
    """
    return of == sa.func.any(sa.func.array(query.scalar_subquery()), type_=of.type)


def in_seconds(
    seconds: sa.ColumnElement[Any] | float, *, name: str | None = None, after: sa.ColumnElement[Any] | None = None
) -> sa.ColumnElement[Any]:
    """`seconds` after the database's now(), or after that time."""
    amount = sa.bindparam(name, seconds, sa.Float) if name is not None else seconds
    since = sa.func.now() if after is None else after
    return sa.type_coerce(since + amount * _SECOND, sa.DateTime(timezone=True))


def epoch(time: sa.ColumnElement[Any]) -> sa.ColumnElement[float]:
    """A time in seconds since 1970, exact to the microsecond from 1930 to 2106. Python can hold any such number, infinity
    too, which no `datetime` can. And two datetimes per job took a tenth of the time of a job that does nothing.
    """
    return sa.func.date_part(_EPOCH, time, type_=sa.Float)


def epoch_of(time: KeyedColumnElement[Any]) -> sa.ColumnElement[float]:
    """Like `epoch`, for a column, under its name."""
    return epoch(time).label(time.key)


def in_calendar(time: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """A time that Python can hold: times outside, infinity among them, become its first or last time."""
    return sa.case((time < _FIRST_DAY, _FIRST_DAY), (time > _LAST_DAY, _LAST_DAY), else_=time)


def materialized(query: Any, name: str) -> sa.CTE:
    """`WITH name AS MATERIALIZED (query)`: executed once, and apart from the rest of the statement."""
    found: sa.CTE = query.cte(name).prefix_with("MATERIALIZED")
    return found


def lock_in_order(
    table: sa.Table,
    *where: sa.ColumnExpressionArgument[bool],
    skip_locked: bool = True,
    nowait: bool = False,
    to_delete: bool = False,
    also: Sequence[sa.ColumnElement[Any]] = (),
) -> sa.CTE:
    """The ids that match, locked by this statement, lowest first. So two batches over the same rows cannot deadlock,
    and a row that an operator has locked does not hold up its neighbours.

    `to_delete`: take the stronger lock that a DELETE needs. With the weaker lock the DELETE would wait for an open transaction of
    the application that references the job in a row. `also`: more columns of these rows.
    """
    return materialized(
        sa.select(table.c.id, *also)
        .where(*where)
        .order_by(table.c.id)
        .with_for_update(key_share=not to_delete, skip_locked=skip_locked, nowait=nowait, of=table),
        "locked",
    )


# ---- Completing the arguments of jobs that had to be inserted before the rows that they name.


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
        columns["subject_type"] = array("subject_types", [subject and subject.type for subject in subjects], sa.Text())
        columns["subject_id"] = array("subject_ids", [subject and subject.id for subject in subjects], sa.Text())
    given = rows("given", **columns)
    values = {name: given.c[name] for name in columns if name not in {"id", "args"}}
    return sa.update(of).where(of.c.id == given.c.id).values(args=sa.cast(given.c.args, JSONB), **values)

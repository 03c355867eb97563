"""The registry of the queue's own tables, and the schema they live in."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import sqlalchemy as sa
from pydantic_core import from_json
from sqlalchemy import event
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, InstrumentedAttribute
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.functions import Function
from sqlalchemy.types import TypeEngine

from ..errors import OptionError, PayloadError
from ..rules.job_fields import JOB_FIELDS
from ..rules.lifecycle import JobStatus
from ..util.schema import SCHEMA


def field_checks(table: str, **others: tuple[int, int]) -> Iterator[sa.CheckConstraint]:
    """The checks of the columns that are filled when a job is enqueued, for a table that has them. `others`: bounds that differ."""
    for field in JOB_FIELDS:
        if field.bounds is not None:
            low, high = others.get(field.column, field.bounds)
            checked = f"char_length({field.column})" if field.kind == "text" else field.column
            rule = f"{checked} >= {low}" if high is None else f"{checked} BETWEEN {low} AND {high}"
            yield sa.CheckConstraint(rule, name=f"{table}_{field.column}_check")


def partial_index(name: str, *columns: str, where: str) -> sa.Index:
    """An index of the rows that match `where`. A column with a parenthesis is an expression."""
    parts = [sa.text(column) if "(" in column else column for column in columns]
    return sa.Index(name, *parts, postgresql_where=sa.text(where))


class _SchemaFunction(Function[Any]):
    """A function in the schema that is meant when the statement is executed."""

    inherit_cache = True  # it has no state besides a Function's, so Core compiles a statement with it once


@compiles(_SchemaFunction)
def _compile(element: _SchemaFunction, compiler: SQLCompiler, **options: Any) -> str:
    # As a table, because `schema_translate_map` translates the schema of tables only.
    place = sa.Table(element.name, sa.MetaData(), schema=next(iter(element.packagenames), None))
    return f"{compiler.preparer.format_table(place)}({compiler.process(element.clauses, **options)})"


def schema_function(
    name: str, schema: str | None, *arguments: sa.ColumnElement[Any], of: TypeEngine[Any]
) -> sa.ColumnElement[Any]:
    """`schema.name(arguments)`, of the type `of`. None: no schema is named."""
    return _SchemaFunction(name, *arguments, type_=of, packagenames=() if schema is None else (schema,))


# ---- Arguments and meta: jsonb in the table, JSON text on the way there, a dict for the reader.


class JsonText(str):
    """JSON text that is ready to be stored. A job carries it from `enqueue` to the INSERT, unless it is read before."""

    __slots__ = ()


class UnfinishedJson(JsonText):
    """JSON text that is not complete yet, and must not be stored."""

    __slots__ = ()


class UnfinishedObject(dict[str, Any]):
    """The value read from an `UnfinishedJson`."""


#: Arguments that are not complete, as they are set and as they are read.
UNFINISHED = (UnfinishedJson, UnfinishedObject)


class JsonObject(sa.TypeDecorator[dict[str, Any]]):
    """A jsonb object. A `JsonText` goes to the driver as it is."""

    impl = JSONB
    cache_ok = True

    def bind_processor(self, dialect: sa.Dialect) -> Any:
        encode: Any = super().bind_processor(dialect)
        encoded = encode({})
        # Most drivers take text. Psycopg takes an object, which encodes what it holds when it is sent.
        wrapper = None if isinstance(encoded, (str, bytes)) else type(encoded)

        def process(value: Any) -> Any:
            if type(value) is not JsonText:
                if isinstance(value, UNFINISHED):
                    raise PayloadError(
                        "a job whose arguments are new objects is written by a flush, session.add(job): or flush the objects "
                        "before it is made"
                    )
                return encode(value)
            text = str.__str__(value)
            return text if wrapper is None else wrapper(text, dumps=str)

        return process

    def coerce_compared_value(self, op: Any, value: Any) -> TypeEngine[Any]:
        return self.impl_instance.coerce_compared_value(op, value)


# A mapped attribute that decodes its `JsonText` when it is read.
class _DecodedOnRead(InstrumentedAttribute[Any]):  # pyright: ignore[reportIncompatibleVariableOverride]
    __slots__ = ()
    inherit_cache = True

    def __get__(self, instance: object | None, owner: Any) -> Any:
        value = super().__get__(instance, owner)
        if isinstance(value, JsonText):
            plain = from_json(value)
            # Not a change of the row: the INSERT stays the same.
            value = vars(instance)[self.key] = UnfinishedObject(plain) if type(value) is UnfinishedJson else plain
        return value


def decode_on_read(_class: type, _key: str, attribute: InstrumentedAttribute[Any]) -> None:
    """Make each mapped attribute of this type decode when it is read, in subclasses too."""
    columns = getattr(attribute.property, "columns", ())
    if columns and isinstance(columns[0].type, JsonObject):
        attribute.__class__ = _DecodedOnRead


class Base(DeclarativeBase):
    """The registry of the queue's own tables, apart from the application's."""

    metadata = sa.MetaData(schema=SCHEMA)
    type_annotation_map: ClassVar = {datetime: sa.DateTime(timezone=True), str: sa.Text()}


event.listen(Base, "attribute_instrument", decode_on_read, propagate=True)


def vacuum_by_traffic(model: type[Base], *, also: str = "") -> None:
    """Let `create_all` make the table so that it is vacuumed after 5,000 dead rows, however large it is: they come from a queue's
    traffic, not from its size. `also`: more storage parameters, as SQL.
    """
    settings = f"{also}autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000"
    # `postgresql_with` on a Table is new in SQLAlchemy 2.1; this is the same on 2.0.
    statement = sa.DDL(f"ALTER TABLE %(fullname)s SET ({settings})")  # type: ignore[no-untyped-call]
    event.listen(model.__table__, "after_create", statement)


# ---- The status as a type, and as literals in SQL.


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
        same: sa.ColumnElement[bool] = column == status_literal(wanted[0])
        return same
    several: sa.ColumnElement[bool] = column.in_([status_literal(status) for status in wanted])
    return several


# ---- When a job is due: a time, or a delay that the database adds to its now().


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

    So 1,000 jobs, delayed and not, are a single INSERT: the value is always a parameter of the same type (an expression on
    the attribute would make every row a statement of its own). A function in the schema tells the two kinds apart,
    because SQLAlchemy's batches allow a parameter once per column (asyncpg fails otherwise; seen on 2.1.9).

    `schema`: the schema of that function, and of the table.
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

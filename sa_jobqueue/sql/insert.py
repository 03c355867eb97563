"""Inserting jobs in bulk: a single INSERT over arrays, whose text is the same for 1 job and for 100,000.

To build the statement and its cache key takes Core four times as long as PostgreSQL needs to insert one job. So both
are done once per mapped class, and each call only brings its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeEngine

from ..arguments.columns import kind_of
from ..arguments.storable import shown
from ..errors import OptionError
from ..models import TASK_GROUP, Job, JobMixin, due_text, own_column, schema_function
from ..rules.job_fields import JOB_FIELDS, JobField
from ..tasks.calls import NOTHING, RARE, Call
from ..tasks.options import MAX_NAME, Options, key_in
from ..util.sqlalchemy_internals import SharedInsert
from .insert_select import refusing
from .parts import ONE, array, in_seconds, packed_alike, packed_texts, rows, table_of
from .tables import Compiled


def insert_jobs(calls: Iterable[Call], *, job: type[JobMixin] = Job) -> sa.Executable:
    """Insert a job for each call (see `Task.call`); delays count from the database's now().

    Returns the column `id`, in the order of the calls.
    """
    calls = list(calls)
    if any(call[RARE] != NOTHING for call in calls):
        return _insert_few([call.completed() for call in calls], job)
    return _InsertJobs(job, _parameters(calls))


def _insert_few(calls: Sequence[Call], job: type[JobMixin]) -> sa.Executable:
    """Like `insert_jobs`, for calls with rare fields, such as a unique key or a deadline. The keys are taken in their own order, as by
    a flush, and not in that of the calls. So two such statements cannot deadlock.
    """
    extra = _own_columns(calls, job)
    order = sorted(range(len(calls)), key=lambda place: key_in(calls[place].uniqueness))
    given = _parameters([calls[place] for place in order])
    own = {name: [dict(calls[place].columns or ())[name] for place in order] for name in extra}
    source = _source(given, table_of(job).schema, own={extra[name]: values for name, values in own.items()})
    filled = [*(field.column for field in _filled(given)), *(column.name for column in extra.values())]
    made = (
        sa.insert(table_of(job))
        .from_select(filled, source, include_defaults=False)
        .returning(table_of(job).c.id)
        .cte("made")
    )
    # The rows got their ids in this order.
    numbered = sa.select(made.c.id, sa.func.row_number().over(order_by=made.c.id).label("number")).subquery("numbered")
    call = (
        sa.func.unnest(array("call_places", order, sa.BigInteger()))
        .table_valued(sa.column("place", sa.BigInteger), with_ordinality="number", name="call")
        .render_derived(name="place_of")
    )
    return sa.select(numbered.c.id).join(call, call.c.number == numbered.c.number).order_by(call.c.place)


class _InsertJobs(SharedInsert):
    inherit_cache = True

    def __init__(self, job: type[JobMixin], values: dict[str, Any]) -> None:
        super().__init__(_attributes(job), values)
        self._job = job

    @cached_property
    def select(self) -> Any:  # type: ignore[override]
        return _source(self._given)

    def shared(self) -> sa.Insert:
        return _shared(self._job)

    def in_full(self) -> sa.Insert:
        return _insert(self._job, self.select)


@lru_cache
def _shared(job: type[JobMixin]) -> sa.Insert:
    """The statement without values, which keeps its cache key."""
    return _insert(job, _source(_parameters([])))


@lru_cache
def _attributes(job: type[JobMixin]) -> dict[str, Any]:
    """The attributes of the INSERT without its source."""
    return {name: value for name, value in vars(_shared(job)).items() if name != "select"}


def _insert(job: type[JobMixin], source: sa.SelectBase) -> sa.Insert:
    return (
        sa.insert(job)
        .from_select([field.column for field in _filled({})], source, include_defaults=False)
        .returning(table_of(job).c.id)
    )


def _own_columns(calls: Sequence[Call], job: type[JobMixin]) -> dict[str, sa.Column[Any]]:
    """The user's own columns that all of the calls fill, by attribute."""
    named = {frozenset(name for name, _ in call.columns or ()) for call in calls}
    if len(named) > 1:
        raise OptionError(
            "the calls of one statement fill the same columns of your own: give each of them columns={...} of the same names"
        )
    found = {name: own_column(job, name) for name in sorted(*named)}
    for name, column in found.items():
        if isinstance(column.type, sa.ARRAY):
            raise OptionError(
                f"columns: {name} is an array, which many calls at once cannot fill: session.add() each job"
            )
    return found


def _source(
    given: Mapping[str, Any], schema: str | None = None, *, own: Mapping[sa.Column[Any], Sequence[Any]] | None = None
) -> sa.SelectBase:
    """The calls as rows, in their order. `own`: the values of columns of the user's."""
    filled = _filled(given)
    arrays = {name: array(f"call_{name}", given[f"call_{name}"], of) for field in filled for name, of in _arrays(field)}
    more = {f"own_{column.name}": _own_array(column, values) for column, values in (own or {}).items()}
    call = rows("call", **arrays, **more)
    return sa.select(*(_value(field, call.c, schema) for field in filled), *(call.c[name] for name in more))


def _own_array(column: sa.Column[Any], values: Sequence[Any]) -> sa.ColumnElement[Any]:
    """The values as an array of the column's type."""
    of: sa.ARRAY[Any] = sa.ARRAY(column.type)
    return sa.cast(sa.bindparam(f"own_{column.name}", list(values), of), of)


def _filled(given: Mapping[str, Any]) -> list[JobField]:
    """The fields that these parameters, arrays named "call_<column>", have values for."""
    return [field for field in JOB_FIELDS if not field.rare or f"call_{field.column}" in given]


# Made once: each type object keeps its part of a statement's cache key.
_TEXT, _NUMBER, _TIME, _SECONDS = sa.Text(), sa.SmallInteger(), sa.DateTime(timezone=True), sa.Float(53)


def _arrays(field: JobField) -> Iterable[tuple[str, TypeEngine[Any]]]:
    if field.column == "run_at":
        return (("time", _TIME), ("delay", _SECONDS))
    return ((field.column, type_of(field)),)


def type_of(field: JobField) -> TypeEngine[Any]:
    """The type of the field's values, as they are sent."""
    return _NUMBER if field.kind == "integer" else _TEXT


def _value(field: JobField, call: Any, schema: str | None) -> sa.ColumnElement[Any]:
    if field.column == "run_at":
        return sa.func.coalesce(call.time, in_seconds(call.delay))
    return _stored(field, call[field.column], schema)


def _stored(field: JobField, given: sa.ColumnElement[Any], schema: str | None) -> sa.ColumnElement[Any]:
    """A value as the column has it, from a value as it is sent."""
    if field.kind == "json":
        return sa.cast(given, JSONB)
    if field.kind == "time":
        return schema_function("due_at", schema, given, of=_TIME)
    return given


def _parameters(calls: Sequence[Call]) -> dict[str, Any]:
    """A list for each parameter of the statement, by its name."""
    given: dict[str, Any] = {}
    for field, values in values_of(calls):
        if field.column == "run_at":
            given["call_time"] = [value.isoformat() if isinstance(value, datetime) else None for value in values]
            given["call_delay"] = [value.total_seconds() if isinstance(value, timedelta) else None for value in values]
        elif not field.rare or values.count(None) < len(values):
            given[f"call_{field.column}"] = list(map(due_text, values) if field.kind == "time" else values)
    return given


def values_of(calls: Sequence[Call]) -> Iterator[tuple[JobField, Sequence[Any]]]:
    """The values that these calls have for each field."""
    columns: Iterable[Sequence[Any]] = zip(*calls, strict=True) if calls else [()] * len(Call._fields)
    given = dict(zip(Call._fields, columns, strict=True))
    for field in JOB_FIELDS:
        values = given[field.attribute]
        yield field, list(map(field.part_of, values)) if field.part and any(values) else values


# ---- What a flush inserts: jobs whose values are attributes already.

_FIELDS = {field.column: field for field in JOB_FIELDS}


class FlushedInsert:
    """The INSERT of jobs that set the columns `filled`. `made`: the columns that the database fills, which it returns.

    `one`: each value of a single job is a parameter. Arrays would take longer to plan than to insert.
    """

    def __init__(self, job: type[JobMixin], filled: Sequence[str], *, one: bool) -> None:
        table, fields = table_of(job), [_FIELDS[column] for column in filled]
        given: Any
        if one:
            given = {field.column: sa.bindparam(field.column, type_=type_of(field)) for field in fields}
        else:
            given = rows("call", **{field.column: array(field.column, (), type_of(field)) for field in fields}).c
        values = {field.column: _stored(field, given[field.column], table.schema) for field in fields}
        insert, source = sa.insert(table), sa.select(*values.values())
        insert = insert.values(values) if one else insert.from_select([*values], source, include_defaults=False)
        made = [column for column in table.c if column.server_default is not None and column.key not in values]
        self.made = [column.key for column in made]
        self._one, self._sent = one, [(field.column, _SENT[field.kind], field.kind) for field in fields]
        self._statement = Compiled(insert.returning(*made))

    def rows(self, connection: sa.Connection, jobs: Sequence[Mapping[str, Any]]) -> Sequence[Sequence[Any]]:
        """Insert jobs with these values by column, JSON as a `JsonText`. Returns a row for each, in their order."""
        if self._one:
            given = {column: sent(jobs[0][column]) for column, sent, _ in self._sent}
        else:
            given = {}
            for column, sent, kind in self._sent:
                pack: Callable[[Any], str] = packed_alike if kind == "integer" else packed_texts
                given[column] = pack([sent(known.get(column)) for known in jobs])
        return self._statement.rows(connection, given)


def _as_it_is(value: Any) -> Any:
    return value


def _plain_text(value: str | None) -> str | None:
    return None if value is None else str.__str__(value)


_SENT: Mapping[str, Callable[[Any], Any]] = {
    "text": _as_it_is,
    "integer": _as_it_is,
    "json": _plain_text,
    "time": due_text,
}
_flushed_insert = lru_cache(FlushedInsert)


def flushed_insert(jobs: Sequence[Mapping[str, Any]], *, job: type[JobMixin]) -> FlushedInsert:
    """The INSERT of jobs with these values by column."""
    named = jobs[0] if len(jobs) == 1 else set[str]().union(*jobs)
    return _flushed_insert(job, tuple([column for column in _FIELDS if column in named]), one=len(jobs) == 1)


# ---- The options of jobs that differ from row to row: expressions of SQL, checked by their types.

_Value: TypeAlias = sa.ColumnElement[Any]

#: The fields that may differ from row to row, by option.
_BY_ROW = {option: field for field in JOB_FIELDS for option in field.by_row}


def expression(name: str, value: Any) -> _Value:
    """`value` if it is an expression of SQL. Raises OptionError for any other."""
    found = value.__clause_element__() if hasattr(value, "__clause_element__") else value
    if not isinstance(found, sa.ColumnElement):
        raise OptionError(
            f"{name}={shown(value)} would be the same for all jobs: give it to the task, task.options({name}=...); here it is an "
            "expression of SQL, which differs from row to row"
        )
    return found


def check_together(given: Mapping[str, _Value], options: Options) -> None:
    """Raise OptionError for options that exclude each other."""
    for field in JOB_FIELDS:
        if len(field.by_row) > 1 and given.keys() >= set(field.by_row):
            raise OptionError(f"{' and '.join(field.by_row)} exclude each other: give one of them")
    if options.debounce is not None and not {"run_at", "delay"}.isdisjoint(given):
        raise OptionError("debounce says when the job is due: give it no run_at and no delay")


def per_row(given: Mapping[str, _Value], *, task: str, job: type[JobMixin]) -> dict[str, _Value]:
    """The values of a job's columns. Raises OptionError for an option whose expression has another type."""
    schema = table_of(job).schema
    return {_BY_ROW[name].column: _checked(name, value, task, schema) for name, value in given.items()}


def _checked(name: str, value: _Value, task: str, schema: str | None) -> _Value:
    try:
        kind = kind_of(value.type)
    except TypeError as error:
        raise OptionError(f"task {task!r}: {name}: {error}") from error
    field = _BY_ROW[name]
    if field.kind != "time":
        hint, wanted = (int, "an integer") if field.kind == "integer" else (str, "text")
        if not kind.fits(hint):
            raise OptionError(f"task {task!r}: {name} must be {wanted}, not {kind.phrase}")
        if name == "key":
            return _checked_key(value, task, schema)
        return sa.cast(value, type_of(field))
    takes_time, takes_duration = name == field.by_row[0], name == field.by_row[-1]
    if takes_time and kind.fits(datetime):
        if not getattr(value.type, "timezone", False):
            raise OptionError(f"task {task!r}: {name} must have a time zone: func.timezone('UTC', ...) gives it one")
        return value
    if takes_duration and kind.fits(timedelta):
        return sa.func.now() + value
    if takes_duration and kind.fits(float):
        return in_seconds(value)
    times, durations = ["a time with a time zone"] * takes_time, ["an interval", "a number of seconds"] * takes_duration
    allowed = " or ".join([*times, *durations])
    raise OptionError(f"task {task!r}: {name} must be {allowed}, not {kind.phrase}")


def _checked_key(value: _Value, task: str, schema: str | None) -> _Value:
    """As `checked_key`, of each row."""
    key = sa.cast(value, sa.Text)
    length = sa.func.char_length(key)
    wrong = sa.or_(
        length < ONE,
        length > sa.literal_column(str(MAX_NAME)),
        sa.func.starts_with(key, sa.literal_column(f"chr({ord(TASK_GROUP)})")),
    )
    mend = f": a key has 1 to {MAX_NAME} characters, and does not begin with {TASK_GROUP!r}"
    return sa.case(
        (wrong, sa.cast(refusing(f"task {task!r}: the key of a row is ", value, mend, schema=schema), sa.Text)),
        else_=key,
    )

"""Making jobs in bulk: one INSERT over arrays, of the same text for one job and for 100,000.

To build the statement and its cache key takes Core four times as long as PostgreSQL needs to insert one job. So both
are done once per mapped class, and each call only brings its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
from ..tasks.calls import Call
from ..tasks.options import MAX_NAME, Options, key_in
from ..util.sqlalchemy_internals import SharedInsert
from .insert_select import refusing
from .parts import array, in_seconds, rows, table_of


def insert_jobs(calls: Iterable[Call], *, job: type[JobMixin] = Job) -> sa.Executable:
    """Insert a job for each call (see `Task.call`); delays count from the database's now().

    Returns the column `id`, in the order of the calls.
    """
    calls = list(calls)
    if any(call[_OF_FEW] != _NONE for call in calls):
        return _insert_few([call.completed() for call in calls], job)
    return _InsertJobs(job, _parameters(calls))


def _insert_few(calls: Sequence[Call], job: type[JobMixin]) -> sa.Executable:
    """The same if some calls have what only few have, as a unique key or a deadline. The keys are taken in their own order, not
    in that of the calls, as a flush takes them. So two such statements cannot deadlock.
    """
    extra = _own_columns(calls, job)
    order = sorted(range(len(calls)), key=lambda place: key_in(calls[place].uniqueness))
    given = _parameters([calls[place] for place in order])
    own = {name: [dict(calls[place].columns or ())[name] for place in order] for name in extra}
    source = _source(given, table_of(job).schema, own={extra[name]: values for name, values in own.items()})
    filled = [*_FILLED, *(_FEW[name] for name in _FEW if name in given), *(one.name for one in extra.values())]
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
    return _insert(job, _source({f"call_{name}": None for name in _COLUMNS}))


@lru_cache
def _attributes(job: type[JobMixin]) -> dict[str, Any]:
    """What an INSERT is made of beside its source."""
    return {name: value for name, value in vars(_shared(job)).items() if name != "select"}


def _insert(job: type[JobMixin], source: sa.SelectBase) -> sa.Insert:
    return sa.insert(job).from_select(_FILLED, source, include_defaults=False).returning(table_of(job).c.id)


#: The columns of the calls as rows, each an array parameter "call_<name>".
_COLUMNS: Mapping[str, TypeEngine[Any]] = {
    "task": sa.Text(),
    "args": sa.Text(),
    "queue": sa.Text(),
    "priority": sa.SmallInteger(),
    "max_attempts": sa.SmallInteger(),
    "time": sa.DateTime(timezone=True),
    "delay": sa.Float(53),
    "meta": sa.Text(),
}


def _own_columns(calls: Sequence[Call], job: type[JobMixin]) -> dict[str, sa.Column[Any]]:
    """The user's own columns that all of the calls fill, by attribute."""
    named = {frozenset(name for name, _ in call.columns or ()) for call in calls}
    if len(named) > 1:
        raise OptionError(
            "the calls of one statement fill the same columns of your own: give each of them columns={...} of the same names"
        )
    found = {name: own_column(job, name) for name in sorted(*named)}
    for name, one in found.items():
        if isinstance(one.type, sa.ARRAY):
            raise OptionError(
                f"columns: {name} is an array, which many calls at once cannot fill: session.add() each job"
            )
    return found


def _source(
    given: Mapping[str, Any], schema: str | None = None, *, own: Mapping[sa.Column[Any], Sequence[Any]] | None = None
) -> sa.SelectBase:
    """The calls as rows, in their order. `own`: the values of columns of the user's."""
    few = [name.removeprefix("call_") for name in _FEW if name in given]
    arrays: dict[str, TypeEngine[Any]] = {**_COLUMNS, **{name: _ARRAYS.get(name, sa.Text()) for name in few}}
    columns = {name: array(f"call_{name}", given[f"call_{name}"], of) for name, of in arrays.items()}
    more = {f"own_{one.name}": _own_array(one, values) for one, values in (own or {}).items()}
    call = rows("call", **columns, **more)
    return sa.select(
        call.c.task,
        sa.cast(call.c.args, JSONB),
        call.c.queue,
        call.c.priority,
        call.c.max_attempts,
        sa.func.coalesce(call.c.time, in_seconds(call.c.delay)),
        sa.cast(call.c.meta, JSONB),
        *(_few(name, call.c[name], schema) for name in few),
        *(call.c[name] for name in more),
    )


def _own_array(column: sa.Column[Any], values: Sequence[Any]) -> sa.ColumnElement[Any]:
    """The values as an array of the column's type, whatever that is."""
    of: sa.ARRAY[Any] = sa.ARRAY(column.type)
    return sa.cast(sa.bindparam(f"own_{column.name}", list(values), of), of)


def _few(name: str, given: sa.ColumnElement[Any], schema: str | None) -> sa.ColumnElement[Any]:
    """What a column has that only few jobs set."""
    if name == "unique":
        return sa.cast(given, JSONB)
    if name in {"expires", "deadline"}:
        return schema_function("due_at", schema, given, of=sa.DateTime(timezone=True))
    return given


#: The columns of the table that are filled from these.
_FILLED = ["task", "args", "queue", "priority", "max_attempts", "run_at", "meta"]
#: The parameters that are there only where a call needs them, and their columns.
_FEW: Mapping[str, str] = {
    "call_unique": "uniqueness",
    "call_expires": "expires_at",
    "call_deadline": "deadline_at",
    "call_key": "concurrency_key",
    "call_units": "units",
    "call_subject_type": "subject_type",
    "call_subject_id": "subject_id",
}
#: The types of those that are no text.
_ARRAYS: Mapping[str, TypeEngine[Any]] = {"units": sa.SmallInteger()}
#: Where the fields of these are in a call, with the user's own columns and what completes its arguments; and what they are in nearly all.
_OF_FEW = slice(Call._fields.index("uniqueness"), Call._fields.index("waiting") + 1)
_NONE = (None,) * (_OF_FEW.stop - _OF_FEW.start)


def _parameters(calls: Iterable[Call]) -> dict[str, Any]:
    """A list for each parameter of the statement, by its name."""
    columns: Sequence[Sequence[Any]] = list(zip(*calls, strict=True)) or [()] * len(Call._fields)
    (
        task,
        args,
        queue,
        priority,
        max_attempts,
        due,
        meta,
        uniqueness,
        expires,
        deadline,
        key,
        units,
        subject,
        _,
        _,
        _,
    ) = columns
    of, about = zip(*(one or (None, None) for one in subject), strict=True) if any(subject) else ((), ())
    given = (uniqueness, map(due_text, expires), map(due_text, deadline), key, units, of, about)
    few = {name: values for name, values in zip(_FEW, map(list, given), strict=True) if any(values)}
    return {
        "call_task": list(task),
        "call_args": list(args),
        "call_queue": list(queue),
        "call_priority": list(priority),
        "call_max_attempts": list(max_attempts),
        "call_time": [one.isoformat() if isinstance(one, datetime) else None for one in due],
        "call_delay": [one.total_seconds() if isinstance(one, timedelta) else None for one in due],
        "call_meta": list(meta),
        **few,
    }


# ---- The options of jobs that differ from row to row: expressions of SQL, checked by their types.

_Value: TypeAlias = sa.ColumnElement[Any]

#: What the values of these must be.
_HINTS: Mapping[str, type[Any]] = {"queue": str, "priority": int, "max_attempts": int, "key": str, "units": int}
#: The columns of the job that are not called as their options.
_ROW_COLUMNS: Mapping[str, str] = {
    "key": "concurrency_key",
    "delay": "run_at",
    "expires_in": "expires_at",
    "deadline": "deadline_at",
}
#: Those that are given as a time, and those that are given as a duration.
_TIMES, _DURATIONS = ("run_at", "expires_at", "deadline"), ("delay", "expires_in", "deadline")


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
    for one, other in (("run_at", "delay"), ("expires_at", "expires_in")):
        if one in given and other in given:
            raise OptionError(f"{one} and {other} exclude each other: give one of them")
    if options.debounce is not None and not {"run_at", "delay"}.isdisjoint(given):
        raise OptionError("debounce says when the job is due: give it no run_at and no delay")


def per_row(given: Mapping[str, _Value], *, task: str, job: type[JobMixin]) -> dict[str, _Value]:
    """The values of a job's columns. Raises OptionError for an option whose expression has another type."""
    schema = table_of(job).schema
    return {_ROW_COLUMNS.get(name, name): _checked(name, value, task, schema) for name, value in given.items()}


def _checked(name: str, value: _Value, task: str, schema: str | None) -> _Value:
    try:
        kind = kind_of(value.type)
    except TypeError as error:
        raise OptionError(f"task {task!r}: {name}: {error}") from error
    if (hint := _HINTS.get(name)) is not None:
        if not kind.fits(hint):
            raise OptionError(
                f"task {task!r}: {name} must be {'text' if hint is str else 'an integer'}, not {kind.said}"
            )
        if hint is int:
            return sa.cast(value, sa.SmallInteger)
        return _checked_key(value, task, schema) if name == "key" else sa.cast(value, sa.Text)
    if name in _TIMES and kind.fits(datetime):
        if not getattr(value.type, "timezone", False):
            raise OptionError(f"task {task!r}: {name} must have a time zone: func.timezone('UTC', ...) gives it one")
        return value
    if name in _DURATIONS and kind.fits(timedelta):
        return sa.func.now() + value
    if name in _DURATIONS and kind.fits(float):
        return in_seconds(value)
    wanted = {
        "a time with a time zone": name in _TIMES,
        "an interval": name in _DURATIONS,
        "a number of seconds": name in _DURATIONS,
    }
    allowed = " or ".join(said for said, is_wanted in wanted.items() if is_wanted)
    raise OptionError(f"task {task!r}: {name} must be {allowed}, not {kind.said}")


def _checked_key(value: _Value, task: str, schema: str | None) -> _Value:
    """As `checked_key`, of each row."""
    key = sa.cast(value, sa.Text)
    length = sa.func.char_length(key)
    wrong = sa.or_(
        length < sa.literal_column("1"),
        length > sa.literal_column(str(MAX_NAME)),
        sa.func.starts_with(key, sa.literal_column(f"chr({ord(TASK_GROUP)})")),
    )
    mend = f": a key has 1 to {MAX_NAME} characters, and does not begin with {TASK_GROUP!r}"
    return sa.case(
        (wrong, sa.cast(refusing(f"task {task!r}: the key of a row is ", value, mend, schema=schema), sa.Text)),
        else_=key,
    )

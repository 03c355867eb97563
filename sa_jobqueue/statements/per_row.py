"""The options of jobs that differ from row to row: expressions of SQL, checked by their types."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import sqlalchemy as sa

from ..errors import OptionError
from ..models import TASK_GROUP, JobMixin
from ..options import MAX_NAME, Options
from ..payload import kind_of, shown
from .insert_select import refusing
from .parts import in_seconds, table_of

__all__ = ["check_together", "expression", "per_row"]

_Value: TypeAlias = sa.ColumnElement[Any]

#: What the values of these must be.
_HINTS: Mapping[str, type[Any]] = {"queue": str, "priority": int, "max_attempts": int, "key": str, "units": int}
#: The columns of the job that are not called as their options.
_COLUMNS: Mapping[str, str] = {
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
    return {_COLUMNS.get(name, name): _checked(name, value, task, schema) for name, value in given.items()}


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

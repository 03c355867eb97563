"""Inserting a job for each row of a query: an INSERT ... SELECT.

The server makes the arguments from the columns of the query. A value that could not be an argument, as NULL for an `int` or NaN,
makes the statement fail with a message that names it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from ..arguments.columns import Kind
from ..models import AT_ONCE, Job, JobMixin, due_text, own_column, schema_function
from ..rules.job_fields import JOB_FIELDS, JobField
from ..tasks.calls import Call
from .parts import table_of

_EMPTY = sa.literal_column("''", sa.Text)


class Argument(NamedTuple):
    """A parameter, and the column whose values become its arguments."""

    name: str
    value: sa.ColumnElement[Any]
    kind: Kind
    takes_none: bool
    column: str
    """The column's name, for a message."""


def insert_selected(
    rows: sa.FromClause,
    call: Call,
    *,
    args: sa.ColumnElement[Any],
    rule: sa.ColumnElement[Any] | None,
    per_row: Mapping[str, sa.ColumnElement[Any]],
    order_by: Sequence[sa.ColumnElement[Any]] = (),
    job: type[JobMixin] = Job,
) -> sa.Insert:
    """Insert a job like `call` for each of these rows, with its `args` and its `rule` of uniqueness.

    `per_row`: what differs from `call`, by the names of the job's columns; where it is NULL, it does not differ.
    """
    columns = _columns(call, table_of(job).schema)
    for name, value in call.columns or ():
        column = own_column(job, name)
        columns[column.name] = sa.cast(sa.literal(value, column.type), column.type)
    for name, value in per_row.items():
        columns[name] = sa.func.coalesce(value, columns[name]) if name in columns else value
    columns["args"] = args
    if rule is not None:
        columns["uniqueness"] = rule
    source = sa.select(*columns.values()).select_from(rows).order_by(*order_by)
    made = sa.insert(job).from_select(list(columns), source, include_defaults=False)
    return made.execution_options(preserve_rowcount=True)


def _columns(call: Call, schema: str | None) -> dict[str, sa.ColumnElement[Any]]:
    """The values that all jobs share, by column."""
    columns: dict[str, sa.ColumnElement[Any]] = {}
    for field in JOB_FIELDS:
        value = field.read(call)
        if value is not None and field.column not in {"args", "uniqueness"} and (field.kind, value) != ("json", "{}"):
            columns[field.column] = _literal(field, value, schema)
    return columns


def _literal(field: JobField, value: Any, schema: str | None) -> sa.ColumnElement[Any]:
    if field.kind == "integer":
        return sa.cast(sa.literal(value, sa.SmallInteger), sa.SmallInteger)
    if field.kind == "json":
        return sa.cast(_text(value), JSONB)
    if field.kind == "text":
        return _text(value)
    if value == AT_ONCE:
        return sa.func.now()
    return schema_function("due_at", schema, _text(str(due_text(value))), of=Job.__table__.c.created_at.type)


def _text(value: str) -> sa.ColumnElement[Any]:
    return sa.cast(sa.literal(value, sa.Text), sa.Text)


# ---- arguments


def arguments(
    given: Sequence[Argument], *, variable: str | None, task: str, job: type[JobMixin]
) -> sa.ColumnElement[Any]:
    """The arguments of a row, as a jsonb object. The arguments of `variable`, a handler's `*args`, are an array in it.

    A value that cannot be an argument fails the statement.
    """
    parts: list[sa.ColumnElement[Any]] = []
    for argument in given:
        if argument.name != variable:
            parts += [_text(argument.name), argument.kind.as_json(argument.value)]
    if more := [argument.kind.as_json(argument.value) for argument in given if argument.name == variable]:
        assert variable is not None
        parts += [_text(variable), sa.func.jsonb_build_array(*more)]
    made = sa.func.jsonb_build_object(*parts, type_=JSONB)
    # Around the whole: as a part of it, each value would be made jsonb by itself first.
    refused = [found for argument in given for found in _refused(argument, task, table_of(job).schema)]
    return sa.case(*refused, else_=made) if refused else made


def _refused(
    argument: Argument, task: str, schema: str | None
) -> Iterator[tuple[sa.ColumnElement[bool], sa.ColumnElement[Any]]]:
    """Conditions for values that cannot be this argument, each with the expression that fails the statement."""
    message = f"task {task!r}: argument {argument.name}: the column {argument.column} has a row with "
    if not argument.takes_none:
        mend = ", and the parameter takes no None: leave such rows out, or annotate it so that it does"
        yield argument.value.is_(None), refusing(message, argument.value, mend, schema=schema)
    if argument.kind.is_spoiled is not None:
        mend = f", which cannot be {argument.kind.phrase} in JSON: leave such rows out"
        yield argument.kind.is_spoiled(argument.value), refusing(message, argument.value, mend, schema=schema)


def refusing(message: str, value: sa.ColumnElement[Any], mend: str, *, schema: str | None) -> sa.ColumnElement[Any]:
    """An expression that fails the statement when it is evaluated, with `message`, the value and `mend` as the error message."""
    shown = sa.func.coalesce(
        sa.func.left(sa.cast(value, sa.Text), 80), sa.literal_column("'NULL'", sa.Text), type_=sa.Text()
    )
    return schema_function("refuse_argument", schema, _text(message) + shown + _text(mend), of=JSONB())


# ---- uniqueness


def rule_of(shared: str, key: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """The uniqueness rule of a row: the `shared` part of all rules (JSON text), and its key."""
    rule = sa.func.jsonb_build_object(sa.literal_column("'key'"), key, type_=JSONB)
    return rule if shared == "{}" else rule.op("||", return_type=JSONB())(sa.cast(_text(shared), JSONB))


def digest(task: str, values: Mapping[str, Argument | Any]) -> sa.ColumnElement[Any]:
    """The key that `Unique` makes of these values, of columns or as plain JSON."""
    text: sa.ColumnElement[Any] = _EMPTY
    for number, name in enumerate(sorted(values)):
        value = values[name]
        text = text + _text(f"{',' if number else ''}{json.dumps(name, ensure_ascii=False)}:")
        text = text + (_json_text(value) if isinstance(value, Argument) else _text(_compact(value)))
    hashed = sa.func.encode(
        sa.func.sha256(sa.func.convert_to(_text("{") + text + _text("}"), sa.literal_column("'UTF8'"))),
        sa.literal_column("'hex'"),
    )
    return _text(f"{task}:") + sa.func.left(hashed, 24, type_=sa.Text())


def _json_text(argument: Argument) -> sa.ColumnElement[Any]:
    text = sa.cast(sa.func.to_jsonb(argument.kind.as_json(argument.value), type_=JSONB), sa.Text)
    return sa.func.coalesce(text, sa.literal_column("'null'", sa.Text), type_=sa.Text())


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

"""Enqueueing a job for each row of a query, in one statement that the server alone works through.

>>> from sqlalchemy import Integer, column, select, table
>>> from sa_jobqueue import task
>>> @task(name="shop.remind")
... def remind(order_id: int) -> None: ...
>>> statement = enqueue_select(remind, select(column("id", Integer)).select_from(table("orders")))

`session.execute(statement)` enqueues. What does not fit is refused before anything is sent:

>>> from sqlalchemy import Text
>>> enqueue_select(remind, select(column("note", Text)).select_from(table("orders")))
Traceback (most recent call last):
...
sa_jobqueue.errors.PayloadError: task 'shop.remind': argument order_id: the column note (TEXT) is a str, and the parameter is annotated int
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm.util import AliasedClass
from sqlalchemy.types import TypeEngine

from ..arguments.arguments import Selected, bound, bound_by_name
from ..arguments.columns import kind_of, takes_none
from ..arguments.references import object_in
from ..arguments.signature import Plan
from ..arguments.storable import load, shown
from ..errors import MiddlewareError, OptionError, PayloadError, SubjectError
from ..models import Job, JobMixin, own_column
from ..models.relationship import subject_of_keys, subject_of_rows
from ..sql.insert import check_together, expression, per_row
from ..sql.insert_select import Argument, arguments, digest, insert_selected, rule_of
from ..tasks.options import debounced
from ..tasks.registry import TaskName
from ..tasks.tasks import AnyTask, Task

#: Expressions whose values may be NULL.
TextExpression: TypeAlias = sa.ColumnExpressionArgument[str] | sa.ColumnExpressionArgument[str | None]
NumberExpression: TypeAlias = sa.ColumnExpressionArgument[int] | sa.ColumnExpressionArgument[int | None]
TimeExpression: TypeAlias = sa.ColumnExpressionArgument[datetime] | sa.ColumnExpressionArgument[datetime | None]
DurationExpression: TypeAlias = (
    sa.ColumnExpressionArgument[timedelta]
    | sa.ColumnExpressionArgument[timedelta | None]
    | sa.ColumnExpressionArgument[float]
    | sa.ColumnExpressionArgument[float | None]
    | NumberExpression
)
_Given: TypeAlias = Mapping[str, sa.ColumnElement[Any]]

_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]


def enqueue_select(
    task: AnyTask | TaskName | str,
    source: sa.SelectBase,
    /,
    *,
    queue: TextExpression | None = None,
    priority: NumberExpression | None = None,
    run_at: TimeExpression | None = None,
    delay: DurationExpression | None = None,
    max_attempts: NumberExpression | None = None,
    expires_at: TimeExpression | None = None,
    expires_in: DurationExpression | None = None,
    deadline: TimeExpression | DurationExpression | None = None,
    key: TextExpression | None = None,
    units: NumberExpression | None = None,
    subject: type[Any] | AliasedClass[Any] | None = None,
    columns: Mapping[str, sa.ColumnExpressionArgument[Any]] | None = None,
    job: type[JobMixin] = Job,
) -> sa.Insert:
    """A single INSERT ... SELECT that enqueues a job of `task` for each row of `source`: for `session.execute(...)`, sync or async, ORM or
    Core, in the caller's transaction.

    `source`: a `select()`. Its columns are the arguments of the jobs, as in a call: a column with a label is the keyword of that name, and
    the others are positional. A task that is known by name only takes all of them by their names.

    The options of the task hold for all jobs: `enqueue_select(remind.options(priority=9), ...)`. What differs from row to row is an
    expression over the tables of `source`, given here under the name of the option: `run_at=Order.due`. Such an expression is one more
    column of the select, and where it is NULL the task's own option holds.

    A parameter that is a mapped object takes the column of its key, and the first such object is the subject of the job.

    `subject`: a mapped class, or an alias of it, whose rows `source` selects. Each job is about its row.
    `columns`: expressions for columns of your own job table `job`, by attribute: `columns={"tenant_id": Order.tenant_id}`.

    Returns an `Insert`: add `.returning(Job.id)` to it for the ids; without, the result's `rowcount` says how many jobs there are.

    Raises PayloadError where a column does not fit the handler's parameter by its type, or an argument is missing; OptionError for an
    option that cannot be used. A value that cannot be an argument, as NULL for an `int`, fails the statement when it is executed.
    """
    named = _checked_task(task)
    wanted = {
        "queue": queue, "priority": priority, "run_at": run_at, "delay": delay, "max_attempts": max_attempts,
        "expires_at": expires_at, "expires_in": expires_in, "deadline": deadline, "key": key, "units": units,
    }  # fmt: skip
    expressions = {name: expression(name, value) for name, value in wanted.items() if value is not None}
    check_together(expressions, named.chosen)
    of: str | None = None
    if subject is not None:
        of, expressions["subject"] = _subject(subject)
    call = named.template()
    if call.args != "{}":
        raise MiddlewareError("before_enqueue() gave arguments to the call that stands for all rows of a select")
    own = {own_column(job, name).name: expression(name, value) for name, value in (columns or {}).items()}
    expressions |= {f"own_{name}": value for name, value in own.items()}
    rows, selected = _rows(source, expressions)
    given = _arguments(named, selected, rows)
    options = dict(zip(expressions, list(rows.c)[len(selected) :], strict=True))
    rule, order = _rule(named, given, options), list[sa.ColumnElement[Any]]()
    if rule is not None and rule.differs:
        rows, order = _in_order_of_keys(rows, rule.key)
        rule = rule._replace(key=order[0])
        given = [argument._replace(value=value) for argument, value in zip(given, rows.c, strict=False)]
        options = dict(zip(expressions, list(rows.c)[len(selected) :], strict=False))
    if of is not None:
        about = _about(of, options.pop("subject"))
    else:
        about = _about_first_object(named, given) if named.chosen.subject is None else {}
    variable = named.parameters.variable if isinstance(named, Task) else None
    return insert_selected(
        rows,
        call,
        args=arguments(given, variable=variable, task=named.name, job=job),
        rule=None if rule is None else rule_of(rule.shared, rule.key),
        per_row={
            **per_row({name: options[name] for name in options if name in wanted}, task=named.name, job=job),
            **{name: options[f"own_{name}"] for name in own},
            **about,
        },
        order_by=order,
        job=job,
    )


def _checked_task(task: object) -> AnyTask | TaskName:
    if isinstance(task, str):
        return TaskName(task)
    if not isinstance(task, (Task, TaskName)):
        raise OptionError(
            f"enqueue_select() takes a task or its name, not {shown(task)}: decorate the function with @task"
        )
    return task


# ---- the query


def _rows(source: Any, expressions: Mapping[str, sa.ColumnElement[Any]]) -> tuple[sa.FromClause, list[Selected]]:
    """The query's rows, whose last columns are the `expressions`; and its own columns."""
    if not isinstance(source, sa.SelectBase):
        raise OptionError(f"enqueue_select() takes a select(), not {shown(source)}")
    selected = [_selected(column) for column in source.selected_columns]
    if isinstance(source, sa.Select) and any(
        isinstance(description["expr"], sa.TextClause) for description in source.column_descriptions
    ):
        raise OptionError("text() has no name and no type in a select(): write literal_column(..., type_).label(...)")
    if not expressions:
        return source.subquery("selected"), selected
    if not isinstance(source, sa.Select):
        raise OptionError(
            f"{next(iter(expressions))}=... is one more column, which only a select() takes: make a subquery of the query, "
            "rows = query.subquery(), and select(rows.c...) from it"
        )
    labelled = [value.label(f"sa_jobqueue_{name}") for name, value in expressions.items()]
    return source.add_columns(*labelled).subquery("selected"), selected


def _selected(column: sa.ColumnElement[Any]) -> Selected:
    name = str(getattr(column, "name", ""))
    if isinstance(column, sa.Label):
        is_given = not name.startswith("%(")  # as those names begin that SQLAlchemy gives
        return Selected(name, name) if is_given else Selected("", None)
    name = str(getattr(column, "key", None) or name)
    return Selected("" if name.startswith("%(") else name, None)


def _in_order_of_keys(
    rows: sa.FromClause, key: sa.ColumnElement[Any]
) -> tuple[sa.FromClause, list[sa.ColumnElement[Any]]]:
    """The rows with their unique keys, and the order in which to insert them: that of the keys, in which all statements take them, so
    that two of them cannot deadlock.
    """
    number = sa.func.row_number().over()
    keyed = sa.select(*rows.c, key.label("sa_jobqueue_unique"), number.label("sa_jobqueue_number")).subquery("keyed")
    return keyed, [keyed.c.sa_jobqueue_unique, keyed.c.sa_jobqueue_number]


def _subject(entity: object) -> tuple[str, sa.ColumnElement[Any]]:
    try:
        return subject_of_rows(entity)
    except SubjectError as error:
        raise OptionError(str(error)) from error


def _about(of: str, id: sa.ColumnElement[Any]) -> dict[str, sa.ColumnElement[Any]]:
    return {"subject_type": sa.case((id.is_not(None), sa.literal(of, sa.Text))), "subject_id": id}


def _about_first_object(named: AnyTask | TaskName, given: Sequence[Argument]) -> dict[str, sa.ColumnElement[Any]]:
    """The default subject, as with `enqueue`: the first argument that is an object, here by its key."""
    if not isinstance(named, Task) or not named.takes_objects:
        return {}
    plan, by_name = named.parameters, {argument.name: argument for argument in given}
    for name in plan.names:
        if name != plan.variable and name in by_name and (argument := object_in(plan.hint_of(name))) is not None:
            found = subject_of_keys(argument.mapper, by_name[name].value)
            return {} if found is None else _about(*found)
    return {}


# ---- arguments


def _arguments(named: AnyTask | TaskName, selected: Sequence[Selected], rows: sa.FromClause) -> list[Argument]:
    """An argument for each column, checked by its type."""
    what = f"task {named.name!r}"
    plan = named.parameters if isinstance(named, Task) else None
    names = bound_by_name(selected, what=what) if plan is None else bound(plan, selected, what=what)
    return [
        _argument(plan, name, Selected(column.name or f"number {place}", None), value, what)
        for place, (name, column, value) in enumerate(zip(names, selected, rows.c, strict=False), 1)
    ]


def _argument(plan: Plan | None, name: str, column: Selected, value: sa.ColumnElement[Any], what: str) -> Argument:
    if plan is not None and name in plan.secrets:
        raise PayloadError(
            f"{what}: argument {name} is secret or sensitive, and a column's value would be stored in clear: select the rows, and enqueue_many(...) jobs for them"
        )
    try:
        kind = kind_of(value.type)
    except TypeError as error:
        raise PayloadError(f"{what}: argument {name}: the column {column.name} cannot be used: {error}") from error
    if plan is None:
        if not kind.is_plain:
            raise PayloadError(
                f"{what}: argument {name}: the column {column.name} is {kind.phrase}, which is not plain JSON: give the task itself "
                "instead of its name, or cast() the column to Text"
            )
        return Argument(name, value, kind, takes_none=True, column=column.name)
    hint = plan.hint_of(name)
    if (mapped := object_in(hint)) is not None and mapped.spec.fresh:
        raise PayloadError(
            f"{what}: argument {name} is Fresh(), and a statement or a trigger stores the key of a row without its version: enqueue the objects, or leave "
            "Fresh() out"
        )
    if not kind.fits(hint):
        mend = ": annotate it with that type, which JSON does not have" if hint in (Any, object) else ""
        raise PayloadError(
            f"{what}: argument {name}: the column {column.name} ({_sql(value.type)}) is {kind.phrase}, and the parameter is "
            f"annotated {_annotation(hint)}{mend}"
        )
    return Argument(name, value, kind, takes_none(hint), column.name)


def _sql(of: TypeEngine[Any]) -> str:
    return of.compile(dialect=_DIALECT)


def _annotation(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


# ---- uniqueness


class _Rule(NamedTuple):
    """The rules of uniqueness of all rows: what they share, as JSON text, and their key, which may differ."""

    shared: str
    key: sa.ColumnElement[Any]
    differs: bool


def _rule(named: AnyTask | TaskName, given: Sequence[Argument], options: _Given) -> _Rule | None:
    unique, wait = named.chosen.unique, named.chosen.debounce
    if wait is not None:
        return _debounced(named.name, named.chosen.key, wait.max_wait, options.get("key"))
    if unique is None:
        return None
    if unique.key is not None or unique.by == ():
        return _Rule(unique.shared(), sa.literal(unique.key or named.name, sa.Text), differs=False)
    values: dict[str, Any] = dict(named.defaults) if isinstance(named, Task) else {}
    values |= {argument.name: argument for argument in given}
    for name in values if unique.by is None else unique.by:
        if name not in values:
            raise OptionError(f"unique: by names {name!r}, which is no argument of these jobs of {named.name!r}")
        if isinstance(argument := values[name], Argument) and not argument.kind.in_keys:
            raise OptionError(
                f"unique: the argument {name} is {argument.kind.phrase}; the database cannot make the same key of it as enqueue(): "
                "name others in by=(...)"
            )
    by = {name: values[name] for name in (values if unique.by is None else unique.by)}
    return _Rule(unique.shared(), digest(named.name, by), differs=True)


def _debounced(task: str, key: str | None, max_wait: float | None, column: sa.ColumnElement[Any] | None) -> _Rule:
    rule = load(debounced(task, key, max_wait))
    own = str(rule.pop("key"))
    if column is None:
        return _Rule(json.dumps(rule), sa.literal(own, sa.Text), differs=False)
    general = str(load(debounced(task, None, max_wait))["key"])
    of_row = sa.literal(f"{general}:", sa.Text) + sa.cast(column, sa.Text)
    return _Rule(json.dumps(rule), sa.func.coalesce(of_row, sa.literal(own, sa.Text), type_=sa.Text()), differs=True)

"""The statements for jobs whose arguments became known only after the flush."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapper, Session, make_transient_to_detached

from ..models import JobMixin, say_all
from ..objects import Subject
from ..statements.arguments import complete_arguments
from ..statements.parts import table_of

__all__ = ["complete", "insert"]


def insert(session: Session, jobs: Sequence[JobMixin]) -> None:
    """Insert jobs in the transaction of `session`, and put them into it, as a flush would, which cannot begin in another one: by one
    statement for all that set the same columns. Listeners to the mapper's events hear of it.

    Unique jobs are inserted in the order of their keys: see `models.insert_in_order`.
    """
    ordered = sorted(jobs, key=lambda one: str(one.unique_key))
    for alike in _grouped(ordered, type):
        mapper: Mapper[JobMixin] = sa.inspect(type(alike[0]))
        connection = _connection(session, alike[0])
        for job in alike:
            mapper.dispatch.before_insert(mapper, connection, sa.inspect(job))
    say_all(ordered)
    for alike in _grouped(ordered, _shape):
        _insert(_connection(session, alike[0]), alike)
    session.add_all(jobs)


def _shape(job: JobMixin) -> Hashable:
    """What jobs of one statement have in common. One with an expression of SQL has one of its own."""
    columns = _columns(job)
    return type(job), frozenset(columns), id(job) if any(map(_is_expression, columns.values())) else None


def _is_expression(value: object) -> bool:
    return isinstance(value, sa.ClauseElement) or hasattr(value, "__clause_element__")


def _insert(connection: sa.Connection, jobs: Sequence[JobMixin]) -> None:
    mapper: Mapper[JobMixin] = sa.inspect(type(jobs[0]))
    table, names = table_of(type(jobs[0])), _names(type(jobs[0]))
    rows = [_columns(job) for job in jobs]
    made = [one for one in table.c if _is_made(one, rows[0])]
    statement = sa.insert(table).returning(*made, sort_by_parameter_order=True)
    if any(map(_is_expression, rows[0].values())):
        found = connection.execute(statement.values(rows[0]))
    else:
        found = connection.execute(statement, rows)
    for job, row in zip(jobs, found, strict=True):
        known = vars(job)
        known.update({names[one.key]: value for one, value in zip(made, row, strict=True)})
        mapper.dispatch.after_insert(mapper, connection, sa.inspect(job))
        # What is not said is NULL, which needs not be read.
        known.update(dict.fromkeys(set(names.values()) - known.keys()))
        make_transient_to_detached(job)


def _is_made(column: sa.Column[Any], row: Mapping[str, Any]) -> bool:
    """Whether the database says its value, or a default of the column's."""
    if column.key in row:
        return _is_expression(row[column.key])
    return column.server_default is not None or column.default is not None


def _columns(job: JobMixin) -> dict[str, Any]:
    """The values that are set, by column."""
    known = vars(job)
    return {key: known[name] for key, name in _names(type(job)).items() if name in known}


@cache
def _names(job: type[JobMixin]) -> dict[str, str]:
    """The attribute of each column."""
    mapper: Mapper[JobMixin] = sa.inspect(job)
    return {column.key: mapper.get_property_by_column(column).key for column in table_of(job).c}


def _grouped(jobs: Sequence[JobMixin], by: Callable[[JobMixin], Hashable]) -> list[list[JobMixin]]:
    found: dict[Hashable, list[JobMixin]] = {}
    for job in jobs:
        found.setdefault(by(job), []).append(job)
    return list(found.values())


def complete(session: Session, jobs: Sequence[JobMixin]) -> None:
    """Write the arguments, and the subjects, of jobs that were inserted without them."""
    for alike in _grouped(jobs, type):
        texts = [str.__str__(vars(job)["args"]) for job in alike]
        subjects = [_subject(job) for job in alike]
        statement = complete_arguments(
            ids=[job.id for job in alike],
            args=texts,
            subjects=subjects if any(subjects) else None,
            job=type(alike[0]),
        )
        _connection(session, alike[0]).execute(statement)


def _subject(job: JobMixin) -> Subject | None:
    """What is known of it: an attribute that is not set would be loaded."""
    of, key = (vars(job).get(name) for name in ("subject_type", "subject_id"))
    return None if of is None or key is None else Subject(of, key)


def _connection(session: Session, job: JobMixin) -> sa.Connection:
    return session.connection(bind_arguments={"mapper": sa.inspect(type(job))})

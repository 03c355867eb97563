"""The statements for jobs whose arguments became known only after the flush."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, inspect
from sqlalchemy import insert as insert_into
from sqlalchemy.orm import InstanceState, Mapper, Session, make_transient_to_detached

from ..models import Job, say_all
from ..statements.arguments import complete_arguments
from ..statements.parts import table_of

__all__ = ["complete", "insert"]


def insert(session: Session, jobs: Sequence[Job]) -> None:
    """Insert jobs in the transaction of `session` by one statement, and put them into it, as a flush would, which cannot begin in
    another one. Listeners to the mapper's events hear of it. Unique jobs are inserted in the order of their keys: see
    `models.insert_in_order`.
    """
    for one in _by_class(jobs):
        _insert(session, one)
    session.add_all(jobs)


def _by_class(jobs: Sequence[Job]) -> list[list[Job]]:
    """Each table has a class."""
    found: dict[type[Job], list[Job]] = {}
    for job in jobs:
        found.setdefault(type(job), []).append(job)
    return list(found.values())


def _insert(session: Session, jobs: Sequence[Job]) -> None:
    job, connection = type(jobs[0]), _connection(session, jobs[0])
    ordered = sorted(jobs, key=lambda one: str(one.unique_key))
    states: list[InstanceState[Job]] = [inspect(one) for one in ordered]
    mapper: Mapper[Job] = inspect(job)
    for state in states:
        mapper.dispatch.before_insert(mapper, connection, state)
    say_all(ordered)
    names = {column.key: mapper.get_property_by_column(column).key for column in table_of(job).c}
    rows = [{key: vars(one)[name] for key, name in names.items() if name in vars(one)} for one in ordered]
    unsaid = [
        one for one in table_of(job).c if one.server_default is not None and not any(one.key in row for row in rows)
    ]
    statement = insert_into(table_of(job)).returning(*unsaid, sort_by_parameter_order=True)
    for state, row in zip(states, connection.execute(statement, rows).mappings(), strict=True):
        state.dict.update({names[key]: value for key, value in row.items()})
        mapper.dispatch.after_insert(mapper, connection, state)
        make_transient_to_detached(state.obj())


def complete(session: Session, jobs: Sequence[Job]) -> None:
    """Write the arguments of jobs that were inserted without them."""
    for alike in _by_class(jobs):
        texts = [str.__str__(vars(job)["args"]) for job in alike]
        statement = complete_arguments(ids=[job.id for job in alike], args=texts, job=type(alike[0]))
        _connection(session, alike[0]).execute(statement)


def _connection(session: Session, job: Job) -> Connection:
    return session.connection(bind_arguments={"mapper": inspect(type(job))})

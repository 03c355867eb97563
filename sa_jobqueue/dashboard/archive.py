"""A look at the archive: the same question, with the same access, asked of jobs that are not in their table any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import ColumnClause, TextClause

from ..models import ArchivedJob, Job, JobMixin, companions_of
from ..schema import schema_on
from ..statements.archived import archive_parts
from ..statements.parts import table_of
from .kept import Kept
from .look import Look

__all__ = ["Archive", "archive_of", "has_archive", "of_archive", "seen_in_archive"]


@dataclass(frozen=True, slots=True)
class Archive:
    """What is known of an archive."""

    parts: Sequence[str]
    """Its months, as "2026-11", the newest first; or names of partitions that are not the queue's."""
    has_jobs: bool


#: Months are made by workers, weeks before there are jobs in them.
_KEPT: Kept[Archive] = Kept(60.0)


def archive_of(look: Look) -> Archive:
    """The archive of the jobs; without months where nothing is archived, or the role may not read it."""
    connection, job = look.connection, look.job
    key = schema_on(connection, table_of(job)), table_of(job).name
    return _KEPT.get(connection, key, lambda: _read(connection, *key, job))


def _read(connection: sa.Connection, schema: str, table: str, job: type[JobMixin]) -> Archive:
    parts = connection.scalars(archive_parts(schema=schema, table=table)).all()
    some: sa.Select[Any] = (
        sa.select(sa.literal_column("1")).select_from(companions_of(job).archived_job).limit(sa.literal_column("1"))
    )
    return Archive(parts, bool(parts) and connection.scalar(some) is not None)


def seen_in_archive(look: Look) -> Look | None:
    """The same look, at the archive. None: there is none, or the viewer's condition cannot be asked of it, so nothing is shown."""
    if not archive_of(look).parts:
        return None
    archived, where = look.options.beside.archived_job, look.access.where
    if where is not None and (where := of_archive(where, look.job, archived)) is None:
        return None
    # It reads like a class of jobs.
    options = replace(look.options, job=cast(type[JobMixin], archived))
    return replace(look, access=replace(look.access, where=where), options=options)


def has_archive(look: Look) -> bool:
    """Whether the viewer may find something in the archive."""
    return archive_of(look).has_jobs and seen_in_archive(look) is not None


# ---- the condition of a viewer


def of_archive(
    condition: sa.ColumnElement[bool], job: type[JobMixin], archived: type[ArchivedJob]
) -> sa.ColumnElement[bool] | None:
    """The condition on jobs as one on the archive. None: it cannot be said there.

    A column of the application's own is in `columns`, as JSON. A condition with SQL as text, or with a query of its own on the jobs, may
    mean anything, and so means nothing here.
    """
    table = table_of(job)
    # An attribute that is a bool is a condition, too.
    condition = getattr(condition, "__clause_element__", lambda: condition)()
    places: dict[str, Any] = {}
    for one in visitors.iterate(condition):
        if isinstance(one, sa.Column):
            if _is_of(one, table):
                place = _place(table.c[one.key], archived)
                if place is None:
                    return None
                places[one.key] = place
        elif (
            isinstance(one, TextClause)
            or (isinstance(one, sa.Table) and one.fullname == table.fullname)
            or (isinstance(one, ColumnClause) and one.table is None and not one.name.isdecimal())
        ):
            return None

    def placed(one: Any, **_: Any) -> Any:
        return places[one.key] if isinstance(one, sa.Column) and _is_of(one, table) else None

    traverse: Any = visitors.replacement_traverse
    found: sa.ColumnElement[bool] = traverse(condition, {}, placed)
    # Another table, an alias of the jobs' for one, would be joined to the archive, each row to each.
    tables = sa.select(sa.literal_column("1")).where(found).get_final_froms()
    return found if all(one is table_of(archived) for one in tables) else None


def _is_of(column: sa.Column[Any], table: sa.Table) -> bool:
    return isinstance(column.table, sa.Table) and column.table.fullname == table.fullname


def _place(column: sa.Column[Any], archived: type[ArchivedJob]) -> Any:
    """Where the archive has what was in this column."""
    if column.name in table_of(Job).c:
        return table_of(archived).c[column.name]
    own = table_of(archived).c.columns[column.name]
    if isinstance(column.type, sa.JSON):
        return own
    return None if isinstance(column.type, sa.ARRAY) else sa.cast(own.astext, column.type)

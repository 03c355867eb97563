"""The jobs of a row: a relationship from a mapped class of the application's to the jobs that are about its objects.

>>> from sqlalchemy import Integer, select
>>> from sqlalchemy.orm import DeclarativeBase, mapped_column
>>> from sa_jobqueue import Job, jobs_relationship
>>> class Base(DeclarativeBase): ...
>>> class Order(Base):
...     __tablename__ = "orders"
...     id = mapped_column(Integer, primary_key=True)
...     jobs = jobs_relationship()  # Mapped[list[Job]]
>>> failed = select(Order).where(Order.jobs.any(Job.status == "failed"))

There is no foreign key: the job stores the class and the key as text (`Subject`), and the statement makes the same text of the row's key.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Sequence
from datetime import date
from inspect import get_annotations
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.orm import Mapper, foreign, relationship
from sqlalchemy.orm.interfaces import MapperProperty
from sqlalchemy.orm.util import AliasedInsp

from ..arguments.columns import kind_of
from ..arguments.subjects import subject_type
from ..errors import SubjectError
from . import Job, JobMixin

if TYPE_CHECKING:
    from sqlalchemy.orm.relationships import _RelationshipDeclared  # pyright: ignore[reportPrivateUsage]


#: When the jobs of an object are loaded, as `relationship(lazy=...)` takes it.
Lazy: TypeAlias = Literal["select", "selectin", "joined", "immediate", "raise", "raise_on_sql", "write_only"]

#: The types of keys that the database and Python write as the same text.
_KINDS = (bool, int, str, UUID, date)


def jobs_relationship(
    of: type[Any] | None = None,
    /,
    *,
    lazy: Lazy = "select",
    job: type[JobMixin] = Job,
    init: Literal[False] | None = None,
) -> _RelationshipDeclared[Any]:
    """A view-only relationship to the jobs whose subject an object is, in the order of their ids.

    In the body of a declarative class: `jobs: Mapped[list[Job]] = jobs_relationship()`, or `WriteOnlyMapped[Job]` where an object may
    have very many. For a class that is there already, `Order.jobs = jobs_relationship(Order)`.

    `lazy`: when they are loaded, as for `relationship()`. Loader options work as for any other: `selectinload(Order.jobs)`.

    `init`: False in a class that is a dataclass (`MappedAsDataclass`): the jobs are no part of its `__init__`, `__repr__` and `__eq__`.
    `job`: the class of the jobs, if it is yours.

    Raises SubjectError for a class that is not mapped, or whose keys the database does not write as Python does, and where the annotation
    names other jobs; where `of` is not given, when the mappers are configured.
    """
    if of is not None:
        mapper = sa.inspect(of, raiseerr=False)
        if not isinstance(mapper, Mapper):
            raise SubjectError(
                f"jobs_relationship() takes a mapped class, not {of!r:.80}; in the body of a class it takes none"
            )
        _checked(mapper)

    def is_about() -> sa.ColumnElement[bool]:
        return _is_about(made, of, job)

    options: Any = {} if init is None else {"init": False, "repr": False, "compare": False}
    made = relationship(job, primaryjoin=is_about, viewonly=True, cascade="", lazy=lazy, order_by=job.id, **options)
    return made


def _is_about(made: MapperProperty[Any], of: type[Any] | None, job: type[JobMixin]) -> sa.ColumnElement[bool]:
    parent: Mapper[Any] = made.parent
    if of is not None and parent.class_ is not of:
        raise SubjectError(f"jobs_relationship({of.__name__}) cannot be a relationship of {parent.class_.__name__}")
    annotated = _annotated(parent.class_, made.key)
    if annotated not in (None, job):
        raise SubjectError(
            f"{parent.class_.__name__}.{made.key} is annotated with {annotated.__name__} of {annotated.__module__}, and has the jobs of "
            f"{job.__name__} of {job.__module__}: jobs_relationship(job={annotated.__name__})"
        )
    text = _id_text([(column, column) for column in _checked(parent)])
    return sa.and_(
        foreign(job.subject_type) == sa.literal(subject_type(parent), sa.Text), foreign(job.subject_id) == text
    )


def _annotated(cls: type[Any], name: str) -> Any:
    """The class of jobs in the annotation of this attribute; None if there is none, or it cannot be resolved."""
    try:
        of, hint = next((base, found[name]) for base in cls.__mro__ if name in (found := get_annotations(base)))
        holder: Any = SimpleNamespace(__annotations__={name: hint})
        inner: list[Any] = [typing.get_type_hints(holder, vars(sys.modules[of.__module__]))[name]]
    except Exception:  # it has none, or a name in it is known to type checkers only
        return None
    for base in inner:
        if isinstance(base, type) and issubclass(base, JobMixin):
            return base
        inner += typing.get_args(base)
    return None


def subject_of_rows(entity: Any) -> tuple[str, sa.ColumnElement[str | None]]:
    """The subject type of the rows of a mapped class, or of an alias of it, and the expression for their subject ids, which is NULL where an
    outer join has no row. Raises SubjectError for any other `entity`.
    """
    found = sa.inspect(entity, raiseerr=False)
    mapper = found.mapper if isinstance(found, (Mapper, AliasedInsp)) else None
    if mapper is None:
        raise SubjectError(f"subject must be a mapped class, or an alias of one, and not {entity!r:.80}")
    columns = _checked(mapper)
    parts = [getattr(entity, mapper.get_property_by_column(column).key) for column in columns]
    text = _id_text(list(zip(columns, parts, strict=True)))
    is_there = sa.and_(*(part.is_not(None) for part in parts))
    key: sa.ColumnElement[Any] = text if len(parts) == 1 else sa.case((is_there, text))
    return subject_type(mapper), key


def subject_of_keys(mapper: Mapper[Any], key: sa.ColumnElement[Any]) -> tuple[str, sa.ColumnElement[Any]] | None:
    """The subject type and ids of the objects with these keys. None if a key has several parts, or the database writes it unlike Python."""
    try:
        columns = _checked(mapper)
    except SubjectError:
        return None
    return None if len(columns) > 1 else (subject_type(mapper), _id_text([(columns[0], key)]))


def _checked(mapper: Mapper[Any]) -> Sequence[sa.ColumnElement[Any]]:
    """The columns of its key."""
    for column in mapper.primary_key:
        try:
            kind = kind_of(column.type)
        except TypeError as error:
            raise _unfit(mapper, column, str(error)) from error
        if isinstance(column.type, sa.CHAR):
            raise _unfit(mapper, column, "it is a CHAR, which the database fills up with blanks")
        if not kind.in_keys or not kind.samples or type(kind.samples[0]) not in _KINDS:
            raise _unfit(mapper, column, f"it is {kind.phrase}, which the database does not write as Python does")
    return mapper.primary_key


def _unfit(mapper: Mapper[Any], column: sa.ColumnElement[Any], reason: str) -> SubjectError:
    name = getattr(column, "key", "")
    return SubjectError(f"the jobs of {mapper.class_.__name__} cannot be found by its key {name!r}: {reason}")


def _id_text(parts: Sequence[tuple[sa.ColumnElement[Any], Any]]) -> sa.ColumnElement[str]:
    """The text that `Subject.id` is, of each column of a key and the expression that has its value."""
    if len(parts) > 1:
        return sa.cast(
            sa.func.jsonb_build_array(*(kind_of(column.type).as_json(value) for column, value in parts)), sa.Text
        )
    ((column, value),) = parts
    match kind_of(column.type).samples[0]:
        case str():
            return sa.collate(sa.cast(value, sa.Text), "C")  # the column may have another collation
        case date():
            return sa.func.to_char(value, sa.literal_column("'YYYY-MM-DD'"), type_=sa.Text())  # with any DateStyle
        case _:
            return sa.cast(value, sa.Text)

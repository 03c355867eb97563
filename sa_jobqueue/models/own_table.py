"""Job classes of the user's own: their checks, and the constraints and indexes that they get."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import MappedAsDataclass, Mapper
from sqlalchemy.schema import SchemaItem
from sqlalchemy.sql.elements import conv

from ..errors import ConfigurationError
from ..util.schema import SCHEMA

#: The classes that hold jobs, by schema.
_classes: weakref.WeakValueDictionary[str, type[Any]] = weakref.WeakValueDictionary()

#: Those that were begun as a subclass of a declarative base.
_begun: weakref.WeakSet[type[Any]] = weakref.WeakSet()

#: The name of a job table: the functions in its schema have it in their text.
_NAME = "job"


@dataclass(frozen=True, slots=True)
class OwnTable:
    """A job class that is being mapped."""

    job: type[Any]
    schema: str
    columns: frozenset[str]
    items: frozenset[str]
    """The names of our constraints and indexes."""

    @property
    def table(self) -> sa.Table:
        return cast(sa.Table, self.job.__table__)

    def check(self) -> None:
        """Refuse what was mapped if it cannot work, and remember it otherwise."""
        keys = [column.name for column in self.table.primary_key]
        if keys != ["id"]:
            raise _refusal(
                self.job, f"the primary key is `id`, and not {', '.join(keys)}: add a UniqueConstraint instead"
            )
        names = self.job.__mapper__.columns
        _classes[self.schema] = self.job
        if self.schema != SCHEMA:
            event.listen(self.table, "before_create", _refusing_create(self.job.__name__))
        # For `sa_jobqueue.migrations`, which knows no models.
        self.table.info["sa_jobqueue"] = frozenset({*(names[name].name for name in self.columns), *self.items})


def _refusing_create(name: str) -> Callable[..., None]:
    """What keeps `create_all` from making the bare table."""

    def refuse(table: sa.Table, *_: object, **__: object) -> None:
        raise ConfigurationError(
            f"create_all() cannot make the table {table.fullname} of {name}, which has functions, triggers and tables beside it. Make it "
            f"before: sa_jobqueue.migrations.OwnTable({name}).create(connection), or a revision of Alembic"
        )

    return refuse


def job_schemas() -> frozenset[str]:
    """The schemas in which this program has mapped jobs."""
    return frozenset(_classes)


def is_own(job: type[Any]) -> bool:
    """Whether this class is the user's, and not the package's `Job`."""
    return schema_of(job) != SCHEMA


def schema_of(job: type[Any]) -> str:
    """The schema of a job class, also before it is mapped."""
    if (table := getattr(job, "__table__", None)) is not None:
        return str(table.schema)
    return str(_options(job).get("schema") or job.metadata.schema or "")


def begin_own_table(job: type[Any], mixin: type[Any], items: Callable[[], Sequence[SchemaItem]]) -> OwnTable | None:
    """Check a class before it is mapped, and give it our constraints and indexes. None: it gets no table of its own.

    `mixin`: the class that has our columns.
    """
    above = job.__mro__[1 : job.__mro__.index(mixin)]
    if job.__dict__.get("__abstract__") or any("__mapper__" in vars(base) for base in above):
        return None
    metadata: sa.MetaData | None = getattr(job, "metadata", None)
    if metadata is None:
        return None  # another mixin
    columns = frozenset(column_names(mixin))
    _check_class(job, mixin, columns)
    schema = schema_of(job)
    if not schema:
        raise _refusal(
            job,
            'it needs a schema of its own, which has no other jobs: __table_args__ = {"schema": "shop_queue"}, or '
            'MetaData(schema="shop_queue")',
        )
    _check_alone(job, schema)
    _begun.add(job)
    ours = _named(items(), metadata)
    job.__table_args__ = (*ours, *_arguments(job), {**_options(job), "schema": schema})
    return OwnTable(job, schema, columns, frozenset(str(getattr(base, "name", "")) for base in ours))


def refuse_unbegun(mapper: Mapper[Any], job: type[Any]) -> None:
    """Refuse a class that is mapped in another way, and so has not got what is ours."""
    if mapper.inherits is not None or job in _begun:
        return
    if hasattr(job, "metadata"):  # the base came first
        raise _refusal(job, f"the mixin comes first: class {job.__name__}(JobMixin, Base)")
    raise _refusal(
        job,
        f"it is to be a class of a DeclarativeBase, class {job.__name__}(JobMixin, Base), and not mapped by a registry",
    )


def _check_class(job: type[Any], mixin: type[Any], columns: frozenset[str]) -> None:
    if issubclass(job, MappedAsDataclass):
        raise _refusal(job, "it cannot be a dataclass: its base is a DeclarativeBase without MappedAsDataclass")
    if "__table__" in vars(job):
        raise _refusal(job, "the mixin makes its table: declare the columns that it has besides, and no __table__")
    name = getattr(job, "__tablename__", None)
    if name != _NAME:
        raise _refusal(job, f"its table is called {_NAME!r} and not {name!r}: choose the name of its schema instead")
    members = {key: value for base in reversed(mixin.__mro__) for key, value in vars(base).items()}
    ours = {member for member in members if not member.startswith("__")} | columns
    named = {_name_of(members[name]) or name for name in columns if name in members} | columns
    for base in job.__mro__[: job.__mro__.index(mixin)]:
        taken = sorted(ours & {*vars(base), *vars(base).get("__annotations__", {})})
        if taken:
            raise _refusal(job, f"`{taken[0]}` is one of the queue's own attributes: give yours another name")
        for key, value in vars(base).items():
            if (name := _name_of(value)) in named:
                raise _refusal(job, f"the column {name!r} of `{key}` is one of the queue's: give yours another name")


def _name_of(value: object) -> str | None:
    """The name that a column was given, if any."""
    column = value if isinstance(value, sa.Column) else getattr(value, "column", None)
    return str(column.name) if isinstance(column, sa.Column) and column.name else None


def _check_alone(job: type[Any], schema: str) -> None:
    other = _classes.get(schema)
    # When a module is loaded again, the new class replaces the old class.
    if other is not None and (other.__module__, other.__qualname__) != (job.__module__, job.__qualname__):
        raise _refusal(
            job, f"the schema {schema!r} has the jobs of {other.__module__}.{other.__qualname__}: name another schema"
        )


def column_names(mixin: type[Any]) -> list[str]:
    """The attributes of the mixin that are columns."""
    hints = {name: hint for base in mixin.__mro__ for name, hint in vars(base).get("__annotations__", {}).items()}
    return [name for name, hint in hints.items() if "Mapped[" in str(hint)]


def _options(job: type[Any]) -> dict[str, Any]:
    given: Any = getattr(job, "__table_args__", None)
    if isinstance(given, tuple) and given:
        given = given[-1]
    return dict(given) if isinstance(given, dict) else {}


def _arguments(job: type[Any]) -> tuple[Any, ...]:
    given: Any = getattr(job, "__table_args__", None)
    if not isinstance(given, tuple):
        return ()
    return given[:-1] if given and isinstance(given[-1], dict) else given


def _named(items: Sequence[SchemaItem], metadata: sa.MetaData) -> list[SchemaItem]:
    """Let our constraints keep their names, also where a naming convention names the user's."""
    for item in items:
        if isinstance(item, sa.CheckConstraint):
            item.name = conv(str(item.name))
    named = "pk" in metadata.naming_convention or sa.PrimaryKeyConstraint in metadata.naming_convention
    return [*items, sa.PrimaryKeyConstraint("id", name=conv("job_pkey"))] if named else list(items)


def _refusal(job: type[Any], reason: str) -> ConfigurationError:
    return ConfigurationError(f"{job.__name__} cannot hold jobs: {reason}")

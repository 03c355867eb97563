"""A job table that an application has mapped itself, in the Alembic history of the application.

In the `env.py`:

    own = sa_jobqueue.migrations.OwnTable(Job)

    context.configure(
        ...,
        include_schemas=True,
        include_object=own.include_object,
        process_revision_directives=own.process_revision_directives,
    )

`alembic revision --autogenerate` writes then a call that makes the table with all that belongs to it, and the columns, keys and
indexes that are the application's as operations of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.types import SchemaType

from ..errors import ConfigurationError
from ..util.schema import CURRENT, SCHEMA
from ..util.sqlalchemy_internals import copy_of
from .runner import upgrade_database

if TYPE_CHECKING:
    from alembic.operations import ops


class OwnTable:
    """What autogenerate has to know of a job table that the application has mapped: `job` is its class, see `JobMixin`.

    Raises ConfigurationError for any other class.
    """

    def __init__(self, job: type[Any]) -> None:
        table: Any = getattr(job, "__table__", None)
        if not isinstance(table, sa.Table) or "sa_jobqueue" not in table.info or table.schema in {None, SCHEMA}:
            raise ConfigurationError(
                f"OwnTable() takes a class of yours that holds jobs, class Job(JobMixin, Base), not {job!r}"
            )
        self.table = table
        self.schema = str(table.schema)
        self._ours: frozenset[str] = table.info["sa_jobqueue"]

    def include_object(self, object: Any, name: str | None, type_: str, reflected: bool, compare_to: Any) -> bool:
        """Whether autogenerate compares this: all but what a call of `upgrade` has made, which is frozen with the release.

        The schema is taken for the queue's: a table in it that no metadata names is left alone. Together with a filter of your own:
        `return own.include_object(object, name, type_, reflected, compare_to) and ...`.
        """
        table = object if type_ == "table" else getattr(object, "table", None)
        if getattr(table, "schema", None) != self.schema:
            return True
        if type_ == "table":
            return not reflected or name == self.table.name
        return not (getattr(table, "name", None) == self.table.name and name in self._ours)

    def process_revision_directives(self, context: Any, revision: Any, directives: list[Any]) -> None:
        """Write a call of `upgrade` where autogenerate would make the table column by column, and of `downgrade` where it would drop it."""
        for script in directives:
            for container in (script.upgrade_ops, script.downgrade_ops):
                if container is not None:
                    container.ops[:] = [operation for each in container.ops for operation in self._in_place_of(each)]

    def create(self, connection: sa.Connection) -> None:
        """Make the table, its schema and all that belongs to it, and add the application's columns, keys and indexes that are missing.

        For tests, and for those who have no Alembic history. The tables that it refers to have to be there. It joins the caller's
        transaction, and may be called again.
        """
        from alembic.autogenerate import produce_migrations
        from alembic.operations import Operations, ops
        from alembic.runtime.migration import MigrationContext

        upgrade_database(connection, schema=self.schema)
        options: dict[str, Any] = {
            "include_schemas": True,
            "include_name": self._is_its_schema,
            "include_object": self._is_of_it,
        }
        context = MigrationContext.configure(connection, opts=options)
        there = {column["name"] for column in sa.inspect(connection).get_columns(self.table.name, self.schema)}
        # Autogenerate does not compare CHECKs: where none of the columns is there, all that belongs to them is made.
        if there <= self._ours:
            missing = [*self._additions(), *map(ops.CreateIndexOp.from_index, self._own_indexes())]
        else:
            found = produce_migrations(context, self.table.metadata).upgrade_ops
            missing = list(_flat(found.ops if found is not None else ()))
        operations = Operations(context)
        for operation in missing:
            if isinstance(operation, ops.AddColumnOp):
                if isinstance(operation.column.type, SchemaType):  # as an ENUM, which an ADD COLUMN does not make
                    operation.column.type.create(connection, checkfirst=True)
                operation.column = _alone(operation.column)
            if isinstance(operation, (ops.AddColumnOp, ops.AddConstraintOp, ops.CreateIndexOp)):
                operations.invoke(operation)

    def _own_indexes(self) -> list[sa.Index]:
        found = [indexe for indexe in self.table.indexes if str(indexe.name) not in self._ours]
        return sorted(found, key=lambda constraint: str(constraint.name))

    def _is_its_schema(self, name: str | None, type_: str, parent_names: Any) -> bool:
        if type_ == "schema":
            return name == self.schema
        return type_ != "table" or name == self.table.name

    def _is_of_it(self, object: Any, name: str | None, type_: str, reflected: bool, compare_to: Any) -> bool:
        table = object if type_ == "table" else getattr(object, "table", None)
        is_it = getattr(table, "schema", None) == self.schema and getattr(table, "name", None) == self.table.name
        return is_it and self.include_object(object, name, type_, reflected, compare_to)

    def _in_place_of(self, operation: Any) -> Iterator[ops.MigrateOperation]:
        from alembic.operations import ops

        from .operations import DowngradeQueueOp, UpgradeQueueOp

        is_it = getattr(operation, "table_name", None) == self.table.name and operation.schema == self.schema
        if is_it and isinstance(operation, ops.CreateTableOp):
            yield UpgradeQueueOp(self.schema, CURRENT)
            yield from self._additions()
        elif is_it and isinstance(operation, ops.DropTableOp):
            yield DowngradeQueueOp(self.schema, 0)
        else:
            yield operation

    def _additions(self) -> Iterator[ops.MigrateOperation]:
        """The application's own columns and constraints; autogenerate has the indexes as operations already."""
        from alembic.operations import ops

        for column in self.table.columns:
            if column.name not in self._ours:
                yield ops.AddColumnOp(self.table.name, _alone(column), schema=self.schema)
        for key in sorted(self.table.foreign_key_constraints, key=lambda constraint: str(constraint.name)):
            yield ops.CreateForeignKeyOp.from_constraint(key)
        for constraint in self.table.constraints:
            if (
                isinstance(constraint, (sa.UniqueConstraint, sa.CheckConstraint))
                and str(constraint.name) not in self._ours
            ):
                yield ops.AddConstraintOp.from_constraint(constraint)


def _flat(operations: Sequence[Any]) -> Iterator[Any]:
    for operation in operations:
        inner = getattr(operation, "ops", None)
        if inner is None:
            yield operation
        else:
            yield from _flat(inner)


def _alone(column: sa.Column[Any]) -> sa.Column[Any]:
    """The column without its keys and indexes, which are operations of their own."""
    made = [copy_of(default) for default in (column.computed, column.identity) if default is not None]
    default = None if made else getattr(column.server_default, "arg", None)
    return sa.Column(
        column.name, column.type, *made, nullable=column.nullable, server_default=default, comment=column.comment
    )

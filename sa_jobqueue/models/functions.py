"""Calls of the functions that the schema has."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import Function
from sqlalchemy.types import TypeEngine

__all__ = ["schema_function"]


class _SchemaFunction(Function[Any]):
    """A function in the schema that is meant when the statement is executed."""

    inherit_cache = True  # it has no state besides a Function's, so Core compiles a statement with it once


@compiles(_SchemaFunction)
def _compile(element: _SchemaFunction, compiler: SQLCompiler, **options: Any) -> str:
    # As a table, because `schema_translate_map` translates the schema of tables only.
    place = sa.Table(element.name, sa.MetaData(), schema=next(iter(element.packagenames), None))
    return f"{compiler.preparer.format_table(place)}({compiler.process(element.clauses, **options)})"


def schema_function(
    name: str, schema: str | None, *arguments: sa.ColumnElement[Any], of: TypeEngine[Any]
) -> sa.ColumnElement[Any]:
    """`schema.name(arguments)`, of the type `of`. None: no schema is named."""
    return _SchemaFunction(name, *arguments, type_=of, packagenames=() if schema is None else (schema,))

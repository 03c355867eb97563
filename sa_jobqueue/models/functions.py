"""Calls of the functions that the schema has."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, MetaData, Table
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

__all__ = ["schema_function"]


class _SchemaFunction(FunctionElement[Any]):
    """A function in the schema that is meant when the statement is executed."""

    inherit_cache = False

    def __init__(self, name: str, schema: str | None, arguments: tuple[ColumnElement[Any], ...], of: Any) -> None:
        super().__init__(*arguments)
        self.type = of
        # A table, because `schema_translate_map` translates the schema of tables only.
        self.place = Table(name, MetaData(), schema=schema)


@compiles(_SchemaFunction)
def _compile(element: _SchemaFunction, compiler: SQLCompiler, **options: Any) -> str:
    function = compiler.preparer.format_table(element.place)
    return f"{function}({compiler.process(element.clauses, **options)})"


def schema_function(
    name: str, schema: str | None, *arguments: ColumnElement[Any], of: TypeEngine[Any]
) -> ColumnElement[Any]:
    """`schema.name(arguments)`, of the type `of`."""
    return _SchemaFunction(name, schema, arguments, of)

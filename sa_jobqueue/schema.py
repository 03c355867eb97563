"""The name of the schema in which the tables are."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection

__all__ = ["SCHEMA", "schema_on"]

#: What models and statements call the schema. A connection's `schema_translate_map` gives it another name.
SCHEMA: Final = "sa_jobqueue"


def schema_on(connection: Connection, table: Any) -> str:
    """The schema where this connection finds the table."""
    return connection.schema_for_object(table) or str(connection.dialect.default_schema_name)

"""The schema in which the tables are: its name, its version, and statements in files of SQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigurationError

if TYPE_CHECKING:
    import sqlalchemy as sa


#: What models and statements call the schema. A connection's `schema_translate_map` gives it another name.
SCHEMA: Final = "sa_jobqueue"

#: The version of the schema that this release works with.
CURRENT: Final = 1

#: Wake-up gates (`v01/waking.sql`); a queue's name is hashed to one.
GATES: Final = 16

#: The dollar quote around the bodies of migrations, in which the schema's name stands.
BODY_TAG: Final = "$migration$"


def schema_on(connection: sa.Connection, table: Any) -> str:
    """The schema where this connection finds the table."""
    return connection.schema_for_object(table) or str(connection.dialect.default_schema_name)


def quote(schema: str, what: str = "schema") -> str:
    """Return `schema` as a quoted identifier, or raise `ConfigurationError` if it cannot be the name of `what`."""
    if not schema or "\0" in schema or BODY_TAG in schema or len(schema.encode()) > 63:
        raise ConfigurationError(f"{schema!r} cannot be the name of a {what}: expected 1 to 63 bytes, without NUL")
    return '"' + schema.replace('"', '""') + '"'


class SqlFiles:
    """The statements in the files `names`, next to the module `module_file`. An empty line ends a statement. Files are read on use."""

    def __init__(self, module_file: str, *names: str) -> None:
        self._paths = [Path(module_file).with_name(f"{name}.sql") for name in names]

    def __iter__(self) -> Iterator[str]:
        for path in self._paths:
            yield from path.read_text(encoding="utf-8").strip().removesuffix(";").split(";\n\n")

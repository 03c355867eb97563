"""Version 1 of the schema, by capability, in files of SQL. Frozen once it is released: it never imports the models.

It is SQL, not Alembic's operations: through a user's `op` their naming convention would rename our constraints. In the files,
`{schema}` is the quoted name of the schema and `{name}` that name as a string.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...util.schema import SqlFiles

__all__ = ["BUILT_ALONE", "COMPATIBLE_WITH", "DOWN", "UP"]


#: The oldest version whose releases can work with this version.
COMPATIBLE_WITH: int = 1

UP: Iterable[str] = SqlFiles(
    __file__, "tables", "indexes", "functions", "waking", "unique", "notes", "schedules", "waiting", "stats", "limits", "limited",
    "workflows", "advance", "workflow_actions", "steps", "audit", "archive",
)  # fmt: skip
DOWN: Iterable[str] = SqlFiles(__file__, "down")

#: No index of this version must be built while its table is in use.
BUILT_ALONE: Mapping[str, str] = {}

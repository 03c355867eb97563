"""Version 1 of the schema, by capability. Frozen once it is released: it never imports the models.

The text is SQL, not Alembic's operations: through a user's `op` their naming convention would rename our constraints.
`{schema}` is the quoted name of the schema, `{name}` that name as a string.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import (
    advance,
    archive,
    functions,
    indexes,
    limited,
    limits,
    notes,
    schedules,
    stats,
    tables,
    unique,
    waiting,
    waking,
    workflow_actions,
    workflows,
)
from .waking import GATES

__all__ = ["BUILT_ALONE", "COMPATIBLE_WITH", "DOWN", "GATES", "UP"]

#: The oldest version whose releases can work with this one.
COMPATIBLE_WITH: int = 1

UP = (
    *tables.UP, *indexes.UP, *functions.UP, *waking.UP, *unique.UP, *notes.UP, *schedules.UP, *waiting.UP, *stats.UP, *limits.UP,
    *limited.UP, *workflows.UP, *advance.UP, *workflow_actions.UP, *archive.UP,
)  # fmt: skip
DOWN = (
    *archive.DOWN,
    *workflow_actions.DOWN,
    *advance.DOWN,
    *workflows.DOWN,
    *limited.DOWN,
    *limits.DOWN,
    *stats.DOWN,
    *waiting.DOWN,
    *schedules.DOWN,
    *notes.DOWN,
    *unique.DOWN,
    *waking.DOWN,
    *functions.DOWN,
    *tables.DOWN,
)

#: No index of this version has to be built beside a table in use.
BUILT_ALONE: Mapping[str, str] = {}

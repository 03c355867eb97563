"""The name of the schema in which the tables are."""

from __future__ import annotations

from typing import Final

__all__ = ["SCHEMA"]

#: What models and statements call the schema. A connection's `schema_translate_map` gives it another name.
SCHEMA: Final = "sa_jobqueue"

"""What only few jobs have, in one column of a claim: NULL for all the others, so that they pay for one test only."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, FromClause, Text, case, cast, func, literal_column
from sqlalchemy.dialects.postgresql import JSONB

from ._parts import epoch
from .unique import started_key

__all__ = ["extra_of"]

_TRUE = literal_column("'true'::jsonb", JSONB)


def extra_of(table: FromClause) -> ColumnElement[str | None]:
    """A JSON object as text, named `extra`; NULL for a job that has none of these. See `lifecycle.Claimed.extra`."""
    columns = table.c
    # key -> (the column that says whether a job has it, the value)
    parts: dict[str, tuple[ColumnElement[Any], ColumnElement[Any]]] = {
        "unique": (columns.uniqueness, func.coalesce(func.to_jsonb(started_key(table)), _TRUE)),
        "tick": (columns.tick_at, _tick(columns)),
    }
    pairs = [one for key, (_, value) in parts.items() for one in (literal_column(f"'{key}'"), value)]
    has_any = func.num_nonnulls(*(column for column, _ in parts.values())) > literal_column("0")
    return case((has_any, cast(func.jsonb_strip_nulls(func.jsonb_build_object(*pairs)), Text))).label("extra")


def _tick(columns: Any) -> ColumnElement[Any]:
    """[seconds since 1970, for how many ticks the job stands], or NULL."""
    return case((columns.tick_at.is_not(None), func.jsonb_build_array(epoch(columns.tick_at), columns.ticks)))

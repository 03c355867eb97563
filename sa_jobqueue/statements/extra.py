"""What only few jobs have, in one column of a claim: NULL for all the others, so that they pay for one test only."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from .parts import epoch
from .unique import started_key

__all__ = ["extra_of"]

_TRUE = sa.literal_column("'true'::jsonb", JSONB)


def _seconds_to(time: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    # Not by an interval: there is none to infinity before PostgreSQL 17.
    return sa.func.to_jsonb(epoch(time) - epoch(sa.func.now()))


def extra_of(table: sa.FromClause) -> sa.ColumnElement[str | None]:
    """A JSON object as text, named `extra`; NULL for a job that has none of these. See `lifecycle.Claimed.extra`."""
    columns = table.c
    # key -> (the column that says whether a job has it, the value)
    parts: dict[str, tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]]] = {
        "unique": (
            columns.uniqueness,
            sa.case((columns.uniqueness.is_not(None), sa.func.coalesce(sa.func.to_jsonb(started_key(table)), _TRUE))),
        ),
        # In how many seconds. Only for the first attempt, which the claim has counted already, and if none was broken off.
        "expires": (
            columns.expires_at,
            sa.case(
                (
                    sa.and_(columns.attempt <= sa.literal_column("1"), columns.rescues == sa.literal_column("0")),
                    _seconds_to(columns.expires_at),
                )
            ),
        ),
        "deadline": (columns.deadline_at, _seconds_to(columns.deadline_at)),
        "tick": (columns.tick_at, _tick(columns)),
        "workflow": (columns.workflow_id, columns.workflow_id),
        "inputs": (columns.inputs, columns.inputs),
    }
    pairs = [one for key, (_, value) in parts.items() for one in (sa.literal_column(f"'{key}'"), value)]
    # Tests that the server makes by itself: a function of them all, num_nonnulls(), would be called for each job.
    has_none = sa.and_(*(column.is_(None) for column, _ in parts.values()))
    found = sa.cast(sa.func.jsonb_strip_nulls(sa.func.jsonb_build_object(*pairs)), sa.Text)
    # Of most members of a workflow there is no more to say. To make an object of it takes three times as long.
    is_member = sa.and_(*(column.is_(None) for name, (column, _) in parts.items() if name != "workflow"))
    member = sa.func.concat(
        sa.literal_column("'{\"workflow\": '"), columns.workflow_id, sa.literal_column("'}'"), type_=sa.Text
    )
    return sa.case((has_none, sa.null()), (is_member, member), else_=found).label("extra")


def _tick(columns: Any) -> sa.ColumnElement[Any]:
    """[seconds since 1970, for how many ticks the job stands], or NULL."""
    return sa.case((columns.tick_at.is_not(None), sa.func.jsonb_build_array(epoch(columns.tick_at), columns.ticks)))

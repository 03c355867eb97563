"""How the server would execute what workers run all the time, as it plans it now.

Nothing is executed: the statement is prepared and explained, with the worker's planner settings, so a READ ONLY transaction on a
standby may do it.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.sql import ClauseElement

from ..worker.connections.service import service_settings, setting

_NAME = "sa_jobqueue_doctor"
_PARAMETER = re.compile(r"%\((\w+)\)s")
_LOCK = re.compile(r"\s+FOR NO KEY UPDATE(?: OF \S+)? SKIP LOCKED")


@dataclass(frozen=True, slots=True)
class Reading:
    """One node of a plan that reads a table."""

    table: str
    node: str
    index: str | None
    narrowed: bool
    """By a condition on the index: it does not read all of it."""


@contextmanager
def planned_as_worker(connection: sa.Connection) -> Generator[None]:
    """Plan as a worker's connection does, up to the end of the block."""
    planner = {
        name: value
        for name, value in service_settings(60.0).items()
        if name.startswith("enable_") or name in {"jit", "plan_cache_mode"}
    }
    point = connection.begin_nested()
    try:
        connection.exec_driver_sql(setting(planner, local=True))
        yield
    finally:
        point.rollback()


def readings(connection: sa.Connection, statement: Any, *, locks: bool = True) -> list[Reading]:
    """What the plan of this statement reads. Without `locks` it needs no right to write: the rows would not be locked."""
    given, number = _numbered(connection, statement)
    if not locks:
        given = _LOCK.sub("", given)
    point = connection.begin_nested()
    try:
        connection.execute(_verbatim(f"PREPARE {_NAME} AS {given}"))
        nothing = ", ".join(["NULL"] * number)
        plan: Any = connection.execute(sa.text(f"EXPLAIN (FORMAT JSON) EXECUTE {_NAME}({nothing})")).scalar_one()
        connection.exec_driver_sql(f"DEALLOCATE {_NAME}")
    except BaseException:
        point.rollback()  # which forgets no prepared statement; psycopg forgets all of them, if it has prepared some by itself
        if connection.scalar(
            sa.text("SELECT count(*) FROM pg_prepared_statements WHERE name = :name"), {"name": _NAME}
        ):
            connection.exec_driver_sql(f"DEALLOCATE {_NAME}")
        raise
    point.rollback()
    return [_reading(node) for node in _nodes(plan[0]["Plan"]) if "Relation Name" in node and _reads(node)]


def _verbatim(statement: str) -> sa.TextClause:
    """`statement` as it stands, over any driver: a colon starts no parameter."""
    return sa.text(statement.replace(":", r"\:"))


def _numbered(connection: sa.Connection, statement: Any) -> tuple[str, int]:
    """The statement's text for PREPARE, and how many parameters it has."""
    assert isinstance(statement, ClauseElement)
    schemas = connection.get_execution_options().get("schema_translate_map") or {}
    options: dict[str, Any] = (
        {"schema_translate_map": dict(schemas), "render_schema_translate": True} if schemas else {}
    )
    compiled = str(statement.compile(dialect=psycopg.dialect(), **options))  # type: ignore[no-untyped-call]
    names = list(dict.fromkeys(_PARAMETER.findall(compiled)))
    return _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", compiled).replace("%%", "%"), len(names)


def _nodes(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _nodes(child)


def _reads(node: Mapping[str, Any]) -> bool:
    return bool(node["Node Type"] != "ModifyTable")


def _reading(node: Mapping[str, Any]) -> Reading:
    return Reading(node["Relation Name"], node["Node Type"], node.get("Index Name"), "Index Cond" in node)

"""The server's current plans of workers' statements.

The statement is prepared and explained with a worker's planner settings, and not executed, so that a READ ONLY transaction on a
standby can do it.
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
    """A node of a plan that reads a table."""

    table: str
    node: str
    index: str | None
    narrowed: bool
    """Whether a condition on the index limits the read."""


@contextmanager
def planned_as_worker(connection: sa.Connection) -> Generator[None]:
    """Use a worker's planner settings inside the block."""
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
    """The nodes of the statement's plan that read tables. Without `locks` it needs no right to write."""
    text, number = _numbered(connection, statement)
    if not locks:
        text = _LOCK.sub("", text)
    point = connection.begin_nested()
    try:
        connection.execute(sa.text(f"PREPARE {_NAME} AS {text}".replace(":", r"\:")))  # no colon starts a parameter
        nulls = ", ".join(["NULL"] * number)
        plan: Any = connection.execute(sa.text(f"EXPLAIN (FORMAT JSON) EXECUTE {_NAME}({nulls})")).scalar_one()
        connection.exec_driver_sql(f"DEALLOCATE {_NAME}")
    except BaseException:
        point.rollback()  # it keeps the prepared statement, unless psycopg itself has prepared statements, and drops them all
        prepared = sa.text("SELECT count(*) FROM pg_prepared_statements WHERE name = :name")
        if connection.scalar(prepared, {"name": _NAME}):
            connection.exec_driver_sql(f"DEALLOCATE {_NAME}")
        raise
    point.rollback()
    return [
        Reading(node["Relation Name"], node["Node Type"], node.get("Index Name"), "Index Cond" in node)
        for node in _nodes(plan[0]["Plan"])
        if "Relation Name" in node and node["Node Type"] != "ModifyTable"
    ]


def _numbered(connection: sa.Connection, statement: Any) -> tuple[str, int]:
    """The statement's text for PREPARE, and the number of its parameters."""
    assert isinstance(statement, ClauseElement)
    schemas = connection.get_execution_options().get("schema_translate_map") or {}
    options: Any = {"schema_translate_map": dict(schemas), "render_schema_translate": True} if schemas else {}
    compiled = str(statement.compile(dialect=psycopg.dialect(), **options))  # type: ignore[no-untyped-call]
    names = list(dict.fromkeys(_PARAMETER.findall(compiled)))
    return _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", compiled).replace("%%", "%"), len(names)


def _nodes(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _nodes(child)

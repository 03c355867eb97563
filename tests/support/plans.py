"""Plans of statements as the worker's driver prepares them, and what can be said about such a plan.

with service_connection(engine) as connection:
    claim = Prepared(connection, claim_jobs(...))
    claim.explain(claim_parameters(...)).scans == {"job_claim_idx", "job_pkey"}
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import ClauseElement, Connection, Engine

from sa_jobqueue.worker.connections.service import Connector


@contextmanager
def service_connection(engine: Engine) -> Generator[Connection]:
    """A connection with the worker's own settings, but without its deadlines: on a slow machine a good plan may take long."""
    connection = Connector(engine, lease=60.0).connect()
    with connection:
        driver_of(connection).autocommit = False
        for deadline in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            connection.exec_driver_sql(f"SET {deadline} = 0")
        connection.commit()
        yield connection


def driver_of(connection: Connection) -> psycopg.Connection[Any]:
    """The psycopg connection below."""
    driver = connection.connection.dbapi_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


@dataclass(frozen=True)
class Plan:
    """What EXPLAIN (FORMAT JSON) said."""

    root: Mapping[str, Any]
    milliseconds: float | None = None

    def nodes(self, node: Mapping[str, Any] | None = None) -> Iterator[Mapping[str, Any]]:
        node = self.root if node is None else node
        yield node
        for child in node.get("Plans", []):
            yield from self.nodes(child)

    @property
    def kinds(self) -> set[str]:
        return {node["Node Type"] for node in self.nodes()}

    def on(self, table: str) -> list[Mapping[str, Any]]:
        """The nodes that read the table (not the one that writes it)."""
        return [n for n in self.nodes() if n.get("Relation Name") == table and n["Node Type"] != "ModifyTable"]

    @property
    def indexes(self) -> set[str]:
        return {node["Index Name"] for node in self.nodes() if "Index Name" in node}

    @property
    def blocks(self) -> int:
        """Blocks touched, those of the catalogs and of planning not counted."""
        return int(self.root.get("Shared Hit Blocks", 0)) + int(self.root.get("Shared Read Blocks", 0))

    @property
    def largest_sort(self) -> int:
        """Rows that went into the largest sort."""
        return max((n["Actual Rows"] for n in self.nodes() if "Sort" in n["Node Type"]), default=0)

    @property
    def largest_discard(self) -> int:
        """Rows read from the table and thrown away by a filter, in the worst node."""
        return max((n.get("Rows Removed by Filter", 0) for n in self.nodes() if "Relation Name" in n), default=0)

    def __str__(self) -> str:
        return "\n".join(self._lines(self.root, 0))

    def _lines(self, node: Mapping[str, Any], depth: int) -> Iterator[str]:
        about = [node["Node Type"], node.get("Index Name"), node.get("Relation Name") or node.get("CTE Name")]
        about += [f"rows={node.get('Actual Rows')}x{node.get('Actual Loops')}"]
        about += [f"{key}: {node[key]}" for key in ("Index Cond", "Filter", "Rows Removed by Filter") if key in node]
        about += [f"blocks={node.get('Shared Hit Blocks', 0) + node.get('Shared Read Blocks', 0)}"]
        yield "  " * depth + " ".join(str(part) for part in about if part)
        for child in node.get("Plans", []):
            yield from self._lines(child, depth + 1)


class Prepared:
    """A statement, prepared by psycopg itself: its plan is the one that the worker's executions get."""

    def __init__(self, connection: Connection, statement: ClauseElement, parameters: Mapping[str, Any]) -> None:
        self._driver = driver_of(connection)
        compiled = statement.compile(dialect=connection.dialect)
        self._names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", str(compiled))))
        self._defaults = dict(compiled.params)
        before = self._prepared()
        self._driver.execute(str(compiled), self._defaults | dict(parameters), prepare=True)
        (self._name,) = self._prepared() - before

    def _prepared(self) -> set[str]:
        return {name for (name,) in self._driver.execute("SELECT name FROM pg_prepared_statements", prepare=False)}

    def _execute(self, parameters: Mapping[str, Any]) -> sql.Composed:
        values = self._defaults | dict(parameters)
        literals = sql.SQL(", ").join(sql.Literal(values[name]) for name in self._names)
        return sql.SQL("EXECUTE {}({})").format(sql.Identifier(self._name), literals)

    def explain(self, parameters: Mapping[str, Any], *, analyze: bool = True) -> Plan:
        """The plan; with `analyze` the statement is executed, and rolled back."""
        options = "ANALYZE, BUFFERS, FORMAT JSON" if analyze else "FORMAT JSON"
        command = sql.SQL("EXPLAIN ({}) {}").format(sql.SQL(options), self._execute(parameters))
        try:
            row = self._driver.execute(command, prepare=False).fetchone()
        finally:
            self._driver.pgconn.exec_(b"ROLLBACK")  # past psycopg, which forgets what it has prepared with a rollback
        assert row is not None
        return Plan(row[0][0]["Plan"], row[0][0].get("Execution Time"))

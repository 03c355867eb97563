"""Databases for tests: a migrated template, cheap clones of it, and one that is emptied between tests.

databases = Databases(server_url, run="sajq_1a2b3c")
url = databases.create("sajq_1a2b3c_gw0_7")        # a clone of the run's migrated template
connect(driver_url(url, "asyncpg"))
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import make_url

from sa_jobqueue.migrations import upgrade_database

SCHEMA = "sa_jobqueue"


@dataclass(frozen=True)
class Databases:
    """The databases of one test run on one server. All their names begin with `run`."""

    server: str
    run: str

    def url(self, name: str) -> str:
        return make_url(self.server).set(database=name).render_as_string(hide_password=False)

    def template(self) -> str:
        """Return the name of the migrated template, made by the first worker that needs it."""
        name = f"{self.run}_template"
        with connect(self.server) as connection:
            connection.execute("SELECT pg_advisory_lock(hashtext(%s))", [name])
            if name not in self.names():
                draft = f"{name}_draft"
                self._create(connection, draft, "template1")
                upgrade_database(self.url(draft), schema=SCHEMA)
                connection.execute(
                    sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(draft))
                )  # PostgreSQL clones only a template to which no session is connected
                connection.execute(
                    sql.SQL("ALTER DATABASE {} RENAME TO {}").format(sql.Identifier(draft), sql.Identifier(name))
                )
        return name

    def create(self, name: str, *, template: str | None = None) -> str:
        """Make a database as a clone of `template` (default: the migrated one) and return its URL."""
        source = template or self.template()
        with connect(self.server) as connection:
            self._create(connection, name, source)
        return self.url(name)

    def new_name(self) -> str:
        return f"{self.run}_{secrets.token_hex(6)}"

    def drop(self, name: str) -> None:
        """Drop a database, and end the sessions that are connected to it."""
        with connect(self.server) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    @contextmanager
    def away(self, url: str) -> Iterator[None]:
        """This database lets no connection in, and has ended those that it had."""
        name = str(make_url(url).database)
        with connect(self.server) as connection:
            allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
            connection.execute(allow.format(sql.Identifier(name), sql.SQL("false")))
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", [name]
            )
            try:
                yield
            finally:
                connection.execute(allow.format(sql.Identifier(name), sql.SQL("true")))

    def names(self) -> list[str]:
        with connect(self.server) as connection:
            rows = connection.execute(
                "SELECT datname FROM pg_database WHERE starts_with(datname, %s)", [f"{self.run}_"]
            )
            return [name for (name,) in rows]

    @staticmethod
    def _create(connection: psycopg.Connection, name: str, template: str) -> None:
        # On a server without fsync, to copy the files takes half the time of writing them to the log.
        command = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
        connection.execute(command.format(sql.Identifier(name), sql.Identifier(template)))


def connect(url: str, kind: type[psycopg.Connection[Any]] = psycopg.Connection) -> psycopg.Connection[Any]:
    """Open a plain psycopg connection in autocommit from a SQLAlchemy URL."""
    parts = make_url(url).translate_connect_args(username="user", database="dbname") | dict(make_url(url).query)
    return kind.connect(**parts, autocommit=True)


def driver_url(url: str, driver: str) -> str:
    """Return the URL for another driver: psycopg, psycopg2, asyncpg or pg8000 (which names sockets in its own way)."""
    changed = make_url(url).set(drivername=f"postgresql+{driver}")
    host = changed.query.get("host")
    if driver == "pg8000" and isinstance(host, str):
        socket = PurePosixPath(host) / ".s.PGSQL.5432"
        changed = changed.difference_update_query(["host"]).update_query_dict({"unix_sock": str(socket)})
    return changed.render_as_string(hide_password=False)


def empty(connection: psycopg.Connection) -> None:
    """Bring a database back to what the migrated template holds, faster than a new clone.

    Others are disconnected, our tables emptied, their counters and sequences restarted; whatever else the test made (in
    `public` or schemas of its own) is dropped. A test that changes our schema itself needs a database of its own.
    """
    connection.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    schemas = connection.execute(
        "SELECT nspname FROM pg_namespace WHERE nspname <> ALL (%s) AND nspname !~ '^pg_'",
        [["information_schema", "public", SCHEMA]],
    ).fetchall()
    if connection.execute("SELECT 1 FROM pg_depend WHERE refobjid = 'public'::regnamespace LIMIT 1").fetchone():
        schemas.append(("public",))
    for (name,) in schemas:
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))
    if ("public",) in schemas:
        connection.execute(
            "CREATE SCHEMA public AUTHORIZATION pg_database_owner; GRANT USAGE ON SCHEMA public TO PUBLIC"
        )
    tables = connection.execute(
        "SELECT relname FROM pg_class "
        "WHERE relnamespace = to_regnamespace(%s) AND relkind IN ('r', 'p') AND relname <> 'schema_version'"
        " AND pg_relation_size(oid) > 0",  # most tests use one table or two
        [SCHEMA],
    ).fetchall()
    if tables:
        names = sql.SQL(", ").join(sql.Identifier(SCHEMA, name) for (name,) in tables)
        connection.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY").format(names))
    connection.execute(
        "SELECT setval(seqrelid, seqstart, false) FROM pg_sequence JOIN pg_class ON pg_class.oid = seqrelid "
        "WHERE relnamespace = to_regnamespace(%s)",
        [SCHEMA],
    )


def cut_line(connection: Any) -> None:
    """Break a psycopg connection as a network does, or a watch."""
    with socket.socket(fileno=os.dup(connection.pgconn.socket)) as line:
        line.shutdown(socket.SHUT_RDWR)


def terminate_others(url: str) -> None:
    """End all other connections to this database."""
    with connect(url) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

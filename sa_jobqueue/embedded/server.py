"""What a caller does with an embedded server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import pq, sql

from ..errors import EmbeddedUnavailable
from . import cluster
from .connection import conninfo_of, ping, refuse_leading_away, settles_running, url_of
from .processes import postmaster_of
from .spec import ServerSpec, default_directory
from .waiting import exclusively
from .wheel import check_extra

__all__ = ["EmbeddedServer", "ServerStatus", "embedded_url"]


def embedded_url(database: str = "sa_jobqueue", *, directory: Path | None = None, version: int = 18) -> str:
    """Return the URL of a database on the embedded server. The server is started and the database created if needed.

    Raises `EmbeddedUnavailable` where the extra `embedded` is not installed, the server does not start, or PGHOSTADDR or
    PGSERVICE would lead to another one.
    """
    return EmbeddedServer(directory or default_directory(), version=version).create_database(database)


@dataclass(frozen=True)
class ServerStatus:
    """What is known of a server: `pid` is None when it is not running."""

    version: int
    directory: Path
    log: Path
    url: str
    pid: int | None

    @property
    def running(self) -> bool:
        """Whether it runs just now."""
        return self.pid is not None


@dataclass(frozen=True)
class EmbeddedServer(ServerSpec):
    """The embedded PostgreSQL of one folder.

    `directory`: the folder; it is made where missing, and each major version has a subfolder there.
    `version`: 18 or 16; any, where `programs` are given.
    `settings`: configuration parameters beside `DEFAULT_SETTINGS`, read at the next start.
    `programs`: a folder with `initdb` and `pg_ctl` to use instead of the wheel's.
    """

    def ensure_running(self) -> str:
        """Start the server unless it runs, and return the URL of its maintenance database `postgres`.

        Any number of processes may call this at the same time. Raises `EmbeddedUnavailable`.
        """
        if not self._answers():
            with exclusively(self.directory):
                if not settles_running(self):
                    cluster.prepare(self)
                    cluster.start(self)
        return self.url("postgres")

    def create_database(self, name: str) -> str:
        """Create the database `name` unless it is there (the server is started if needed), and return its URL."""
        self.ensure_running()
        try:
            with psycopg.connect(conninfo_of(self), autocommit=True) as connection:
                if not _has_database(connection, name):
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
            pass  # another process was quicker
        except psycopg.Error as error:
            raise EmbeddedUnavailable(
                f"the embedded PostgreSQL could not make the database {name!r}: {error}"
            ) from error
        return self.url(name)

    def find_database(self, name: str) -> str:
        """Return the URL of the database `name`, which must be there: nothing is started or created.

        Raises `EmbeddedUnavailable`.
        """
        if not self._answers():
            raise EmbeddedUnavailable(
                f"there is no database to use: none was given, and the embedded PostgreSQL in {self.home} does not run. "
                "Give one with --database-url or SA_JOBQUEUE_DATABASE_URL, or start that with `sa-jobqueue migrate`"
            )
        with psycopg.connect(conninfo_of(self), autocommit=True) as connection:
            if not _has_database(connection, name):
                raise EmbeddedUnavailable(
                    f"there is no database to use: none was given, and the embedded PostgreSQL in {self.home} has none "
                    f"named {name!r}. Give one with --database-url or SA_JOBQUEUE_DATABASE_URL, or make that with "
                    "`sa-jobqueue migrate`"
                )
        return self.url(name)

    def stop(self) -> bool:
        """Stop the server and disconnect its users. Return whether it was running."""
        if not self.data.exists():
            return False
        check_extra(self, needs_database=False)
        with exclusively(self.directory):
            running = settles_running(self)
            if running:
                cluster.stop(self)
        return running

    def status(self) -> ServerStatus:
        """Say whether the server runs, and where its files are."""
        check_extra(self, needs_database=False)
        pid = postmaster_of(self) if ping(self) is not pq.Ping.NO_RESPONSE else None
        return ServerStatus(self.version, self.home, self.log, self.url("sa_jobqueue"), pid)

    def url(self, database: str) -> str:
        """Return the SQLAlchemy URL (psycopg) of a database, whether or not it exists."""
        return url_of(self, database)

    def _answers(self) -> bool:
        """Whether the server can be used. EmbeddedUnavailable where it never could be."""
        check_extra(self)
        refuse_leading_away()
        return ping(self) is pq.Ping.OK


def _has_database(connection: psycopg.Connection[Any], name: str) -> bool:
    return connection.execute("SELECT FROM pg_database WHERE datname = %s", [name]).fetchone() is not None

"""What a caller does with an embedded server."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import pq, sql
from psycopg.conninfo import make_conninfo

from ..errors import EmbeddedUnavailable
from .processes import (
    DEFAULT_SETTINGS,
    GIVE_A_DATABASE,
    PATIENCE,
    ServerSpec,
    check_extra,
    default_directory,
    drop_misleading_pid_files,
    exclusively,
    make_folder,
    polls,
    postmaster_of,
    run,
)

_LEADING_AWAY = ("PGHOSTADDR", "PGSERVICE")
"""Variables of libpq's that no URL can overrule: with them it would lead to another server."""


def url_of(spec: ServerSpec, database: str) -> str:
    """The SQLAlchemy URL (psycopg) of a database, whether or not it exists."""
    query = {"host": str(spec.socket_directory)}
    # With the port, which PGPORT would say otherwise.
    return sa.URL.create("postgresql+psycopg", "postgres", port=5432, database=database, query=query).render_as_string()


def conninfo_of(spec: ServerSpec) -> str:
    """Libpq's connection string for the maintenance database."""
    return make_conninfo(
        host=str(spec.socket_directory),
        hostaddr="",  # and not PGHOSTADDR
        port=5432,
        user="postgres",
        dbname="postgres",
        gssencmode="disable",  # a socket has none, even if PGGSSENCMODE requires it
        connect_timeout=10,
    )


def refuse_leading_away() -> None:
    """Raise EmbeddedUnavailable if the environment would lead every URL of ours to another server."""
    for name in _LEADING_AWAY:
        if os.environ.get(name):
            raise EmbeddedUnavailable(
                f"{name} is set, which leads connections away from the embedded PostgreSQL: unset it, or {GIVE_A_DATABASE}"
            )


def ping(spec: ServerSpec) -> pq.Ping:
    """How the server answers, if it does."""
    conninfo = conninfo_of(spec).encode()
    answer = pq.Ping(pq.PGconn.ping(conninfo))
    if answer is pq.Ping.NO_ATTEMPT:
        reason = pq.PGconn.connect_start(conninfo).get_error_message()
        raise EmbeddedUnavailable(
            f"libpq cannot make a connection with the PG* variables of the environment: {reason}: unset the one it means"
        )
    return answer


def settles_running(spec: ServerSpec) -> bool:
    """Wait until the server is no longer starting or stopping, because the command that did it may have been killed.

    Return whether it runs then.
    """
    for _ in polls():
        answer = ping(spec)
        if answer is pq.Ping.OK:
            return True
        if answer is pq.Ping.NO_RESPONSE and postmaster_of(spec) is None:
            return False
    raise EmbeddedUnavailable(
        f"the embedded PostgreSQL runs but does not answer on {spec.socket_directory}; its log is {spec.log}"
    )


def embedded_url(database: str = "sa_jobqueue", *, directory: Path | None = None, version: int = 18) -> str:
    """Return the URL of a database on the embedded server. The server is started and the database created if needed.

    Raises `EmbeddedUnavailable` where the extra `embedded` is not installed, the server does not start, or PGHOSTADDR or
    PGSERVICE would lead to another server.
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
    """The embedded PostgreSQL of a folder.

    `directory`: the folder; it is made where missing, and each major version has a subfolder there.
    `version`: 18 or 16; any, where `programs` are given.
    `settings`: configuration parameters, added to `DEFAULT_SETTINGS`, read at the next start.
    `programs`: a folder with `initdb` and `pg_ctl` to use instead of the wheel's.
    """

    def ensure_running(self) -> str:
        """Start the server unless it runs, and return the URL of its maintenance database `postgres`.

        Any number of processes may call this at the same time. Raises `EmbeddedUnavailable`.
        """
        if not self._answers():
            with exclusively(self.directory):
                if not settles_running(self):
                    prepare(self)
                    start(self)
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
                stop(self)
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


# ---- The database cluster of a server: made once, started and stopped. The caller holds the folder's lock.


def prepare(spec: ServerSpec) -> None:
    """Make what a first start needs: folders and a database cluster."""
    make_folder(spec, spec.home)
    make_folder(spec, spec.socket_directory)
    if not spec.data.exists():
        _make_cluster(spec)


def _make_cluster(spec: ServerSpec) -> None:
    """Run `initdb` in a draft folder, so that a kill in its midst leaves nothing half made.

    Each draft has a name of its own, because the `initdb` of a killed command goes on for a moment.
    """
    for abandoned in spec.home.glob("draft-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    draft = spec.home / f"draft-{secrets.token_hex(4)}"
    locale = ["--locale-provider=builtin", "--locale=C.UTF-8"] if spec.version >= 17 else ["--no-locale"]
    options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", *locale]
    if spec.settings.get("fsync") == "off":
        options.append("--no-sync")
    run(spec, "initdb", "-D", str(draft), *options)
    draft.rename(spec.data)


def start(spec: ServerSpec) -> None:
    """Start the server in a session of its own: no signal to the starting command reaches it."""
    drop_misleading_pid_files(spec)
    settings = {
        **DEFAULT_SETTINGS,
        **spec.settings,
        "listen_addresses": "",
        "unix_socket_directories": '"{}"'.format(str(spec.socket_directory).replace('"', '""')),
        "unix_socket_permissions": "0700",
    }
    options = " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in settings.items())
    for _ in polls(10.0):
        logged = spec.log.stat().st_size if spec.log.exists() else 0
        try:
            return _pg_ctl(spec, "start", "-l", str(spec.log), "-o", options)
        except EmbeddedUnavailable as error:
            if settles_running(spec):  # a command killed while it started the server had already done so
                return None
            with open(spec.log, "rb") as log:
                log.seek(logged)
                news = log.read().decode(errors="replace").strip()
            # The children of a killed server hold its memory for a moment longer.
            if "shared memory block" not in news:
                raise EmbeddedUnavailable(f"{error}\n{news[-2000:]}\n(from {spec.log})") from None
    raise EmbeddedUnavailable(f"processes of a killed server still use {spec.data}; its log is {spec.log}")


def stop(spec: ServerSpec) -> None:
    """Stop the server, which ends all its connections."""
    _pg_ctl(spec, "stop", "-m", "fast")


def _pg_ctl(spec: ServerSpec, action: str, *options: str) -> None:
    run(spec, "pg_ctl", action, "-D", str(spec.data), "-w", "-t", str(int(PATIENCE)), *options)

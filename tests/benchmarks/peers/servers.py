"""The brokers of a race: one PostgreSQL for all peers that use it, and a Redis of our own on a Unix socket."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg import sql
from sqlalchemy import make_url

from sa_jobqueue.embedded import embedded_url
from sa_jobqueue.util.urls import database_url

#: Said beside the figures: what a reader has to know to compare.
TOLD = ("shared_buffers", "synchronous_commit", "fsync", "full_page_writes", "wal_level", "max_wal_size", "jit")


@dataclass
class Postgres:
    """A server on which each drain gets a new database, the same name for all."""

    server: str
    name: str = "sa_jobqueue_peers"
    _watcher: psycopg.Connection | None = field(default=None, repr=False)

    @classmethod
    def at(cls, url: str | None) -> Postgres:
        """The server of `url`, or the embedded one, started where needed."""
        return cls(url or embedded_url("postgres"))

    @property
    def url(self) -> str:
        """The URL of the drain's database, as every driver takes it."""
        return self._url(self.name)

    def empty(self) -> None:
        """Drop the drain's database and create it again."""
        self.close()
        with psycopg.connect(self._url(None), autocommit=True) as connection:
            name = sql.Identifier(self.name)
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))
            connection.execute(sql.SQL("CREATE DATABASE {}").format(name))

    def settle(self) -> None:
        """Do after the enqueueing what autovacuum and the checkpointer would else do during the drain."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            with suppress(psycopg.errors.InsufficientPrivilege):
                connection.execute("CHECKPOINT")

    def count(self, query: str) -> int:
        """The number that a query of a runner gives."""
        if self._watcher is None:
            self._watcher = psycopg.connect(self.url, autocommit=True)
        row = self._watcher.execute(query).fetchone()  # type: ignore[call-overload]
        assert row is not None
        return int(row[0])

    def wal(self) -> int:
        """Bytes of write-ahead log so far."""
        return self.count("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")

    def about(self) -> dict[str, str]:
        """Its version and the settings that matter."""
        with psycopg.connect(self._url(None), autocommit=True) as connection:
            version = str(connection.execute("SHOW server_version").fetchone()[0])  # type: ignore[index]
            rows = connection.execute(
                "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY(%s)", [list(TOLD)]
            )
            return {"version": version, **dict(rows.fetchall())}

    def close(self) -> None:
        """Leave the drain's database."""
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def drop(self) -> None:
        """Leave nothing behind."""
        self.close()
        with psycopg.connect(self._url(None), autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(self.name)))

    def _url(self, name: str | None) -> str:
        url = make_url(database_url(self.server)).set(drivername="postgresql", **({"database": name} if name else {}))
        if not url.host and url.port is not None:  # asyncpg takes a port without a host for a name
            address = url.render_as_string(hide_password=False).replace(f"@:{url.port}/", "@/", 1)
            return f"{address}&port={url.port}"
        return url.render_as_string(hide_password=False)


@dataclass
class Redis:
    """A Redis of our own, spoken to in its inline commands, so that no client library is needed."""

    path: Path

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def empty(self) -> None:
        """No keys."""
        self.ask("FLUSHALL")

    def settle(self) -> None:
        """Nothing to do: it writes no file."""

    def count(self, commands: str) -> int:
        """The sum of what the commands of a runner give, one a line."""
        return sum(int(self.ask(command)) for command in commands.splitlines())

    def wal(self) -> int:
        """0: this broker writes no such log."""
        return 0

    def ask(self, command: str) -> str:
        """One command with an answer in one piece."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.path))
            connection.sendall(f"{command}\r\n".encode())
            with connection.makefile("rb") as answers:
                line = answers.readline().decode().strip()
                if line.startswith("$"):
                    return answers.read(int(line[1:])).decode()
        if line.startswith("-"):
            raise RuntimeError(f"Redis answers {line!r} to {command!r}")
        return line.lstrip(":+")

    def about(self) -> dict[str, str]:
        """Its version and the settings that matter."""
        facts = dict(line.split(":", 1) for line in self.ask("INFO server").splitlines() if ":" in line)
        return {"version": facts["redis_version"], "appendonly": "no", "save": "none"}


@contextmanager
def redis() -> Iterator[Redis | None]:
    """Start a Redis that keeps everything in memory only; None where there is no `redis-server`."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="peers-redis-") as folder:
        path = Path(folder) / "redis.sock"
        options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no", "--dir", folder]
        server = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
        try:
            yield _answering(Redis(path), server)
        finally:
            server.terminate()
            server.wait()


def _answering(redis: Redis, server: subprocess.Popen[bytes]) -> Redis:
    until = time.monotonic() + 30
    while time.monotonic() < until and server.poll() is None:
        with suppress(OSError):
            if redis.ask("PING") == "PONG":
                return redis
        time.sleep(0.02)
    raise RuntimeError(f"redis-server did not start (exit code {server.poll()})")

"""A PostgreSQL of the test's own, on TCP, to be restarted, killed, copied and promoted.

    with Server.make(folder) as server:
        server.start()
        standby = server.copy(other_folder)
        server.end(How.KILL)
        standby.promote()

Only processes die here, never the machine, so `fsync` is off: the kernel holds what a server has committed, and the
recovery finds it there.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

import psutil
import psycopg

from sa_jobqueue.embedded import EmbeddedServer
from sa_jobqueue.embedded.processes import account_of, make_folder, programs_of
from sa_jobqueue.embedded.server import prepare
from tests.support import keeper
from tests.support.waiting import wait_until

CONNECTIONS = 60
"""The most connections of a server: few enough for a test to use them up."""

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": str(CONNECTIONS),
    "superuser_reserved_connections": "0",
    "shared_buffers": "32MB",
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "replica",
    "max_wal_senders": "4",
    "hot_standby": "on",
    "log_checkpoints": "off",
}

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class How(StrEnum):
    """Ways for a server to end."""

    FAST = "fast"  # transactions are rolled back, connections closed
    IMMEDIATE = "immediate"  # no goodbyes; the next start recovers
    KILL = "kill"  # the postmaster is killed; its children notice


_SIGNALS = {How.FAST: signal.SIGINT, How.IMMEDIATE: signal.SIGQUIT, How.KILL: signal.SIGKILL}

#: Ends the processes that it is told of when its standard input ends: with the process that started it, however that ends.
_GUARD = """
import os, signal, sys
pids = set()
for line in sys.stdin:
    what, pid = line.split()
    (pids.add if what == "+" else pids.discard)(int(pid))
for pid in pids:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class Guard:
    """Ends what would outlive the test's process, even if that was killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _GUARD], stdin=subprocess.PIPE, text=True, start_new_session=True
        )

    def watch(self, pid: int) -> None:
        """This process is to end with us."""
        self._say(f"+ {pid}")

    def forget(self, pid: int) -> None:
        """This process has ended, and its number may go to another."""
        self._say(f"- {pid}")

    def close(self) -> None:
        """End what is left."""
        self._process.communicate()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)


def free_port() -> int:
    """A TCP port that is free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Server:
    """A server with a folder and a port of its own; the programs are those of the embedded PostgreSQL, or of Debian's packages."""

    programs: EmbeddedServer
    data: Path
    port: int
    guard: Guard
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of the server's programs, besides what they need."""
    _process: subprocess.Popen[bytes] | None = field(default=None)

    @classmethod
    def make(
        cls,
        folder: Path,
        guard: Guard,
        settings: Mapping[str, str] = NO_SETTINGS,
        *,
        pg: int | None = None,
        environment: Mapping[str, str] = NO_SETTINGS,
    ) -> Server:
        """A new cluster below `folder`, which others must be able to enter (root's server is another user's).

        `settings`: what is to be other than it is here. `pg`: the version, if it is not to be the newest embedded one.
        """
        programs = keeper.server_of(keeper.choose_version(pg or keeper.EMBEDDED_VERSIONS[0]), folder, {"fsync": "off"})
        programs.directory.mkdir(exist_ok=True, mode=0o755)
        prepare(programs)
        server = cls(programs, programs.data, free_port(), guard, environment)
        server._write_settings(settings)
        return server

    def _write_settings(self, others: Mapping[str, str] = NO_SETTINGS) -> None:
        settings = _SETTINGS | {"port": str(self.port), **others}
        with open(self.data / "postgresql.conf", "a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def url(self, database: str = "postgres", port: int | None = None) -> str:
        """The URL of a database; `port`: that of a proxy."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{port or self.port}/{database}"

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        """A plain connection in autocommit."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", dbname=database, autocommit=True, connect_timeout=5
        )

    def execute(self, statement: str, *, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run one statement on a connection of its own; its rows."""
        with self.connect(database) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    # ---- its life

    def start(self) -> None:
        """Start it, and wait until it answers."""
        for _ in range(200):
            self._process = self._run("postgres", "-D", str(self.data))
            if self._answers():
                self.guard.watch(self._process.pid)
                return
            time.sleep(0.05)  # the children of a killed server hold its memory for a moment longer
        raise AssertionError(f"the server does not start; its log is {self._log}")

    def end(self, how: How) -> None:
        """End it in one of the ways, and wait until it is gone."""
        process = self._process
        if process is None:
            return
        children = psutil.Process(process.pid).children()
        process.send_signal(_SIGNALS[how])
        process.wait(60)
        psutil.wait_procs(children, 20)
        self.guard.forget(process.pid)
        self._process = None

    def restart(self, how: How, away: float = 0.0) -> None:
        """End it, and start it again after `away` seconds."""
        self.end(how)
        time.sleep(away)
        self.start()

    def remove(self) -> None:
        """End it and delete its folder."""
        self.end(How.IMMEDIATE)
        shutil.rmtree(self.data, ignore_errors=True)

    def _answers(self) -> bool:
        """Wait until it does; False: it has ended instead."""
        process = self._process
        assert process is not None

        def look() -> str | None:
            if process.poll() is not None:
                return "ended"
            with suppress(psycopg.OperationalError), self.connect():
                return "answers"
            return None

        return wait_until(look, 60) == "answers"

    # ---- standbys

    def copy(self, folder: Path) -> Server:
        """A running standby that follows this server."""
        programs = EmbeddedServer(folder, self.programs.version, {"fsync": "off"}, self.programs.programs)
        programs.directory.mkdir(exist_ok=True, mode=0o755)
        make_folder(programs, programs.home)
        standby = Server(self.programs, programs.data, free_port(), self.guard)
        source = f"host=127.0.0.1 port={self.port} user=postgres"
        options = ["-D", str(standby.data), "-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", source]
        if (code := self._run("pg_basebackup", *options).wait(120)) != 0:
            raise AssertionError(f"pg_basebackup ended with {code}; see {self._log}")
        standby._write_settings()
        standby.start()
        return standby

    def has_followed(self, lsn: str) -> bool:
        """Whether this standby has replayed all up to `lsn`."""
        ((there,),) = self.execute(f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'")
        return bool(there)

    def stop_following(self) -> None:
        """Hear no more of the primary: what it commits from now on, this standby will never have."""
        self.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.execute("SELECT pg_reload_conf()")
        wait_until(lambda: not self.execute("SELECT 1 FROM pg_stat_wal_receiver"))

    def promote(self) -> None:
        """Make this standby a server that writes."""
        self.execute("SELECT pg_promote()")

    # ---- programs

    @property
    def _log(self) -> Path:
        return self.data.parent / "server.log"

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one of PostgreSQL's programs, as its user."""
        user, changed = account_of(self.programs), os.geteuid() == 0
        with open(self._log, "ab") as log:
            return subprocess.Popen(
                [str(programs_of(self.programs) / program), *arguments],
                cwd=self.data.parent,
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC", **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                umask=0o077,
                user=user.uid if changed else None,
                group=user.gid if changed else None,
                extra_groups=() if changed else None,
            )

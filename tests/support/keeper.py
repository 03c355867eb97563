"""The process that keeps the test run's database server.

It is started by the pytest controller, serves every pytest-xdist worker, and owns the server, so that no test process
does. A server is started with the first test that asks for one. The keeper leaves when its standard input ends, that is
with the controller, however that ended, or by SIGTERM, and takes the server and all databases of the run with it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from multiprocessing.connection import Client, Listener
from pathlib import Path
from queue import SimpleQueue

from sqlalchemy import URL, make_url

from sa_jobqueue.embedded import EmbeddedServer
from sa_jobqueue.errors import EmbeddedUnavailable
from tests.support import pooler
from tests.support.commands import ROOT
from tests.support.folders import make_server_folder

TEST_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "800",
    "max_prepared_transactions": "20",
    "track_commit_timestamp": "on",
}
DEBIAN_PROGRAMS = "/usr/lib/postgresql/{}/bin"
EMBEDDED_VERSIONS = (18, 16)
CONTAINER_IMAGE = "postgres:15"
"""The oldest version supported; the embedded server is the newest."""

SOCKET, NOTICE, POOLER = "keeper", "notice", "pooler"


class Unavailable(Exception):
    """The server that was asked for cannot be had."""


@dataclass(frozen=True)
class Choice:
    """Which server to use: `kind` is url, container, embedded or programs; `detail` a URL, an image or a version."""

    kind: str
    detail: str

    def __str__(self) -> str:
        return {
            "url": f"SA_JOBQUEUE_TEST_URL {make_url(self.detail)}" if self.kind == "url" else "",
            "container": f"a container of {self.detail}",
            "embedded": f"embedded PostgreSQL {self.detail}",
            "programs": f"PostgreSQL {self.detail} of {DEBIAN_PROGRAMS.format(self.detail)}",
        }[self.kind]


def choose(pg: int | None, url: str | None) -> Choice:
    """Choose the server: the version asked for, else the URL given, else a container, else the embedded one."""
    if pg is not None:
        return choose_version(pg)
    if url:
        return Choice("url", url)
    if _docker_answers():
        return Choice("container", CONTAINER_IMAGE)
    return Choice("embedded", str(EMBEDDED_VERSIONS[0]))


def choose_version(pg: int) -> Choice:
    """The server of this version: an embedded one, or one of Debian's packages. Raises Unavailable if there is none here."""
    if pg in EMBEDDED_VERSIONS:
        return Choice("embedded", str(pg))
    if (Path(DEBIAN_PROGRAMS.format(pg)) / "initdb").exists():
        return Choice("programs", str(pg))
    raise Unavailable(
        f"--pg={pg}: there is no {DEBIAN_PROGRAMS.format(pg)} here (Debian's package postgresql-{pg}); "
        f"the embedded server has the versions {', '.join(map(str, EMBEDDED_VERSIONS))}"
    )


def _docker_answers() -> bool:
    if not (os.environ.get("DOCKER_HOST") or Path("/var/run/docker.sock").exists()):
        return False
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=5)
        try:
            return bool(client.ping())
        finally:
            client.close()
    except (DockerException, OSError):
        return False


@dataclass(frozen=True)
class Started:
    """A running server: the URL of a maintenance database, and how to end it."""

    url: str
    stop: Callable[[], None]
    notice: str = ""


def start(choice: Choice, folder: Path) -> Started:
    if choice.kind == "url":
        url = make_url(choice.detail)
        if url.drivername in ("postgresql", "postgres"):
            url = url.set(drivername="postgresql+psycopg")
        return Started(url.render_as_string(hide_password=False), lambda: None)
    if choice.kind == "container":
        try:
            return _start_container(choice.detail)
        except Exception as error:  # of the engine, the registry or the image
            fallback = _start_embedded(Choice("embedded", str(EMBEDDED_VERSIONS[0])), folder)
            reason = str(error).strip().splitlines()[0]
            return Started(fallback.url, fallback.stop, f"embedded PostgreSQL instead of {choice}: {reason}")
    return _start_embedded(choice, folder)


def _start_container(image: str) -> Started:
    from testcontainers.community.postgres import PostgresContainer

    settings = " ".join(f"-c {name}={value}" for name, value in TEST_SETTINGS.items())
    container = PostgresContainer(image, driver="psycopg").with_command(f"postgres {settings}")
    try:
        container.start()
    except Exception:
        container.stop()
        raise
    return Started(container.get_connection_url(), container.stop)


def server_of(choice: Choice, folder: Path, settings: Mapping[str, str]) -> EmbeddedServer:
    """The server of such a choice in a folder of its own."""
    programs = Path(DEBIAN_PROGRAMS.format(choice.detail)) if choice.kind == "programs" else None
    return EmbeddedServer(folder, int(choice.detail), settings, programs)


def _start_embedded(choice: Choice, folder: Path) -> Started:
    server = server_of(choice, folder / "server", TEST_SETTINGS)
    return Started(server.ensure_running(), lambda: _stop_embedded(server))


def _stop_embedded(server: EmbeddedServer) -> None:
    try:
        server.stop()
    except EmbeddedUnavailable:
        # A test left it unable to stop in order; its folder goes anyway, and it notices.
        if (pid := server.status().pid) is not None:
            os.kill(pid, signal.SIGQUIT)


def launch(choice: Choice, run: str, *, pooled: bool = False) -> tuple[subprocess.Popen[str], Path]:
    """Start a keeper for this run; its process, and its folder, by which it is asked."""
    folder = make_server_folder(f"{run}-")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.keeper"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    said = {"folder": str(folder), "run": run, "pooled": pooled, **asdict(choice)}
    print(json.dumps(said), file=process.stdin, flush=True)
    if process.stdout.readline() != "listening\n":
        raise Unavailable("the keeper of the database server did not start; its error is above")
    return process, folder


def ask(folder: Path) -> str:
    """Return the URL of the run's server, which is started when first asked for."""
    with Client(str(folder / SOCKET), family="AF_UNIX") as connection:
        answer: tuple[str, str] = connection.recv()
    if answer[0] != "running":
        raise Unavailable(answer[1])
    return answer[1]


def pooler_port(folder: Path) -> int:
    """Return the port of the run's PgBouncer, which is there once the server runs."""
    return int((folder / POOLER).read_text())


def notice(folder: Path) -> str:
    """Return what the run's summary should say about its server, if anything."""
    try:
        return (folder / NOTICE).read_text()
    except OSError:
        return ""


class Keeper:
    """Starts one server when first asked, tells each worker of the run where it is, and ends it."""

    def __init__(self, choice: Choice, folder: Path, run: str, pooled: bool) -> None:
        self.choice, self.folder, self.run, self.pooled = choice, folder, run, pooled
        self._lock = threading.Lock()
        self._answer: tuple[str, str] | None = None
        self._started: Started | None = None
        self._pooler: subprocess.Popen[bytes] | None = None

    def serve(self, listener: Listener) -> None:
        while True:
            with listener.accept() as connection:
                connection.send(self.answer())

    def answer(self) -> tuple[str, str]:
        with self._lock:
            if self._answer is None:
                try:
                    self._started = start(self.choice, self.folder)
                    if self.pooled:
                        port, self._pooler = pooler.start(self._started.url, self.folder)
                        (self.folder / POOLER).write_text(str(port))
                except Exception as error:  # every reason is the worker's to show
                    self._answer = ("failed", f"{self.choice}: {error}")
                else:
                    self._answer = ("running", self._started.url)
                    (self.folder / NOTICE).write_text(self._started.notice)
            return self._answer

    def close(self) -> None:
        with self._lock:
            if self._pooler is not None:
                self._pooler.kill()
                self._pooler.wait()
            if self._started is not None:
                if self.choice.kind == "url":
                    drop_databases(make_url(self._started.url), self.run)
                self._started.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def drop_databases(server: URL, run: str) -> None:
    """Drop every database of this run on a server that is not ours to remove."""
    from tests.support.databases import Databases

    databases = Databases(server.render_as_string(hide_password=False), run)
    for name in databases.names():
        databases.drop(name)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ends: SimpleQueue[str] = SimpleQueue()  # its put may interrupt its get
    signal.signal(signal.SIGTERM, lambda number, frame: ends.put("SIGTERM"))
    given = json.loads(sys.stdin.readline())  # not as arguments: a URL may hold a password
    folder = Path(given["folder"])
    keeper = Keeper(Choice(given["kind"], given["detail"]), folder, given["run"], given["pooled"])
    listener = Listener(str(folder / SOCKET), family="AF_UNIX")
    threading.Thread(target=keeper.serve, args=[listener], daemon=True).start()
    print("listening", flush=True)
    threading.Thread(target=lambda: ends.put(sys.stdin.read()), daemon=True).start()
    ends.get()
    keeper.close()
    os._exit(0)


if __name__ == "__main__":
    main()

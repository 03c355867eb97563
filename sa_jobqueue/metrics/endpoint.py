"""A small HTTP server for `/metrics`, `/livez` and `/readyz`, on threads of its own."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from time import monotonic
from typing import Any, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

import sqlalchemy as sa
from prometheus_client import CollectorRegistry, make_asgi_app, make_wsgi_app
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from ..errors import ConfigurationError
from ..worker.process.signals import start_deaf
from .database import QueueCollector
from .sums import Receiver, Snapshot


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a probe: well or not, and a line that says why."""

    well: bool
    said: str


class Probes(Protocol):
    """Both answers. Any thread may ask."""

    def live(self) -> Answer:
        """Not well: the process should be killed and started again."""
        ...

    def ready(self) -> Answer:
        """Not well: it takes no jobs just now."""
        ...


class WorkerProbes:
    """The probes of a worker process."""

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._read = read

    def live(self) -> Answer:
        """The threads that claim and that do maintenance move."""
        return _live(self._read())

    def ready(self) -> Answer:
        """It serves, is not leaving, and the database answered the last time."""
        reason = self._read().not_ready
        return Answer(reason is None, reason or "ready")


class SupervisorProbes:
    """Those of a supervisor and its worker processes. A process that dies is the supervisor's business, and is well."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def live(self) -> Answer:
        """The threads of all its processes move."""
        now = monotonic()
        answers = {
            number: _live(heard.snapshot, now - heard.at) for number, heard in self._receiver.sums.live().items()
        }
        ill = [f"process {number}: {answer.said}" for number, answer in answers.items() if not answer.well]
        return Answer(not ill or self._receiver.is_leaving, "; ".join(ill) or "live")

    def ready(self) -> Answer:
        """At least one of its processes is ready."""
        if self._receiver.is_leaving:
            return Answer(False, "it is leaving")
        reasons = {number: heard.snapshot.not_ready for number, heard in self._receiver.sums.live().items()}
        if not reasons:
            return Answer(False, "no process has begun")
        said = "; ".join(f"process {number}: {reason}" for number, reason in reasons.items() if reason is not None)
        return Answer(None in reasons.values(), said or "ready")


class DatabaseProbes:
    """Those of a process that only asks the database: it lives, and is ready while the database answers."""

    def __init__(self, is_up: Callable[[], bool]) -> None:
        self._is_up = is_up

    def live(self) -> Answer:
        """Always well."""
        return Answer(True, "live")

    def ready(self) -> Answer:
        """The database answers."""
        return Answer(True, "ready") if self._is_up() else Answer(False, "the database does not answer")


def _live(snapshot: Snapshot, unheard: float = 0.0) -> Answer:
    if not snapshot.is_stuck(unheard):
        return Answer(True, "live")
    return Answer(False, f"its threads have not moved for {snapshot.state.late + unheard:.0f} s")


#: Where prometheus_client keeps the metrics of the application's own handlers when they run in several processes.
_MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def server_bind(self) -> None:
        """Take the port, without asking for the name of the address, which may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = 10  # a client that says nothing

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a scrape is no event."""

    def address_string(self) -> str:
        """The address, without asking for its name."""
        return str(self.client_address[0])


class Endpoint:
    """Takes the port at once, and answers from `serve()` on.

    Port 0: any free port. Raises ConfigurationError if the port is not free.
    """

    def __init__(self, host: str, port: int) -> None:
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            server = _Server6 if family == socket.AF_INET6 else _Server
            self._server = make_server(str(address[0]), port, _nothing, server, _Handler)
        except OSError as error:
            raise ConfigurationError(
                f"no metrics on port {port} of {host}: {error.strerror or error}; choose another port or host, or end the "
                "program that has it"
            ) from error
        shown = f"[{address[0]}]" if family == socket.AF_INET6 else address[0]
        self.url = f"http://{shown}:{self._server.server_port}/metrics"

    def serve(self, registry: CollectorRegistry, probes: Probes) -> None:
        """Begin to answer."""
        self._server.set_app(_application(registry, probes))
        name = "sa-jobqueue metrics endpoint"
        start_deaf(threading.Thread(target=self._server.serve_forever, name=name, daemon=True))

    def close(self) -> None:
        """Answer no more, and give the port back. Only after `serve()`."""
        self._server.shutdown()
        self._server.server_close()


def registry_of(*collectors: Collector, handlers: bool = False) -> CollectorRegistry:
    """A registry with these; `handlers`: and, where PROMETHEUS_MULTIPROC_DIR is set, with the metrics of the application's handlers."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    if handlers and os.environ.get(_MULTIPROCESS):
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry


def check_handlers() -> None:
    """Raise ConfigurationError where PROMETHEUS_MULTIPROC_DIR names no folder: with it, no metrics could be served."""
    if (folder := os.environ.get(_MULTIPROCESS)) and not Path(folder).is_dir():
        raise ConfigurationError(
            f"{_MULTIPROCESS}: there is no folder {folder!r}; make it before the worker starts, or unset the variable"
        )


def forget_process(pid: int) -> None:
    """The gauges of the application's own handlers in this process, which has ended, go."""
    if os.environ.get(_MULTIPROCESS):
        mark_process_dead(pid)  # type: ignore[no-untyped-call]


def _application(registry: CollectorRegistry, probes: Probes) -> Any:
    metrics: Any = make_wsgi_app(registry)
    asked: dict[str, Callable[[], Answer]] = {"/livez": probes.live, "/readyz": probes.ready}

    def application(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environment["PATH_INFO"]
        if path == "/metrics":
            answered: Iterable[bytes] = metrics(environment, start)
            return answered
        if path not in asked:
            return _say(start, "404 Not Found", "there are /metrics, /livez and /readyz")
        answer = asked[path]()
        return _say(start, "200 OK" if answer.well else "503 Service Unavailable", answer.said)

    return application


def _say(start: StartResponse, status: str, said: str) -> Iterable[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{said}\n".encode()]


def _nothing(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
    return _say(start, "503 Service Unavailable", "not begun")


# ---- The metrics of the database as a small web application, to be mounted in the application's own.

_ASGI = Callable[[Any, Any, Any], Awaitable[None]]


def metrics_app(engine: sa.Engine, *, schema: str | None = None, findings: bool = True) -> _ASGI:
    """An ASGI application that answers every path with the metrics of `engine`'s database. It reads the database on a thread.

    `schema`, `findings`: as in `QueueCollector`, whose errors it raises.
    """
    collector = QueueCollector(engine, schema=schema, findings=findings)
    answer: Any = make_asgi_app(registry_of(collector))

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await asyncio.to_thread(collector.refresh)  # then the answer finds what is kept
            await answer(scope, receive, send)

    return application


def metrics_wsgi_app(engine: sa.Engine, *, schema: str | None = None, findings: bool = True) -> Any:
    """The same as a WSGI application."""
    return make_wsgi_app(registry_of(QueueCollector(engine, schema=schema, findings=findings)))

"""The command `dashboard`: serve its pages without an application that mounts them."""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigurationError
from ..models import Job
from ..worker.process.signals import signals_go_to
from .application import load_registry
from .config import Config
from .output import note
from .place import database, given_url, open_engine

if TYPE_CHECKING:
    from starlette.types import ASGIApp


#: The minimum length of a password. 12 random characters cannot be guessed, however fast an attacker tries.
_SHORTEST = 12


def dashboard(
    config: Config,
    *,
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65_535, help="0: any free port.")] = 8_080,
    host: Annotated[
        str,
        typer.Option(metavar="HOST", help="The address to serve at; an address for other machines needs a password."),
    ] = "127.0.0.1",
    read_only: Annotated[bool, typer.Option("--read-only", help="Serve the pages without actions.")] = False,
    replica_url: Annotated[
        str | None, typer.Option(metavar="URL", help="A replica from which to read; actions use the database itself.")
    ] = None,
    password_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The environment variable with the password, of 12 characters at least. Viewers give it with a name, which the audit keeps.",
        ),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="A proxy, or a network of proxies, whose X-Forwarded-For is trusted. Can be repeated.",
        ),
    ] = None,
) -> None:
    """Serve the dashboard: pages about jobs, queues, workers, errors and limits, with buttons that act on them.

    An application can mount it with its own users instead of a password: see dashboard() in sa_jobqueue.dashboard. Its role needs
    `sa-jobqueue grants --can admin`, or with --read-only `--can read`. With --app it enqueues and tries jobs of the application's tasks, and
    shows a job table of your own.

    sa-jobqueue dashboard
    sa-jobqueue dashboard --read-only --replica-url postgresql://replica.example/shop
    sa-jobqueue dashboard --host 0.0.0.0 --password-env DASHBOARD_PASSWORD
    """
    password, proxies = _password(password_env), _proxies(trusted_proxy or [])
    if password is None and not _is_local(host):
        raise ConfigurationError(
            f"--host {host} lets other machines in: name the environment variable that holds a password, --password-env NAME, or stay "
            "at 127.0.0.1"
        )
    try:
        import uvicorn

        app = _application(config, replica_url, password, host, read_only=read_only)
    except ImportError as error:
        raise ConfigurationError(
            "the dashboard needs Starlette, Jinja2 and uvicorn: pip install 'sa_jobqueue[dashboard]'"
        ) from error
    listening = _listen(host, port)
    place = f"[{host}]" if ":" in host else host
    note(f"dashboard: http://{place}:{listening.getsockname()[1]}/ (Ctrl-C ends it)")
    level = config.log_level.value
    # Our own lines log the actions; a line for each request would add nothing.
    serving = uvicorn.Config(
        app, log_config=None, log_level=level, access_log=False, server_header=False, lifespan="off",
        proxy_headers=bool(proxies), forwarded_allow_ips=proxies,
    )  # fmt: skip
    # uvicorn raises a signal again when it has ended.
    with signals_go_to(lambda number, frame: None):
        uvicorn.Server(serving).run(sockets=[listening])


def _application(
    config: Config, replica_url: str | None, password: str | None, host: str, *, read_only: bool
) -> ASGIApp:
    from ..dashboard import Access
    from ..dashboard import dashboard as pages
    from ..dashboard.security import name_of, with_hosts, with_password

    registry = load_registry(config) if config.app else None
    job = Job if registry is None else registry.job
    engine = open_engine(config, database(config), pooled=True)
    replica = None
    if replica_url is not None:
        replica = open_engine(config, given_url(replica_url, "--replica-url"), pooled=True)
    allowed = Access.READ if read_only else Access.ADMIN
    app = pages(
        engine, access=lambda request: allowed.named(name_of(request)), read_from=replica, job=job, registry=registry
    )
    hosts = {"localhost", "127.0.0.1", "::1", host.lower()}
    return with_hosts(app, hosts) if password is None else with_password(app, password)


def _password(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not (password := os.environ.get(variable, "")):
        raise ConfigurationError(f"--password-env {variable}: the environment has no such variable, or it is empty")
    if len(password) < _SHORTEST:
        raise ConfigurationError(
            f"--password-env {variable}: the password has {len(password)} characters, expected {_SHORTEST} at least; "
            "`openssl rand -base64 18` prints one"
        )
    return password


def _proxies(given: list[str]) -> list[str]:
    for address in given:
        try:
            ipaddress.ip_network(address)
        except ValueError as error:
            raise ConfigurationError(
                f"--trusted-proxy {address}: expected an address or a network, as in 10.0.0.7 or 10.0.0.0/24"
            ) from error
    return given


def _is_local(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    """Listen on the port. Raises ConfigurationError if it is not free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise ConfigurationError(f"--host {host} --port {port}: {error.strerror or error}") from error

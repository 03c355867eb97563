"""PgBouncer in transaction mode between the tests and the server: `--pgbouncer=listener` or `no-listener`.

The keeper starts one for the run. The fixtures then give URLs that lead through it; with the listener on a direct URL,
or with none, so that workers poll. A test that needs a session of its own asks for `direct(url)`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from tests.support.waiting import wait_until

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
MODES = ("listener", "no-listener")

# `any`: each client becomes the user of the server's URL. `*` is every database, so that a test's new one is found at once.
CONFIGURATION = """\
[databases]
* = {server}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 100
max_client_conn = 2000
# A test ends connections behind PgBouncer's back: look at each before it is used again, and try a new one at once.
server_check_delay = 0
server_login_retry = 0.1
ignore_startup_parameters = extra_float_digits
log_connections = 0
log_disconnections = 0
"""


@dataclass(frozen=True)
class Pooler:
    """A running PgBouncer: where it answers, which server is behind it, and whether workers have a listener."""

    port: int
    server: str
    mode: str


#: The run's, where there is one.
_running: list[Pooler] = []


def use(pooler: Pooler) -> None:
    """From now on URLs lead through `pooler`."""
    _running[:] = [pooler]


def start(server: str, folder: Path) -> tuple[int, subprocess.Popen[bytes]]:
    """Start PgBouncer in front of `server`; its port and its process."""
    if PROGRAM is None:
        raise RuntimeError("there is no program pgbouncer here (Debian's package pgbouncer)")
    url = make_url(server)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    parts = {
        "host": url.host or url.query.get("host"), "port": url.port or 5432, "user": url.username,
        "password": url.password,
    }  # fmt: skip
    said = " ".join(f"{name}='{str(value).replace(chr(39), chr(39) * 2)}'" for name, value in parts.items() if value)
    file = folder / "pgbouncer.ini"
    file.touch(mode=0o600)
    file.write_text(CONFIGURATION.format(server=said, port=port))
    command = [PROGRAM, "--quiet", str(file)]
    if os.geteuid() == 0:  # it refuses to run as root, and the socket of the server may be its user's alone
        user = pwd.getpwnam("postgres")
        os.chown(file, user.pw_uid, user.pw_gid)
        command[1:1] = ["--user", user.pw_name]
    with (folder / "pgbouncer.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def answers() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"pgbouncer ended: {(folder / 'pgbouncer.log').read_text()}")
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", port)) == 0

    wait_until(answers, message="pgbouncer to answer")
    return port, process


def through(url: str) -> str:
    """The URL that leads to the same database through the pooler, where there is one."""
    if not _running:
        return url
    changed = make_url(url).difference_update_query(["host"]).set(host="127.0.0.1", port=_running[0].port)
    return changed.render_as_string(hide_password=False)


def direct(url: str) -> str:
    """The URL that leads to the same database past the pooler."""
    if not is_pooled(url):
        return url
    database = make_url(url).database
    return make_url(_running[0].server).set(database=database).render_as_string(hide_password=False)


def is_pooled(url: str) -> bool:
    return bool(_running) and (make_url(url).host, make_url(url).port) == ("127.0.0.1", _running[0].port)


def skip_where_deaf(url: str) -> None:
    """Skip the test where workers on this URL hear of nothing, and only poll."""
    if worker_options(url).get("listen") is False:
        pytest.skip("behind a pooler, without a direct URL to listen on, workers only poll")


def worker_options(url: str) -> dict[str, Any]:
    """What a worker on this URL is told beside it."""
    if not is_pooled(url):
        return {}
    listening = {"listen_url": direct(url)} if _running[0].mode == "listener" else {"listen": False}
    return {"pooled": True, **listening}


def command_environment(url: str | None) -> Mapping[str, str]:
    """The same for the command `work`."""
    options = worker_options(url) if url is not None else {}
    names = {"pooled": "SA_JOBQUEUE_POOLED", "listen_url": "SA_JOBQUEUE_LISTEN_URL", "listen": "SA_JOBQUEUE_LISTEN"}
    return {names[option]: str(value) for option, value in options.items()}


def engine_options(url: str) -> dict[str, Any]:
    """The options of an application's engine on this URL: it prepares no statement for use in another transaction."""
    if not is_pooled(url):
        return {}
    arguments: Mapping[str, dict[str, Any]] = {
        "psycopg": {"prepare_threshold": None},
        "asyncpg": {
            "statement_cache_size": 0,
            "prepared_statement_cache_size": 0,
            "prepared_statement_name_func": lambda: f"__asyncpg_{uuid.uuid4()}__",
        },
    }
    return {"connect_args": arguments.get(make_url(url).get_driver_name(), {})}

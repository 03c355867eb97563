"""The command `dashboard`: what it serves, to whom, and what it refuses."""

from __future__ import annotations

import base64
import http.client
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlencode

import pytest
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.orm import Session

from sa_jobqueue.migrations import OwnTable, upgrade_database
from sa_jobqueue.models import AuditEntry
from tests.support import own_jobs
from tests.support.cli import refused
from tests.support.commands import Command, start_command
from tests.support.databases import driver_url
from tests.support.factory import make_job, statuses

SECRET = "Sécret: 4711"
ELSEWHERE = "203.0.113.7"


class Served:
    """A command that serves, and requests to it as a browser makes them."""

    def __init__(self, command: Command) -> None:
        found = re.search(r"dashboard: http://([^/]+):(\d+)/", command.output)
        assert found is not None, command.output
        self.host, self.port = found[1].strip("[]"), int(found[2])
        self.command = command

    def ask(
        self, path: str, *, user: str | None = None, host: str | None = None, post: dict[str, object] | None = None
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        headers = {"host": host or f"{self.host}:{self.port}", "x-forwarded-for": ELSEWHERE}
        if user is not None:
            headers["authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        body = None
        if post is not None:
            headers |= {"sec-fetch-site": "same-origin", "content-type": "application/x-www-form-urlencoded"}
            body = urlencode(post)
        with closing(connection):
            connection.request("GET" if post is None else "POST", path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()


@contextmanager
def served(*arguments: str, url: str, env: dict[str, str] | None = None) -> Iterator[Served]:
    with start_command("dashboard", "--port", "0", *arguments, url=url, env=env) as command:
        command.wait_for("Ctrl-C ends it")
        yield Served(command)


@pytest.fixture
def job(engine: Engine) -> int:
    with engine.begin() as connection:
        return make_job(connection, "failed", task="shop.send")


def test_it_shows_the_queue_and_acts_and_ends_with_ctrl_c(engine: Engine, database_url: str, job: int) -> None:
    """What a client says of its own address is not believed."""
    with served(url=database_url) as serving:
        assert serving.host == "127.0.0.1"
        status, page = serving.ask("/jobs")
        assert status == 200
        assert "shop.send" in page
        assert serving.ask("/act/retry", post={"id": job})[0] == 303
        serving.command.send(signal.SIGINT)
        assert serving.command.wait() == 0
        assert "Traceback" not in serving.command.output
    with engine.connect() as connection:
        assert statuses(connection) == {job: "queued"}
        assert connection.scalar(select(AuditEntry.who)) == "someone at 127.0.0.1"


def test_a_page_of_another_name_is_refused_where_there_is_no_password_and_a_sigterm_ends_it(database_url: str) -> None:
    """A site whose name leads to this machine would be the same origin for the browser."""
    with served(url=database_url) as serving:
        assert serving.ask("/jobs", host=f"localhost:{serving.port}")[0] == 200
        for host in ("evil.example", f"evil.example:{serving.port}", "127.0.0.1.evil.example", "[::2]:80"):
            assert serving.ask("/jobs", host=host)[0] == 403
        serving.command.send(signal.SIGTERM)
        assert serving.command.wait() == 0


def test_read_only_has_no_buttons(engine: Engine, database_url: str, job: int) -> None:
    with served("--read-only", url=database_url) as serving:
        assert "/act/" not in serving.ask(f"/jobs/{job}")[1]
        assert serving.ask("/act/retry", post={"id": job})[0] == 403
    with engine.connect() as connection:
        assert statuses(connection) == {job: "failed"}


def test_a_password_is_asked_for_and_the_name_kept(engine: Engine, database_url: str, job: int) -> None:
    """A proxy that is trusted says from where wrong passwords come."""
    env = {"BOARD": SECRET}
    options = ("--host", "0.0.0.0", "--password-env", "BOARD", "--trusted-proxy", "127.0.0.0/8")
    with served(*options, url=database_url, env=env) as serving:
        serving.host = "127.0.0.1"
        for user in (None, "ada:", f":{SECRET}", "ada:secret", f"ada:{SECRET}x", SECRET, "\u0000:x"):
            assert serving.ask("/jobs", user=user)[0] == 401, user
        assert serving.ask("/static/app.css")[0] == 401
        assert serving.ask("/act/retry", post={"id": job})[0] == 401
        assert serving.ask("/jobs", user=f"ada:{SECRET}", host="ops.example")[0] == 200
        assert {serving.ask("/jobs", user="ada:guess")[0] for _ in range(11)} == {401, 429}
        assert serving.ask("/act/retry", user=f"ada:{SECRET}", post={"id": job})[0] == 303
        serving.command.wait_for(f"{ELSEWHERE} gave 10 wrong passwords")
    with engine.connect() as connection:
        assert connection.scalar(select(AuditEntry.who)) == "ada"
        assert statuses(connection) == {job: "queued"}


def test_pages_are_read_from_the_replica(engine: Engine, database_url: str, empty_database_url: str, job: int) -> None:
    """Here it is another database, so that it can be told from the first one."""
    upgrade_database(empty_database_url)
    replica = create_engine(driver_url(empty_database_url, "psycopg"))
    with replica.begin() as connection:
        make_job(connection, task="on.replica")
    replica.dispose()
    with served("--replica-url", empty_database_url, url=database_url) as serving:
        page = serving.ask("/jobs")[1]
        assert "on.replica" in page
        assert "shop.send" not in page
        assert serving.ask("/act/retry", post={"id": job})[0] == 303
    with engine.connect() as connection:
        assert statuses(connection) == {job: "queued"}


def test_a_job_table_of_ones_own_is_shown(empty_database_url: str) -> None:
    """That of the registry which --app names."""
    engine = create_engine(driver_url(empty_database_url, "psycopg"))
    with engine.begin() as connection:
        own_jobs.Tenant.__table__.create(connection)  # type: ignore[attr-defined]
        OwnTable(own_jobs.Job).create(connection)
        own_jobs.Base.metadata.create_all(connection)
    with Session(engine) as session:
        session.add(own_jobs.enqueue(own_jobs.write_note, "a"))
        session.commit()
    engine.dispose()
    with served("--app", "tests.support.own_jobs:registry", url=empty_database_url) as serving:
        status, page = serving.ask("/jobs")
        assert status == 200
        assert own_jobs.write_note.name in page


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "db.example", ""])
def test_others_are_not_let_in_without_a_password(host: str) -> None:
    said = refused("dashboard", "--host", host)
    assert "--password-env NAME" in said


def test_a_password_that_is_not_there_is_said() -> None:
    for env in ({}, {"BOARD": ""}):
        assert "BOARD: the environment has no such variable" in refused("dashboard", "--password-env", "BOARD", env=env)


def test_a_short_password_and_a_proxy_that_is_no_address_are_refused() -> None:
    said = refused("dashboard", "--password-env", "BOARD", env={"BOARD": "hunter2"})
    assert "the password has 7 characters, expected 12 at least" in said
    assert "expected an address or a network" in refused("dashboard", "--trusted-proxy", "proxy.example")


def test_a_port_that_is_taken_is_said(database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "in use" in refused("dashboard", "--port", str(port), url=database_url)


def test_a_replica_that_cannot_be_is_said(database_url: str) -> None:
    said = refused("dashboard", "--replica-url", "mysql://me:geheim@db/shop", url=database_url)
    assert "is not a PostgreSQL URL" in said
    assert "geheim" not in said
    said = refused("dashboard", "--replica-url", "replica", url=database_url)
    assert "--replica-url has no scheme" in said

"""The page about frameworks: its applications are started, and the requests that it shows are made."""

from __future__ import annotations

import doctest
import os
import re
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from tests.docs.snippets import file_in, language, parse, transcript
from tests.support.commands import ROOT, Command, start_command
from tests.support.databases import driver_url
from tests.support.waiting import wait_until
from tests.support.working import job_of

EXAMPLES = ROOT / "docs" / "examples"
PAGE = ROOT / "docs" / "howto" / "frameworks.md"
#: All are started together, on one database; `fastapi_small` has a worker of its own, which knows no other tasks.
TOGETHER = ("fastapi_shop", "flask_shop", "sqlmodel_heroes", "litestar_shop", "shop_admin")
WITH_TASKS = TOGETHER[:-1]
_SERVER = re.compile(r"(?P<program>uvicorn|flask --app) (?P<name>\w+)")

pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="the wheel is tested without docs/")


@pytest.fixture
def there(database_url: str) -> dict[str, object]:
    """Where commands run: among the examples, as in a folder of the reader's."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        "url": driver_url(database_url, "psycopg"),
        "env": {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        "cwd": EXAMPLES,
    }


def serve(stack: ExitStack, name: str, there: Mapping[str, object]) -> tuple[int, Command]:
    """Start one of the applications as the page does, at a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = ["flask", "--app", name, "run"] if name == "flask_shop" else ["uvicorn", f"{name}:app"]
    command = start_command(command=(*program, "--port", str(port)), **there)  # type: ignore[arg-type]
    return port, stack.enter_context(command)


def fetch(port: int, path: str, method: str = "GET") -> str:
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return str(answer.read().decode())


def is_forbidden(port: int, path: str) -> bool:
    """Whether a stranger is refused."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetch(port, path)
    with refused.value as answer:
        return answer.code == 403


def requests(*names: str) -> Iterator[tuple[str, str, str, str]]:
    """The requests of the page to these applications: name, method, path and answer."""
    name = ""
    for example in parse(PAGE).examples():
        for command, answer in transcript(str(example.parsed)) if language(example) == "console" else ():
            if started := _SERVER.match(command):
                name = started["name"]
            elif name in names and command.startswith("curl "):
                path = re.search(r"http://127.0.0.1:8000([^\"\s]*)", command)
                assert path is not None, command
                yield name, "POST" if "-X POST" in command else "GET", path[1], answer.strip()


def check(ports: Mapping[str, int], engine: Engine, *names: str) -> dict[str, int]:
    """Make them. The reader's first job is job 1; here it has the next number. Returns the number of each application's job."""
    jobs: dict[str, int] = {}

    def answers(name: str, path: str, expected: str) -> bool:
        said = fetch(ports[name], path.replace("/jobs/1", f"/jobs/{jobs[name]}"))
        if "/jobs/" in path:
            said = said.replace(f'"id":{jobs[name]}', '"id":1')
        assert doctest.OutputChecker().check_output(expected, said.strip(), doctest.ELLIPSIS), (said, expected)
        return True

    for name, method, path, expected in requests(*names):
        if method == "POST":
            said = fetch(ports[name], path, "POST").strip()
            with Session(engine) as session:
                jobs[name] = session.scalars(select(Job.id).order_by(Job.id.desc()).limit(1)).one()
            assert said.replace(f'"job":{jobs[name]}', '"job":1') == expected
        else:
            wait_until(partial(answers, name, path, expected))
    return jobs


def test_the_page_shows_the_examples() -> None:
    """And asks each of them something."""
    for name in (*TOGETHER, "fastapi_small"):
        assert (EXAMPLES / f"{name}.py").read_text() == file_in(PAGE, f"{name}.py")
    asked = [name for name, *_ in requests(*WITH_TASKS, "fastapi_small")]
    assert {name: asked.count(name) for name in asked} == {
        "fastapi_shop": 3,
        "fastapi_small": 2,
        "flask_shop": 3,
        "sqlmodel_heroes": 2,
        "litestar_shop": 3,
    }


def test_the_applications_answer_as_the_page_says(engine: Engine, there: dict[str, object]) -> None:
    """One worker runs the jobs of all, and SQLAdmin shows these in its list and each on a page of its own."""
    there = there | {"env": there["env"] | {"DEBUG": "1"}}  # type: ignore[operator]
    with ExitStack() as stack:
        served = {name: serve(stack, name, there) for name in TOGETHER}
        for _, command in served.values():
            wait_until(lambda command=command: "unning on http" in command.output or command.process.poll())
            assert "unning on http" in command.output, command.output
        arguments = ("work", "--app", ",".join(WITH_TASKS), "--queue", "mail=10", "--queue", "default=10")
        stack.enter_context(start_command(*arguments, **there))  # type: ignore[arg-type]
        ports = {name: port for name, (port, _) in served.items()}
        jobs = check(ports, engine, *WITH_TASKS)

        assert f'href="/ops/jobs/{jobs["fastapi_shop"]}"' in fetch(ports["fastapi_shop"], "/ops/jobs")
        page = fetch(ports["fastapi_shop"], f"/ops/jobs/{jobs['fastapi_shop']}")
        assert "has completed" in page
        assert "/act/" not in page  # Access.READ
        assert "--paper" in fetch(ports["fastapi_shop"], "/ops/static/app.css")
        assert is_forbidden(ports["flask_shop"], "/ops/jobs")

        board = fetch(ports["shop_admin"], "/admin/job/list")
        for name, id in jobs.items():
            assert f"/admin/job/details/{id}" in board
            page = fetch(ports["shop_admin"], f"/admin/job/details/{id}").lower()  # of older ones: COMPLETED
            with Session(engine) as session:
                job = session.get_one(Job, id)
            assert job.task.startswith(f"{name}.")
            for shown in (job.task, job.status, job.worker):
                assert str(shown).lower() in page
            assert job.task in board
        assert "/admin/job/create" not in board


def test_a_worker_in_the_lifespan_finishes_its_jobs(engine: Engine, there: dict[str, object]) -> None:
    """It answers as the page says, and a job that runs when the server is stopped completes."""
    with ExitStack() as stack:
        port, server = serve(stack, "fastapi_small", there)
        server.wait_for("running on http")
        check({"fastapi_small": port}, engine, "fastapi_small")
        assert is_forbidden(port, "/ops/jobs")

        with engine.begin() as connection:
            connection.execute(text("UPDATE fastapi_order SET receipt = NULL"))
        with engine.connect() as other, Session(engine) as session:
            other.execute(text("UPDATE fastapi_order SET total = 9"))  # the handler's own UPDATE waits for it
            session.add(job := Job(task="fastapi_shop.send_receipt", queue="mail", args={"order": 1}))
            session.commit()
            wait_until(lambda: job_of(engine, job.id).status == JobStatus.RUNNING)
            server.send(signal.SIGTERM)
            server.wait_for("Waiting for application shutdown")
            other.rollback()
            assert server.wait() in (0, -signal.SIGTERM)
            session.refresh(job)
            assert (job.status, job.attempt) == (JobStatus.COMPLETED, 1)

"""The files in docs/examples: an image and a composition, of which all is tried that needs no container engine."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import shutil
import socket
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase
from starlette.testclient import TestClient

from sa_jobqueue import Job, WorkerSettings
from tests.docs.commands import check_commands
from tests.docs.snippets import file_in, parse, tab_of
from tests.support.cli import as_json, output
from tests.support.commands import ROOT, run_command, start_command
from tests.support.databases import driver_url
from tests.support.waiting import wait_until

EXAMPLES = ROOT / "docs" / "examples"

pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="the wheel is tested without docs/")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    composition: dict[str, Any] = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())
    return dict(composition["services"])


def instructions() -> dict[str, str]:
    """Those of the Dockerfile, each the last of its kind."""
    lines = (EXAMPLES / "Dockerfile").read_text().splitlines()
    return dict(line.split(maxsplit=1) for line in lines if not line.startswith("#"))


def test_the_example_is_the_tutorials_application() -> None:
    """The image in the how-to runs the `shop.py` of the tutorial."""
    assert (EXAMPLES / "shop.py").read_text() == file_in(ROOT / "docs" / "tutorial" / "fastapi.md", "shop.py")


def test_the_composition_fits_together(services: dict[str, Any]) -> None:
    """What it depends on is there, by the right condition; each image is built of files that are there."""
    for service in services.values():
        assert ("build" in service) != ("image" in service)
        for name, how in service.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if name == "migrate" else "service_healthy"
            assert how["condition"] == wanted
            assert (wanted == "service_healthy") == ("healthcheck" in services[name])
        for context in [service["build"]] if "build" in service else []:
            assert (EXAMPLES / context / "Dockerfile").exists()
    assert (EXAMPLES / instructions()["COPY"].split()[0]).exists()
    database = services["database"]["environment"]
    settings = services["worker"]["environment"]
    assert settings["PGPASSWORD"] == database["POSTGRES_PASSWORD"]
    assert settings["SA_JOBQUEUE_DATABASE_URL"].endswith(
        f"://{database['POSTGRES_USER']}@database/{database['POSTGRES_DB']}"
    )


def test_the_async_fixture_works_with_asyncpg_too(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The how-to of tests makes the tables and a session with the driver of the application, which is its own choice."""
    page = parse(ROOT / "docs" / "howto" / "testing.md")
    (source,) = (
        text for one in page.examples() if tab_of(one) == "async" and (text := str(one.parsed)).startswith("# conftest")
    )
    shop = ModuleType("shop")
    shop.engine = create_async_engine(driver_url(empty_database_url, "asyncpg"))  # type: ignore[attr-defined]
    shop.Base = type("Base", (DeclarativeBase,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop", shop)
    fixtures: dict[str, Any] = {}
    exec(re.sub(r"^@pytest.fixture.*$", "", source, flags=re.MULTILINE), fixtures)

    async def count_jobs() -> list[int]:
        sessions = fixtures["session"](fixtures["tables"]())
        return [await session.scalar(select(func.count()).select_from(Job)) async for session in sessions]

    assert asyncio.run(count_jobs()) == [0]


def test_the_commands_in_the_examples_are_there() -> None:
    """Each `sa-jobqueue` command in them has the options that it is given."""
    for name in ("Dockerfile", "compose.yaml"):
        check_commands((EXAMPLES / name).read_text())


def test_the_manifest_for_kubernetes_fits_together() -> None:
    """The migration and the workers are of one image and one database; probes ask the port that the worker opens, and it has time to stop."""
    job, deployment = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]
    (migrate,), (worker,) = job["spec"]["template"]["spec"]["containers"], pod["spec"]["containers"]

    for container in (migrate, worker):
        assert container["command"][:3] == ["tini", "--", "sa-jobqueue"]
        check_commands(" ".join(container["command"][2:]))
    assert (migrate["image"], migrate["env"]) == (worker["image"], worker["env"])
    assert deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert {str(worker[probe]["httpGet"]["port"]) for probe in ("livenessProbe", "readinessProbe")} == {
        worker["command"][worker["command"].index("--metrics-port") + 1]
    }
    assert pod["spec"]["terminationGracePeriodSeconds"] > WorkerSettings().grace


def test_the_composition_works(services: dict[str, Any], empty_database_url: str, tmp_path: Path) -> None:
    """Its commands, in its order, in a folder as the image has it: an order is bought, and gets its receipt.

    The probe of the worker passes while it lives, and while the database is away; not when it was killed.
    """
    shutil.copy(EXAMPLES / "shop.py", tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "UVICORN_PORT": str(port)}
    there: dict[str, Any] = {"url": driver_url(empty_database_url, "psycopg"), "env": env, "cwd": tmp_path}
    test = services["worker"]["healthcheck"]["test"]
    probe = ("sh", "-c", test[1].replace("$$", "$"))
    assert test[0] == "CMD-SHELL"

    migrated = run_command(command=services["migrate"]["command"], **there)
    assert migrated.returncode == 0, migrated.stderr
    with ExitStack() as running:
        web = running.enter_context(start_command(command=services["web"]["command"], **there))
        worker = running.enter_context(start_command(command=json.loads(instructions()["CMD"]), **there))
        web.wait_for("Uvicorn running on")
        bought = urllib.request.Request(f"http://127.0.0.1:{port}/orders?total=42", method="POST")
        with urllib.request.urlopen(bought, timeout=30) as answer:
            assert answer.read() == b'{"order":1}'
        wait_until(
            lambda: (
                urllib.request.urlopen(f"http://127.0.0.1:{port}/orders/1", timeout=30).read() == b'{"receipt":true}'
            )
        )
        assert run_command(command=probe, **there).returncode == 0
        worker.kill()
    dead = run_command(command=probe, **there)
    assert (dead.returncode, "there is no worker on " in dead.stdout) == (1, True), dead
    assert run_command(command=probe, **there | {"url": "postgresql://me@127.0.0.1:1/nowhere"}).returncode == 0


def test_an_order_is_approved_by_a_click(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link in the mail shows the question, and a click on Yes ships the order."""
    monkeypatch.setenv("SA_JOBQUEUE_DATABASE_URL", driver_url(database_url, "psycopg"))
    monkeypatch.setenv("HOOKS_KEYS", "a-key-of-the-shop")
    monkeypatch.syspath_prepend(EXAMPLES)
    with TestClient(importlib.import_module("approval_shop").app) as client:
        order = client.post("/orders?total=42").json()["order"]
        link = wait_until(lambda: client.get(f"/orders/{order}").json()["link"])
        path = link.removeprefix("http://127.0.0.1:8000")
        wait_until(lambda: "Ship order 1?" in client.get(path).text)
        assert client.post(path, data={"payload": "true"}).status_code == 200
        wait_until(lambda: client.get(f"/orders/{order}").json()["state"] == "shipped")


def test_the_documents_are_read(database_url: str, tmp_path: Path) -> None:
    """Some are poisoned: a report is made of the others, the failed jobs are retried when that is mended, and the tree shows it."""
    shutil.copy(EXAMPLES / "documents.py", tmp_path)
    url = driver_url(database_url, "psycopg")

    def run(*arguments: str, **options: Any) -> str:
        done = run_command(*arguments, url=url, cwd=tmp_path, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def work() -> None:
        run("work", "--app", "documents:registry", "--queue", "default=4", "--drain")

    id = run(command=(sys.executable, "documents.py")).strip()
    work()
    tree = output("workflow", "show", id, url=url)
    assert tree.splitlines()[:2] == [f"workflow {id} documents: failed", "7 completed, 2 failed, 3 cancelled"]
    assert "documents.read failed: poison-1 is no document" in tree
    failed = [node["id"] for node in as_json("workflow", "show", id, url=url)["nodes"] if node["status"] == "failed"]
    (tmp_path / "mended").touch()
    for job in failed:
        output("workflow", "retry", id, "--from", str(job), url=url)
    work()
    assert output("workflow", "show", id, url=url).splitlines()[:2] == [
        f"workflow {id} documents: completed",
        "12 completed",
    ]

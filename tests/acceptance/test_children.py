"""Child processes of real workers: kill -9 of the worker, signals, scripts, and where their sessions come from."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import psutil
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import JobContext, JobStatus, Registry, Worker, WorkerSettings, enqueue, task
from sa_jobqueue.migrations import upgrade_database
from tests.acceptance.conftest import Shop
from tests.support import heavy
from tests.support.commands import ROOT, start_command
from tests.support.nightly import nightly
from tests.support.waiting import wait_until

HEAVY = "tests.support.heavy:registry"


@pytest.fixture
def heavy_shop(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("HEAVY_FOLDER", str(shop.folder))
    shop.execute(text("DROP TABLE IF EXISTS effect"))
    shop.execute(text("CREATE TABLE effect (id serial, job_id bigint, note text, pid integer)"))
    return shop


def notes(shop: Shop) -> list[str]:
    with shop.engine.connect() as connection:
        return list(connection.scalars(text("SELECT note FROM effect ORDER BY note")))


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("name", ["matching", *nightly("held")])
def test_the_children_of_a_worker_that_is_killed_die_with_it(heavy_shop: Shop, name: str) -> None:
    """By kill -9 while a handler computes, also in C code that lets no other thread run. Another worker does the job."""
    shop, handler = heavy_shop, {"held": heavy.held, "matching": heavy.match_for_ever}[name]
    (id,) = shop.add(enqueue(handler, "a"))
    with shop.work(app=HEAVY) as worker:
        (pid,) = shop.wait_said("started-a")
        worker.process.send_signal(signal.SIGKILL)
        wait_until(lambda: is_gone(pid))
    assert notes(shop) == []
    shop.go("a")
    shop.lose(id)
    with shop.work(app=HEAVY):
        (job,) = shop.wait_for(id)
    assert (job.rescues, notes(shop)) == (1, ["a"])


def test_children_die_with_their_worker_although_a_fork_of_it_lives_on(heavy_shop: Shop) -> None:
    """A process that a handler on a thread has forked does not keep their pipes open."""
    shop = heavy_shop
    shop.add(enqueue(heavy.held, "a"))
    with shop.work(app=HEAVY) as worker:
        (pid,) = shop.wait_said("started-a")
        shop.add(enqueue(heavy.fork, "b"))
        (forked,) = shop.wait_said("forked-b")
        try:
            worker.process.send_signal(signal.SIGKILL)
            wait_until(lambda: is_gone(pid))
            assert not is_gone(forked)
        finally:
            os.kill(forked, signal.SIGKILL)


def test_a_child_finds_the_tables_in_another_schema(heavy_shop: Shop) -> None:
    """And behind a pooler it relies on no setting of a session, as its worker."""
    upgrade_database(heavy_shop.url, schema="jobs")
    engine = create_engine(heavy_shop.url, execution_options={"schema_translate_map": {"sa_jobqueue": "jobs"}})
    there = Shop(heavy_shop.url, engine, heavy_shop.folder, schema="jobs")
    (id,) = there.add(enqueue(heavy.effect, "a"))
    with there.work("--pooled", "--no-listen", app=HEAVY):
        there.wait_for(id)
    engine.dispose()
    assert notes(heavy_shop) == ["a"]


def test_signals_are_the_workers(heavy_shop: Shop) -> None:
    """A service manager sends SIGTERM to all processes: the child goes on, and its job ends in the grace time."""
    shop = heavy_shop
    (id,) = shop.add(enqueue(heavy.held, "a"))
    with shop.work(app=HEAVY) as worker:
        (pid,) = shop.wait_said("started-a")
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
        worker.process.send_signal(signal.SIGTERM)
        worker.wait_for("finishing what is running")
        shop.go("a")
        assert worker.wait() == 0
    assert (shop.job(id).status, shop.job(id).rescues, notes(shop)) == (JobStatus.COMPLETED, 0, ["a"])
    assert is_gone(pid)


def test_a_drain_waits_for_children(heavy_shop: Shop) -> None:
    """`--drain` ends when nothing is due: their jobs have ended by then. Children are replaced meanwhile."""
    shop = heavy_shop
    ids = shop.add(*(enqueue(heavy.effect, str(number)) for number in range(3)))
    with shop.work("--drain", "--queue=default=1", "--max-child-jobs=2", app=HEAVY) as worker:
        assert worker.wait() == 0
    assert {shop.job(id).status for id in ids} == {JobStatus.COMPLETED}
    assert notes(shop) == list("012")


# ---- scripts, and sessions

SCRIPT = """
import sys
from pathlib import Path
from sqlalchemy import text
from sa_jobqueue import JobContext, Registry, Worker, task

registry = Registry()

@task(name="script.write", registry=registry, executor="process")
def write(ctx: JobContext, note: str) -> None:
    ctx.session.execute(text("INSERT INTO effect (job_id, note) VALUES (:id, :note)"), {"id": ctx.job_id, "note": note})

"""
GUARDED = """
if __name__ == "__main__":
    Worker(sys.argv[1], {"default": 2}, registry=registry).run(until_idle=True)
"""
UNGUARDED = """
Worker(sys.argv[1], {"default": 2}, registry=registry).run(until_idle=True)
"""


def run_script(shop: Shop, folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    script = folder / "jobs.py"
    script.write_text(dedent(source), encoding="ascii")
    return subprocess.run(
        [sys.executable, str(script), shop.url],
        check=False, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_a_script_with_a_guard_works(heavy_shop: Shop, tmp_path: Path) -> None:
    """Its children import it again, under another name, and find its tasks."""
    (id,) = heavy_shop.add(enqueue("script.write", note="a"))
    ended = run_script(heavy_shop, tmp_path, SCRIPT + GUARDED)
    assert ended.returncode == 0, ended.stderr
    assert (heavy_shop.job(id).status, notes(heavy_shop)) == (JobStatus.COMPLETED, ["a"])


def test_a_script_without_a_guard_is_refused(heavy_shop: Shop, tmp_path: Path) -> None:
    """Before any job is claimed, with what to write."""
    (id,) = heavy_shop.add(enqueue("script.write", note="a"))
    ended = run_script(heavy_shop, tmp_path, SCRIPT + UNGUARDED)
    assert ended.returncode != 0
    assert 'put it under `if __name__ == "__main__":`' in ended.stderr.splitlines()[-1]
    assert heavy_shop.job(id).status == JobStatus.QUEUED


def test_a_worker_that_the_application_makes_gives_children_its_sessions(heavy_shop: Shop) -> None:
    """`--app module:function` is called in the child, too, where it makes the engine that the worker has."""
    heavy_shop.add(enqueue("children.named", note="a"))
    app, env = "tests.acceptance.test_children:make_worker", {"SHOP_URL": heavy_shop.url}
    with start_command("work", f"--app={app}", "--drain", url=heavy_shop.url, env=env) as worker:
        assert worker.wait() == 0, worker.output
    assert notes(heavy_shop) == ["a by children"]


own_registry = Registry()


@task(registry=own_registry, name="children.named", executor="process", max_attempts=1)
def write_with_name(ctx: JobContext, note: str) -> None:
    """Writes, with the name of its connection."""
    ctx.session.execute(
        text("INSERT INTO effect (job_id, note) VALUES (:id, :note || ' by ' || current_setting('application_name'))"),
        {"id": ctx.job_id, "note": note},
    )


def make_worker() -> Worker:
    """A worker on an engine of the application's own."""
    engine = create_engine(os.environ["SHOP_URL"], connect_args={"application_name": "children"})
    return Worker(engine, {"default": 2}, registry=own_registry, settings=WorkerSettings(poll=0.1))


@pytest.mark.parametrize("given", ["engine", *nightly("sessionmaker")])
def test_neither_an_engine_nor_a_sessionmaker_of_the_workers_own_reaches_a_child(heavy_shop: Shop, given: str) -> None:
    """Its options and listeners would be lost: ctx.session refuses, and says what to do. Only the registry's sessionmaker
    does, because the child imports it.
    """
    (id,) = heavy_shop.add(enqueue("children.named", note="a"))
    maker = sessionmaker(heavy_shop.engine, class_=Session) if given == "sessionmaker" else None
    database = heavy_shop.engine if given == "engine" else heavy_shop.url
    Worker(database, {"default": 2}, registry=own_registry, sessionmaker=maker).run(until_idle=True)
    job = heavy_shop.job(id)
    assert [error["type"] for error in job.errors] == ["sa_jobqueue.errors.SessionUnavailable"]
    assert "give it a URL, or set Registry(sessionmaker=...)" in job.errors[0]["message"]

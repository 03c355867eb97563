"""`sa-jobqueue work --app shop:worker`: the application makes the Worker, the command runs it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Engine, make_url, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from tests.support.commands import run_command, start_command
from tests.support.databases import driver_url
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.usefixtures("measured")

#: An application with SQLModel, whose sessions have an `exec` of their own.
SHOP = """
import os
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
from sqlmodel import Field, Session, SQLModel, select

from sa_jobqueue import JobContext, Registry, Worker, WorkerSettings, task

engine = create_engine(os.environ["SHOP_URL"])
sessions = sessionmaker(engine, class_=Session)
registry = Registry(sessionmaker=sessions)


class Hero(SQLModel, table=True):
    id: int | None = Field(default=None, primary_key=True)
    name: str


@task(registry=registry, name="shop.rename")
def rename(ctx: JobContext, name: str) -> None:
    hero = ctx.session.exec(select(Hero)).one()
    hero.name = name


def make_worker() -> Worker:
    with open("made.txt", "a") as made:
        made.write(f"{os.getpid()}\\n")
    return Worker(engine, {"default": 2}, registry=registry, settings=WorkerSettings(lease=2, poll=0.1, grace=40))


def broken() -> Worker:
    raise KeyError("STRIPE_KEY")


nothing = object()
"""


@pytest.fixture
def shop(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The application, in a folder."""
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.setenv("SHOP_URL", driver_url(database_url, "psycopg"))
    return tmp_path


@pytest.fixture
def hero(engine: Engine) -> None:
    """Its table, with one hero."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE hero (id serial PRIMARY KEY, name text NOT NULL)"))
        connection.execute(text("INSERT INTO hero (name) VALUES ('a')"))


def name_in(engine: Engine) -> str:
    """The hero's name."""
    with engine.connect() as connection:
        return connection.execute(text("SELECT name FROM hero")).scalar_one()


def add(engine: Engine, name: str) -> int:
    with Session(engine) as session:
        session.add(job := Job(task="shop.rename", args={"name": name}))
        session.commit()
        return job.id


@pytest.mark.usefixtures("hero")
def test_sqlmodels_exec_works_by_the_sessionmaker_of_the_registry(
    engine: Engine, database_url: str, shop: Path
) -> None:
    """`Registry(sessionmaker=...)` is enough: `work` takes the sessions of its handlers from there."""
    id = add(engine, "b")
    worked = run_command("work", "--app=shop:registry", "--drain", url=database_url, cwd=shop)
    assert worked.returncode == 0, worked.stderr
    with Session(engine) as session:
        assert session.get_one(Job, id).status == JobStatus.COMPLETED, session.get_one(Job, id).errors
    assert name_in(engine) == "b"
    assert "does not serve" not in worked.stderr


def test_work_names_the_queues_of_its_tasks_that_it_does_not_serve(shop: Path, database_url: str) -> None:
    """So a worker that does nothing, because --queue is misspelt, says why."""
    command = ("work", "--app", "shop:registry", "--drain", "--queue", "defualt")
    misspelt = run_command(*command, url=database_url, cwd=shop)
    assert "tasks also use queues that this worker does not serve: default" in misspelt.stderr


@pytest.mark.usefixtures("hero")
def test_the_applications_worker_is_made_in_each_process(engine: Engine, database_url: str, shop: Path) -> None:
    """By a function; its engine, queues and settings are its own, the processes and signals the command's.

    The database of the environment is not looked at.
    """
    id = add(engine, "c")
    nowhere = "postgresql://me@127.0.0.1:1/nowhere"
    with start_command("work", "--app=shop:make_worker", "--processes=2", url=nowhere, cwd=shop) as supervisor:
        supervisor.wait_for("worker process 2 started")

        def completed() -> bool:
            with Session(engine) as session:
                return session.scalars(select(Job.status).where(Job.id == id)).one() == JobStatus.COMPLETED

        wait_until(completed)
        running = {child.pid for child in supervisor.children()}
        wait_until(lambda: running <= made_in(shop))
        assert supervisor.pid not in made_in(shop)
        url = make_url(database_url)
        place = f"{url.database} on {url.host or url.query['host']}"
        assert supervisor.output.count(f"serving default=2 in schema sa_jobqueue of {place}") == 1
        supervisor.send(signal.SIGTERM)
        supervisor.wait_for("for at most 40 s")  # the supervisor waits for as long as the Worker says
        assert supervisor.wait() == 0
    assert name_in(engine) == "c"


def made_in(shop: Path) -> set[int]:
    return {int(line) for line in (shop / "made.txt").read_text().split()}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["make_worker", "--queue=mail=3"], "--queue: --app names a Worker, which decides this on its own"),
        (["broken", "--processes=2"], "--app shop:broken: calling it failed: KeyError: 'STRIPE_KEY' (shop.py, line "),
        *(
            pytest.param(*one, marks=pytest.mark.nightly)
            for one in [
                (
                    ["make_worker", "--lease=9", "--no-listen", "--processes=2"],
                    "--lease, --listen: --app names a Worker",
                ),
                (["make_worker", "--database-url=postgresql:///x"], "--database-url: --app names a Worker"),
                (["make_worker", "--app=shop:make_worker"], "--app names several Workers"),
                (["nothing"], "is of type object, not a Registry, a Worker, or a function that makes a Worker"),
            ]
        ),
    ],
    ids=lambda one: "".join(one) if isinstance(one, list) else "",
)
def test_what_a_worker_says_itself_is_refused_on_the_command_line(shop: Path, options: list[str], reason: str) -> None:
    """In one line, before anything is started."""
    assert reason in one_line(shop, *options)


def one_line(shop: Path, app: str, *options: str, **env: str) -> str:
    refused = run_command("work", f"--app=shop:{app}", *options, cwd=shop, env=env)
    assert refused.returncode == 2, refused
    (line,) = refused.stderr.splitlines()
    return line


def test_the_schema_is_looked_for_where_the_worker_is(shop: Path, database_url: str, empty_database_url: str) -> None:
    """Not where the environment says; nor do the queues there count."""
    elsewhere = {"SA_JOBQUEUE_DATABASE_URL": database_url, "SA_JOBQUEUE_QUEUE": "mail=7"}
    empty = driver_url(empty_database_url, "psycopg")
    assert "run `sa-jobqueue migrate`" in one_line(shop, "make_worker", SHOP_URL=empty, **elsewhere)


def test_enqueue_takes_the_tasks_of_a_worker(database_url: str, shop: Path) -> None:
    """So one SA_JOBQUEUE_APP serves all commands."""
    refused = run_command("enqueue", "shop.rename", '{"name": 3}', "--app=shop:make_worker", url=database_url, cwd=shop)
    assert refused.returncode == 2
    assert "task 'shop.rename'" in refused.stderr or "name" in refused.stderr


#: Runs a command as process 1, as a container does.
AS_FIRST = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]


@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*AS_FIRST, "true"], check=False, capture_output=True).returncode,
    reason="this system gives no process namespace",
)
@pytest.mark.parametrize("module", ["typer", "slow_shop"])
def test_as_process_1_a_sigterm_ends_it_while_it_imports_its_commands_or_the_application(
    tmp_path: Path, module: str
) -> None:
    """The system drops a signal that process 1 has no handler for: it would serve until it is killed."""
    (tmp_path / f"{module}.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(600)\n")
    command = [*AS_FIRST, sys.executable, "-m", "sa_jobqueue", "work", "--app", "slow_shop"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as outer:
        assert outer.stdout is not None
        assert outer.stdout.readline() == b"importing\n"
        (inner,) = psutil.Process(outer.pid).children()
        inner.send_signal(signal.SIGTERM)
        try:
            assert outer.wait(PATIENCE) == 128 + signal.SIGTERM
        finally:
            outer.kill()

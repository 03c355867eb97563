"""`bench`: what it says, that it keeps to its own schema, and that nothing of it is left."""

from __future__ import annotations

import signal
import threading
from multiprocessing.context import SpawnProcess
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, func, insert, make_url, select
from sqlalchemy.orm import Session

from sa_jobqueue import Job
from sa_jobqueue.trials.bench.processes import SCHEMA, Ready, place, processes
from sa_jobqueue.util.urls import database_url as as_url
from tests.support import pooler
from tests.support.cli import as_json, output, refused
from tests.support.commands import alive, start_command
from tests.support.databases import connect
from tests.support.nightly import nightly
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def exists(url: str, what: str = f"to_regnamespace('{SCHEMA}')") -> bool:
    """Whether the schema of the measurement, or something in it, is there."""
    with connect(url) as connection:
        row = connection.execute(f"SELECT {what} IS NOT NULL").fetchone()
    assert row is not None
    return bool(row[0])


def workers_serve(url: str) -> bool:
    """Whether the measurement has workers at work now."""
    if not exists(url, f"to_regclass('{SCHEMA}.worker')"):
        return False
    with connect(url) as connection:
        return connection.execute(f"SELECT 1 FROM {SCHEMA}.worker").fetchone() is not None


@pytest.fixture
def database_url(database_url: str) -> str:
    """Past the pooler, behind which the commands refuse to begin."""
    return pooler.direct(database_url)


@pytest.fixture
def empty_database_url(empty_database_url: str) -> str:
    """The same."""
    return pooler.direct(empty_database_url)


@pytest.mark.parametrize("kind", ["--async", *nightly("--sync")])
@pytest.mark.usefixtures("measured")
def test_drain_says_how_fast_the_workers_were(empty_database_url: str, kind: str) -> None:
    """Every job counts, with either kind of handler and several processes; a database without our tables will do."""
    said = as_json("bench", "drain", "--jobs=300", "--processes=2", "--concurrency=5", kind, url=empty_database_url)

    assert (said["measure"], said["jobs"], said["processes"]) == ("drain", 300, 2)
    assert said["handlers"] == kind.removeprefix("--")
    assert said["jobs_per_second"] == pytest.approx(300 / said["seconds"])
    assert not exists(empty_database_url)


@pytest.mark.nightly
@pytest.mark.usefixtures("measured")
def test_steady_says_how_long_jobs_took(empty_database_url: str) -> None:
    """From the enqueue to the start of the handler, to the completion, and both together."""
    said = as_json("bench", "steady", "--rate=50", "--seconds=1", "--payload-bytes=100", url=empty_database_url)

    assert said["jobs"] == 50
    assert 0 < said["jobs_per_second"] <= 50
    for span in ("enqueue_to_start", "start_to_completed", "enqueue_to_completed"):
        times = said[span]
        assert 0 <= times["p50"] <= times["p95"] <= times["p99"] <= times["max"]
    assert said["enqueue_to_completed"]["max"] >= said["enqueue_to_start"]["max"]
    assert not exists(empty_database_url)


@pytest.mark.nightly
@pytest.mark.usefixtures("measured")
def test_enqueue_says_how_fast_jobs_are_made(empty_database_url: str) -> None:
    """By one client, by several, and in bulk."""
    said = as_json("bench", "enqueue", "--jobs=200", "--seconds=0.3", "--concurrency=3", url=empty_database_url)

    assert said["clients"] == 3
    assert min(said["one_client"], said["concurrent"], said["bulk"]) > 0
    assert not exists(empty_database_url)


def test_a_single_job_can_be_drained_and_the_users_own_jobs_are_left_alone(database_url: str, engine: Engine) -> None:
    """It may be claimed and done between two looks at it. What waits in the usual schema waits there afterwards.

    People get a table, and no bar where there is no terminal: two lines, the headings and the figures.
    """
    with Session(engine) as session:
        session.execute(insert(Job).values(task="shop.send", args={}))
        session.commit()

    heading, figures = output("bench", "drain", "--jobs=1", url=database_url).splitlines()

    assert heading.split() == ["JOBS", "TIME", "JOBS/S"]
    assert figures.split()[0] == "1"
    with Session(engine) as session:
        assert session.execute(select(Job.task, Job.claims)).all() == [("shop.send", 0)]
        assert session.scalar(select(func.count()).select_from(Job)) == 1


def test_a_schema_of_that_name_that_is_not_ours_is_left_alone(empty_database_url: str) -> None:
    """The command says so on one line, and touches nothing in it."""
    with connect(empty_database_url) as connection:
        connection.execute(f"CREATE SCHEMA {SCHEMA}")
        connection.execute(f"CREATE TABLE {SCHEMA}.job (precious text)")

    said = refused("bench", "drain", "--jobs=10", url=empty_database_url)

    assert f"the schema '{SCHEMA}' exists" in said
    assert "--database-url" in said
    with connect(empty_database_url) as connection:
        assert connection.execute(f"SELECT precious FROM {SCHEMA}.job").fetchall() == []


def test_only_one_measurement_runs_in_a_database_at_a_time(empty_database_url: str) -> None:
    """The second one is told so, and the first one's schema stays."""
    with place(as_url(empty_database_url)):
        said = refused("bench", "enqueue", url=empty_database_url)

        assert "another benchmark is running" in said
        assert exists(empty_database_url)
    assert not exists(empty_database_url)


def wait_for_the_end(ready: Ready) -> None:
    """Waits for the end, also when it is let go."""
    ready().recv()


@pytest.mark.parametrize("hears", ["main thread", *nightly("another thread")])
def test_a_process_whose_start_is_interrupted_is_ended(monkeypatch: pytest.MonkeyPatch, hears: str) -> None:
    """It would hold locks that the cleaning up waits for."""
    started: list[SpawnProcess] = []
    start, go, heard = SpawnProcess.start, threading.Event(), threading.Event()

    def hear() -> None:
        go.wait(30)
        signal.raise_signal(signal.SIGINT)
        heard.set()

    if hears == "another thread":
        threading.Thread(target=hear).start()  # now: what is started while signals wait has them wait, too

    def interrupted(process: SpawnProcess) -> None:
        start(process)
        started.append(process)
        if hears == "main thread":
            signal.raise_signal(signal.SIGINT)
        else:
            go.set()
            heard.wait(30)

    monkeypatch.setattr(SpawnProcess, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), processes(2, wait_for_the_end):
        raise AssertionError("it was let go")
    assert [process.is_alive() for process in started] == [False]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.nightly)]
)
@pytest.mark.usefixtures("measured")
def test_it_cleans_up_when_it_is_interrupted(empty_database_url: str, number: signal.Signals, code: int) -> None:
    """Ctrl-C reaches the whole group, as from a terminal, and SIGTERM the command: no schema, no process, no traceback."""
    with start_command("bench", "steady", "--rate=20", "--seconds=120", url=empty_database_url) as bench:
        wait_until(lambda: workers_serve(empty_database_url))
        children = bench.children()
        (bench.send_group if number == signal.SIGINT else bench.send)(number)

        assert bench.wait() == code
        assert "Traceback" not in bench.output
        wait_until(lambda: not any(map(alive, children)))
    assert not exists(empty_database_url)


@pytest.mark.nightly
def test_what_a_killed_run_has_left_is_replaced(empty_database_url: str) -> None:
    """After SIGKILL the next run cleans up, because it knows that the schema is its own."""
    with start_command("bench", "steady", "--rate=20", "--seconds=120", url=empty_database_url) as bench:
        wait_until(lambda: workers_serve(empty_database_url))
        bench.kill_group()
    assert exists(empty_database_url)
    with connect(empty_database_url) as connection:
        # Its server processes notice that after a while.
        wait_until(lambda: others(connection) == 0)

    assert as_json("bench", "drain", "--jobs=20", url=empty_database_url)["jobs"] == 20
    assert not exists(empty_database_url)


def others(connection: psycopg.Connection[Any]) -> int:
    """How many other clients this database has."""
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.nightly
@pytest.mark.usefixtures("measured")
def test_an_error_in_another_process_is_one_line_and_leaves_nothing(empty_database_url: str) -> None:
    """More clients than the role may have connections."""
    whole = make_url(empty_database_url)
    role = f"few_{whole.database}"
    with connect(empty_database_url) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'few' CONNECTION LIMIT 8")
        connection.execute(f"GRANT CREATE ON DATABASE {whole.database} TO {role}")
    url = whole.set(username=role, password="few").render_as_string(hide_password=False)

    said = refused("bench", "enqueue", "--concurrency=40", "--seconds=0.2", "--jobs=10", url=url)

    assert "too many connections" in said
    wait_until(lambda: not exists(empty_database_url))
    with connect(empty_database_url) as connection:
        connection.execute(f"DROP OWNED BY {role}")
        connection.execute(f"DROP ROLE {role}")


def test_bench_without_a_database_is_one_line() -> None:
    """Before anything is measured."""
    said = refused("bench", "drain", url="postgresql://nobody@127.0.0.1:1/nowhere")

    assert "the database does not answer" in said


@pytest.mark.parametrize("arguments", [["drain", "--jobs=0"], ["steady", "--rate=0"], ["drain", "--schema=mine"]])
def test_bench_refuses_options_out_of_range(arguments: list[str]) -> None:
    """The line points to the help of its own command."""
    assert f"(see sa-jobqueue bench {arguments[0]} --help)" in refused("bench", *arguments)

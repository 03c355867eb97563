"""Waiting for the end of jobs, and what goes wrong meanwhile: lost connections, killed processes, forks, roles without rights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError

from sa_jobqueue import Registry, enqueue, task, wait_for
from sa_jobqueue.errors import ResultError
from sa_jobqueue.migrations.grants import Can, grant_statements
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.waiting import listener as wait
from sa_jobqueue.waiting import subscription
from tests.support import pooler
from tests.support.awaiting import PATIENCE, TOLD, awaited, running, waiting_over
from tests.support.commands import CLI, environment
from tests.support.databases import connect
from tests.support.factory import completed
from tests.support.waiting import wait_until
from tests.support.working import add_one, lapse, long_healthy, working

pytestmark = pytest.mark.usefixtures("soon_closed")

#: Waits for the job whose id is given, on the database whose URL is.
WAITS = "import sys; from sqlalchemy import create_engine; from sa_jobqueue import wait_for; print(wait_for(create_engine(sys.argv[1]), int(sys.argv[2]), timeout=60))"


def end(engine: Engine, id: int) -> None:
    with engine.begin() as connection:
        default_store.apply(connection, [completed(id)])


@pytest.mark.usefixtures("told_only")
@pytest.mark.parametrize("driver", TOLD)
def test_a_lost_connection_is_made_again(
    engine: Engine, database_url: str, threads: ThreadPoolExecutor, driver: str
) -> None:
    """What ends afterwards is told; the caller notices nothing."""
    id = running(engine)
    waits = threads.submit(waiting_over(driver), database_url, id)
    wait_until(lambda: awaited(engine) == {id})
    engine.dispose()
    with connect(database_url) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchall()
        assert ended
        wait_until(
            lambda: connection.execute("SELECT count(*) FROM sa_jobqueue.awaited").fetchone() == (2,),
            message="the job to be awaited by a second connection",
        )
    end(engine, id)

    assert waits.result().is_completed


@pytest.mark.parametrize("driver", TOLD)
def test_a_server_that_does_not_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, database_url: str, threads: ThreadPoolExecutor, driver: str
) -> None:
    """The connection is made again as often as needed, and who waits goes on."""
    if pooler.is_pooled(database_url):
        pytest.skip("its connections are the pooler's")
    monkeypatch.setattr(subscription, "_SILENCE", 0.3)
    monkeypatch.setattr(subscription, "_LAST_POLL", 0.1)
    monkeypatch.setattr(wait, "CHECK", 0.1)
    id = running(engine)
    waits = threads.submit(waiting_over(driver), database_url, id)
    wait_until(lambda: awaited(engine) == {id})
    with engine.connect() as locking:
        locking.execute(text("LOCK TABLE sa_jobqueue.job"))
        with connect(database_url) as watching:
            seen: set[int] = set()

            def looked_twice() -> bool:
                late = "SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'sa_jobqueue.job'::regclass"
                seen.update(pid for (pid,) in watching.execute(late))
                return len(seen) >= 2

            wait_until(looked_twice, message="a second connection to look")
    end(engine, id)

    assert waits.result().is_completed


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "async psycopg", "asyncpg"])
def test_a_database_that_cannot_be_reached_is_an_error_and_not_a_hang(driver: str) -> None:
    """For the caller, at once, also if it would wait for ever."""
    with pytest.raises((DBAPIError, OSError), match=r"refused|failed"):
        waiting_over(driver)("postgresql+psycopg://unused@127.0.0.1:1/nowhere", 1)


def test_a_database_without_the_tables_is_an_error(empty_database_url: str) -> None:
    """It names what is missing."""
    engine = create_engine(empty_database_url)
    with pytest.raises(DBAPIError, match="sa_jobqueue"):
        wait_for(engine, 1, timeout=PATIENCE)
    engine.dispose()


def test_the_result_of_a_job_whose_worker_was_killed_arrives(
    engine: Engine, database_url: str, tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    """kill -9, a rescue by another worker, and then the result."""
    (tmp_path / "killed.py").write_text(
        "import time\nfrom sa_jobqueue import task\n\n\n@task(name='slow', record=True)\ndef slow() -> int:\n    time.sleep(600)\n    return 1\n"
    )
    id = add_one(engine, enqueue("slow"))
    waits = threads.submit(wait_for, engine, id, timeout=2 * PATIENCE)
    process = subprocess.Popen(
        [*CLI, "work", "--app", "killed", "--queue", "default=1"],
        cwd=tmp_path, env=environment(database_url), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until(lambda: status_of(engine, id) == "running")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    registry = Registry()

    @task(registry=registry, name="slow", record=True)
    def quick() -> int:
        return 2

    lapse(engine, id)
    long_healthy(engine)
    with working(database_url, registry):
        assert quick.result(waits.result()) == 2


def status_of(engine: Engine, id: int) -> str:
    with engine.connect() as connection:
        return str(connection.scalar(text("SELECT status FROM sa_jobqueue.job WHERE id = :id"), {"id": id}))


def test_a_process_that_is_killed_while_it_waits_leaves_nothing_for_long(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, url: str, threads: ThreadPoolExecutor
) -> None:
    """The gate closes by itself, and the next to wait drops what it had said."""
    if pooler.is_pooled(url):
        pytest.skip("behind a pooler nothing is said")
    id, other = running(engine), running(engine)
    process = subprocess.Popen([sys.executable, "-c", WAITS, url, str(id)], env=environment())
    wait_until(lambda: awaited(engine) == {id})
    process.send_signal(signal.SIGKILL)
    process.wait()

    with engine.begin() as connection:
        until = connection.scalar(
            text("SELECT last_value - extract(epoch FROM now()) FROM sa_jobqueue.gate_end"),
        )
        assert until is not None
        assert 0 < until <= subscription._HOLD + 1
        connection.execute(text("UPDATE sa_jobqueue.awaited SET expires_at = now()"))
    waits = threads.submit(wait_for, engine, other, timeout=PATIENCE)
    wait_until(lambda: awaited(engine) == {other})
    end(engine, other)
    assert waits.result().is_completed


def test_a_wait_is_said_again_before_it_expires(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, url: str, threads: ThreadPoolExecutor
) -> None:
    """However long it takes, the gate stays open and the row valid."""
    if pooler.is_pooled(url):
        pytest.skip("behind a pooler nothing is said")
    monkeypatch.setattr(subscription, "_HOLD", 0.4)
    id = running(engine)
    waits = threads.submit(wait_for, engine, id, timeout=PATIENCE)
    times: set[object] = set()

    def said() -> int:
        with engine.connect() as connection:
            times.update(connection.scalars(text("SELECT expires_at FROM sa_jobqueue.awaited")))
            return len(times)

    wait_until(lambda: said() >= 4)
    end(engine, id)
    assert waits.result().is_completed


@pytest.mark.usefixtures("measured")
def test_a_process_that_ends_says_no_more_that_it_waits(engine: Engine, url: str) -> None:
    """Also while the connection is open for the next wait, and nothing is printed at the end."""
    id = running(engine)
    end(engine, id)
    code = (
        f"{WAITS}; import threading; assert [one for one in threading.enumerate() if one.name == 'sa-jobqueue waiting']"
    )
    found = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code, url, str(id)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert "COMPLETED" in found.stdout
    assert awaited(engine) == set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.usefixtures("told_only")
def test_a_forked_child_waits_by_a_connection_of_its_own(engine: Engine, threads: ThreadPoolExecutor) -> None:
    """And the parent goes on with its own."""
    one, two = running(engine), running(engine)
    waits = threads.submit(wait_for, engine, one, timeout=PATIENCE)
    wait_until(lambda: awaited(engine) == {one})

    if (child := os.fork()) == 0:
        try:
            engine.dispose(close=False)
            os._exit(0 if wait_for(engine, two, timeout=PATIENCE).is_completed else 1)
        except BaseException:
            os._exit(2)
    wait_until(lambda: awaited(engine) == {one, two})
    end(engine, two)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    end(engine, one)

    assert waits.result().is_completed


@pytest.mark.parametrize(("can", "says"), [(Can.WAIT, True), (Can.READ, False)])
def test_a_role_that_may_wait_is_told_and_one_that_may_read_looks(
    engine: Engine, database_url: str, threads: ThreadPoolExecutor, can: Can, says: bool
) -> None:
    """No other right is needed for either."""
    if pooler.is_pooled(database_url):
        pytest.skip("a role is set for a session")
    id, role = running(engine), f"waits_{os.getpid()}_{can.value}"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role}"))
        for statement in grant_statements(role, [can]):
            connection.execute(text(statement))
    own = create_engine(database_url, connect_args={"options": f"-c role={role}"})
    try:
        waits = threads.submit(wait_for, own, id, timeout=PATIENCE)
        if says:
            wait_until(lambda: awaited(engine) == {id})
        end(engine, id)
        assert waits.result().is_completed
        assert not awaited(engine) or says
    finally:
        own.dispose()
        wait_until(lambda: awaited(engine) == set())
        with engine.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))


@pytest.mark.parametrize("column", ["result", "errors"])
def test_a_row_that_cannot_be_read_is_an_error_for_those_alone_who_wait_for_it(
    engine: Engine, url: str, threads: ThreadPoolExecutor, column: str
) -> None:
    """Whatever plain SQL has written there: a number with more digits than Python reads."""
    if pooler.is_pooled(url):
        pytest.skip("behind a pooler nothing is told")
    good, bad = running(engine), running(engine)
    waits = {id: threads.submit(wait_for, engine, id, timeout=PATIENCE) for id in (good, bad)}
    wait_until(lambda: awaited(engine) == {good, bad})
    with engine.begin() as connection:
        default_store.apply(connection, [completed(bad)])
        value = "jsonb_build_array(jsonb_build_object('n', repeat('9', 6000)::numeric))"
        connection.execute(text(f"UPDATE sa_jobqueue.job SET {column} = {value} WHERE id = {bad}"))

    with pytest.raises(ResultError, match=f"job {bad} has ended, but .* cannot be read: .*digits"):
        waits[bad].result()
    with pytest.raises(ResultError, match=f"job {bad} has ended"):
        wait_for(engine, [good, bad], timeout=PATIENCE)
    assert not waits[good].done()
    end(engine, good)
    assert waits[good].result().is_completed


def test_a_connection_that_may_not_write_looks(
    engine: Engine, url: str, threads: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """As where an operator has made all transactions of a role or a database read-only. Who waits gets the answer all the same."""
    if pooler.is_pooled(url):
        pytest.skip("it is set for a session")
    id = running(engine)
    reading = create_engine(url, connect_args={"options": "-c default_transaction_read_only=on"})
    waits = threads.submit(wait_for, reading, id, timeout=PATIENCE)
    wait_until(lambda: "the ends of jobs are not told" in caplog.text)
    end(engine, id)

    assert waits.result().is_completed
    assert awaited(engine) == set()
    reading.dispose()


def test_a_standby_is_looked_at(
    engine: Engine, url: str, threads: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """It refuses LISTEN, and so does a server that was not promoted yet."""
    id = running(engine)
    refusal = "DO $$ BEGIN RAISE read_only_sql_transaction USING MESSAGE = 'during recovery'; END $$"
    standby = create_engine(url, **pooler.engine_options(url))

    @event.listens_for(standby, "before_cursor_execute", retval=True)
    def refuse(_c: object, _cursor: object, statement: str, parameters: object, *_: object) -> tuple[str, object]:
        return (refusal if statement.startswith("LISTEN") else statement), parameters

    waits = threads.submit(wait_for, standby, id, timeout=PATIENCE)
    if not pooler.is_pooled(url):
        wait_until(lambda: "the ends of jobs are not told" in caplog.text)
        assert "during recovery" in caplog.text
    end(engine, id)

    assert waits.result().is_completed
    standby.dispose()

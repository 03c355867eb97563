"""`top` without a terminal: one picture, what it may do to the database, and what becomes of it without a database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, insert, text

from sa_jobqueue import Registry, enqueue, task
from sa_jobqueue.cli.config import Config
from sa_jobqueue.cli.place import open_engine
from sa_jobqueue.cli.top import Reader, Seen, read_picture
from sa_jobqueue.models import WorkerRow
from sa_jobqueue.statements import pause, pause_workflows
from tests.support.cli import output, refused
from tests.support.databases import connect
from tests.support.factory import make_job, make_jobs
from tests.support.limits import limit
from tests.support.waiting import wait_until
from tests.support.workflows import Flow
from tests.support.working import add, drain


def once(url: str, width: int = 140) -> list[str]:
    return [line.rstrip() for line in output("top", "--once", url=url, env={"COLUMNS": str(width)}).splitlines()]


def test_one_picture_has_queues_tasks_workers_and_failed_jobs(engine: Engine, url: str, registry: Registry) -> None:
    """Of a database on which a worker has worked, and another has died."""

    @task(registry=registry, name="shop.send")
    def send(ok: bool) -> None:
        if not ok:
            raise ValueError("no [bold]answer")

    add(engine, *(enqueue(send, True) for _ in range(3)), enqueue(send.options(max_attempts=1), False))
    drain(engine, registry)
    with engine.begin() as connection:
        make_jobs(connection, 2, queue="mail", run_at=timedelta(hours=-3))
        make_job(connection, queue="mail", run_at=timedelta(hours=1))
        held = "00000000-0000-0000-0000-000000000007"
        make_job(connection, "running", queue="slow", worker=held)
        connection.execute(
            insert(WorkerRow).values(
                id=held, host="web-1", pid=47, queues=["slow"], concurrency=5, version="1", memory=85_000_000, loop_lag=0.25,
                pressure="3 lock waits", seen_at=text("now() - interval '10 minutes'"),
            )
        )  # fmt: skip

    lines = once(url)

    assert lines[1] == "2 due · 3 queued · 1 running · 1 failed · 0 live workers, 1 stale"
    assert lines[2].startswith("/min of the last 5: 0.")
    found = {line.split()[0]: line.split() for line in lines[5:] if line}
    assert found["mail"][1:6] == ["2", "3h", "3", "0", "0"]
    assert found["mail"][-2:] == ["no", "worker"]
    assert found["slow"][3:4] == ["1"]
    assert found["shop.send"][-2:] == ["0", "1"]
    assert " ".join(found["web-1:47"]) == "web-1:47 slow 1/5 85 MB 0.25 s 10m ago stale · holds back: 3 lock waits"
    assert any(line.endswith("ValueError: no [bold]answer") for line in lines)


def test_workflows_are_counted_in_the_picture(engine: Engine, url: str) -> None:
    """Where there are any."""
    with engine.begin() as connection:
        flows = [Flow(connection, "a") for _ in range(4)]
        flows[0].fail("a")
        connection.execute(pause_workflows(flows[1].id)).all()
    assert once(url, 80)[4] == "workflows: 2 running · 1 paused · 1 failed"


def test_an_empty_database_has_a_picture(url: str) -> None:
    """With zeros, and with no sections."""
    lines = once(url, 80)
    assert lines[1] == "0 due · 0 queued · 0 running · 0 failed · 0 live workers"
    assert lines[-1] == "no jobs and no workers yet"


def test_without_a_terminal_it_prints_one_picture(url: str) -> None:
    """As with `--once`."""
    assert "0 due · 0 queued · 0 running" in output("top", url=url)
    assert "Invalid value" in refused("top", "--every", "0", url=url)


def test_a_queue_is_shown_with_its_limit_and_that_it_is_paused(engine: Engine, url: str) -> None:
    """Also when it has no job."""
    with engine.begin() as connection:
        make_job(connection, "running", queue="mail")
        limit(connection, "mail", running=3)
        connection.execute(pause("other"))
    found = {line.split()[0]: line for line in once(url)[5:] if line}
    assert " 1/3 " in found["mail"]
    assert re.search(r" paused \d+s$", found["other"])


def test_reading_takes_a_role_that_may_only_read(database_url: str) -> None:
    """The one of `grants --can read`."""
    with connect(database_url) as connection:
        connection.execute("CREATE ROLE top_reader LOGIN")
        connection.execute("ALTER ROLE top_reader SET default_transaction_read_only = on")
    try:
        output("grants", "--role", "top_reader", "--can", "read", "--apply", url=database_url)
        engine = create_engine(database_url)
        with engine.connect() as connection:
            connection.execute(text("SET ROLE top_reader"))
            connection.execute(text("SET TRANSACTION READ ONLY"))
            assert read_picture(connection, failures=5).working.queues == []
        engine.dispose()
    finally:
        with connect(database_url) as connection:
            connection.execute("DROP OWNED BY top_reader; DROP ROLE top_reader")


class Reading:
    """A reader on a database, and the statements that it executes."""

    def __init__(self, url: str, every: float = 0.05) -> None:
        self.engine = open_engine(Config(database_url=url))
        with self.engine.connect() as connection:
            picture = read_picture(connection, failures=5)
        self.begun: list[str] = []
        event.listen(self.engine, "before_cursor_execute", lambda c, cursor, sql, *_: self.begun.append(sql))
        self.reader = Reader(self.engine, Seen(picture), every=every)

    def read(self) -> Seen:
        return self.reader.read(failures=5)

    def read_until(self, condition: Any) -> Any:
        """Read again and again until this is true of what was read."""
        return wait_until(lambda: condition(self.read()))


@pytest.fixture
def reading(url: str) -> Iterator[Reading]:
    made = Reading(url)
    yield made
    made.reader.close()


def test_a_lost_connection_is_said_and_made_again(database_url: str, engine: Engine) -> None:
    """The last picture stays meanwhile; then there is a new one."""
    reading = Reading(database_url)
    with engine.begin() as connection:
        make_job(connection, queue="mail")
    try:
        before = reading.read()
        with connect(database_url) as connection:
            name = connection.info.dbname
        with connect(database_url.replace(f"/{name}", "/postgres")) as admin:
            admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
            engine.dispose()
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            lost = reading.read_until(lambda seen: seen.problem and seen)
            assert lost.picture.working.queues[0].name == before.picture.working.queues[0].name == "mail"
            assert lost.since is not None
            again = reading.read_until(lambda seen: "not currently accepting" in (seen.problem or "") and seen)
            assert again.since == lost.since
            admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        back = reading.read_until(lambda seen: seen.problem is None and seen)
        assert back.picture.working.now > lost.picture.working.now
        assert back.since is None
    finally:
        reading.reader.close()


def test_each_read_is_a_transaction_that_cannot_write(reading: Reading) -> None:
    """Whatever it executes, and nothing while it waits."""
    assert reading.read().took > 0
    connection = reading.reader._connection
    assert connection is not None
    assert connection.get_execution_options()["postgresql_readonly"] is True
    assert not connection.in_transaction()
    assert reading.begun
    assert not any(sql.lstrip().upper().startswith(("INSERT", "UPDATE", "DELETE")) for sql in reading.begun)


def test_a_slow_reading_is_followed_by_a_long_pause(reading: Reading) -> None:
    """So that reading takes a tenth of the time at most."""
    seen = reading.read()
    assert seen.pause == pytest.approx(max(0.05, seen.took * 10))

"""`top` without a terminal: one picture, what it may do to the database, and what becomes of it without one."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, delete, event, insert, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, Registry, enqueue, every, task
from sa_jobqueue.cli.config import Config
from sa_jobqueue.cli.place import open_engine
from sa_jobqueue.cli.top.controls import press
from sa_jobqueue.cli.top.read import read_job, read_picture
from sa_jobqueue.cli.top.reader import Reader, Wanted
from sa_jobqueue.cli.top.views import Stand
from sa_jobqueue.health.one_job import SHOWN
from sa_jobqueue.models import LimitRow, Schedule, WorkerRow
from sa_jobqueue.statements import pause_workflows
from sa_jobqueue.tasks.registry import TaskName
from tests.support.cli import output, refused
from tests.support.databases import connect
from tests.support.factory import make_job, make_jobs, row
from tests.support.limits import limit
from tests.support.waiting import wait_until
from tests.support.workflows import Flow
from tests.support.working import add, drain

ERROR = {
    "at": "2026-01-02T03:04:05+00:00",
    "attempt": 1,
    "type": "shop.Gone",
    "message": "no\x1b[2J answer",
    "traceback": "",
}


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


def test_without_a_terminal_it_says_what_to_do(url: str) -> None:
    """Exit code 2."""
    assert "--once prints one picture" in refused("top", url=url)
    assert "Invalid value" in refused("top", "--every", "0", url=url)


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
            assert read_picture(connection, failures=5, schedules=True).schedules == []
            assert read_job(connection, 1) is None
        engine.dispose()
    finally:
        with connect(database_url) as connection:
            connection.execute("DROP OWNED BY top_reader; DROP ROLE top_reader")


def test_a_job_with_long_arguments_is_read_without_them(engine: Engine) -> None:
    """They would be sent each second."""
    with engine.begin() as connection:
        id = make_job(
            connection, args={"x": random.Random(1).randbytes(2 * SHOWN).hex()}, meta={"tags": ["a"]}, errors=[ERROR]
        )
        found = read_job(connection, id)
    assert found is not None
    assert (found.job.args, found.job.meta, found.job.errors) == (None, {"tags": ["a"]}, [ERROR])


class Reading:
    """A reader on a database, and the statements that it executes."""

    def __init__(self, url: str, every: float = 0.05) -> None:
        self.engine = open_engine(Config(database_url=url))
        self.told = threading.Event()
        self.begun: list[str] = []
        with self.engine.connect() as connection:
            picture = read_picture(connection, failures=5)
        event.listen(self.engine, "before_cursor_execute", lambda c, cursor, sql, *_: self.begun.append(sql))
        self.reader = Reader(self.engine, picture, every=every, tell=self.told.set)

    def wait_for(self, condition: Any) -> Any:
        return wait_until(lambda: condition(self.reader.seen))

    def press(self, keys: str, stand: Stand) -> Stand:
        """Press keys, and carry out what they say."""
        for key in keys.split():
            stand, action = press(key, stand, self.reader.seen)
            if action is not None:
                done = self.reader.seen.done
                self.reader.do(action)
                self.wait_for(lambda seen: seen.done > done)  # noqa: B023
        return stand


@pytest.fixture
def reading(url: str) -> Iterator[Reading]:
    made = Reading(url)
    yield made
    made.reader.stop()


def test_a_lost_connection_is_said_and_made_again(database_url: str, engine: Engine) -> None:
    """The last picture stays meanwhile; then there is a new one."""
    reading = Reading(database_url)
    with engine.begin() as connection:
        make_job(connection, queue="mail")
    reading.reader.start()
    try:
        before = reading.wait_for(lambda seen: seen.picture.queues and seen)
        with connect(database_url) as connection:
            name = connection.info.dbname
        with connect(database_url.replace(f"/{name}", "/postgres")) as admin:
            admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
            engine.dispose()
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            lost = reading.wait_for(lambda seen: seen.problem and seen)
            assert lost.picture.queues[0].name == before.picture.queues[0].name == "mail"
            assert lost.since is not None
            again = reading.wait_for(lambda seen: "not currently accepting" in (seen.problem or "") and seen)
            assert again.since == lost.since
            admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        back = reading.wait_for(lambda seen: seen.problem is None and seen)
        assert back.picture.now > lost.picture.now
        assert back.since is None
    finally:
        reading.reader.stop()


def test_each_read_is_a_transaction_that_cannot_write(reading: Reading) -> None:
    """Whatever it executes, and nothing while it waits."""
    reading.reader.start()
    reading.wait_for(lambda seen: seen.took > 0)
    connection = reading.reader._connection
    assert connection is not None
    assert connection.get_execution_options()["postgresql_readonly"] is True
    assert not any(sql.lstrip().upper().startswith(("INSERT", "UPDATE", "DELETE")) for sql in reading.begun)


def test_a_slow_look_is_followed_by_a_long_pause(reading: Reading) -> None:
    """So that reading takes a tenth of the time at most."""
    reading.reader.start()
    seen = reading.wait_for(lambda seen: seen.took > 0 and seen)
    assert seen.pause == pytest.approx(max(0.05, seen.took * 10))


def test_a_failed_job_is_retried_and_a_schedule_paused(engine: Engine, reading: Reading) -> None:
    """By the statements that everyone uses; the answer says what came of it."""
    with engine.begin() as connection:
        id = make_job(connection, "failed", errors=[ERROR])
        other = make_job(connection)
    with Session(engine) as session:
        session.add(Schedule(every(300), TaskName("shop.report"), name="daily"))
        session.commit()
    reading.reader.start()
    reading.reader.read_again(Wanted(schedules=True))
    reading.wait_for(lambda seen: seen.picture.schedules and seen.picture.failures)

    stand = reading.press("f r y", Stand())
    assert reading.reader.seen.said == f"job {id} is queued again"
    reading.wait_for(lambda seen: not seen.picture.failures)
    reading.press("s p y", stand)
    assert reading.reader.seen.said == "schedule daily is paused"
    reading.wait_for(lambda seen: seen.picture.schedules[0]["paused_at"] is not None)
    reading.press("s p y", stand)
    assert reading.reader.seen.said == "schedule daily goes on"
    reading.reader.read_again(Wanted(job=other))
    assert reading.wait_for(lambda seen: seen.job and seen.job.job.id == other)
    reading.press("c y", Stand(view=stand.view.JOB, job=other))
    assert reading.reader.seen.said == f"job {other} is cancelled, or was asked to stop"
    with engine.connect() as connection:
        assert (row(connection, id).status, row(connection, other).status) == ("queued", "cancelled")


def test_a_queue_is_paused_and_resumed(engine: Engine, reading: Reading) -> None:
    """It is shown with its limit meanwhile, also when it has no job any more."""
    with engine.begin() as connection:
        make_job(connection, "running", queue="mail")
        other = make_job(connection, queue="other")
        limit(connection, "mail", running=3)
    reading.reader.start()

    def queue(name: str) -> Any:
        return next((one for one in reading.reader.seen.picture.queues if one.name == name), None)

    reading.wait_for(lambda _: queue("mail") and (queue("mail").running, queue("mail").limit) == (1, 3))
    reading.press("p y", Stand(selected="other"))
    assert reading.reader.seen.said == "queue other is paused"
    with engine.begin() as connection:
        assert connection.scalar(select(LimitRow.paused_at).where(LimitRow.name == "other")) is not None
        connection.execute(delete(Job).where(Job.id == other))
    reading.wait_for(lambda _: queue("other") and queue("other").paused is not None and not queue("other").queued)
    reading.press("p y", Stand(selected="other"))
    assert reading.reader.seen.said == "queue other is resumed"
    reading.wait_for(lambda _: queue("other") is None)
    with engine.connect() as connection:
        assert connection.scalars(select(LimitRow.name)).all() == ["mail"]


def test_an_action_that_is_refused_says_why(engine: Engine, reading: Reading) -> None:
    """And changes nothing; here the transaction is read-only, as on a replica."""
    with engine.begin() as connection:
        id = make_job(connection, "failed")
    event.listen(reading.engine, "begin", lambda c: c.exec_driver_sql("SET TRANSACTION READ ONLY"))
    reading.reader.start()
    reading.wait_for(lambda seen: seen.picture.failures)
    reading.press("f r y", Stand())
    assert reading.reader.seen.said.startswith("not done: the database refused: cannot execute")
    with engine.connect() as connection:
        assert row(connection, id).status == "failed"

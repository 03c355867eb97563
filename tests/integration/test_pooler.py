"""What is particular behind PgBouncer in transaction mode; run with `--pgbouncer=listener` or `--pgbouncer=no-listener`.

That all else works there too is shown by running the other tests so.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, select
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobContext, JobStatus, Registry, enqueue, task
from sa_jobqueue.worker.connections.engines import Engines
from tests.support import pooler
from tests.support.cli import invoke, output, refused
from tests.support.databases import connect
from tests.support.waiting import wait_until
from tests.support.working import worker_for, working


@pytest.fixture(autouse=True)
def pooled_url(url: str) -> str:
    if not pooler.is_pooled(url):
        pytest.skip("not behind PgBouncer: --pgbouncer=listener or --pgbouncer=no-listener")
    return url


def finished(engine: Engine) -> int:
    with Session(engine) as session:
        return len(session.scalars(select(Job.id).where(Job.status == JobStatus.COMPLETED)).all())


def test_the_url_leads_through_the_pooler(url: str) -> None:
    """The process that a client is connected to is not the backend that answers."""
    with connect(url) as pooled, connect(pooler.direct(url)) as direct:
        for connection, same in ((pooled, False), (direct, True)):
            row: Any = connection.execute("SELECT pg_backend_pid()").fetchone()
            assert (connection.info.backend_pid == row[0]) is same


def test_doctor_says_that_listen_hears_nothing_through_it(url: str) -> None:
    """And what to do. Past the pooler all is well."""
    result = invoke("doctor", url=url)
    assert result.exit_code == 1
    assert [line.split()[:2] for line in result.stdout.splitlines() if line.startswith("problem")] == [
        ["problem", "wake-ups"]
    ]
    assert "LISTEN hears nothing" in result.stdout
    assert "behind a pooler, give workers a direct --listen-url" in result.stdout
    output("doctor", url=pooler.direct(url))


@pytest.mark.parametrize("command", [("bench", "drain", "--jobs=10"), ("demo",)], ids=" ".join)
def test_what_needs_the_server_itself_says_so(url: str, command: tuple[str, ...]) -> None:
    """Such commands keep others out by a lock of their session, and prepare statements."""
    assert "a pooler answers for the database" in refused(*command, url=url)


def test_a_worker_that_was_not_told_of_the_pooler_says_so(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """It goes on, because the pooler may pool sessions."""
    for pooled in (False, True):
        engines = Engines(url, async_engine=None, listen=False, listen_url=None, schema=None, slots=1, pooled=pooled)
        engines.check()
        asyncio.run(engines.dispose())
        assert ("a pooler answers for the database" in caplog.text) is not pooled
        caplog.clear()


def test_what_the_worker_sets_stays_in_its_transactions(engine: Engine, url: str) -> None:
    """The next client of the same backend finds the server's own planner settings and timeouts."""
    registry = Registry()

    @task(registry=registry, name="handler")
    def handler(ctx: JobContext) -> None:
        ctx.session.scalar(select(1))

    names = ["enable_seqscan", "jit", "statement_timeout", "idle_in_transaction_session_timeout"]
    with connect(pooler.direct(url)) as connection:
        expected = [connection.execute(f"SHOW {name}".encode()).fetchone() for name in names]
    with Session(engine) as session:
        session.add_all(enqueue(handler) for _ in range(20))
        session.commit()
    with working(url, registry):
        wait_until(lambda: finished(engine) == 20)
        with connect(url) as one, connect(url) as other, one.transaction(), other.transaction():
            for connection in (one, other):
                assert [connection.execute(f"SHOW {name}".encode()).fetchone() for name in names] == expected


def test_a_worker_without_a_listener_says_so_once(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The log says how often it polls instead."""
    caplog.set_level(logging.INFO, "sa_jobqueue")
    registry, ran = Registry(), threading.Event()

    @task(registry=registry, name="handler")
    def handler() -> None:
        ran.set()

    with working(url, registry, listen_url=None, listen=False, poll=0.2):
        output("enqueue", "handler", url=url)
        assert ran.wait(30)
    assert [record.message for record in caplog.records if "listening" in record.message] == [
        "not listening for wake-ups; polling every 0.2 s"
    ]


def test_the_worker_prepares_nothing_whatever_the_engine_would(engine: Engine, url: str) -> None:
    """An application's engine that was not told to leave statements unprepared: the worker's own connections do."""
    registry = Registry()

    @task(registry=registry, name="handler")
    def handler() -> None: ...

    prepared: list[str] = []

    def note(_connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        prepared.extend(cursor.connection._prepared._names)

    careless = create_engine(url)
    event.listen(careless, "after_cursor_execute", note)
    with working(careless, registry) as worker:
        for turn in range(1, 16):  # psycopg prepares what comes for the sixth time
            with Session(engine) as session:
                session.add(enqueue(handler))
                session.commit()
            wait_until(lambda turn=turn: finished(engine) == turn)
        wait_until(lambda: worker.counts["completed"] == 15)
    careless.dispose()
    assert prepared == []


def test_an_engine_by_url_prepares_nothing(url: str) -> None:
    """Nor do those that the worker makes for `ctx.session` from a URL."""
    worker = worker_for(url, Registry())
    with worker.engine.connect() as connection:
        raw: Any = connection.connection.dbapi_connection
        assert raw.prepare_threshold is None
    worker.engine.dispose()

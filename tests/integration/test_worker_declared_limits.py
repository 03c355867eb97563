"""The limits that a worker's code declares: written before its first claim, kept while it lives, and no cost where there are none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import Engine, NullPool, create_engine, select, text
from sqlalchemy.exc import DBAPIError

from sa_jobqueue import Limits, Registry, enqueue, task
from sa_jobqueue.models import LimitRow
from sa_jobqueue.statements import set_limit
from sa_jobqueue.worker.claiming.claimer import Claimer
from sa_jobqueue.worker.connections.service import Connector
from sa_jobqueue.worker.maintenance import limits
from sa_jobqueue.worker.maintenance.chore import Turn
from sa_jobqueue.worker.maintenance.limits import DeclareLimits
from tests.support.waiting import wait_until
from tests.support.working import add, drain, services_of, worker_for, working

LIMIT = LimitRow.__table__
#: The logger of the worker's part that looks after limits.
SAYS = limits.__name__


@pytest.fixture
def app() -> Registry:
    """Code that declares limits of a queue and of a task."""
    registry = Registry()

    @task(registry=registry, name="sync", limits=Limits(running=2))
    def sync() -> None: ...

    registry.queue("default", limits=Limits(running=3))
    return registry


def found(engine: Engine) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        rows = connection.execute(select(LIMIT.c.owner, LIMIT.c.name, LIMIT.c.running).order_by(LIMIT.c.owner))
        return [tuple(row) for row in rows]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says, since the last call, of limits."""
    lines = [record.getMessage() for record in caplog.records if record.name == SAYS]
    caplog.clear()
    return lines


def chore(url: str, registry: Registry) -> DeclareLimits:
    return DeclareLimits(Connector(create_engine(url, poolclass=NullPool), 60.0), registry)


def look(one: DeclareLimits) -> None:
    """One look of a worker at its limits."""
    connection = one._connector.connect()
    try:
        if one.due_at() <= limits.monotonic():
            one.do(connection, Turn(monotonic() + 60.0, threading.Event()))
    finally:
        connection.close()


@contextmanager
def locked(engine: Engine) -> Iterator[None]:
    """Meanwhile an operator's transaction is open that has made the queue's row."""
    with engine.connect() as connection:
        connection.execute(set_limit("default", running=9))
        yield
        connection.rollback()


@contextmanager
def refusing(engine: Engine) -> Iterator[None]:
    """Meanwhile no role may write limits."""
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS "
                "$$BEGIN RAISE insufficient_privilege USING MESSAGE = 'not for you'; END$$"
            )
        )
        connection.execute(
            text(
                "CREATE TRIGGER refuse BEFORE INSERT OR DELETE ON sa_jobqueue.job_limit FOR EACH ROW "
                "EXECUTE FUNCTION public.refuse()"
            )
        )
    try:
        yield
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP TRIGGER refuse ON sa_jobqueue.job_limit"))


def test_limits_are_there_before_the_first_claim(
    engine: Engine, url: str, app: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of tasks and of queues."""
    caplog.set_level("INFO", SAYS)
    seen: list[Any] = []
    start = Claimer.start
    monkeypatch.setattr(Claimer, "start", lambda claimer: (seen.extend(found(engine)), start(claimer)))
    add(engine, enqueue("sync"))
    drain(url, app)
    assert seen == [("queue", "default", 3), ("task", "sync", 2)]
    assert said(caplog) == ["the limit of queue 'default' is new", "the limit of task 'sync' is new"]


def test_a_worker_without_declared_limits_asks_for_none(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It connects for none, and its chore is not due at all."""
    monkeypatch.setattr(DeclareLimits, "begin", lambda _: pytest.fail("it was asked"))
    with working(url, registry, lease=3.0) as worker:
        chore = services_of(worker).limits
        heard: list[bool] = []
        hear = chore.hear
        monkeypatch.setattr(
            services_of(worker).maintenance._presence, "_undeclared", lambda one: (heard.append(one), hear(one))
        )
        wait_until(lambda: heard)
        assert heard == [False] * len(heard)
        assert chore.due_at() == float("inf")


def test_the_log_says_what_becomes_of_what_code_declares(
    engine: Engine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """New, changed, held by an operator, or replaced by a newer release; the last two once."""
    caplog.set_level("INFO", SAYS)

    def declare(running: int) -> DeclareLimits:
        registry = Registry()
        registry.queue("mail", limits=Limits(running=running))
        made = chore(url, registry)
        look(made)
        return made

    declare(3)
    assert said(caplog) == ["the limit of queue 'mail' is new"]
    newer = declare(4)
    assert said(caplog) == ["the limit of queue 'mail' is changed to what the code declares"]
    declare(4)
    assert said(caplog) == []
    older = declare(3)
    assert said(caplog) == [
        "the limit of queue 'mail' has a newer definition than this worker's code declares, which is left"
    ]
    older._declarations.at = 0.0
    look(older)
    assert said(caplog) == []
    with engine.begin() as connection:
        connection.execute(set_limit("mail", running=9))
    newer._declarations.at = 0.0
    look(newer)
    assert said(caplog) == []
    declare(5)
    assert said(caplog) == ["the limit of queue 'mail' stays as an operator has set it; the code declares another"]


def test_a_role_that_may_not_write_limits_works_without_them(
    engine: Engine, url: str, app: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so, with the command that mends it; the worker tries again, and claims by the limits that are there."""
    with refusing(engine):
        add(engine, enqueue("sync"))
        worker = drain(url, app)
    assert worker.counts["completed"] == 1
    (line,) = said(caplog)
    assert line.startswith("the limits that this worker's code declares cannot be written down: not for you")
    assert "`sa-jobqueue grants --role ROLE --can work`" in line


def test_a_worker_waits_for_the_transaction_that_has_locked_its_limits(
    engine: Engine, url: str, app: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And claims nothing before; when that has ended, it writes them down."""
    tried: list[bool] = []
    begin = DeclareLimits.begin
    monkeypatch.setattr(DeclareLimits, "begin", lambda one: tried.append(begin(one)) or tried[-1])
    add(engine, enqueue("sync"))
    worker = worker_for(url, app)
    thread = threading.Thread(target=lambda: asyncio.run(worker.serve(until_idle=True)))
    with locked(engine):
        thread.start()
        wait_until(lambda: tried)
        assert not worker.serving
    thread.join(30)
    assert (tried[0], tried[-1]) == (False, True)
    assert worker.counts["completed"] == 1
    assert found(engine) == [("queue", "default", 3), ("task", "sync", 2)]


def test_a_worker_that_waits_for_its_limits_can_be_stopped(engine: Engine, url: str, app: Registry) -> None:
    """It ends, and has claimed nothing."""
    add(engine, enqueue("sync"))
    worker = worker_for(url, app)
    thread = threading.Thread(target=lambda: asyncio.run(worker.serve()))
    with locked(engine):
        thread.start()
        wait_until(lambda: worker._serving is not None and worker._serving._services.limits._began)
        worker.stop()
        thread.join(30)
    assert not thread.is_alive()
    assert worker.state().claimed == 0


def test_a_transaction_that_somebody_has_forgotten_keeps_no_worker_from_working(
    engine: Engine, url: str, app: Registry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some seconds it goes on by what is in the table, says so, and tries again meanwhile."""
    monkeypatch.setattr(limits, "_WAIT", 0.0)
    one = chore(url, app)
    with locked(engine):
        assert one.begin()
    assert said(caplog) == [
        "the limits that this worker's code declares are locked by another transaction; it claims by those that are there"
    ]
    assert one.due_at() <= monotonic() + 1.0
    monkeypatch.setattr(limits, "monotonic", lambda: monotonic() + 1.0)
    look(one)
    assert found(engine) == [("queue", "default", 3), ("task", "sync", 2)]


def test_a_database_that_is_away_is_waited_for(app: Registry, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once."""
    one = chore("postgresql+psycopg://nobody@127.0.0.1:1/none", app)
    assert [one.begin(), one.begin()] == [False, False]
    (line,) = said(caplog)
    assert line.startswith("the limits that this worker's code declares wait for the database (")


def test_what_no_code_declares_is_deleted_when_workers_had_the_time_to_declare_it(
    engine: Engine, url: str, app: Registry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five minutes in which they could write; by a worker of any code."""
    look(chore(url, app))
    with engine.begin() as connection:
        connection.execute(text("UPDATE sa_jobqueue.job_limit SET declared_at = now() - interval '6 minutes'"))
    now = monotonic()
    monkeypatch.setattr(limits, "monotonic", lambda: now)
    other = chore(url, Registry())
    for seconds in (61, 61, 61, 61, 600, 61, 61, 61, 61):  # an outage of ten minutes, in which no worker could
        now += seconds
        other.hear(True)
        look(other)
        assert len(found(engine)) == 2
    caplog.clear()
    now += 61
    other.hear(False)
    look(other)
    assert len(found(engine)) == 2
    other.hear(True)
    with refusing(engine), pytest.raises(DBAPIError, match="not for you"):
        look(other)
    assert other.due_at() == float("inf")
    now += 61
    other.hear(True)
    look(other)
    assert found(engine) == []
    assert sorted(said(caplog)) == [
        "the limit of queue 'default' is deleted: no code declares it any more",
        "the limit of task 'sync' is deleted: no code declares it any more",
    ]


def test_a_worker_hears_of_limits_that_no_code_declares(
    engine: Engine, url: str, registry: Registry, app: Registry
) -> None:
    """By the statement that says that it is alive."""
    look(chore(url, app))
    with engine.begin() as connection:
        connection.execute(text("UPDATE sa_jobqueue.job_limit SET declared_at = now() - interval '6 minutes'"))
    with working(url, registry, lease=3.0) as worker:
        services_of(worker).limits._time_to_declare._well_since -= 600
        wait_until(lambda: found(engine) == [])

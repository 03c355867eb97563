"""What a handler leaves on the connection of its `ctx.session` harms its own job, and hardly another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import AsyncJobContext, JobContext, JobStatus, Registry, RetryPolicy, enqueue, task
from sa_jobqueue.worker.running import leftovers
from tests.support import pooler
from tests.support.nightly import crossed
from tests.support.waiting import wait_until
from tests.support.working import add, add_one, job_of, worker_for, working

NEVER = RetryPolicy(no_retry=(BaseException,))


# ---- a command that was left open

#: What is left open is kept here: else it would end with its last reference.
left: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    left.clear()


def leave_open(session: Session, how: str) -> None:
    raw: Any = session.connection().connection.driver_connection
    left.append(raw.cursor())
    if how == "copy":
        left.append(left[-1].copy("COPY (SELECT generate_series(1, 1000000)) TO STDOUT"))
        left[-1].__enter__()
    else:
        left.append(left[-1].stream("SELECT generate_series(1, 1000000)"))
        next(left[-1])


async def leave_open_async(session: AsyncSession, how: str) -> None:
    raw: Any = (await (await session.connection()).get_raw_connection()).driver_connection
    left.append(raw.cursor())
    if how == "copy":
        left.append(left[-1].copy("COPY (SELECT generate_series(1, 1000000)) TO STDOUT"))
        await left[-1].__aenter__()
    else:
        left.append(left[-1].stream("SELECT generate_series(1, 1000000)"))
        await anext(left[-1])


@pytest.mark.parametrize(("ends", "how", "kind"), crossed(["returns", "raises"], ["copy", "stream"], ["sync", "async"]))
def test_a_command_that_was_left_open_fails_the_attempt_and_holds_up_nothing(
    engine: Engine, url: str, registry: Registry, kind: str, how: str, ends: str
) -> None:
    """A COPY or a stream that was not read to its end: the connection could only wait for it, and is closed."""

    @task(registry=registry, name="sync", retry=NEVER)
    def sync_handler(ctx: JobContext) -> None:
        ctx.session.execute(text("CREATE TABLE written (n integer)"))
        leave_open(ctx.session, how)
        if ends == "raises":
            raise ValueError("of its own")

    @task(registry=registry, name="async", retry=NEVER)
    async def async_handler(ctx: AsyncJobContext) -> None:
        await ctx.session.execute(text("CREATE TABLE written (n integer)"))
        await leave_open_async(ctx.session, how)
        if ends == "raises":
            raise ValueError("of its own")

    @task(registry=registry, name="next")
    def next_handler(ctx: JobContext) -> None:
        ctx.session.execute(text("SELECT 1"))

    first = add_one(engine, enqueue(kind))
    with working(url, registry, queues={"default": 1}):
        wait_until(lambda: job_of(engine, first).is_finished)
        second = add_one(engine, enqueue("next"))
        wait_until(lambda: job_of(engine, second).is_finished)
    job = job_of(engine, first)
    assert job.status == JobStatus.FAILED
    said = "a COPY or another command open" if ends == "returns" else "of its own"
    assert said in job.errors[-1]["message"]
    assert job_of(engine, second).status == JobStatus.COMPLETED
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT to_regclass('written')")) is None


# ---- what a handler leaves behind

LASTING = [
    "SET search_path = pg_catalog",
    "SET default_transaction_read_only = on",
    "SET SESSION AUTHORIZATION DEFAULT",
    "/* why */ SET SESSION statement_timeout = '77s'",
    "SELECT 1; SET statement_timeout = '77s'",
    "SELECT set_config('statement_timeout', '77s', false)",
    "SELECT pg_advisory_lock(77)",
    "LISTEN other",
    "CREATE TEMP TABLE scratch (n integer)",
    "PREPARE mine AS SELECT 1",
    "DECLARE mine CURSOR WITH HOLD FOR SELECT 1",
]
ENDING = [
    "SET LOCAL search_path = pg_catalog",
    "SET\n  LOCAL search_path = pg_catalog",
    "SET CONSTRAINTS ALL DEFERRED",
    "SELECT set_config('statement_timeout', '77s', true)",
    "SELECT pg_advisory_xact_lock(77)",
    "CREATE TEMP TABLE scratch ON COMMIT DROP AS SELECT 1 AS n",
    "UPDATE sa_jobqueue.job SET meta = meta WHERE id = 0",
]


def executed(session: Session, statement: str) -> None:
    session.execute(text(statement))


def executed_by_core(session: Session, statement: str) -> None:
    session.connection().exec_driver_sql(statement)


def executed_by_the_driver(session: Session, statement: str) -> None:
    raw: Any = session.connection().connection.driver_connection
    raw.execute(statement)


class Handlers:
    """Tasks of each kind that note which server process they had, and then do what their argument says."""

    def __init__(self, act: Callable[[Session, str], object]) -> None:
        self.pids: list[int] = []
        self.registry = Registry()
        self._act = act

        @task(registry=self.registry, name="sync", retry=NEVER)
        def sync_handler(ctx: JobContext, statement: str) -> None:
            self._run(ctx.session, statement)

        @task(registry=self.registry, name="async", retry=NEVER)
        async def async_handler(ctx: AsyncJobContext, statement: str) -> None:
            await ctx.session.run_sync(self._run, statement)

    def _run(self, session: Session, statement: str) -> None:
        self.pids.append(int(session.scalar(text("SELECT pg_backend_pid()")) or 0))
        self._act(session, statement)

    def run(self, engine: Engine, url: str, kind: str, *statements: str, own: Engine | None = None) -> list[str]:
        """Run jobs one after the other, by a pool of one connection. Returns what became of them."""
        ids = add(engine, *(enqueue(kind, statement=statement) for statement in statements))
        pool: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, **pooler.engine_options(url)}
        own, own_async = own or create_engine(url, **pool), create_async_engine(url, **pool)
        makers = {"sessionmaker": sessionmaker(own), "async_sessionmaker": async_sessionmaker(own_async)}

        async def main() -> None:
            await worker_for(url, self.registry, queues={"default": 1}, **makers).serve(until_idle=True)
            await own_async.dispose()

        asyncio.run(main())
        own.dispose()
        return [str(job_of(engine, id).status) for id in ids]


@pytest.mark.parametrize(("statement", "kind"), crossed(LASTING, ["sync", "async"]))
def test_what_a_handler_leaves_behind_is_not_there_for_the_next_job(
    engine: Engine, url: str, kind: str, statement: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its connection is closed after it, and the log says by which statement."""
    leftovers._logged.clear()
    handlers = Handlers(executed)
    assert handlers.run(engine, url, kind, statement, "SELECT 1") == ["completed"] * 2
    first, second = handlers.pids
    assert first != second
    assert (
        f"each such job (SET LOCAL, pg_advisory_xact_lock and ON COMMIT DROP end with the transaction): {statement}"
        in (caplog.text)
    )


@pytest.mark.parametrize(("statement", "kind"), crossed(ENDING, ["sync", "async"]))
def test_what_ends_with_the_transaction_keeps_the_connection(
    engine: Engine, url: str, kind: str, statement: str
) -> None:
    """A handler that leaves nothing behind costs no connection."""
    handlers = Handlers(executed)
    assert handlers.run(engine, url, kind, statement, statement, "SELECT 1") == ["completed"] * 3
    assert len(set(handlers.pids)) == 1


def test_an_engine_in_the_place_of_one_that_is_gone_is_looked_at() -> None:
    """SQLAlchemy finds listeners by the ids of objects: a new engine may have that of an engine whose dialect is still in use."""
    engine, other = (create_engine("postgresql+psycopg://") for _ in range(2))
    for dialect in (engine.dialect, other.dialect):
        engine.dialect = dialect
        connection: Any = SimpleNamespace(info={}, engine=engine, dialect=dialect)
        leftovers.begin(connection, None)
        assert list(dialect.dispatch.do_execute) == [leftovers._check_statement]


def test_a_text_with_many_comments_is_searched_once() -> None:
    """A search that tries each way through a box of comments would hold Python's lock, and never end with 60 of them."""
    for comment in ("/* a line */\n", "/**/", "-- a line\n", "/* one */ -- and another\n"):
        assert not leftovers._LASTING.search(comment * 60 + "SELECT 1")
        assert leftovers._LASTING.search(comment * 60 + "SET search_path = other")


@pytest.mark.parametrize("act", [executed_by_core, executed_by_the_driver])
def test_what_is_left_behind_past_the_session_is_seen_as_well(
    engine: Engine, url: str, act: Callable[[Session, str], object]
) -> None:
    """Core's statements all, and of the driver's own what the server reports."""
    handlers = Handlers(act)
    handlers.run(engine, url, "sync", "SET default_transaction_read_only = on", "SELECT 1")
    first, second = handlers.pids
    assert first != second


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_cannot_be_seen_harms_one_job_at_most(engine: Engine, database_url: str, kind: str) -> None:
    """A function of the database changes a setting: the next job fails, and its connection is closed with it."""

    def act(session: Session, statement: str) -> None:
        if session.scalar(text("SELECT current_setting('shop.tenant', true)")) == "gone":
            raise ValueError("this tenant has gone")
        session.execute(text(statement))

    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION spoil() RETURNS void LANGUAGE plpgsql AS "
                "$$ BEGIN PERFORM set_config('shop.tenant', 'gone', false); END $$"
            )
        )
    handlers = Handlers(act)
    done = handlers.run(engine, database_url, kind, "SELECT spoil()", "SELECT 1", "SELECT 1", "SELECT 1")
    assert done == ["completed", "failed", "completed", "completed"]
    first, second, third, fourth = handlers.pids
    assert first == second != third == fourth


def test_a_storm_of_failures_makes_few_connections(engine: Engine, url: str) -> None:
    """A connection takes the server some milliseconds: ten a second are closed because an attempt has failed."""

    def act(session: Session, statement: str) -> None:
        raise ValueError(statement)

    handlers = Handlers(act)
    began = monotonic()
    assert set(handlers.run(engine, url, "sync", *["no"] * 200)) == {"failed"}
    assert len(set(handlers.pids)) <= 2 + (monotonic() - began) / leftovers._BETWEEN


def test_what_the_application_sets_itself_is_there_for_each_job(engine: Engine, url: str) -> None:
    """As a connection is opened, and as it is checked out; the latter is no handler's doing, and costs no connection."""
    own = create_engine(url, **pooler.engine_options(url))

    @event.listens_for(own, "connect")
    def opened(connection: Any, record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('shop.name', 'ours', false)")
        connection.commit()

    @event.listens_for(own, "checkout")
    def taken(connection: Any, record: object, proxy: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET TimeZone = 'Etc/GMT+{len(found) + 1}'")
        connection.commit()

    found: list[tuple[str, str]] = []

    def act(session: Session, statement: str) -> None:
        asked = session.execute(text("SELECT current_setting('shop.name'), current_setting('TimeZone')"))
        found.append(tuple(asked.one()))
        session.execute(text(statement))

    handlers = Handlers(act)
    handlers.run(engine, url, "sync", "SELECT 1", "SET shop.name = 'theirs'", "SELECT 1", own=own)
    assert found == [("ours", f"Etc/GMT+{number}") for number in (1, 2, 3)]
    first, second, third = handlers.pids
    assert first == second != third

"""A worker goes on: after hostile handlers, odd rows, odd settings, and answers that were lost."""

from __future__ import annotations

import asyncio
import decimal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from psycopg import sql
from sqlalchemy import Connection, Engine, create_engine, event, func, select, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

from sa_jobqueue import AsyncJobContext, Job, JobContext, JobStatus, Registry, RetryPolicy, TaskName, enqueue, task
from sa_jobqueue.errors import SessionUnavailable
from sa_jobqueue.migrations import downgrade_database, upgrade_database
from sa_jobqueue.rules.lifecycle import FINISHED
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.worker.claiming.claimer import Claimer
from sa_jobqueue.worker.connections import listener
from sa_jobqueue.worker.connections.service import Connector
from tests.support import pooler
from tests.support.databases import connect, driver_url
from tests.support.nightly import crossed, nightly
from tests.support.waiting import PATIENCE, wait_until, wait_until_async
from tests.support.working import (
    add,
    assert_nothing_leaked,
    drain,
    finished,
    job_of,
    long_healthy,
    services_of,
    statuses,
    working,
)

NEVER = RetryPolicy(no_retry=(BaseException,))


# ---- handlers


class Nameless(Exception):
    """Nothing about it can be asked."""

    def __str__(self) -> str:
        raise SystemExit("str")

    def __repr__(self) -> str:
        raise SystemExit("repr")


@pytest.mark.parametrize(
    ("error", "kind"),
    crossed(
        [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, StopAsyncIteration, Nameless, BaseException],
        ["sync", "async"],
    ),
)
def test_whatever_a_handler_raises_is_its_own_failure(
    engine: Engine, url: str, registry: Registry, kind: str, error: type[BaseException]
) -> None:
    """The job fails with it, the slot comes back, and the next job runs in it."""

    @task(registry=registry, name="sync", retry=NEVER)
    def sync_handler(ctx: JobContext) -> None:
        ctx.session.execute(select(1))
        raise error

    @task(registry=registry, name="async", retry=NEVER)
    async def async_handler(ctx: AsyncJobContext) -> None:
        await ctx.session.execute(select(1))
        raise error

    @task(registry=registry, name="next", queue="default")
    async def next_handler() -> None: ...

    ids = add(engine, enqueue(kind), enqueue(kind), enqueue("next"))
    with working(url, registry, queues={"default": 1}) as worker:
        wait_until(lambda: finished(engine, *ids))
        assert_nothing_leaked(engine, worker)
    assert [job_of(engine, id).status for id in ids] == ["failed", "failed", "completed"]


@pytest.mark.parametrize("way", ["await", "return", "raise"])
def test_a_handler_that_cancels_its_own_task_costs_no_slot(
    engine: Engine, url: str, registry: Registry, way: str
) -> None:
    """The cancel hits its own attempt alone, where it is raised, and nothing where it never is."""

    @task(registry=registry, name="own", retry=NEVER)
    async def own(ctx: AsyncJobContext) -> None:
        await ctx.session.execute(select(1))
        runner = asyncio.current_task()
        assert runner is not None
        runner.cancel()
        if way == "await":
            await asyncio.sleep(60)
        if way == "raise":
            raise ValueError("after it")

    @task(registry=registry, name="next")
    async def next_handler() -> None:
        await asyncio.sleep(0)

    ids = add(engine, *(enqueue("own") for _ in range(3)), enqueue("next"))
    with working(url, registry, queues={"default": 2}) as worker:
        wait_until(lambda: finished(engine, *ids))
        assert_nothing_leaked(engine, worker)
    expected = "completed" if way == "return" else "failed"
    assert [job_of(engine, id).status for id in ids] == [expected] * 3 + ["completed"]


def test_a_rule_that_ends_the_interpreter_costs_no_slot(engine: Engine, url: str, registry: Registry) -> None:
    """What fails while an outcome is made is the job's failure, not the end of its runner."""

    def fail(*_: object) -> float:
        raise SystemExit("policy")

    @task(registry=registry, name="sync", retry=RetryPolicy(delay=fail))
    def sync_handler() -> None:
        raise ValueError

    @task(registry=registry, name="async", retry=RetryPolicy(delay=fail))
    async def async_handler() -> None:
        raise ValueError

    ids = add(engine, *(enqueue(TaskName(name).options(max_attempts=1)) for name in ("sync", "async") * 3))
    with working(url, registry, queues={"default": 2}) as worker:
        wait_until(lambda: finished(engine, *ids))
        assert_nothing_leaked(engine, worker)
    assert {job_of(engine, id).status for id in ids} == {"failed"}


def test_a_thread_that_cannot_be_started_costs_no_slot(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the host's limit of threads the jobs wait, and run once there is room again."""
    start, refused = threading.Thread.start, []

    def refuse(self: threading.Thread) -> None:
        if self.name.startswith("sa-jobqueue handler") and len(refused) < 3:
            refused.append(self.name)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)

    @task(registry=registry, name="sync")
    def sync_handler() -> None: ...

    ids = add(engine, *(enqueue("sync") for _ in range(6)))
    with working(url, registry, queues={"default": 2}, hoard=0.2) as worker:
        wait_until(lambda: finished(engine, *ids))
        assert_nothing_leaked(engine, worker)
    assert len(refused) == 3


@pytest.mark.parametrize("kind", ["sync", "async", "gathered"])
def test_a_session_that_outlives_its_job_or_is_shared_leaves_no_transaction_open(
    engine: Engine, url: str, registry: Registry, kind: str
) -> None:
    """A thread or task that a handler left behind is refused; so are several that open the session at once."""
    refused: list[BaseException] = []
    ended = threading.Event()

    @task(registry=registry, name="sync")
    def sync_handler(ctx: JobContext) -> None:
        session = ctx.session

        def later() -> None:
            wait_until(lambda: finished(engine, ctx.job_id))
            try:
                session.execute(select(1))
            except SessionUnavailable as error:
                refused.append(error)
            ended.set()

        threading.Thread(target=later).start()
        session.execute(select(1))

    @task(registry=registry, name="async")
    async def async_handler(ctx: AsyncJobContext) -> None:
        session = ctx.session

        async def later() -> None:
            while not finished(engine, ctx.job_id):
                await asyncio.sleep(0.01)
            try:
                await session.execute(select(1))
            except SessionUnavailable as error:
                refused.append(error)
            ended.set()

        left_behind.append(asyncio.create_task(later()))
        await session.execute(select(1))

    @task(registry=registry, name="gathered", retry=NEVER)
    async def gathered_handler(ctx: AsyncJobContext) -> None:
        session = ctx.session
        results = await asyncio.gather(*(session.execute(select(1)) for _ in range(3)), return_exceptions=True)
        refused.extend(result for result in results if isinstance(result, SessionUnavailable))
        ended.set()

    left_behind: list[asyncio.Task[None]] = []
    (id,) = add(engine, enqueue(kind))
    with working(url, registry) as worker:
        assert ended.wait(30)
        wait_until(lambda: finished(engine, id))
        assert_nothing_leaked(engine, worker)
        assert refused
        asynchronous = worker._spec.engines.asynchronous
        assert asynchronous is not None
        for own in (worker.engine, asynchronous.sync_engine):
            # A service connection, too, is checked out for a moment, until it is detached.
            wait_until(lambda own=own: own.pool.checkedout() == 0)


@pytest.mark.parametrize("kind", ["thread", "task", "task elsewhere"])
def test_a_connection_that_comes_after_its_jobs_end_is_given_back(
    engine: Engine, url: str, registry: Registry, kind: str
) -> None:
    """A thread or task that was left behind may just be opening the session's connection. It is refused, and leaves no transaction."""
    elsewhere = create_async_engine(driver_url(url, "psycopg"))
    opening = threading.Event()
    refused: list[object] = []

    def hold(*_: Any) -> None:
        if kind != "thread":
            opening.set()
            await_only(wait_until_async(lambda: finished(engine, id)))
        elif threading.current_thread().name == "left behind":
            opening.set()
            wait_until(lambda: finished(engine, id))

    def use(session: Session) -> None:
        try:
            session.execute(select(1), bind_arguments={"bind": elsewhere.sync_engine} if "else" in kind else {})
        except SessionUnavailable as error:
            refused.append(error)

    @task(registry=registry, name="thread")
    def on_thread(ctx: JobContext) -> None:
        threading.Thread(target=lambda: use(ctx.session), name="left behind").start()
        assert opening.wait(PATIENCE)

    @task(registry=registry, name="task", retry=NEVER)
    async def as_task(ctx: AsyncJobContext) -> None:
        left_behind.append(asyncio.create_task(ctx.session.run_sync(use)))
        await wait_until_async(opening.is_set)

    left_behind: list[asyncio.Task[None]] = []
    with working(url, registry) as worker:
        asynchronous = worker._spec.engines.asynchronous
        assert asynchronous is not None
        engines = {"thread": worker.engine, "task": asynchronous.sync_engine, "task elsewhere": elsewhere.sync_engine}
        event.listen(engines[kind], "checkout", hold)
        (id,) = add(engine, enqueue(kind.split(maxsplit=1)[0]))
        wait_until(lambda: refused)
        for used in engines.values():
            wait_until(lambda used=used: used.pool.checkedout() == 0)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_jobs_decimal_precision_is_its_own(engine: Engine, url: str, registry: Registry, kind: str) -> None:
    """Neither the jobs after it, on the same thread or loop, nor the program that runs the worker compute with it."""
    seen: list[int] = []

    def look() -> None:
        seen.append(decimal.getcontext().prec)
        decimal.getcontext().prec = 3

    @task(registry=registry, name="sync")
    def on_thread() -> None:
        look()

    @task(registry=registry, name="async")
    async def on_loop() -> None:
        look()

    add(engine, *(enqueue(kind) for _ in range(3)))
    with decimal.localcontext(prec=50):
        drain(url, registry, queues={"default": 1})
        assert decimal.getcontext().prec == 50
    assert seen == [50] * 3


def test_two_threads_that_open_a_session_at_once_have_the_same(engine: Engine, url: str, registry: Registry) -> None:
    """A second one would never be closed."""
    both = threading.Barrier(2, timeout=PATIENCE)

    def maker() -> Session:
        both.wait()
        return Session(engine)

    @task(registry=registry, name="sync", retry=NEVER)
    def handler(ctx: JobContext) -> None:
        with ThreadPoolExecutor(2) as pool:
            one, other = pool.map(lambda _: ctx.session, range(2))
        assert one is other

    (id,) = add(engine, enqueue(handler))
    drain(url, registry, sessionmaker=maker)
    assert job_of(engine, id).status == JobStatus.COMPLETED


@pytest.mark.parametrize(("kind", "end"), crossed(["sync", "async"], ["returns", "raises"]))
def test_a_session_that_is_first_asked_for_after_the_job_has_ended_is_refused(
    engine: Engine, url: str, registry: Registry, kind: str, end: str
) -> None:
    """A thread or task that was left behind would write by it, and no code would commit or close its transaction."""
    outcomes: list[object] = []

    def leave() -> None:
        if end == "raises":
            raise ValueError

    @task(registry=registry, name="sync", retry=NEVER)
    def sync_handler(ctx: JobContext) -> None:
        def later() -> None:
            wait_until(lambda: finished(engine, ctx.job_id))
            try:
                ctx.session.execute(select(1))
                outcomes.append("executed")
            except SessionUnavailable as error:
                outcomes.append(str(error))

        threading.Thread(target=later).start()
        leave()

    @task(registry=registry, name="async", retry=NEVER)
    async def async_handler(ctx: AsyncJobContext) -> None:
        async def later() -> None:
            await wait_until_async(lambda: finished(engine, ctx.job_id))
            try:
                await ctx.session.execute(select(1))
                outcomes.append("executed")
            except SessionUnavailable as error:
                outcomes.append(str(error))

        left_behind.append(asyncio.create_task(later()))
        leave()

    left_behind: list[asyncio.Task[None]] = []
    add(engine, enqueue(kind))
    with working(url, registry):
        wait_until(lambda: outcomes)
    assert outcomes == ["the job has ended: ctx.session cannot be opened any more"]


# ---- rows


ODD = {
    "claims at the end of integer": "claims = 2147483647",
    "attempt at the end of smallint": "attempt = 32767, max_attempts = 32767",
    "attempt below zero": "attempt = -32768",
    "rescues at the end": "rescues = 32767",
    "meta no object": "meta = '[1]'",
    "errors an object": "errors = '{\"a\": 1}'",
    "due since ever": "run_at = '-infinity'",
    "due before Christ": "run_at = '4000-01-01 BC'",
    "made at the end of time": "created_at = 'infinity'",
    "arguments no object": "args = '[]'",
    "number beyond all bounds": "args = ('{\"n\": 1' || repeat('0', 6000) || '}')::jsonb",
    "arguments of 20 MB": "args = jsonb_build_object('n', repeat('x', 20000000))",
    "named at length": "task = repeat('x', 200)",
    "id beyond 2^31": "id = 2147483648 * 1000",
    "id below zero": "id = -id",
}
_OF_CLAIMS_ALONE = {
    "named at length", "due since ever", "due before Christ", "made at the end of time", "meta no object",
}  # fmt: skip


@pytest.mark.parametrize("odd", ["all of them", *nightly(*ODD)])
def test_an_odd_row_does_not_stop_its_queue(engine: Engine, url: str, registry: Registry, odd: str) -> None:
    """A row that plain SQL wrote is run or failed, and so is its neighbour, with both kinds of write."""

    @task(registry=registry, name="fails", retry=NEVER)
    def fails(ctx: JobContext) -> None:
        ctx.session.execute(select(1))
        raise ValueError

    @task(registry=registry, name="runs")
    async def runs() -> None: ...

    names = list(ODD) if odd == "all of them" else [odd]
    ended = sorted(JobStatus.QUEUED if name in UNKNOWN else JobStatus.FAILED for name in names)
    neighbours = add(engine, *(enqueue("runs") for _ in range(4)))
    make_odd(engine, {name: ODD[name] for name in names}, "fails")
    with working(url, registry) as worker:
        wait_until(lambda: finished(engine, *neighbours))
        wait_until(lambda: sorted(statuses(engine, Job.id.not_in(neighbours))) == ended)
        assert_nothing_leaked(engine, worker)


UNKNOWN = {"named at length"}


def make_odd(engine: Engine, settings: dict[str, str], task: str, all_have: str = "task = task") -> None:
    """A job of this task for each of the settings, which plain SQL writes into its row, after what all jobs have."""
    ids = add(engine, *(enqueue(task) for _ in settings))
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE sa_jobqueue.job SET {all_have}")
        for id, setting in zip(ids, settings.values(), strict=True):
            connection.exec_driver_sql(f"UPDATE sa_jobqueue.job SET {setting} WHERE id = {id}")


_HELD = {odd: ODD[odd] for odd in ODD if odd not in _OF_CLAIMS_ALONE}
_HELD["held by no worker"] = "worker = NULL, lease_expires_at = NULL"


@pytest.mark.parametrize("odd", ["all of them", *nightly(*_HELD)])
def test_an_odd_row_is_rescued(engine: Engine, url: str, registry: Registry, odd: str) -> None:
    """Left running by a dead worker, it ends too."""

    @task(registry=registry, name="runs", retry=NEVER)
    async def runs() -> None: ...

    add(engine, enqueue("runs"))
    make_odd(
        engine,
        _HELD if odd == "all of them" else {odd: _HELD[odd]},
        "runs",
        "status = 'running', claims = 1, attempt = 1",
    )
    long_healthy(engine)
    with working(url, registry) as worker:
        wait_until(lambda: all(status in FINISHED for status in statuses(engine)))
        assert_nothing_leaked(engine, worker)


# ---- the database


def test_triggers_that_refuse_single_rows_stop_nothing_else(
    engine: Engine, database_url: str, url: str, registry: Registry
) -> None:
    """An outcome that a trigger of the application's refuses, and a row that it does not let go, stay alone."""

    @task(registry=registry, name="runs", retain=0)
    async def runs() -> None: ...

    kept, stays, lost = add(engine, enqueue("kept"), enqueue("runs"), enqueue("runs"))
    with engine.begin() as connection:
        connection.exec_driver_sql(
            f"UPDATE sa_jobqueue.job SET status = 'completed', purge_at = now() WHERE id = {kept}"
        )
        connection.exec_driver_sql(f"UPDATE sa_jobqueue.job SET status = 'running', claims = 1 WHERE id = {lost}")
        connection.exec_driver_sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'this row stays'; END $$"
        )
        connection.exec_driver_sql(
            "CREATE TRIGGER refuse BEFORE DELETE ON sa_jobqueue.job"
            f" FOR EACH ROW WHEN (old.id IN ({kept}, {stays})) EXECUTE FUNCTION refuse()"
        )
    long_healthy(engine)
    with working(url, registry, prune_every=0.1) as worker:
        (other,) = add(engine, enqueue("runs"))
        wait_until(lambda: finished(engine, stays))
        wait_until(lambda: not statuses(engine, Job.id.in_([other, lost])))
        assert_nothing_leaked(engine, worker)


@pytest.mark.parametrize(
    "setting",
    [
        "DateStyle = 'SQL, DMY'",
        "default_transaction_isolation = 'serializable'",
        "search_path = ''",
        *nightly(
            "DateStyle = 'German'",
            "TimeZone = 'Europe/Berlin'",
            "TimeZone = 'FOO+3:17'",
            "default_transaction_deferrable = on",
            "standard_conforming_strings = off",
            "IntervalStyle = 'sql_standard'",
            "bytea_output = 'escape'",
            "client_encoding = 'LATIN1'",
        ),
    ],
)
def test_the_databases_settings_do_not_matter(
    engine: Engine, database_url: str, url: str, registry: Registry, setting: str
) -> None:
    """Whatever the database's default is, jobs are claimed, fail, are retried and complete."""
    runs: list[int] = []

    @task(registry=registry, name="fails once", retry=RetryPolicy(base=0))
    def fails_once(ctx: JobContext) -> None:
        ctx.session.execute(select(1))
        runs.append(ctx.job_id)
        if ctx.attempt == 1:
            raise ValueError("ü 1/2/2026")

    @task(registry=registry, name="async")
    async def async_handler(ctx: AsyncJobContext) -> None:
        await ctx.session.execute(select(1))

    ids = add(engine, enqueue("fails once"), enqueue("async"))
    with connect(url) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET ").format(name) + sql.SQL(setting))  # type: ignore[arg-type]
    engine.dispose()
    with working(url, registry) as worker:
        wait_until(lambda: statuses(engine) == ["completed"] * 2)
        assert_nothing_leaked(engine, worker)
    assert runs == [ids[0]] * 2


def test_a_session_that_is_used_while_its_job_commits_is_refused(engine: Engine, registry: Registry) -> None:
    """A thread or task that was left behind would begin a transaction that no code ends."""
    sessions: list[Session] = []
    backends: list[Any] = []
    refused: list[bool] = []

    @task(registry=registry, name="handler")
    def handler(ctx: JobContext) -> None:
        backends.append(ctx.session.connection().connection.dbapi_connection)
        sessions.append(ctx.session)

    def meanwhile(connection: Any) -> None:
        if sessions and connection.connection.dbapi_connection is backends[0]:
            try:
                sessions.pop().execute(select(1))
            except SessionUnavailable:
                refused.append(True)
            else:
                refused.append(False)

    (id,) = add(engine, enqueue("handler"))
    own = create_engine(engine.url)
    event.listen(own, "commit", meanwhile)
    with working(own, registry, listen=False):
        wait_until(lambda: refused and finished(engine, id))
    own.dispose()
    assert refused == [True]


def test_a_read_only_database_is_waited_out(
    engine: Engine, database_url: str, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a failover to a standby: it is said, and work begins once writing is possible."""

    @task(registry=registry, name="runs")
    async def runs() -> None: ...

    (id,) = add(engine, enqueue("runs"))
    set_to = sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}")
    with connect(url) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(set_to.format(name, sql.SQL("on")))
        with working(url, registry):
            wait_until(lambda: "read-only" in caplog.text)
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(set_to.format(name, sql.SQL("off")))
            engine.dispose()
            wait_until(lambda: finished(engine, id))


def test_a_schema_that_is_dropped_and_created_again_is_waited_for(
    engine: Engine, database_url: str, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker waits for it, and is woken by the new table as it was by the old one."""
    pooler.skip_where_deaf(url)

    @task(registry=registry, name="runs")
    async def runs() -> None: ...

    heard: list[str | None] = []
    monkeypatch.setattr(listener, "_PING", 0.1)
    notify = Claimer.notify
    monkeypatch.setattr(Claimer, "notify", lambda self, queue: (heard.append(queue), notify(self, queue)))
    with working(url, registry) as worker:
        services = services_of(worker)
        wait_until(lambda: worker.state().listening)
        downgrade_database(url)
        wait_until(lambda: services.claimer._connection.failures)
        upgrade_database(url)
        wait_until(lambda: not services.claimer._connection.failures)
        wait_until(lambda: add(engine, enqueue("runs")) and "default" in heard)
        wait_until(lambda: set(statuses(engine)) == {"completed"})


def test_a_wake_up_that_comes_with_the_answer_of_a_ping_is_heard(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener pings its connection, and a notification may come in between."""
    pooler.skip_where_deaf(url)
    heard: list[str | None] = []
    channel = default_store.channel

    def told_meanwhile(connection: Connection, **options: Any) -> str:
        name = channel(connection, **options)
        connection.execute(select(func.pg_notify(name, "meanwhile")))
        return name

    monkeypatch.setattr(listener, "_PING", 0.1)
    monkeypatch.setattr(Claimer, "notify", lambda self, queue: heard.append(queue))
    with working(url, registry) as worker:
        wait_until(lambda: worker.state().listening)
        monkeypatch.setattr(default_store, "channel", told_meanwhile)
        wait_until(lambda: "meanwhile" in heard)


def test_a_claim_is_read_committed_whatever_the_servers_default_is(database_url: str, registry: Registry) -> None:
    """At a higher level claims fail where another one was quicker, also those that are their own transaction."""
    url = pooler.direct(database_url)
    with connect(url) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    engine = create_engine(url)
    connector = Connector(engine, lease=60.0)
    levels = []
    with connector.connect() as claimer:
        for begin in (connector.begin, connector.begin_one):
            with begin(claimer):
                levels.append(claimer.scalar(text("SHOW transaction_isolation")))
    engine.dispose()
    assert levels == ["read committed", "read committed"]

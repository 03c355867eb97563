"""A worker goes on: after hostile handlers, odd rows, odd settings, and answers that were lost."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from psycopg import sql
from sqlalchemy import Connection, Engine, create_engine, delete, event, func, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import (
    AsyncJobContext,
    Job,
    JobContext,
    JobStatus,
    Registry,
    RetryPolicy,
    Snooze,
    TaskName,
    enqueue,
    task,
)
from sa_jobqueue.errors import SessionUnavailable
from sa_jobqueue.lifecycle import FINISHED
from sa_jobqueue.migrations import downgrade_database, upgrade_database
from sa_jobqueue.store import ClaimRequest, default_store
from sa_jobqueue.worker.claiming import fetch
from sa_jobqueue.worker.claiming.claimer import Claimer
from sa_jobqueue.worker.connections import listener
from sa_jobqueue.worker.connections.service import Connector
from tests.support import pooler
from tests.support.databases import connect, cut_line
from tests.support.factory import unfolding
from tests.support.waiting import wait_until, wait_until_async
from tests.support.working import add, drain, job_of, services_of, working

NEVER = RetryPolicy(no_retry=(BaseException,))


@pytest.fixture
def registry() -> Registry:
    return Registry()


def statuses(engine: Engine, *where: Any) -> list[JobStatus]:
    """By id, and nothing but them, for some rows hold what Python cannot."""
    with Session(engine) as session:
        return list(session.scalars(select(Job.status).where(*where).order_by(Job.id)))


def finished(engine: Engine, *ids: int) -> bool:
    return all(status in FINISHED for status in statuses(engine, Job.id.in_(ids)))


def sleeping(engine: Engine) -> bool:
    with engine.connect() as connection:
        return bool(connection.scalar(text("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")))


def assert_nothing_leaked(engine: Engine, worker: Any) -> None:
    """No slot is taken, no claim is held, no row is running."""
    services = services_of(worker)
    wait_until(lambda: len(services.runs) == 0)
    for slots in services.all_slots.values():
        wait_until(lambda slots=slots: slots.running == 0)
    with Session(engine) as session:
        assert session.scalar(select(func.count()).where(Job.status == JobStatus.RUNNING)) == 0


# ---- handlers


class Nameless(Exception):
    """Nothing about it can be asked."""

    def __str__(self) -> str:
        raise SystemExit("str")

    def __repr__(self) -> str:
        raise SystemExit("repr")


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, StopAsyncIteration, Nameless, BaseException]
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
        wait_until(lambda: finished(engine, *ids), 10)
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
        wait_until(lambda: finished(engine, *ids), 10)
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
        wait_until(lambda: finished(engine, *ids), 10)
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
        assert ended.wait(10)
        wait_until(lambda: finished(engine, id), 10)
        assert_nothing_leaked(engine, worker)
        assert refused
        asynchronous = worker._spec.engines.asynchronous
        assert asynchronous is not None
        for own in (worker.engine, asynchronous.sync_engine):
            # A service connection, too, is checked out for a moment, until it is detached.
            wait_until(lambda own=own: own.pool.checkedout() == 0)


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("end", ["returns", "raises"])
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


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_row_does_not_stop_its_queue(engine: Engine, url: str, registry: Registry, odd: str) -> None:
    """A row that plain SQL wrote is run or failed, and so is its neighbour, with both kinds of write."""

    @task(registry=registry, name="fails", retry=NEVER)
    def fails(ctx: JobContext) -> None:
        ctx.session.execute(select(1))
        raise ValueError

    @task(registry=registry, name="runs")
    async def runs() -> None: ...

    ids = add(engine, enqueue("fails"), enqueue("runs"), enqueue("runs"))
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE sa_jobqueue.job SET {ODD[odd]} WHERE id = {ids[0]}")
    with working(url, registry) as worker:
        wait_until(lambda: finished(engine, *ids[1:]), 10)
        assert_nothing_leaked(engine, worker)
    (status,) = statuses(engine, Job.id.not_in(ids[1:]))
    assert status == ("queued" if odd == "named at length" else "failed")


@pytest.mark.parametrize("odd", [*(odd for odd in ODD if odd not in _OF_CLAIMS_ALONE), "held by nobody"])
def test_an_odd_row_is_rescued(engine: Engine, url: str, registry: Registry, odd: str) -> None:
    """Left running by a dead worker, it ends too."""

    @task(registry=registry, name="runs", retry=NEVER)
    async def runs() -> None: ...

    ids = add(engine, enqueue("runs"), enqueue("runs"))
    setting = ODD.get(odd, "worker = NULL, lease_expires_at = NULL")
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE sa_jobqueue.job SET status = 'running', claims = 1, attempt = 1")
        connection.exec_driver_sql(f"UPDATE sa_jobqueue.job SET {setting} WHERE id = {ids[0]}")
    with working(url, registry, lease=0.5) as worker:
        wait_until(lambda: all(status in FINISHED for status in statuses(engine)), 10)
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
    with working(url, registry, lease=0.5, prune_every=0.1) as worker:
        (other,) = add(engine, enqueue("runs"))
        wait_until(lambda: finished(engine, stays), 10)
        wait_until(lambda: not statuses(engine, Job.id.in_([other, lost])), 10)
        assert_nothing_leaked(engine, worker)


@pytest.mark.parametrize(
    "setting",
    [
        "DateStyle = 'SQL, DMY'",
        "DateStyle = 'German'",
        "TimeZone = 'Europe/Berlin'",
        "TimeZone = 'FOO+3:17'",
        "default_transaction_isolation = 'serializable'",
        "default_transaction_deferrable = on",
        "standard_conforming_strings = off",
        "IntervalStyle = 'sql_standard'",
        "search_path = ''",
        "bytea_output = 'escape'",
        "client_encoding = 'LATIN1'",
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
        wait_until(lambda: statuses(engine) == ["completed"] * 2, 10)
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
        wait_until(lambda: add(engine, enqueue("runs")) and "default" in heard, 10)
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


class Lost:
    """Breaks the next service transaction after its COMMIT was done, as if the answer had been lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, when: Any) -> None:
        self.done = threading.Event()

        class Broken:
            def __init__(self, connection: Any, transaction: Any) -> None:
                self.connection, self.transaction = connection, transaction

            def __enter__(self) -> Any:
                return self.transaction.__enter__()

            def __exit__(broken, *error: object) -> Any:
                said = broken.transaction.__exit__(*error)
                serves = threading.current_thread().name == "sa-jobqueue claimer"
                if error[0] is None and serves and not self.done.is_set() and when():
                    self.done.set()
                    raise OperationalError("COMMIT", {}, Exception("the answer was lost"), connection_invalidated=True)
                return said

        def breaking(begin: Any) -> Any:
            return lambda own, connection: Broken(connection, begin(own, connection))

        for name in ("begin", "begin_one"):
            monkeypatch.setattr(Connector, name, breaking(getattr(Connector, name)))


@pytest.mark.parametrize("busy_with", ["completed", "running"])
def test_a_statement_that_outlives_its_connection_does_not_take_effect_unnoticed(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch, busy_with: str
) -> None:
    """The connection breaks while the server writes an outcome, or claims beside it. What it did would be its last word
    after the worker has looked what became of it: a claimed job that no worker knows of, an outcome that comes too late.
    """
    if pooler.is_pooled(url):
        pytest.skip("behind a pooler the connection that breaks is not the server's")
    begun, release = threading.Event(), threading.Event()

    @task(registry=registry, name="waits")
    def waits() -> None:
        begun.set()
        release.wait(30)

    @task(registry=registry, name="next")
    def next_() -> None: ...

    (first,) = add(engine, enqueue("waits"))
    with working(url, registry, queues={"default": 1}, buffer=0, lease=60) as worker:
        assert begun.wait(10)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE slow (yes bool)"))
            connection.execute(text("INSERT INTO slow VALUES (true)"))
            connection.execute(
                text(
                    "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                    "PERFORM pg_sleep(5) FROM slow; RETURN new; END $$"
                )
            )
            connection.execute(
                text(
                    "CREATE TRIGGER dawdle BEFORE UPDATE ON sa_jobqueue.job FOR EACH ROW "
                    f"WHEN (new.status = '{busy_with}') EXECUTE FUNCTION dawdle()"
                )
            )
        (second,) = add(engine, enqueue("next"))
        release.set()
        wait_until(lambda: sleeping(engine))
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM slow"))  # it sleeps once
        cut(services_of(worker).claimer._connection.current)
        wait_until(lambda: finished(engine, first) and finished(engine, second))
    with engine.connect() as connection:
        rows = connection.execute(select(Job.status, Job.claims, Job.rescues).order_by(Job.id)).all()
    assert rows == [("completed", 1, 0)] * 2
    assert (worker.counts["complete"], worker.counts["lost"]) == (2, 0)


def test_a_job_given_back_and_claimed_again_in_a_lost_commit_is_not_forgotten(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its old claim is known here and its new one is not: the worker compares both, and the job does not wait for its lease to run out."""
    runs: list[int] = []

    @task(registry=registry, name="runs")
    async def handler(ctx: AsyncJobContext) -> Snooze | None:
        runs.append(ctx.job_id)
        return Snooze(0) if len(runs) == 1 else None

    lost = Lost(monkeypatch, lambda: bool(runs) and claimed_twice())

    def claimed_twice() -> bool:
        with engine.connect() as connection:
            return bool(connection.scalar(select(Job.claims).where(Job.status == JobStatus.RUNNING)) == 2)

    (id,) = add(engine, enqueue("runs"))
    # One slot: it is claimed for in the transaction that writes what became of its last job, or right after it.
    with working(url, registry, queues={"default": 1}, buffer=0, lease=60) as worker:
        wait_until(lambda: finished(engine, id), 10)
        assert_nothing_leaked(engine, worker)
    assert lost.done.is_set()
    job = job_of(engine, id)
    assert (job.status, job.rescues, job.attempt, job.claims) == ("completed", 0, 1, 3)


def test_what_was_claimed_as_the_worker_leaves_goes_back_though_the_connection_breaks(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the claim's commit, before the worker knows of the jobs: they do not wait for their leases to run out."""
    fetching, leaving = threading.Event(), threading.Event()

    @task(registry=registry, name="large")
    async def large(text: str) -> None: ...

    def fetch(connection: Connection, *_: Any, **__: Any) -> None:
        fetching.set()
        assert leaving.wait(10)
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    monkeypatch.setattr(default_store, "fetch_args", fetch)
    (id,) = add(engine, enqueue("large", text="a" * 100_000))
    with working(url, registry, lease=60) as worker:
        assert fetching.wait(10)
        services = services_of(worker)
        worker.stop()
        wait_until(lambda: services.claimer._ending)
        leaving.set()
    job = job_of(engine, id)
    assert (job.status, job.attempt, job.claims) == ("queued", 0, 1)


def test_a_job_that_is_deleted_before_its_large_arguments_came_is_not_run(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its neighbours are."""
    ran: list[str] = []

    @task(registry=registry, name="large")
    async def large(text: str) -> None:
        ran.append(text[:4])

    def delete_first(_: Connection, id: int) -> None:
        if id == gone:
            with engine.begin() as other:
                other.execute(delete(Job).where(Job.id == id))

    before_each_fetch(monkeypatch, delete_first)
    gone, kept = add(engine, *(enqueue("large", text=name + "a" * 100_000) for name in ("gone", "kept")))
    drain(engine, registry)
    assert job_of(engine, kept).status == "completed"
    assert ran == ["kept"]


def before_each_fetch(monkeypatch: pytest.MonkeyPatch, do: Any) -> None:
    """`do(connection, id)` before the arguments of a job are fetched."""
    own = default_store.fetch_args

    def fetch_args(connection: Connection, id: int, **options: Any) -> Any:
        do(connection, id)
        return own(connection, id, **options)

    monkeypatch.setattr(default_store, "fetch_args", fetch_args)


def large(name: str) -> Job:
    """Its arguments do not come with the claim."""
    return enqueue("runs", name=name, text="a" * 100_000)


def test_a_job_runs_as_soon_as_its_large_arguments_are_there(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First what came with the claim, then each as it comes, while the next one's are on their way."""
    ran: list[str] = []

    @task(registry=registry, name="runs")
    def runs(name: str, text: str) -> None:
        ran.append(name)

    before: list[list[str]] = []

    def wait_for_those_before(*_: Any) -> None:
        wait_until(lambda: len(ran) > len(before))
        before.append(list(ran))

    before_each_fetch(monkeypatch, wait_for_those_before)
    add(engine, large("first"), large("second"), enqueue("runs", name="small", text=""))
    drain(engine, registry, lease=60)
    assert before == [["small"], ["small", "first"]]
    assert ran == ["small", "first", "second"]


@pytest.mark.parametrize(("limit", "most"), [(1_000, 64 * 2**20), (4 * 2**20, 256 * 2**20), (268_435_455, 2**30)])
def test_all_that_may_be_enqueued_is_fetched(
    engine: Engine, url: str, monkeypatch: pytest.MonkeyPatch, limit: int, most: int
) -> None:
    """A registry may accept more than usual; and a float of 6 characters comes back with 309 digits."""
    registry = Registry(max_payload=limit)
    asked: list[int] = []

    @task(registry=registry, name="runs")
    async def runs(name: str, text: str) -> None: ...

    own = default_store.fetch_args

    def fetch_args(*args: Any, most: int, **options: Any) -> Any:
        asked.append(most)
        return own(*args, most=most, **options)

    monkeypatch.setattr(default_store, "fetch_args", fetch_args)
    (id,) = add(engine, large("a"))
    drain(engine, registry)
    assert asked == [most]
    assert job_of(engine, id).status == "completed"


def test_what_cannot_be_fetched_in_time_goes_back(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one lease runs out, no attempt is spent, and with every claim there is one job less, however slow the network."""
    late = 0.0

    @task(registry=registry, name="runs")
    async def runs(name: str, text: str) -> None: ...

    def be_slow(*_: Any) -> None:
        nonlocal late
        late += 20

    before_each_fetch(monkeypatch, be_slow)
    own = fetch.monotonic
    monkeypatch.setattr(fetch, "monotonic", lambda: own() + late)
    ids = add(engine, *map(large, "abc"), enqueue("runs", name="small", text=""))
    worker = drain(engine, registry, lease=60)
    jobs = [job_of(engine, id) for id in ids]
    assert [(job.status, job.attempt, job.rescues) for job in jobs] == [("completed", 1, 0)] * 4
    assert [job.claims for job in jobs] == [1, 2, 3, 1]
    assert worker.counts["release"] == 3


@pytest.mark.parametrize("state", ["57014", "53200"])
def test_a_fetch_that_takes_too_much_holds_up_no_other_job(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, state: str
) -> None:  # fmt: skip
    """Perhaps it is the server's fault: the job goes back for a while, and its neighbours run meanwhile."""
    failed: list[int] = []

    @task(registry=registry, name="runs")
    async def runs(name: str, text: str) -> None: ...

    def fail_once(connection: Connection, id: int) -> None:
        if not failed:
            failed.append(id)
            connection.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'too much' USING ERRCODE = '{state}'; END $$"))

    before_each_fetch(monkeypatch, fail_once)
    monkeypatch.setattr(fetch, "_LATER", 0.2)
    ids = add(engine, *map(large, "abc"))
    with working(engine, registry, lease=60) as worker:
        wait_until(lambda: finished(engine, *ids))
        assert_nothing_leaked(engine, worker)
    assert [(job_of(engine, id).attempt, job_of(engine, id).claims) for id in ids] == [(1, 2), (1, 1), (1, 1)]
    assert f"job {failed[0]} goes back" in caplog.text
    assert "the database does not answer" not in caplog.text


def test_a_claim_that_fails_by_a_row_is_tried_again_without_arguments(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once; the one after it brings them along again."""
    asked: list[bool] = []

    @task(registry=registry, name="runs")
    async def runs(name: str, text: str) -> None: ...

    own = default_store.claim

    def claim(connection: Connection, request: ClaimRequest) -> Any:
        asked.append(request.inline)
        return own(connection, request)

    monkeypatch.setattr(default_store, "claim", claim)
    bad, good = add(engine, *map(large, "ab"))
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE sa_jobqueue.job SET args = {unfolding(9_000)} WHERE id = {bad}"))
    drain(engine, registry, lease=60)
    assert asked[:3] == [True, False, True]
    assert all(asked[2:])
    with Session(engine) as session:
        status, errors = session.execute(select(Job.status, Job.errors).where(Job.id == bad)).one()
    assert (status, errors[0]["type"]) == ("failed", "sa_jobqueue.errors.PayloadError")
    assert job_of(engine, good).status == "completed"


def test_an_unreadable_job_of_an_unknown_task_is_kept(engine: Engine, url: str, registry: Registry) -> None:
    """Another release may know the task."""
    (id,) = add(engine, large("a"))
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE sa_jobqueue.job SET args = {unfolding(9_000)} WHERE id = {id}"))
    worker = drain(engine, registry, lease=60)
    assert worker.counts["unknown"] == 1
    with Session(engine) as session:
        assert session.execute(select(Job.status, Job.attempt, Job.errors)).one() == ("queued", 0, [])


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


def test_leaving_does_not_fail_for_want_of_a_connection(engine: Engine, url: str, registry: Registry) -> None:
    """Handlers that never end may hold every connection of the application's pool; the worker leaves all the same."""
    entered, gate = threading.Event(), threading.Event()

    @task(registry=registry, name="holds")
    def holds(ctx: JobContext) -> None:
        ctx.session.execute(select(1))
        entered.set()
        gate.wait(30)

    small = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=0.1)
    (id,) = add(engine, enqueue("holds"))
    try:
        with working(small, registry, grace=0, listen=False):
            assert entered.wait(10)
        assert job_of(engine, id).status == "queued"
    finally:
        gate.set()
        wait_until(lambda: not small.pool.checkedout())  # type: ignore[attr-defined]
        small.dispose()


def test_a_lost_connection_is_replaced_by_a_new_one_not_by_an_old_one_of_the_pool(
    url: str, engine: Engine, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network that forgot the first has forgotten that one, too, and `pool_pre_ping` would ask it without a deadline. What
    handlers have is left to them.
    """
    held, gate, asked = threading.Event(), threading.Event(), list[str]()

    @task(registry=registry, name="quick")
    def quick(ctx: JobContext) -> None:
        ctx.session.execute(select(1))

    @task(registry=registry, name="holds")
    def holds(ctx: JobContext) -> None:
        ctx.session.execute(select(1))
        held.set()
        assert gate.wait(30)
        ctx.session.execute(select(1))

    def ping(_: object) -> bool:
        asked.append(threading.current_thread().name)
        return True

    own = create_engine(url, pool_pre_ping=True, **pooler.engine_options(url))
    monkeypatch.setattr(own.dialect, "do_ping", ping)
    with working(own, registry, listen=False, lease=60) as worker:
        ids = add(engine, enqueue("holds"))
        assert held.wait(10)
        ids += add(engine, enqueue("quick"))
        wait_until(lambda: finished(engine, ids[1]) and own.pool.checkedin())  # type: ignore[attr-defined]
        asked.clear()
        cut(services_of(worker).claimer._connection.current)
        ids += add(engine, enqueue("quick"))
        wait_until(lambda: finished(engine, ids[2]))
        gate.set()
        wait_until(lambda: finished(engine, *ids))
    own.dispose()
    assert "sa-jobqueue claimer" not in asked
    assert {(job.status, job.claims) for job in (job_of(engine, id) for id in ids)} == {(JobStatus.COMPLETED, 1)}


def cut(connection: Connection | None) -> None:
    assert connection is not None
    cut_line(connection.connection.dbapi_connection)

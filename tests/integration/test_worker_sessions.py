"""Where handlers' sessions come from, and what they keep: the application's own sessionmakers, engines, schemas, options."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, Select, create_engine, event, func, insert, inspect, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from sa_jobqueue import (
    AsyncJobContext,
    Discard,
    Job,
    JobContext,
    JobStatus,
    Registry,
    Retry,
    RetryPolicy,
    Snooze,
    Worker,
    enqueue,
    task,
)
from sa_jobqueue.errors import SessionUnavailable
from sa_jobqueue.migrations import upgrade_database
from tests.support import pooler
from tests.support.databases import connect, cut_line, driver_url
from tests.support.nightly import crossed
from tests.support.working import add, add_one, drain, job_of, worker_for


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "note"
    id: Mapped[int] = mapped_column(primary_key=True)
    said: Mapped[str]


class Marked(Session):
    """A session class of the application's own."""


async def test_the_applications_own_sessionmakers_are_used(
    engine: Engine, async_engine: AsyncEngine, registry: Registry
) -> None:
    """Its session class, its options, its engine; completed in the same transaction as ever."""
    Base.metadata.create_all(engine)
    kinds: list[str] = []

    @task(registry=registry, name="sync")
    def handler(ctx: JobContext) -> None:
        kinds.append(type(ctx.session).__name__)
        ctx.session.add(Note(said="sync"))

    @task(registry=registry, name="async")
    async def async_handler(ctx: AsyncJobContext) -> None:
        kinds.append(type(ctx.session.sync_session).__name__)
        ctx.session.add(Note(said="async"))

    ids = add(engine, enqueue(handler), enqueue(async_handler))
    worker = worker_for(
        engine,
        registry,
        async_engine=async_engine,
        sessionmaker=sessionmaker(engine, class_=Marked),
        async_sessionmaker=async_sessionmaker(async_engine, sync_session_class=Marked),
    )
    await worker.serve(until_idle=True)
    assert kinds == ["Marked", "Marked"]
    assert all(job_of(engine, id).is_finished for id in ids)
    with Session(engine) as session:
        assert sorted(session.scalars(select(Note.said))) == ["async", "sync"]


def test_async_handlers_may_use_another_driver(engine: Engine, url: str, registry: Registry) -> None:
    """An AsyncEngine over asyncpg serves `ctx.session`, completion included."""
    Base.metadata.create_all(engine)

    @task(registry=registry, name="async", record=True)
    async def handler(ctx: AsyncJobContext) -> str:
        ctx.session.add(Note(said="asyncpg"))
        return "é"

    (id,) = add(engine, enqueue(handler))

    async def main() -> None:
        other = create_async_engine(driver_url(url, "asyncpg"))
        await worker_for(engine, registry, async_engine=other).serve(until_idle=True)
        await other.dispose()

    asyncio.run(main())
    assert (job_of(engine, id).status, job_of(engine, id).result) == (JobStatus.COMPLETED, "é")


def test_without_an_async_engine_an_async_handlers_session_says_what_to_do(engine: Engine, registry: Registry) -> None:
    """A sync Engine is never made into an async one: connect arguments and events would be lost."""

    @task(registry=registry, name="async", max_attempts=1)
    async def handler(ctx: AsyncJobContext) -> None:
        await ctx.session.execute(text("SELECT 1"))

    (id,) = add(engine, enqueue(handler))
    drain(engine, registry)
    assert "AsyncEngine" in job_of(engine, id).errors[0]["message"]


@pytest.mark.parametrize("schema", ["My Jobs", None])
def test_the_whole_path_in_another_schema(empty_database_url: str, registry: Registry, schema: str | None) -> None:
    """Said once, to the engine: ours moves (None: to the default schema), the application's tables stay where they are."""
    engine = create_engine(empty_database_url, execution_options={"schema_translate_map": {"sa_jobqueue": schema}})
    upgrade_database(engine)
    Base.metadata.create_all(engine)

    @task(registry=registry, name="handler")
    def handler(ctx: JobContext, n: int) -> None:
        ctx.session.add(Note(said=f"{n}"))
        if n:
            ctx.session.add(enqueue(handler, n - 1))

    add(engine, enqueue(handler, 2), enqueue(handler.options(delay=3600), 9))
    drain(engine, registry)
    name = schema or "public"
    with connect(empty_database_url) as plain:
        assert plain.execute(f"SELECT count(*) FROM \"{name}\".job WHERE status = 'completed'").fetchone() == (3,)
        assert plain.execute("SELECT to_regnamespace('sa_jobqueue')").fetchone() == (None,)
        assert plain.execute("SELECT count(*) FROM public.note").fetchone() == (3,)
    engine.dispose()
    # The same by a URL and a name.
    asyncio.run(Worker(empty_database_url, {"default": 1}, registry=registry, schema=name).serve(until_idle=True))


# ---- what a session keeps


@pytest.fixture
def notes(engine: Engine) -> Engine:
    Base.metadata.create_all(engine)
    return engine


@pytest.fixture
def elsewhere(empty_database_url: str) -> Iterator[Engine]:
    """Another database of the application's, with the same table."""
    engine = create_engine(empty_database_url)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def written(engine: Engine) -> list[str]:
    with Session(engine) as session:
        return list(session.scalars(select(Note.said).order_by(Note.said)))


def clock() -> Select[tuple[datetime]]:
    return select(func.clock_timestamp())


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_delays_and_times_count_from_the_end_of_the_handler(
    notes: Engine, url: str, registry: Registry, kind: str
) -> None:
    """Not from the beginning of its transaction, however long that lasted."""
    ends: list[datetime] = []
    outcomes: list[Any] = [Snooze(3600), Retry(after=3600), None]

    @task(registry=registry, name="sync", retain=60)
    def handler(ctx: JobContext, n: int) -> Any:
        ends.append(ctx.session.scalars(clock()).one())
        return outcomes[n]

    @task(registry=registry, name="async", retain=60)
    async def async_handler(ctx: AsyncJobContext, n: int) -> Any:
        ends.append((await ctx.session.scalars(clock())).one())
        return outcomes[n]

    chosen = handler if kind == "sync" else async_handler
    ids = add(notes, *(enqueue(chosen, n) for n in range(3)))
    drain(url, registry, queues={"default": 1})
    snoozed, retried, completed = (job_of(notes, id) for id in ids)
    assert snoozed.run_at >= ends[0] + timedelta(hours=1)
    assert retried.run_at >= ends[1] + timedelta(hours=1)
    assert datetime.fromisoformat(retried.errors[0]["at"]) >= ends[1]
    assert completed.finished_at is not None
    assert completed.finished_at >= ends[2]
    assert completed.purge_at == completed.finished_at + timedelta(seconds=60)


@pytest.mark.parametrize(("kind", "committed_before"), crossed(["sync", "async"], [False, True]))
def test_what_was_not_committed_when_a_session_is_closed_is_not_kept(
    notes: Engine, url: str, registry: Registry, committed_before: bool, kind: str
) -> None:
    """As in any session; also at the end of `with ctx.session:`, and by `reset()`. What the handler committed is kept."""

    @task(registry=registry, name="sync")
    def handler(ctx: JobContext) -> None:
        if committed_before:
            ctx.session.add(Note(said="committed"))
            ctx.session.commit()
        with ctx.session as session:
            session.add(Note(said="in a block"))
            session.flush()
        ctx.session.add(Note(said="reset"))
        ctx.session.flush()
        ctx.session.reset()
        ctx.session.add(Note(said="later"))

    @task(registry=registry, name="async")
    async def async_handler(ctx: AsyncJobContext) -> None:
        if committed_before:
            ctx.session.add(Note(said="committed"))
            await ctx.session.commit()
        async with ctx.session as session:
            session.add(Note(said="in a block"))
            await session.flush()
        ctx.session.add(Note(said="reset"))
        await ctx.session.flush()
        await ctx.session.reset()
        ctx.session.add(Note(said="later"))

    id = add_one(notes, enqueue(handler if kind == "sync" else async_handler))
    drain(url, registry)
    assert written(notes) == (["committed", "later"] if committed_before else ["later"])
    assert job_of(notes, id).status == JobStatus.COMPLETED


def test_an_autocommit_engine_of_a_sessionmaker_commits_with_the_job(
    notes: Engine, url: str, registry: Registry
) -> None:
    """Whatever the engine would do by itself: what a failing handler wrote is not kept."""
    automatic = create_engine(url, isolation_level="AUTOCOMMIT")
    async_automatic = create_async_engine(url, isolation_level="AUTOCOMMIT")

    @task(registry=registry, name="sync", max_attempts=1)
    def handler(ctx: JobContext) -> None:
        ctx.session.add(Note(said="sync"))
        ctx.session.flush()
        raise Discard("after all")

    @task(registry=registry, name="async", max_attempts=1)
    async def async_handler(ctx: AsyncJobContext) -> None:
        ctx.session.add(Note(said="async"))
        await ctx.session.flush()
        raise Discard("after all")

    ids = add(notes, enqueue(handler), enqueue(async_handler))

    async def main() -> None:
        maker = sessionmaker(automatic)
        worker = worker_for(notes, registry, async_engine=async_automatic, sessionmaker=maker)
        await worker.serve(until_idle=True)
        await async_automatic.dispose()

    asyncio.run(main())
    automatic.dispose()
    assert [job_of(notes, id).status for id in ids] == [JobStatus.FAILED] * 2
    assert written(notes) == []


def test_an_engine_that_others_put_into_autocommit_stays_so(notes: Engine, url: str, registry: Registry) -> None:
    """By a listener, of which SQLAlchemy knows nothing: the job's connection does not go back to the pool."""
    automatic = create_engine(url, pool_size=1, max_overflow=0)

    @event.listens_for(automatic, "connect")
    def set_autocommit(connection: Any, _: object) -> None:
        connection.autocommit = True

    @task(registry=registry, name="handler", max_attempts=1)
    def handler(ctx: JobContext) -> None:
        ctx.session.add(Note(said="job"))
        ctx.session.flush()
        raise Discard("after all")

    id = add_one(notes, enqueue(handler))
    drain(notes, registry, sessionmaker=sessionmaker(automatic))
    with automatic.connect() as connection:
        connection.execute(insert(Note).values(said="application"))
    automatic.dispose()
    assert job_of(notes, id).status == JobStatus.FAILED
    assert written(notes) == ["application"]


def test_what_a_driver_was_told_of_its_transactions_holds_for_handlers(
    notes: Engine, url: str, registry: Registry
) -> None:
    """By a listener of the application's; a BEGIN that says nothing more would be another transaction than theirs."""
    reading = create_engine(url)

    @event.listens_for(reading, "connect")
    def set_read_only(connection: Any, _: object) -> None:
        connection.read_only = True

    @task(registry=registry, name="handler", max_attempts=1)
    def handler(ctx: JobContext) -> None:
        ctx.session.add(Note(said="job"))
        ctx.session.flush()

    id = add_one(notes, enqueue(handler))
    drain(notes, registry, sessionmaker=sessionmaker(reading))
    reading.dispose()
    job = job_of(notes, id)
    assert (job.status, job.errors[-1]["type"]) == (JobStatus.FAILED, "sqlalchemy.exc.InternalError")
    assert "read-only transaction" in job.errors[-1]["message"]


def test_connections_that_broke_in_the_pool_cost_no_attempt(notes: Engine, url: str, registry: Registry) -> None:
    """BEGIN finds each of them out before the handler has done anything, and the pool gives another one."""
    own, opened = create_engine(url, pool_size=2, **pooler.engine_options(url)), list[Any]()

    @event.listens_for(own, "connect")
    def note(connection: Any, _: object) -> None:
        opened.append(connection)

    @task(registry=registry, name="handler", max_attempts=1)
    def handler(ctx: JobContext) -> None:
        ctx.session.add(Note(said=f"attempt {ctx.attempt}"))

    with own.connect(), own.connect():
        pass
    for connection in opened:
        cut_line(connection)
    id = add_one(notes, enqueue(handler))
    drain(notes, registry, sessionmaker=sessionmaker(own))
    own.dispose()
    job = job_of(notes, id)
    assert (job.status, job.attempt, job.errors, len(opened)) == (JobStatus.COMPLETED, 1, [], 3)
    assert written(notes) == ["attempt 1"]


def test_engines_of_one_pool_write_together_with_the_job(notes: Engine, url: str, registry: Registry) -> None:
    """Each where it has its tables: nothing is published before the completion, and jobs are enqueued where they are."""
    with notes.begin() as connection:
        connection.execute(text("CREATE SCHEMA tenant"))
        connection.execute(text("CREATE TABLE tenant.note (LIKE public.note INCLUDING ALL)"))
    tenant = notes.execution_options(schema_translate_map={None: "tenant"})

    @task(registry=registry, name="handler", max_attempts=2, retry=RetryPolicy(base=0))
    def handler(ctx: JobContext, again: bool) -> None:
        if again:
            ctx.session.add(enqueue(handler, False))
        ctx.session.add(Note(said=f"attempt {ctx.attempt}"))
        ctx.session.flush()
        ctx.session.execute(text("INSERT INTO public.note (said) VALUES ('by text')"))
        assert ctx.session.scalars(select(Note.said)).all()[-1] == f"attempt {ctx.attempt}"
        assert ctx.session.scalar(select(func.count()).select_from(Job)) == 3
        ctx.session.commit()
        if ctx.attempt == 1 and again:
            raise RuntimeError("once")

    add(notes, enqueue("elsewhere", queue="other"), enqueue(handler, True))
    drain(notes, registry, sessionmaker=sessionmaker(notes, binds={Base: tenant}))
    assert written(tenant) == ["attempt 1", "attempt 2"]
    assert written(notes) == ["by text"] * 2
    with notes.connect() as connection:
        together = text("SELECT count(*) FROM tenant.note, sa_jobqueue.job WHERE note.xmin = job.xmin")
        assert connection.scalar(together) == 2


def test_a_session_may_read_elsewhere(notes: Engine, url: str, registry: Registry) -> None:
    """SQLAlchemy's way to route reads to a replica: what is read only is no place for the completion."""
    reading = notes.execution_options(postgresql_readonly=True)

    class Routed(Session):
        """Reads here, and writes there."""

        def get_bind(self, *args: Any, clause: Any = None, **options: Any) -> Engine:
            return reading if isinstance(clause, Select) else notes

    @task(registry=registry, name="handler", max_attempts=1)
    def handler(ctx: JobContext) -> None:
        assert ctx.session.scalar(text("SHOW transaction_read_only")) == "off"
        assert ctx.session.scalar(select(func.current_setting("transaction_read_only"))) == "on"
        ctx.session.add(Note(said="done"))

    id = add_one(notes, enqueue(handler))
    drain(notes, registry, sessionmaker=sessionmaker(class_=Routed))
    assert job_of(notes, id).status == JobStatus.COMPLETED
    assert written(notes) == ["done"]


@pytest.mark.parametrize("way", ["get_bind", "binds"])
def test_an_engine_of_its_own_for_the_jobs_database_is_warned_of(
    notes: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """What it writes is not in the job's transaction. It is for the application to say whether that is meant."""
    application = create_engine(url)

    class Routed(Session):
        """As Flask-SQLAlchemy's."""

        def get_bind(self, *args: Any, **options: Any) -> Engine:
            return application

    makers: dict[str, Any] = {"get_bind": sessionmaker(class_=Routed), "binds": sessionmaker(binds={Base: application})}

    @task(registry=registry, name="handler")
    def handler(ctx: JobContext) -> None:
        ctx.session.add(Note(said="done"))

    add(notes, enqueue(handler), enqueue(handler))
    drain(url, registry, sessionmaker=makers[way])
    assert caplog.text.count("by an engine of its own (its binds, or get_bind)") == 1

    caplog.clear()
    id = add_one(notes, enqueue(handler))
    drain(application, registry, sessionmaker=makers[way])
    application.dispose()
    assert "of its own" not in caplog.text
    assert job_of(notes, id).status == JobStatus.COMPLETED
    assert written(notes) == ["done"] * 3
    with notes.connect() as connection:
        together = text("SELECT count(*) FROM note, sa_jobqueue.job WHERE note.xmin = job.xmin")
        assert connection.scalar(together) == 1


def test_a_session_follows_its_own_engines_translations(notes: Engine, url: str, registry: Registry) -> None:
    """The worker's are only for what that engine does not say."""
    with notes.begin() as connection:
        for name in ("tenant_a", "tenant_b"):
            connection.execute(text(f"CREATE SCHEMA {name}"))
            connection.execute(text(f"CREATE TABLE {name}.note (LIKE public.note INCLUDING ALL)"))
    a, b = (notes.execution_options(schema_translate_map={None: name}) for name in ("tenant_a", "tenant_b"))

    @task(registry=registry, name="handler")
    def handler(ctx: JobContext, said: str) -> None:
        ctx.session.add(Note(said=said))

    add_one(notes, enqueue(handler, "b"))
    drain(a, registry, sessionmaker=sessionmaker(b))
    add_one(notes, enqueue(handler, "a"))
    drain(a, registry)
    assert written(notes) == []
    assert (written(a), written(b)) == (["a"], ["b"])


@pytest.mark.parametrize(
    "options",
    [{"stream_results": True}, {"yield_per": 10}, {"schema_translate_map": {None: "tenant"}}],
    ids=["stream_results", "yield_per", "schema_translate_map"],
)
def test_a_handlers_options_are_for_its_own_statements(
    empty_database_url: str, registry: Registry, options: dict[str, Any]
) -> None:
    """The completion goes where the jobs are, which is not where they are by default, and is no cursor."""
    engine = create_engine(empty_database_url, execution_options={"schema_translate_map": {"sa_jobqueue": "jobs"}})
    upgrade_database(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA tenant"))
        connection.execute(text("CREATE TABLE tenant.note (id serial PRIMARY KEY, said text)"))
        connection.execute(text("CREATE TABLE public.note (id serial PRIMARY KEY, said text)"))

    moved = "schema_translate_map" in options

    @task(registry=registry, name="handler", max_attempts=1, record=True)
    def handler(ctx: JobContext) -> str:
        ctx.session.connection(execution_options=options)
        if moved:
            ctx.session.execute(insert(Note).values(said="done"))
        else:
            assert ctx.session.execute(select(Note)).all() == []
        return "done"

    id = add_one(engine, enqueue(handler))
    drain(engine, registry)
    job = job_of(engine, id)
    assert (job.status, job.result) == (JobStatus.COMPLETED, "done")
    assert written(engine.execution_options(**options)) == (["done"] if moved else [])
    engine.dispose()


def test_what_a_listener_writes_at_the_end_is_kept(notes: Engine, url: str, registry: Registry) -> None:
    """Once, with the completion; also where the handler itself wrote nothing."""

    class Audited(Session):
        """With a listener that writes."""

    event.listen(Audited, "before_commit", lambda session: session.execute(insert(Note).values(said="audit")))

    @task(registry=registry, name="handler")
    def handler(ctx: JobContext, writes: bool) -> None:
        if writes:
            ctx.session.add(Note(said="done"))
        else:
            ctx.session.info["seen"] = True

    for writes, stays in (False, ["audit"]), (True, ["audit", "audit", "done"]):
        id = add_one(notes, enqueue(handler, writes))
        drain(notes, registry, sessionmaker=sessionmaker(notes, class_=Audited))
        assert job_of(notes, id).status == JobStatus.COMPLETED
        assert written(notes) == stays


@pytest.mark.parametrize("name", ["before_commit", "after_commit", "after_transaction_end", "deleted_to_detached"])
def test_listeners_of_a_session_hear_its_commit(notes: Engine, url: str, registry: Registry, name: str) -> None:
    """While the transaction is still open: the worker's connection commits after it."""
    heard, kept = [], []

    class Heard(Session):
        """With a listener."""

    @event.listens_for(Heard, name)
    def note(*_: Any) -> None:
        heard.append(job_of(notes, id).status)

    @task(registry=registry, name="handler")
    def handler(ctx: JobContext) -> None:
        ctx.session.add(Note(said="done"))
        kept.append(Note(said="goes"))
        ctx.session.add(*kept)
        ctx.session.flush()
        ctx.session.delete(*kept)

    id = add_one(notes, enqueue(handler))
    drain(notes, registry, sessionmaker=sessionmaker(notes, class_=Heard))
    assert set(heard) == {JobStatus.RUNNING}
    assert written(notes) == ["done"]


def test_what_a_listener_adds_to_the_last_flush_is_kept(notes: Engine, url: str, registry: Registry) -> None:
    """As libraries do that write a history."""

    class Historic(Session):
        """Adds an object for each that was flushed."""

    @event.listens_for(Historic, "after_flush")
    def add_history(session: Session, _: Any) -> None:
        session.add_all([Note(said="history") for note in session.new if note.said == "done"])

    @task(registry=registry, name="handler")
    def handler(ctx: JobContext) -> None:
        ctx.session.add(Note(said="done"))

    add_one(notes, enqueue(handler))
    drain(notes, registry, sessionmaker=sessionmaker(notes, class_=Historic, expire_on_commit=False))
    assert written(notes) == ["done", "history"]


def test_a_commit_of_the_applications_own_class_is_called(notes: Engine, url: str, registry: Registry) -> None:
    """What that `commit()` writes is committed with the job."""

    class Committing(Session):
        """Writes once more when it commits."""

        def commit(self) -> None:
            self.add(Note(said="by commit()"))
            super().commit()

    @task(registry=registry, name="handler")
    def handler(ctx: JobContext) -> None:
        ctx.session.execute(insert(Note).values(said="done"))

    add_one(notes, enqueue(handler))
    drain(notes, registry, sessionmaker=sessionmaker(notes, class_=Committing))
    assert written(notes) == ["by commit()", "done"]


def test_objects_that_outlive_their_job_are_expired_and_detached(notes: Engine, url: str, registry: Registry) -> None:
    """As after any commit: they show nothing that may have changed since."""
    kept: list[Note] = []

    @task(registry=registry, name="handler")
    def handler(ctx: JobContext) -> None:
        added, deleted = Note(said="stays"), Note(said="goes")
        ctx.session.add_all([added, deleted])
        ctx.session.flush()
        ctx.session.delete(deleted)
        kept.extend([added, deleted])

    add_one(notes, enqueue(handler))
    drain(notes, registry)
    assert written(notes) == ["stays"]
    stays, goes = map(inspect, kept)
    assert stays.detached
    assert stays.expired_attributes >= {"id", "said"}
    assert goes.detached
    assert goes.was_deleted


@pytest.mark.parametrize("committed", [True, False])
def test_a_savepoint_that_was_left_open_is_kept(notes: Engine, url: str, registry: Registry, committed: bool) -> None:
    """As SQLAlchemy's commit() does: it releases what is open."""

    @task(registry=registry, name="handler", max_attempts=1)
    def handler(ctx: JobContext, n: int) -> None:
        ctx.session.execute(insert(Note).values(said=f"{n} before"))
        if committed:
            ctx.session.commit()
        ctx.session.execute(insert(Note).values(said=f"{n} outside"))
        ctx.session.begin_nested()
        ctx.session.execute(insert(Note).values(said=f"{n} within"))

    ids = add(notes, enqueue(handler, 1), enqueue(handler, 2))
    drain(notes, registry, queues={"default": 1})  # the second has the connection that the first gave back
    assert [job_of(notes, id).status for id in ids] == [JobStatus.COMPLETED] * 2
    assert written(notes) == [f"{n} {what}" for n in (1, 2) for what in ("before", "outside", "within")]


def test_what_a_session_writes_to_another_database_is_committed(
    notes: Engine, url: str, registry: Registry, elsewhere: Engine
) -> None:
    """Each database has the rows that the handler wrote to it."""

    @task(registry=registry, name="handler", max_attempts=1)
    def handler(ctx: JobContext) -> None:
        ctx.session.execute(text("INSERT INTO note (said) VALUES ('here')"))
        ctx.session.execute(insert(Note).values(said="there"))

    id = add_one(notes, enqueue(handler))
    drain(notes, registry, sessionmaker=sessionmaker(notes, binds={Note: elsewhere}))
    assert job_of(notes, id).status == JobStatus.COMPLETED
    assert (written(notes), written(elsewhere)) == (["here"], ["there"])


def test_a_flush_that_failed_and_was_swallowed_fails_the_job(notes: Engine, url: str, registry: Registry) -> None:
    """It took with it what was written before: the job must not end as completed."""
    with notes.begin() as connection:
        connection.execute(insert(Note).values(id=1_000, said="old"))

    @task(registry=registry, name="handler", max_attempts=1)
    def handler(ctx: JobContext) -> None:
        ctx.session.execute(insert(Note).values(said="important"))
        ctx.session.add(Note(id=1_000, said="again"))
        with suppress(IntegrityError):
            ctx.session.flush()

    id = add_one(notes, enqueue(handler))
    drain(notes, registry)
    assert job_of(notes, id).status == JobStatus.FAILED
    assert written(notes) == ["old"]


def test_what_goes_to_another_database_by_a_statements_bind_is_committed(
    notes: Engine, url: str, registry: Registry, elsewhere: Engine
) -> None:
    """A session does not ask for its bind then."""

    @task(registry=registry, name="handler", max_attempts=1)
    def handler(ctx: JobContext) -> None:
        ctx.session.execute(insert(Note).values(said="here"))
        ctx.session.connection(bind_arguments={"bind": elsewhere}).execute(insert(Note).values(said="there"))

    id = add_one(notes, enqueue(handler))
    drain(notes, registry)
    assert job_of(notes, id).status == JobStatus.COMPLETED
    assert (written(notes), written(elsewhere)) == (["here"], ["there"])


def test_a_session_has_its_own_close_back_when_its_job_has_ended(notes: Engine, url: str, registry: Registry) -> None:
    """The worker replaces `close()` only while the job runs."""
    closed: list[str] = []
    sessions: list[Session] = []

    class Closing(Session):
        """With a close() that each of them has for itself."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.close = lambda: closed.append("closed")  # type: ignore[method-assign]

    @task(registry=registry, name="handler")
    def handler(ctx: JobContext) -> None:
        ctx.session.execute(insert(Note).values(said="done"))
        sessions.append(ctx.session)

    add_one(notes, enqueue(handler))
    drain(notes, registry, sessionmaker=sessionmaker(notes, class_=Closing))
    closed.clear()
    sessions[0].close()
    assert closed == ["closed"]
    with pytest.raises(SessionUnavailable, match="the job has ended"):
        sessions[0].execute(select(Note))


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_session_is_no_garbage_that_has_to_be_searched_for(
    notes: Engine, url: str, registry: Registry, kind: str
) -> None:
    """Cycles of references would have Python's collector go through all there is, again and again."""
    sessions: list[weakref.ref[Any]] = []

    @task(registry=registry, name="sync")
    def in_thread(ctx: JobContext, n: int) -> None:
        ctx.session.add(Note(said=str(n)))
        sessions.append(weakref.ref(ctx.session))

    @task(registry=registry, name="async")
    async def on_loop(ctx: AsyncJobContext, n: int) -> None:
        ctx.session.add(Note(said=str(n)))
        sessions.append(weakref.ref(ctx.session.sync_session))

    handler = in_thread if kind == "sync" else on_loop
    add(notes, *(enqueue(handler, n) for n in range(3)))
    gc.collect()
    gc.disable()
    try:
        drain(url, registry)
        assert len(sessions) == 3
        assert [session() for session in sessions] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize("does", ["nothing", "begins", "begins and ends"])
def test_a_session_without_autobegin_is_the_handlers_to_begin(
    notes: Engine, url: str, registry: Registry, does: str
) -> None:
    """`begin()` works, also as a context manager, and may be left out."""

    @task(registry=registry, name="handler", max_attempts=1)
    def handler(ctx: JobContext) -> None:
        if does == "nothing":
            ctx.session.expunge_all()
        elif does == "begins":
            ctx.session.begin()
            ctx.session.add(Note(said="done"))
        else:
            with ctx.session.begin():
                ctx.session.add(Note(said="done"))

    id = add_one(notes, enqueue(handler))
    drain(notes, registry, sessionmaker=sessionmaker(notes, autobegin=False))
    assert job_of(notes, id).status == JobStatus.COMPLETED
    assert written(notes) == ([] if does == "nothing" else ["done"])


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(("said", "expected"), [(None, "1h"), ("5min", "5min")])
def test_a_handlers_transaction_does_not_sit_idle_for_ever(
    database_url: str, registry: Registry, kind: str, said: str | None, expected: str
) -> None:
    """On connections that the worker makes itself: an hour, where the server says nothing. An engine that was given is as it was."""
    found: list[str] = []
    shown = text("SELECT current_setting('idle_in_transaction_session_timeout')")

    @task(registry=registry, name="sync")
    def sync_handler(ctx: JobContext) -> None:
        found.append(str(ctx.session.scalar(shown)))

    @task(registry=registry, name="async")
    async def async_handler(ctx: AsyncJobContext) -> None:
        found.append(str(await ctx.session.scalar(shown)))

    if pooler.is_pooled(database_url):
        pytest.skip("the server's connections are the pooler's")
    engine = create_engine(database_url)
    if said is not None:
        with engine.begin() as connection:
            name = engine.dialect.identifier_preparer.quote(str(engine.url.database))
            connection.execute(text(f"ALTER DATABASE {name} SET idle_in_transaction_session_timeout = '{said}'"))
        engine.dispose()
    own = create_async_engine(database_url)
    add(engine, enqueue(kind))
    drain(database_url, registry)
    add(engine, enqueue(kind))

    async def main() -> None:
        await worker_for(engine, registry, async_engine=own).serve(until_idle=True)
        await own.dispose()

    asyncio.run(main())
    engine.dispose()
    assert found == [expected, said or "0"]

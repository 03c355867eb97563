"""Where the worker made the engines, a handler's completion and its COMMIT are one message: what may go wrong with it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, NullPool, create_engine, event, text, update
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import AsyncJobContext, Job, JobContext, JobStatus, Registry, RetryPolicy, enqueue, task
from sa_jobqueue.worker import direct
from tests.support import pooler
from tests.support.databases import cut_line
from tests.support.working import add, add_one, drain, job_of

NOTE = "INSERT INTO note VALUES (1)"
NEVER = RetryPolicy(no_retry=(BaseException,))
PREPARED = "INSERT INTO prepared SELECT name FROM pg_prepared_statements WHERE name = 'sa_jobqueue_complete'"


@pytest.fixture(autouse=True)
def unpooled(url: str) -> None:
    if pooler.is_pooled(url):
        pytest.skip("behind a pooler nothing is prepared")


@pytest.fixture(params=["def", "async def"])
def made(request: pytest.FixtureRequest) -> Callable[..., Registry]:
    """Registries of one task that executes these statements by `ctx.session`, and then does what it is told with it."""

    def make(*statements: str, then: Callable[[Session, int], object] = lambda *_: None, **rules: Any) -> Registry:
        registry = Registry()

        def run(session: Session, id: int) -> None:
            for statement in statements:
                session.execute(text(statement))
            then(session, id)

        if request.param == "def":

            @task(registry=registry, name="writes", **rules)
            def on_thread(ctx: JobContext) -> None:
                run(ctx.session, ctx.job_id)

        else:

            @task(registry=registry, name="writes", **rules)
            async def on_loop(ctx: AsyncJobContext) -> None:
                await ctx.session.run_sync(run, ctx.job_id)

        return registry

    return make


@pytest.fixture
def notes(engine: Engine) -> Engine:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE note (n integer)"))
        connection.execute(text("CREATE TABLE prepared (name text)"))
    return engine


def counted(engine: Engine, table: str = "note") -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def test_a_job_and_its_writes_are_one_transaction(notes: Engine, url: str, made: Callable[..., Registry]) -> None:
    ids = add(notes, *[enqueue("writes") for _ in range(20)])
    worker = drain(url, made(NOTE, PREPARED), queues={"default": 1})
    assert {job_of(notes, id).status for id in ids} == {JobStatus.COMPLETED}
    assert (counted(notes), worker.counts["complete"]) == (20, 20)
    assert 0 < 20 - counted(notes, "prepared") <= 4  # the service takes three of the pool's connections for itself
    with notes.connect() as connection:
        together = connection.scalar(text("SELECT count(*) FROM note, sa_jobqueue.job WHERE note.xmin = job.xmin"))
        kept = text("SELECT DISTINCT extract(epoch FROM purge_at - finished_at) FROM sa_jobqueue.job")
        assert (together, connection.scalars(kept).all()) == (20, [604_800])


@pytest.mark.parametrize("rules", [{"retain": None}, {"retain": 0}, {"retain": 0.25}, {"record": True}])
def test_whatever_a_completion_says(
    notes: Engine, url: str, made: Callable[..., Registry], rules: dict[str, Any]
) -> None:
    id = add_one(notes, enqueue("writes"))
    drain(url, made(NOTE, **rules))
    with Session(notes) as session:
        job = session.get(Job, id)
    assert counted(notes) == 1
    if rules.get("retain") == 0:
        assert job is None
    else:
        assert job is not None
        assert job.status == JobStatus.COMPLETED
        assert (job.purge_at is None) == ("retain" in rules and rules["retain"] is None)


def test_a_lost_claim_commits_nothing(
    notes: Engine, url: str, made: Callable[..., Registry], caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody gave the job back meanwhile: the second run writes; and nobody heard of a commit of the first."""
    heard: list[str] = []

    def lose(session: Session, id: int) -> None:
        if not heard:
            heard.append("lost")
            back = {"status": JobStatus.QUEUED, "worker": None, "lease_expires_at": None, "claimed_at": None}
            with notes.begin() as connection:
                connection.execute(update(Job.__table__).where(Job.id == id).values(back))  # type: ignore[arg-type]

    id = add_one(notes, enqueue("writes"))
    worker = drain(url, made(NOTE, then=lose), queues={"default": 1})
    job = job_of(notes, id)
    assert (job.status, job.claims, counted(notes)) == (JobStatus.COMPLETED, 2, 1)
    assert worker.counts["complete"] == 1
    assert caplog.text.count("its claim was lost; nothing it wrote was kept") == 1


@pytest.mark.parametrize("name", ["after_commit", "before_commit", "from before_commit"])
def test_who_hears_of_a_sessions_commit_hears_of_none_that_a_lost_claim_undoes(
    notes: Engine, url: str, made: Callable[..., Registry], name: str
) -> None:
    heard: list[str] = []

    def hear(session: Session) -> None:
        heard.append(name)

    def register(session: Session) -> None:
        event.listen(session, "after_commit", hear)

    def lose(session: Session, id: int) -> None:
        if name == "from before_commit":
            event.listen(session, "before_commit", register)
        else:
            event.listen(session, name, hear)
        with notes.begin() as connection:
            connection.execute(text("DELETE FROM sa_jobqueue.job"))

    add_one(notes, enqueue("writes"))
    drain(url, made(NOTE, then=lose))
    assert (counted(notes), heard) == (0, [])


def test_what_is_refused_at_the_commit_fails_the_attempt(
    notes: Engine, url: str, made: Callable[..., Registry]
) -> None:
    with notes.begin() as connection:
        connection.execute(text("ALTER TABLE note ADD UNIQUE (n) DEFERRABLE INITIALLY DEFERRED"))
        connection.execute(text(NOTE))
    id = add_one(notes, enqueue("writes"))
    drain(url, made(NOTE, retry=NEVER))
    job = job_of(notes, id)
    assert (job.status, job.errors[-1]["type"]) == (JobStatus.FAILED, "sqlalchemy.exc.IntegrityError")
    assert "duplicate key value" in job.errors[-1]["message"]
    assert counted(notes) == 1


def test_who_forgets_what_is_prepared_loses_one_attempt(notes: Engine, url: str, made: Callable[..., Registry]) -> None:
    """From then on the worker prepares nothing."""
    rules = {"retry": RetryPolicy(base=0)}
    ids = add(notes, *[enqueue("writes") for _ in range(4)])  # psycopg prepares what it says five times
    drain(url, made(NOTE, "DEALLOCATE ALL", **rules), queues={"default": 1})
    jobs = [job_of(notes, id) for id in ids]
    assert {job.status for job in jobs} == {JobStatus.COMPLETED}
    assert (sum(job.attempt for job in jobs), counted(notes)) == (5, 4)


def test_a_line_that_breaks_at_the_commit_loses_nothing(
    notes: Engine, url: str, made: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the server has read it: the attempt fails, and the next one has a connection of its own."""
    commit, cuts = direct.commit, list[str]()

    def cut(connection: Any, command: str) -> bool:
        if not cuts:
            cuts.append(command)
            cut_line(connection.connection.driver_connection)
        return commit(connection, command)

    monkeypatch.setattr(direct, "commit", cut)
    id = add_one(notes, enqueue("writes"))
    drain(url, made(NOTE, retry=RetryPolicy(base=0)))
    job = job_of(notes, id)
    assert (job.status, job.attempt, counted(notes)) == (JobStatus.COMPLETED, 2, 1)
    assert job.errors[-1]["type"] == "sqlalchemy.exc.OperationalError"
    assert len(cuts) == 1


@pytest.mark.parametrize("swallowed", [True, False])
def test_a_transaction_that_has_failed_is_not_committed(
    notes: Engine, url: str, made: Callable[..., Registry], swallowed: bool
) -> None:
    def fail(session: Session, id: int) -> None:
        try:
            session.execute(text("SELECT 1 / 0"))
        except Exception:
            if not swallowed:
                raise

    id = add_one(notes, enqueue("writes"))
    drain(url, made(NOTE, then=fail, retry=NEVER))
    assert (job_of(notes, id).status, counted(notes)) == (JobStatus.FAILED, 0)


def test_who_listens_to_statements_hears_of_the_completion(
    notes: Engine, url: str, made: Callable[..., Registry], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sqlalchemy.engine")
    add_one(notes, enqueue("writes"))
    drain(url, made(NOTE, PREPARED))
    assert any("SET status='completed'" in said for said in caplog.messages)
    assert (counted(notes), counted(notes, "prepared")) == (1, 0)


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_on_an_engine_of_the_applications_nothing_is_prepared(notes: Engine, url: str, kind: str) -> None:
    """It may be another worker's, too, and reset its connections: by makers whose sessions are plain ones, as well."""
    registry = Registry()

    @task(registry=registry, name="def")
    def on_thread(ctx: JobContext) -> None:
        ctx.session.execute(text(NOTE))
        ctx.session.execute(text(PREPARED))

    @task(registry=registry, name="async def")
    async def on_loop(ctx: AsyncJobContext) -> None:
        await ctx.session.execute(text(NOTE))
        await ctx.session.execute(text(PREPARED))

    own, own_async = create_engine(url), create_async_engine(url, poolclass=NullPool)
    ids = list[int]()
    for _ in range(2):
        ids += add(notes, enqueue(kind), enqueue(kind))
        makers: dict[str, Any] = {
            "sessionmaker": lambda: Session(own),
            "async_sessionmaker": async_sessionmaker(own_async),
        }
        drain(url, registry, queues={"default": 1}, **makers)
    own.dispose()
    assert {(job.status, job.claims) for job in (job_of(notes, id) for id in ids)} == {(JobStatus.COMPLETED, 1)}
    assert (counted(notes), counted(notes, "prepared")) == (4, 0)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # nobody closes what was detached on an event loop
@pytest.mark.parametrize("does", ["detach", "prepare at once", "prepare never"])
def test_a_connection_that_the_handler_has_changed(
    notes: Engine, url: str, made: Callable[..., Registry], does: str
) -> None:
    def change(session: Session, id: int) -> None:
        if does == "detach":
            session.connection().detach()
        else:
            raw: Any = session.connection().connection.driver_connection
            raw.prepare_threshold = 0 if does == "prepare at once" else None

    ids = add(notes, *[enqueue("writes") for _ in range(4)])
    drain(url, made(NOTE, then=change, retry=NEVER), queues={"default": 1})
    assert ({job_of(notes, id).status for id in ids}, counted(notes)) == ({JobStatus.COMPLETED}, 4)


@pytest.mark.parametrize("when", ["at the completion", "at the commit"])
def test_an_error_that_resembles_a_lost_claim_is_the_attempts(
    notes: Engine, url: str, made: Callable[..., Registry], when: str
) -> None:
    said = "sa_jobqueue: the claim was lost"
    with notes.begin() as connection:
        connection.exec_driver_sql(
            f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE '{said}'; END $$"
        )
        if when == "at the commit":
            connection.exec_driver_sql(
                "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON note DEFERRABLE INITIALLY DEFERRED "
                "FOR EACH ROW EXECUTE FUNCTION refuse()"
            )
        else:
            connection.exec_driver_sql(
                "CREATE TRIGGER refuse BEFORE UPDATE ON sa_jobqueue.job FOR EACH ROW "
                "WHEN (new.status = 'completed') EXECUTE FUNCTION refuse()"
            )
    id = add_one(notes, enqueue("writes"))
    drain(url, made(NOTE, retry=NEVER))
    job = job_of(notes, id)
    assert (job.status, counted(notes)) == (JobStatus.FAILED, 0)
    assert said in job.errors[-1]["message"]

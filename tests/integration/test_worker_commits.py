"""A `def` handler's completion and its COMMIT are one message: what it says, where it is not sent, what may go wrong with it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text, update
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import Job, JobContext, JobStatus, Registry, RetryPolicy, enqueue, task
from sa_jobqueue.migrations import upgrade_database
from sa_jobqueue.migrations.grants import Can, grant_statements
from sa_jobqueue.worker.running import transaction as libpq
from tests.support.databases import connect, cut_line, driver_url
from tests.support.working import add, add_one, drain, job_of

NOTE = "INSERT INTO note VALUES (1)"
NEVER = RetryPolicy(no_retry=(BaseException,))


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said in this way from now on."""
    commit, commands = libpq.commit, list[str]()

    def note(connection: Connection, raw: Any, command: str) -> bool:
        commands.append(command)
        return commit(connection, raw, command)

    monkeypatch.setattr(libpq, "commit", note)
    return commands


@pytest.fixture
def made() -> Callable[..., Registry]:
    """Registries of one task that executes these statements by `ctx.session`, and then does what it is told with it."""

    def make(*statements: str, then: Callable[[Session, int], object] = lambda *_: None, **rules: Any) -> Registry:
        registry = Registry()

        def run(session: Session, id: int) -> None:
            for statement in statements:
                session.execute(text(statement))
            then(session, id)

        @task(registry=registry, name="writes", **rules)
        def writes(ctx: JobContext) -> None:
            run(ctx.session, ctx.job_id)

        return registry

    return make


@pytest.fixture
def notes(engine: Engine) -> Engine:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE note (n integer)"))
    return engine


def counted(engine: Engine, table: str = "note") -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def test_a_job_and_its_writes_are_one_transaction(
    notes: Engine, url: str, made: Callable[..., Registry], said: list[str]
) -> None:
    """The handler's row and the completed job have the same transaction id."""
    ids = add(notes, *[enqueue("writes") for _ in range(20)])
    worker = drain(url, made(NOTE), queues={"default": 1})
    assert {job_of(notes, id).status for id in ids} == {JobStatus.COMPLETED}
    assert (counted(notes), worker.counts["completed"], len(said)) == (20, 20, 20)
    with notes.connect() as connection:
        together = connection.scalar(text("SELECT count(*) FROM note, sa_jobqueue.job WHERE note.xmin = job.xmin"))
        kept = text("SELECT DISTINCT extract(epoch FROM purge_at - finished_at) FROM sa_jobqueue.job")
        assert (together, connection.scalars(kept).all()) == (20, [604_800])


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "psycopg, and who listens"])
def test_the_row_is_the_same_however_it_is_completed(
    notes: Engine, url: str, made: Callable[..., Registry], said: list[str], driver: str
) -> None:
    """By the schema's function, by the statement, by Core."""
    rules = {"retain": 90.5, "retry": RetryPolicy(base=0)}
    fails = iter([True, False])

    def fail_once(session: Session, id: int) -> None:
        if next(fails):
            raise ValueError("once")

    id = add_one(notes, enqueue("writes"))
    own = create_engine(driver_url(url, driver.split(",", maxsplit=1)[0]))
    if "listens" in driver:
        event.listen(own, "after_cursor_execute", lambda *_: None)
    drain(url, made(NOTE, then=fail_once, **rules), sessionmaker=sessionmaker(own))
    own.dispose()
    with notes.connect() as connection:
        row = connection.execute(text("SELECT * FROM sa_jobqueue.job")).mappings().one()
    assert row["id"] == id
    assert (row["finished_at"] - row["claimed_at"]).total_seconds() < 60
    assert (row["purge_at"] - row["finished_at"]).total_seconds() == 90.5
    assert {name: row[name] for name in ("status", "attempt", "claims", "lease_expires_at", "result")} == {
        "status": "completed", "attempt": 2, "claims": 2, "lease_expires_at": None, "result": None,
    }  # fmt: skip
    assert len(row["errors"]) == 1
    assert len(said) == (driver == "psycopg")


@pytest.mark.parametrize("rules", [{"retain": None}, {"retain": 0}, {"retain": 0.25}, {"record": True}])
def test_retention_and_result_are_committed_with_the_writes(
    notes: Engine, url: str, made: Callable[..., Registry], said: list[str], rules: dict[str, Any]
) -> None:
    """Retention and a recorded result are committed with the writes, too."""
    id = add_one(notes, enqueue("writes"))
    drain(url, made(NOTE, **rules))
    with Session(notes) as session:
        job = session.get(Job, id)
    assert (counted(notes), len(said)) == (1, rules.get("retain") != 0)
    if rules.get("retain") == 0:
        assert job is None
    else:
        assert job is not None
        assert job.status == JobStatus.COMPLETED
        assert (job.purge_at is None) == ("retain" in rules and rules["retain"] is None)


RESULT = {"it's": 'a "result" \\ with ✓', "lines": [1, None, 1.5]}


@pytest.mark.parametrize(
    ("driver", "encoding", "together"),
    [("psycopg", "utf8", True), ("psycopg", "latin1", False), ("psycopg2", "utf8", False)],
)
def test_a_result_goes_with_the_commit_as_it_is(
    notes: Engine, url: str, said: list[str], driver: str, encoding: str, together: bool
) -> None:
    """Whatever characters it has. One that the handler's connection cannot say in its encoding is refused there as any text is."""
    registry = Registry()

    @task(registry=registry, name="writes", record=True, retry=NEVER)
    def writes(ctx: JobContext) -> dict[str, Any]:
        ctx.session.execute(text(NOTE))
        return RESULT

    id = add_one(notes, enqueue(writes))
    own = create_engine(driver_url(url, driver), connect_args={"client_encoding": encoding})
    drain(url, registry, sessionmaker=sessionmaker(own))
    own.dispose()

    job = job_of(notes, id)
    assert len(said) == together
    if encoding == "utf8":
        assert (writes.result(job), counted(notes)) == (RESULT, 1)
    else:
        assert (job.status, counted(notes)) == (JobStatus.FAILED, 0)


@pytest.mark.parametrize(
    "lost", ["claim_token = claim_token + 1", "claim_token = NULL", "status = 'completed'", "status = 'queued'"]
)
def test_a_lost_claim_commits_nothing(
    notes: Engine, url: str, made: Callable[..., Registry], said: list[str], caplog: pytest.LogCaptureFixture, lost: str
) -> None:
    """Whatever part of the claim it is that is no longer valid."""

    def lose(session: Session, id: int) -> None:
        if not said:
            with notes.begin() as connection:
                connection.execute(
                    text(f"UPDATE sa_jobqueue.job SET {lost}, lease_expires_at = now() + interval '1 day'")
                )

    id = add_one(notes, enqueue("writes"))
    worker = drain(url, made(NOTE, then=lose), queues={"default": 1}, max_jobs=1)
    assert (counted(notes), worker.counts["completed"], len(said)) == (0, 0, 1)
    assert job_of(notes, id).status != "completed" or "completed" in lost
    assert caplog.text.count("its claim was lost; nothing it wrote was kept") == 1


def test_after_a_lost_claim_the_connection_serves_the_next_job(
    notes: Engine, url: str, made: Callable[..., Registry], said: list[str]
) -> None:
    """The job was given back meanwhile: the second run writes."""

    def lose(session: Session, id: int) -> None:
        if not said:
            back = {"status": JobStatus.QUEUED, "worker": None, "lease_expires_at": None, "claimed_at": None}
            with notes.begin() as connection:
                connection.execute(update(Job.__table__).where(Job.id == id).values(back))  # type: ignore[arg-type]

    ids = add(notes, *[enqueue("writes") for _ in range(6)])
    worker = drain(url, made(NOTE, then=lose, retry=NEVER), queues={"default": 1})
    assert {job_of(notes, id).status for id in ids} == {JobStatus.COMPLETED}
    assert (counted(notes), worker.counts["completed"], len(said)) == (6, 6, 7)


@pytest.mark.parametrize("name", ["after_commit", "before_commit", "from before_commit"])
def test_a_lost_claim_does_not_reach_listeners_of_the_commit(
    notes: Engine, url: str, made: Callable[..., Registry], name: str
) -> None:
    """A listener to the session's events is called only if the job is still the worker's."""
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


@pytest.mark.parametrize("how", ["class", "object"])
def test_a_lost_claim_does_not_reach_a_commit_of_ones_own(
    notes: Engine, url: str, made: Callable[..., Registry], how: str
) -> None:
    """The session's own `commit()` is called only if the job is still the worker's."""
    heard: list[str] = []

    class Own(Session):
        def commit(self) -> None:
            heard.append("commit")
            super().commit()

    def lose(session: Session, id: int) -> None:
        if how == "object":
            session.commit = lambda: heard.append("commit")  # type: ignore[method-assign]
        with notes.begin() as connection:
            connection.execute(text("DELETE FROM sa_jobqueue.job"))

    add_one(notes, enqueue("writes"))
    drain(url, made(NOTE, then=lose), sessionmaker=sessionmaker(notes, class_=Own if how == "class" else Session))
    assert (counted(notes), heard) == (0, [])


@pytest.mark.parametrize("listens", ["before_cursor_execute", "commit"])
def test_listeners_of_the_engine_hear_the_completion_and_the_commit(
    notes: Engine, url: str, made: Callable[..., Registry], said: list[str], listens: str
) -> None:
    """Then the two are sent as Core sends them, not as one message."""
    heard: list[str] = []
    own = create_engine(url)
    event.listen(own, listens, lambda *args: heard.append(str(args[2]) if len(args) > 2 else listens))
    id = add_one(notes, enqueue("writes"))
    drain(url, made(NOTE), sessionmaker=sessionmaker(own))
    own.dispose()
    assert (job_of(notes, id).status, counted(notes), said) == (JobStatus.COMPLETED, 1, [])
    assert any("completed" in one or one == "commit" for one in heard)


def test_sqlalchemys_log_shows_the_completion(
    notes: Engine, url: str, made: Callable[..., Registry], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """With SQLAlchemy's log at INFO, no statement is left out."""
    caplog.set_level(logging.INFO, "sqlalchemy.engine")
    add_one(notes, enqueue("writes"))
    drain(url, made(NOTE))
    assert any("SET status='completed'" in said for said in caplog.messages)
    assert (counted(notes), said) == (1, [])


def test_a_lost_claim_undoes_writes_through_other_engines(
    notes: Engine, url: str, made: Callable[..., Registry]
) -> None:
    """Their transactions are rolled back, too."""
    other = create_engine(url)

    def lose(session: Session, id: int) -> None:
        session.execute(text(NOTE), bind_arguments={"bind": other})
        with notes.begin() as connection:
            connection.execute(text("DELETE FROM sa_jobqueue.job"))

    add_one(notes, enqueue("writes"))
    drain(url, made(NOTE, then=lose))
    other.dispose()
    assert counted(notes) == 0


def test_a_lost_claim_undoes_a_session_that_controls_its_transaction(
    notes: Engine, url: str, made: Callable[..., Registry]
) -> None:
    """`join_transaction_mode` cannot give it a commit of its own."""

    def lose(session: Session, id: int) -> None:
        session.rollback()
        session.join_transaction_mode = "control_fully"
        session.execute(text(NOTE))
        with notes.begin() as connection:
            connection.execute(text("DELETE FROM sa_jobqueue.job"))

    add_one(notes, enqueue("writes"))
    drain(url, made(NOTE, then=lose))
    assert counted(notes) == 0


@pytest.mark.parametrize("again", [False, True], ids=["renamed", "and another one made"])
def test_where_the_schema_was_renamed_the_statement_does_it(
    empty_database_url: str, made: Callable[..., Registry], said: list[str], again: bool
) -> None:
    """The function's text has the old name, and would ask in another schema."""
    own = create_engine(empty_database_url, execution_options={"schema_translate_map": {"sa_jobqueue": "new"}})
    upgrade_database(own, schema="old")
    with own.begin() as connection:
        connection.execute(text("ALTER SCHEMA old RENAME TO new"))
        connection.execute(text("CREATE TABLE note (n integer)"))
    if again:
        upgrade_database(own, schema="old")
    ids = add(own, *[enqueue("writes") for _ in range(3)])
    drain(own, made(NOTE, retry=NEVER), queues={"default": 1})
    jobs = [job_of(own, id) for id in ids]
    assert {(job.status, job.attempt) for job in jobs} == {(JobStatus.COMPLETED, 1)}
    assert (counted(own), said) == (3, [])
    own.dispose()


def test_what_is_refused_at_the_commit_fails_the_attempt(
    notes: Engine, url: str, made: Callable[..., Registry], said: list[str]
) -> None:
    """A deferred constraint speaks only then; its error is the attempt's."""
    with notes.begin() as connection:
        connection.execute(text("ALTER TABLE note ADD UNIQUE (n) DEFERRABLE INITIALLY DEFERRED"))
        connection.execute(text(NOTE))
    id = add_one(notes, enqueue("writes"))
    drain(url, made(NOTE, retry=NEVER))
    job = job_of(notes, id)
    assert (job.status, job.errors[-1]["type"]) == (JobStatus.FAILED, "sqlalchemy.exc.IntegrityError")
    assert "duplicate key value" in job.errors[-1]["message"]
    assert (counted(notes), len(said)) == (1, 1)


def test_what_drivers_forget_is_not_needed(
    notes: Engine, url: str, made: Callable[..., Registry], said: list[str]
) -> None:
    """psycopg says DEALLOCATE ALL after a rollback, a ROLLBACK TO and a DROP."""
    forgets = ("SAVEPOINT one", "ROLLBACK TO one", "DROP TABLE IF EXISTS scratch")
    ids = add(notes, *[enqueue("writes") for _ in range(12)])
    drain(url, made(NOTE, *forgets, retry=NEVER), queues={"default": 1})
    jobs = [job_of(notes, id) for id in ids]
    assert {(job.status, job.attempt) for job in jobs} == {(JobStatus.COMPLETED, 1)}
    assert (counted(notes), len(said)) == (12, 12)


def test_a_line_that_breaks_at_the_commit_loses_nothing(
    notes: Engine, url: str, made: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the server has read it: the attempt fails, and the next one has a connection of its own."""
    commit, cuts = libpq.commit, list[str]()

    def cut(connection: Any, raw: Any, command: str) -> bool:
        if not cuts:
            cuts.append(command)
            cut_line(raw)
        return commit(connection, raw, command)

    monkeypatch.setattr(libpq, "commit", cut)
    id = add_one(notes, enqueue("writes"))
    drain(url, made(NOTE, retry=RetryPolicy(base=0)))
    job = job_of(notes, id)
    assert (job.status, job.attempt, counted(notes)) == (JobStatus.COMPLETED, 2, 1)
    assert job.errors[-1]["type"] == "sqlalchemy.exc.OperationalError"
    assert len(cuts) == 1


def test_the_servers_reason_for_ending_a_connection_is_told(
    notes: Engine, url: str, made: Callable[..., Registry], said: list[str]
) -> None:
    """It comes before the end of the line, which is what libpq tells last."""
    ends = """
        CREATE FUNCTION pg_temp.end_it() RETURNS trigger LANGUAGE plpgsql
            AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN new; END';
        CREATE TEMP TABLE ended (n integer);
        CREATE CONSTRAINT TRIGGER ends AFTER INSERT ON ended DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION pg_temp.end_it();
        INSERT INTO ended VALUES (1)
    """
    id = add_one(notes, enqueue("writes"))
    drain(url, made(NOTE, ends, retry=NEVER))
    job = job_of(notes, id)
    assert (job.status, job.errors[-1]["type"]) == (JobStatus.FAILED, "sqlalchemy.exc.OperationalError")
    assert "terminating connection due to administrator command" in job.errors[-1]["message"]
    assert (counted(notes), len(said)) == (0, 1)


@pytest.mark.parametrize("swallowed", [True, False])
def test_a_transaction_that_has_failed_is_not_committed(
    notes: Engine, url: str, made: Callable[..., Registry], swallowed: bool
) -> None:
    """Also if the handler swallowed the error and returned; then the traceback says what to do about it."""

    def fail(session: Session, id: int) -> None:
        try:
            session.execute(text("SELECT 1 / 0"))
        except Exception:
            if not swallowed:
                raise

    id = add_one(notes, enqueue("writes"))
    drain(url, made(NOTE, then=fail, retry=NEVER))
    job = job_of(notes, id)
    assert (job.status, counted(notes)) == (JobStatus.FAILED, 0)
    assert ("run that statement in session.begin_nested()" in job.errors[-1]["traceback"]) == swallowed


def test_a_savepoint_that_the_handler_left_open_is_committed_with_the_rest(
    notes: Engine, url: str, made: Callable[..., Registry], said: list[str]
) -> None:
    """Nothing that was written in it is lost."""

    def write_in_savepoint(session: Session, id: int) -> None:
        session.begin_nested()
        session.execute(text(NOTE))

    id = add_one(notes, enqueue("writes"))
    drain(url, made(NOTE, then=write_in_savepoint, retry=NEVER))
    assert (job_of(notes, id).status, counted(notes), len(said)) == (JobStatus.COMPLETED, 2, 1)


@pytest.mark.parametrize("schema", ['Jobs "of" 100%: é', "jobs"])
def test_wherever_the_tables_are(
    empty_database_url: str, made: Callable[..., Registry], said: list[str], schema: str
) -> None:
    """Under a name that has to be quoted; and with connections that find the tables by their own default."""
    own = create_engine(empty_database_url, execution_options={"schema_translate_map": {"sa_jobqueue": schema}})
    upgrade_database(own, schema=schema)
    with own.begin() as connection:
        connection.execute(text("CREATE TABLE note (n integer)"))
    ids = add(own, *[enqueue("writes") for _ in range(3)])
    drain(own, made(NOTE, retry=NEVER))
    assert {job_of(own, id).status for id in ids} == {JobStatus.COMPLETED}
    assert (counted(own), len(said)) == (3, 3)
    own.dispose()


@pytest.mark.parametrize(
    "missing",
    [
        "DROP FUNCTION sa_jobqueue.complete_job(bigint, bigint, double precision)",
        "REVOKE ALL ON FUNCTION sa_jobqueue.complete_job(bigint, bigint, double precision) FROM PUBLIC, {}",
    ],
)
def test_where_the_function_cannot_be_called_the_statement_does_it(
    database_url: str, made: Callable[..., Registry], said: list[str], missing: str
) -> None:
    """From some time on, which costs one attempt; or from the beginning, which costs none."""
    engine = create_engine(database_url)
    user = f"worker_{engine.url.database}"
    with engine.begin() as connection:
        connection.execute(text(f'CREATE ROLE "{user}"'))
        for statement in grant_statements(user, [Can.WORK]):
            connection.execute(text(statement))

    def act(session: Session, id: int) -> None:
        if len(said) == 2:
            with engine.begin() as connection:
                connection.execute(text(missing.format(f'"{user}"')))
        session.execute(text(f'SET LOCAL ROLE "{user}"'))

    try:
        registry = made(then=act, retry=RetryPolicy(base=0))
        ids = add(engine, *[enqueue("writes") for _ in range(5)])
        drain(database_url, registry, queues={"default": 1})
        assert (sum(job_of(engine, id).attempt for id in ids), len(said)) == (6, 3)
        ids += add(engine, enqueue("writes"))
        drain(database_url, registry, queues={"default": 1})
        jobs = [job_of(engine, id) for id in ids]
        assert {job.status for job in jobs} == {JobStatus.COMPLETED}
        assert (jobs[-1].attempt, len(said)) == (1, 3)
    finally:
        with engine.begin() as connection:
            connection.execute(text(f'DROP OWNED BY "{user}"'))
            connection.execute(text(f'DROP ROLE "{user}"'))
        engine.dispose()


@pytest.mark.parametrize("does", ["detach", "prepare at once", "pipeline"])
def test_a_job_completes_on_a_connection_that_its_handler_has_changed(
    notes: Engine, url: str, made: Callable[..., Registry], does: str
) -> None:
    """A detached connection, psycopg's pipeline, or prepared statements: the job completes all the same."""

    def change(session: Session, id: int) -> None:
        raw: Any = session.connection().connection.driver_connection
        if does == "detach":
            session.connection().detach()
        elif does == "pipeline":
            raw.pipeline().__enter__()
        else:
            raw.prepare_threshold = 0

    ids = add(notes, *[enqueue("writes") for _ in range(4)])
    drain(url, made(NOTE, then=change, retry=NEVER), queues={"default": 1})
    assert ({job_of(notes, id).status for id in ids}, counted(notes)) == ({JobStatus.COMPLETED}, 4)


def test_after_the_commit_the_attempt_has_not_failed_whatever_the_driver_says(
    notes: Engine, url: str, made: Callable[..., Registry], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """psycopg refuses a commit() inside a `transaction()`: the handler left one open."""

    left: list[Any] = []

    def leave_open(session: Session, id: int) -> None:
        raw: Any = session.connection().connection.driver_connection
        left.append(raw.transaction())
        left[-1].__enter__()

    ids = add(notes, *[enqueue("writes") for _ in range(4)])
    worker = drain(url, made(NOTE, then=leave_open, retry=NEVER), queues={"default": 1})
    jobs = [job_of(notes, id) for id in ids]
    assert {(job.status, len(job.errors)) for job in jobs} == {(JobStatus.COMPLETED, 0)}
    assert (counted(notes), worker.counts["completed"], len(said)) == (4, 4, 4)
    assert caplog.text.count("after the commit: ") == 4


@pytest.mark.parametrize("given", ["a connection's class", "a cursor's class"])
def test_driver_classes_of_ones_own_are_called_for_the_completion(
    notes: Engine, url: str, made: Callable[..., Registry], said: list[str], given: str
) -> None:
    """A connection or cursor of the application's own class is called for each statement."""
    heard: list[str] = []

    class HeardCursor(psycopg.Cursor[Any]):
        def execute(self, query: Any, *args: Any, **options: Any) -> Any:
            heard.append(str(query))
            return super().execute(query, *args, **options)

    class HeardConnection(psycopg.Connection[Any]):
        def commit(self) -> None:
            heard.append("commit")
            super().commit()

    def change(session: Session, id: int) -> None:
        raw: Any = session.connection().connection.driver_connection
        raw.cursor_factory = HeardCursor

    own = create_engine(url, creator=lambda: connect(url, HeardConnection))
    id = add_one(notes, enqueue("writes"))
    if given == "a connection's class":
        drain(url, made(NOTE), sessionmaker=sessionmaker(own))
        assert "commit" in heard
    else:
        drain(url, made(NOTE, then=change))
        assert any("completed" in one for one in heard)
    own.dispose()
    assert (job_of(notes, id).status, counted(notes), said) == (JobStatus.COMPLETED, 1, [])


@pytest.mark.parametrize("when", ["at the completion", "at the commit"])
def test_an_error_that_resembles_a_lost_claim_fails_the_attempt(
    notes: Engine, url: str, made: Callable[..., Registry], when: str
) -> None:
    """A trigger that raises our text fails the attempt; the job is not taken for lost."""
    refusal = "job 1: its claim was lost"
    with notes.begin() as connection:
        connection.exec_driver_sql(
            f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE '{refusal}'; END $$"
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
    assert refusal in job.errors[-1]["message"]

"""`grants`: a role can do what it was granted, and nothing else. Each test connects as such a role."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Engine, NullPool, create_engine, delete, func, insert, literal, make_url, select, text, update
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from sa_jobqueue import (
    ArchivedJob,
    Breaker,
    Callbacks,
    Discard,
    Job,
    JobContext,
    JobStatus,
    Limits,
    RateLimited,
    Registry,
    Schedule,
    Signal,
    Snooze,
    Workflow,
    enqueue,
    enqueue_many,
    enqueue_select,
    explain_job,
    task,
)
from sa_jobqueue.arguments.questions import as_asked
from sa_jobqueue.dashboard import callbacks
from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.migrations import upgrade_database
from sa_jobqueue.migrations.grants import Can, grant_statements
from sa_jobqueue.models import LimitRow, LimitState, Step, Wait, WorkerRow
from sa_jobqueue.rules.callbacks import Ticket
from sa_jobqueue.sql.limits.declared import limits_definition
from sa_jobqueue.sql.schedules.declared import pause_undeclared
from sa_jobqueue.sql.schedules.due import pause_failing
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import (
    cancel_jobs,
    cancel_workflows,
    copy_jobs,
    edit_jobs,
    fork_job,
    job_logs,
    job_steps,
    list_limits,
    pause,
    pause_schedules,
    pause_workflows,
    release_jobs,
    remove_limit,
    resume,
    resume_workflows,
    retry_jobs,
    retry_workflow,
    set_limit,
    set_slots,
)
from sa_jobqueue.tasks.registry import TaskName
from tests.support import orders, pooler
from tests.support.browsing import Viewer
from tests.support.cli import as_json, invoke, output, refused
from tests.support.databases import connect, driver_url
from tests.support.factory import make_job
from tests.support.waiting import wait_until
from tests.support.working import add, drain, gate_is_open, job_of, long_healthy, renew_now, services_of, working

NAMES = ["web", 'we"b', "it's; DROP ROLE postgres --", "%s :x {schema} \\"]

#: What would change the schema, or empty it.
DDL = [
    "CREATE TABLE sa_jobqueue.mine (id int)",
    "CREATE FUNCTION sa_jobqueue.mine() RETURNS int LANGUAGE sql RETURN 1",
    "ALTER TABLE sa_jobqueue.job ADD COLUMN mine int",
    "ALTER TABLE sa_jobqueue.job DISABLE TRIGGER ALL",
    "CREATE INDEX ON sa_jobqueue.job (task)",
    "CREATE TRIGGER mine BEFORE INSERT ON sa_jobqueue.job EXECUTE FUNCTION sa_jobqueue.job_wake()",
    "DROP TABLE sa_jobqueue.job",
    "DROP SCHEMA sa_jobqueue CASCADE",
    "TRUNCATE sa_jobqueue.job",
    "TRUNCATE sa_jobqueue.worker",
    "UPDATE sa_jobqueue.schema_version SET version = 0",
    "ALTER TABLE sa_jobqueue.job OWNER TO CURRENT_USER",
    "SELECT nextval('sa_jobqueue.job_id_seq')",
]
#: What only the queue says of a new job.
NOT_A_PRODUCERS = {
    "id": "1000000", "status": "'running'", "claims": "7", "claim_token": "7", "attempt": "3", "rescues": "1", "worker": "'other'",
    "created_at": "now()", "claimed_at": "now()", "lease_expires_at": "now()", "finished_at": "now()", "purge_at": "now()",
    "cancel_requested_at": "now()", "errors": "'[]'", "result": "'1'", "duplicate_of": "1", "schedule_id": "1", "tick_at": "now()", "ticks": "1", "ready_at": "now()",
    "workflow_id": "1", "blocked_by": "1", "inputs": "0",
}  # fmt: skip
INSERT = "INSERT INTO sa_jobqueue.job (task) VALUES ('a_task')"
#: What makes a job another one.
FORGERY = [
    "UPDATE sa_jobqueue.job SET args = '{}'",
    "UPDATE sa_jobqueue.job SET task = 'other'",
    "UPDATE sa_jobqueue.job SET queue = 'other'",
    "UPDATE sa_jobqueue.job SET max_attempts = 1",
]

MakeRole = Callable[..., str]


@pytest.fixture
def database_url(database_url: str) -> str:
    """The URL past a pooler: through the tests' PgBouncer all roles are the same user."""
    return pooler.direct(database_url)


@pytest.fixture
def make_role(database_url: str) -> Iterator[MakeRole]:
    """Makes a role that can do what is said, and returns the database's URL for it."""
    made: list[str] = []

    def make(*can: str, schema: str = "sa_jobqueue", name: str = "role") -> str:
        name = f"{name} {secrets.token_hex(6)}"
        password = secrets.token_hex(16)
        with connect(database_url) as connection:
            statement = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), password)
            connection.execute(statement)
        made.append(name)
        if can:
            wanted = [part for one in can for part in ("--can", one)]
            output("grants", "--role", name, *wanted, "--schema", schema, "--apply", url=database_url)
        return make_url(database_url).set(username=name, password=password).render_as_string(hide_password=False)

    yield make
    with connect(database_url) as connection:
        for name in made:
            connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


def name_in(url: str) -> str:
    return str(make_url(url).username)


def allowed(url: str, *statements: str) -> list[str]:
    """Those of the statements that are not refused because a right is missing."""
    passed: list[str] = []
    with connect(url) as connection:
        for statement in statements:
            try:
                with connection.transaction(force_rollback=True):
                    connection.execute(statement.encode())
            except psycopg.errors.InsufficientPrivilege:
                continue
            except psycopg.Error as error:
                passed.append(f"{statement}: {error}")
            else:
                passed.append(statement)
    return passed


def privileges(url: str) -> list[Any]:
    """Every access list in our schema, with the schema's own."""
    with connect(url) as connection:
        return connection.execute(
            "SELECT relname, relacl::text FROM pg_class WHERE relnamespace = 'sa_jobqueue'::regnamespace "
            "UNION ALL SELECT attrelid || attname, attacl::text FROM pg_attribute WHERE attacl IS NOT NULL "
            "UNION ALL SELECT proname, proacl::text FROM pg_proc WHERE pronamespace = 'sa_jobqueue'::regnamespace "
            "UNION ALL SELECT nspname, nspacl::text FROM pg_namespace ORDER BY 1"
        ).fetchall()


# ---- enqueue


async def test_an_enqueuer_can_insert_jobs_in_every_way(make_role: MakeRole, engine: Engine) -> None:
    """In a Session, one and many, delayed and not, in an AsyncSession, in bulk, by the command; what comes back is there."""
    url = make_role("enqueue")
    own, own_async = create_engine(url), create_async_engine(driver_url(url, "asyncpg"))
    with Session(own) as session:
        jobs = [enqueue("a_task", n=1), enqueue("a_task", n=2)]
        session.add_all(jobs)
        session.flush()
        ids = [job.id for job in jobs]
        assert [(job.status, job.errors, job.attempt) for job in jobs] == [(JobStatus.QUEUED, [], 0)] * 2
        ids += session.scalars(enqueue_many([TaskName("a_task").call(n=3)])).all()
        session.commit()
    async with AsyncSession(own_async) as session:
        session.add(later := enqueue("a_task", n=4))
        await session.flush()
        ids.append(later.id)
        await session.commit()
    ids.append(int(output("enqueue", "a_task", '{"n": 5}', "--delay", "1h", url=url)))
    with own.begin() as connection:
        ids += connection.scalars(enqueue_select("a_task", select(literal(6).label("n"))).returning(Job.id)).all()
    own.dispose()
    await own_async.dispose()
    with Session(engine) as session:
        found = session.execute(select(Job.id, Job.args["n"].as_integer()).order_by(Job.id)).all()
    assert [tuple(row) for row in found] == list(zip(ids, [1, 2, 3, 4, 5, 6], strict=True))


def test_an_enqueuer_can_do_nothing_else(make_role: MakeRole, engine: Engine) -> None:
    """Not read what jobs are about, nor change, delete, lock or claim any, nor look at workers or open gates."""
    url = make_role("enqueue")
    with engine.begin() as connection:
        make_job(connection, args={"secret": 1})
    assert allowed(url, INSERT) == [INSERT]
    secret = ("args", "meta", "errors", "result", "queue", "task", "worker", "status", "run_at")
    assert (
        allowed(
            url,
            *(f"SELECT {column} FROM sa_jobqueue.job" for column in secret),
            "SELECT * FROM sa_jobqueue.job",
            "SELECT id FROM sa_jobqueue.job FOR UPDATE",
            "INSERT INTO sa_jobqueue.job (task) VALUES ('a_task') RETURNING args",
            "INSERT INTO sa_jobqueue.job (id, task) VALUES (1, 'a') ON CONFLICT (id) DO UPDATE SET args = '{}'",
            "UPDATE sa_jobqueue.job SET status = 'running'",
            "DELETE FROM sa_jobqueue.job",
            "SELECT * FROM sa_jobqueue.worker",
            "SELECT * FROM sa_jobqueue.job_progress",
            "SELECT * FROM sa_jobqueue.job_log",
            "INSERT INTO sa_jobqueue.worker VALUES (gen_random_uuid(), 'h', 1, '{}', 1, '1')",
            "SELECT setval('sa_jobqueue.gate_1', 1)",
            "SELECT setval('sa_jobqueue.gate_any', 1)",
            "SELECT last_value FROM sa_jobqueue.gate_1",
            "SELECT sa_jobqueue.job_wake()",
            *FORGERY,
            *DDL,
        )
        == []
    )
    own = create_engine(url)
    with pytest.raises(ProgrammingError, match="permission denied"), own.begin() as connection:
        connection.execute(cancel_jobs(Job.id > 0))
    own.dispose()


def test_an_enqueuer_makes_queued_jobs_with_the_next_ids_only(make_role: MakeRole, engine: Engine) -> None:
    """It takes no id that is to come, and makes no job that runs, or is done: these columns are the queue's to write."""
    columns = set(Job.__table__.columns.keys())
    url = make_role("enqueue")
    forged = {
        name: f"INSERT INTO sa_jobqueue.job (task, {name}) VALUES ('a', {value})"
        for name, value in NOT_A_PRODUCERS.items()
    }
    assert allowed(url, *forged.values()) == []
    given = columns - NOT_A_PRODUCERS.keys()
    limits, subject = (
        {"expires_at", "deadline_at", "concurrency_key", "units"},
        {"subject_type", "subject_id", "extras"},
    )
    assert given == {
        "task",
        "args",
        "queue",
        "meta",
        "priority",
        "max_attempts",
        "run_at",
        "uniqueness",
        *limits,
        *subject,
    }
    every = "INSERT INTO sa_jobqueue.job VALUES (DEFAULT) RETURNING id"
    copied = f"COPY sa_jobqueue.job ({', '.join(sorted(given))}) FROM STDIN"
    assert allowed(url, every) == []
    with connect(url) as connection, connection.cursor().copy(copied.encode()) as copy:
        copy.write_row(
            ["{}", "42", None, None, '{"version": 2}', 10, "{}", 4, "default", "now", "7", "Order", "a_task", None, 3]
        )
    with engine.connect() as connection:
        assert [job.status for job in connection.execute(select(Job.status))] == [JobStatus.QUEUED]


def test_an_enqueuer_enqueues_a_job_that_waits_for_another(make_role: MakeRole) -> None:
    """Both are written by the flush, which reads back only what the role may read."""

    @task(registry=Registry(), name="ship")
    def ship() -> None: ...

    with Session(create_engine(make_role("enqueue"))) as session:
        first = enqueue(ship)
        second = enqueue(ship.options(after=first))
        session.add_all([first, second])
        session.flush()
        assert second.blocked_by == first.id
        session.commit()


def test_an_enqueuer_takes_new_objects_as_arguments(make_role: MakeRole, engine: Engine) -> None:
    """In one flush with them. Where an object refers to its job the role needs the right to complete arguments."""
    orders.Base.metadata.drop_all(engine)
    orders.Base.metadata.create_all(engine)
    own = create_engine(make_role("enqueue"))
    name = own.url.username
    with engine.begin() as connection:
        connection.execute(text(f'GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA public TO "{name}"'))
        connection.execute(text(f'GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO "{name}"'))

    @task(registry=Registry(), name="ship")
    def ship(order: orders.Order) -> None: ...

    with Session(own) as session:
        order = orders.Order()
        session.add_all([job := enqueue(ship, order), order])
        session.flush()
        assert (job.args, job.status, job.errors) == ({"order": order.id}, JobStatus.QUEUED, [])
        session.commit()

        def add_a_cycle() -> None:
            order = orders.Order()
            session.add(orders.Report(order=order, job=enqueue(ship, order)))
            session.commit()

        with pytest.raises(ProgrammingError, match="permission denied"):
            add_a_cycle()
        session.rollback()
        with engine.begin() as connection:
            connection.execute(text(f'GRANT UPDATE (args, subject_type, subject_id) ON sa_jobqueue.job TO "{name}"'))
        add_a_cycle()
    own.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_an_enqueuer_enqueues_over_each_driver(make_role: MakeRole, engine: Engine, driver: str) -> None:
    """One and many in a Session, and in bulk; the jobs say that they are queued before and after, with no more to read."""
    own = create_engine(driver_url(make_role("enqueue"), driver))
    with Session(own) as session:
        jobs = [enqueue("a_task", n=n) for n in range(3)]
        assert {job.status for job in jobs} == {JobStatus.QUEUED}
        session.add(jobs[0])
        session.flush()
        session.add_all(jobs[1:])
        session.flush()
        assert [(job.status, job.errors) for job in jobs] == [(JobStatus.QUEUED, [])] * 3
        session.scalars(enqueue_many([TaskName("a_task").call(n=n) for n in range(3)])).all()
        session.commit()
    own.dispose()
    with engine.connect() as connection:
        assert len(connection.execute(select(Job.id)).all()) == 6


def test_an_enqueuer_wakes_a_worker(make_role: MakeRole, engine: Engine, database_url: str) -> None:
    """The trigger's function reads gates that its role cannot; the worker, as a role too, hears it long before it would poll."""
    registry, started = Registry(), threading.Event()

    @task(registry=registry, name="handler")
    def handler() -> None:
        started.set()

    own = create_engine(make_role("enqueue"))
    with working(make_role("work"), registry, poll=600, lease=60):
        wait_until(lambda: gate_is_open(database_url))
        with Session(own) as session:
            session.add(enqueue(handler))
            session.commit()
        assert started.wait(30)
    own.dispose()


# ---- work


def test_a_worker_can_do_all_its_work(make_role: MakeRole, engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """Claim, complete with and without a result, keep or delete at once, fail, retry, snooze, renew, rescue, prune,
    write itself down and strike itself off.
    """
    registry, slow, slow_begun = Registry(), threading.Event(), threading.Event()

    @task(registry=registry, name="plain", record=True)
    def plain(n: int) -> int:
        return n

    @task(registry=registry, name="gone", retain=0)
    def gone() -> None: ...

    @task(registry=registry, name="in_session")
    def in_session(ctx: JobContext) -> None:
        assert ctx.session.scalar(select(Job.task).where(Job.id == ctx.job_id)) == "in_session"

    @task(registry=registry, name="broken", max_attempts=1, breaker=Breaker(failures=1))
    def broken() -> None:
        raise ValueError("broken")

    @task(registry=registry, name="tired", keep_logs=True)
    def tired(ctx: JobContext) -> Snooze | None:
        ctx.progress(0.5, "half")
        ctx.logger.info("tired")
        return Snooze(3600)

    @task(registry=registry, name="slow")
    def slow_handler() -> None:
        slow_begun.set()
        slow.wait(60)

    with Session(engine) as session:
        jobs = [enqueue(plain, 7), enqueue(in_session), enqueue(broken), enqueue(tired), enqueue(slow_handler)]
        session.add_all([*jobs, enqueue(gone)])
        session.commit()
        done, seen, failed, snoozed, renewed = [job.id for job in jobs]
    with engine.begin() as connection:
        lost = make_job(connection, "running", task="in_session", lease_expires_at=timedelta(seconds=-1))
        old = make_job(connection, "completed", purge_at=timedelta(seconds=-1))
    lease: list[Any] = []

    def lease_of_the_slow_one() -> Any:
        return job_of(engine, renewed).lease_expires_at

    long_healthy(engine)
    with working(make_role("work"), registry, prune_every=0.1) as worker:
        lease.append(wait_until(lease_of_the_slow_one))
        wait_until(slow_begun.is_set)
        renew_now(worker)
        wait_until(lambda: workers(engine) == 1)
        with engine.begin() as connection:  # the answer is an UPDATE of other columns
            connection.execute(set_slots(WorkerRow.id == worker.id, slots={"mail": 1}))
        services_of(worker)._hasten_presence()
        wait_until(lambda: answered(engine) == {"default": 4, "mail": 1})
        wait_until(lambda: lease_of_the_slow_one() > lease[0], message="a renewal")
        wait_until(lambda: job_of(engine, lost).is_finished, message="the rescued job to end")
        wait_until(lambda: not exists(engine, Job.id == old), message="pruning")
        wait_until(lambda: not exists(engine, Job.task == "gone"), message="a completed job to leave")
        wait_until(lambda: workers(engine) == 1)
        slow.set()
        wait_until(lambda: job_of(engine, renewed).is_finished and is_snoozed(job_of(engine, snoozed)))
    assert workers(engine) == 0
    assert (job_of(engine, done).status, job_of(engine, done).result) == (JobStatus.COMPLETED, 7)
    assert (job_of(engine, lost).status, job_of(engine, lost).rescues) == (JobStatus.COMPLETED, 1)
    assert job_of(engine, seen).status == JobStatus.COMPLETED
    assert (job_of(engine, failed).status, job_of(engine, failed).errors[0]["message"]) == (JobStatus.FAILED, "broken")
    with engine.connect() as connection:
        assert connection.scalar(select(Job.progress).where(Job.id == snoozed)) == 0.5
        opened = "SELECT broken_until > now() FROM sa_jobqueue.job_limit WHERE name = 'broken'"
        assert connection.scalar(text(opened))
        assert [line.message for line in connection.execute(job_logs(snoozed))] == ["tired"]
    assert "permission denied" not in caplog.text


def test_a_worker_archives_and_can_do_nothing_else_with_the_archive(
    make_role: MakeRole, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """It writes down which tasks are archived, makes and drops months by functions, and moves. It reads, changes and deletes nothing there."""
    registry = Registry()

    @task(registry=registry, name="kept", archive=True)
    def kept() -> None: ...

    with engine.begin() as connection:
        connection.execute(text("SELECT sa_jobqueue.make_archive_months(ARRAY[now() - interval '900 days'])"))
        ids = [make_job(connection, "completed", task="kept", purge_at=timedelta(seconds=-1)) for _ in range(3)]
    url = make_role("work")
    with working(url, registry, prune_every=0.1, archive_months=3):
        wait_until(lambda: archived(engine) == ids)
    with engine.connect() as connection:
        months = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'sa_jobqueue.archived_job'::regclass"
        assert connection.scalar(text(months)) == 2
    assert "permission denied" not in caplog.text
    for part in ("archived_job", f"archived_job_{datetime.now(UTC):%Y_%m}"):
        assert (
            allowed(
                url,
                f"SELECT * FROM sa_jobqueue.{part}",
                f"UPDATE sa_jobqueue.{part} SET args = '{{}}'",
                f"DELETE FROM sa_jobqueue.{part}",
                f"TRUNCATE sa_jobqueue.{part}",
                f"DROP TABLE sa_jobqueue.{part}",
            )
            == []
        )
    read, admin = make_role("read"), make_role("admin")
    look = ["SELECT * FROM sa_jobqueue.archived_job", "SELECT * FROM sa_jobqueue.archived_task"]
    delete = "DELETE FROM sa_jobqueue.archived_job"
    functions = ["SELECT sa_jobqueue.make_archive_months(ARRAY[now()])", "SELECT sa_jobqueue.drop_archive_month(1)"]
    assert allowed(read, *look, delete, *functions) == look
    assert allowed(admin, *look, delete, *functions) == [*look, delete]
    assert allowed(make_role("enqueue"), *look, delete, *functions) == []


def archived(engine: Engine) -> list[int]:
    with Session(engine) as session:
        return list(session.scalars(select(ArchivedJob.id).order_by(ArchivedJob.id)))


def is_snoozed(job: Job) -> bool:
    return job.status == JobStatus.QUEUED and job.run_at > job.created_at + timedelta(minutes=30)


def exists(engine: Engine, *where: Any) -> bool:
    with Session(engine) as session:
        return session.scalar(select(Job.id).where(*where)) is not None


def answered(engine: Engine) -> Any:
    """The slots in the row of the only worker, once nothing is wanted."""
    with engine.connect() as connection:
        return connection.scalar(select(WorkerRow.slots).where(WorkerRow.wanted.is_(None)))


def workers(engine: Engine) -> int:
    with connect(engine.url.render_as_string(hide_password=False)) as connection:
        row: Any = connection.execute("SELECT count(*) FROM sa_jobqueue.worker").fetchone()
        return int(row[0])


def test_a_worker_can_change_neither_the_schema_nor_what_a_job_is(make_role: MakeRole, engine: Engine) -> None:
    """It runs handlers, so it is given little: no DDL, no TRUNCATE, no new jobs, no other arguments."""
    url = make_role("work")
    with engine.begin() as connection:
        make_job(connection)
    assert allowed(url, INSERT, *FORGERY, *DDL) == []
    assert allowed(url, "UPDATE sa_jobqueue.job SET status = 'running'") == [
        "UPDATE sa_jobqueue.job SET status = 'running'"
    ]


def test_a_worker_sees_the_pressure_of_other_roles_once_it_is_granted_that(
    make_role: MakeRole, database_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it says that something is hidden, and goes on claiming as usual."""
    monkeypatch.setattr("sa_jobqueue.worker.maintenance.pressure._EVERY", 0.05)
    url = make_role("work")
    with connect(database_url) as owner, connect(database_url) as forgotten:
        forgotten.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        forgotten.execute("SELECT 1 FROM sa_jobqueue.job")
        with working(url, Registry(), max_snapshot_age=0.1) as worker:
            wait_until(lambda: "is hidden from this worker's role" in caplog.text)
            assert worker.state().pressure is None
            owner.execute(sql.SQL("GRANT pg_read_all_stats TO {}").format(sql.Identifier(name_in(url))))
            wait_until(lambda: worker.state().pressure)
    assert caplog.text.count("is hidden from this worker's role") == 1


def test_a_worker_whose_handlers_enqueue_is_granted_both(make_role: MakeRole, engine: Engine) -> None:
    """Capabilities add up."""
    registry = Registry()

    @task(registry=registry, name="chain")
    def chain(ctx: JobContext, n: int) -> None:
        if n:
            ctx.session.add(enqueue(chain, n - 1))

    with Session(engine) as session:
        session.add(enqueue(chain, 2))
        session.commit()
    with working(make_role("work", "enqueue"), registry):
        wait_until(lambda: count(engine) == 3 and not exists(engine, Job.is_live))


def count(engine: Engine) -> int:
    with Session(engine) as session:
        return len(session.scalars(select(Job.id)).all())


# ---- read, admin


def test_a_role_that_may_read_sees_which_workers_listen(make_role: MakeRole, database_url: str) -> None:
    """Though the workers' connections are another role's."""
    url = make_role("read")
    with working(database_url, Registry()):
        wait_until(lambda: [one["listening"] for one in as_json("workers", url=url)] == [True])


def test_a_reader_can_look_and_not_write(make_role: MakeRole, engine: Engine, database_url: str) -> None:
    """Every command that looks works; every one that acts is refused, and so is each statement."""
    url = make_role("read")
    with engine.begin() as connection:
        id = make_job(connection, "failed", args={"n": 1})
    assert [job["id"] for job in as_json("list", url=url)] == [id]
    assert as_json("show", str(id), url=url)["args"] == {"n": 1}
    assert as_json("workers", url=url) == []
    assert as_json("stats", url=url)
    assert as_json("doctor", url=url)["ok"] is True
    before = as_json("list", url=database_url)
    for command in ("retry", "cancel", "discard", "prune"):
        said = refused(command, str(id), url=url)
        assert "permission denied for table job" in said
        assert "sa-jobqueue grants" in said
    assert as_json("list", url=database_url) == before
    assert (
        allowed(
            url,
            INSERT,
            "UPDATE sa_jobqueue.job SET status = 'queued'",
            "DELETE FROM sa_jobqueue.job",
            "SELECT id FROM sa_jobqueue.job FOR UPDATE",
            "DELETE FROM sa_jobqueue.worker",
            "UPDATE sa_jobqueue.worker SET drain_requested_at = now()",
            "UPDATE sa_jobqueue.worker SET wanted = NULL",
            "DELETE FROM sa_jobqueue.job_progress",
            "UPDATE sa_jobqueue.job_log SET lines = '[]'",
            "INSERT INTO sa_jobqueue.job_log VALUES (1, 1, now(), 0, 1, '[]')",
            "SELECT setval('sa_jobqueue.gate_1', 1)",
            *FORGERY,
            *DDL,
        )
        == []
    )


def test_a_role_without_rights_is_told_what_to_grant(make_role: MakeRole) -> None:
    """Not that the role should own the schema; and `doctor --json` is JSON all the same."""
    url = make_role()
    said = refused("list", url=url)
    assert "permission denied for schema" in said
    assert "`sa-jobqueue grants --role ROLE --can read`" in said
    result = invoke("doctor", "--json", url=url)
    assert result.exit_code == 2
    assert "permission denied" in json.loads(result.stdout)["checks"][0]["detail"]


def test_an_admin_can_look_and_act(make_role: MakeRole, engine: Engine) -> None:
    """Cancel, retry, discard, release and prune, edit and copy, and so enqueue; not give a job to another task, nor touch the schema."""
    url = make_role("admin")
    with engine.begin() as connection:
        failed, queued, running = make_job(connection, "failed"), make_job(connection), make_job(connection, "running")
        held, old = make_job(connection, "running"), make_job(connection, "completed")
    assert output("retry", str(failed), url=url) == "retried 1 job\n"
    assert output("discard", str(queued), url=url) == "discarded 1 job\n"
    assert output("cancel", str(running), str(failed), url=url).startswith("cancelled 2 jobs")
    assert output("prune", str(old), url=url) == "pruned 1 job\n"
    with engine.begin() as connection:  # a worker waits for a permit, and is told
        connection.exec_driver_sql(
            "SELECT setval('sa_jobqueue.gate_limit', (extract(epoch FROM now())::bigint + 60) * 10000000)"
        )
    worker = {"host": "web-1", "pid": 7, "queues": ["mail"], "concurrency": 4, "version": "1"}
    with engine.begin() as connection:
        connection.execute(insert(WorkerRow).values(id=uuid4(), **worker))
    assert output("workers", "set", "web-1:7", "--queue=mail=1", "--no-wait", url=url).startswith(
        "asked web-1:7 for mail=1;"
    )
    assert output("drain", "web-1:7", url=url) == "asked 1 worker to drain\n"
    own = create_engine(url)
    with own.begin() as connection:
        assert connection.scalars(release_jobs(Job.id == held)).all() == [held]
    own.dispose()
    with engine.connect() as connection:  # it has been told, and the gate is closed
        assert connection.exec_driver_sql("SELECT last_value FROM sa_jobqueue.gate_limit").scalar_one() == 0
    assert {job["id"]: job["status"] for job in as_json("list", url=url)} == {
        failed: "cancelled", queued: "failed", running: "running", held: "queued",
    }  # fmt: skip
    assert job_of(engine, running).cancel_requested_at is not None
    with own.begin() as connection:
        assert connection.scalars(
            edit_jobs(Job.id == held, args={"a": 1}, queue="b", priority=1, run_at=timedelta(1))
        ).all() == [held]
        ((copy, duplicate_of),) = connection.execute(copy_jobs(Job.id == held)).all()
    with engine.begin() as connection:
        step = {"job_id": failed, "claim_token": 1, "revision": 1, "kind": "step"}
        connection.execute(insert(Step), [{**step, "name": name} for name in ("a", "b")])
    with own.begin() as connection:
        fork = connection.scalar(fork_job(failed, from_step="b"))
        assert [row.name for row in connection.execute(job_steps(fork or 0))] == ["a"]
    own.dispose()
    assert (duplicate_of, job_of(engine, copy).args) == (None, {"a": 1})
    forged = [
        "UPDATE sa_jobqueue.job SET task = 'other'",
        "UPDATE sa_jobqueue.job SET max_attempts = 1",
        "INSERT INTO sa_jobqueue.job (id, task) VALUES (4711, 'a_task')",
        "INSERT INTO sa_jobqueue.job (task, status) VALUES ('a_task', 'completed')",
        "UPDATE sa_jobqueue.audit SET who = 'another'",
        "DELETE FROM sa_jobqueue.audit",
        "UPDATE sa_jobqueue.worker SET host = 'x'",
        "UPDATE sa_jobqueue.step SET result = '1'",
    ]
    assert allowed(url, *forged, *DDL, "SELECT setval('sa_jobqueue.gate_1', 1)") == []


def test_an_admin_acts_on_schedules_and_makes_none(make_role: MakeRole, engine: Engine) -> None:
    """That needs the right `schedule`; a reader only looks."""
    url, schedules, reader = make_role("admin"), make_role("schedule", "read"), make_role("read")
    assert output("schedule", "add", "0 * * * *", "a_task", "--name", "hourly", url=schedules) == "hourly\n"
    assert output("schedule", "pause", "hourly", url=url) == "paused hourly\n"
    assert output("schedule", "resume", "hourly", url=url) == "resumed hourly\n"
    assert output("schedule", "run", "hourly", url=url)
    assert as_json("schedule", "backfill", "hourly", "--from", "6h", "--to", "1h", url=url)["count"] == 5
    assert "permission denied" in refused("schedule", "add", "0 * * * *", "a_task", url=url)
    assert [one["name"] for one in as_json("schedule", "list", url=reader)] == ["hourly"]
    assert len(as_json("schedule", "next", "hourly", url=reader)) == 5
    for command in (
        ("pause", "hourly"),
        ("run", "hourly"),
        ("remove", "hourly"),
        ("backfill", "hourly", "--from", "9h"),
    ):
        assert "permission denied" in refused("schedule", *command, url=reader)
    assert output("schedule", "remove", "hourly", url=url) == "removed hourly\n"


def test_an_enqueuer_gives_jobs_keys_and_units(make_role: MakeRole, engine: Engine) -> None:
    """In a Session and in bulk; and debounced ones. It may not look at limits, nor set any."""
    url = make_role("enqueue")
    own = create_engine(url)
    keyed = TaskName("a_task").options(key="42", units=3)
    with Session(own) as session:
        session.add_all([enqueue(keyed), enqueue("a_task"), enqueue(keyed.options(debounce=5))])
        session.flush()
        session.execute(enqueue_many([keyed.call(), keyed.options(debounce=5).call()]))
        session.commit()
    own.dispose()
    with Session(engine) as session:
        jobs = session.scalars(select(Job).where(Job.is_live)).all()
        assert sorted((job.key or "", job.units or 0) for job in jobs) == [("", 0), ("42", 3), ("42", 3), ("42", 3)]
    limits = ["SELECT FROM sa_jobqueue.job_limit", "INSERT INTO sa_jobqueue.job_key VALUES ('queue', 'a', 'b')"]
    assert allowed(url, *limits, "DELETE FROM sa_jobqueue.limit_state") == []


def test_a_worker_writes_down_the_limits_that_its_code_declares_and_no_others(
    make_role: MakeRole, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """New ones, changed ones, and those that no code declares any more; it pauses nothing, and holds nothing against the code."""
    url = make_role("work")
    for running in (3, 4):
        registry = Registry()
        registry.queue("default", limits=Limits(running=running))
        with working(url, registry):
            assert limits_of(engine) == [("default", running)]
    with engine.begin() as connection:
        connection.execute(update(LimitRow).values(declared_at=LimitRow.declared_at - timedelta(minutes=6)))
    with working(url, Registry(), lease=3.0) as worker:
        services_of(worker).limits._time_to_declare._well_since -= 600
        wait_until(lambda: limits_of(engine) == [])
    assert "permission denied" not in caplog.text
    with engine.begin() as connection:
        connection.execute(set_limit("default", running=3))
    assert (
        allowed(
            url,
            "UPDATE sa_jobqueue.job_limit SET paused_at = NULL",
            "UPDATE sa_jobqueue.job_limit SET held = false",
            "UPDATE sa_jobqueue.job_limit SET name = 'other'",
            "INSERT INTO sa_jobqueue.job_limit (owner, name, held) VALUES ('queue', 'a', true)",
            "INSERT INTO sa_jobqueue.job_key VALUES ('queue', 'a', 'b')",
            "UPDATE sa_jobqueue.job_key SET weight = 1",
            "DELETE FROM sa_jobqueue.job_key",
        )
        == []
    )


#: How SQL might change or remove the row of limits that a role must leave alone.
SEIZE = [
    "UPDATE sa_jobqueue.job_limit SET running = 1000 WHERE name = '{0}'",
    "UPDATE sa_jobqueue.job_limit SET running = NULL, when_full = 'cancel_running' WHERE name = '{0}'",
    "INSERT INTO sa_jobqueue.job_limit (owner, name) VALUES ('queue', '{0}') ON CONFLICT (owner, name) DO UPDATE SET running = 9",
    "MERGE INTO sa_jobqueue.job_limit AS l USING (SELECT '{0}' AS n) AS g ON l.name = g.n WHEN MATCHED THEN UPDATE SET strict = true",
    "CREATE TEMP VIEW mine AS SELECT * FROM sa_jobqueue.job_limit; UPDATE mine SET key_running = 1 WHERE name = '{0}'",
    "SET LOCAL session_replication_role = replica; UPDATE sa_jobqueue.job_limit SET running = 1000 WHERE name = '{0}'",
]
DROP = [
    "DELETE FROM sa_jobqueue.job_limit WHERE name = '{0}'",
    "WITH gone AS (DELETE FROM sa_jobqueue.job_limit WHERE name = '{0}' RETURNING *) SELECT FROM gone",
    "MERGE INTO sa_jobqueue.job_limit AS l USING (SELECT '{0}' AS n) AS g ON l.name = g.n WHEN MATCHED THEN DELETE",
]


def test_a_worker_changes_no_limits_that_are_held_and_ends_no_pause(make_role: MakeRole, engine: Engine) -> None:
    """Whatever SQL its role executes. It writes what its code declares beside an operator's limits, and changes those of a paused queue."""
    url = make_role("work")
    with engine.begin() as connection:
        for statement in (set_limit("sync", running=2), pause("mail", reason="the provider is down")):
            connection.execute(statement)
    attacks = [one.format("sync") for one in SEIZE + DROP] + [one.format("mail") for one in DROP]
    assert allowed(url, *attacks) == []
    own = create_engine(url)
    with own.begin() as connection:
        for queue in ("sync", "mail"):
            said = default_store.declare_limits(
                connection, {("queue", queue): limits_definition(Limits(running=7))}, gone=timedelta()
            )
            assert said.held + said.changed == [f"queue {queue!r}"]
    own.dispose()
    with engine.connect() as connection:
        row = LimitRow.name, LimitRow.running, LimitRow.declared["running"].as_integer(), LimitRow.pause_reason
        assert sorted(map(tuple, connection.execute(select(*row)))) == [
            ("mail", 7, 7, "the provider is down"), ("sync", 2, 7, None),
        ]  # fmt: skip


def test_a_worker_pauses_schedules_only_as_workers_do(make_role: MakeRole, engine: Engine) -> None:
    """After failures, where the schedule asks for that, and when no code declares it any more; it neither changes nor ends a pause."""
    url, everything = make_role("work", "read"), make_role("work", "schedule")
    with Session(engine) as session:
        plain = TaskName("a_task")
        session.add_all([Schedule("0 * * * *", plain, name=name) for name in ("plain", "paused", "declared")])
        session.add(Schedule("0 * * * *", plain, name="failing", pause_after=1))
        session.commit()
        session.execute(update(Schedule).where(Schedule.name == "declared").values(declared_at=func.now()))
        session.execute(pause_schedules(Schedule.name == "paused", reason="audit"))
        session.commit()
    pausing = "UPDATE sa_jobqueue.schedule SET paused_at = now(), paused_by = {} WHERE name = '{}'"
    rest = "UPDATE sa_jobqueue.schedule SET {} WHERE name = 'paused'"
    names = ("plain", "paused", "declared", "failing")
    ours = [pausing.format("'undeclared'", "declared"), pausing.format("'failures'", "failing")]
    attacks = [
        pausing.format(by, name) for by in ("NULL", "'operator'", "'failures'", "'undeclared'") for name in names
    ]
    attacks += [rest.format(one) for one in ("paused_at = NULL", "paused_by = 'failures'", "pause_reason = 'mine'")]
    assert sorted(allowed(url, *attacks)) == sorted(ours)
    assert allowed(everything, *attacks) == attacks
    for command in ("pause", "resume"):
        assert "permission denied: only an operator may pause" in refused("schedule", command, "paused", url=url)
    own = create_engine(url)
    with own.begin() as connection:
        ids = connection.scalars(select(Schedule.id).where(Schedule.name == "failing")).all()
        assert connection.scalars(pause_failing(ids)).all() == ["failing"]
        assert connection.scalars(pause_undeclared(after=-timedelta(1))).all() == ["declared"]
    own.dispose()


def test_a_worker_keeps_a_queue_waiting_and_forgets_it(
    make_role: MakeRole, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """For a handler that was rate limited: by the row of the queue, which goes with the wait."""
    registry, said = Registry(), iter([RateLimited(3_600)])

    @task(registry=registry)
    def handler() -> RateLimited | None:
        return next(said, None)

    add(engine, enqueue(handler))
    with working(make_role("work"), registry, prune_every=0.1):
        wait_until(lambda: limits_of(engine) == [("default", None)])
        with engine.begin() as connection:
            connection.execute(update(LimitState).values(blocked_until=func.now() - timedelta(minutes=2)))
        wait_until(lambda: limits_of(engine) == [])
    assert "permission denied" not in caplog.text


def limits_of(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(select(LimitRow.name, LimitRow.running))]


def test_an_admin_sets_limits_and_a_reader_looks_at_them(make_role: MakeRole, engine: Engine) -> None:
    """Of queues, tasks and keys; and pauses them."""
    admin, reader = create_engine(make_role("admin")), make_role("read")
    statements = [
        set_limit("mail", running=3), set_limit("mail", key="42", weight=2), pause("mail"), pause("mail", key="42"),
        resume("mail"), resume("mail", key="42"), remove_limit("mail"), remove_limit("mail", key="42"), set_limit("mail", running=4),
    ]  # fmt: skip
    with admin.begin() as connection:
        for statement in statements:
            assert connection.scalars(statement).all() == ["mail"]
    admin.dispose()
    with create_engine(reader, poolclass=NullPool).connect() as connection:
        assert [(row.name, row.running) for row in connection.execute(list_limits())] == [("mail", 4)]
    writes = [
        f"{what} sa_jobqueue.{table}{rest}"
        for table in ("job_limit", "job_key", "limit_state")
        for what, rest in (
            ("DELETE FROM", ""),
            ("UPDATE", " SET name = 'a'"),
            ("INSERT INTO", " (owner, name) VALUES ('queue', 'a')"),
        )
    ]
    assert allowed(reader, *writes) == []


def test_a_reader_may_ask_why_a_job_is_not_run(make_role: MakeRole, engine: Engine) -> None:
    """In code and by the command; of a job that another transaction has locked, too."""
    url = make_role("read")
    with engine.begin() as connection:
        connection.execute(pause("default", reason="deploy"))
        job = make_job(connection)
    reader = create_engine(url, poolclass=NullPool)
    with engine.begin() as locking, reader.connect() as connection:
        locking.execute(select(Job.id).where(Job.id == job).with_for_update())
        assert [one.what for one in explain_job(connection, job)] == ["paused", "unserved", "locked"]
        assert invoke("why", str(job), url=url).stdout.startswith(f"job {job}  a_task  queued\n")


# ---- the command


def test_the_grants_are_printed_and_no_database_is_asked(make_role: MakeRole, database_url: str) -> None:
    """What is printed is what --apply executes: a role made by it can do the same."""
    nowhere = "postgresql://nobody@127.0.0.1:1/nowhere"
    role = make_role()
    applied = make_role("enqueue", "read")
    script = output("grants", "--role", name_in(role), "--can", "enqueue", "--can", "read", url=nowhere)
    assert script.splitlines() == [f"{one};" for one in grant_statements(name_in(role), [Can.ENQUEUE, Can.READ])]
    with connect(database_url) as connection:
        connection.execute(script.encode())
    looks = [INSERT, "SELECT args FROM sa_jobqueue.job", "SELECT host FROM sa_jobqueue.worker"]
    assert allowed(role, *looks, *DDL) == allowed(applied, *looks, *DDL) == looks


def test_repeated_grants_change_nothing(make_role: MakeRole, database_url: str) -> None:
    """Roles and rights may be granted again, as after an upgrade."""
    url = make_role(*Can)
    before = privileges(database_url)
    every = [part for one in Can for part in ("--can", one)]
    said = output("grants", "--role", name_in(url), *every, *every, "--apply", url=database_url)
    assert said == f"role {name_in(url)} can enqueue, work, read, schedule, wait, admin in schema sa_jobqueue\n"
    assert privileges(database_url) == before


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_role_and_of_a_schema_is_quoted(make_role: MakeRole, database_url: str, name: str) -> None:
    """Such a role can enqueue and read."""
    upgrade_database(database_url, schema=name)
    url = make_role(*Can, schema=name, name=name)
    assert as_json("enqueue", "a_task", "--schema", name, url=url)["task"] == "a_task"
    assert len(as_json("list", "--schema", name, url=url)) == 1
    assert allowed(url, INSERT) == []


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 64, "ö" * 32])
def test_what_cannot_be_a_role_is_refused(name: str) -> None:
    """A longer name would be cut off by the server, and mean another role."""
    with pytest.raises(ConfigurationError, match="cannot be the name of a role"):
        grant_statements(name, [Can.READ])


def test_a_missing_role_is_named(database_url: str) -> None:
    """The message says to create it, and no right is changed."""
    before = privileges(database_url)
    said = refused("grants", "--role", "nobody there", "--can", "read", "--apply", url=database_url)
    assert 'no role "nobody there": create it first' in said
    assert privileges(database_url) == before


def test_a_role_that_may_not_grant_is_told_so(make_role: MakeRole, database_url: str) -> None:
    """To the server it is only a warning; nothing is left half done."""
    reader = make_role("read")
    other = make_role()
    before = privileges(database_url)
    said = refused("grants", "--role", name_in(other), "--can", "read", "--apply", url=reader)
    assert "nothing was granted" in said
    assert "owner" in said
    assert privileges(database_url) == before


def test_a_role_that_does_not_exist_is_said(database_url: str) -> None:
    """As a note beside the printed GRANTs, which need no database; with --apply as a refusal that says what to do."""
    wanted = ("grants", "--role", 'no "such" role', "--can", "read")
    missing = (
        'this database has no role "no ""such"" role": create it first, as by CREATE ROLE "no ""such"" role" LOGIN'
    )
    printed = invoke(*wanted, url=database_url)
    assert printed.stdout.startswith("GRANT ")
    assert printed.stderr == f"{missing}\n"
    assert invoke(*wanted, url="postgresql://me@127.0.0.1:1/nowhere").stderr == ""
    assert refused(*wanted, "--apply", url=database_url) == f"error: {missing}\n"


def test_roles_make_and_work_on_and_act_on_workflows(make_role: MakeRole, engine: Engine) -> None:
    """Each by what it was granted: a producer may write no status, a worker moves on what it may not enqueue, an operator acts."""
    producer, worker, operator = make_role("enqueue"), make_role("work"), make_role("admin")
    registry = Registry()

    @task(registry=registry, name="number", record=True)
    def number(n: int) -> int:
        if n < 0:
            raise Discard("below zero")
        return n

    @task(registry=registry, name="total")
    def total(parts: list[int]) -> None: ...

    made = create_engine(producer)
    with Session(made) as session:
        good, bad = Workflow("good"), Workflow("bad")
        for workflow, sign in ((good, 1), (bad, -1)):
            workflow.gather([workflow.add(number, sign * n) for n in range(3)], total)
            workflow.on_end(TaskName("number"), n=7)
        session.add_all([good, bad])
        session.flush()
        ids = [good.id, bad.id]
        session.commit()
    made.dispose()
    drain(worker, registry)
    with engine.connect() as connection:
        states = connection.execute(text("SELECT id, status FROM sa_jobqueue.workflow ORDER BY id")).all()
    assert [tuple(one) for one in states] == [(ids[0], "completed"), (ids[1], "failed")]
    acting = create_engine(operator)
    with acting.begin() as connection:
        assert len(connection.execute(retry_workflow(ids[1])).all()) == 3
        for statement in (pause_workflows(ids[1]), resume_workflows(ids[1]), cancel_workflows(ids[1])):
            assert connection.scalars(statement).all() == [ids[1]]
        connection.execute(retry_jobs(Job.workflow_id == ids[1])).all()
    acting.dispose()


def test_answers_are_taken_by_who_may_enqueue_and_sent_by_who_may_act(make_role: MakeRole, engine: Engine) -> None:
    """An answer comes from a callback, the command `signal`, or a click on the dashboard. A producer may not read in which step a job waits."""
    producer, operator = make_role("enqueue"), make_role("admin")
    with engine.begin() as connection:
        asking = make_job(connection, "blocked")
        question = as_asked("Ship it?", bool)
        connection.execute(insert(Wait).values(job_id=asking, step="signal:go", signal="go", question=question))
    hooks = Callbacks(url="https://shop.test", keys=["a key that is long enough"])
    address = hooks.sign(Ticket("go", 2_000_000_000, "n0")).removeprefix("https://shop.test")
    web, acting = create_engine(producer, poolclass=NullPool), create_engine(operator, poolclass=NullPool)
    client = TestClient(callbacks(web, registry=Registry(callbacks=hooks)))

    assert "Ship it?" in client.get(address).text
    assert client.post(address, json=7).status_code == 422
    assert client.post(address, json=True).status_code == 200
    assert output("signal", "go", "true", url=producer)
    assert allowed(producer, "SELECT step FROM sa_jobqueue.wait", "DELETE FROM sa_jobqueue.signal") == []
    with engine.begin() as connection:
        connection.execute(delete(Signal))
    assert "Sent the signal go." in Viewer(acting).do("answer", id=asking, step="signal:go", choice="Yes").text

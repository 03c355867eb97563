"""A job table that the application has mapped: everything works with it, and it does not meet the package's own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import sa_jobqueue
from sa_jobqueue import Batch, JobStatus, Unique, Workflow, companions_of, enqueue_many, enqueue_select, every, wait_for
from sa_jobqueue.errors import OptionError, WorkflowError
from sa_jobqueue.migrations import OwnTable, upgrade_database
from sa_jobqueue.statements import (
    cancel_jobs,
    copy_jobs,
    count_jobs,
    discard_jobs,
    edit_jobs,
    list_limits,
    pause_schedules,
    prune_jobs,
    retry_jobs,
    set_limit,
    why_waiting,
)
from sa_jobqueue.testing import JobQueue, assert_enqueued, assert_not_enqueued, work_one
from sa_jobqueue.testing import drain as drain_inline
from tests.support.cli import as_json, invoke, output
from tests.support.commands import run_command
from tests.support.own_jobs import (
    SCHEMA,
    Base,
    Job,
    Note,
    Tenant,
    add_another,
    enqueue,
    fail,
    registry,
    write_note,
    write_note_in_a_child,
    write_note_later,
)
from tests.support.waiting import wait_until
from tests.support.working import drain, working


@pytest.fixture
def url(empty_database_url: str) -> str:
    """A database with both: the package's table, and the application's."""
    engine = create_engine(empty_database_url)
    with engine.begin() as connection:
        upgrade_database(connection)
        Tenant.__table__.create(connection)  # type: ignore[attr-defined]
        OwnTable(Job).create(connection)
        Base.metadata.create_all(connection)
        connection.execute(Tenant.__table__.insert(), [{"name": "acme"}, {"name": "umbrella"}])
    engine.dispose()
    return empty_database_url


def jobs(engine: Engine) -> list[Job]:
    with Session(engine) as session:
        return list(session.scalars(select(Job).order_by(Job.id)))


def test_a_job_is_enqueued_with_columns_of_ones_own(engine: Engine) -> None:
    """By the options of the task, or by an attribute, or by a relationship; the server's default holds otherwise."""
    with Session(engine) as session:
        first = enqueue(write_note.options(columns={"tenant_id": 2, "importance": 7}), "a")
        second = enqueue(write_note, "b")
        second.tenant_id = 1
        third = enqueue(write_note, "c")
        third.tenant = session.get_one(Tenant, 1)
        session.add_all([first, second, third])
        session.commit()
        assert [one.name for one in session.scalars(select(Tenant).where(Tenant.jobs.any(Job.task == first.task)))] == [
            "acme",
            "umbrella",
        ]
    assert [(one.tenant_id, one.importance) for one in jobs(engine)] == [(2, 7), (1, 1), (1, 1)]
    with Session(engine) as session:
        assert not list(session.scalars(select(sa_jobqueue.Job)))


def test_many_jobs_are_enqueued_with_them_by_one_statement(engine: Engine) -> None:
    """Each call with its own values; in the order of the calls."""
    task = write_note.options(columns={"tenant_id": 1, "source": 'a "b", {c}'})
    calls = [task.call("a"), task.options(columns={"tenant_id": None, "source": None}).call("b"), task.call("c")]
    with Session(engine) as session:
        ids = session.scalars(enqueue_many(calls, job=Job)).all()
        session.commit()
        plain = session.scalars(enqueue_many([write_note.call("d")], job=Job)).all()
        session.commit()
    found = jobs(engine)
    assert [one.id for one in found] == [*ids, *plain]
    assert [(one.args["text"], one.tenant_id, one.source) for one in found] == [
        ("a", 1, 'a "b", {c}'),
        ("b", None, None),
        ("c", 1, 'a "b", {c}'),
        ("d", None, None),
    ]


def test_a_select_fills_them_too(engine: Engine) -> None:
    """Of the row, or of the task's options."""
    source = select(Tenant.name)
    with Session(engine) as session:
        task = write_note.options(columns={"source": "select"})
        session.execute(enqueue_select(task, source, columns={"tenant_id": Tenant.id}, job=Job))
        session.commit()
    assert [(one.args["text"], one.tenant_id, one.source) for one in jobs(engine)] == [
        ("acme", 1, "select"),
        ("umbrella", 2, "select"),
    ]


def test_values_for_a_column_that_is_not_there_are_refused(engine: Engine) -> None:
    """Before any SQL, with what there is; also of the package's own jobs, and of a column of the queue's."""
    task = write_note.options(columns={"tenant": 1})
    with pytest.raises(
        OptionError, match=r"Job has no column 'tenant' of your own; it has importance, source, tenant_id"
    ):
        enqueue(task, "a")
    with pytest.raises(OptionError, match=r"no column 'status'"):
        enqueue_many([write_note.options(columns={"status": "completed"}).call("a")], job=Job)
    with pytest.raises(OptionError, match=r"Job has no column 'tenant_id' of your own: see JobMixin"):
        sa_jobqueue.enqueue(write_note.options(columns={"tenant_id": 1}), "a")
    with pytest.raises(OptionError, match=r"of the same names"):
        enqueue_many([write_note.call("a"), write_note.options(columns={"tenant_id": 1}).call("b")], job=Job)
    with pytest.raises(OptionError, match=r"columns must be a dict"):
        write_note.options(columns=["tenant_id"])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"not filled for the jobs of a schedule"):
        sa_jobqueue.Schedule("0 7 * * *", write_note.options(columns={"tenant_id": 1}), "a")
    with pytest.raises(WorkflowError, match=r"not filled for the jobs of a workflow"):
        sa_jobqueue.Workflow().add(write_note.options(columns={"tenant_id": 1}), "a")


def test_a_worker_runs_its_jobs_and_leaves_the_packages_alone(engine: Engine, url: str) -> None:
    """It takes the class from the registry: sync and async handlers, progress, results, errors, foreign keys to the job."""
    with Session(engine) as session:
        session.add(sa_jobqueue.enqueue(write_note, "the package's"))
        session.add(enqueue(write_note, "mine"))
        session.add(enqueue(write_note_later, "mine, too"))
        session.add(enqueue(fail, "no"))
        session.commit()
    worker = drain(url, registry)
    assert worker.schema == SCHEMA
    found = jobs(engine)
    assert [one.status for one in found] == [JobStatus.COMPLETED, JobStatus.COMPLETED, JobStatus.FAILED]
    assert write_note.result(found[0]) == 4
    with Session(engine) as session:
        assert set(session.scalars(select(Note.text))) == {"mine", "mine, too"}
        first = session.get_one(Job, found[0].id)
        assert (first.progress, first.progress_message) == (0.5, "half")
        assert session.scalars(select(sa_jobqueue.Job.status)).one() == JobStatus.QUEUED


def test_two_workers_in_one_process_do_not_meet(engine: Engine, url: str) -> None:
    """One of each table, with the same tasks; each runs its own jobs, and is woken by them."""
    with (
        working(url, registry, poll=60.0),
        working(url, registry, job=sa_jobqueue.Job, poll=60.0),
        Session(engine) as session,
    ):
        session.add_all([enqueue(write_note, "mine"), sa_jobqueue.enqueue(write_note, "the package's")])
        session.commit()
        wait_until(lambda: session.scalar(select(func.count()).select_from(Note)) == 2 or session.rollback())
    with Session(engine) as session:
        assert {one.worker for one in session.scalars(select(Job))}.isdisjoint(
            one.worker for one in session.scalars(select(sa_jobqueue.Job))
        )


def test_statements_find_the_tables_beside_it(engine: Engine) -> None:
    """They are given `job=` alone; a unique key that is given back is that of its own schema."""
    once = write_note.options(unique=Unique(key="once"))
    with Session(engine) as session:
        mine, other = enqueue(once, "a"), sa_jobqueue.enqueue(once, "a")
        session.add_all([mine, other])
        session.commit()
        assert not mine.is_duplicate
        assert not other.is_duplicate
        again = enqueue(once, "b")
        session.add(again)
        session.commit()
        assert again.duplicate_of == mine.id
        assert session.scalars(cancel_jobs(Job.id == mine.id, job=Job)).all() == [mine.id]
        session.commit()
        keys = companions_of(Job).unique_key
        assert session.scalars(select(keys.job_id)).all() == []
        assert session.scalars(select(companions_of(sa_jobqueue.Job).unique_key.job_id)).all() == [other.id]
        assert session.scalars(retry_jobs(Job.id == mine.id, job=Job)).all() == [mine.id]
        assert session.scalars(discard_jobs(Job.id == mine.id, job=Job)).all() == [mine.id]
        session.commit()
        assert session.scalars(edit_jobs(Job.id == mine.id, priority=9, job=Job)).all() == [mine.id]
        mine.tenant, mine.source = Tenant(name="copied"), "by hand"
        session.commit()
        ((copy, duplicate_of),) = session.execute(copy_jobs(Job.id == mine.id, job=Job)).all()
        assert duplicate_of is None
        made = session.get_one(Job, copy)
        assert (made.tenant, made.source, made.priority) == (mine.tenant, "by hand", 9)
        assert session.scalars(select(keys.job_id)).all() == [copy]
        assert session.scalars(discard_jobs(Job.id == copy, job=Job)).all() == [copy]
        session.commit()
        assert session.scalars(count_jobs(job=Job)).all()
        ids = sorted([mine.id, again.id, copy])
        assert sorted(session.scalars(prune_jobs(Job.id > 0, job=Job)).all()) == ids
        assert session.scalars(select(sa_jobqueue.Job.id)).all() == [other.id]


def test_limits_and_schedules_are_its_own(engine: Engine, url: str) -> None:
    """Those of the package's table hold nothing of it up."""
    beside = companions_of(Job)
    with Session(engine) as session:
        session.execute(set_limit("default", running=1, limit=beside.limit, limit_key=beside.key))
        session.add(beside.schedule(every(timedelta(hours=1)), write_note, "tick", name="hourly"))
        job = enqueue(write_note.options(delay=timedelta(hours=1)), "later")
        session.add(job)
        session.commit()
        assert session.execute(list_limits(job=Job)).all()
        assert not session.execute(list_limits()).all()
        assert [row.what for row in session.execute(why_waiting(job.id, job=Job))] == ["later"]
        assert session.scalars(select(beside.schedule.name)).all() == ["hourly"]
        assert not session.scalars(select(sa_jobqueue.Schedule.name)).all()
    with working(url, registry), Session(engine, autoflush=False) as session:
        found = select(beside.schedule.next_at)
        wait_until(lambda: session.scalars(found).one() is not None or session.rollback())
    with Session(engine) as session:
        assert session.scalars(pause_schedules(beside.schedule.name == "hourly", schedule=beside.schedule)).all()
        session.commit()


def test_a_program_waits_for_the_end_of_one(engine: Engine, url: str) -> None:
    """By the channel of its own schema."""
    with Session(engine) as session:
        job = enqueue(write_note, "four")
        session.add(job)
        session.commit()
        id = job.id
    with working(url, registry):
        end = wait_for(engine, id, timeout=20, job=Job)
    assert end.status is JobStatus.COMPLETED
    assert end.result == 4


def test_it_is_drained_inline_on_the_callers_session(engine: Engine) -> None:
    """And all of it is rolled back with it."""
    with Session(engine) as session:
        session.add(enqueue(write_note, "inline"))
        drained = drain_inline(session, registry=registry)
        assert drained.outcomes == {"completed": 1}
        assert session.scalars(select(Note.text)).all() == ["inline"]
        session.rollback()
    assert jobs(engine) == []


def test_a_child_process_finds_the_class(engine: Engine, url: str) -> None:
    """In its module; its session commits with the completion."""
    with Session(engine) as session:
        session.add(enqueue(write_note_in_a_child.options(columns={"source": "a test"}), "a note"))
        session.commit()
    drain(url, registry)
    with Session(engine) as session:
        assert session.scalars(select(Note.text)).all() == ["a note of a test"]
    assert [one.status for one in jobs(engine)] == [JobStatus.COMPLETED]


def test_the_worker_of_an_engine_that_translates_finds_it(url: str) -> None:
    """`schema=`, or the engine's own map, names the schema of the class, which may be elsewhere."""
    moved = {SCHEMA: "moved"}
    engine = create_engine(url, execution_options={"schema_translate_map": moved})
    with engine.begin() as connection:
        connection.execute(text(f"ALTER SCHEMA {SCHEMA} RENAME TO hidden"))
        upgrade_database(connection, schema="moved")
        connection.execute(
            text(
                "ALTER TABLE moved.job ADD COLUMN tenant_id integer, ADD COLUMN importance integer NOT NULL DEFAULT 1, "
                "ADD COLUMN source text"
            )
        )
    with Session(engine) as session:
        session.add_all([enqueue(fail.options(max_attempts=1), "one"), enqueue(fail, "two")])
        session.commit()
    assert drain(engine, registry).schema == "moved"
    with Session(engine) as session:
        assert session.scalars(select(Job.status)).all() == [JobStatus.FAILED] * 2
        session.execute(retry_jobs(Job.id > 0, job=Job))
        session.commit()
    assert drain(url, registry, schema="moved").schema == "moved"
    with Session(engine) as session:
        assert session.scalars(select(Job.status)).all() == [JobStatus.FAILED] * 2
    engine.dispose()


def test_commands_see_it_by_its_schema(engine: Engine, url: str) -> None:
    """Also the doctor; and `work` takes the class of the registry that --app names."""
    with Session(engine) as session:
        session.add_all([enqueue(write_note, "a"), enqueue(fail, "b")])
        session.commit()
    done = run_command("work", "--app", "tests.support.own_jobs:registry", "--drain", "--queue", "default=2", url=url)
    assert done.returncode == 0, done.stderr
    listed = as_json("list", "--schema", SCHEMA, url=url)
    assert sorted(one["status"] for one in listed) == ["completed", "failed"]
    assert as_json("list", url=url) == []
    id = next(one["id"] for one in listed if one["status"] == "failed")
    assert as_json("show", str(id), "--schema", SCHEMA, url=url)["task"] == fail.name
    output("retry", str(id), "--schema", SCHEMA, url=url)
    assert [one.status for one in jobs(engine)] == [JobStatus.COMPLETED, JobStatus.QUEUED]
    found = json.loads(invoke("doctor", "--json", "--schema", SCHEMA, url=url).stdout)["checks"]
    levels = {one["name"]: one["level"] for one in found}
    # Before PostgreSQL 17 an index of the application's own may seem as good as ours while the table is new.
    allowed = {"workers", "queues", "tasks"} | ({"plans"} if engine.dialect.server_version_info < (17,) else set())  # type: ignore[operator]
    assert {name for name, level in levels.items() if level != "ok"} <= allowed, levels


def test_a_command_enqueues_it(engine: Engine, url: str) -> None:
    """With columns of one's own, read as their types; --app names the registry, which says the schema."""
    app = ("--app", "tests.support.own_jobs:registry")
    columns = ("--column", "tenant_id=2", "--column", "source=a=b")
    id = output("enqueue", write_note.name, '{"text": "a"}', *app, *columns, url=url)
    made = next(one for one in jobs(engine) if one.id == int(id.split()[0]))
    assert (made.tenant_id, made.source, made.importance) == (2, "a=b", 1)
    assert as_json("enqueue", fail.name, '{"text": "b"}', *app, "--schema", SCHEMA, url=url)["task"] == fail.name
    assert len(jobs(engine)) == 2
    for options, said in (
        ((*app, "--column", "tenant_id=two"), "--column tenant_id: 'two' is no value of the type"),
        ((*app, "--column", "tenant_id"), "--column tenant_id: expected NAME=VALUE"),
        ((*app, "--column", "tenant=1"), "has no column 'tenant' of your own; it has importance, source, tenant_id"),
        (("--column", "tenant_id=1"), "--column is for a job table of your own: name its registry"),
    ):
        refused = invoke("enqueue", write_note.name, '{"text": "a"}', *options, url=url)
        assert refused.exit_code != 0
        assert said in " ".join(refused.stderr.split())
    assert len(jobs(engine)) == 2
    with Session(engine) as session:
        assert not session.scalars(select(sa_jobqueue.Job.id)).all()


def test_workflows_are_beside_it(engine: Engine, url: str) -> None:
    """Of a class for its schema: members wait for each other, some are added by a handler, and the end calls back."""
    own_workflow, own_batch = Workflow.in_schema_of(Job), Batch.in_schema_of(Job)
    assert own_workflow is Workflow.in_schema_of(Job)
    assert Workflow.in_schema_of(sa_jobqueue.Job) is Workflow
    with Session(engine) as session:
        workflow = own_workflow("report", deadline=timedelta(hours=1))
        first = workflow.add(write_note, "first")
        workflow.after(first, add_another, "second")
        workflow.on_success(write_note, "called back")
        batch = own_batch("notes")
        batch.add(write_note, "of a batch")
        session.add_all([workflow, batch])
        session.commit()
        ids = workflow.id, batch.id
    drain(url, registry)
    with Session(engine) as session:
        assert set(session.scalars(select(Note.text))) == {"first", "second", "added", "called back", "of a batch"}
        assert {session.get_one(own_workflow, ids[0]).status, session.get_one(own_batch, ids[1]).status} == {
            "completed"
        }
        assert not session.scalars(select(sa_jobqueue.Workflow.id)).all()
        assert not session.scalars(select(sa_jobqueue.Job.id)).all()


def test_what_is_enqueued_is_found_by_the_tasks_registry(engine: Engine) -> None:
    """With the columns that the options name."""
    with Session(engine) as session:
        session.add(enqueue(write_note.options(columns={"tenant_id": 1, "source": "a"}), "text"))
        found: Any = assert_enqueued(session, write_note.options(columns={"tenant_id": 1}), text="text")
        assert type(found) is Job
        with pytest.raises(AssertionError, match=r"columns=\{'tenant_id': 1\}, not \{'tenant_id': 2\}"):
            assert_enqueued(session, write_note.options(columns={"tenant_id": 2}))
        assert_not_enqueued(session, fail)
        assert work_one(session, found, registry=registry).outcome == "completed"


def test_the_testing_kit_knows_it(engine: Engine) -> None:
    """The clock moves its times and no others; effects are the jobs that were enqueued, and not what is beside them."""
    with Session(engine) as session:
        kit = JobQueue(session, registry=registry)
        session.add(later := enqueue(write_note.options(delay=3_600, columns={"tenant_id": 1}), "later"))
        session.add(other := sa_jobqueue.enqueue("other"))
        session.flush()
        due = other.run_at
        assert kit.assert_enqueued(write_note.name, text="later") is later
        assert "is due in 60 min" in str(kit.explain())
        kit.move_clock(3_600)
        assert kit.explain()[0].reason == "is due: drain() would run it"
        with kit.effects() as rows:
            session.add(enqueue(write_note.options(unique=Unique()), "unique"))
            assert kit.drain().outcomes == {"completed": 2}
        assert {one.table for one in rows} == {"own_note", f"{SCHEMA}.job"}
        assert [one.kind for one in rows.of(f"{SCHEMA}.job")] == ["insert"]
        session.expire_all()
        assert (later.status, other.run_at) == (JobStatus.QUEUED, due)


@pytest.fixture
async def async_engine(url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(url)
    yield engine
    await engine.dispose()


async def test_an_async_session_writes_the_same(async_engine: AsyncEngine) -> None:
    """The times of a delayed job are there after the commit, without a query."""
    async with AsyncSession(async_engine, expire_on_commit=False) as session:
        job = enqueue(write_note.options(delay=60, columns={"tenant_id": 1}), "later")
        session.add(job)
        await session.commit()
        assert job.run_at - job.created_at == timedelta(seconds=60)
        assert job.status is JobStatus.QUEUED
        tenant = (await session.scalars(select(Tenant).join(Tenant.jobs).where(Job.is_scheduled))).one()
        assert tenant.name == "acme"


def test_a_new_object_brings_its_job_with_it(engine: Engine) -> None:
    """The job refers to a tenant that the same flush inserts, by the relationship."""
    with Session(engine) as session:
        job = enqueue(write_note, "new")
        job.tenant = Tenant(name="new")
        session.add(job)
        session.commit()
        assert session.scalars(select(Job.tenant_id)).one() == job.tenant.id


def test_the_tables_can_be_made_twice_and_taken_away(engine: Engine) -> None:
    """`create` adds only what is missing."""
    with engine.begin() as connection:
        before = connection.scalar(text("SELECT count(*) FROM pg_attribute WHERE attrelid = 'own_queue.job'::regclass"))
        OwnTable(Job).create(connection)
        connection.execute(text("ALTER TABLE own_queue.job DROP COLUMN source"))
        OwnTable(Job).create(connection)
        connection.execute(select(Job.source))
    assert before is not None

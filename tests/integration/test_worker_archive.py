"""Workers archive: what their code says is written down and heeded by all, months come and go, and no kill loses or doubles a job."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, select, text, update
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session

from sa_jobqueue import ArchivedJob, Job, Registry, Worker, companions_of, enqueue, task
from sa_jobqueue.errors import ConfigurationError, TaskError
from sa_jobqueue.models import ArchivedTask
from sa_jobqueue.sql.store import default_store
from tests.support import own_jobs
from tests.support.commands import ROOT
from tests.support.factory import make_jobs, refer, users_table
from tests.support.waiting import wait_until
from tests.support.workflows import Flow
from tests.support.working import add_one, services_of, working

OVER = timedelta(seconds=-1)
FAST: dict[str, Any] = {"prune_every": 0.1}


@pytest.fixture(autouse=True)
def own(database_url: str) -> str:
    """A database of the test's own: its archive has no month yet."""
    return database_url


@pytest.fixture
def registry() -> Registry:
    registry = Registry()

    @task(registry=registry, name="kept", archive=True, aliases=["kept_before"], retain=timedelta(days=1), record=True)
    def kept(number: int) -> int:
        return number

    @task(registry=registry, name="plain")
    def plain() -> None: ...

    return registry


def scalar(engine: Engine, statement: Any) -> Any:
    with Session(engine) as session:
        return session.scalar(statement)


def archived(engine: Engine) -> list[int]:
    with Session(engine) as session:
        return list(session.scalars(select(ArchivedJob.id).order_by(ArchivedJob.id)))


def left(engine: Engine) -> list[int]:
    with Session(engine) as session:
        return list(session.scalars(select(Job.id).order_by(Job.id)))


def declared(engine: Engine) -> set[str]:
    with Session(engine) as session:
        return set(session.scalars(select(ArchivedTask.name)))


def finished(engine: Engine, number: int = 1, **columns: Any) -> list[int]:
    """Jobs that are to go."""
    with engine.begin() as connection:
        return make_jobs(connection, number, "completed", **{"task": "kept", "purge_at": OVER, **columns})


def months(engine: Engine) -> int:
    with engine.connect() as connection:
        found = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'sa_jobqueue.archived_job'::regclass"
        return connection.scalar(text(found)) or 0


def test_a_job_runs_finishes_and_is_archived(engine: Engine, url: str, registry: Registry) -> None:
    """Once its time is over, with its result."""
    with working(url, registry, **FAST):
        id = add_one(engine, enqueue(registry.get("kept"), 7))  # type: ignore[arg-type]
        wait_until(lambda: scalar(engine, select(Job.purge_at).where(Job.id == id)) is not None)
        assert archived(engine) == []
        with engine.begin() as connection:
            connection.execute(text("UPDATE sa_jobqueue.job SET purge_at = now()"))
        wait_until(lambda: archived(engine) == [id])
        assert left(engine) == []
    with Session(engine) as session:
        job = session.get_one(ArchivedJob, id)
        assert (job.task, job.result, job.attempt) == ("kept", 7, 1)
        assert registry.get("kept").result(job) == 7  # type: ignore[union-attr]
    assert declared(engine) == {"kept", "kept_before"}
    assert months(engine) == 2


def test_old_and_new_months_are_made_for_what_is_there(engine: Engine, url: str, registry: Registry) -> None:
    """For jobs that had been kept for years."""
    ids = [
        one
        for days in (900, 100, 3)
        for one in finished(engine, 3, finished_at=timedelta(days=-days), purge_at=timedelta(days=-1))
    ]
    others = finished(engine, 2, task="plain")
    with working(url, registry, **FAST):
        wait_until(lambda: archived(engine) == ids)
        wait_until(lambda: left(engine) == [])
    assert others


def test_a_worker_of_another_application_archives_too(engine: Engine, url: str, registry: Registry) -> None:
    """Its code does not know the task; the table says it, and outlives the worker that has declared it."""
    with working(url, registry, **FAST):
        wait_until(lambda: declared(engine) == {"kept", "kept_before"})
    ids = finished(engine, 3)
    plain = finished(engine, 2, task="plain")
    with working(url, Registry(), **FAST):
        wait_until(lambda: left(engine) == [])
    assert archived(engine) == ids
    assert plain


def test_no_finished_job_is_deleted_before_it_is_known_what_is_archived(
    engine: Engine, url: str, registry: Registry
) -> None:
    """The first thing that a new release does is not to delete what it says is archived."""
    ids = finished(engine, 50)
    for _ in range(5):
        with working(url, registry, prune_every=0.1):
            wait_until(lambda: left(engine) == [])
        assert archived(engine) == ids
        ids += finished(engine, 50)
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM sa_jobqueue.archived_task"))


def test_a_release_that_archives_no_more_says_so_at_its_start(engine: Engine, url: str, registry: Registry) -> None:
    """And only then: a worker that declares the task afterwards is not contradicted for ever."""
    after = Registry()

    @task(registry=after, name="kept")
    def kept(number: int) -> int:
        return number

    with working(url, registry, **FAST):
        wait_until(lambda: declared(engine) == {"kept", "kept_before"})
    with working(url, after, **FAST) as worker:
        wait_until(lambda: declared(engine) == {"kept_before"})  # a name that it does not have
        finished(engine, 2)
        wait_until(lambda: left(engine) == [])
        assert archived(engine) == []
        with working(url, registry, **FAST):
            wait_until(lambda: declared(engine) == {"kept", "kept_before"})
            heard: list[set[str]] = []
            presence, archive = chore_of(worker, "Presence"), chore_of(worker, "KeepArchive")
            presence._archived = lambda names: (archive.hear(names), heard.append(set(names)))
            presence.hasten()
            services_of(worker).maintenance.wake()
            wait_until(lambda: heard)
            assert heard[0] == {"kept", "kept_before"}
            assert archive._remove == frozenset()
    assert declared(engine) == {"kept", "kept_before"}


def chore_of(worker: Worker, name: str) -> Any:
    (chore,) = (one for one in services_of(worker).maintenance.chores if type(one).__name__ == name)
    return chore


def test_what_a_registry_says_holds_for_tasks_that_do_not_say_it(engine: Engine, url: str) -> None:
    """Each task may say otherwise. `retain=0` deletes completed jobs at once, and failed ones are archived."""
    registry = Registry(archive=True)

    @task(registry=registry, name="as_it_says")
    def as_it_says() -> None: ...

    @task(registry=registry, name="not_this", archive=False)
    def not_this() -> None: ...

    @task(registry=registry, name="at_once", retain=0)
    def at_once() -> None: ...

    assert [one.archive for one in registry] == [True, False, True]
    registry.archive = False
    assert [one.archive for one in registry] == [False] * 3
    registry.archive = True
    with working(url, registry, **FAST):
        wait_until(lambda: declared(engine) == {"as_it_says", "at_once"})
    with pytest.raises(ConfigurationError, match="archive must be True or False, not 'yes'"):
        Registry(archive="yes")  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="archive must be True or False, not 1"):
        task(archive=1)  # type: ignore[call-overload]
    with pytest.raises(TaskError, match="retain=0 deletes completed jobs at once"):
        task(archive=True, retain=0)


def test_a_job_that_the_application_needs_stays_and_the_others_are_archived(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker finds its way past it."""
    ids = finished(engine, 40)
    with engine.begin() as connection:
        users_table(connection)
        refer(connection, ids[7])
    with working(url, registry, **FAST):
        wait_until(lambda: archived(engine) == [one for one in ids if one != ids[7]])
        wait_until(lambda: f"job {ids[7]} cannot be deleted" in caplog.text)
    assert left(engine) == [ids[7]]


def detach_month(engine: Engine) -> None:
    """The month of a hundred days ago is a table of its own."""
    with engine.begin() as connection:
        then = "now() - interval '100 days'"
        connection.execute(text(f"SELECT sa_jobqueue.make_archive_months(ARRAY[{then}])"))
        part = connection.scalar(text(f"SELECT 'archived_job_' || to_char(({then}) AT TIME ZONE 'UTC', 'YYYY_MM')"))
        connection.execute(text(f"ALTER TABLE sa_jobqueue.archived_job DETACH PARTITION sa_jobqueue.{part}"))


def test_jobs_whose_month_was_detached_keep_no_others(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """They stay, and are said; a workflow of such jobs, too."""
    detach_month(engine)
    before: dict[str, Any] = {"finished_at": timedelta(days=-100), "purge_at": timedelta(hours=-1)}
    old, ids, plain = finished(engine, 2, **before), finished(engine, 3), finished(engine, 3, task="plain")
    with engine.begin() as connection:
        flow = Flow(connection, "a", retain=60)
        flow.complete("a")
        of_flow = {"task": "kept", "finished_at": func.now() - timedelta(days=100)}
        connection.execute(update(Job).where(Job.id == flow.job("a")).values(of_flow))
        connection.execute(text("UPDATE sa_jobqueue.workflow SET purge_at = now() - interval '1 s'"))
        member, workflow = flow.job("a"), flow.id
    with working(url, registry, **FAST):
        wait_until(lambda: archived(engine) == ids and set(plain).isdisjoint(left(engine)))
        said = [*(f"job {one} cannot be deleted" for one in old), f"workflow {workflow} cannot be deleted"]
        wait_until(lambda: all(one in caplog.text for one in said))
    assert {*old, member} <= set(left(engine))


def test_a_month_that_is_locked_puts_no_job_off(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are moved when the lock is gone."""
    with engine.begin() as connection:
        default_store.make_months_ahead(connection)
        month = connection.scalar(text("SELECT 'archived_job_' || to_char(now() AT TIME ZONE 'UTC', 'YYYY_MM')"))
    ids, tries = finished(engine, 20), [0]

    def tried(*given: Any, first: Any = default_store.prune_first, **options: Any) -> Any:
        tries[0] += 1
        return first(*given, **options)

    monkeypatch.setattr(default_store, "prune_first", tried)
    with engine.connect() as lock:
        lock.execute(text(f"LOCK TABLE sa_jobqueue.{month} IN SHARE MODE"))
        with working(url, registry, **FAST):
            wait_until(lambda: tries[0] > 1)
            lock.rollback()
            wait_until(lambda: archived(engine) == ids)


def test_the_month_of_a_job_behind_those_that_others_hold_is_made(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page skips those, and what makes its months does not: so each job is taken by itself."""
    monkeypatch.setattr("sa_jobqueue.worker.maintenance.prune._PAGE", 10)
    held = finished(engine, 10, purge_at=timedelta(hours=-1))
    ids = finished(engine, 2, finished_at=timedelta(days=-100))
    with engine.connect() as holder:
        holder.execute(select(Job.id).where(Job.id.in_(held)).with_for_update(key_share=True, read=True))
        with working(url, registry, **FAST):
            wait_until(lambda: archived(engine) == ids)
            holder.rollback()
            wait_until(lambda: archived(engine) == [*held, *ids])


def test_two_workers_at_once_make_the_months_and_move_each_job_once(
    engine: Engine, url: str, registry: Registry
) -> None:
    """Whichever comes first."""
    ids = [one for month in range(24) for one in finished(engine, 20, finished_at=timedelta(days=-30 * month - 3))]
    with working(url, registry, **FAST), working(url, registry, **FAST):
        wait_until(lambda: left(engine) == [])
    assert archived(engine) == ids


def test_a_reader_who_holds_the_archive_does_not_keep_workers_from_moving(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """Months are made beside it; a month that is to be dropped stays meanwhile, which is no error."""
    with engine.begin() as connection:
        connection.execute(text("SELECT sa_jobqueue.make_archive_months(ARRAY[now() - interval '900 days'])"))
    with engine.connect() as reader:
        reader.execute(select(func.count()).select_from(ArchivedJob))
        with working(url, registry, archive_months=12, **FAST) as worker:
            ids = finished(engine, 3, finished_at=timedelta(days=-100))
            wait_until(lambda: archived(engine) == ids)
            assert months(engine) == 4
            reader.rollback()
            chore_of(worker, "KeepArchive").at = 0.0
            services_of(worker).maintenance.wake()
            wait_until(lambda: months(engine) == 3)
    assert [one for one in caplog.records if one.levelname in {"ERROR", "WARNING"}] == []


def test_who_does_not_archive_asks_nothing_of_the_archive(engine: Engine, url: str) -> None:
    """No statement but the one that says that the worker is alive names it, and no month is made."""
    seen: list[str] = []
    registry = Registry()
    with working(url, registry, **FAST) as worker:
        chore = chore_of(worker, "KeepArchive")
        chore.do = lambda *given: seen.append("done")
        finished(engine, 3, task="plain")
        wait_until(lambda: left(engine) == [])
    assert (seen, months(engine), declared(engine)) == ([], 0, set())


# ---- processes that are killed


@contextmanager
def mover(url: str, page: int, *mode: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.support.mover", url, str(page), *mode]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def backends_are_gone(engine: Engine) -> bool:
    """Whether no session of a killed process is left: its last statement may be at work."""
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    with engine.connect() as connection:
        return connection.scalar(text(others)) == 0


def fill(engine: Engine, number: int) -> None:
    with engine.begin() as connection:
        default_store.declare_archived(connection, ["kept"], [])
        default_store.make_months_ahead(connection)
        make = (
            "INSERT INTO sa_jobqueue.job (task, status, finished_at, purge_at, claim_token)"
            " SELECT CASE WHEN mod(n, 4) = 0 THEN 'plain' ELSE 'kept' END, 'completed', now(), now() - n * interval '1 ms', 1"
            " FROM generate_series(1, :number) AS n"
        )
        connection.execute(text(make), {"number": number})


def test_a_process_killed_before_its_commit_has_moved_nothing(engine: Engine, url: str) -> None:
    """SIGKILL while the transaction of a page is open."""
    fill(engine, 1_000)
    engine.dispose()
    with mover(url, 400, "before-commit") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "400\n"
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    wait_until(lambda: backends_are_gone(engine))
    assert (len(left(engine)), archived(engine)) == (1_000, [])


@pytest.mark.parametrize(
    ("number", "kills"), [(15_000, (2,)), pytest.param(60_000, (1, 4, 2), marks=pytest.mark.nightly)]
)
def test_processes_killed_at_any_time_lose_and_double_no_job(
    engine: Engine, url: str, number: int, kills: tuple[int, ...]
) -> None:
    """SIGKILL in the middle of the work, after some pages, two at once: each job is in one table, and at last all are moved."""
    fill(engine, number)
    with Session(engine) as session:
        kept = list(session.scalars(select(Job.id).where(Job.task == "kept").order_by(Job.id)))
    for pages in kills:
        with mover(url, 250, "in-steps") as first, mover(url, 300, "in-steps") as second:
            for process, number_of_pages in ((first, pages), (second, 1)):
                assert process.stdin is not None
                assert process.stdout is not None
                for _ in range(number_of_pages):
                    assert process.stdout.readline() != ""
                    process.stdin.write("\n")
                    process.stdin.flush()
            for process in (first, second):
                process.send_signal(signal.SIGKILL)
        engine.dispose()
        wait_until(lambda: backends_are_gone(engine))
        there, moved = left(engine), archived(engine)
        assert moved
        assert len(moved) == len(set(moved))
        assert set(there).isdisjoint(moved)
        assert {*there, *moved} >= set(kept)
    assert left(engine), "the kills came too late to show anything"
    with mover(url, 1_000) as last:
        last.wait(60)
    assert (left(engine), archived(engine)) == ([], kept)


# ---- a job table of the application's


def test_columns_of_an_own_table_are_kept(empty_database_url: str) -> None:
    """As JSON, by the name of the column; also one that the class does not know."""
    from sa_jobqueue.migrations import OwnTable, upgrade_database

    engine = create_engine(empty_database_url)
    with engine.begin() as connection:
        upgrade_database(connection)
        own_jobs.Tenant.__table__.create(connection)  # type: ignore[attr-defined]
        OwnTable(own_jobs.Job).create(connection)
        connection.execute(own_jobs.Tenant.__table__.insert(), [{"name": "acme"}])  # type: ignore[attr-defined]
        connection.execute(text("ALTER TABLE own_queue.job ADD COLUMN unmapped text DEFAULT 'also'"))
    registry = Registry(job=own_jobs.Job)

    @task(registry=registry, name="kept", archive=True)
    def kept(number: int) -> None: ...

    beside = companions_of(own_jobs.Job)
    with Session(engine) as session:
        session.add(own_jobs.enqueue(kept.options(columns={"tenant_id": 1, "source": "web"}), 1))
        session.commit()
    with working(empty_database_url, registry, **FAST):
        done = select(func.count()).where(own_jobs.Job.status == "completed")
        wait_until(lambda: scalar(engine, done) == 1)
        with engine.begin() as connection:
            connection.execute(text("UPDATE own_queue.job SET purge_at = now()"))
        wait_until(lambda: scalar(engine, select(func.count()).select_from(beside.archived_job)) == 1)
    with Session(engine) as session:
        job = session.scalars(select(beside.archived_job)).one()
        assert job.args == {"number": 1}
        assert job.columns == {"tenant_id": 1, "importance": 1, "source": "web", "unmapped": "also"}
        assert session.get_one(beside.archived_job, job.id) is job
        assert session.scalar(select(func.count()).select_from(ArchivedJob)) == 0
    engine.dispose()


def test_a_worker_whose_role_lacks_the_rights_says_so_and_deletes_nothing(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After an upgrade whose grants were forgotten."""

    def refuse(*_: Any) -> None:
        raise ProgrammingError("INSERT", {}, _Refusal())

    monkeypatch.setattr(default_store, "declare_archived", refuse)
    ids = finished(engine, 3)
    with working(url, registry, **FAST):
        wait_until(lambda: "which tasks are archived cannot be written down" in caplog.text)
        assert "--can work" in caplog.text
        other = add_one(engine, enqueue(registry.get("plain")))  # type: ignore[arg-type]
        wait_until(lambda: scalar(engine, select(Job.finished_at).where(Job.id == other)) is not None)
    assert left(engine) == [*ids, other]


class _Refusal(Exception):
    sqlstate = "42501"

    def __str__(self) -> str:
        return "permission denied for table archived_task"

"""What the database refuses for some rows, or does not do in time: the other jobs go on meanwhile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from psycopg.errors import lookup
from sqlalchemy import Connection, Engine, func, insert, select, text
from sqlalchemy.exc import DBAPIError

from sa_jobqueue import JobStatus, Registry, task
from sa_jobqueue.sql.claims import Fault, fault_of
from sa_jobqueue.sql.store import default_store
from tests.support import pooler
from tests.support.factory import TABLE, make_job, make_jobs
from tests.support.nightly import nightly_sets
from tests.support.waiting import PATIENCE, wait_until
from tests.support.working import long_healthy, services_of, working


def count(engine: Engine, status: JobStatus, task: str) -> int:
    with engine.connect() as connection:
        found = select(func.count()).where(TABLE.c.status == status, TABLE.c.task == task)
        return int(connection.scalar(found) or 0)


def fill(engine: Engine, number: int) -> list[int]:
    """Jobs of the task "runs", one for each `n`; their ids."""
    with engine.begin() as connection:
        jobs = [{"task": "runs", "args": {"n": n}} for n in range(number)]
        return list(connection.scalars(insert(TABLE).returning(TABLE.c.id, sort_by_parameter_order=True), jobs))


def recorded(registry: Registry) -> list[int]:
    """Register the task "runs"; the `n` of each run, as it comes."""
    runs: list[int] = []

    @task(registry=registry, name="runs")
    async def handler(n: int) -> None:
        runs.append(n)

    return runs


def refuse(engine: Engine, when: str, statement: str) -> None:
    """A trigger of the application's: where `when` holds for a change of a job, `statement` fails."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {statement}; RETURN new; END $$"
        )
        connection.exec_driver_sql(
            f"CREATE TRIGGER refuse BEFORE UPDATE ON sa_jobqueue.job FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION refuse()"
        )


def mend(engine: Engine) -> None:
    """The trigger is dropped."""
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER refuse ON sa_jobqueue.job")


@contextmanager
def locked_reference(engine: Engine, job: int) -> Iterator[None]:
    """A row of the application's that references the job, ON DELETE SET NULL, and that another session has locked."""
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE email (job_id bigint REFERENCES sa_jobqueue.job ON DELETE SET NULL)")
        connection.execute(text("INSERT INTO email VALUES (:job)"), {"job": job})
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT FROM email FOR UPDATE")
        yield


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        ("P0001", Fault.ROW), ("22003", Fault.ROW), ("23514", Fault.ROW), ("54000", Fault.ROW), ("SHOP1", Fault.ROW),
        ("42883", Fault.REFUSED), ("42501", Fault.REFUSED), ("55000", Fault.REFUSED), ("XX001", Fault.REFUSED),
        ("57014", Fault.LATE), ("55P03", Fault.LATE),
        ("57P01", Fault.AWAY), ("53100", Fault.AWAY), ("25006", Fault.AWAY), ("40001", Fault.AWAY), ("0A000", Fault.AWAY),
    ],
)  # fmt: skip
def test_an_error_says_what_is_wrong(engine: Engine, state: str, fault: Fault) -> None:
    """By its SQLSTATE, as the driver brings it."""
    with engine.connect() as connection, pytest.raises(DBAPIError) as caught:
        connection.exec_driver_sql(f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{state}'; END $$")
    assert fault_of(caught.value) is fault


def test_a_lost_connection_is_no_fault_of_a_row(engine: Engine) -> None:
    """It has no SQLSTATE, or the connection is known to be broken."""
    gone = lookup("57P01")("terminating connection")
    assert fault_of(DBAPIError("", {}, gone, connection_invalidated=True)) is Fault.AWAY
    assert fault_of(DBAPIError("", {}, OSError("reset"))) is Fault.AWAY


def test_an_outcome_that_is_refused_for_now_is_kept_alone(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """A trigger of the application's is broken for one row: the others complete, and so does this one once it is mended."""
    runs = recorded(registry)
    ids = fill(engine, 200)
    refuse(engine, f"old.id = {ids[3]} AND new.status <> 'running'", "PERFORM nowhere()")
    caplog.set_level(logging.ERROR, "sa_jobqueue")
    with working(url, registry, queues={"default": 20}):
        wait_until(lambda: count(engine, JobStatus.COMPLETED, "runs") == 199)
        wait_until(lambda: f"job {ids[3]}: its outcome is refused" in caplog.text)
        mend(engine)
        wait_until(lambda: count(engine, JobStatus.COMPLETED, "runs") == 200)
    assert sorted(runs) == list(range(200))


def test_what_was_refused_is_tried_once_more_when_the_worker_leaves(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have been tried in half a minute; by then another worker would have run the job again."""
    runs = recorded(registry)
    fill(engine, 1)
    refuse(engine, "new.status = 'completed'", "PERFORM nowhere()")
    monkeypatch.setattr("sa_jobqueue.worker.running.writer._REFUSED_FIRST", 30.0)
    with working(url, registry) as worker:
        wait_until(lambda: worker.state().refused == 1)
        mend(engine)
    assert count(engine, JobStatus.COMPLETED, "runs") == 1
    assert runs == [0]


@pytest.mark.parametrize(
    ("what", "number"),
    [("PERFORM pg_sleep(60)", 1), *nightly_sets(("RAISE EXCEPTION 'not this one'", 1), ("PERFORM pg_sleep(60)", 8))],
)
def test_jobs_whose_leases_cannot_be_renewed_cost_the_others_no_lease(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture, what: str, number: int
) -> None:
    """A trigger of the application's refuses them, or takes too long. The others would be rescued, would run again, and after five
    times would be failed.
    """
    runs, end = [], threading.Event()

    @task(registry=registry, name="runs")
    def handler(n: int) -> None:
        runs.append(n)
        end.wait(3 * PATIENCE)

    ids = fill(engine, 4 + 2 * number)
    bad = ids[: 2 * number : 2]
    refuse(
        engine,
        f"old.id = ANY ('{{{','.join(map(str, bad))}}}') AND old.status = 'running' AND new.status = 'running'",
        what,
    )
    with working(url, registry, lease=12.0, queues={"default": 2 * len(ids)}):
        wait_until(lambda: all(runs.count(n) == 2 for n in range(0, 2 * number, 2)), 2 * PATIENCE)
        mend(engine)
        end.set()
        wait_until(lambda: count(engine, JobStatus.COMPLETED, "runs") == len(ids))
    assert sorted(runs) == sorted([*range(len(ids)), *range(0, 2 * number, 2)])
    for one in bad:
        assert f"job {one}: its lease cannot be renewed" in caplog.text


@pytest.mark.parametrize("number", [1, 8])
def test_a_job_that_cannot_be_claimed_is_stepped_over(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """A trigger of the application's refuses their every change, the claim's, too: the others are run, and the log says which."""
    runs = recorded(registry)
    ids = fill(engine, 100)
    bad = ids[40 : 40 + number]
    refuse(engine, f"old.id BETWEEN {bad[0]} AND {bad[-1]}", "RAISE EXCEPTION 'not this one'")
    with working(url, registry, queues={"default": 20, "other": 2}):
        wait_until(lambda: count(engine, JobStatus.COMPLETED, "runs") == 100 - number)
        for one in bad:
            wait_until(lambda one=one: f"job {one} cannot be claimed" in caplog.text)
        mend(engine)
        wait_until(lambda: count(engine, JobStatus.COMPLETED, "runs") == 100)
    assert sorted(runs) == list(range(100))


def test_a_job_that_a_trigger_moves_as_it_is_claimed_goes_to_its_new_queue(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """This worker does not serve that queue; the jobs claimed with it run at once, and the connection is kept."""
    runs = recorded(registry)
    moved, *_ = fill(engine, 5)
    refuse(engine, f"old.id = {moved} AND new.status = 'running'", "new.queue = 'elsewhere'")
    with working(url, registry):
        wait_until(lambda: count(engine, JobStatus.COMPLETED, "runs") == 4)
        wait_until(lambda: count(engine, JobStatus.QUEUED, "runs") == 1)
    assert sorted(runs) == [1, 2, 3, 4]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("due", ["1700-01-01 00:00:00.000003+00", "4714-11-24 00:00:00.000001+00 BC", "-infinity"])
def test_a_job_of_long_ago_that_cannot_be_claimed_is_stepped_over(
    engine: Engine, url: str, registry: Registry, due: str
) -> None:
    """Although so old a time is not exact as a number of seconds."""
    runs = recorded(registry)
    with engine.begin() as connection:
        bad = make_job(connection, task="runs", args={"n": -1}, run_at=due)
    fill(engine, 20)
    refuse(engine, f"old.id = {bad}", "RAISE 'no'")

    with working(url, registry, queues={"default": 5}):
        wait_until(lambda: count(engine, JobStatus.COMPLETED, "runs") == 20)

    assert sorted(runs) == list(range(20))


@pytest.mark.parametrize("state", ["53200", "57014", "54000"])
def test_outcomes_that_wait_are_written_though_a_claim_needs_too_much(
    database_url: str, engine: Engine, url: str, registry: Registry, state: str
) -> None:
    """The server cannot make text of one row's arguments: out of memory, out of time, or more than it can. That job fails, by
    itself; what had ended beside that claim is written, and the others run.
    """
    runs, begun, release = recorded(registry), threading.Barrier(5), threading.Event()

    @task(registry=registry, name="waits")
    def waits() -> None:
        begun.wait(30)
        release.wait(30)

    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION as_text(jsonb) RETURNS text LANGUAGE plpgsql AS $$ BEGIN "
            f"IF $1 ? 'large' THEN RAISE 'too much' USING ERRCODE = '{state}'; END IF; RETURN concat($1); END $$"
        )
        connection.exec_driver_sql("CREATE CAST (jsonb AS text) WITH FUNCTION as_text(jsonb)")
        make_jobs(connection, 4, task="waits")
    with working(url, registry, queues={"default": 4}, buffer=0, lease=60.0):
        begun.wait(30)
        with engine.begin() as connection:
            make_job(connection, task="runs", args={"large": 1})
        fill(engine, 20)
        release.set()
        wait_until(lambda: count(engine, JobStatus.COMPLETED, "runs") == 20)
        wait_until(lambda: count(engine, JobStatus.COMPLETED, "waits") == 4)

    assert sorted(runs) == list(range(20))


def test_nothing_is_lost_where_all_outcomes_are_refused_for_a_while(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A privilege was taken away, say: the outcomes are kept, and no handler runs twice."""
    runs = recorded(registry)
    fill(engine, 30)
    refuse(engine, "new.status = 'completed'", "RAISE EXCEPTION 'permission denied' USING ERRCODE = '42501'")
    monkeypatch.setattr("sa_jobqueue.worker.running.writer._REFUSED_LATER", 1.0)
    with working(url, registry, queues={"default": 20}) as worker:
        wait_until(lambda: len(runs) >= 20 and worker.state().refused > 0)
        mend(engine)
        wait_until(lambda: count(engine, JobStatus.COMPLETED, "runs") == 30)
    assert sorted(runs) == list(range(30))


def test_a_locked_row_that_references_a_job_to_be_deleted_holds_up_nothing(
    engine: Engine, url: str, registry: Registry
) -> None:
    """`retain=0`, and what would have to be set NULL is locked: the job is kept for pruning, the others are done."""

    @task(registry=registry, name="gone", retain=0)
    async def gone() -> None: ...

    @task(registry=registry, name="other")
    async def other() -> None: ...

    with engine.begin() as connection:
        job = make_job(connection, task="gone")
    with locked_reference(engine, job), working(url, registry) as worker:
        wait_until(lambda: count(engine, JobStatus.COMPLETED, "gone") == 1)
        with engine.begin() as connection:
            make_jobs(connection, 50, task="other")
        wait_until(lambda: count(engine, JobStatus.COMPLETED, "other") == 50)
        assert worker.counts["lost"] == 0
    with engine.connect() as connection:
        kept = connection.execute(select(TABLE.c.claims, TABLE.c.purge_at - TABLE.c.finished_at)).first()
        assert kept is not None
        assert (kept[0], kept[1].total_seconds()) == (1, 60.0)


def test_a_job_that_cannot_be_pruned_in_time_does_not_keep_others_from_being_rescued(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """A row that references it is locked; a dead worker's job is back all the same, and others are pruned."""

    @task(registry=registry, name="runs")
    async def runs() -> None: ...

    with engine.begin() as connection:
        over = timedelta(hours=-1)
        stays, *_ = make_jobs(connection, 30, JobStatus.COMPLETED, task="kept", finished_at=over, purge_at=over)
        make_job(connection, JobStatus.RUNNING, task="runs", worker="gone", claims=1, attempt=1, lease_expires_at=over)
    long_healthy(engine, 4.0)
    with locked_reference(engine, stays), working(url, registry, lease=4.0, prune_every=0.1):
        wait_until(lambda: count(engine, JobStatus.COMPLETED, "runs") == 1)
        wait_until(lambda: count(engine, JobStatus.COMPLETED, "kept") == 1)
        wait_until(lambda: f"job {stays} cannot be deleted" in caplog.text)


def test_many_jobs_that_cannot_be_deleted_do_not_keep_others_from_being_rescued(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """Each DELETE fails after a while, as by a foreign key without an index: they are put off, and said, over many turns."""

    @task(registry=registry, name="runs")
    async def runs() -> None: ...

    with engine.begin() as connection:
        over = timedelta(hours=-1)
        needed = make_jobs(connection, 60, JobStatus.COMPLETED, task="needed", finished_at=over, purge_at=2 * over)
        make_jobs(connection, 30, JobStatus.COMPLETED, task="kept", finished_at=over, purge_at=over)
        make_job(connection, JobStatus.RUNNING, task="runs", worker="gone", claims=1, attempt=1, lease_expires_at=over)
        connection.exec_driver_sql(
            "CREATE FUNCTION is_needed() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_sleep(0.02); RAISE foreign_key_violation; END $$"
        )
        connection.exec_driver_sql(
            "CREATE TRIGGER is_needed BEFORE DELETE ON sa_jobqueue.job FOR EACH ROW WHEN (old.task = 'needed')"
            " EXECUTE FUNCTION is_needed()"
        )
    with working(url, registry, lease=2.0, prune_every=0.1):
        wait_until(lambda: count(engine, JobStatus.COMPLETED, "runs") == 1, 2 * PATIENCE)
        wait_until(lambda: count(engine, JobStatus.COMPLETED, "kept") == 0, 2 * PATIENCE)
    assert count(engine, JobStatus.COMPLETED, "needed") == len(needed)
    assert [caplog.text.count(f"job {one} cannot be deleted") for one in needed] == [1] * len(needed)


def test_pruning_goes_on_where_the_oldest_is_not_found_in_time(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted rows are still there for an old snapshot, and each first page reads past them."""
    slow = threading.Event()

    def walking(real: Callable[..., Any]) -> Callable[..., Any]:
        def prune(connection: Connection, **options: Any) -> Any:
            if slow.is_set() and options["after"] == float("-inf"):
                connection.execute(text("SET LOCAL statement_timeout = '20ms'"))
                connection.execute(text("SELECT pg_sleep(1)"))
            return real(connection, **options)

        return prune

    def add(number: int) -> None:
        with engine.begin() as connection:
            make_jobs(connection, number, JobStatus.COMPLETED, task="kept", purge_at=timedelta(0))

    for name in ("prune", "prune_first"):
        monkeypatch.setattr(default_store, name, walking(getattr(default_store, name)))
    with working(url, registry, prune_every=0.1) as worker:
        for _ in range(2):
            add(3)
            wait_until(lambda: count(engine, JobStatus.COMPLETED, "kept") == 0)
            slow.set()
        assert services_of(worker).maintenance._failures == 0


def test_pruning_takes_smaller_pages_where_a_page_takes_too_long(engine: Engine, url: str, registry: Registry) -> None:
    """Each DELETE looks through a table of the application's that has no index for it, say."""
    with engine.begin() as connection:
        over = timedelta(hours=-1)
        make_jobs(connection, 30, JobStatus.COMPLETED, task="kept", finished_at=over, purge_at=over)
        connection.exec_driver_sql(
            "CREATE FUNCTION takes_long() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_sleep(0.03); RETURN old; END $$"
        )
        connection.exec_driver_sql(
            "CREATE TRIGGER takes_long BEFORE DELETE ON sa_jobqueue.job FOR EACH ROW EXECUTE FUNCTION takes_long()"
        )
        with pytest.raises(DBAPIError) as caught, connection.begin_nested():
            default_store.prune(connection, limit=1_000, seconds=0.3)
        assert fault_of(caught.value) is Fault.LATE
    with working(url, registry, lease=4.0, prune_every=0.1):
        wait_until(lambda: count(engine, JobStatus.COMPLETED, "kept") == 0)


def test_a_queue_whose_slots_are_taken_does_not_ask_to_be_woken(engine: Engine, url: str, registry: Registry) -> None:
    """A queue that has run dry opens its gate; one of the same worker's whose slots are taken lets its own lapse."""
    pooler.skip_where_deaf(url)
    leave = threading.Event()

    @task(registry=registry, name="holds")
    def holds() -> None:
        leave.wait(30)

    with engine.begin() as connection:
        make_jobs(connection, 2, task="holds", queue="busy")
    with working(url, registry, queues={"busy": 1, "idle": 1}, buffer=0):
        try:
            wait_until(lambda: open_gates(engine) == ["idle"])
        finally:
            leave.set()
        wait_until(lambda: open_gates(engine) == ["busy", "idle"])


def open_gates(engine: Engine) -> list[str]:
    statement = text(
        "SELECT name FROM unnest(ARRAY['busy', 'idle']) AS name WHERE"
        " to_timestamp(pg_sequence_last_value(to_regclass('sa_jobqueue.gate_' || (hashtext(name) & 15)))) > clock_timestamp()"
    )
    with engine.connect() as connection:
        return list(connection.scalars(statement))

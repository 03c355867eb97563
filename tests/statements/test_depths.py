"""How many jobs wait, and of which tasks: counted up to a limit, and by index however many jobs there are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, Executable, create_engine

from sa_jobqueue.statements.depths import CAP, capped, purge_overdue, queue_depths, queued_tasks
from sa_jobqueue.statements.unique import find_stray_keys
from tests.statements.test_plans import FILL, vacuum
from tests.support.databases import Databases
from tests.support.factory import make_job, make_jobs
from tests.support.plans import Plan


def test_queued_and_due_jobs_are_counted_by_queue(engine: Engine) -> None:
    """Over all priorities; the oldest is the oldest of any, also one that is due since ever; running and finished ones do not wait."""
    with engine.begin() as connection:
        make_jobs(connection, 2, queue="mail", priority=9)
        make_job(connection, queue="mail", priority=0, run_at=timedelta(minutes=-5))
        make_job(connection, queue="mail", run_at=timedelta(hours=1))
        make_job(connection, queue="later", run_at=timedelta(hours=1))
        make_job(connection, queue="odd", run_at="-infinity")
        make_job(connection, "running", queue="busy")
        make_job(connection, "failed", queue="done")
        later, mail, odd = connection.execute(queue_depths()).all()
    assert (later.queue, later.queued, later.due, later.oldest_due_age) == ("later", 1, 0, None)
    assert (mail.queue, mail.queued, mail.due) == ("mail", 4, 3)
    assert 300 <= mail.oldest_due_age < 330
    assert (odd.queue, odd.due) == ("odd", 1)
    assert odd.oldest_due_age > 1e9


def test_counting_stops_at_the_cap(engine: Engine) -> None:
    """A cap of 3 counts no further, and the next queue is counted for itself."""
    with engine.begin() as connection:
        for queue in ("a", "b"):
            for priority in (3, 7):
                make_jobs(connection, 2, queue=queue, priority=priority)
        rows = connection.execute(queue_depths(cap=3)).all()
        assert [(row.queue, row.queued, row.due) for row in rows] == [("a", 3, 3), ("b", 3, 3)]
        make_jobs(connection, 4, "completed", purge_at=timedelta(minutes=-1))
        assert connection.execute(purge_overdue(cap=3)).one().rows == 3
    assert [capped(number) for number in (0, 10_000, CAP)] == ["0", "10,000", "10,000+"]


def test_overdue_jobs_are_counted_with_the_age_of_the_first(engine: Engine) -> None:
    """One that may be kept for ever, or longer, is not."""
    with engine.begin() as connection:
        assert connection.execute(purge_overdue()).one() == (0, 0.0)
        make_job(connection, "completed", purge_at=timedelta(minutes=-5))
        make_job(connection, "completed", purge_at=timedelta(minutes=-1))
        make_job(connection, "completed", purge_at=timedelta(minutes=1))
        make_job(connection, "completed", purge_at=None)
        rows, seconds = connection.execute(purge_overdue()).one()
    assert rows == 2
    assert 300 <= seconds < 330


def test_tasks_of_queued_jobs_are_found_in_a_sample(engine: Engine) -> None:
    """The first that are due, and the first that will be, of each queue and priority."""
    with engine.begin() as connection:
        make_jobs(connection, 5, task="often", queue="mail", run_at=timedelta(minutes=-5))
        make_job(connection, task="behind them", queue="mail", run_at=timedelta(minutes=-1))
        make_job(connection, task="given back", queue="mail", run_at=timedelta(minutes=2))
        make_jobs(connection, 3, task="much later", queue="mail", run_at=timedelta(days=2))
        make_job(connection, task="other", queue="mail", priority=9)
        found = connection.execute(queued_tasks(sample=3)).all()
    assert {(row.queue, row.task): row.jobs for row in found} == {
        ("mail", "often"): 3,
        ("mail", "given back"): 1,
        ("mail", "much later"): 2,
        ("mail", "other"): 1,
    }


@pytest.fixture(scope="module")
def full(databases: Databases) -> Iterator[Connection]:
    """200,000 jobs, and a unique key for each tenth."""
    name = databases.new_name()
    engine = create_engine(databases.create(name))
    with engine.begin() as connection:
        connection.exec_driver_sql(FILL)
        connection.exec_driver_sql(
            "INSERT INTO sa_jobqueue.unique_key (key, job_id) SELECT 'k' || id, id FROM sa_jobqueue.job WHERE mod(id, 10) = 0"
        )
    vacuum(engine)
    with engine.connect() as connection:
        yield connection
    engine.dispose()
    databases.drop(name)


@pytest.mark.parametrize(
    ("statement", "blocks"),
    [
        (queue_depths(), 1_500),
        (purge_overdue(), 200),
        (queued_tasks(sample=20), 3_000),
        (find_stray_keys(limit=3, sample=500), 4_500),
    ],
    ids=["queue_depths", "purge_overdue", "queued_tasks", "find_stray_keys"],
)
def test_no_statement_of_the_doctor_walks_over_the_table(full: Connection, statement: Executable, blocks: int) -> None:
    """It reads indexes, and not more blocks than its cap allows."""
    compiled: Any = statement.compile(dialect=full.dialect, compile_kwargs={"literal_binds": True})  # type: ignore[attr-defined]
    rows: Any = full.exec_driver_sql(
        f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {compiled}".replace("%", "%%")
    ).scalar_one()
    plan = Plan(rows[0]["Plan"])
    assert all("Scan" not in node["Node Type"] or "Index" in node["Node Type"] for node in plan.on("job")), plan
    assert plan.blocks <= blocks, plan

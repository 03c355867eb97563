"""How many jobs wait, and of which tasks: counted up to a limit, and by index however many jobs there are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, Executable, create_engine

from sa_jobqueue.sql.readings.backlog import count_backlog
from sa_jobqueue.sql.readings.depths import CAP, capped, purge_overdue, queue_depths, queued_tasks
from sa_jobqueue.sql.unique import find_stray_keys
from tests.statements.test_plans import FILL, FILL_KEYED, vacuum
from tests.support.databases import Databases
from tests.support.factory import make_job, make_jobs
from tests.support.nightly import nightly
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


def test_jobs_with_keys_are_counted_as_the_others_are(engine: Engine) -> None:
    """Those that are ready, those that came back and are due again, and those for later; in queues with and without others."""
    hour = timedelta(hours=1)
    with engine.begin() as connection:
        make_job(connection, queue="both", run_at=-hour)
        make_jobs(connection, 2, queue="both", concurrency_key="a")
        make_job(connection, queue="came back", concurrency_key="a", run_at=-hour, created_at=-2 * hour)
        make_job(connection, queue="later", concurrency_key="a", run_at=hour)
        make_job(connection, queue="odd", concurrency_key="a", run_at="-infinity")
        make_job(connection, queue="ready", concurrency_key="a")
        make_job(connection, queue="ready", concurrency_key="b", run_at=-3 * hour, created_at=-4 * hour, ready_at=-hour)
        make_job(connection, queue="ready", concurrency_key="c", run_at=hour)
        make_job(connection, "running", queue="busy", concurrency_key="a")
        make_job(connection, "failed", queue="done", concurrency_key="a")
        found = {row.queue: row for row in connection.execute(queue_depths())}
        two = connection.scalars(queue_depths(queues=2)).all()
    assert list(found) == ["both", "came back", "later", "odd", "ready"]
    assert {name: (row.queued, row.due) for name, row in found.items()} == {
        "both": (3, 3), "came back": (1, 1), "later": (1, 0), "odd": (1, 1), "ready": (3, 2),
    }  # fmt: skip
    ages = {name: row.oldest_due_age for name, row in found.items()}
    assert ages["later"] is None
    assert ages["odd"] > 1e9
    assert [round(ages[name]) for name in ("both", "came back", "ready")] == [3_600, 3_600, 10_800]
    assert two == ["both", "came back"]


def test_counting_jobs_with_keys_stops_at_the_cap(engine: Engine) -> None:
    """For each kind, and for all together. The oldest is found behind a key with more jobs than are counted."""
    hour = timedelta(hours=1)
    with engine.begin() as connection:
        make_jobs(connection, 5, queue="ready", concurrency_key="a", priority=9)
        make_job(connection, queue="ready", concurrency_key="a", priority=1, run_at=-hour)
        make_job(connection, queue="ready", concurrency_key="b", priority=1, run_at=-2 * hour)
        make_jobs(connection, 5, queue="came back", concurrency_key="a", run_at=-hour, created_at=-2 * hour)
        make_jobs(connection, 5, queue="later", concurrency_key="a", run_at=hour)
        make_jobs(connection, 2, queue="both")
        make_jobs(connection, 2, queue="both", concurrency_key="a")
        make_jobs(connection, 2, queue="to come", run_at=hour)
        make_jobs(connection, 2, queue="to come", concurrency_key="a", run_at=hour)
        found = {row.queue: row for row in connection.execute(queue_depths(cap=3))}
    assert {name: (row.queued, row.due) for name, row in found.items()} == {
        "both": (3, 3), "came back": (3, 3), "later": (3, 0), "ready": (3, 3), "to come": (3, 0),
    }  # fmt: skip
    assert round(found["ready"].oldest_due_age) == 7_200


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


def test_tasks_of_jobs_with_keys_are_found_in_a_sample(engine: Engine) -> None:
    """The first that are ready of each key and priority, and of those that are not ready the first that are due, and will be."""
    minute = timedelta(minutes=1)
    with engine.begin() as connection:
        make_jobs(connection, 5, task="often", concurrency_key="a", run_at=-minute)
        make_job(connection, task="behind them", concurrency_key="a")
        make_job(connection, task="more urgent", concurrency_key="a", priority=9)
        make_job(connection, task="other key", concurrency_key="b")
        make_jobs(connection, 4, task="came back", concurrency_key="a", run_at=-minute, created_at=-2 * minute)
        make_job(connection, task="given back", concurrency_key="a", run_at=2 * minute)
        make_jobs(connection, 3, task="much later", concurrency_key="a", run_at=timedelta(days=2))
        make_job(connection, task="without", queue="others")
        found = connection.execute(queued_tasks(sample=3)).all()
        few = connection.execute(queued_tasks(sample=0)).all()
    assert {(row.queue, row.task): row.jobs for row in found} == {
        ("default", "often"): 1,
        ("default", "more urgent"): 1,
        ("default", "other key"): 1,
        ("default", "came back"): 3,
        ("default", "given back"): 1,
        ("default", "much later"): 2,
        ("others", "without"): 1,
    }
    assert len(few) <= 1


@pytest.fixture(scope="module", params=["with keys", *nightly("without keys")])
def full(request: pytest.FixtureRequest, databases: Databases) -> Iterator[Connection]:
    """200,000 jobs, and a unique key for each tenth; beside them none, or as many with keys that take turns."""
    name = databases.new_name()
    engine = create_engine(databases.create(name))
    with engine.begin() as connection:
        connection.exec_driver_sql(FILL)
        if request.param == "with keys":
            connection.exec_driver_sql(FILL_KEYED)
        connection.exec_driver_sql(
            "INSERT INTO sa_jobqueue.unique_key (key, job_id) SELECT 'k' || id, id FROM sa_jobqueue.job WHERE mod(id, 10) = 0"
        )
    vacuum(engine)
    with engine.connect() as connection:
        yield connection
    engine.dispose()
    databases.drop(name)


@pytest.mark.parametrize(
    ("statement", "blocks", "more"),
    [
        (queue_depths(), 1_500, 15_000),
        (count_backlog(cap=CAP), 1_500 + 2_000, 15_000),  # it reads each of the 2,000 running jobs, too
        (purge_overdue(), 200, 0),
        (queued_tasks(sample=20), 3_000, 2_000),
        (find_stray_keys(limit=3, sample=500), 4_500, 0),
    ],
    ids=["queue_depths", "count_backlog", "purge_overdue", "queued_tasks", "find_stray_keys"],
)
def test_no_statement_of_the_doctor_walks_over_the_table(
    full: Connection, statement: Executable, blocks: int, more: int, request: pytest.FixtureRequest
) -> None:
    """It reads indexes, and not more blocks than its cap allows; `more` where there are jobs with keys."""
    compiled: Any = statement.compile(dialect=full.dialect, compile_kwargs={"literal_binds": True})  # type: ignore[attr-defined]
    rows: Any = full.exec_driver_sql(
        f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {compiled}".replace("%", "%%")
    ).scalar_one()
    plan = Plan(rows[0]["Plan"])
    with_keys = request.node.callspec.params["full"] == "with keys"
    assert all("Scan" not in node["Node Type"] or "Index" in node["Node Type"] for node in plan.on("job")), plan
    assert max(node["Actual Rows"] for node in plan.on("job")) <= CAP, plan
    assert plan.blocks <= blocks + (more if with_keys else 0), plan

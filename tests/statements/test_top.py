"""What `top` reads each second: by index, and up to a cap."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import ClauseElement, Connection, Engine, create_engine, func, select, text

from sa_jobqueue.cli import top
from sa_jobqueue.cli.filters import Filters
from sa_jobqueue.cli.jobs import newest_jobs
from sa_jobqueue.sql.chosen import Status
from sa_jobqueue.sql.readings.depths import CAP, queue_depths, running_jobs
from tests.statements.test_plans import FILL, FILL_KEYED
from tests.support.databases import Databases
from tests.support.factory import make_job, make_jobs
from tests.support.nightly import nightly
from tests.support.plans import Plan

HOUR = timedelta(hours=1)


def test_numbers_end_at_the_cap_and_queues_at_their_limit(connection: Connection) -> None:
    """A number that is equal to the cap may be larger; the oldest due job is found all the same."""
    make_jobs(connection, 5, queue="a", priority=9)
    make_job(connection, queue="a", priority=1, run_at=-HOUR)
    make_job(connection, queue="b", run_at=HOUR)
    make_job(connection, queue="c")

    a, b = connection.execute(queue_depths(cap=3, queues=2)).mappings()

    assert (a["queued"], a["due"], a["oldest_due_age"]) == (3, 3, 3_600.0)
    assert (b["queue"], b["queued"], b["due"], b["oldest_due_age"]) == ("b", 1, 0, None)


def test_running_jobs_are_counted_by_queue_and_worker(connection: Connection) -> None:
    """With those whose lease has expired."""
    make_jobs(connection, 2, "running", queue="a", worker="w")
    make_job(connection, "running", queue="a", worker="w", lease_expires_at=-HOUR)
    make_job(connection, "running", queue="b", worker="v")
    make_job(connection)

    found = sorted(tuple(row) for row in connection.execute(running_jobs()))

    assert found == [("a", "w", 3, 1), ("b", "v", 1, 0)]
    assert sum(row.running for row in connection.execute(running_jobs(cap=2))) == 2


# ---- plans


@pytest.fixture(
    scope="module",
    params=[
        "with keys and without statistics", *nightly("without statistics", "with statistics", "with keys and with statistics"),
    ],
)  # fmt: skip
def large(request: pytest.FixtureRequest, databases: Databases) -> Iterator[Connection]:
    """200,000 jobs, and perhaps as many with keys, read with the settings of `top`."""
    name = databases.new_name()
    engine: Engine = create_engine(databases.create(name))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ALTER TABLE sa_jobqueue.job SET (autovacuum_enabled = false)")
        connection.exec_driver_sql(FILL)
        if request.param.startswith("with keys"):
            connection.exec_driver_sql(FILL_KEYED)
        connection.exec_driver_sql(
            "INSERT INTO sa_jobqueue.job (id, task, status, finished_at) SELECT 1000000 + n, 'a_task', 'failed', now() FROM generate_series(1, 300) AS n"
        )
        if request.param.endswith("with statistics"):
            connection.exec_driver_sql("VACUUM ANALYZE sa_jobqueue.job")
    with engine.connect() as connection:
        for name, value in top._SETTINGS.items():
            connection.execute(select(func.set_config(name, value, True)))
        connection.execute(text("SET LOCAL statement_timeout = 0"))  # on a slow machine a good plan may take long
        yield connection
    engine.dispose()
    databases.drop(name)


def explained(connection: Connection, statement: object) -> Plan:
    assert isinstance(statement, ClauseElement)
    # As text: an array parameter is text for the driver, which only its type in Core makes of it.
    compiled = statement.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
    said = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {compiled}")
    (found,) = said.scalar_one()
    return Plan(found["Plan"])


@pytest.mark.parametrize(
    ("statement", "indexes"),
    [
        (queue_depths(cap=1_000), {"job_claim_idx", "job_key_ready_idx", "job_key_later_idx"}),
        (running_jobs(), {"job_running_idx"}),
    ],
    ids=["depths", "running"],
)
def test_each_number_reads_no_more_of_an_index_than_the_cap(
    large: Connection, statement: object, indexes: set[str]
) -> None:
    """By index and not by the table, which has 200,000 rows, also while nothing is known of it."""
    plan = explained(large, statement)
    readings = plan.on("job")
    assert {node["Node Type"] for node in readings} <= {"Index Scan", "Index Only Scan"}, plan
    assert plan.indexes == indexes, plan
    assert plan.largest_discard == 0, plan
    assert max(node["Actual Rows"] for node in readings) <= 2_000, plan


def test_the_newest_failed_jobs_are_read_and_no_others(large: Connection) -> None:
    """Not those beside them in the order of ids."""
    executed: list[Any] = []

    class Asked:
        def execute(self, statement: Any) -> Any:
            executed.append(statement)
            return large.execute(statement)

    assert len(newest_jobs(Asked(), Filters(status=[Status.FAILED]), 20)) == 20  # type: ignore[arg-type]
    plan = explained(large, executed[0])
    assert plan.indexes == {"job_failed_idx"}, plan
    assert plan.largest_discard == 0, plan


def test_a_picture_is_read_within_its_time_and_changes_nothing(
    large: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each statement within 2 s, in a READ ONLY transaction; on a machine that stands still, within more."""
    assert top._SETTINGS["statement_timeout"] == "2s"
    monkeypatch.setitem(top._SETTINGS, "statement_timeout", "20s")
    with large.begin_nested():
        large.execute(text("SET TRANSACTION READ ONLY"))
        picture = top.read_picture(large, failures=5)
        assert large.scalar(text("SHOW statement_timeout")) == "20s"
    assert [one.name for one in picture.working.queues] == ["a", "b", "c"]
    assert picture.working.queues[0].due == CAP
    assert (picture.working.running, picture.working.failed, len(picture.failures)) == (2_000, 300, 5)

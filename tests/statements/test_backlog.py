"""Numbers for charts: counted by queue from small indexes, and schedules that are behind."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine, func, insert, text

from sa_jobqueue.models import Schedule
from sa_jobqueue.rules.lifecycle import JobStatus
from sa_jobqueue.sql.readings.depths import arrivals, count_by_queue, schedule_lag
from tests.support.factory import make_job


def counted(connection: Connection, status: JobStatus, **options: int) -> dict[str, int]:
    """The numbers by queue."""
    return {row.queue: row.number for row in connection.execute(count_by_queue(status, **options))}


def test_jobs_of_a_status_are_counted_by_queue(engine: Engine) -> None:
    """Up to a number of all queues together, the last ones."""
    with engine.begin() as connection:
        for queue in ("mail", "mail", "index", "index", "index"):
            make_job(connection, "failed", queue=queue)
        make_job(connection, "running", queue="mail")
        make_job(connection, queue="mail")
        assert counted(connection, JobStatus.FAILED) == {"index": 3, "mail": 2}
        assert counted(connection, JobStatus.RUNNING) == {"mail": 1}
        assert counted(connection, JobStatus.FAILED, cap=4) == {"index": 3, "mail": 1}


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.RUNNING])
def test_a_count_reads_the_index_of_its_status_alone(engine: Engine, database_url: str, status: JobStatus) -> None:
    """However many other jobs there are, and whether the table was analyzed or not."""
    fill = (
        "INSERT INTO sa_jobqueue.job (queue, task, status, claim_token, lease_expires_at, finished_at)"
        " SELECT 'mail', 'a_task', CASE WHEN mod(n, 1000) = 0 THEN :status ELSE 'completed' END, 1,"
        " CASE WHEN mod(n, 1000) = 0 AND :status = 'running' THEN now() END,"
        " CASE WHEN mod(n, 1000) = 0 AND :status = 'running' THEN NULL ELSE now() END FROM generate_series(1, 50000) AS n"
    )
    with engine.begin() as connection:
        connection.execute(text(fill), {"status": status.value})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for analyzed in (False, True):
            if analyzed:
                connection.exec_driver_sql("VACUUM ANALYZE sa_jobqueue.job")
            statement = count_by_queue(status).compile(engine, compile_kwargs={"literal_binds": True})  # type: ignore[attr-defined]
            plan = "\n".join(connection.execute(text(f"EXPLAIN {statement}")).scalars())
            assert f"job_{status.value}_idx" in plan, plan
            assert counted(connection, status) == {"mail": 50}


def test_schedules_that_nobody_looks_at_are_behind(engine: Engine) -> None:
    """Paused ones count for nothing."""
    with engine.begin() as connection:
        assert tuple(connection.execute(schedule_lag()).one()) == (0, 0, 0, 0.0)
        for name, minutes, columns in (
            ("in time", 1, {}),
            ("late", -10, {}),
            ("later", -5, {"error": "no such task"}),
            ("paused", -60, {"paused_at": func.now()}),
        ):
            connection.execute(
                insert(Schedule).values(
                    name=name,
                    task="a_task",
                    expression="every 60s",
                    due_at=func.now() + timedelta(minutes=minutes),
                    **columns,
                )
            )
        row = connection.execute(schedule_lag()).one()
        assert (row.number, row.behind, row.failing, row.seconds) == (3, 2, 1, 600.0)


def test_what_was_enqueued_lately_is_counted_by_queue(connection: Connection) -> None:
    """With the seconds that the count covers: fewer, where it stopped at its cap."""
    make_job(connection, queue="mail", created_at=timedelta(minutes=-10))
    for _ in range(3):
        make_job(connection, "completed", queue="mail", created_at=timedelta(minutes=-2))
    make_job(connection, queue="index", created_at=timedelta(minutes=-1))

    found = {row.queue: (row.number, row.seconds) for row in connection.execute(arrivals(within=timedelta(minutes=5)))}
    assert found == {"mail": (3, 300.0), "index": (1, 300.0)}

    capped = {
        row.queue: (row.number, row.seconds) for row in connection.execute(arrivals(within=timedelta(minutes=5), cap=3))
    }
    assert capped == {"mail": (2, 120.0), "index": (1, 120.0)}


def test_what_was_enqueued_lately_reads_the_last_jobs_alone(engine: Engine) -> None:
    """Of many, as many as the cap, by the primary key."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(
            "INSERT INTO sa_jobqueue.job (queue, task) SELECT 'mail', 'a_task' FROM generate_series(1, 30000)"
        )
        for analyzed in (False, True):
            if analyzed:
                connection.exec_driver_sql("VACUUM ANALYZE sa_jobqueue.job")
            statement = arrivals(within=timedelta(hours=1), cap=100).compile(
                engine, compile_kwargs={"literal_binds": True}
            )  # type: ignore[attr-defined]
            plan = "\n".join(connection.execute(text(f"EXPLAIN {statement}")).scalars())
            assert "Index Scan Backward using job_pkey" in plan, plan

"""What is read of a job to say why it is not run: counts that stop at a bound, and reads by indexes."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, Row, create_engine, func, insert

from sa_jobqueue.models import WorkerRow
from sa_jobqueue.rules.reasons import MOST_AHEAD
from sa_jobqueue.sql.readings.job_facts import job_facts
from tests.support.databases import Databases
from tests.support.factory import make_job
from tests.support.nightly import nightly_sets
from tests.support.plans import Plan, Prepared, service_connection


def facts(connection: Connection, job: int) -> Row[Any]:
    return connection.execute(job_facts([job])).one()


def test_there_is_a_row_for_each_id_in_their_order(connection: Connection) -> None:
    """Also for one that is no job's."""
    first, second = make_job(connection), make_job(connection, queue="mail")
    found = connection.execute(job_facts([second, second + 1, first])).all()
    assert [(row.asked, row.id, row.queue) for row in found] == [
        (first, first, "default"),
        (second, second, "mail"),
        (second + 1, None, None),
    ]
    assert {row.newest for row in found} == {second}


def test_those_ahead_are_counted_to_a_bound(connection: Connection) -> None:
    """Over all priorities, with and without a key."""
    fill = "INSERT INTO sa_jobqueue.job (task, priority, concurrency_key) SELECT 'a_task', {}, {} FROM generate_series(1, {})"
    connection.exec_driver_sql(fill.format(5, "NULL", 400))
    connection.exec_driver_sql(fill.format(6, "NULL", 400))
    connection.exec_driver_sql(fill.format(4, "NULL", 100))
    connection.exec_driver_sql(fill.format(4, "'42'", 1_500))
    job, keyed = make_job(connection), make_job(connection, concurrency_key="42")
    assert facts(connection, job).ahead == 900
    connection.exec_driver_sql(fill.format(9, "NULL", 1_500))
    assert facts(connection, job).ahead == facts(connection, keyed).ahead == MOST_AHEAD + 1


def test_the_workers_of_its_queue_are_counted_and_those_that_know_its_task(connection: Connection) -> None:
    """By its name or an alias; one that says nothing of its tasks may know any."""
    tasks = [{}, {"a_task": {}}, {"other": {"aliases": ["old", "a_task"]}}, {"other": {}}, {"aliases": ["a_task"]}]
    for number, known in enumerate(tasks):
        row = {"id": uuid.uuid4(), "host": "web", "pid": number, "concurrency": 3, "version": "1", "tasks": known}
        connection.execute(insert(WorkerRow).values(**row, queues=["default", "mail"]))
        connection.execute(insert(WorkerRow).values(**{**row, "id": uuid.uuid4()}, queues=["third"]))
    row = facts(connection, make_job(connection, queue="mail"))
    assert (row.live, row.serving, row.knowing, row.slots, row.busy) == (10, 5, 3, 9, 0)


def test_slots_are_those_of_its_queue(connection: Connection) -> None:
    """A worker that serves all queues shares the slots of "*" among those that it does not name."""
    workers = [{"mail": 2, "images": 9}, {"*": 5, "images": 1}, {"mail": 1, "*": 7}]
    ids = [uuid.uuid4() for _ in workers]
    for id, slots in zip(ids, workers, strict=True):
        row = {"id": id, "host": "web", "pid": 1, "concurrency": 99, "version": "1", "slots": slots}
        connection.execute(insert(WorkerRow).values(**row, queues=["mail", *slots]))
    for id in ids:
        for queue in ("mail", "images", "third"):
            make_job(connection, "running", queue=queue, worker=str(id))
    row = facts(connection, make_job(connection, queue="mail"))
    assert (row.slots, row.busy) == (2 + 5 + 1, 1 + 2 + 1)


# ---- plans


@pytest.mark.parametrize(
    ("analyzed", "key"),
    [(False, "mod(n, 10)::text"), *nightly_sets((True, "mod(n, 10)::text"), (False, "NULL"), (True, "NULL"))],
)
def test_it_reads_by_indexes(databases: Databases, analyzed: bool, key: str) -> None:
    """A table of 200,000 jobs is not scanned; also where the plan was made while it was empty."""
    name = databases.new_name()
    engine = create_engine(databases.create(name))
    try:
        plan = _plan(engine, key, analyzed=analyzed)
    finally:
        engine.dispose()
        databases.drop(name)
    assert {node["Node Type"] for node in plan.on("job")} <= {"Index Scan", "Index Only Scan"}, plan
    assert plan.indexes <= {"job_pkey", "job_claim_idx", "job_key_ready_idx", "job_running_idx", "worker_pkey"}, plan
    assert plan.blocks <= 1_500, plan


def _plan(engine: Engine, key: str, *, analyzed: bool) -> Plan:
    fill = f"""
        INSERT INTO sa_jobqueue.job (id, queue, task, priority, concurrency_key, status, claim_token, lease_expires_at, finished_at)
        SELECT n, CASE WHEN mod(n, 2) = 0 THEN 'a' ELSE 'b' END, 'a_task', mod(n / 7, 10), {key},
            CASE WHEN n <= 20 THEN 'running' WHEN n < 100000 THEN 'completed' ELSE 'queued' END, 1, now(),
            CASE WHEN n BETWEEN 21 AND 99999 THEN now() END
        FROM generate_series(1, 200000) AS n
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        row = {"host": "web", "pid": 1, "queues": ["a"], "concurrency": 3, "version": "1", "seen_at": func.now()}
        connection.execute(insert(WorkerRow).values(id=uuid.uuid4(), **row))
        if analyzed:
            connection.exec_driver_sql(fill)
        connection.exec_driver_sql("VACUUM ANALYZE sa_jobqueue.job")
        with service_connection(engine) as prepared_on:
            prepared: Any = Prepared(prepared_on, job_facts([2**40]), {})
            if not analyzed:
                connection.exec_driver_sql(fill)
            plan: Plan = prepared.explain({"job_ids": "{199998}"})
    return plan

"""How the pages that add up read a table with many jobs: each node by an index, and none walks over all jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event

from sa_jobqueue.dashboard.access import Access
from sa_jobqueue.dashboard.app import ACTIONS
from sa_jobqueue.dashboard.pages import PAGES
from sa_jobqueue.dashboard.query import Query
from sa_jobqueue.dashboard.request import Options, PageContext
from sa_jobqueue.dashboard.shared import Kept
from sa_jobqueue.doctor import reading
from sa_jobqueue.sql.chosen import Status
from tests.support.databases import Databases
from tests.support.failures import noted
from tests.support.nightly import nightly
from tests.support.plans import Plan

#: Jobs that are done; of the others there are few.
DONE = 100_000

FILL = f"""
INSERT INTO sa_jobqueue.job (queue, task, status, claims, attempt, worker, claimed_at, finished_at, purge_at)
SELECT 'q' || mod(n, 5), 'a_task', 'completed', 1, 1, 'w', now(), now(), now() + interval '1 day' FROM generate_series(1, {DONE}) AS n;
INSERT INTO sa_jobqueue.job (queue, task, concurrency_key, run_at)
SELECT 'q' || mod(n, 5), 'a_task', CASE WHEN mod(n, 3) = 0 THEN 'k' || mod(n, 7) END, now() + (mod(n, 2)) * interval '1 h' FROM generate_series(1, 500) AS n;
INSERT INTO sa_jobqueue.job (queue, task, status, claims, attempt, worker, claimed_at, lease_expires_at)
SELECT 'q' || mod(n, 5), 'a_task', 'running', 1, 1, 'w', now(), now() + interval '1 h' FROM generate_series(1, 50) AS n;
INSERT INTO sa_jobqueue.job (queue, task, status, claims, attempt, finished_at, errors)
SELECT 'q' || mod(n, 5), 'a_task', 'failed', 1, 1, now(), '[{{"type": "x", "message": "y"}}]' FROM generate_series(1, 300) AS n;
WITH suspended AS (
    INSERT INTO sa_jobqueue.job (queue, task, status, claims, blocked_by)
    SELECT 'q' || mod(n, 5), 'a_task', 'blocked', 1, CASE WHEN mod(n, 4) = 0 THEN 7 END FROM generate_series(1, 600) AS n RETURNING id, blocked_by)
INSERT INTO sa_jobqueue.wait (job_id, step, signal, due_at)
SELECT id, 's', CASE WHEN mod(id, 3) > 0 THEN 'go' END, CASE WHEN mod(id, 3) > 1 THEN now() END FROM suspended WHERE blocked_by IS NULL;
INSERT INTO sa_jobqueue.job_limit (owner, name, running, key_running) SELECT 'queue', 'q' || n, 10, 1 FROM generate_series(0, 4) AS n;
INSERT INTO sa_jobqueue.job_key (owner, name, key, running) VALUES ('queue', 'q0', 'k0', 1);
"""


@pytest.fixture(scope="module", params=["with statistics", *nightly("without statistics")])
def large(request: pytest.FixtureRequest, databases: Databases) -> Iterator[Engine]:
    name = databases.new_name()
    engine = create_engine(databases.create(name))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ALTER TABLE sa_jobqueue.job SET (autovacuum_enabled = false)")
        connection.exec_driver_sql(FILL)
        if request.param == "with statistics":
            connection.exec_driver_sql("VACUUM ANALYZE sa_jobqueue.job")
    yield engine
    engine.dispose()
    databases.drop(name)


def plans(connection: Connection, look: Any) -> list[Plan]:
    """The plans of what this reads of the table of jobs, executed."""
    seen: list[tuple[str, Any]] = []

    def note(_: object, __: object, statement: str, parameters: Any, *___: object) -> None:
        seen.append((statement, parameters))

    event.listen(connection, "before_cursor_execute", note)
    look()
    event.remove(connection, "before_cursor_execute", note)
    found = []
    for statement, parameters in seen:
        if "sa_jobqueue.job " in f"{statement} ".replace("\n", " "):
            rows: Any = connection.exec_driver_sql(
                f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters
            ).scalar_one()
            found.append(Plan(rows[0]["Plan"]))
    return found


def context_of(connection: Connection, query: str, *, name: str = "q1", **access: Any) -> PageContext:
    return PageContext(
        connection, Query.parse(query), Access(can=Access.ADMIN.can, **access), Options(), {"name": name}
    )


def check(found: list[Plan]) -> None:
    """Each is by an index, and touches a small part of the rows."""
    assert found
    for plan in found:
        for node in plan.on("job"):
            assert "Index" in node["Node Type"], plan
            rows = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            assert rows < DONE / 4, plan


def check_page(engine: Engine, name: str, *queries: str) -> None:
    """Each query of the page, for a viewer of all queues and for a viewer of one."""
    page = next(one for one in PAGES if one.name == name)
    failures: list[str] = []
    for queues in (None, ["q1"]):
        for query in queries:
            with noted(failures, (query, queues)), reading(engine) as connection:
                context = context_of(connection, query, name="k1" if name == "key" else "q1", queues=queues)
                check(plans(connection, lambda context=context: page.read(context)))
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("name", ["overview", "queues", "limits", "key", "workers", "tasks", "task", "queue", "find"])
def test_a_page_reads_no_more_than_it_shows(large: Engine, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor's own statements have tests of theirs."""
    monkeypatch.setattr("sa_jobqueue.dashboard.pages.database.look_at", lambda *_, **__: iter(()))
    monkeypatch.setattr("sa_jobqueue.dashboard.filters.RANGE", DONE // 10)
    monkeypatch.setattr("sa_jobqueue.dashboard.pages.find._KEYS", Kept(0.0))
    check_page(large, name, *(("q=a", "q=k&list=1") if name == "find" else ("",)))


QUERIES = (
    "", "queue=q1", "task=none", "tag=t", "key=k1", "error=x", 'args={"n":1}', "subject=Order", "subject=Order:7", "workflow=7", "id=7",
    "newer_than=1h", "before=50000", "worker=w", "not_task=a_task",
    "status=failed&not_error=x&attempts=2", "took=1h", "created_after=2020-01-01&created_before=2020-01-02", "ended_after=2020-01-01", *(f"status={status}" for status in Status), "status=failed&queue=q1", "status=failed&error=none",
    "status=blocked&task=none", "status=failed&status=running", "status=queued&queue=q1", "status=queued&queue=q1&key=k1", "status=due&task=none",
)  # fmt: skip


def test_a_page_of_jobs_reads_a_range_at_most(large: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the filter."""
    monkeypatch.setattr("sa_jobqueue.dashboard.filters.RANGE", DONE // 10)
    monkeypatch.setattr("sa_jobqueue.dashboard.filters.MOST", 200)
    check_page(large, "jobs", *QUERIES)


def test_what_a_drain_would_cancel_is_counted_by_the_indexes_of_queued_jobs(large: Engine) -> None:
    count = ACTIONS["cancel_queue"].count
    assert count is not None
    with reading(large) as connection:
        context = context_of(connection, "queue=q1")
        assert count(context) == 100
        check(plans(connection, lambda: count(context)))

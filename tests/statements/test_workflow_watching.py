"""What operators see of all workflows: counted up to a cap, and by index however many there are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, Executable, create_engine

from sa_jobqueue.doctor import reading
from sa_jobqueue.health.work import BehindWorkflow, WorkflowCounts, read_behind_workflows, read_workflows
from sa_jobqueue.rules.outcomes import Completed
from sa_jobqueue.sql.readings.depths import CAP
from sa_jobqueue.sql.workflows.readings import BEHIND, count_workflows, paused_workflows, workflows_behind
from sa_jobqueue.statements import cancel_workflows, pause_workflows, resume_workflows
from tests.statements.test_plans import vacuum
from tests.support.databases import Databases
from tests.support.nightly import nightly
from tests.support.plans import Plan
from tests.support.workflows import Flow


def ago(connection: Connection, flow: Flow, seconds: int, column: str = "created_at") -> None:
    """Set a time of a workflow."""
    connection.exec_driver_sql(
        f"UPDATE sa_jobqueue.workflow SET {column} = now() - interval '{seconds} s' WHERE id = {flow.id}"
    )


def ended_ago(connection: Connection, flow: Flow, name: str, seconds: int) -> None:
    """Set when a job ended."""
    connection.exec_driver_sql(
        f"UPDATE sa_jobqueue.job SET finished_at = now() - interval '{seconds} s' WHERE id = {flow.job(name)}"
    )


def test_without_workflows_there_is_nothing_to_say(connection: Connection) -> None:
    """Neither numbers nor workflows that are behind."""
    assert read_workflows(connection) is None
    assert read_behind_workflows(connection) == []


def test_workflows_are_counted_by_what_they_do(connection: Connection) -> None:
    """Running, paused, failed, over their deadline; each once, and those that completed not at all."""
    completed, failed, old, paused, overdue = (Flow(connection, "a", "b: a") for _ in range(5))
    completed.complete("a", "b")
    failed.fail("a")
    ago(connection, old, 90)
    connection.execute(pause_workflows(paused.id)).all()
    ago(connection, paused, 3_600)
    ago(connection, overdue, 1, "deadline_at")

    assert read_workflows(connection) == WorkflowCounts(2, 1, 1, 1, 0, 90.0)

    row = connection.execute(count_workflows(cap=1)).one()
    assert (row.running, row.paused, row.failed, row.overdue) == (1, 1, 1, 1)
    old.complete("a", "b")
    overdue.complete("a", "b")
    assert read_workflows(connection) == WorkflowCounts(0, 1, 1, 0, 0, None)


def test_what_was_not_read_is_counted_up_to_a_cap(connection: Connection) -> None:
    """Each end of a job, also where the workflow is paused."""
    flow = Flow(connection, *(f"a{n}" for n in range(5)))
    for n in range(5):
        flow.end(f"a{n}", Completed())
    counts = read_workflows(connection)
    assert counts is not None
    assert counts.events == 5
    assert connection.execute(count_workflows(cap=3)).one().events == 3
    flow.settle()
    assert read_workflows(connection) == WorkflowCounts(0, 0, 0, 0, 0, None)


def test_workflows_that_were_not_read_are_behind_since_a_job_ended(connection: Connection) -> None:
    """The first end counts; the time of what operators do is not known; and what was read is not behind."""
    flows = [Flow(connection, "a", "b", "c: a b") for _ in range(4)]
    for flow in flows[:3]:
        for name in ("a", "b"):
            flow.end(name, Completed())
    ended_ago(connection, flows[0], "a", 30)
    ended_ago(connection, flows[0], "b", 90)
    ended_ago(connection, flows[1], "a", -30)  # by a clock that was set back since
    ended_ago(connection, flows[1], "b", -30)
    flows[2].settle()
    connection.execute(cancel_workflows(flows[3].id)).all()
    # Those that were cancelled are told as events of jobs, too.
    connection.exec_driver_sql(
        f"DELETE FROM sa_jobqueue.workflow_event WHERE job_id > 0 AND workflow_id = {flows[3].id}"
    )

    assert read_behind_workflows(connection) == [
        BehindWorkflow(flows[0].id, 90.0), BehindWorkflow(flows[1].id, 0.0), BehindWorkflow(flows[3].id, None),
    ]  # fmt: skip
    assert [row.id for row in connection.execute(workflows_behind(limit=1))] == [flows[0].id]
    assert [row.id for row in connection.execute(workflows_behind(looked=2))] == [flows[0].id, flows[1].id]


def test_a_workflow_that_another_transaction_holds_up_stays_behind(engine: Engine) -> None:
    """A worker has read what happened, could not release what waits, and left it to be read again."""
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        engine.connect() as other,
    ):
        flow = Flow(connection, "a", "b: a")
        flow.end("a", Completed())
        ended_ago(connection, flow, "a", 300)
        with other.begin():
            other.exec_driver_sql(f"SELECT FROM sa_jobqueue.job WHERE id = {flow.job('b')} FOR UPDATE")
            flow.advance()
            (held,) = read_behind_workflows(connection)
        assert held.id == flow.id
        assert held.seconds is not None
        assert 300 <= held.seconds < 400
        flow.settle()
        assert flow.statuses() == {"a": "completed", "b": "queued"}
        assert read_behind_workflows(connection) == []


def test_paused_workflows_are_not_behind(connection: Connection) -> None:
    """Until they are resumed, or cancelled."""
    flows = [Flow(connection, "a", "b: a") for _ in range(3)]
    for flow in flows:
        flow.start("a")
        connection.execute(pause_workflows(flow.id)).all()
        connection.exec_driver_sql(f"UPDATE sa_jobqueue.job SET status = 'queued' WHERE id = {flow.job('a')}")
        flow.end("a", Completed())
    assert read_behind_workflows(connection) == []
    connection.execute(resume_workflows(flows[1].id)).all()
    connection.execute(cancel_workflows(flows[2].id)).all()
    assert [one.id for one in read_behind_workflows(connection)] == [flows[1].id, flows[2].id]
    flows[1].settle()
    flows[2].settle()
    assert read_behind_workflows(connection) == []


def test_workflows_paused_for_long_are_named(connection: Connection) -> None:
    """The longest first, and none that has ended."""
    flows = [Flow(connection, "a") for _ in range(3)]
    connection.execute(pause_workflows(*(flow.id for flow in flows))).all()
    for flow, seconds in zip(flows, (100, 300, 200), strict=True):
        ago(connection, flow, seconds, "paused_at")
    ago(connection, flows[2], 0, "finished_at")
    assert connection.scalars(paused_workflows(seconds=50)).all() == [flows[1].id, flows[0].id]
    assert connection.scalars(paused_workflows(seconds=200)).all() == [flows[1].id]


# ---- plans

#: 30,000 workflows that have ended, of 10 jobs each; of every 100 one failed. 20,000 that run, 20,000 that are paused, both with jobs that
#: have ended and were not read, and one with 200,000 such.
FILL = """
INSERT INTO sa_jobqueue.workflow (id, status, finished_at, deadline_at)
SELECT n, CASE WHEN n % 100 = 0 THEN 'failed' ELSE 'completed' END, now(), now() FROM generate_series(1, 30000) AS n;
INSERT INTO sa_jobqueue.workflow (id, paused_at, deadline_at)
SELECT n, CASE WHEN n <= 50000 THEN now() - interval '2 days' END, now() FROM generate_series(30001, 70001) AS n;
INSERT INTO sa_jobqueue.job (id, task, status, finished_at, workflow_id)
SELECT n, 'a_task', 'completed', now(), (n + 9) / 10 FROM generate_series(1, 300000) AS n;
INSERT INTO sa_jobqueue.job (id, task, status, finished_at, workflow_id)
SELECT n, 'a_task', 'completed', now() - interval '90 s', least(n - 270000, 70001) FROM generate_series(300001, 540000) AS n;
INSERT INTO sa_jobqueue.workflow_event (workflow_id, job_id, completed)
SELECT job.workflow_id, job.id, true FROM sa_jobqueue.job WHERE job.id > 300000 ORDER BY job.id
"""


@pytest.fixture(scope="module", params=["without statistics", *nightly("with statistics")])
def full(request: pytest.FixtureRequest, databases: Databases) -> Iterator[Connection]:
    """A database in which there are many of each kind."""
    name = databases.new_name()
    engine = create_engine(databases.create(name))
    with engine.begin() as connection:
        for table in ("job", "workflow", "workflow_event"):
            connection.exec_driver_sql(f"ALTER TABLE sa_jobqueue.{table} SET (autovacuum_enabled = off)")
        connection.exec_driver_sql(FILL.replace("%", "%%"))
    if request.param == "with statistics":
        vacuum(engine)
    patience = timedelta(minutes=1)  # on a slow machine a good plan may take long
    with reading(engine, statement=patience, idle=10 * patience) as connection:
        yield connection
    engine.dispose()
    databases.drop(name)


@pytest.mark.parametrize(
    ("statement", "blocks"),
    [(count_workflows(), 5_000), (workflows_behind(), 15_000), (paused_workflows(seconds=60.0), 300)],
    ids=["counts", "behind", "paused"],
)
def test_no_statement_about_workflows_walks_over_a_table(full: Connection, statement: Executable, blocks: int) -> None:
    """As the doctor and the metrics read, it reads indexes, and stops at its cap."""
    compiled: Any = statement.compile(dialect=full.dialect, compile_kwargs={"literal_binds": True})  # type: ignore[attr-defined]
    rows: Any = full.exec_driver_sql(
        f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {compiled}".replace("%", "%%")
    ).scalar_one()
    plan = Plan(rows[0]["Plan"], rows[0]["Execution Time"])
    for table in ("job", "workflow", "workflow_event"):
        assert all("Index" in node["Node Type"] for node in plan.on(table)), plan
    assert max(node["Actual Rows"] for node in plan.nodes()) <= CAP, plan
    assert plan.largest_discard <= CAP, plan
    assert plan.blocks <= blocks, plan


def test_what_is_behind_many_paused_ones_is_beyond_the_cap(full: Connection) -> None:
    """The paused ones come first here, and looking ends before those that run."""
    assert full.execute(workflows_behind()).all() == []
    found = full.execute(workflows_behind(looked=30_000)).all()
    assert [row.id for row in found] == list(range(50_001, 50_001 + BEHIND))
    assert min(row.seconds for row in found) >= 90

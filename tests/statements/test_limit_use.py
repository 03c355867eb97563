"""What operators see of limits: counted up to a cap, and by index however many jobs there are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Executable, create_engine

from sa_jobqueue.doctor import reading
from sa_jobqueue.health.work import LimitUse, PausedKey, read_limit_uses, read_paused_keys, read_ready_keys
from sa_jobqueue.sql.limits.use import (
    count_states,
    due_of_queues,
    limits_said,
    paused_keys,
    ready_keys,
    ready_of_keys,
    running_of_keys,
    running_of_tasks,
    stuck_permits,
)
from sa_jobqueue.sql.readings.depths import CAP
from tests.statements.test_plans import FILL, FILL_KEYED, vacuum
from tests.support.databases import Databases
from tests.support.factory import make_job, make_jobs
from tests.support.limits import Claimant, key, limit, rate
from tests.support.nightly import nightly
from tests.support.plans import Plan

HOUR = timedelta(hours=1)


def ago(connection: Connection, seconds: int) -> Any:
    """A time before the transaction's."""
    return connection.exec_driver_sql(f"SELECT now() - interval '{seconds} s'").scalar_one()


def test_permits_that_are_used_are_those_of_running_jobs(connection: Connection) -> None:
    """Of queues, and of tasks in whatever queue; where only the starts are limited nothing is used."""
    limit(connection, "mail", running=3, held=True)
    limit(connection, "send", owner="task", running=5)
    limit(connection, "sync", **rate(5))
    limit(connection, "nothing")
    make_jobs(connection, 2, "running", queue="mail", task="send")
    make_job(connection, "running", queue="sync", task="send")
    make_job(connection, queue="mail", task="send")

    found = {(one.owner, one.name): one for one in read_limit_uses(connection)}

    assert found["queue", "mail"] == LimitUse("queue", "mail", True, True, 3, 2, None, None)
    assert found["task", "send"] == LimitUse("task", "send", True, False, 5, 3, None, None)
    assert found["queue", "sync"] == LimitUse("queue", "sync", True, False, None, None, None, None)
    assert not found["queue", "nothing"].limited


def test_running_jobs_are_counted_by_key(connection: Connection) -> None:
    """What the queue itself writes as the key of a limited task's jobs is none."""
    make_jobs(connection, 2, "running", queue="mail", task="send", concurrency_key="a")
    make_job(connection, "running", queue="mail", task="send", concurrency_key="\x01send")
    make_job(connection, "running", queue="mail", task="send")
    make_job(connection, queue="mail", task="send", concurrency_key="a")

    found = {(row.queue, row.task, row.key): row.running for row in connection.execute(running_of_keys())}

    assert found == {("mail", "send", "a"): 2, ("mail", "send", None): 2}


def test_what_a_pause_keeps_waiting_is_counted(connection: Connection) -> None:
    """The due jobs of a queue, with keys and without; of a task those without a key that a claim has passed."""
    limit(connection, "mail", paused_at=ago(connection, 90), pause_reason="the provider is down")
    limit(connection, "send", owner="task", paused_at=ago(connection, 30))
    for columns in ({}, {"concurrency_key": "a"}, {"priority": 9}):
        make_job(connection, queue="mail", run_at=-HOUR, **columns)
    make_job(connection, queue="mail", run_at=-HOUR, created_at=-2 * HOUR, concurrency_key="b")
    make_job(connection, queue="mail", run_at=HOUR)
    make_jobs(connection, 2, task="send")
    claimant = Claimant(connection)
    while claimant.claim() or claimant.state.again:
        pass

    mail, send = read_limit_uses(connection)

    assert (mail.paused, mail.pause_reason, mail.due) == (90.0, "the provider is down", 4)
    assert (send.paused, send.pause_reason, send.due) == (30.0, None, 2)
    assert [row.due for row in connection.execute(due_of_queues(["mail"], cap=3))] == [3]


def test_a_paused_key_is_told_with_its_jobs(connection: Connection) -> None:
    """Those of its own queue, or of its own task in all queues."""
    key(connection, "42", paused_at=ago(connection, 60), pause_reason="locked")
    key(connection, "42", "send", owner="task", paused_at=ago(connection, 60))
    key(connection, "43", weight=3)
    make_jobs(connection, 2, concurrency_key="42")
    make_job(connection, queue="mail", concurrency_key="42", task="send")
    make_job(connection, concurrency_key="43")

    assert read_paused_keys(connection) == [
        PausedKey("queue", "default", "42", 60.0, "locked", 2),
        PausedKey("task", "send", "42", 60.0, None, 1),
    ]
    assert connection.execute(paused_keys(most=1)).all()[0].owner == "queue"


def test_keys_that_take_turns_are_counted_up_to_a_cap(connection: Connection) -> None:
    """Each once, however many jobs it has; not the jobs of a limited task that have none."""
    for n in range(5):
        make_jobs(connection, 2, concurrency_key=f"k{n}")
    make_job(connection, queue="mail", concurrency_key="a")
    make_job(connection, queue="later", concurrency_key="a", run_at=HOUR)
    make_job(connection, queue="mail", concurrency_key="\x01a_task")

    assert read_ready_keys(connection) == {"default": 5, "mail": 1}
    assert [tuple(row) for row in connection.execute(ready_keys(keys=3))] == [("default", 3), ("mail", 1)]
    # Each queue has its share of what is counted.
    assert [tuple(row) for row in connection.execute(ready_keys(cap=2))] == [("default", 1), ("mail", 1)]


def test_permits_are_stuck_where_all_are_held_by_lapsed_or_long_runs(connection: Connection) -> None:
    """Of queues, tasks and keys; one that is free, or was taken a moment ago, is enough."""
    limit(connection, "mail", running=2, key_running=1)
    limit(connection, "sync", running=2)
    limit(connection, "send", owner="task", running=1)
    key(connection, "b", "mail", running=2)
    lapsed: dict[str, Any] = {"lease_expires_at": -HOUR, "claimed_at": -HOUR}
    first = make_job(connection, "running", queue="mail", concurrency_key="a", **lapsed)
    second = make_job(connection, "running", queue="mail", concurrency_key="b", **lapsed)
    make_job(connection, "running", queue="sync", claimed_at=-HOUR)
    make_job(connection, "running", queue="sync")
    long = make_job(connection, "running", task="send", claimed_at=-2 * HOUR)

    found = connection.execute(stuck_permits(seconds=3_600.0)).all()

    assert [(row.owner, row.name, row.key, row.limit, row.used, row.expired) for row in found] == [
        ("queue", "mail", None, 2, 2, True),
        ("queue", "mail", "a", 1, 1, True),
        ("task", "send", None, 1, 1, False),
    ]
    assert [row.job_ids for row in found] == [[first, second], [first], [long]]
    assert [row.seconds for row in found] == [3_600.0, 3_600.0, 7_200.0]


def test_states_are_counted_up_to_a_cap(connection: Connection) -> None:
    """One for each limit with a rate that has been used."""
    limit(connection, **rate(5, prefix="key_"))
    for name in "abc":
        make_job(connection, concurrency_key=name)
    Claimant(connection).claim()
    assert connection.scalar(count_states()) == 3
    assert connection.scalar(count_states(cap=2)) == 2


# ---- plans


@pytest.fixture(scope="module", params=["without statistics", *nightly("with statistics")])
def full(request: pytest.FixtureRequest, databases: Databases) -> Iterator[Connection]:
    """400,000 jobs, half of them with one of 7,001 keys; 20,000 keys of which operators have said something, and as many states."""
    name = databases.new_name()
    engine = create_engine(databases.create(name))
    with engine.begin() as connection:
        for table in ("job", "job_key", "limit_state"):
            connection.exec_driver_sql(f"ALTER TABLE sa_jobqueue.{table} SET (autovacuum_enabled = off)")
        connection.exec_driver_sql(FILL)
        connection.exec_driver_sql(FILL_KEYED)
        for table in ("job_key", "limit_state"):
            connection.exec_driver_sql(
                f"INSERT INTO sa_jobqueue.{table} (owner, name, key) SELECT 'queue', 'a', 'k' || n FROM generate_series(1, 20000) AS n"
            )
        limit(connection, "a", running=1, key_running=1, paused_at=ago(connection, 1))
    if request.param == "with statistics":
        vacuum(engine)
    patience = timedelta(minutes=1)  # on a slow machine a good plan may take long
    with reading(engine, statement=patience, idle=10 * patience) as connection:
        yield connection
    engine.dispose()
    databases.drop(name)


@pytest.mark.parametrize(
    ("statement", "blocks"),
    [
        (limits_said(), 20),
        (paused_keys(), 3_000),
        (running_of_tasks(), 2_500),
        (running_of_keys(), 2_500),
        (due_of_queues(["a", "b"]), 45_000),
        (ready_of_keys(["queue", "task"], ["a", "a_task"], ["k7", None]), 200),
        (ready_keys(), 20_000),
        (stuck_permits(seconds=60.0), 4_000),
        (count_states(), 3_000),
    ],
    ids=["limits", "paused keys", "running", "running of keys", "due", "of keys", "ring", "stuck", "states"],
)
def test_no_statement_about_limits_walks_over_a_table(full: Connection, statement: Executable, blocks: int) -> None:
    """As the doctor and the metrics read, it reads indexes, and stops at its cap."""
    compiled: Any = statement.compile(dialect=full.dialect, compile_kwargs={"literal_binds": True})  # type: ignore[attr-defined]
    rows: Any = full.exec_driver_sql(
        f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {compiled}".replace("%", "%%")
    ).scalar_one()
    plan = Plan(rows[0]["Plan"])
    for table in ("job", "job_key", "limit_state"):
        assert all("Index" in node["Node Type"] for node in plan.on(table)), plan
    assert max((node["Actual Rows"] for node in plan.on("job")), default=0) <= CAP, plan
    assert plan.largest_discard <= CAP, plan
    assert plan.blocks <= blocks, plan

"""Why a queued job is not started: the statement says what the claim would find."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, insert, text

from sa_jobqueue import KeyLimits, Rate, WaitReason
from sa_jobqueue.models import LimitState
from sa_jobqueue.rules.limits import Owner
from sa_jobqueue.sql.limits.claims import LimitedRequest
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import pause, set_limit, why_waiting
from tests.support.databases import Databases
from tests.support.factory import make_job, make_jobs
from tests.support.nightly import nightly
from tests.support.plans import Prepared, service_connection

QUEUE: tuple[Owner, str] = ("queue", "sync")
TASK: tuple[Owner, str] = ("task", "a_task")


def reasons(connection: Connection, job: int) -> list[WaitReason]:
    return [WaitReason(*row) for row in connection.execute(why_waiting(job))]


def waiting(connection: Connection, **columns: Any) -> int:
    return make_job(connection, queue="sync", **columns)


def running(connection: Connection, number: int = 1, **columns: Any) -> list[int]:
    return make_jobs(connection, number, "running", queue="sync", **columns)


def keep(connection: Connection, owner: str = "queue", name: str = "sync", key: str = "", **columns: Any) -> None:
    """As claims and handlers write it; a timedelta counts from now."""
    values = {column: text(f"now() + interval '{value.total_seconds()} seconds'") for column, value in columns.items()}
    connection.execute(insert(LimitState).values(owner=owner, name=name, key=key, **values))


def picked(connection: Connection, *tasks: str) -> list[int]:
    """What a claim would take, to compare."""
    connection.commit()
    known = connection.scalar(text("SELECT bit_xor(version) FROM sa_jobqueue.job_limit"))
    request = LimitedRequest("me", {"sync": 100}, 60.0, tasks=tasks, known=known)
    with connection.begin_nested() if connection.in_transaction() else connection.begin():
        found = default_store.pick_limited(connection, request)
    connection.rollback()
    return sorted(found)


def test_a_job_that_only_waits_for_its_turn_has_no_reason(connection: Connection) -> None:
    """Nor has one that runs, or is done, or is not there."""
    connection.execute(set_limit("sync", running=3, rate=Rate(5, burst=5), per_key=KeyLimits(running=2)))
    running(connection, 1, concurrency_key="42")
    job = waiting(connection, concurrency_key="42")
    assert reasons(connection, job) == []
    assert reasons(connection, job - 1) == reasons(connection, job + 1) == []
    assert picked(connection) == [job]


def test_a_full_key_names_the_jobs_that_run(connection: Connection) -> None:
    """Only those of that key and that queue count."""
    connection.execute(set_limit("sync", per_key=KeyLimits(running=3)))
    ran = running(connection, 3, concurrency_key="42")
    running(connection, 1, concurrency_key="43")
    make_job(connection, "running", queue="other", concurrency_key="42")
    job, other = waiting(connection, concurrency_key="42"), waiting(connection, concurrency_key="43")
    (reason,) = reasons(connection, job)
    assert reason == WaitReason(*QUEUE, "42", "running", 3, 3, ran)
    assert str(reason) == f"waits for limit sync/42: 3 of 3 running (jobs {', '.join(map(str, ran))})"
    assert reasons(connection, other) == []
    assert picked(connection) == [other]


def test_what_was_said_of_one_key_holds_for_it(connection: Connection) -> None:
    """It goes before what holds for each key, also where no more is said of the queue."""
    connection.execute(set_limit("sync", key="42", running=1))
    (ran,) = running(connection, 1, concurrency_key="42")
    job = waiting(connection, concurrency_key="42")
    assert reasons(connection, job) == [WaitReason(*QUEUE, "42", "running", 1, 1, [ran])]
    connection.execute(set_limit("sync", per_key=KeyLimits(running=1)))
    connection.execute(set_limit("sync", key="42", running=2))
    assert reasons(connection, job) == []
    assert picked(connection) == [job]


def test_twenty_of_many_are_named(connection: Connection) -> None:
    """The text says how many more there are."""
    connection.execute(set_limit("sync", running=25))
    ran = running(connection, 25)
    (reason,) = reasons(connection, waiting(connection))
    assert reason == WaitReason(*QUEUE, None, "running", 25, 25, ran[:20])
    assert str(reason).startswith("waits for limit sync: 25 of 25 running (jobs ")
    assert str(reason).endswith(f"{ran[19]} and 5 more)")


def test_a_task_has_its_own_limits_in_whatever_queue(connection: Connection) -> None:
    """All that holds is said, the queue first."""
    connection.execute(set_limit("a_task", owner="task", running=1, per_key=KeyLimits(running=1)))
    connection.execute(set_limit("sync", running=1))
    ran = make_job(connection, "running", queue="other", concurrency_key="42")
    (mine,) = running(connection, 1, task="b_task")
    job = waiting(connection, concurrency_key="42")
    assert reasons(connection, job) == [
        WaitReason(*QUEUE, None, "running", 1, 1, [mine]),
        WaitReason(*TASK, None, "running", 1, 1, [ran]),
        WaitReason(*TASK, "42", "running", 1, 1, [ran]),
    ]
    assert str(reasons(connection, job)[2]) == f"waits for limit task a_task/42: 1 of 1 running (job {ran})"
    assert picked(connection, "a_task") == []


def test_jobs_of_a_task_without_a_key_have_none(connection: Connection) -> None:
    """What claims write in its place is no key of the user's."""
    connection.execute(set_limit("a_task", owner="task", running=1, per_key=KeyLimits(running=1)))
    ran = running(connection, 1, concurrency_key="\x01a_task")
    job = waiting(connection, concurrency_key="\x01a_task")
    assert reasons(connection, job) == [WaitReason(*TASK, None, "running", 1, 1, ran)]


def test_pauses_of_a_queue_a_task_and_a_key(connection: Connection) -> None:
    """Each with what was said of it."""
    job = waiting(connection, concurrency_key="42")
    connection.execute(pause("sync", reason="the provider is down"))
    connection.execute(pause("a_task", owner="task"))
    connection.execute(pause("sync", key="42"))
    connection.execute(pause("sync", key="43"))
    assert [str(reason) for reason in reasons(connection, job)] == [
        "waits for pause sync to end: the provider is down",
        "waits for pause sync/42 to end",
        "waits for pause task a_task to end",
    ]
    assert picked(connection, "a_task") == []


@pytest.mark.parametrize(("owner", "name"), [QUEUE, TASK])
@pytest.mark.parametrize("key", ["", "42"])
def test_a_block_ends_at_a_time(connection: Connection, owner: str, name: str, key: str) -> None:
    """One that is over is no reason any more."""
    connection.execute(set_limit("sync", running=10))
    connection.execute(set_limit("a_task", owner="task", running=10))
    keep(connection, owner, name, key, blocked_until=timedelta(minutes=1))
    job = waiting(connection, concurrency_key="42")
    (reason,) = reasons(connection, job)
    assert (reason.owner, reason.name, reason.key, reason.what) == (owner, name, key or None, "blocked")
    place = f"{owner} {name}" + (f"/{key}" if key else "")
    assert str(reason) == f"waits for {place}: the other side has rate limited it, until {reason.until}"
    assert reason.until is not None
    assert timedelta(seconds=50) < reason.until - datetime.now(UTC) < timedelta(seconds=70)
    assert picked(connection, "a_task") == []
    connection.execute(text("UPDATE sa_jobqueue.limit_state SET blocked_until = now() - interval '1 s'"))
    assert reasons(connection, job) == []
    assert picked(connection, "a_task") == [job]


@pytest.mark.parametrize("key", [None, "42"])
def test_a_rate_says_when_it_lets_the_job_start(connection: Connection, key: str | None) -> None:
    """20 in 10 s with a burst of 4: a job of 3 units may start when at most one is left of the burst."""
    rate = Rate(20, per=10, burst=4)
    connection.execute(set_limit("sync", **({"rate": rate} if key is None else {"per_key": KeyLimits(rate=rate)})))
    keep(connection, key=key or "", free_at=timedelta(seconds=61))
    kept_at = connection.scalar(text("SELECT now()"))
    connection.commit()
    job = waiting(connection, concurrency_key=key, units=3)
    (reason,) = reasons(connection, job)
    assert (reason.owner, reason.key, reason.what, reason.limit, reason.seconds) == ("queue", key, "rate", 20, 10.0)
    assert reason.until is not None
    assert (reason.until - kept_at).total_seconds() == pytest.approx(60.5)
    assert str(reason).startswith(f"waits for rate sync{'/42' if key else ''}: 20 in 10 s, until 20")
    assert picked(connection) == []


@pytest.mark.parametrize(
    ("left", "units", "waits"), [(0.4, 3, False), (1.4, 3, True), (0.4, 9, True), (-2.0, 9, False), (3.8, 1, True)]
)
def test_a_rate_counts_units_as_the_claim_does(connection: Connection, left: float, units: int, waits: bool) -> None:
    """`left`: minutes until the whole burst of 4 is free, one each; more units than the burst wait for all of it."""
    connection.execute(set_limit("sync", rate=Rate(60, per=3600, burst=4)))
    keep(connection, free_at=timedelta(minutes=left))
    job = waiting(connection, units=units)
    found = reasons(connection, job)
    assert bool(found) is waits, found


def test_a_rate_of_one_key_goes_before_that_of_each(connection: Connection) -> None:
    """Its period and burst, too."""
    connection.execute(set_limit("sync", per_key=KeyLimits(rate=Rate(1, per=3600))))
    connection.execute(set_limit("sync", key="42", rate=Rate(10, per=60)))
    keep(connection, key="42", free_at=timedelta(seconds=30))
    (reason,) = reasons(connection, waiting(connection, concurrency_key="42"))
    assert (reason.limit, reason.seconds) == (10, 60.0)


def test_a_strict_key_waits_for_its_job_that_is_tried_again(connection: Connection) -> None:
    """That job itself waits for its own time, and a key without such a job for nothing."""
    connection.execute(set_limit("sync", strict=True))
    retried = waiting(connection, concurrency_key="42", claims=1, run_at=timedelta(minutes=5))
    job, other = waiting(connection, concurrency_key="42"), waiting(connection, concurrency_key="43")
    (reason,) = reasons(connection, job)
    assert (reason.what, reason.key, list(reason.job_ids or ())) == ("strict", "42", [retried])
    assert str(reason).startswith(
        f"waits for strict order sync/42: others are tried again first (job {retried}), until"
    )
    assert [one.what for one in reasons(connection, retried)] == ["later"]
    assert reasons(connection, other) == []
    assert picked(connection) == [other]
    connection.execute(set_limit("sync", strict=False))
    assert reasons(connection, job) == []


def test_a_strict_task_says_so_of_its_own_jobs(connection: Connection) -> None:
    """Those of other tasks of the key do not wait."""
    connection.execute(set_limit("a_task", owner="task", strict=True))
    retried = waiting(connection, concurrency_key="42", claims=1, run_at=timedelta(minutes=5))
    waiting(connection, concurrency_key="43", task="b_task", claims=1, run_at=timedelta(minutes=5))
    job, other = waiting(connection, concurrency_key="42"), waiting(connection, concurrency_key="43")
    (reason,) = reasons(connection, job)
    assert (*reason[:4], list(reason.job_ids or ())) == (*TASK, "42", "strict", [retried])
    assert reasons(connection, other) == []
    assert picked(connection, "a_task") == [other]


def test_a_job_that_is_not_due_has_no_owner(connection: Connection) -> None:
    """Its own time comes first."""
    connection.execute(pause("sync"))
    job = waiting(connection, run_at=timedelta(hours=1))
    later, paused = reasons(connection, job)
    assert (later.owner, later.name, later.what) == (None, None, "later")
    assert str(later) == f"waits until {later.until}, when it is due"
    assert paused.what == "paused"


@pytest.mark.parametrize("analyzed", [False, *nightly(True)])
def test_it_reads_by_indexes(databases: Databases, analyzed: bool) -> None:
    """A table of 200,000 queued jobs, 20 of which run, is not scanned; also where the plan was made while it was empty."""
    name = databases.new_name()
    engine = create_engine(databases.create(name))
    try:
        _check_plan(engine, analyzed=analyzed)
    finally:
        engine.dispose()
        databases.drop(name)


def _check_plan(engine: Engine, *, analyzed: bool) -> None:
    fill = """
        INSERT INTO sa_jobqueue.job (id, queue, task, concurrency_key, status, claim_token, attempt, lease_expires_at)
        SELECT n, 'sync', 'a_task', mod(n, 1000)::text, CASE WHEN n <= 20 THEN 'running' ELSE 'queued' END, 1, 1,
            CASE WHEN n <= 20 THEN now() END
        FROM generate_series(1, 200000) AS n
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(set_limit("sync", running=20, strict=True, per_key=KeyLimits(running=1, rate=Rate(1))))
        connection.execute(set_limit("a_task", owner="task", running=20, per_key=KeyLimits(running=1)))
        if analyzed:
            connection.exec_driver_sql(fill)
        connection.exec_driver_sql("VACUUM ANALYZE sa_jobqueue.job")
        with service_connection(engine) as prepared_on:
            prepared: Any = Prepared(prepared_on, why_waiting(2**40), {})
            if not analyzed:
                connection.exec_driver_sql(fill)
            plan = prepared.explain({"job_id": 100_001})
    assert {node["Node Type"] for node in plan.on("job")} <= {"Index Scan", "Index Only Scan"}, plan
    assert plan.indexes & {"job_pkey", "job_key_begun_idx", "job_running_idx"} == plan.indexes - {
        "job_limit_pkey",
        "job_key_pkey",
        "limit_state_pkey",
        "workflow_pkey",
        "workflow_dependency_pkey",
        "job_workflow_idx",
        "wait_pkey",
    }, plan
    assert plan.blocks <= 2_000, plan

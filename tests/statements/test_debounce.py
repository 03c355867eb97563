"""Debounce: the job that waits takes the later arguments and waits again, but not for ever."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, insert, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import Job, Registry, enqueue, enqueue_many, task
from sa_jobqueue.sql.claims import ClaimRequest
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.sql.unique import started_keys
from tests.statements.conftest import connected
from tests.support.factory import TABLE, wait_until_blocked_by

registry = Registry()


@task(registry=registry, name="sync")
def sync(tenant: int, note: str = "") -> None: ...


soon = sync.options(debounce=timedelta(seconds=5), max_wait=timedelta(minutes=1))


def put(connection: Connection, *calls: Any) -> None:
    for call in calls:  # each by itself, as requests come
        connection.execute(enqueue_many([call]))


def jobs(connection: Connection) -> Sequence[Any]:
    return connection.execute(select(TABLE).order_by(TABLE.c.id)).all()


def let_pass(connection: Connection, by: timedelta) -> None:
    """As if the jobs had been enqueued that much earlier."""
    columns = TABLE.c
    connection.execute(update(TABLE).values(created_at=columns.created_at - by, run_at=columns.run_at - by))


def test_a_call_while_the_job_waits_moves_it_and_gives_it_its_arguments(engine: Engine) -> None:
    """Each of two connections, one after the other: one job is left, with the last arguments, due after the last call."""
    with connected(engine) as first, connected(engine) as second:
        put(first, soon.call(1, "a"))
        first.commit()
        let_pass(first, timedelta(seconds=3))
        first.commit()
        put(second, soon.options(priority=9).call(2, "b"))
        second.commit()
        job, duplicate = jobs(first)
        now = second.scalar(select(TABLE.c.created_at).where(TABLE.c.id == duplicate.id))
    assert (job.status, job.args, job.priority) == ("queued", {"tenant": 2, "note": "b"}, 9)
    assert job.run_at == now + timedelta(seconds=5)
    assert (duplicate.status, duplicate.duplicate_of) == ("cancelled", job.id)


def test_the_time_is_not_moved_beyond_the_longest_wait(connection: Connection) -> None:
    """Counted from when the first was enqueued; by calls that have one."""
    put(connection, soon.call(1))
    let_pass(connection, timedelta(seconds=57))
    put(connection, soon.call(2))
    job = jobs(connection)[0]
    assert (job.run_at - job.created_at, job.args["tenant"]) == (timedelta(minutes=1), 2)
    put(connection, sync.options(debounce=5).call(3))
    job = jobs(connection)[0]
    assert (job.run_at - job.created_at, job.args["tenant"]) == (timedelta(seconds=62), 3)


def test_a_job_that_waited_longest_is_due_whatever_comes(connection: Connection) -> None:
    """Its worker may be late: then calls give it their arguments, and it stays due."""
    put(connection, soon.call(1))
    let_pass(connection, timedelta(minutes=2))
    put(connection, soon.call(2))
    job = jobs(connection)[0]
    assert job.run_at == job.created_at + timedelta(minutes=1)
    assert len(default_store.claim(connection, ClaimRequest(worker="me", queues={"default": 5}, lease=60))) == 1


def test_each_key_and_each_task_waits_by_itself(engine: Engine) -> None:
    """Through a Session, which inserts them in one flush."""
    other = task(registry=registry, name="other")(lambda: None)
    with Session(engine) as session:
        for _ in range(2):
            session.add_all([enqueue(soon, 1), enqueue(soon.options(key="a"), 2), enqueue(soon.options(key="b"), 3)])
            session.add(enqueue(other.options(debounce=5, key="a")))
            session.commit()
        live = session.scalars(select(Job).where(Job.is_live)).all()
        assert {(job.task, job.key) for job in live} == {("sync", None), ("sync", "a"), ("sync", "b"), ("other", "a")}
        assert len(live) == 4
        assert len(session.scalars(select(Job).where(Job.is_duplicate)).all()) == 4


def test_a_call_after_the_start_is_a_job_of_its_own(engine: Engine) -> None:
    """What the running one has read may be older than what the call is about."""
    with engine.begin() as connection:
        put(connection, soon.call(1))
        let_pass(connection, timedelta(seconds=10))
        claimed = default_store.claim(connection, ClaimRequest(worker="me", queues={"default": 5}, lease=60))
        default_store.free_started_keys(connection, started_keys(claimed))
    with engine.begin() as connection:
        put(connection, soon.call(2))
        running, queued = jobs(connection)
    assert (running.status, running.args["tenant"]) == ("running", 1)
    assert (queued.status, queued.args["tenant"], queued.run_at - queued.created_at) == (
        "queued",
        2,
        timedelta(seconds=5),
    )


def test_two_calls_at_once_are_one_job_with_the_later_arguments(engine: Engine) -> None:
    """The second waits until the first has committed, and then moves the job on."""
    # Both are connected before the first looks who waits: within a transaction the server shows the same processes again.
    with connected(engine) as first, connected(engine) as second:
        put(first, soon.call(1))

        def call() -> None:
            put(second, soon.call(2))
            second.commit()

        thread = threading.Thread(target=call)
        thread.start()
        wait_until_blocked_by(first)
        first.commit()
        thread.join()
        job, duplicate = jobs(first)
    assert (job.status, job.args["tenant"], duplicate.status) == ("queued", 2, "cancelled")


def test_many_callers_at_once_leave_one_job(engine: Engine) -> None:
    """For each key; none fails, and none deadlocks."""
    failures: list[BaseException] = []

    def call(number: int) -> None:
        try:
            with engine.connect() as connection:
                for turn in range(25):
                    put(connection, soon.options(key="a").call(number, str(turn)), soon.options(key="b").call(number))
                    connection.commit()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with engine.connect() as connection:
        live = [job for job in jobs(connection) if job.status == "queued"]
        assert [job.concurrency_key for job in live] == ["a", "b"]
        assert all(job.run_at - job.created_at <= timedelta(minutes=1) for job in live)


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_call_is_made_at_every_isolation_level(engine: Engine, level: Any) -> None:
    with engine.connect().execution_options(isolation_level=level) as connection:
        for number in range(3):
            put(connection, soon.call(number))
            connection.commit()
        job, *duplicates = jobs(connection)
    assert (job.status, job.args["tenant"], [one.status for one in duplicates]) == ("queued", 2, ["cancelled"] * 2)


def test_a_rule_by_plain_sql_debounces_too(connection: Connection) -> None:
    """It travels with the job."""
    rule = {"key": "k", "scope": "queued", "on_clash": "replace", "max_wait": 60}
    for seconds in (50, 500):
        run_at = text(f"now() + interval '{seconds} s'")
        connection.execute(insert(TABLE).values(task="a", uniqueness=rule, run_at=run_at))
    job = jobs(connection)[0]
    assert job.run_at - job.created_at == timedelta(seconds=60)

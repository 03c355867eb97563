"""Claims under limits beside other transactions: they wait for none, and what another one commits meanwhile counts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, select, text

from sa_jobqueue import Job
from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.statements import release_jobs
from tests.support.factory import TABLE, make_job, wait_until_blocked_by
from tests.support.limits import Claimant, fill, key, limit, rate
from tests.support.nightly import nightly

#: The claim with this opener waits for the lock of this number once it has read what is said of the queue.
SLOW, LOCK = 7, 42


@pytest.fixture
def slow(database_url: str, engine: Engine) -> Engine:
    """An engine whose database has a claim that waits in its middle."""
    with engine.begin() as connection:
        found = connection.exec_driver_sql(
            "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = 'pick_limited' AND pronamespace = 'sa_jobqueue'::regnamespace"
        ).scalar_one()
        begin = "from_key := cursor_key;"
        assert found.count(begin) == 1
        wait = f"IF opener = {SLOW} THEN PERFORM pg_advisory_xact_lock({LOCK}); END IF;"
        connection.exec_driver_sql(found.replace(begin, f"{wait} {begin}").replace("%", "%%"))
    return engine


@contextmanager
def meanwhile(engine: Engine) -> Iterator[tuple[Connection, list[ClaimedJob]]]:
    """The body is executed while a claim is under way that has read what is said of the queue. Its jobs are there behind it."""
    jobs: list[ClaimedJob] = []
    with engine.connect() as gate, engine.connect() as one, ThreadPoolExecutor(1) as threads:
        gate.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
        claim = threads.submit(lambda: Claimant(one, name="slow").claim(10, opener=SLOW))
        wait_until_blocked_by(gate)
        try:
            with engine.begin() as other:
                yield other, jobs
        finally:
            gate.rollback()
        jobs += claim.result(30)
        one.commit()


def test_the_first_start_of_a_key_counts_for_a_claim_that_has_begun_before(slow: Engine) -> None:
    """Nothing was kept of any key's rate until then."""
    with slow.begin() as setup:
        fill(setup, 5, "a")
        limit(setup, **rate(1, 3600.0, prefix="key_"))

    with meanwhile(slow) as (other, jobs):
        assert len(Claimant(other).claim(10)) == 1

    assert jobs == []


def test_where_a_key_begins_is_noted_right_by_a_claim_that_has_begun_before(slow: Engine) -> None:
    """Nothing was noted until then. A job with a lower id, which it starts, counts for the claims that follow."""
    with slow.begin() as setup:
        (low,) = fill(setup, 1, "a", priority=0)
        (high,) = fill(setup, 1, "a", priority=9)
        limit(setup, key_running=2)

    with meanwhile(slow) as (other, jobs):
        assert [job.id for job in Claimant(other).claim(1)] == [high]
        # As a claim does that was slow to count; on a busy machine this one was.
        other.execute(
            text(
                "INSERT INTO sa_jobqueue.limit_state (owner, name, key, lowest_id, version)"
                " SELECT 'queue', 'default', 'a', :high, version FROM sa_jobqueue.job_limit"
                " ON CONFLICT (owner, name, key) DO UPDATE SET lowest_id = excluded.lowest_id, version = excluded.version"
            ),
            {"high": high},
        )

    assert [job.id for job in jobs] == [low]
    with slow.begin() as connection:
        fill(connection, 1, "a")
        assert Claimant(connection).claim(10) == []


@pytest.mark.parametrize(
    ("of_savepoint", "said"), [(False, {"running": 5}), (True, rate(1, 3600.0))], ids=["transaction", "savepoint"]
)
def test_a_job_whose_transaction_commits_meanwhile_is_not_picked_in_vain(
    engine: Engine, of_savepoint: bool, said: dict[str, Any]
) -> None:
    """It was under way as the claim began, which cannot see the job. It would use up the rate, and not be started."""
    with engine.begin() as setup:
        limit(setup, **said)
    with (
        engine.connect() as one,
        engine.connect() as two,
        engine.connect() as producer,
        ThreadPoolExecutor(1) as threads,
    ):
        producer.begin()
        with producer.begin_nested() if of_savepoint else nullcontext():
            fill(producer, 1, "a")
        with engine.begin() as younger:  # so that the snapshot of the claim tells of those before it
            fill(younger, 1, "z", queue="other")
        assert Claimant(one).claim(1) == []
        claimant = Claimant(two, name="two")
        second = threads.submit(lambda: claimant.claim_once(4))
        wait_until_blocked_by(one)
        producer.commit()
        one.commit()
        got = second.result(30)
        assert claimant.state.picked == len(got)
        two.commit()
        if of_savepoint:
            assert claimant.state.again
        assert len(got) + len(claimant.claim(4)) == 1


@pytest.mark.parametrize("key", ["b", None])
def test_a_claim_that_leaves_a_job_because_it_may_be_of_a_savepoint_asks_for_another(
    engine: Engine, key: str | None
) -> None:
    """Another transaction, older than the job, ends while the claim waits for a lock. Those behind it in its key are left with it."""
    with engine.begin() as setup:
        limit(setup, **rate(100, 3600.0, 100))
        fill(setup, 1, "a")
    with (
        engine.connect() as one,
        engine.connect() as two,
        engine.connect() as elsewhere,
        ThreadPoolExecutor(1) as threads,
    ):
        assert len(Claimant(one).claim(1)) == 1
        with engine.begin() as producer:
            later = fill(producer, 1, key, priority=0)
        fill(elsewhere, 1, "z", queue="other")
        with engine.begin() as producer:
            young = fill(producer, 1, key, priority=9)
        claimant = Claimant(two, name="two")
        second = threads.submit(lambda: claimant.claim_once(4))
        wait_until_blocked_by(one)
        elsewhere.commit()
        one.commit()
        assert second.result(30) == []
        assert (claimant.state.again, claimant.state.picked) == (True, 0)
        two.commit()
        assert [job.id for job in claimant.claim_once(1)] == young
        assert [job.id for job in claimant.claim_once(1)] == later


@pytest.mark.parametrize("owner", ["queue", *nightly("task")])
def test_under_strict_a_key_waits_for_its_first_job_while_that_is_locked(
    connection: Connection, other: Connection, owner: str
) -> None:
    """Others go on: keys, and jobs of the key whose task is not strict. A second look comes soon, for nothing tells of the lock's end."""
    (of_other_task,) = fill(connection, 1, "a", task="loose")
    first, second = fill(connection, 2, "a", priority=5)
    (of_other_key,) = fill(connection, 1, "b")
    limit(connection, "a_task" if owner == "task" else "default", owner=owner, key_running=3, strict=True)
    connection.commit()
    other.execute(select(TABLE.c.id).where(TABLE.c.id == first).with_for_update())
    claimant = Claimant(connection)

    went_on = [of_other_task, of_other_key] if owner == "task" else [of_other_key]
    assert sorted(job.id for one in (1, 10) for job in claimant.claim(one)) == went_on
    assert claimant.claim() == []
    assert 0 < (claimant.state.rate_in or 0) <= 0.1
    other.rollback()
    assert [job.id for job in claimant.claim()][:2] == [first, second]


def test_under_strict_a_job_that_comes_back_while_a_claim_goes_on_is_not_passed(slow: Engine) -> None:
    """That claim cannot see it, and takes nothing of its key."""
    with slow.begin() as setup:
        (first, _) = fill(setup, 2, "a")
        limit(setup, key_running=1, strict=True)
        assert [job.id for job in Claimant(setup).claim(1)] == [first]

    with meanwhile(slow) as (other, jobs):
        other.execute(release_jobs(Job.id == first))

    assert jobs == []
    with slow.begin() as connection:
        assert [job.id for job in Claimant(connection).claim(10)] == [first]


def test_a_running_job_that_is_locked_is_not_waited_for_where_it_is_to_be_cancelled(
    connection: Connection, other: Connection
) -> None:
    """Its worker may be writing its outcome, and waiting for this claim."""
    limit(connection, key_running=1, when_full="cancel_running")
    ran = make_job(connection, "running", concurrency_key="a")
    fill(connection, 1, "a")
    connection.commit()
    other.execute(select(TABLE.c.id).where(TABLE.c.id == ran).with_for_update())

    connection.exec_driver_sql("SET lock_timeout = '50ms'")
    assert Claimant(connection).claim(10) == []
    other.rollback()
    Claimant(connection).claim(10)

    asked = select(TABLE.c.id).where(TABLE.c.cancel_requested_at.is_not(None))
    assert connection.scalars(asked).all() == [ran]


def test_the_pause_of_a_task_asks_for_no_permits(connection: Connection) -> None:
    """Other workers would tell of each permit that they free, as long as the pause lasts."""
    fill(connection, 2, task="mail")
    limit(connection, "mail", owner="task", paused_at=text("now()"))
    key(connection, "a", "other", owner="task", paused_at=text("now()"))
    claimant = Claimant(connection)

    for _ in range(3):
        assert claimant.claim(10) == []
        assert not claimant.state.permit

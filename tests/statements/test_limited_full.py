"""What a claim does with jobs that may not wait, where a limit is full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select

from sa_jobqueue.models import UniqueKey
from tests.support.factory import TABLE, make_job
from tests.support.limits import Claimant, end, fill, key, limit, rate

ONE: dict[str, Any] = {"key_running": 1}


def statuses(connection: Connection, jobs: Sequence[int]) -> list[str]:
    found = {row.id: row.status for row in connection.execute(select(TABLE.c.id, TABLE.c.status))}
    return [found[job] for job in jobs]


def error(connection: Connection, job: int) -> dict[str, Any]:
    (found,) = connection.scalars(select(TABLE.c.errors).where(TABLE.c.id == job)).one()
    return dict(found)


def asked_to_end(connection: Connection) -> list[int]:
    return list(connection.scalars(select(TABLE.c.id).where(TABLE.c.cancel_requested_at.is_not(None)).order_by("id")))


@pytest.mark.parametrize(
    ("rule", "left", "reason"),
    [
        ({}, "qqqq", ""),
        ({"max_waiting": 2}, "qqcc", "no more than 2 may wait (max_waiting)"),
        ({"when_full": "drop_newest"}, "cccc", "it is full, and when_full is drop_newest"),
        ({"when_full": "drop_newest", "max_waiting": 0}, "cccc", "none may wait (max_waiting)"),
        ({"when_full": "drop_newest", "max_waiting": 3}, "qqqc", "no more than 3 may wait (max_waiting)"),
        ({"when_full": "replace_oldest_waiting"}, "cccq", "it is full, and when_full is replace_oldest_waiting"),
        ({"when_full": "replace_oldest_waiting", "max_waiting": 2}, "ccqq", "no more than 2 may wait (max_waiting)"),
        ({"when_full": "cancel_running"}, "cccq", "it is full, and when_full is cancel_running"),
    ],
)
def test_one_runs_and_of_four_that_wait_some_are_dropped(
    connection: Connection, rule: dict[str, Any], left: str, reason: str
) -> None:
    """Of their key only; what was dropped says which limit has dropped it."""
    limit(connection, **ONE, **rule)
    first, *others = fill(connection, 5, "a")
    (alone,) = fill(connection, 1, "b")

    claimed = Claimant(connection).claim(10)

    assert sorted(job.id for job in claimed) == [first, alone]
    assert "".join(status[0] for status in statuses(connection, others)) == left
    for job, status in zip(others, left, strict=True):
        if status == "c":
            said = error(connection, job)
            assert (said["type"], said["attempt"], said["message"]) == (
                "Dropped",
                0,
                f"key 'a' of queue 'default': {reason}",
            )
    # The one that it found running is asked by the next claim.
    Claimant(connection).claim(10)
    assert asked_to_end(connection) == ([first] if rule.get("when_full") == "cancel_running" else [])


@pytest.mark.parametrize(
    "rule",
    [
        {"when_full": "drop_newest"},
        {"when_full": "drop_newest", "max_waiting": 0},
        {"when_full": "replace_oldest_waiting"},
        {"when_full": "cancel_running"},
        {"max_waiting": 0, **rate(5, 300.0, burst=5, prefix="key_")},
    ],
)
def test_where_there_is_room_nothing_is_dropped(connection: Connection, rule: dict[str, Any]) -> None:
    """Nor is anything that runs asked to end."""
    limit(connection, key_running=3, **rule)
    jobs = fill(connection, 2, "a")
    claimant = Claimant(connection)
    assert len(claimant.claim(1)) == 1
    claimant.claim(0)
    assert sorted(statuses(connection, jobs)) == ["queued", "running"]
    assert len(claimant.claim(5)) == 1
    assert asked_to_end(connection) == []


def test_what_was_begun_is_not_dropped(connection: Connection) -> None:
    """It is tried again, was given back, or its worker has died: its own start may be what has used up the rate."""
    limit(connection, **rate(1, 300.0, prefix="key_"), max_waiting=0, when_full="drop_newest")
    claimant = Claimant(connection)
    (first,) = fill(connection, 1, "a")
    assert [job.id for job in claimant.claim(10)] == [first]
    connection.execute(
        TABLE.update().where(TABLE.c.id == first).values(status="queued", lease_expires_at=None, ready_at=TABLE.c.run_at)
    )  # fmt: skip
    (late,) = fill(connection, 1, "a")

    assert claimant.claim(10) == []

    assert statuses(connection, [first, late]) == ["queued", "cancelled"]


def test_what_was_begun_takes_no_place_of_what_runs(connection: Connection) -> None:
    """A job that is tried again is older than the one that runs now."""
    limit(connection, **ONE, when_full="cancel_running")
    ran = make_job(connection, "running", concurrency_key="a")
    tried = make_job(connection, concurrency_key="a", attempt=1, claims=1)

    assert Claimant(connection).claim(10) == []

    assert statuses(connection, [ran, tried]) == ["running", "queued"]
    assert asked_to_end(connection) == []


def test_a_task_drops_its_own_jobs_only(connection: Connection) -> None:
    """Those without a key, in whatever queue."""
    limit(connection, "mine", owner="task", running=1, when_full="drop_newest")
    make_job(connection, "running", task="mine", queue="other")
    without = fill(connection, 2, task="mine")
    others = fill(connection, 1, "a") + fill(connection, 1)

    claimant = Claimant(connection)
    claimed = [job.id for _ in range(3) for job in claimant.claim(10)]

    assert sorted(claimed) == others
    assert statuses(connection, without) == ["cancelled"] * 2
    assert error(connection, without[0])["message"] == "task 'mine': it is full, and when_full is drop_newest"


def test_a_paused_queue_drops_nothing(connection: Connection) -> None:
    """An operator wants to look at what there is."""
    limit(connection, **ONE, when_full="drop_newest")
    jobs = fill(connection, 3, "a")
    connection.exec_driver_sql("UPDATE sa_jobqueue.job_limit SET paused_at = now()")

    assert Claimant(connection).claim(10) == []

    assert set(statuses(connection, jobs)) == {"queued"}


def test_the_key_of_a_unique_job_is_free_again(connection: Connection) -> None:
    """As at any other end."""
    limit(connection, **ONE, when_full="drop_newest")
    first, second = fill(connection, 2, "a")
    connection.execute(TABLE.update().where(TABLE.c.id == second).values(uniqueness={"key": "k"}))
    connection.execute(insert(UniqueKey).values(key="k", job_id=second))

    Claimant(connection).claim(10)

    assert statuses(connection, [first, second]) == ["running", "cancelled"]
    assert connection.scalars(select(UniqueKey.key)).all() == []


def test_what_one_key_is_allowed_counts_for_it(connection: Connection) -> None:
    """Two of it may run, so the third is dropped; and when they have ended there is room again."""
    limit(connection, **ONE, when_full="drop_newest")
    key(connection, "a", running=2)
    jobs = fill(connection, 3, "a")
    claimant = Claimant(connection)

    claimed = claimant.claim(10)
    assert statuses(connection, jobs) == ["running", "running", "cancelled"]
    end(connection, claimed)
    (last,) = fill(connection, 1, "a")
    assert [job.id for job in claimant.claim(10)] == [last]


def test_more_than_a_thousand_may_wait(connection: Connection) -> None:
    """The newest beyond that number are dropped."""
    limit(connection, **ONE, max_waiting=1500)
    connection.exec_driver_sql(
        "INSERT INTO sa_jobqueue.job (task, concurrency_key) SELECT 'a_task', 'a' FROM generate_series(1, 1600)"
    )

    Claimant(connection).claim(10)

    found = connection.scalars(select(TABLE.c.status).order_by(TABLE.c.id)).all()
    assert found == ["running"] + ["queued"] * 1500 + ["cancelled"] * 99

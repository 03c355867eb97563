"""Adding to what was counted, moving minutes into hours, and summing up."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text

from sa_jobqueue.rules.tally import BUCKETS, TaskTally
from sa_jobqueue.sql.readings import backlog
from sa_jobqueue.sql.readings.backlog import backlog_in_steps
from sa_jobqueue.sql.readings.stats import sum_stats
from sa_jobqueue.sql.store import default_store as store
from tests.support.factory import make_job, make_jobs

WORKER = uuid.UUID(int=1)


@pytest.fixture(autouse=True)
def enrolled(connection: Connection) -> None:
    """A worker, which may add what it counted."""
    store.enrol(connection, WORKER, host="web-1", pid=47, queues=["mail"], concurrency=5, version="1")


def tally(queue: str = "mail", task: str = "send", **counts: Any) -> TaskTally:
    return TaskTally(queue, task, **counts)


def buckets(**numbers: int) -> tuple[int, ...]:
    """By the number of the bucket: b0=2, b18=1."""
    return tuple(numbers.get(f"b{number}", 0) for number in range(BUCKETS))


def all_stats(connection: Connection) -> list[Any]:
    return list(connection.execute(text("SELECT seconds, at, queue, task, completed, runs FROM sa_jobqueue.stat ORDER BY 1, 2, 3, 4")))  # fmt: skip


def test_what_workers_count_adds_up_in_the_row_of_the_minute(connection: Connection) -> None:
    """Outcomes, sums and each bucket; each queue and task has a row of its own."""
    first = tally(
        completed=3, failed=1, run_seconds=0.5, wait_seconds=2.0, runs=buckets(b0=3, b18=1), waits=buckets(b2=4)
    )
    other = tally(task="resize", released=1)
    assert store.add_stats(connection, [other, first], worker=WORKER, number=1)
    assert store.add_stats(connection, [tally(completed=1, lost=2, runs=buckets(b0=1))], worker=WORKER, number=2)

    rows = connection.execute(sum_stats(since=timedelta(hours=1), by=("queue", "task"))).all()

    assert [(row.queue, row.task, row.completed, row.failed, row.released, row.lost) for row in rows] == [
        ("mail", "resize", 0, 0, 1, 0),
        ("mail", "send", 4, 1, 0, 2),
    ]
    assert tuple(rows[1].runs) == buckets(b0=4, b18=1)
    assert tuple(rows[1].waits) == buckets(b2=4)
    assert (rows[1].run_seconds, rows[1].wait_seconds) == (0.5, 2.0)
    assert len(all_stats(connection)) == 2
    assert {(row.seconds, row.at.second) for row in all_stats(connection)} == {(60, 0)}


def test_a_bucket_may_hold_more_than_an_integer_does(connection: Connection) -> None:
    """A worker that could not write the table for weeks adds all it has counted in one batch."""
    many = tally(completed=3_000_000_000, runs=buckets(b0=3_000_000_000), waits=buckets(b1=3_000_000_000))
    for number in (1, 2):
        assert store.add_stats(connection, [many], worker=WORKER, number=number)
    assert store.roll_up_stats(connection, keep=timedelta(minutes=-2), limit=10) == 1
    row = connection.execute(sum_stats(since=timedelta(hours=2))).one()
    assert (row.completed, row.runs[0], row.waits[1]) == (6_000_000_000,) * 3


def test_a_batch_whose_answer_was_lost_is_added_once(connection: Connection) -> None:
    """It is sent again with the same number."""
    for _ in range(2):
        assert store.add_stats(connection, [tally(completed=3)], worker=WORKER, number=1)
    assert [row.completed for row in all_stats(connection)] == [3]


def test_a_worker_that_was_struck_off_adds_nothing_until_it_enrols_again(connection: Connection) -> None:
    """Without its row the database cannot tell whether it has added the batch."""
    store.leave(connection, WORKER)
    assert not store.add_stats(connection, [tally(completed=3)], worker=WORKER, number=4)
    assert all_stats(connection) == []
    store.enrol(connection, WORKER, host="web-1", pid=47, queues=["mail"], concurrency=5, version="1")
    assert store.add_stats(connection, [tally(completed=3)], worker=WORKER, number=4)


def test_any_name_of_a_queue_and_a_task_can_be_counted(connection: Connection) -> None:
    """Also those that mean something in the text of an array, or in SQL."""
    names = ['a"b', "a,b", "{}", "\\", "NULL", "it's", "ü\n"]
    assert store.add_stats(connection, [tally(name, name, completed=1) for name in names], worker=WORKER, number=1)
    rows = connection.execute(sum_stats(since=timedelta(hours=1), by=("queue", "task"))).all()
    assert sorted((row.queue, row.task) for row in rows) == sorted((name, name) for name in names)


def make(connection: Connection, *, days: float, seconds: int = 60, task: str = "send", completed: int = 1) -> None:
    connection.execute(
        text(
            "INSERT INTO sa_jobqueue.stat SELECT :seconds, date_trunc('hour', now() - :days * interval '1 day', 'UTC') + "
            "number * interval '1 minute', :completed, 0, 0, 0, 0, 0, 0, 0, 0, 0.5, 0, 'mail', :task, "
            "array_fill(1, ARRAY[19]), array_fill(2, ARRAY[19]) FROM generate_series(0, CASE :seconds WHEN 60 THEN 59 ELSE 0 END) AS number"
        ),
        {"days": days, "seconds": seconds, "task": task, "completed": completed},
    )


def test_minutes_of_last_week_become_hours_and_nothing_is_counted_twice(connection: Connection) -> None:
    """The sums are the same before and after; a second pass over the same hour adds to its row."""
    make(connection, days=8)
    make(connection, days=1)
    before = connection.execute(sum_stats(since=timedelta(days=30))).one()

    assert store.roll_up_stats(connection, keep=timedelta(days=7), limit=25) == 25
    assert store.roll_up_stats(connection, keep=timedelta(days=7), limit=2_000) == 35
    assert store.roll_up_stats(connection, keep=timedelta(days=7), limit=2_000) == 0

    assert connection.execute(sum_stats(since=timedelta(days=30))).one() == before
    hours = [row for row in all_stats(connection) if row.seconds == 3_600]
    assert [(row.completed, set(row.runs)) for row in hours] == [(60, {60})]
    assert hours[0].at.minute == 0
    assert len(all_stats(connection)) == 61


def test_hours_are_deleted_when_they_are_too_old(connection: Connection) -> None:
    """Younger ones stay."""
    make(connection, days=91, seconds=3_600)
    make(connection, days=89, seconds=3_600)
    assert store.drop_old_stats(connection, keep=timedelta(days=90), limit=100) == 1
    assert len(all_stats(connection)) == 1


def test_two_workers_move_each_minute_once(connection: Connection, other: Connection) -> None:
    """One skips what the other has locked, and moves it when it is free."""
    make(connection, days=8)
    connection.commit()
    connection.execute(text("SELECT FROM sa_jobqueue.stat ORDER BY at LIMIT 40 FOR UPDATE"))
    assert store.roll_up_stats(other, keep=timedelta(days=7), limit=100) == 20
    other.commit()
    assert store.roll_up_stats(connection, keep=timedelta(days=7), limit=100) == 40
    connection.commit()
    assert [row.completed for row in all_stats(connection)] == [60]


def test_sums_can_be_narrowed_and_spread_over_time(connection: Connection) -> None:
    """By queue or task, of some only, and in steps."""
    make(connection, days=1)
    make(connection, days=1, task="resize", completed=2)
    by_task = connection.execute(sum_stats(since=timedelta(days=2), by=("task",))).all()
    assert [(row.task, row.completed) for row in by_task] == [("resize", 120), ("send", 60)]
    only = connection.execute(sum_stats(since=timedelta(days=2), by=("task",), tasks=["send"], queues=["mail"])).all()
    assert [(row.task, row.completed) for row in only] == [("send", 60)]
    none = connection.execute(sum_stats(since=timedelta(days=2), queues=["other"])).one()
    assert (none.completed, none.run_seconds, set(none.runs)) == (0, 0.0, {0})
    steps = connection.execute(sum_stats(since=timedelta(days=2), step=timedelta(minutes=15))).all()
    assert [row.completed for row in steps] == [45] * 4
    assert [row.at.minute for row in steps] == [0, 15, 30, 45]


# ---- The backlog, counted once a minute.


def counts(connection: Connection, **options: Any) -> list[tuple[Any, ...]]:
    """The last count: queue, due and running jobs, and whether there were more."""
    now = connection.scalar(text("SELECT date_trunc('hour', now())"))
    hour = timedelta(hours=1)
    rows = connection.execute(backlog_in_steps(begin=now - hour, until=now, step=hour, **options)).all()
    return sorted((row.queue, row.due, row.running, row.more) for row in rows)


def test_the_backlog_is_the_due_and_running_jobs_of_each_queue(connection: Connection) -> None:
    """Jobs for later and blocked jobs are none of it, a retry whose time has come is; and one worker counts for all."""
    make_jobs(connection, 3, queue="mail")
    make_job(connection, queue="mail", attempt=1, run_at=timedelta(seconds=-5))
    make_job(connection, queue="mail", attempt=1, run_at=timedelta(hours=1))
    make_job(connection, queue="keys", concurrency_key="acme")
    make_job(connection, "running", queue="keys")
    make_job(connection, "running", queue="long")
    make_job(connection, queue="later", run_at=timedelta(hours=1))
    make_job(connection, "completed", queue="done")
    assert store.count_backlog(connection)
    assert not store.count_backlog(connection)
    expected = [("keys", 1, 1, False), ("later", 0, 0, False), ("long", 0, 1, False), ("mail", 4, 0, False)]
    assert counts(connection) == [("", 0, 0, False), *expected]
    assert counts(connection, queues=["mail"]) == [("", 0, 0, False), expected[-1]]


def test_a_deep_queue_is_counted_to_a_bound_and_says_so(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "_COUNTED", 2)
    monkeypatch.setattr(backlog, "_LEAST", 2)
    make_jobs(connection, 3, queue="mail")
    make_job(connection, queue="sync")
    assert store.count_backlog(connection)
    assert counts(connection) == [("", 0, 0, False), ("mail", 2, 0, True), ("sync", 1, 0, False)]


def test_old_counts_are_deleted(connection: Connection) -> None:
    """By the hour, until none is left that is too old."""
    connection.execute(
        text(
            "INSERT INTO sa_jobqueue.backlog SELECT now() - hours * interval '1 hour', 1, 0, 1, false, 'mail' FROM generate_series(1, 4) AS hours"
        )
    )
    deleted = [store.drop_old_backlog(connection, keep=timedelta(minutes=90)) for _ in range(4)]
    assert (sum(deleted), deleted[-1]) == (3, 0)

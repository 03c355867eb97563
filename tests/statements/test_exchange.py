"""Finishing and claiming by one statement: each half does what it does alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sqlalchemy import Connection, event, func, select, text
from sqlalchemy.exc import DBAPIError

from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.rules.lifecycle import Change, JobStatus
from sa_jobqueue.rules.outcomes import Completed, ErrorEntry, Snooze
from sa_jobqueue.sql.apply import Answer, alike
from sa_jobqueue.sql.claims import ClaimRequest
from sa_jobqueue.sql.store import default_store
from tests.support.factory import TABLE, change, completed, exists, make_job, make_jobs, row

KEPT, DELETED = 60.0, 0.0


def exchange(
    connection: Connection, changes: Sequence[Change], *, worker: str = "worker-1", **queues: int
) -> tuple[dict[int, Answer], list[ClaimedJob]]:
    return default_store.exchange(connection, changes, ClaimRequest(worker=worker, queues=queues, lease=60.0))


@pytest.mark.parametrize("retain", [KEPT, DELETED])
def test_what_has_ended_is_finished_and_what_is_due_is_claimed(connection: Connection, retain: float) -> None:
    """In the order to run them, with all that a claim brings."""
    done = make_jobs(connection, 3, "running")
    low, high = make_job(connection, priority=1, args={"n": 1}), make_job(connection, priority=8, args={"n": 2})

    answers, jobs = exchange(connection, [completed(one, retain=retain) for one in done], default=10)

    assert answers == dict.fromkeys(done, Answer.APPLIED)
    assert [(job.id, job.args, job.attempt) for job in jobs] == [
        (high, '{"n": 2}', 1),
        (low, '{"n": 1}', 1),
    ]
    assert {row(connection, one).status for one in (low, high)} == {JobStatus.RUNNING}
    if retain == KEPT:
        assert {row(connection, one).status for one in done} == {JobStatus.COMPLETED}
    else:
        assert not any(exists(connection, one) for one in done)


@pytest.mark.parametrize("retain", [KEPT, DELETED])
def test_either_half_may_find_nothing(connection: Connection, retain: float) -> None:
    """Nothing is due, or none is wanted; or no claim is valid any more."""
    one, two = make_jobs(connection, 2, "running")

    assert exchange(connection, [completed(one, retain=retain)], default=10) == ({one: Answer.APPLIED}, [])
    due = make_job(connection)
    assert exchange(connection, [completed(two, retain=retain)]) == ({two: Answer.APPLIED}, [])
    answers, jobs = exchange(connection, [completed(two, retain=retain)], default=10)
    assert (answers, [job.id for job in jobs]) == ({}, [due])


@pytest.mark.parametrize("retain", [KEPT, DELETED])
def test_no_answer_for_what_was_not_written(connection: Connection, other: Connection, retain: float) -> None:
    """Another's claim, a row that is locked, one that is gone: left to the general statement."""
    mine, newer, locked, gone = make_jobs(connection, 4, "running")
    connection.execute(TABLE.update().where(TABLE.c.id == newer).values(claim_token=2))
    connection.execute(TABLE.delete().where(TABLE.c.id == gone))
    due = make_job(connection)
    connection.commit()
    other.execute(select(TABLE.c.id).where(TABLE.c.id == locked).with_for_update())
    changes = [completed(one, retain=retain) for one in (mine, newer, locked, gone)]

    answers, jobs = exchange(connection, changes, default=10)

    assert answers == {mine: Answer.APPLIED}
    assert [job.id for job in jobs] == [due]
    left = default_store.apply(connection, changes[1:])
    assert left == {newer: Answer.LOST, locked: Answer.LOCKED, gone: Answer.LOST}


def test_neither_half_is_done_without_the_other(connection: Connection) -> None:
    """It is one statement: what a trigger of the application's raises for a claim takes the completion with it."""
    connection.execute(
        text(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF NEW.status = 'running' THEN RAISE 'no'; END IF; RETURN NEW; END $$"
        )
    )
    connection.execute(
        text("CREATE TRIGGER refuse BEFORE UPDATE ON sa_jobqueue.job FOR EACH ROW EXECUTE FUNCTION refuse()")
    )
    done, due = make_job(connection, "running"), make_job(connection)

    with pytest.raises(DBAPIError, match="no"), connection.begin_nested():
        exchange(connection, [completed(done)], default=10)

    assert [row(connection, one).status for one in (done, due)] == [JobStatus.RUNNING, JobStatus.QUEUED]


@pytest.mark.parametrize("retain", [KEPT, DELETED])
def test_what_has_ended_makes_room_for_what_is_claimed(connection: Connection, retain: float) -> None:
    """Jobs are finished first: a unique index of the application's may allow one running job of a kind."""
    connection.execute(text("CREATE UNIQUE INDEX ON sa_jobqueue.job ((meta->>'kind')) WHERE status = 'running'"))
    done, due = make_job(connection, "running", meta={"kind": "a"}), make_job(connection, meta={"kind": "a"})

    answers, jobs = exchange(connection, [completed(done, retain=retain)], default=1)

    assert (set(answers), [job.id for job in jobs]) == ({done}, [due])


def test_two_workers_exchange_at_once(connection: Connection, other: Connection) -> None:
    """None waits for the other, and none gets what the other has."""
    done, due = make_jobs(connection, 4, "running"), make_jobs(connection, 4)
    connection.commit()

    first = exchange(connection, [completed(one) for one in done[:2]], default=2)
    second = exchange(other, [completed(one) for one in done[2:]], default=4)

    assert [set(answers) for answers, _ in (first, second)] == [set(done[:2]), set(done[2:])]
    assert [[job.id for job in jobs] for _, jobs in (first, second)] == [due[:2], due[2:]]


@pytest.mark.parametrize("retain", [KEPT, DELETED])
def test_an_exchange_is_the_same_for_an_engine_with_listeners(connection: Connection, retain: float) -> None:
    """Core executes it then; else it goes to the driver as text, and comes back in binary."""
    heard: list[str] = []
    done, due = make_jobs(connection, 2, "running"), make_jobs(connection, 2, args={"ü": 1}, meta={"tags": ["a"]})

    first = exchange(connection, [completed(done[0], retain=retain)], default=1)
    event.listen(connection, "before_cursor_execute", lambda *args: heard.append(args[2]))
    second = exchange(connection, [completed(done[1], retain=retain)], default=1)

    assert len(heard) == 1
    assert [set(answers) for answers, _ in (first, second)] == [{done[0]}, {done[1]}]
    (one,), (two,) = first[1], second[1]
    assert [one.id, two.id] == due
    assert one._replace(id=0, claim_token=0) == two._replace(id=0, claim_token=0)
    assert [type(value) for value in one] == [type(value) for value in two]


def test_a_job_ends_when_it_is_written(connection: Connection) -> None:
    """As by the statement that only finishes: by the clock, not by the transaction's now()."""
    one, began = make_job(connection, "running"), connection.scalars(select(func.clock_timestamp())).one()

    exchange(connection, [completed(one, retain=KEPT)], default=1)

    job = row(connection, one)
    assert job.finished_at > began
    assert (job.purge_at - job.finished_at).total_seconds() == KEPT


def test_only_what_says_no_more_than_done_and_stays_or_goes_alike(connection: Connection) -> None:
    """All others are for the general statement, or for two of these."""
    one, two = make_jobs(connection, 2, "running")
    kept, gone = completed(one, retain=None), completed(two, retain=DELETED)
    recorded = change(connection, two, Completed("1"))

    assert all(map(alike, ([], [kept], [gone], [kept, completed(two, retain=KEPT)], [kept, recorded])))
    assert not alike([kept, gone])
    assert not alike([kept, change(connection, two, Completed(error=ErrorEntry("PayloadError", "too large")))])
    assert not alike([change(connection, one, Snooze(1))])

"""What a claim takes, in which order, and what it leaves to others."""

from __future__ import annotations

import json
import math
import os
from datetime import timedelta

import pytest
from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import OperationalError

from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.models import Job
from sa_jobqueue.rules.lifecycle import JobStatus
from sa_jobqueue.sql.claims import ClaimRequest, is_too_much
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.sql.tables import Compiled
from sa_jobqueue.statements import claim_jobs
from tests.support.factory import TABLE, make_job, make_jobs, refer, row, statuses, unfolding, users_table
from tests.support.nightly import nightly

HOUR = timedelta(hours=1)


def claim(connection: Connection, free: int | dict[str, int] = 10, **options: object) -> list[ClaimedJob]:
    queues = free if isinstance(free, dict) else {"default": free}
    return default_store.claim(connection, ClaimRequest(worker="me", queues=queues, lease=60.0, **options))  # type: ignore[arg-type]


def ids(jobs: list[ClaimedJob]) -> list[int]:
    return [job.id for job in jobs]


def test_a_claim_takes_a_due_job_and_says_all_about_it(connection: Connection) -> None:
    """The row changes as the life cycle says, and the worker gets what it needs to run the job."""
    one = make_job(
        connection, queue="default", task="greet", args={"name": "Zoë"}, meta={"tags": [1]}, attempt=2, max_attempts=7,
        rescues=1, claims=5, priority=6,
    )  # fmt: skip

    (job,) = claim(connection)

    after = row(connection, one)
    assert (after.status, after.worker, after.claims, after.attempt) == (JobStatus.RUNNING, "me", 6, 3)
    assert after.lease_expires_at - after.claimed_at == timedelta(seconds=60)
    assert after.claimed_at == connection.scalar(select(func.now()))
    assert job == (
        one, after.claim_token, "default", "greet", 6, after.run_at.timestamp(), 3, 7, 1, '{"name": "Zoë"}', '{"tags": [1]}',
        after.created_at.timestamp(), None,
    )  # fmt: skip


@pytest.mark.parametrize("status", sorted(set(JobStatus) - {JobStatus.QUEUED}))
def test_only_queued_jobs_are_claimed(connection: Connection, status: str) -> None:
    """Whatever else is in the row."""
    make_job(connection, status)

    assert claim(connection) == []


def test_a_job_is_claimed_when_its_time_has_come(connection: Connection) -> None:
    """`run_at` up to now; not a microsecond later."""
    due = make_job(connection, run_at=timedelta(0))
    make_job(connection, run_at=timedelta(microseconds=1))

    assert ids(claim(connection)) == [due]


def test_jobs_come_by_priority_then_time_then_id(connection: Connection) -> None:
    """Higher priority first, then earlier `run_at`, then lower id."""
    jobs = {
        (priority, hours): make_job(connection, priority=priority, run_at=-HOUR * hours)
        for priority in (0, 9, 4, 5)
        for hours in (1, 3, 2)
    }
    twin = make_job(connection, priority=9, run_at=-HOUR * 3)
    ordered = [jobs[priority, hours] for priority in (9, 5, 4, 0) for hours in (3, 2, 1)]
    ordered.insert(1, twin)

    assert ids(claim(connection, 100)) == ordered


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_small_batches_keep_the_order(connection: Connection, batch: int) -> None:
    """A job of lower priority waits until none of a higher one is due."""
    for priority in (3, 9, 0, 9, 3, 5):
        make_job(connection, priority=priority)
    make_job(connection, priority=9, run_at=HOUR)

    claimed = []
    while jobs := claim(connection, batch):
        assert len(jobs) <= batch
        claimed += jobs

    assert [job.priority for job in claimed] == [9, 9, 5, 3, 3, 0]
    assert ids(claimed) == [job.id for job in sorted(claimed, key=lambda job: (-job.priority, job.run_at, job.id))]


def test_each_queue_gives_what_is_free_for_it(connection: Connection) -> None:
    """A full queue takes nothing from another, and no worker takes more than it can run."""
    for name in ("mail", "video", "other"):
        for priority in (1, 8):
            for _ in range(5):
                make_job(connection, queue=name, priority=priority)

    jobs = claim(connection, {"mail": 7, "video": 2, "empty": 3, "other": 0})

    taken = [(job.queue, job.priority) for job in jobs]
    assert sorted(taken) == [("mail", 1)] * 2 + [("mail", 8)] * 5 + [("video", 8)] * 2
    assert [job.priority for job in jobs] == [8] * 7 + [1] * 2


@pytest.mark.parametrize("free", [{}, {"default": 0}, {"default": -1}, {"default": 0, "b": -5}])
def test_no_free_slot_is_no_claim(connection: Connection, free: dict[str, int]) -> None:
    """And no error."""
    make_job(connection)

    assert claim(connection, free) == []
    assert set(statuses(connection).values()) == {"queued"}


@pytest.mark.parametrize(
    "name",
    [
        "a'b", 'a"b', "a,b", "{a}", "{a,b}", "a\\b", "NULL", "null", "a b", " ", "\t\n", "%s", "%(x)s", ":name", "$1",
        "ä😀", "x" * 200, "ü" * 200, "A", "a",
    ],
)  # fmt: skip
def test_a_queue_may_have_any_name(connection: Connection, name: str) -> None:
    """The name is data. Near misses are other queues."""
    wanted = make_job(connection, queue=name)
    for another in (name + "x" if len(name) < 200 else name[:-1], name.swapcase() + "!" if len(name) < 199 else "y"):
        make_job(connection, queue=another)

    (job,) = claim(connection, {name: 5, "unrelated": 5})

    assert (job.id, job.queue) == (wanted, name)


def test_a_worker_of_many_queues_claims_from_all(connection: Connection) -> None:
    """A hundred names, one statement."""
    for number in range(100):
        make_job(connection, queue=f"queue {number}")

    jobs = claim(connection, {f"queue {number}": 3 for number in range(100)})

    assert len(jobs) == 100


# ---- others at the same time


def test_locked_jobs_are_skipped(connection: Connection, other: Connection) -> None:
    """No claim waits for another, and none takes a job twice."""
    jobs = make_jobs(connection, 6)
    connection.commit()

    first = claim(connection, 2)
    second = claim(other, 3)
    connection.rollback()
    third = claim(connection, 6)

    assert ids(first) == jobs[:2]
    assert ids(second) == jobs[2:5]
    assert ids(third) == [*jobs[:2], jobs[5]]


def test_a_claim_locks_only_what_it_takes(connection: Connection, other: Connection) -> None:
    """The picking stops at the limit of the queue, also where a priority is cut in the middle."""
    high, low = make_jobs(connection, 3, priority=9), make_jobs(connection, 5, priority=2)
    connection.commit()

    assert ids(claim(connection, 4)) == [*high, low[0]]
    free = other.scalars(select(TABLE.c.id).order_by(TABLE.c.id).with_for_update(skip_locked=True)).all()

    assert free == low[1:]


def test_a_job_that_the_applications_row_references_is_claimed(connection: Connection, other: Connection) -> None:
    """A foreign key holds KEY SHARE on the job for as long as its transaction is open."""
    users_table(connection)
    jobs = make_jobs(connection, 2)
    connection.commit()
    refer(other, jobs[0])

    assert ids(claim(connection)) == jobs


def test_a_job_that_an_operator_has_locked_waits_for_the_next_claim(connection: Connection, other: Connection) -> None:
    """It holds up no claim."""
    jobs = make_jobs(connection, 3)
    connection.commit()
    other.execute(select(TABLE.c.id).where(TABLE.c.id == jobs[1]).with_for_update())

    assert ids(claim(connection)) == [jobs[0], jobs[2]]


def test_a_job_that_went_away_and_came_back_is_claimed_as_it_is(connection: Connection, other: Connection) -> None:
    """Its claims are counted, and each has a token of its own."""
    make_job(connection)
    connection.commit()
    (first,) = claim(other)
    other.execute(TABLE.update().values(status="queued"))
    other.commit()

    (second,) = claim(connection)

    assert row(connection, second.id).claims == 2
    assert first.claim_token != second.claim_token == row(connection, second.id).claim_token


def test_a_statement_that_is_executed_again_draws_another_token(connection: Connection) -> None:
    """For an application's own worker, which may build it once."""
    statement = claim_jobs(worker="me", queues={"default": 1}, lease=60)
    make_jobs(connection, 2)

    (first,), (second,) = (connection.execute(statement).all() for _ in range(2))

    assert first.claim_token != second.claim_token


def test_a_compiled_claim_wants_a_token_each_time(connection: Connection) -> None:
    """It keeps the parameters that it was built with, except this one."""
    compiled = Compiled(claim_jobs(worker="me", queues={"default": 1}, lease=60))

    with pytest.raises(KeyError, match="by_token"):
        compiled.rows(connection, {})


# ---- resume points


def test_jobs_up_to_the_resume_point_are_not_seen(connection: Connection) -> None:
    """The point is the last row taken there: behind it, by (run_at, id)."""
    jobs = make_jobs(connection, 4, priority=3)
    last = row(connection, jobs[1])

    found = claim(connection, after={("default", 3): (last.run_at.timestamp(), last.id)})

    assert ids(found) == jobs[2:]


def test_a_resume_point_is_of_one_slot(connection: Connection) -> None:
    """Another priority and another queue do not know it."""
    kept = [
        make_job(connection, priority=4, run_at=-HOUR),
        make_job(connection, queue="mail", priority=3, run_at=-HOUR),
    ]
    make_job(connection, priority=3, run_at=-HOUR)
    now = connection.scalars(select(func.now())).one()

    found = claim(connection, {"default": 5, "mail": 5}, after={("default", 3): (now.timestamp(), 0)})

    assert sorted(ids(found)) == kept


def test_a_resume_point_keeps_its_microseconds_in_any_zone(connection: Connection) -> None:
    """It is a number of seconds, whatever zone the session shows times in."""
    connection.execute(text("SET LOCAL TimeZone = 'Pacific/Chatham'"))
    jobs = [make_job(connection, run_at=timedelta(microseconds=-n)) for n in (3, 2, 1)]
    point = row(connection, jobs[1]).run_at.timestamp()

    assert ids(claim(connection, after={("default", 4): (point, 2**63 - 1)})) == [jobs[2]]
    assert ids(claim(connection, after={("default", 4): (point, jobs[0])})) == [jobs[1]]


def test_times_before_python_do_not_stop_the_queue(connection: Connection) -> None:
    """A `run_at` of '-infinity' or BC is what plain SQL may write; Python has no `datetime` for it."""
    odd = [
        make_job(connection, run_at="-infinity"),
        make_job(connection, run_at="4714-11-24 00:00:00.000001+00 BC"),
        make_job(connection, created_at="infinity"),
    ]

    found = claim(connection)

    assert ids(found) == odd
    assert [job.run_at for job in found][:2] == [-math.inf, pytest.approx(-210_866_803_200, abs=1e-4)]
    assert found[2].created_at == math.inf
    assert [claim(connection, after={("default", 4): (job.run_at, job.id)}) for job in found] == [[], [], []]


@pytest.mark.parametrize("at", ["-infinity", "1930-02-03 04:05:06.789013", "1969-12-31 23:59:59.999999", "now"])
def test_a_job_is_not_behind_its_own_point(connection: Connection, at: str) -> None:
    """Its time comes back and is sent again to the microsecond."""
    one = make_job(connection, run_at=at)
    with connection.begin_nested() as claimed:
        (job,) = claim(connection)
        claimed.rollback()

    assert claim(connection, after={("default", 4): (job.run_at, one)}) == []
    assert ids(claim(connection, after={("default", 4): (job.run_at, one - 1)})) == [one]


def test_jobs_that_are_left_out_are_not_taken_and_those_behind_them_are(connection: Connection) -> None:
    """In whichever slot they are. They take nothing from what is free."""
    first, second, third, other = [*make_jobs(connection, 3), make_job(connection, queue="other")]
    but = [first, third, other, -1]

    assert list(default_store.lock_due(connection, {"default": 1, "other": 1}, but=but)) == [second]
    assert ids(claim(connection, 1, but=but)) == [second]
    assert ids(claim(connection, 1, but=but)) == []


def test_of_listed_jobs_those_that_are_due_are_claimed(connection: Connection) -> None:
    """Not those to come, nor those that run, nor one that is not there."""
    due = make_jobs(connection, 2)
    make_jobs(connection, 2)
    listed = [*due, make_job(connection, run_at=HOUR), make_job(connection, "running"), -1]

    assert default_store.lock_these(connection, listed) == due
    claimed = default_store.claim_these(connection, listed, worker="me", lease=60.0)
    assert ids(claimed) == due
    assert {row(connection, one).status for one in due} == {"running"}


# ---- edges


def test_the_attempt_stays_at_the_edge_of_its_type(connection: Connection) -> None:
    """A counter that overflowed would fail the whole claim, again and again."""
    one = make_job(connection, attempt=32_767, max_attempts=32_767, rescues=32_767)

    (job,) = claim(connection)

    assert (job.id, job.attempt, job.rescues) == (one, 32_767, 32_767)


@pytest.mark.parametrize("one", [2**31, 2**53 + 1, 2**63 - 1, -5])
def test_ids_have_64_bits(connection: Connection, one: int) -> None:
    """Also as resume points."""
    make_job(connection, id=one)
    connection.commit()

    (job,) = claim(connection)
    connection.rollback()

    assert job.id == one
    assert claim(connection, after={("default", 4): (job.run_at, one)}) == []


def test_large_arguments_are_left_behind(connection: Connection) -> None:
    """They are fetched one by one, so that a batch stays small."""
    blob = [str(n * 7_919) for n in range(40_000)]
    large, small = make_job(connection, args={"blob": blob}), make_job(connection, args={"n": 1})

    found = {job.id: job.args for job in claim(connection)}

    assert found == {large: None, small: '{"n": 1}'}
    texts = default_store.fetch_args(connection, large)
    assert texts is not None
    assert json.loads(texts.args or "") == {"blob": blob}
    assert (texts.meta, texts.args_bytes, texts.meta_bytes) == ("{}", len(texts.args or ""), 2)
    assert default_store.fetch_args(connection, -1) is None


@pytest.mark.parametrize("name", ["args", "meta"])
@pytest.mark.parametrize("value", ["jsonb_build_object('n', repeat('a', 1000000))", unfolding(1), "incompressible"])
def test_what_is_large_as_text_is_left_behind_however_small_it_is_stored(
    connection: Connection, name: str, value: str
) -> None:
    """A thousand of them together would not fit into memory; so too for what is large in both ways."""
    small, large = make_jobs(connection, 2)
    if value == "incompressible":
        value = f"jsonb_build_object('n', '{os.urandom(60_000).hex()}')"
    connection.execute(text(f"UPDATE sa_jobqueue.job SET {name} = {value} WHERE id = {large}"))

    found = {job.id: (job.args, job.meta) for job in claim(connection)}

    assert found == {small: ("{}", "{}"), large: (None, "{}") if name == "args" else ("{}", None)}


@pytest.mark.parametrize("name", ["args", *nightly("meta")])
def test_a_claim_that_takes_nothing_along_fails_by_no_row(connection: Connection, name: str) -> None:
    """What is beyond 1 GB as text makes any other claim fail, and with it all jobs of the queue."""
    one, other = make_jobs(connection, 2, args={"n": 1}, meta={"n": 2})
    connection.execute(text(f"UPDATE sa_jobqueue.job SET {name} = {unfolding(9_000)} WHERE id = {one}"))

    with pytest.raises(OperationalError, match="string buffer") as caught, connection.begin_nested():
        claim(connection)
    assert is_too_much(caught.value)
    assert {job.id: (job.args, job.meta) for job in claim(connection, inline=False)} == dict.fromkeys(
        (one, other), (None, None)
    )
    with pytest.raises(OperationalError, match="string buffer"):
        default_store.fetch_args(connection, one)


def test_what_is_longer_than_the_most_is_not_fetched(connection: Connection) -> None:
    """Only its length is."""
    one = make_job(connection, args={"text": "äöü"}, meta={"n": 1})

    assert default_store.fetch_args(connection, one, most=18) == ('{"text": "äöü"}', '{"n": 1}', 18, 8)
    assert default_store.fetch_args(connection, one, most=17) == (None, '{"n": 1}', 18, 8)
    assert default_store.fetch_args(connection, one, most=7) == (None, None, 18, 8)


def test_the_limit_for_arguments_is_a_parameter(connection: Connection) -> None:
    """In bytes of text; and what is empty comes along anyhow."""
    make_job(connection, args={})
    connection.execute(text("UPDATE sa_jobqueue.job SET args = '[1e30]', meta = '[1e31]'"))

    def found(limit: int) -> list[bool]:
        with connection.begin_nested() as savepoint:
            row = connection.execute(claim_jobs(worker="me", queues={"default": 1}, lease=60, args_limit=limit)).one()
            savepoint.rollback()
        return [row.args is not None, row.meta is not None]

    assert {limit: found(limit) for limit in (34, 33, 32, 3, -1)} == {
        34: [True, True], 33: [True, False], 32: [False, False], 3: [False, False], -1: [False, False],
    }  # fmt: skip
    connection.execute(text("UPDATE sa_jobqueue.job SET args = '{}', meta = '[]'"))
    assert found(-1) == [True, True]
    connection.execute(text("UPDATE sa_jobqueue.job SET args = 'null', meta = '0'"))
    assert found(-1) == [False, False]


def test_the_builder_returns_the_columns_of_a_claimed_job(connection: Connection) -> None:
    """By name, in the order of the named tuple."""
    make_job(connection)

    found = connection.execute(claim_jobs(worker="me", queues={"default": 1}, lease=60, job=Job))

    assert tuple(found.keys()) == ClaimedJob._fields

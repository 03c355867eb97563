"""Leases: only the worker that holds a lease renews it; those that have run out are found."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import inf
from threading import Event, Thread

import pytest
from sqlalchemy import Connection, Engine, func, insert, select, text
from sqlalchemy.exc import OperationalError

from sa_jobqueue.models import Uptime, WorkerRow
from sa_jobqueue.rules.lifecycle import JobStatus
from sa_jobqueue.rules.outcomes import ErrorEntry, Rescued
from sa_jobqueue.sql.leases import Expired, Renewal
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import cancel_jobs, expired_leases, renew_leases
from tests.support.factory import TABLE, change, completed, make_job, make_jobs, row, seen
from tests.support.nightly import nightly
from tests.support.plans import service_connection

PAST = timedelta(microseconds=-1)


def left(connection: Connection, one: int) -> float:
    """Seconds until the lease ends."""
    until = TABLE.c.lease_expires_at
    return float(connection.scalar(select(func.extract("epoch", until - func.now())).where(TABLE.c.id == one)))


# ---- renewing


def test_a_renewal_moves_the_end_of_the_lease(connection: Connection) -> None:
    """From the database's now, and nothing else in the row."""
    one = make_job(connection, "running", lease_expires_at=timedelta(seconds=3))
    before = row(connection, one)._asdict()

    renewal = default_store.renew(connection, {one: 1}, lease=90.0)

    assert renewal == Renewal(frozenset(), frozenset(), frozenset())
    assert left(connection, one) == 90
    after = row(connection, one)._asdict()
    assert {key for key in before if before[key] != after[key]} == {"lease_expires_at"}


def test_an_expired_lease_can_be_renewed_until_the_rescue(connection: Connection) -> None:
    """Being late is not being dead."""
    one = make_job(connection, "running", lease_expires_at=PAST)

    assert not default_store.renew(connection, {one: 1}, lease=90.0).lost
    assert left(connection, one) == 90


@pytest.mark.parametrize("status", sorted(set(JobStatus) - {JobStatus.RUNNING}))
def test_what_does_not_run_is_lost(connection: Connection, status: str) -> None:
    """And gets no lease."""
    one = make_job(connection, status, claim_token=1)

    assert default_store.renew(connection, {one: 1}, lease=90.0).lost == {one}
    assert row(connection, one).lease_expires_at is None


def test_a_claim_of_another_worker_is_not_renewed(connection: Connection) -> None:
    """Also where `worker` is the same: a worker that slept may have claimed it again."""
    one = make_job(connection, "running", claim_token=2, lease_expires_at=timedelta(seconds=3))

    renewal = default_store.renew(connection, {one: 1, 999: 1}, lease=90.0)

    assert renewal.lost == {one, 999}
    assert left(connection, one) == 3


def test_two_claims_of_one_job_are_answered_each(connection: Connection) -> None:
    """The zombie's is lost, the other renewed."""
    one = make_job(connection, "running", claim_token=2)

    found = connection.execute(renew_leases(ids=[one, one], tokens=[1, 2], lease=60)).all()

    assert sorted(found) == [(one, 1, "lost", False), (one, 2, "applied", False)]


def test_a_locked_row_is_answered_so(connection: Connection, other: Connection) -> None:
    """Its neighbours are renewed meanwhile."""
    ids = make_jobs(connection, 3, "running", lease_expires_at=timedelta(seconds=3))
    connection.commit()
    other.execute(select(TABLE.c.id).where(TABLE.c.id == ids[1]).with_for_update())

    renewal = default_store.renew(connection, dict.fromkeys(ids, 1), lease=90.0)

    assert (renewal.locked, renewal.lost) == ({ids[1]}, frozenset())
    assert [left(connection, one) for one in ids] == [90, left(connection, ids[1]), 90]


def test_a_renewal_tells_of_cancels(connection: Connection) -> None:
    """So a worker hears of a cancel without asking."""
    asked, other = make_jobs(connection, 2, "running")
    connection.execute(cancel_jobs(TABLE.c.id == asked))

    assert default_store.renew(connection, {asked: 1, other: 1}, lease=90.0).cancel_requested == {asked}


def test_cancels_can_be_asked_for_alone(connection: Connection, other: Connection) -> None:
    """More often than leases are renewed. Takes no lock and waits for none."""
    asked, zombie, calm = make_jobs(connection, 3, "running")
    finished = make_job(connection, "completed", cancel_requested_at=timedelta(0))
    connection.execute(cancel_jobs(TABLE.c.id.in_([asked, zombie])))
    connection.commit()
    other.execute(select(TABLE.c.id).with_for_update())
    held = {asked: 1, zombie: 9, calm: 1, finished: 1, 999: 1}

    assert default_store.cancelled_among(connection, held) == {asked}
    assert default_store.cancelled_among(connection, {}) == frozenset()


def test_nothing_held_is_nothing_renewed(connection: Connection) -> None:
    """An idle worker."""
    make_job(connection, "running")

    assert default_store.renew(connection, {}, lease=90.0) == Renewal(frozenset(), frozenset(), frozenset())


def test_a_renewal_is_a_hot_update(connection: Connection) -> None:
    """The column is in no index, and pages have room: no index grows by leases."""
    ids = make_jobs(connection, 20, "running")
    connection.commit()

    default_store.renew(connection, dict.fromkeys(ids, 1), lease=90.0)
    updated, hot = connection.exec_driver_sql(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relid = 'sa_jobqueue.job'::regclass"
    ).one()

    assert updated == 20
    assert hot == 20


# ---- what has run out


def test_expired_leases_are_found_by_id_in_pages(connection: Connection) -> None:
    """With all that `decide` wants to know."""
    make_job(connection, "running")
    expired = [
        make_job(
            connection, "running", lease_expires_at=PAST, attempt=n, max_attempts=9, rescues=1, claims=4,
            task="t", queue="q", worker="w",
        )
        for n in (1, 2, 3)
    ]  # fmt: skip
    expired.append(make_job(connection, "running", lease_expires_at=None, worker=None))
    for status in sorted(set(JobStatus) - {JobStatus.RUNNING}):
        make_job(connection, status, lease_expires_at=PAST)

    first = default_store.expired(connection, limit=3)
    second = default_store.expired(connection, after=first[-1].claim.id, limit=3)

    assert [found.claim.id for found in first + second] == expired
    claimed_at, overdue = first[1].claimed_at, first[1].overdue
    assert first[1] == Expired(seen(connection, expired[1]), "t", "q", "w", "w", claimed_at, overdue)
    assert claimed_at == pytest.approx(row(connection, expired[1]).claimed_at.timestamp())
    assert overdue == pytest.approx(1e-6, abs=1e-5)
    assert (second[0].worker, second[0].overdue) == (None, None)
    assert default_store.expired(connection, after=expired[-1]) == []


def test_expired_leases_say_where_their_workers_ran(connection: Connection) -> None:
    """As far as it is known. Infinite times, which an operator may have written, are no hindrance."""
    known, gone = uuid.uuid4(), uuid.uuid4()
    worker = {"host": "web-1", "pid": 7, "queues": ["q"], "concurrency": 4, "version": "1"}
    connection.execute(insert(WorkerRow).values(id=known, **worker))
    for holder in (str(known), str(gone), "by hand"):
        make_job(connection, "running", worker=holder, claimed_at="infinity", lease_expires_at="-infinity")

    found = default_store.expired(connection)

    assert [one.place for one in found] == ["web-1:7", str(gone), "by hand"]
    assert {(one.claimed_at, one.overdue) for one in found} == {(inf, inf)}


def test_a_lease_ends_at_its_moment(connection: Connection) -> None:
    """At it, not after it."""
    at = make_job(connection, "running", lease_expires_at=timedelta(0))
    make_job(connection, "running", lease_expires_at=timedelta(microseconds=1))

    assert connection.scalars(expired_leases()).all() == [at]


# ---- applying and renewing at the same time


UNORDERED = """
    UPDATE sa_jobqueue.job SET lease_expires_at = now() + interval '1 minute'
    FROM unnest(%(ids)s::bigint[]) WITH ORDINALITY AS held(id, place)
    WHERE job.id = held.id
"""


@contextmanager
def in_threads(*works: object) -> Iterator[Event]:
    """Run the works side by side until all of them have ended; the first exception is raised."""
    stop, failures = Event(), []

    def guarded(work: object) -> None:
        try:
            work(stop)  # type: ignore[operator]
        except BaseException as error:
            failures.append(error)
            stop.set()

    threads = [Thread(target=guarded, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    yield stop
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("rounds", [300, *nightly(1_500)])
def test_applying_and_renewing_the_same_rows_never_deadlocks(engine: Engine, rounds: int) -> None:
    """Three sessions change 50 shared rows in each round, each session in an order of its own."""
    with engine.begin() as connection:
        ids = make_jobs(connection, 50, "running")
        error = ErrorEntry("Rescued", "its lease ran out")
        rescues = [change(connection, one, Rescued(error)) for one in ids]
    shared = ids[::7]
    in_order = select(TABLE.c.id).where(TABLE.c.id.in_(shared)).order_by(TABLE.c.id).with_for_update(key_share=True)
    again = TABLE.update().where(TABLE.c.id.in_(shared)).values(status="running")
    answered: set[str] = set()

    def renewing(order: list[int]) -> object:
        def work(stop: Event) -> None:
            with service_connection(engine) as connection:
                for _ in range(rounds):
                    default_store.renew(connection, dict.fromkeys(order, 1), lease=60)
                    connection.commit()
                    if stop.is_set():
                        return

        return work

    def applying(stop: Event) -> None:
        # The rescues are lost in the write, because their leases are renewed all the time. So the rows stay.
        changes = [completed(change.id) if change.id in shared else change for change in reversed(rescues)]
        with service_connection(engine) as connection:
            for _ in range(rounds):
                answered.update(default_store.apply(connection, changes).values())
                connection.commit()
                # In the order of the ids, too: a SKIP LOCKED that comes in the moment in which another's update has
                # just committed, and a third has begun the next, does wait for that third.
                connection.execute(in_order)
                connection.execute(again)
                connection.commit()
                if stop.is_set():
                    return

    with in_threads(renewing(ids), renewing(ids[::-1]), applying):
        pass

    assert {"applied", "lost"} <= answered


def test_writes_in_the_order_of_the_batch_do_deadlock(engine: Engine) -> None:
    """So the test above could fail: two plain UPDATEs in opposite orders, each seeing the other half-way."""
    with engine.begin() as connection:
        first, second = make_jobs(connection, 2, "running")
    with engine.connect() as one, engine.connect() as two:
        for connection in (one, two):
            connection.exec_driver_sql("SET deadlock_timeout = '50ms'")
            connection.commit()
        one.exec_driver_sql(UNORDERED, {"ids": [first]})
        two.exec_driver_sql(UNORDERED, {"ids": [second]})

        def crossing(connection: Connection, one: int) -> object:
            return lambda stop: connection.exec_driver_sql(UNORDERED, {"ids": [one]}) and connection.rollback()

        with (
            pytest.raises(OperationalError, match="deadlock"),
            in_threads(crossing(one, second), crossing(two, first)),
        ):
            pass


def test_batches_in_opposite_orders_do_not_wait_for_each_other(connection: Connection, other: Connection) -> None:
    """The same two transactions with our statements: each takes what is free and goes on."""
    first, second = make_jobs(connection, 2, "running")
    connection.commit()

    default_store.renew(connection, {first: 1}, lease=60)
    default_store.apply(other, [completed(second)])
    renewal = default_store.renew(connection, {second: 1, first: 1}, lease=60)
    answers = default_store.apply(other, [completed(first), completed(second)])

    assert renewal.locked == {second}
    assert answers == {first: "locked", second: "lost"}


# ---- when what has run out may be rescued


def attest(connection: Connection, *, lease: float = 60.0) -> bool:
    return default_store.attest(connection, lease=lease, outage=lease / 2)


def uptime(connection: Connection, *, lease: float = 60.0) -> tuple[float, float]:
    """How many seconds ago it began, and was written down last."""
    ago = [func.extract("epoch", func.now() - column) for column in (Uptime.since, Uptime.until)]
    since, until = connection.execute(select(*ago).where(Uptime.lease == lease * 1000)).one()
    return float(since), float(until)


@pytest.mark.parametrize(
    ("since", "until", "attested", "then"),
    [
        (None, None, False, (0, 0)),  # no worker was there before
        (59, 10, False, (59, 0)),
        (60, 10, True, (60, 0)),
        (3600, 29, True, (3600, 0)),
        (3600, 31, False, (0, 0)),  # an outage, or a step of the server's clock
        (3600, 300, False, (0, 0)),
        (3600, 5, True, (3600, 5)),  # written down just now: not once more
        (50, 5, False, (50, 5)),
        (3600, -5, True, (3600, 0)),  # the clock was set back a little
        (3600, -300, False, (0, 0)),
        (-200, -300, False, (0, 0)),
    ],
)
def test_leases_could_be_renewed_when_witnesses_followed_each_other_for_a_whole_one(
    connection: Connection, since: float | None, until: float | None, attested: bool, then: tuple[float, float]
) -> None:
    """Wherever the last witness is now, and whatever time its clock showed."""
    if since is not None and until is not None:
        ago = {"since": func.now() - timedelta(seconds=since), "until": func.now() - timedelta(seconds=until)}
        connection.execute(insert(Uptime).values(lease=60_000, **ago))

    assert attest(connection) is attested
    assert uptime(connection) == then


def test_witnesses_for_longer_leases_say_nothing_of_shorter_ones(connection: Connection) -> None:
    """What is no outage for them may have been one for these."""
    attest(connection, lease=600.0)

    connection.execute(text("UPDATE sa_jobqueue.uptime SET since = since - interval '1 hour'"))

    assert attest(connection, lease=600.0)
    assert not attest(connection)


def test_a_worker_that_could_not_renew_its_leases_is_no_witness(connection: Connection, other: Connection) -> None:
    """The table is locked against writes, and can be read: an index is built, say."""
    other.execute(text("LOCK TABLE sa_jobqueue.job IN SHARE MODE"))
    connection.execute(text("SET LOCAL lock_timeout = '50ms'"))

    with pytest.raises(OperationalError, match="lock timeout"):
        attest(connection)

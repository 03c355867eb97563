"""What the worker asks of the server, counted: a round trip, a commit or a written row more per batch fails here.

These are counts, not times: they are the same on every machine. A change that needs fewer lowers the numbers.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, func, insert, select
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import AsyncJobContext, Job, JobContext, Registry, enqueue_many, task
from tests.support import pooler
from tests.support.databases import connect
from tests.support.waiting import wait_until
from tests.support.wire import Transaction, Wire
from tests.support.working import drain, worker_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="psycopg has libpq's trace on Linux only")

JOBS, SLOTS = 3_000, 50
#: Enough for every job to be done at its first claim, without a renewal, on a machine however busy.
CALM = {"lease": 60.0, "hoard": 60.0, "poll": 1.0}

#: A round of the service: one transaction that finishes what has ended and claims for what is free.
ROUND = ("BEGIN", "SELECT", "UPDATE", "COMMIT")
#: Where there is nothing to claim.
FINISH = ("BEGIN", "SELECT", "COMMIT")
#: Where there is nothing to finish. One statement is its own transaction; so is the one that opens a gate.
CLAIM, GATE = ("UPDATE",), ("SELECT",)
#: The transaction of a handler that does one INSERT by `ctx.session`.
BY_HANDLER = ("BEGIN", "INSERT", "UPDATE", "COMMIT")

notes = Table("round_trips_note", MetaData(), Column("n", Integer))


@pytest.fixture(autouse=True)
def direct(url: str) -> None:
    if pooler.is_pooled(url):
        pytest.skip("behind a pooler, settings are made anew in each transaction")


@pytest.fixture
def registry() -> Registry:
    registry = Registry()

    @task(registry=registry, name="kept")
    async def kept(n: int) -> None: ...

    @task(registry=registry, name="deleted", retain=0)
    async def deleted(n: int) -> None: ...

    @task(registry=registry, name="on_thread")
    def on_thread(n: int) -> None: ...

    @task(registry=registry, name="write")
    async def write(ctx: AsyncJobContext, n: int) -> None:
        await ctx.session.execute(insert(notes), {"n": n})

    @task(registry=registry, name="write_on_thread")
    def write_on_thread(ctx: JobContext, n: int) -> None:
        ctx.session.execute(insert(notes), {"n": n})

    return registry


@pytest.fixture
def wire(engine: Engine) -> Iterator[Wire]:
    """What the test's engine says, from its first connection on."""
    wire = Wire(engine)
    yield wire
    wire.close()


def fill(url: str, registry: Registry, name: str, jobs: int) -> None:
    """By an engine of its own, which is not listened to."""
    found = registry.get(name)
    assert found is not None
    engine = create_engine(url)
    with Session(engine) as session:
        session.execute(enqueue_many([found.call(n=n) for n in range(jobs)]))
        session.commit()
    engine.dispose()


def rounds(wire: Wire) -> list[Transaction]:
    """The service's transactions, without the two at its start: looking at the schema, and setting up."""
    (service,) = wire.connections("claimed_at ?=")
    return service.transactions[2:]


@pytest.mark.parametrize("name", ["kept", "deleted", "on_thread"])
def test_finishing_and_claiming_a_batch_is_one_commit_and_four_round_trips(
    engine: Engine, url: str, registry: Registry, wire: Wire, name: str
) -> None:
    """BEGIN, finish, claim, COMMIT: nothing per job, and no other transaction in between."""
    fill(url, registry, name, JOBS)

    drain(engine, registry, queues={"default": SLOTS}, buffer=0, **CALM)  # many claims, none of them large

    made = rounds(wire)
    assert {one.kinds for one in made} <= {ROUND, FINISH, CLAIM, GATE}
    assert CLAIM in {one.kinds for one in made}, "the first one has nothing to finish"
    assert {one.round_trips - len(one.kinds) for one in made} == {0}
    claims = [one for one in made if one.rows("UPDATE")]
    assert sum(one.rows("UPDATE") for one in claims) == JOBS
    assert sum(one.kinds == ROUND for one in claims) >= 0.3 * len(claims) > 10, Counter(one.kinds for one in made)


def test_jobs_are_claimed_and_finished_in_batches(engine: Engine, url: str, registry: Registry, wire: Wire) -> None:
    """All commits of the service together, those at its end included, are far fewer than jobs."""
    fill(url, registry, "kept", JOBS)

    drain(engine, registry, queues={"default": SLOTS}, **CALM)

    assert len(rounds(wire)) <= JOBS / SLOTS * 4


@pytest.mark.parametrize(("name", "updated", "deleted"), [("kept", 2, 0), ("deleted", 1, 1), ("on_thread", 2, 0)])
def test_a_job_is_written_once_by_its_claim_and_once_by_its_end(
    database_url: str, engine: Engine, registry: Registry, name: str, updated: int, deleted: int
) -> None:
    """By the server's own count of rows."""
    fill(database_url, registry, name, 500)

    drain(engine, registry, queues={"default": SLOTS}, **CALM)

    engine.dispose()  # a server process reports what it has counted when it ends
    with connect(database_url) as connection:
        wait_until(lambda: written(connection) == (500, updated * 500, deleted * 500), message=f"{name} to be counted")
        assert written(connection) == (500, updated * 500, deleted * 500)


def written(connection: psycopg.Connection) -> tuple[int, ...]:
    """Rows inserted, updated and deleted so far in the table of jobs."""
    found = connection.execute(
        "SELECT n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables WHERE relid = 'sa_jobqueue.job'::regclass"
    ).fetchone()
    assert found is not None
    return found


def test_a_handlers_session_costs_a_job_four_round_trips_on_a_thread(
    database_url: str, engine: Engine, registry: Registry, wire: Wire
) -> None:
    """Its INSERT and the fenced completion, in one transaction of its own; the service has nothing to finish."""
    notes.metadata.create_all(engine)
    fill(database_url, registry, "write_on_thread", 60)

    drain(engine, registry, queues={"default": 3}, **CALM)

    engine.dispose()
    assert handled(wire) == [(BY_HANDLER, len(BY_HANDLER))] * 60
    with Session(engine) as session:
        assert session.scalar(select(func.count()).where(Job.is_finished)) == 60


async def test_a_handlers_async_session_costs_a_job_four_round_trips(
    database_url: str, engine: Engine, registry: Registry
) -> None:
    """As on a thread."""
    notes.metadata.create_all(engine)
    fill(database_url, registry, "write", 60)
    async_engine = create_async_engine(database_url)
    wire = Wire(async_engine.sync_engine)

    worker = worker_for(engine, registry, queues={"default": 3}, async_engine=async_engine, **CALM)
    await worker.serve(until_idle=True)

    await async_engine.dispose()
    assert handled(wire) == [(BY_HANDLER, len(BY_HANDLER))] * 60
    wire.close()


def handled(wire: Wire) -> list[tuple[tuple[str, ...], int]]:
    """The transactions of handlers, with their round trips."""
    return [
        (one.kinds, one.round_trips)
        for talk in wire.connections("INTO round_trips_note")
        for one in talk.transactions
        if "INSERT" in one.kinds
    ]

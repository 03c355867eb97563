"""What the worker asks of the server, counted: a round trip, a commit or a written row more per batch fails here.

These are counts, not times: they are the same on every machine. A change that needs fewer lowers the numbers. How many
outcomes a round of a free worker finds depends on time: so it is counted against what each of its rounds had to do, and in
lockstep, where that is known, to the last round trip.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from itertools import dropwhile
from typing import Any

import psycopg
import pytest
from sqlalchemy import Column, Connection, Engine, Integer, MetaData, Table, create_engine, func, insert, select
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import AsyncJobContext, Job, JobContext, Registry, enqueue, enqueue_many, task
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.worker.claiming import demand as gates
from sa_jobqueue.worker.claiming.claimer import Claimer
from sa_jobqueue.worker.claiming.demand import Demand
from sa_jobqueue.worker.claiming.poison import jobs as overlooked
from sa_jobqueue.worker.claiming.shortage import ExpiredJobs
from sa_jobqueue.worker.claiming.workflows import MovingWorkflows
from sa_jobqueue.worker.maintenance.steps import ResumeWaiting
from sa_jobqueue.worker.running.writer import OutcomeWriter
from tests.benchmarks import __main__ as benchmarks
from tests.support import pooler
from tests.support.databases import SCHEMA, connect
from tests.support.lockstep import Step
from tests.support.waiting import wait_until
from tests.support.wire import Counts, Transaction, Wire, counting
from tests.support.working import drain, worker_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="psycopg has libpq's trace on Linux only")

JOBS, SLOTS = 3_000, 50
#: Enough for every job to be done at its first claim, without a renewal, on a machine however busy.
CALM = {"lease": 60.0, "hoard": 60.0, "poll": 1.0}

#: A round of the service: one statement that finishes what has ended and claims for what is free, or only finishes. What it
#: answers are the jobs it has claimed, and one row more. It is its own transaction; so is the claim where there is nothing
#: to finish, the one that looks for what claims have passed over, the one that opens a gate, and the two that look for expired
#: leases and for workflows that others have left, before a worker that drains leaves.
ROUND, CLAIM, BEHIND, GATE, LEASES, LEFT = ("SELECT",), ("UPDATE",), ("SELECT",), ("SELECT",), ("SELECT",), ("SELECT",)
KINDS = {
    "round": ROUND,
    "claim": CLAIM,
    "behind": BEHIND,
    "gate": GATE,
    "leases": LEASES,
    "left": LEFT,
    "waiting": LEFT,
}
#: A round with other outcomes than "done".
ROUND_OF_ALL, FINISH_OF_ALL = ("BEGIN", "SELECT", "UPDATE", "COMMIT"), ("BEGIN", "SELECT", "COMMIT")
#: The transaction of a handler that does one INSERT by `ctx.session`: on a thread, and the first of its pool, which asks
#: whether that may be; and on an event loop.
ON_THREAD, FIRST_ON_THREAD = ("BEGIN", "INSERT", "SELECT", "COMMIT"), ("BEGIN", "INSERT", "SELECT", "SELECT", "COMMIT")
ON_LOOP = ("BEGIN", "INSERT", "UPDATE", "COMMIT")
#: What maintenance says of its worker; it takes a connection for good that a handler may have had before.
ALIVE = ("BEGIN", "INSERT", "DELETE", "COMMIT")

#: What `python -m tests.benchmarks --small counts` prints per 100 jobs: round trips, commits, statements, rows written.
#: A batch of 100 is finished, and the next one claimed, by one round trip and one commit; the first claim is one more.
BENCHMARK = {
    "drain, async no-op": ("1.10", "1.10", "1.10", "200"),
    "drain, sync no-op on threads": ("1.10", "1.10", "1.10", "200"),
    "drain, async no-op, retain=0": ("1.10", "1.10", "1.10", "200"),
    "drain, sync handler, one INSERT by ctx.session": ("311", "110", "211", "300"),
    "session.add(enqueue()) + commit": ("300", "100", "100", "100"),
    "session.add_all of 1,000 jobs + commit": ("0.300", "0.100", "0.100", "100"),
    "enqueue_many of 1,000 jobs + commit": ("0.300", "0.100", "0.100", "100"),
}

notes = Table("round_trips_note", MetaData(), Column("n", Integer))


@pytest.fixture(autouse=True)
def libpq(url: str) -> None:
    if pooler.is_pooled(url):
        pytest.skip("behind a pooler, settings are made again in each transaction")


@pytest.fixture
def registry() -> Registry:
    registry = Registry()

    @task(registry=registry, name="kept")
    async def kept(n: int) -> None: ...

    @task(registry=registry, name="deleted", retain=0)
    async def deleted(n: int) -> None: ...

    @task(registry=registry, name="on_thread")
    def on_thread(n: int) -> None: ...

    @task(registry=registry, name="recorded", record=True)
    async def recorded(n: int) -> int:
        return n

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


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements that are sent by the clock do not come, however long a test takes: whether claims have overlooked a job is asked
    once a second."""
    monkeypatch.setattr(overlooked, "_FIRST_PAUSE", 3_600.0)


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the service may say, by the names in `KINDS`: a transaction for each round with something to do, one for each
    opening of a gate, and before it leaves one for each look: at what its claims have overlooked, at leases, at workflows, and at
    suspended jobs.
    """
    decided: list[str] = []
    take, wanted, make_round = OutcomeWriter.take, Demand.now, Claimer._round
    listen_for, are_there, lock_due = default_store.listen_for, ExpiredJobs._are_there, default_store.lock_due
    finds_more, put_back = MovingWorkflows.finds_more, ResumeWaiting.put_back
    seen: dict[str, Any] = {}

    def taking(self: OutcomeWriter, most: int) -> Any:
        seen["changes"] = take(self, most)
        return seen["changes"]

    def wanting(self: Demand) -> Any:
        seen["wanted"] = wanted(self)
        return seen["wanted"]

    def listening(*args: Any, **options: Any) -> None:
        seen["asides"].append("gate")
        listen_for(*args, **options)

    def looking(self: ExpiredJobs, connection: Connection) -> bool:
        seen["asides"].append("leases")
        return are_there(self, connection)

    def looking_for_left(self: MovingWorkflows, connection: Connection) -> bool:
        seen["asides"].append("left")
        return finds_more(self, connection)

    def looking_for_waiting(self: ResumeWaiting, connection: Connection) -> None:
        seen["asides"].append("waiting")
        put_back(self, connection)

    def looking_behind(*args: Any, **options: Any) -> Any:
        seen["asides"].append("behind")
        return lock_due(*args, **options)

    def making_round(self: Claimer, connection: Connection) -> bool:
        seen["asides"] = []
        busy = make_round(self, connection)
        if busy:
            decided.append("round" if seen["changes"] else "claim")
        decided.extend(seen["asides"])
        return busy

    monkeypatch.setattr(OutcomeWriter, "take", taking)
    monkeypatch.setattr(Demand, "now", wanting)
    monkeypatch.setattr(Claimer, "_round", making_round)
    monkeypatch.setattr(default_store, "listen_for", listening)
    monkeypatch.setattr(default_store, "lock_due", looking_behind)
    monkeypatch.setattr(ExpiredJobs, "_are_there", looking)
    monkeypatch.setattr(MovingWorkflows, "finds_more", looking_for_left)
    monkeypatch.setattr(ResumeWaiting, "put_back", looking_for_waiting)
    return decided


def fill(url: str, registry: Registry, name: str, jobs: int) -> None:
    """By an engine of its own, which is not listened to."""
    engine = create_engine(url)
    add(engine, registry, name, jobs)
    engine.dispose()


def add(engine: Engine, registry: Registry, name: str, jobs: int) -> None:
    found = registry.get(name)
    assert found is not None
    with Session(engine) as session:
        session.execute(enqueue_many([found.call(n=n) for n in range(jobs)]))
        session.commit()


def rounds(wire: Wire) -> list[Transaction]:
    """The service's transactions from its first claim on: before are those at its start, more where the pool has made its
    connection for something else.
    """
    (talk,) = wire.connections("claimed_at ?=")
    return list(dropwhile(lambda one: "UPDATE" not in one.kinds, talk.transactions))


@pytest.mark.parametrize("name", ["kept", "deleted", "on_thread"])
def test_finishing_and_claiming_a_batch_is_one_round_trip(
    engine: Engine, url: str, registry: Registry, wire: Wire, decided: list[str], name: str
) -> None:
    """One statement does both: nothing per job, and no other transaction in between."""
    fill(url, registry, name, JOBS)

    drain(engine, registry, queues={"default": SLOTS}, buffer=0, **CALM)  # many claims, none of them large

    made = rounds(wire)
    assert [one.kinds for one in made] == [KINDS[name] for name in decided]
    assert decided[0] == "claim", "the first one has nothing to finish"
    assert {one.round_trips for one in made} == {1}
    alone = [one.rows("UPDATE") for one, name in zip(made, decided, strict=True) if name == "claim"]
    beside = [one.rows("SELECT") - 1 for one, name in zip(made, decided, strict=True) if name == "round"]
    assert sum(alone) + sum(beside) == JOBS
    assert sum(map(bool, beside)) >= 0.3 * len(made) > 10, Counter(decided)


def test_jobs_are_claimed_and_finished_in_batches(
    engine: Engine, url: str, registry: Registry, wire: Wire, decided: list[str]
) -> None:
    """Each round of the service is one commit, its last ones included, and rounds are far fewer than jobs."""
    fill(url, registry, "kept", JOBS)

    drain(engine, registry, queues={"default": SLOTS}, **CALM)

    made = rounds(wire)
    assert [one.kinds for one in made] == [KINDS[name] for name in decided]
    assert {one.round_trips for one in made} == {1}
    assert len(made) <= JOBS / SLOTS * 4


@pytest.mark.parametrize("name", ["kept", "deleted", "on_thread", "recorded"])
async def test_in_lockstep_each_batch_takes_exactly_one_round_trip_and_one_commit(
    engine: Engine, registry: Registry, wire: Wire, name: str
) -> None:
    """The first claim is alone, and so is the last completion."""
    add(engine, registry, name, 10 * SLOTS)
    step = stepping(engine, registry, max_jobs=10 * SLOTS)

    with counting(wire, schema=SCHEMA) as counted:
        await step.drain()

    step.close()
    kinds = [(one.kinds, one.round_trips) for one in said(wire)]
    assert kinds == [(CLAIM, 1), *[(ROUND, 1)] * 10]
    assert counted.result == Counts(round_trips=11, commits=11, statements=11, rows=2 * 10 * SLOTS)


@pytest.mark.parametrize(
    ("names", "round_trips", "statements"),
    [
        (["kept"], 1, 1),
        (["deleted"], 1, 1),
        (["recorded"], 1, 1),
        (["kept", "recorded"], 1, 1),
        (["kept", "deleted"], 4, 2),
        (["kept", "deleted", "recorded"], 4, 2),
    ],
)
async def test_each_kind_of_outcome_in_a_batch_is_one_statement(
    engine: Engine, registry: Registry, wire: Wire, names: list[str], round_trips: int, statements: int
) -> None:
    """However many of it there are: completed and kept, with a result or not, completed and deleted, all others. One alone needs no BEGIN."""
    for name in names:
        add(engine, registry, name, 10)
    step = stepping(engine, registry, max_jobs=10 * len(names))
    step.round()
    await step.run()

    with counting(wire, schema=SCHEMA) as counted:
        step.round()

    step.close()
    assert counted.result == Counts(round_trips, 1, statements, rows=10 * len(names))


async def test_a_look_at_an_empty_queue_is_one_round_trip(
    engine: Engine, registry: Registry, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one asks to be woken, which is another, and looks once more."""
    monkeypatch.setattr(gates, "_SECONDS", 60.0)  # not to be renewed, however long the test takes
    step = stepping(engine, registry, listening=True)
    looks = []

    for _ in range(2):
        with counting(wire, schema=SCHEMA) as counted:
            step.round()
        looks.append(([one.kinds for one in said(wire)], counted.result))

    step.close()
    assert looks == [
        ([CLAIM, GATE], Counts(round_trips=2, commits=2, statements=2, rows=0)),
        ([CLAIM], Counts(round_trips=1, commits=1, statements=1, rows=0)),
    ]


async def test_what_claims_have_passed_over_is_asked_in_one_round_trip_and_not_each_time(
    engine: Engine, registry: Registry, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they come back short: once in a while, though new jobs are said to be there each time."""
    step = stepping(engine, registry)
    looks = []

    for pause in (0.0, 3_600.0):
        monkeypatch.setattr(overlooked, "_FIRST_PAUSE", pause)
        step.tell()
        with counting(wire, schema=SCHEMA) as counted:
            step.round()
        looks.append(([one.kinds for one in said(wire)], counted.result))

    step.close()
    assert looks == [
        ([CLAIM, BEHIND], Counts(round_trips=2, commits=2, statements=2, rows=0)),
        ([CLAIM], Counts(round_trips=1, commits=1, statements=1, rows=0)),
    ]


async def test_in_lockstep_a_handlers_session_leaves_the_service_only_its_claims(
    engine: Engine, registry: Registry, wire: Wire
) -> None:
    """Three round trips and a commit for each job, and one more; for each batch a claim, and nothing to finish."""
    notes.metadata.create_all(engine)
    add(engine, registry, "write_on_thread", 12)
    step = stepping(engine, registry, queues={"default": 3}, max_jobs=12)

    with counting(wire, schema=SCHEMA) as counted:
        await step.drain()

    step.close()
    assert Counter(one.kinds for one in said(wire)) == {CLAIM: 4, FIRST_ON_THREAD: 1, ON_THREAD: 11}
    assert counted.result == Counts(round_trips=4 + 3 * 12 + 1, commits=4 + 12, statements=4 + 2 * 12 + 1, rows=2 * 12)


@pytest.mark.parametrize("jobs", [1, 1_000])
def test_enqueueing_is_three_round_trips_and_one_commit(
    engine: Engine, registry: Registry, wire: Wire, jobs: int
) -> None:
    """BEGIN, one INSERT for all, COMMIT: by `session.add_all` of jobs as by `enqueue_many`."""
    kept = registry.get("kept")
    assert kept is not None
    engine.connect().close()

    with counting(wire, schema=SCHEMA) as added, Session(engine) as session:
        session.add_all([enqueue(kept, n) for n in range(jobs)])
        session.commit()
    with counting(wire, schema=SCHEMA) as many:
        add(engine, registry, "kept", jobs)

    assert added.result == many.result == Counts(round_trips=3, commits=1, statements=1, rows=jobs)


def test_the_benchmark_prints_the_counts(
    database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are exact: a change that lowers or raises one must say so here."""
    monkeypatch.setattr("sys.argv", ["benchmarks", "--small", "--database-url", database_url, "counts"])

    benchmarks.main()

    printed = [line for line in capsys.readouterr().out.splitlines() if line.endswith("; target none")]
    assert printed == [
        f"{work}: {name}: {count} per 100 jobs; target none"
        for work, counts in BENCHMARK.items()
        for name, count in zip(("round trips", "commits", "statements", "rows written"), counts, strict=True)
    ]


def stepping(engine: Engine, registry: Registry, *, listening: bool = False, **options: Any) -> Step:
    """A worker in lockstep, connected, that claims nothing ahead."""
    worker = worker_for(engine, registry, **{"queues": {"default": SLOTS}, "buffer": 0, **CALM, **options})
    step = Step(worker, listening=listening)
    step.connect()
    return step


def said(wire: Wire) -> list[Transaction]:
    """All that was said since `counting` began."""
    return [one for talk in wire.connections() for one in talk.transactions]


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


def test_a_handlers_session_costs_a_job_three_round_trips_on_a_thread(
    database_url: str, engine: Engine, registry: Registry, wire: Wire
) -> None:
    """BEGIN, its INSERT, the fenced completion with the COMMIT; the service has nothing to finish."""
    notes.metadata.create_all(engine)
    fill(database_url, registry, "write_on_thread", 60)

    drain(engine, registry, queues={"default": 3}, **CALM)

    engine.dispose()
    assert Counter(handled(wire)) == {(FIRST_ON_THREAD, 4): 1, (ON_THREAD, 3): 59}
    with Session(engine) as session:
        assert session.scalar(select(func.count()).where(Job.is_finished)) == 60


async def test_a_handlers_async_session_costs_a_job_four_round_trips(
    database_url: str, engine: Engine, registry: Registry
) -> None:
    """Its completion is a message of its own."""
    notes.metadata.create_all(engine)
    fill(database_url, registry, "write", 60)
    async_engine = create_async_engine(database_url)
    wire = Wire(async_engine.sync_engine)

    worker = worker_for(engine, registry, queues={"default": 3}, async_engine=async_engine, **CALM)
    await worker.serve(until_idle=True)

    await async_engine.dispose()
    assert handled(wire) == [(ON_LOOP, 4)] * 60
    wire.close()


def handled(wire: Wire) -> list[tuple[tuple[str, ...], int]]:
    """The transactions of handlers, with their round trips."""
    return [
        (one.kinds, one.round_trips)
        for talk in wire.connections("INTO round_trips_note")
        for one in talk.transactions
        if "INSERT" in one.kinds and one.kinds != ALIVE
    ]

"""Workers under limits: what is free is used at once, nothing is started above a limit, and the rest of a worker works as ever."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from psycopg import sql
from sqlalchemy import Engine, func, insert, select, text, update

from sa_jobqueue import (
    AsyncJobContext,
    Job,
    JobContext,
    JobStatus,
    Rate,
    Registry,
    Retry,
    RetryPolicy,
    Snooze,
    Unique,
    Worker,
    enqueue,
    statements,
    task,
)
from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.models import LimitState
from sa_jobqueue.sql.admin import Locked
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import release_jobs
from sa_jobqueue.worker.claiming import demand as polling
from sa_jobqueue.worker.claiming.intake import Intake
from sa_jobqueue.worker.claiming.limited import LimitedQueues
from tests.support import heavy, pooler
from tests.support.databases import connect
from tests.support.factory import TABLE, make_job, make_jobs
from tests.support.limits import key, limit, no_limit, rate
from tests.support.nightly import nightly
from tests.support.waiting import wait_until
from tests.support.working import (
    add,
    assert_nothing_leaked,
    drain,
    job_of,
    lapse,
    long_healthy,
    rescue_now,
    services_of,
    statuses,
    working,
)

#: Seconds between two polls: longer than any test waits, so that what happens sooner was not polled.
LONG = 60.0


class Gate:
    """Handlers of "held" begin, and end when they are let go; `most`: how many ran at once, at most, by key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, threading.Event] = defaultdict(threading.Event)
        self.all_open = threading.Event()
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.begun: list[int] = []

    def run(self, n: int, name: str) -> None:
        with self._lock:
            self.begun.append(n)
            for one in (name, ""):
                self.running[one] += 1
                self.most[one] = max(self.most[one], self.running[one])
        try:
            while not (self._open[n].is_set() or self.all_open.is_set()):
                time.sleep(0.005)
        finally:
            with self._lock:
                for one in (name, ""):
                    self.running[one] -= 1

    def let_go(self, n: int) -> None:
        self._open[n].set()


@pytest.fixture
def gate(registry: Registry) -> Iterator[Gate]:
    """What the task "held" does."""
    gate = Gate()

    @task(registry=registry, name="held")
    def held(ctx: JobContext, n: int, name: str = "") -> None:
        gate.run(n, name)

    @task(registry=registry, name="quick")
    async def quick(ctx: AsyncJobContext, n: int, name: str = "") -> None:
        gate.begun.append(n)

    yield gate
    gate.all_open.set()


def fill(engine: Engine, numbers: range, name: str | None = None, **columns: Any) -> list[int]:
    """Jobs of "held" with this key; their ids."""
    with engine.begin() as connection:
        rows = [
            {"task": "held", "args": {"n": n, "name": name or ""}, "concurrency_key": name, **columns} for n in numbers
        ]
        return list(connection.scalars(insert(TABLE).returning(TABLE.c.id, sort_by_parameter_order=True), rows))


def set_limit(engine: Engine, *names: str, **columns: Any) -> None:
    with engine.begin() as connection:
        limit(connection, *names, **columns)


@contextmanager
def two(url: str, registry: Registry, **options: Any) -> Iterator[tuple[Worker, Worker]]:
    """Two workers that poll as good as never."""
    options = {"poll": LONG, "queues": {"default": 8}, **options}
    with working(url, registry, **options) as one, working(url, registry, **options) as other:
        yield one, other


def limit_gate_is_open(url: str) -> bool:
    """Whether a worker has asked to be told of a permit."""
    with connect(url) as connection:
        found = connection.execute(
            "SELECT pg_sequence_last_value('sa_jobqueue.gate_limit') / 10000000 > extract(epoch FROM clock_timestamp())"
        ).fetchone()
    return found == (True,)


@pytest.fixture
def never_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that was found empty is not polled again: what starts was told, or was waited for."""
    monkeypatch.setattr(polling, "_FIRST_WAIT", 3_600.0)


def rest(*workers: Worker) -> bool:
    """Whether these have looked at the queue, have found nothing, and wait to be told."""
    soon = time.monotonic() + 600.0
    return all(services_of(one).claimer._demand.timers["default"].at > soon for one in workers)


def told(url: str) -> None:
    if pooler.is_pooled(url):
        pytest.skip("behind a pooler nothing is told")


# ---- at once


@pytest.mark.parametrize("owner", ["queue", "task", "key", "key of a task"])
@pytest.mark.usefixtures("never_polled")
def test_a_permit_that_is_free_again_is_used_at_once(
    engine: Engine, url: str, registry: Registry, gate: Gate, owner: str
) -> None:
    """By whichever worker: none polls."""
    told(url)
    columns = {"key_running" if owner.startswith("key") else "running": 1}
    by_task = owner.endswith("task")
    set_limit(engine, "held" if by_task else "default", owner="task" if by_task else "queue", **columns)
    with two(url, registry) as workers:
        fill(engine, range(3), "a")
        for n in range(3):
            wait_until(lambda n=n: len(gate.begun) == n + 1)  # type: ignore[misc]
            wait_until(lambda: rest(*workers))
            gate.let_go(gate.begun[-1])
        wait_until(lambda: set(statuses(engine)) == {JobStatus.COMPLETED})
    assert gate.begun == list(range(3))
    assert gate.most["a"] == 1


@pytest.mark.usefixtures("never_polled")
def test_a_raised_limit_a_resumed_queue_and_one_without_limits_start_what_waits(
    engine: Engine, url: str, registry: Registry, gate: Gate
) -> None:
    """At once, on workers that are idle."""
    told(url)
    set_limit(engine, running=1)
    with two(url, registry) as workers:
        fill(engine, range(4))
        wait_until(lambda: len(gate.begun) == 1)
        wait_until(lambda: rest(*workers))
        set_limit(engine, running=3)
        wait_until(lambda: len(gate.begun) == 3)
        set_limit(engine, paused_at=text("now()"), running=10)
        time.sleep(0.2)
        fill(engine, range(4, 6))
        time.sleep(0.2)
        assert len(gate.begun) == 3
        wait_until(lambda: rest(*workers))
        set_limit(engine, paused_at=None)
        wait_until(lambda: len(gate.begun) == 6)
        set_limit(engine, running=1)
        fill(engine, range(6, 20))
        time.sleep(0.2)
        assert len(gate.begun) == 6
        with engine.begin() as connection:
            no_limit(connection)
        wait_until(lambda: len(gate.begun) == 16)  # two workers of eight slots
        gate.all_open.set()
        wait_until(lambda: set(statuses(engine)) == {JobStatus.COMPLETED})


@pytest.mark.usefixtures("never_polled")
def test_a_resumed_key_starts_at_once(engine: Engine, url: str, registry: Registry, gate: Gate) -> None:
    """Where the queue has no limits at all."""
    told(url)
    with engine.begin() as connection:
        key(connection, "a", paused_at=text("now()"))
    gate.all_open.set()
    with two(url, registry):
        fill(engine, range(2), "a")
        fill(engine, range(2, 4), "b")
        wait_until(lambda: len(gate.begun) == 2)
        time.sleep(0.2)
        with engine.begin() as connection:
            key(connection, "a", paused_at=None)
        wait_until(lambda: sorted(gate.begun) == [0, 1, 2, 3])


@pytest.mark.parametrize("locked", ["wait", "skip"])
@pytest.mark.usefixtures("never_polled")
def test_a_permit_of_a_job_that_an_operator_releases_is_used_at_once(
    engine: Engine, url: str, registry: Registry, gate: Gate, locked: Locked
) -> None:
    """Nobody else would tell: the worker that held the job does not answer."""
    told(url)
    set_limit(engine, running=1)
    with engine.begin() as connection:
        held = make_job(connection, "running", lease_expires_at=timedelta(hours=1))
    gate.all_open.set()
    with working(url, registry, poll=LONG, queues={"default": 2}) as worker:
        fill(engine, range(1))
        wait_until(lambda: limit_gate_is_open(url) and rest(worker))
        with engine.begin() as connection:
            released = connection.execute(release_jobs(Job.id == held, delay=3_600, locked=locked))
            assert [row[0] for row in released] == [held]
        wait_until(lambda: gate.begun == [0])


def test_nobody_is_told_of_a_permit_where_no_worker_waits(engine: Engine, url: str) -> None:
    """The statement reads a cell, and writes none."""
    told(url)
    with engine.begin() as connection, connect(url) as listener:
        jobs = make_jobs(connection, 3, "running")
        channel = default_store.channel(connection)
        listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        connection.execute(release_jobs(Job.id.in_(jobs)))
        connection.execute(func.pg_notify(channel, "the end").select())
        connection.commit()
        heard = [one.payload for one in listener.notifies(timeout=30, stop_after=1)]
    assert heard == ["the end"]


@pytest.mark.usefixtures("never_polled")
def test_a_worker_that_leaves_tells_of_each_permit_that_it_frees(
    engine: Engine, url: str, registry: Registry, gate: Gate
) -> None:
    """While others of its jobs go on."""
    told(url)
    set_limit(engine, running=2)
    options: dict[str, Any] = {"poll": LONG, "queues": {"default": 2}, "grace": 30.0}
    with working(url, registry, **options) as first:
        fill(engine, range(2))
        wait_until(lambda: len(gate.begun) == 2)
        with working(url, registry, **options) as second:
            fill(engine, range(2, 4))
            time.sleep(0.3)
            assert len(gate.begun) == 2
            wait_until(lambda: rest(second))
            first.stop()
            gate.let_go(0)
            wait_until(lambda: len(gate.begun) == 3)
            gate.all_open.set()
            wait_until(lambda: set(statuses(engine)) == {JobStatus.COMPLETED})


def test_workers_tell_each_other_where_the_application_seeds_random(
    url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker does not tell itself of permits; so two must never take each other for themselves."""
    make = LimitedQueues.__init__

    def seeded(self: LimitedQueues, *args: Any, **options: Any) -> None:
        random.seed(1)
        make(self, *args, **options)

    monkeypatch.setattr(LimitedQueues, "__init__", seeded)
    with two(url, registry) as workers:
        assert len({services_of(worker).claimer._limited._opener for worker in workers}) == 2


@pytest.mark.usefixtures("never_polled")
@pytest.mark.parametrize("why", ["it leaves", "it does not know the task"])
def test_a_permit_of_a_job_that_goes_back_at_once_is_told(
    engine: Engine, url: str, registry: Registry, gate: Gate, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claimed job never got a slot of the first worker."""
    told(url)
    set_limit(engine, running=1)
    start, leaves = Intake._start, why == "it leaves"
    with working(url, registry if leaves else Registry(), poll=LONG, queues={"default": 2}) as first:
        services = services_of(first)

        def when_others_wait(self: Intake, jobs: list[ClaimedJob], claimed_at: float) -> None:
            if self is services.claimer._intake:
                wait_until(lambda: len(others) == 1 and rest(*others))
                if leaves:
                    first.stop()
                    wait_until(lambda: services.all_slots["default"]._closed)
            start(self, jobs, claimed_at)

        others: list[Worker] = []
        monkeypatch.setattr(Intake, "_start", when_others_wait)
        wait_until(lambda: rest(first))
        fill(engine, range(2))
        wait_until(lambda: JobStatus.RUNNING in statuses(engine))
        with working(url, registry, poll=LONG, queues={"default": 2}) as second:
            others.append(second)
            wait_until(lambda: gate.begun)
            gate.all_open.set()


@pytest.mark.usefixtures("never_polled")
def test_what_a_rate_keeps_waiting_starts_when_it_may(engine: Engine, url: str, registry: Registry, gate: Gate) -> None:
    """No poll is needed: the worker knows when."""
    set_limit(engine, **rate(10, 1.0, 1))
    gate.all_open.set()
    with working(url, registry, poll=LONG):
        fill(engine, range(6))
        wait_until(lambda: len(gate.begun) == 6)
    with engine.connect() as connection:
        at = connection.scalars(select(func.date_part("epoch", TABLE.c.claimed_at)).order_by(TABLE.c.claimed_at)).all()
    assert all(later - earlier > 0.0999 for earlier, later in pairwise(at))


def test_a_job_of_a_key_for_later_starts_when_it_is_due(
    engine: Engine, url: str, registry: Registry, gate: Gate
) -> None:
    """Also a retry, and a snooze; of a key, and of a task that is limited."""
    runs: Counter[str] = Counter()

    @task(registry=registry, name="again")
    async def again(ctx: AsyncJobContext, how: str) -> Retry | Snooze | None:
        runs[how] += 1
        if runs[how] > 1 or how == "later":
            return None
        return Retry(after=0.3) if how == "retry" else Snooze(0.3)

    set_limit(engine, key_running=1)
    with working(url, registry, poll=LONG), engine.begin() as connection:
        for how in ("retry", "snooze", "later"):
            later = text("now() + interval '0.5 s'") if how == "later" else text("now()")
            connection.execute(
                insert(TABLE).values(task="again", args={"how": how}, concurrency_key=how, run_at=func.now() if how != "later" else func.now() + timedelta(seconds=0.5))
            )  # fmt: skip
            assert later is not None
        connection.commit()
        wait_until(lambda: runs == {"retry": 2, "snooze": 2, "later": 1})
        wait_until(lambda: set(statuses(engine)) == {JobStatus.COMPLETED})


# ---- to the end


def test_a_worker_works_all_off_under_limits_and_leaves(
    engine: Engine, url: str, registry: Registry, gate: Gate
) -> None:
    """until_idle, with limits of all kinds, a paused key beside, and jobs for much later."""
    gate.all_open.set()
    set_limit(engine, running=3, key_running=1, **rate(200, 1.0, 5))
    set_limit(engine, "held", owner="task", key_running=1)
    with engine.begin() as connection:
        key(connection, "paused", paused_at=text("now()"))
    for name in ("a", "b", None):
        fill(engine, range(15), name)
    (paused,) = fill(engine, range(100, 101), "paused")
    (late,) = fill(engine, range(101, 102), "late", run_at=timedelta(hours=1))

    drain(url, registry, queues={"default": 8})

    left = {paused, late}
    assert set(statuses(engine, TABLE.c.id.not_in(left))) == {JobStatus.COMPLETED}
    assert set(statuses(engine, TABLE.c.id.in_(left))) == {JobStatus.QUEUED}
    assert gate.most["a"] <= 1
    assert gate.most["b"] <= 1
    assert gate.most[""] <= 3


def test_a_limited_queue_and_a_plain_one_share_a_worker(
    engine: Engine, url: str, registry: Registry, gate: Gate
) -> None:
    """The limited one does not hold up the other, which knows no limit."""
    set_limit(engine, running=1)
    with working(url, registry, poll=LONG, queues={"default": 4, "other": 4}):
        fill(engine, range(3), "a")
        fill(engine, range(10, 14), queue="other")
        wait_until(lambda: len(gate.begun) == 5)
        for n in range(10, 14):
            gate.let_go(n)
        fill(engine, range(14, 18), queue="other")
        wait_until(lambda: len(gate.begun) == 9)
        gate.all_open.set()
        wait_until(lambda: set(statuses(engine)) == {JobStatus.COMPLETED})
    assert gate.most["a"] == 1


def test_limits_that_change_all_the_time_do_not_disturb_a_worker(
    engine: Engine, url: str, registry: Registry, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on with the connections that it has, and says nothing."""
    gate.all_open.set()
    with working(url, registry, queues={"default": 4, "other": 4}):
        for n in range(30):
            fill(engine, range(5), "a" if n % 3 else None, queue="other" if n % 2 else "default")
            with engine.begin() as connection:
                if n % 5 == 4:
                    no_limit(connection, "other")
                else:
                    limit(connection, "other", running=n % 4 + 1)
        wait_until(lambda: set(statuses(engine)) == {JobStatus.COMPLETED})
    assert [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


# ---- jobs that cannot be claimed


def refuse(engine: Engine, when: str) -> Callable[[], None]:
    """A trigger of the application's; what comes back drops it."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION odd() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this'; END $$"
        )
        connection.exec_driver_sql(
            f"CREATE TRIGGER odd BEFORE UPDATE ON sa_jobqueue.job FOR EACH ROW WHEN (new.status = 'running' AND {when}) EXECUTE FUNCTION odd()"
        )

    def drop() -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP TRIGGER odd ON sa_jobqueue.job")

    return drop


def test_a_job_that_is_refused_holds_up_no_others_of_a_limited_queue(
    engine: Engine, url: str, registry: Registry, gate: Gate
) -> None:
    """They are claimed by bisection, and never above the limit; neither is the job itself, when it can be claimed at last."""
    gate.all_open.set()
    bad = fill(engine, range(3), "a")
    fill(engine, range(3, 40), "a")
    set_limit(engine, running=2)
    mend = refuse(engine, f"new.id <= {bad[-1]}")
    with working(url, registry, queues={"default": 8}):
        wait_until(lambda: len(gate.begun) == 37)
        gate.all_open.clear()
        fill(engine, range(40, 44), "a")
        wait_until(lambda: len(gate.begun) == 39)
        mend()
        time.sleep(1.5)
        assert gate.running[""] == 2
        gate.all_open.set()
        wait_until(lambda: set(statuses(engine)) == {JobStatus.COMPLETED})
    assert gate.most[""] <= 2


def test_limits_may_change_while_a_job_is_refused(
    engine: Engine, url: str, registry: Registry, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that claims by bisection reads them, too."""
    gate.all_open.set()
    bad = fill(engine, range(1), "a")
    set_limit(engine, running=2)
    refuse(engine, f"new.id <= {bad[-1]}")
    with working(url, registry, queues={"default": 8}):
        for n in range(20):
            fill(engine, range(100 * n, 100 * n + 5), "a")
            set_limit(engine, running=n % 3 + 1)
            time.sleep(0.05)
        wait_until(lambda: len(statuses(engine, TABLE.c.status == "completed")) == 100)
    assert {
        record.getMessage()
        for record in caplog.records
        if "cannot be claimed" not in record.getMessage() and record.levelname != "INFO"
    } == set()


# ---- what else a worker does


def test_handlers_with_sessions_free_their_permits(engine: Engine, url: str, registry: Registry) -> None:
    """With `ctx.session`, of both kinds, with results, and where nothing of a job is kept."""
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def begin(name: str) -> None:
        running[name] += 1
        most[name] = max(most[name], running[name])

    @task(registry=registry, record=True)
    def block(ctx: JobContext, name: str) -> int:
        begin(name)
        ctx.session.execute(text("SELECT 1"))
        time.sleep(0.01)
        running[name] -= 1
        return 7

    @task(registry=registry, retain=0)
    async def wait(ctx: AsyncJobContext, name: str) -> None:
        begin(name)
        await ctx.session.execute(text("SELECT 1"))
        await asyncio.sleep(0.01)
        running[name] -= 1

    set_limit(engine, key_running=1)
    with working(url, registry, poll=LONG, queues={"default": 8}) as worker:
        jobs = []
        for n in range(24):
            name = f"k{n % 3}"
            job = enqueue((block if n % 2 else wait).options(), name)
            job.concurrency_key = name
            jobs.append(job)
        add(engine, *jobs)
        wait_until(lambda: statuses(engine) == [JobStatus.COMPLETED] * 12)
        assert_nothing_leaked(engine, worker)
    assert set(most.values()) == {1}
    with engine.connect() as connection:
        assert set(connection.scalars(select(TABLE.c.result))) == {7}


def test_unique_jobs_have_keys_beside(engine: Engine, url: str, registry: Registry) -> None:
    """The key of a unique job that is free when it starts is free when a limited claim starts it."""
    runs: list[str] = []

    @task(registry=registry)
    async def sync(name: str) -> None:
        runs.append(name)

    set_limit(engine, key_running=1)

    def job() -> Job:
        made = enqueue(sync.options(unique=Unique("u", scope="queued")), "a")
        made.concurrency_key = "a"
        return made

    with working(url, registry, poll=LONG):
        for _ in range(4):
            add(engine, job())
            wait_until(lambda: JobStatus.QUEUED not in statuses(engine) and JobStatus.RUNNING not in statuses(engine))
    assert runs == ["a"] * 4


def test_jobs_in_child_processes_have_limits(engine: Engine, url: str) -> None:
    """The executor is none of the limits' business."""
    set_limit(engine, key_running=1)
    jobs = [enqueue(heavy.add, n, 1) for n in range(6)]
    for n, job in enumerate(jobs):
        job.concurrency_key = f"k{n % 2}"
    add(engine, *jobs)
    drain(url, heavy.registry, queues={"default": 4})
    with engine.connect() as connection:
        of_job = TABLE.c.concurrency_key, TABLE.c.claimed_at, TABLE.c.finished_at, TABLE.c.result
        found = connection.execute(select(*of_job).order_by(TABLE.c.claimed_at)).all()
    assert len([row.result for row in found if row.result is not None]) == 6
    for name in ("k0", "k1"):
        of_key = [row for row in found if row.concurrency_key == name]
        assert all(earlier.finished_at <= later.claimed_at for earlier, later in pairwise(of_key))


@pytest.mark.parametrize("in_child", [False, *nightly(True)])
def test_what_a_handler_has_used_takes_the_place_of_its_estimate(engine: Engine, url: str, in_child: bool) -> None:
    """A job that was to take 900 of 1,000 tokens has used 100: then a second one need not wait."""
    registry = heavy.registry if in_child else Registry()
    asks: Any = heavy.uses if in_child else task(registry=registry, name="asks")(_uses)
    with engine.begin() as connection:
        tokens = Rate(1_000, per=1_000_000, burst=1_000, unit="tokens")
        connection.execute(statements.set_limit("default", rates=[tokens]))

    for _ in range(2):
        add(engine, enqueue(asks.options(units={"tokens": 900}), 100))
        drain(url, registry, queues={"default": 4})

    assert statuses(engine) == [JobStatus.COMPLETED] * 2
    with engine.connect() as connection:
        assert connection.scalar(select(LimitState.owed)) == pytest.approx(200, abs=1)


def _uses(ctx: JobContext, tokens: int) -> None:
    ctx.used(tokens=tokens)


def test_a_retry_pays_its_estimate_again(engine: Engine, url: str, registry: Registry) -> None:
    """Next to what the failed attempt has used: the provider has counted both."""

    @task(registry=registry, name="asks", retry=RetryPolicy(base=0))
    def asks(ctx: JobContext) -> None:
        if ctx.attempt == 1:
            ctx.used(tokens=200)
            wait_until(lambda: owed() == pytest.approx(200, abs=1))  # the next claim would drop the report
            raise ConnectionError("the answer was lost")

    def owed() -> float | None:
        with engine.connect() as connection:
            return connection.scalar(select(LimitState.owed))

    with engine.begin() as connection:
        tokens = Rate(1_000, per=1_000_000, burst=1_000, unit="tokens")
        connection.execute(statements.set_limit("default", rates=[tokens]))
    add(engine, enqueue(asks.options(units={"tokens": 300})))
    drain(url, registry, queues={"default": 1})

    assert statuses(engine) == [JobStatus.COMPLETED]
    assert owed() == pytest.approx(500, abs=1)


def test_jobs_of_a_dead_worker_keep_their_permits_until_they_are_rescued(
    engine: Engine, url: str, registry: Registry, gate: Gate
) -> None:
    """And then come first or next, by their order."""
    gate.all_open.set()
    set_limit(engine, running=1, key_running=1)
    (dead,) = fill(engine, range(1), "a")
    fill(engine, range(1, 4), "a")
    with engine.begin() as connection:
        connection.execute(
            update(TABLE).where(TABLE.c.id == dead).values(status="running", claim_token=5, attempt=1, claims=1, worker="gone", claimed_at=func.now(), lease_expires_at=func.now() + timedelta(hours=1))
        )  # fmt: skip
    long_healthy(engine)
    with working(url, registry) as worker:
        claims = services_of(worker).claimer._demand.timers["default"]
        wait_until(lambda: claims.at > 0 and claims._wait > polling._FIRST_WAIT)  # it has looked, and found nothing
        assert gate.begun == []
        lapse(engine, dead)
        rescue_now(worker)
        wait_until(lambda: set(statuses(engine)) == {JobStatus.COMPLETED})
    assert job_of(engine, dead).rescues == 1
    assert gate.most["a"] == 1

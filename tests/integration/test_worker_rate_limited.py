"""Handlers that are told "429 Too Many Requests": the key waits, or the queue; and workers that wait for a permit of another's job."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import Engine, Executable, func, insert, select, text, update

from sa_jobqueue import AsyncJobContext, Job, JobContext, JobStatus, KeyLimits, RateLimited, Registry, enqueue, task
from sa_jobqueue.models import LimitRow, LimitState
from sa_jobqueue.statements import remove_limit, resume, set_limit
from sa_jobqueue.worker.claiming.claimer import Claimer, Exchange
from tests.support import heavy
from tests.support.factory import make_job
from tests.support.nightly import crossed, nightly
from tests.support.waiting import wait_until
from tests.support.working import (
    add,
    add_one,
    drain,
    finished,
    job_of,
    lapse,
    long_healthy,
    services_of,
    statuses,
    working,
)

STATE, LIMIT = LimitState.__table__, LimitRow.__table__
#: Seconds between two polls of a worker that is not to find anything by itself.
RARELY = 3_600.0


def states(engine: Engine) -> dict[tuple[str, str], timedelta]:
    """By queue and key, how long they have to wait from now on."""
    with engine.connect() as connection:
        found = connection.execute(
            select(STATE.c.name, STATE.c.key, STATE.c.blocked_until - func.clock_timestamp()).where(
                STATE.c.blocked_until.is_not(None)
            )
        )
        return {(name, key): left for name, key, left in found}


def limits(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(LIMIT.c.name)))


@pytest.fixture
def notes(engine: Engine) -> Engine:
    """The application's own table."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE note (said text)"))
    return engine


NOTE = text("INSERT INTO note VALUES ('a')")


def written(engine: Engine) -> int:
    with engine.connect() as connection:
        return len(connection.scalars(text("SELECT said FROM note")).all())


# ---- what a handler says


@pytest.mark.parametrize(
    ("key", "with_session", "way", "kind"),
    crossed([None, "42"], [False, True], ["returned", "raised"], ["sync", "async"]),
)
def test_it_goes_back_and_the_others_wait(
    notes: Engine, url: str, registry: Registry, kind: str, way: str, with_session: bool, key: str | None
) -> None:
    """Whichever kind of handler: no attempt is spent; a returned outcome commits what it wrote, and a raised one does not."""

    @task(registry=registry, name="sync")
    def handler(ctx: JobContext) -> RateLimited:
        if with_session:
            ctx.session.execute(NOTE)
        if way == "raised":
            raise ctx.rate_limited(3_600)
        return ctx.rate_limited(retry_after=timedelta(hours=1))

    @task(registry=registry, name="async")
    async def async_handler(ctx: AsyncJobContext) -> RateLimited:
        if with_session:
            await ctx.session.execute(NOTE)
        if way == "raised":
            raise ctx.rate_limited(3_600)
        return ctx.rate_limited(retry_after=timedelta(hours=1))

    called = handler if kind == "sync" else async_handler
    id = add_one(notes, enqueue(called.options(key=key) if key else called))
    worker = drain(url, registry)

    job = job_of(notes, id)
    assert (job.status, job.attempt, job.errors) == (JobStatus.QUEUED, 0, [])
    assert timedelta(minutes=59) < job.run_at - job.created_at < timedelta(minutes=61)
    ((of, left),) = states(notes).items()
    assert of == ("default", key or "")
    assert timedelta(minutes=59) < left <= timedelta(minutes=60)
    assert limits(notes) == ([] if key else ["default"])
    assert written(notes) == (with_session and way == "returned")
    assert worker.counts == {"snoozed": 1}


@pytest.mark.parametrize(("raised", "with_session"), crossed([False, True], [False, True]))
def test_a_child_process_says_it_too(
    engine: Engine, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, raised: bool, with_session: bool
) -> None:
    """It commits by itself, or its worker writes what it says."""
    monkeypatch.setenv("HEAVY_FOLDER", str(tmp_path))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effect (job_id bigint, note text, pid integer)"))
    id = add_one(engine, enqueue(heavy.outcome, "rate limited", raised, with_session))
    worker = drain(url, heavy.registry, queues={"default": 1})
    job = job_of(engine, id)
    assert (job.status, job.attempt) == (JobStatus.QUEUED, 0)
    assert list(states(engine)) == [("default", "")]
    assert limits(engine) == ["default"]
    assert worker.counts == {"snoozed": 1}


@pytest.mark.parametrize("wrong", [-1, *nightly("30", None, float("nan"))])
def test_a_wrong_time_is_a_failed_attempt(engine: Engine, url: str, registry: Registry, wrong: Any) -> None:
    """Its error names the argument."""

    @task(registry=registry, max_attempts=1)
    def handler(ctx: JobContext) -> RateLimited:
        return ctx.rate_limited(wrong)

    id = add_one(engine, enqueue(handler))
    drain(url, registry)
    job = job_of(engine, id)
    assert job.status == JobStatus.FAILED
    assert job.errors[0]["message"].startswith("RateLimited(retry_after=...) must be ")
    assert states(engine) == {}


# ---- who waits


class Partner:
    """Another side that says "too many requests" at each first call after it was told to, and counts the calls."""

    def __init__(self, registry: Registry, wait: float) -> None:
        self.full, self.calls = True, list[tuple[int, float]]()

        @task(registry=registry, name="call")
        def call(ctx: JobContext, number: int) -> RateLimited | None:
            self.calls.append((number, monotonic()))
            if self.full:
                self.full = False
                return ctx.rate_limited(wait)
            return None

        self.task = call


def test_a_queue_without_limits_waits_as_a_whole_and_goes_on_at_once(
    engine: Engine, url: str, registry: Registry
) -> None:
    """No worker starts a job of it before, whichever has heard of it; no job is lost, and none waits for a poll."""
    wait = 1.5  # and no poll comes before this test gives up
    partner = Partner(registry, wait)
    with (
        working(url, registry, queues={"default": 1}, buffer=0, poll=RARELY),
        working(url, registry, queues={"default": 1}, buffer=0, poll=RARELY),
    ):
        first = add_one(engine, enqueue(partner.task, 0))
        wait_until(lambda: states(engine))
        others = add(engine, *(enqueue(partner.task, number) for number in range(1, 7)))
        wait_until(lambda: finished(engine, first, *others))
    (_, began), *later = partner.calls
    assert sorted(number for number, _ in later) == list(range(7))
    assert began + wait <= min(at for _, at in later)


def test_a_key_waits_and_the_others_go_on(engine: Engine, url: str, registry: Registry) -> None:
    """In a queue that has no limits."""
    wait = 1.5  # and no poll comes before this test gives up
    partner = Partner(registry, wait)
    with working(url, registry, queues={"default": 1}, poll=RARELY):
        ours = [add_one(engine, enqueue(partner.task.options(key="42"), 0))]
        wait_until(lambda: states(engine))
        ours.append(add_one(engine, enqueue(partner.task.options(key="42"), 1)))
        theirs = add(engine, *(enqueue(partner.task.options(key="43"), number) for number in (2, 3)))
        wait_until(lambda: finished(engine, *theirs))
        assert statuses(engine, Job.id.in_(ours)) == [JobStatus.QUEUED] * 2
        wait_until(lambda: finished(engine, *ours))
    (_, began), *later = partner.calls
    assert [number for number, _ in later[:2]] == [2, 3]
    assert began + wait <= min(at for number, at in later if number < 2)


def test_no_claim_is_in_its_transaction(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim of another worker's may write the same rows, and would wait for this one's locks, which waits for it: a deadlock."""
    wrote: list[tuple[bool, bool]] = []
    real = Claimer._send

    def send(self: Claimer, connection: Any, exchange: Exchange) -> bool:
        done = real(self, connection, exchange)
        if exchange.changes:
            wrote.append((any(change.blocks is not None for change in exchange.changes), not done))
        return done

    monkeypatch.setattr(Claimer, "_send", send)
    partner = Partner(registry, 0.2)
    ids = add(engine, *(enqueue(partner.task, number) for number in range(20)))
    drain(url, registry, queues={"default": 2})
    assert finished(engine, *ids)
    assert (True, True) in wrote
    assert all(apart == blocks for blocks, apart in wrote if blocks)


def test_a_worker_forgets_what_is_over(engine: Engine, url: str, registry: Registry) -> None:
    """By itself, and so the queue is claimed from without limits again."""

    @task(registry=registry)
    def other() -> None: ...

    with engine.begin() as connection:
        connection.execute(
            insert(STATE).values(owner="queue", name="default", key="", blocked_until=func.now() - timedelta(hours=1))
        )
        connection.execute(insert(LIMIT).values(owner="queue", name="default"))
    with working(url, registry, prune_every=0.1) as worker:
        wait_until(lambda: not states(engine) and not limits(engine))
        wait_until(lambda: not services_of(worker).claimer._limited.has("default"))
        id = add_one(engine, enqueue(other))
        wait_until(lambda: finished(engine, id))


@pytest.mark.parametrize(("key", "end"), [(None, remove_limit), ("42", resume)])
def test_an_operator_ends_the_wait(
    engine: Engine, url: str, registry: Registry, key: str | None, end: Callable[..., Executable]
) -> None:
    """Of a queue or a key, also where nobody has limited or paused it; a worker that listens is told, and goes on at once."""

    @task(registry=registry)
    def other() -> None: ...

    with engine.begin() as connection:
        connection.execute(
            insert(STATE).values(
                owner="queue", name="default", key=key or "", blocked_until=func.now() + timedelta(hours=1)
            )
        )
        if key is None:
            connection.execute(insert(LIMIT).values(owner="queue", name="default"))
    id = add_one(engine, enqueue(other.options(key=key) if key else other))
    with working(url, registry, poll=RARELY, prune_every=0.1) as worker:
        wait_until(lambda: services_of(worker).claimer._limited.has("default"))
        with engine.begin() as connection:
            assert connection.scalars(end("default", key=key)).all() == ["default"]
            assert connection.scalars(end("default", key=key)).all() == []
        wait_until(lambda: finished(engine, id))
    with engine.begin() as connection:
        connection.execute(update(STATE).values(blocked_until=STATE.c.blocked_until - timedelta(minutes=2)))
    with working(url, registry, prune_every=0.1):
        wait_until(lambda: not states(engine) and not limits(engine))


# ---- permits that others than the claiming worker free


@pytest.fixture
def starts(registry: Registry) -> list[tuple[int, float]]:
    """The jobs that have started, and when."""
    seen: list[tuple[int, float]] = []

    @task(registry=registry, name="runs")
    def runs(ctx: JobContext) -> None:
        seen.append((ctx.job_id, monotonic()))

    return seen


def limited_jobs(engine: Engine, rescues: int) -> tuple[int, int]:
    """One that runs on a dead worker, and one that waits for its end."""
    with engine.begin() as connection:
        connection.execute(set_limit("default", per_key=KeyLimits(running=1)))
        first = make_job(connection, "running", task="runs", concurrency_key="42", rescues=rescues)
        return first, make_job(connection, task="runs", concurrency_key="42")


def gate_is_open(engine: Engine) -> bool:
    """Whether a worker waits for a permit."""
    with engine.connect() as connection:
        cell = connection.scalar(text("SELECT pg_sequence_last_value('sa_jobqueue.gate_limit')")) or 0
        return bool(cell // 10_000_000 > connection.scalar(text("SELECT extract(epoch FROM clock_timestamp())")))


@pytest.mark.parametrize("rescue", [True, False])
def test_a_rescue_wakes_the_worker_that_waits(
    engine: Engine, url: str, registry: Registry, starts: list[tuple[int, float]], rescue: bool
) -> None:
    """The job goes back or has failed; in either case another may start at once, whichever worker has rescued it."""
    lost, waits = limited_jobs(engine, 0 if rescue else 4)
    told: list[float] = []
    with working(url, registry, poll=RARELY, lease=600.0) as waiting:
        wait_until(lambda: gate_is_open(engine) and waiting.state().listening)
        notify = services_of(waiting).claimer.limits_changed
        services_of(waiting).claimer.limits_changed = lambda: (told.append(monotonic()), notify())[1]  # type: ignore[method-assign]
        assert starts == []
        lapse(engine, lost)
        long_healthy(engine)
        with working(url, Registry(), queues={"elsewhere": 1}):
            wait_until(lambda: finished(engine, lost, waits))
    assert told
    assert rescue or told[0] < starts[0][1]  # a job that goes back wakes its queue, too
    assert [id for id, _ in starts] == ([lost, waits] if rescue else [waits])  # it kept its place

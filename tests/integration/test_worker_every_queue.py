"""A worker of the queue "*": its slots are shared by all queues that it does not name, whenever these get jobs."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from unittest.mock import MagicMock

import pytest
from sqlalchemy import Engine, select, text

from sa_jobqueue import Job, JobContext, JobStatus, Registry, enqueue, task
from sa_jobqueue.health.work import read_working
from sa_jobqueue.models import WorkerRow
from sa_jobqueue.statements import pause, resume
from sa_jobqueue.worker.claiming import every
from sa_jobqueue.worker.claiming.every import SharedDemand
from sa_jobqueue.worker.running.slots import Slots
from tests.support.explaining import whats
from tests.support.ills import look
from tests.support.limits import limit
from tests.support.waiting import wait_until
from tests.support.working import add, add_one, drain, finished, job_of, services_of, statuses, worker_for, working

#: Seconds between two polls: longer than any test waits.
LONG = 60.0


class Handlers:
    """Jobs of "hold" run until they are let go; of each queue, how many run and the most that did at once."""

    def __init__(self, registry: Registry) -> None:
        self.free = threading.Event()
        self.running, self.most = Counter[str](), Counter[str]()
        self._lock = threading.Lock()

        @task(registry=registry, name="hold")
        def hold(ctx: JobContext) -> None:
            with self._lock:
                for name in (ctx.queue, ""):
                    self.running[name] += 1
                    self.most[name] = max(self.most[name], self.running[name])
            self.free.wait(60)
            with self._lock:
                self.running.subtract([ctx.queue, ""])

        @task(registry=registry, name="runs")
        async def runs() -> None: ...

        self.hold, self.runs = hold, runs

    def hold_in(self, *queues: str) -> list[Job]:
        return [enqueue(self.hold.options(queue=queue)) for queue in queues]

    def runs_in(self, *queues: str) -> list[Job]:
        return [enqueue(self.runs.options(queue=queue)) for queue in queues]


@pytest.fixture
def handlers(registry: Registry) -> Iterator[Handlers]:
    made = Handlers(registry)
    yield made
    made.free.set()


@pytest.mark.parametrize("listen", [True, False])
def test_a_queue_that_appears_while_the_worker_runs_is_served(
    engine: Engine, url: str, registry: Registry, handlers: Handlers, listen: bool
) -> None:
    """Nobody named it. A worker that listens is woken by its first job; one that does not looks once a second, however rarely it polls."""
    with working(url, registry, queues={"*": 10}, listen=listen, poll=LONG) as worker:
        for name in ("first", "second"):
            job = add_one(engine, *handlers.runs_in(name))
            wait_until(lambda job=job: finished(engine, job))  # type: ignore[misc]
        wait_until(lambda: worker.counts["completed"] == 2)


def test_a_queue_that_is_alone_has_all_slots_and_no_more(
    engine: Engine, url: str, registry: Registry, handlers: Handlers
) -> None:
    """The slots are shared, not one set for each queue."""
    add(engine, *handlers.hold_in(*["only"] * 6))
    with working(url, registry, queues={"*": 3}, buffer=0):
        wait_until(lambda: handlers.running["only"] == 3)
        add(engine, *handlers.hold_in("other", "third"))
        handlers.free.set()
        wait_until(lambda: set(statuses(engine)) == {JobStatus.COMPLETED})
    assert handlers.most[""] == 3


def test_a_long_queue_does_not_keep_another_one_waiting(
    engine: Engine, url: str, registry: Registry, handlers: Handlers
) -> None:
    """The free slots are divided in turns: the one job runs while nearly all of 10,000 wait."""
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO sa_jobqueue.job (task, queue) SELECT 'runs', 'a long queue' FROM generate_series(1, 10000)"
            )
        )
    (job,) = add(engine, *handlers.runs_in("z short queue"))
    worker = worker_for(url, registry, queues={"*": 1}, buffer=0, max_jobs=20)
    asyncio.run(worker.serve())
    assert job_of(engine, job).status is JobStatus.COMPLETED


def test_a_queue_that_is_named_has_slots_of_its_own(
    engine: Engine, url: str, registry: Registry, handlers: Handlers
) -> None:
    """They are free for it while others hold all that are shared, and the other way round."""
    add(engine, *handlers.hold_in(*["mail"] * 4, *["sms"] * 4, *["push"] * 4))
    with working(url, registry, queues={"mail": 2, "*": 3}, buffer=0) as worker:
        wait_until(lambda: handlers.running[""] == 5)
        assert handlers.running["mail"] == 2
        assert {name: state.running for name, state in worker.state().queues.items()} == {"mail": 2, "*": 3}
        handlers.free.set()
        wait_until(lambda: set(statuses(engine)) == {JobStatus.COMPLETED})
    assert handlers.most["mail"] == 2
    assert handlers.most[""] == 5


def test_limits_hold_in_queues_that_nobody_named(
    engine: Engine, url: str, registry: Registry, handlers: Handlers
) -> None:
    """Also in one that appears after the worker has read the limits. The permit of a job that ends is used by another worker at once."""
    with engine.begin() as connection:
        limit(connection, "early", running=1)
        limit(connection, "late", running=2)
    add(engine, *handlers.hold_in("early", "early"))
    options = {"queues": {"*": 10}, "poll": LONG}
    with working(url, registry, **options), working(url, registry, **options):
        wait_until(lambda: handlers.running["early"] == 1)
        add(engine, *handlers.hold_in(*["late"] * 6))
        wait_until(lambda: handlers.running["late"] == 2)
        handlers.free.set()
        wait_until(lambda: set(statuses(engine)) == {JobStatus.COMPLETED})
    assert (handlers.most["early"], handlers.most["late"]) == (1, 2)


def test_a_paused_queue_stands_still_and_the_others_go_on(
    engine: Engine, url: str, registry: Registry, handlers: Handlers
) -> None:
    """Once it is resumed, its jobs run."""
    with engine.begin() as connection:
        connection.execute(pause("still"))
    (still,) = add(engine, *handlers.runs_in("still"))
    with working(url, registry, queues={"*": 1}):
        goes_on = add(engine, *handlers.runs_in("goes on", "goes on"))
        wait_until(lambda: finished(engine, *goes_on))
        assert job_of(engine, still).status is JobStatus.QUEUED
        with engine.begin() as connection:
            connection.execute(resume("still"))
        wait_until(lambda: finished(engine, still))


def test_a_drain_ends_when_no_queue_has_a_due_job(engine: Engine, registry: Registry) -> None:
    """With more queues than slots, of which some are paused, and some get their jobs from those of others."""

    @task(registry=registry, name="begets")
    def begets(ctx: JobContext, n: int) -> None:
        if n:
            ctx.session.add(enqueue(begets.options(queue=f"child {n}"), n - 1))

    drain(engine, registry, queues={"*": 2})
    with engine.begin() as connection:
        connection.execute(pause("paused 1"))
        connection.execute(pause("paused 2"))
        connection.execute(pause("paused 3"))
    paused = [enqueue(begets.options(queue=f"paused {n}"), 0) for n in (1, 2, 3)]
    left = add(engine, *paused, enqueue(begets.options(queue="later", delay=3_600), 0))
    add(engine, *(enqueue(begets.options(queue=f"queue {n}"), 3) for n in range(5)))

    drained = drain(engine, registry, queues={"named": 1, "*": 2})

    assert drained.counts["completed"] == 20
    assert statuses(engine, Job.id.in_(left)) == [JobStatus.QUEUED] * 4


def test_queues_that_are_empty_are_forgotten(engine: Engine, url: str, registry: Registry, handlers: Handlers) -> None:
    """A queue for each tenant, or for each day, leaves nothing behind in a worker."""
    with working(url, registry, queues={"*": 10}) as worker:
        jobs = add(engine, *handlers.runs_in(*(f"queue {n}" for n in range(30))))
        wait_until(lambda: finished(engine, *jobs))
        claimer = services_of(worker).claimer
        wait_until(lambda: set(claimer._demand.timers) == {"*"} and not claimer._resume._points)


def test_what_others_say_of_the_worker_is_true(
    database_url: str, engine: Engine, url: str, registry: Registry, handlers: Handlers
) -> None:
    """Its row says "*". Each queue is served, and no queue bears that name."""
    (job,) = add(engine, *handlers.hold_in("any"))
    with working(url, registry, queues={"mail": 1, "*": 1}):
        wait_until(lambda: handlers.running["any"] == 1)
        with engine.connect() as connection:
            wait_until(lambda: connection.scalars(select(WorkerRow.queues)).all() == [["mail", "*"]])
            (waits,) = add(engine, *handlers.hold_in("other"))
            assert "unserved" not in whats(engine, waits)
            assert whats(engine, job) == ["running"] or job_of(engine, job).status is JobStatus.RUNNING
            found = read_working(connection)
            assert {one.name: one.served for one in found.queues} == {"any": 1, "mail": 1, "other": 1}
            assert read_working(connection, only=["other"]).workers[0].queues == ["*"]
        found_at = look(database_url)
        assert (found_at["queues"].level, found_at["tasks"].level) == ("ok", "ok")
        handlers.free.set()


@pytest.mark.parametrize("queues", [{"empty": 1, "full": 1}, {"empty": 1, "*": 1}])
def test_a_drain_of_fewer_jobs_than_queues_asks_all_queues(
    engine: Engine, registry: Registry, handlers: Handlers, queues: dict[str, int]
) -> None:
    """The first queue has no job, and each claim is for one."""
    add(engine, *handlers.runs_in("full", "full"))
    assert drain(engine, registry, queues=queues, max_jobs=1).counts["completed"] == 1
    assert drain(engine, registry, queues=queues, max_jobs=2).counts["completed"] == 1


@pytest.mark.parametrize(("together", "longest"), [(True, 0.0), (False, 5.0)])
def test_a_slow_lookup_of_the_queues_does_not_hold_back_the_next_for_long(
    monkeypatch: pytest.MonkeyPatch, together: bool, longest: float
) -> None:
    """The first of a process may take a second. A drain looks again at once."""
    seconds = iter([100.0, 101.0])
    monkeypatch.setattr(every, "monotonic", lambda: next(seconds))
    connector, connection = MagicMock(), MagicMock()
    connector.store.due_queues.return_value = {"new"}
    slots = {"*": Slots("*", 1, buffer=0, call=MagicMock())}
    demand = SharedDemand(slots, MagicMock(), max_jobs=None, together=together, connector=connector)

    assert demand.finds_more(connection)

    assert demand.timers["*"].held_until == (0.0 if together else 101.0 + longest)

"""A busy worker goes on behind what it has claimed; what becomes visible behind that is not forgotten."""

from __future__ import annotations

import threading

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, Registry, enqueue, enqueue_many, task
from tests.support.waiting import wait_until
from tests.support.working import working


def test_a_job_that_was_committed_late_starts_while_the_worker_is_busy(
    engine: Engine, url: str, registry: Registry
) -> None:
    """Its place is in front of all that is queued, and behind all that was claimed since."""
    started, go_on = threading.Event(), threading.Event()
    busy = threading.Semaphore(0)

    @task(registry=registry, name="many")
    def many(n: int) -> None:
        busy.release()
        go_on.wait(0.002)

    @task(registry=registry, name="late")
    def late() -> None:
        started.set()

    with Session(engine) as early, Session(engine) as session:
        early.add(enqueue(late))
        early.flush()
        session.execute(enqueue_many([many.call(n) for n in range(20_000)]))
        session.commit()
        with working(url, registry, queues={"default": 2}):
            for _ in range(50):
                assert busy.acquire(timeout=30)
            early.commit()
            assert started.wait(30)
            left = session.scalar(select(func.count()).where(Job.status == JobStatus.QUEUED))
            go_on.set()
    assert left is not None
    assert left > 1_000, "it had to wait until nothing else was left"


def test_an_idle_worker_has_looked_behind_its_points(engine: Engine, url: str, registry: Registry) -> None:
    """Draining ends only when nothing is due anywhere."""

    @task(registry=registry, name="one")
    def one() -> None: ...

    with Session(engine) as session:
        session.execute(enqueue_many([one.call() for _ in range(500)]))
        session.commit()
        with working(url, registry, queues={"default": 2}) as worker:
            wait_until(lambda: worker.counts["completed"] == 500)
            for _ in range(20):  # a due time in the past: behind the point
                session.add(job := enqueue(one))
                job.run_at = func.now() - func.make_interval(0, 0, 0, 1)
            session.commit()
            wait_until(lambda: worker.counts["completed"] == 520)

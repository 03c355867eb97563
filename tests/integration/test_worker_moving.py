"""Whether a worker's threads move, the database answers, and it is leaving: what probes are made of."""

from __future__ import annotations

import threading
from time import monotonic

import pytest
from sqlalchemy import Engine

from sa_jobqueue import Registry, enqueue, task
from sa_jobqueue.metrics import sums as snapshot
from sa_jobqueue.metrics.endpoint import WorkerProbes
from tests.support.databases import Databases, connect
from tests.support.waiting import wait_until
from tests.support.working import add_one, services_of, working


def test_a_worker_that_waits_for_nothing_but_time_is_not_late(url: str, registry: Registry) -> None:
    """Its pauses grow while the queue is idle."""
    with working(url, registry, poll=3_600.0, lease=60.0) as worker:
        wait_until(lambda: services_of(worker).claimer.moves_at > monotonic() + 1)
        wait_until(lambda: worker.state().late == 0.0)
        assert WorkerProbes(lambda: snapshot.read_snapshot(worker)).live().well


def test_a_claim_that_waits_for_a_lock_makes_the_worker_late_until_it_has_it(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe fails for as long as the thread stands still, past its patience."""

    @task(registry=registry, name="runs")
    def runs() -> None: ...

    monkeypatch.setattr(snapshot, "_SHORTEST_PATIENCE", 0.0)
    with working(url, registry, lease=30.0) as worker:
        probes = WorkerProbes(lambda: snapshot.Snapshot((), worker.state(), lease=0.05))
        wait_until(lambda: probes.ready().well and probes.live().well)
        with connect(url) as other, other.transaction():
            other.execute("LOCK TABLE sa_jobqueue.job IN ACCESS EXCLUSIVE MODE")
            wait_until(lambda: not probes.live().well)
            assert "have not moved for" in probes.live().said
        wait_until(lambda: probes.live().well)


def test_a_worker_knows_that_the_database_is_away_and_that_it_is_back(
    url: str, database_url: str, registry: Registry, databases: Databases
) -> None:
    """Soon, and without a job to say it."""
    with working(url, registry) as worker:
        wait_until(lambda: not worker.state().away)
        with databases.away(database_url):
            wait_until(lambda: worker.state().away)
        wait_until(lambda: not worker.state().away)


def test_a_worker_that_was_told_to_stop_is_leaving_while_its_last_job_runs(
    engine: Engine, url: str, registry: Registry
) -> None:
    """So it is not ready, and lives."""
    started, go = threading.Event(), threading.Event()

    @task(registry=registry, name="held")
    def held() -> None:
        started.set()
        go.wait(60)

    with working(url, registry, grace=30.0) as worker:
        add_one(engine, enqueue(held))
        assert started.wait(30)
        assert not worker.state().leaving
        worker.stop()
        wait_until(lambda: worker.state().leaving)
        probes = WorkerProbes(lambda: snapshot.read_snapshot(worker))
        assert (probes.ready().said, probes.live().well) == ("it is leaving", True)
        go.set()

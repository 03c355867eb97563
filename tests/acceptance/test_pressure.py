"""The pressure governor in real worker processes."""

from __future__ import annotations

import signal

import pytest

from sa_jobqueue import enqueue
from tests.acceptance import app
from tests.acceptance.conftest import Shop
from tests.support import pooler
from tests.support.databases import connect
from tests.support.nightly import nightly_sets
from tests.support.waiting import wait_until


@pytest.mark.parametrize(("processes", "number"), [((), 1), *nightly_sets((("--processes=2",), 2))], ids=["one", "two"])
def test_each_process_heeds_the_thresholds_and_goes_on_working(
    shop: Shop, processes: tuple[str, ...], number: int
) -> None:
    """Said on the command line and in the environment, of a snapshot that is held all the while; it still ends when it is told to."""
    said = "the database is under pressure: a transaction has been open for"
    with connect(pooler.direct(shop.url)) as session:
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT 1 FROM sa_jobqueue.job")
        environment = {"SA_JOBQUEUE_MAX_LOCK_WAITS": "1000"}
        with shop.work(*processes, "--max-snapshot-age=0.1", env=environment) as supervisor:
            wait_until(lambda: supervisor.output.count(said) == number)
            shop.wait_for(*shop.add(*(enqueue(app.nothing_async, number) for number in range(50))))
            supervisor.send(signal.SIGTERM)
            assert supervisor.wait() == 0
            assert supervisor.output.count(said) == number


@pytest.mark.nightly
def test_a_drain_ends_under_pressure(shop: Shop) -> None:
    """When all is done; as `draining_ends_under_pressure_that_does_not` says of a worker in the test's process."""
    ids = shop.add(*(enqueue(app.nothing, number) for number in range(50)))
    with connect(pooler.direct(shop.url)) as session:
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT 1 FROM sa_jobqueue.job")
        with shop.work("--drain", "--max-snapshot-age=0.1") as worker:
            assert worker.wait() == 0
    shop.wait_for(*ids)

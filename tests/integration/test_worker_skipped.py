"""Skipped jobs are claimed by themselves; limits hold for them as for all others."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from sa_jobqueue.sql.claims import is_limits_changed
from sa_jobqueue.worker.claiming.limited import LimitedQueues
from sa_jobqueue.worker.claiming.poison.bisection import BisectingClaims
from sa_jobqueue.worker.claiming.poison.skipped import SkippedJobs
from sa_jobqueue.worker.connections.pool import Deadline
from sa_jobqueue.worker.connections.service import Connector
from tests.support.factory import wait_until_blocked_by
from tests.support.limits import Claimant, fill, limit


@pytest.fixture
def service(engine: Engine) -> Iterator[Connection]:
    """A connection of a worker."""
    with Connector(engine, lease=60.0).connect() as connection:
        yield connection


@pytest.fixture
def claims(engine: Engine, service: Connection) -> BisectingClaims:
    """Of a worker of the queues x and y, which knows of no limits."""
    skipped, connector = SkippedJobs(2), Connector(engine, lease=60.0)
    nothing: Any = SimpleNamespace()
    limited = LimitedQueues(
        connector, ["x", "y"], nothing, nothing, skipped, worker="me", poll=1.0, listening=lambda: False
    )
    return BisectingClaims(connector, Deadline(60.0), skipped, limited, "me")


def skip(engine: Engine, claims: BisectingClaims, **columns: Any) -> dict[int, str]:
    """A job of each queue that is skipped: by id, its queue."""
    with engine.begin() as connection:
        ones = {fill(connection, 1, queue=queue, **columns)[0]: queue for queue in ("x", "y")}
    for one, queue in ones.items():
        claims.skipped.add_unclaimable(one, queue)
    return ones


def test_jobs_that_were_skipped_before_a_limit_was_set_are_not_claimed_without_it(
    engine: Engine, service: Connection, claims: BisectingClaims
) -> None:
    """Also where nothing told the worker of the limit."""
    skipped = skip(engine, claims)
    with engine.begin() as operator:
        limit(operator, "x", running=1)

    with pytest.raises(DBAPIError) as caught:
        list(claims.claim_skipped(service, skipped))

    assert is_limits_changed(caught.value)


def test_a_claim_of_skipped_jobs_keeps_no_limited_queue_while_it_waits_for_another(
    engine: Engine, service: Connection, claims: BisectingClaims
) -> None:
    """A claim that locks both, in another order, would wait for it for ever."""
    skipped = skip(engine, claims)
    with engine.begin() as operator:
        for queue in ("x", "y"):
            limit(operator, queue, running=2)
    claims.limited.stale = True
    claims.limited.refresh(service)
    with engine.connect() as one, engine.connect() as two, ThreadPoolExecutor(1) as threads:
        Claimant(one, "y").claim(0)
        found = threads.submit(lambda: [jobs for jobs, _ in claims.claim_skipped(service, skipped)])
        wait_until_blocked_by(one)
        two.exec_driver_sql("SET lock_timeout = '50ms'")
        Claimant(two, "x").claim(0)
        two.rollback()
        one.rollback()
        parts = found.result(30)
    assert [[job.id for job in jobs] for jobs in parts] == [[one] for one in skipped]

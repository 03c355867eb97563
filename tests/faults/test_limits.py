"""Limits hold whatever happens to workers, and no permit is lost. `nox -s slow` has the long run."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
from sqlalchemy import create_engine

from sa_jobqueue.migrations import upgrade_database
from tests.faults.clock import LIBRARY, ServerClock
from tests.faults.limited import (
    LEASE,
    STEP,
    Load,
    Look,
    Said,
    SaidRate,
    above_changing_rates,
    above_limits,
    above_rates,
    out_of_order,
)
from tests.faults.limited_mutants import MUTANTS, mutate
from tests.faults.server import Guard, Server
from tests.support import pooler
from tests.support.folders import server_folder

STALL = 15.0
"""Seconds that a busy machine may add. What is lost does not come back after these, either."""


def suffer(url: str, seconds: float, *, seed: int, workers: int = 3) -> None:
    with Load(url, seed=seed, workers=workers) as load:
        load.torment(seconds)
        load.finish()
    print(load)
    assert load.findings == []
    assert load.kills >= seconds / 3
    assert load.looks > 5 * seconds
    assert load.attacks > seconds / 2
    assert load.most["queue", "default"] > 1
    assert load.emptied_in < 20 + STALL + load.left / 10
    # Those of the worker that was killed last are rescued after their lease. What waits for a rate takes its time, a start at a time.
    assert load.longest_pause < LEASE + 2 + STALL


@pytest.mark.slow
def test_limits_hold_and_no_permit_is_lost_while_workers_are_killed(database_url: str) -> None:
    """Three workers, one of them killed each second; retries, snoozes, cancels, changes of limits, pauses, open transactions."""
    suffer(database_url, 6.0, seed=20_261_125)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2])
def test_limits_hold_for_long(database_url: str, seed: int) -> None:
    """The same for five minutes, with four workers."""
    suffer(database_url, 300.0, seed=seed, workers=4)


@pytest.mark.nightly
@pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed (Debian's package libfaketime)")
@pytest.mark.parametrize("pg", [18, 15])
def test_limits_hold_while_the_clock_of_the_server_steps(pg: int) -> None:
    """Ahead and back by more than a lease, every second or so: leases run out before their time, and come back."""
    guard = Guard()
    with closing(guard), server_folder() as folder:
        clock = ServerClock(folder)
        server = Server.make(folder / "server", guard, pg=pg, environment=clock.environment)
        try:
            server.start()
            suffer_steps(server, clock)
        finally:
            server.remove()


def suffer_steps(server: Server, clock: ServerClock) -> None:
    clock.step(STEP)
    ((seen,),) = server.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
    assert abs(float(str(seen)) - time.time() - STEP) < STEP / 2
    upgrade_database(server.url())
    with Load(server.url(), seed=3, workers=4, clock=clock) as load:
        load.torment(60.0)
        load.finish()
    print(load)
    assert load.findings == []
    assert load.steps >= 20
    assert load.kills >= 20
    assert load.most["queue", "default"] > 1
    # What was to come back soon when the clock was set back comes that much later.
    assert load.longest_pause < LEASE + 2 + STALL + 2 * STEP


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", [one for one in MUTANTS if one != "without the locks of keys"])
def test_the_auditor_sees_a_function_that_is_broken_on_purpose(database_url: str, mutant: str) -> None:
    """By what it sees run, or by what workers say of the second witness."""
    engine = create_engine(pooler.direct(database_url))
    with engine.begin() as connection:
        mutate(connection, mutant)
    engine.dispose()
    with Load(database_url, seed=7) as load:
        load.torment(60.0)
        load.finish(patience=20)
    print(load, *load.findings[:3], sep="\n")
    assert load.findings


def test_the_auditor_sees_more_than_a_limit() -> None:
    """By the limits that may have held when the last job was started."""
    said = [
        Said("queue", "a", 5, 0.0, 1.0),
        Said("queue", "a", 2, 100.0, 100.1),
        Said("queue", "a", None, 200.0, 200.1),
    ]

    def seen(running: int, last: float) -> int:
        return len(list(above_limits([Look("queue", "a", running, last)], said)))

    assert [seen(5, 50.0), seen(6, 50.0), seen(5, 100.5), seen(2, 150.0), seen(3, 150.0), seen(9, 300.0)] == [
        0,
        1,
        0,
        0,
        1,
        0,
    ]
    assert seen(6, 100.5) == 1


def test_the_auditor_sees_more_than_a_rate() -> None:
    """In any window."""
    assert list(above_rates([(0.0, 1), (0.5, 1), (1.0, 1), (1.5, 1)], 2, 1.0)) == []
    assert len(list(above_rates([(0.0, 1), (0.5, 1), (0.9, 1), (1.5, 1)], 2, 1.0))) == 1
    assert len(list(above_rates([(0.0, 2), (0.5, 1)], 2, 1.0))) == 1
    assert LEASE < 10


def test_the_auditor_sees_more_than_a_rate_that_changes() -> None:
    """By the rates that may have held in that second."""
    said = [SaidRate(5.0, 0.0, 1.0), SaidRate(2.0, 100.0, 100.1)]

    def seen(begin: float, number: int) -> bool:
        return any(above_changing_rates([(begin + n / 100, 1) for n in range(number)], said))

    assert [seen(50.0, 5), seen(50.0, 6), seen(100.5, 5), seen(150.0, 2), seen(150.0, 3)] == [
        False,
        True,
        False,
        False,
        True,
    ]


def test_the_auditor_sees_a_start_out_of_order() -> None:
    """A job may be started again and again, but not after a later one."""
    assert list(out_of_order([1, 1, 2, 5, 5])) == []
    assert list(out_of_order([1, 2, 1, 2])) == ["job 1 was started after 2"]

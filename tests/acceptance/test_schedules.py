"""Schedules under real workers that are killed, restarted, or without their database: one job for each tick."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from psycopg import sql
from sqlalchemy import func, make_url, select
from sqlalchemy.orm import Session

from sa_jobqueue import Job, Schedule, every
from tests.acceptance import app
from tests.acceptance.conftest import Shop
from tests.support.commands import environment
from tests.support.databases import Databases, connect
from tests.support.nightly import nightly, nightly_sets
from tests.support.waiting import wait_until

SECOND = timedelta(seconds=1)
SCHEDULES = 5


def add_schedules(shop: Shop) -> None:
    """Make several that tick each second, and of which each tick has a job, however late."""
    with Session(shop.engine) as session:
        session.add_all(
            Schedule(every(1), app.nothing, n, name=f"schedule {n}", missed="all") for n in range(SCHEDULES)
        )
        session.commit()


def ticks(shop: Shop) -> dict[int, Sequence[Job]]:
    """By schedule, its jobs in the order of their ticks."""
    found: dict[int, list[Job]] = {}
    for job in sorted(shop.jobs(Job.schedule_id.is_not(None)), key=lambda job: job.tick_at or job.created_at):
        found.setdefault(job.schedule_id or 0, []).append(job)
    return dict(found)


def assert_each_tick_has_one_job(shop: Shop) -> None:
    """From the first to the last, each a second after the one before, as many as the row says."""
    with Session(shop.engine) as session:
        rows = {row.id: row for row in session.scalars(select(Schedule))}
    for id, made in ticks(shop).items():
        times = [job.tick_at for job in made]
        assert times == [rows[id].created_at + n * SECOND for n in range(1, len(times) + 1)]
        assert rows[id].last_tick_at == times[-1]
        assert {job.ticks for job in made} == {1}


@contextmanager
def away(databases: Databases, shop: Shop) -> Generator[None]:
    """Nothing can connect to the database meanwhile."""
    database = make_url(shop.url).database or ""
    name = sql.Identifier(database)
    with connect(databases.server) as connection:
        connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        shop.engine.dispose()
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [database])
        try:
            yield
        finally:
            connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))


@pytest.mark.parametrize(("processes", "rounds"), [(2, 1), *nightly_sets((5, 4))])
def test_each_tick_has_one_job_though_workers_are_killed_and_the_database_is_away(
    shop: Shop, databases: Databases, processes: int, rounds: int
) -> None:
    """Several processes. Again and again one is killed and another one started; in between the database is away."""
    add_schedules(shop)
    chance = random.Random(7)

    def so_many(number: int) -> bool:
        return min(len(ticks(shop).get(id, ())) for id in range(1, SCHEDULES + 1)) >= number

    with ExitStack() as workers:
        alive = [workers.enter_context(shop.work()) for _ in range(processes)]
        for round_ in range(1, rounds + 1):
            wait_until(lambda wanted=2 * round_: so_many(wanted))  # type: ignore[misc]
            alive.pop(chance.randrange(len(alive))).kill()
            if round_ % 2:
                with away(databases, shop):
                    alive[0].wait_for("waits for the database")
            alive.append(workers.enter_context(shop.work()))
        wait_until(lambda: so_many(2 * rounds + 2))
    # The last tick of a schedule may be there before its neighbour's; none is half made.
    assert_each_tick_has_one_job(shop)


def test_ticks_are_made_up_for_after_all_workers_were_away(shop: Shop) -> None:
    """In the order of their times, each with a job of its own."""
    add_schedules(shop)
    with shop.work() as first:
        wait_until(lambda: len(ticks(shop)) == SCHEDULES)
        first.kill()
    before = sum(map(len, ticks(shop).values()))
    wait_until(lambda: shop.execute(select(func.now() > func.max(Schedule.next_at) + 2 * SECOND))[0][0])
    with shop.work_here():
        wait_until(lambda: sum(map(len, ticks(shop).values())) >= before + 2 * SCHEDULES)
    assert_each_tick_has_one_job(shop)


@pytest.mark.parametrize("hours", [-7, *nightly(5)])
def test_a_worker_whose_clock_is_hours_wrong_ticks_in_time(shop: Shop, hours: int) -> None:
    """All times are the database's."""
    add_schedules(shop)
    folder = str(Path(__file__).parent / "wrong_clock")
    env = {"PYTHONPATH": f"{folder}:{environment()['PYTHONPATH']}", "WRONG_CLOCK": str(hours * 3600)}
    with shop.work(env=env) as worker:
        worker.wait_for("the clock says")
        wait_until(lambda: sum(map(len, ticks(shop).values())) >= 2 * SCHEDULES)
    assert_each_tick_has_one_job(shop)
    late = [job.created_at - job.tick_at for made in ticks(shop).values() for job in made if job.tick_at]
    assert min(late) >= timedelta(0)
    assert sorted(late)[len(late) // 2] < timedelta(minutes=5)

"""Many claimers at once: every job is claimed by one of them, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from threading import Barrier, Lock, Thread

import pytest
from sqlalchemy import Connection, Engine, create_engine, func, select, update
from sqlalchemy.pool import NullPool

from sa_jobqueue.rules.lifecycle import JobStatus
from sa_jobqueue.sql.claims import ClaimRequest
from sa_jobqueue.sql.store import default_store
from tests.support.factory import TABLE
from tests.support.nightly import nightly_sets

#: Takes this number of jobs at most, and returns their ids.
Take = Callable[[Connection, int], list[int]]

QUEUES = ("a", "b")


def claim(connection: Connection, size: int) -> list[int]:
    """What the worker does."""
    queues = dict.fromkeys(QUEUES, size)
    return [job.id for job in default_store.claim(connection, ClaimRequest(worker="me", queues=queues, lease=60.0))]


def select_then_update(claimers: int) -> Take:
    """The obvious way: look, then take. All claimers look at the first jobs before one of them takes any."""
    everybody_has_looked = Barrier(claimers)
    columns = TABLE.c

    def take(connection: Connection, size: int) -> list[int]:
        found = select(columns.id).where(columns.status == "queued").order_by(columns.id).limit(size)
        ids = connection.scalars(found).all()
        if 1 in ids:
            everybody_has_looked.wait(60)
        taken = update(TABLE).where(columns.id.in_(ids)).values(status="running", claims=columns.claims + 1)
        return list(connection.scalars(taken.returning(columns.id)))

    return take


def drain(url: str, take: Take, *, claimers: int, jobs: int) -> tuple[Counter[int], list[BaseException]]:
    """Let claimers with connections of their own take everything. Returns how often each job was taken, and what failed."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO sa_jobqueue.job (task, queue, priority) "
            f"SELECT 'a_task', (ARRAY['a', 'b'])[1 + mod(n, 2)], mod(n, 10) FROM generate_series(1, {jobs}) AS n"
        )
    taken: Counter[int] = Counter()
    failures: list[BaseException] = []
    lock, start = Lock(), Barrier(claimers)

    def work(seed: int) -> None:
        random, mine = Random(seed), list[int]()
        try:
            with engine.connect() as connection:
                start.wait(60)
                while ids := take(connection, random.randint(1, 50)):
                    connection.commit()
                    mine += ids
        except BaseException as error:
            failures.append(error)
            start.abort()
        with lock:
            taken.update(mine)

    threads = [Thread(target=work, args=[seed]) for seed in range(claimers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.dispose()
    return taken, failures


def twice(taken: Counter[int]) -> list[int]:
    return [one for one, times in taken.items() if times > 1]


@pytest.mark.parametrize(("claimers", "jobs"), [(30, 3_000), *nightly_sets((200, 20_000))])
def test_many_claimers_never_get_one_job_twice(url: str, engine: Engine, claimers: int, jobs: int) -> None:
    """The jobs are in two queues and ten priorities, and are claimed in batches of 1 to 50 of each queue."""
    taken, failures = drain(url, claim, claimers=claimers, jobs=jobs)

    assert failures == []
    assert twice(taken) == []
    assert len(taken) == jobs
    with engine.connect() as connection:
        state = TABLE.c.status, TABLE.c.claims, TABLE.c.attempt
        found = connection.execute(select(*state, func.count()).group_by(*state)).all()
    assert found == [(JobStatus.RUNNING, 1, 1, jobs)]


def test_looking_and_then_taking_gets_jobs_twice(url: str) -> None:
    """The same harness with a SELECT and an UPDATE: so the test above can fail. (They deadlock, too.)"""
    taken, _ = drain(url, select_then_update(20), claimers=20, jobs=1_000)

    assert twice(taken)

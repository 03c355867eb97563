# /// script
# dependencies = ["pgqueuer[asyncpg]", "uvloop"]
# ///
"""PgQueuer: asyncpg and uvloop, as its own benchmark has it; large batches and `pgq autovac`, as its tuning guide has it.

One QueueManager a process, as its tuning guide starts one; and five on one loop, as its benchmark does by default. Its
tables stay logged: with `volatile` a crash of PostgreSQL loses the jobs. `balanced` keeps the jobs safe and makes
the record of completed ones unlogged.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

import asyncpg
import uvloop
from common import SERVER, Peer, Way, mark
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

BATCH = 100
SETTINGS = f"asyncpg, uvloop, batch_size={BATCH}, pgq autovac"
DURABLE = "durability=durable: the row is deleted, its end kept in a log table"
BALANCED = "durability=balanced: the same, and the log table is unlogged, a crash empties it"

PEER = Peer(
    name="PgQueuer",
    broker="postgresql",
    packages=("pgqueuer", "asyncpg", "uvloop"),
    ways={
        "durable": Way("async", f"{SETTINGS}, one QueueManager a process; {DURABLE}"),
        "durable, 5 managers": Way("async", f"{SETTINGS}, five QueueManagers and connections a process; {DURABLE}"),
        "balanced": Way("async", f"{SETTINGS}, one QueueManager a process; {BALANCED}"),
    },
    unfinished="SELECT count(*) FROM (SELECT FROM pgqueuer LIMIT 1)",
    finished="SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'",
    jobs=150_000,
    bulk="Queries.enqueue of lists of 10,000",
)


async def connect() -> AsyncpgDriver:
    return AsyncpgDriver(await asyncpg.connect(SERVER))


async def _fill(jobs: int) -> float:
    driver = await connect()
    queries = Queries(driver)
    await queries.install()
    await driver.execute(queries.qbe.build_optimize_autovacuum_query())
    start = time.perf_counter()
    for first in range(0, jobs, 10_000):
        numbers = range(first, min(first + 10_000, jobs))
        await queries.enqueue(["nothing"] * len(numbers), [b"%d" % n for n in numbers], [0] * len(numbers))
    return time.perf_counter() - start


def fill(way: str, jobs: int) -> float:
    os.environ["PGQUEUER_DURABILITY"] = way.split(",", maxsplit=1)[0]
    return uvloop.run(_fill(jobs))


async def _work(managers: int) -> None:
    running = [PgQueuer(await connect()) for _ in range(managers)]

    async def nothing(job: Job) -> None:
        mark(int(job.payload or b""))

    def stop() -> None:
        for pgq in running:
            pgq.shutdown.set()

    for pgq in running:
        pgq.entrypoint("nothing")(nothing)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    await asyncio.gather(*(pgq.run(batch_size=BATCH) for pgq in running))


def work(way: str) -> None:
    os.environ["PGQUEUER_DURABILITY"] = way.split(",", maxsplit=1)[0]
    uvloop.run(_work(5 if way.endswith("5 managers") else 1))

# /// script
# dependencies = ["chancy", "psycopg[binary]", "uvloop"]
# ///
"""Chancy: its asynchronous and its thread executor, the polling made eager, as its documentation has it for many jobs."""

from __future__ import annotations

import logging
import time

import uvloop
from chancy import Chancy, Job, Queue, Worker
from common import SERVER, Peer, Way, mark

CONCURRENCY = {"async": 2_000, "sync": 128}

PEER = Peer(
    name="Chancy",
    broker="postgresql",
    packages=("chancy", "psycopg", "psycopg-binary", "uvloop"),
    ways={
        way: Way(
            way,
            f"psycopg's C part, uvloop, {executor}, concurrency={CONCURRENCY[way]:,}, eager_polling, polling_interval=1; "
            "completions are written once a second, jobs are kept",
        )
        for way, executor in (("async", "AsyncExecutor"), ("sync", "ThreadedExecutor"))
    },
    unfinished="SELECT count(*) FROM (SELECT FROM chancy_jobs WHERE state IN ('pending', 'running') LIMIT 1)",
    finished="SELECT count(*) FROM chancy_jobs WHERE state = 'succeeded'",
    jobs=15_000,
    bulk="push_many in batches of 1,000",
)


async def nothing(*, n: int) -> None:
    mark(n)


def nothing_sync(*, n: int) -> None:
    mark(n)


FUNCTIONS = {"async": "on_chancy.nothing", "sync": "on_chancy.nothing_sync"}


def chancy() -> Chancy:
    return Chancy(SERVER, log=logging.getLogger("chancy"))


async def _fill(way: str, jobs: int) -> float:
    async with chancy() as app:
        await app.migrate()
        executor = Chancy.Executor.Async if way == "async" else Chancy.Executor.Threaded
        queue = Queue(
            "default",
            concurrency=CONCURRENCY[way],
            executor=executor,
            eager_polling=True,
            polling_interval=1,
        )
        await app.declare(queue, upsert=True)
        start = time.perf_counter()
        async for _ in app.push_many([Job(func=FUNCTIONS[way], kwargs={"n": n}) for n in range(jobs)]):
            pass
        return time.perf_counter() - start


def fill(way: str, jobs: int) -> float:
    return uvloop.run(_fill(way, jobs))


async def _work() -> None:
    async with chancy() as app, Worker(app) as worker:
        await worker.wait_for_shutdown()


def work(way: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    uvloop.run(_work())

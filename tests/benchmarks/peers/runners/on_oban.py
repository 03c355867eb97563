# /// script
# requires-python = ">=3.12"
# dependencies = ["oban", "psycopg[binary]", "uvloop"]
# ///
"""Oban for Python, the open-source edition: one queue with a large limit, which is how many jobs a fetch may take."""

from __future__ import annotations

import asyncio
import logging
import signal
import time

import uvloop
from common import SERVER, Peer, Way, mark
from oban import Oban, job
from oban.schema import install

LIMIT = 1_000

PEER = Peer(
    name="Oban for Python",
    broker="postgresql",
    packages=("oban", "psycopg", "psycopg-binary", "uvloop"),
    ways={
        "async": Way(
            "async",
            f"psycopg's C part, a pool of 10, uvloop, queue limit {LIMIT:,}; "
            "one statement finishes a job, many jobs in a transaction; jobs are kept",
        ),
    },
    unfinished="SELECT count(*) FROM (SELECT FROM oban_jobs WHERE state IN ('available', 'executing') LIMIT 1)",
    finished="SELECT count(*) FROM oban_jobs WHERE state = 'completed'",
    jobs=15_000,
    bulk="enqueue_many of 1,000, which sends one INSERT for each job",
)


@job(queue="default")
async def nothing(n: int) -> None:
    mark(n)


async def _fill(jobs: int) -> float:
    pool = await Oban.create_pool(SERVER)
    await install(pool)
    async with Oban(pool=pool) as oban:
        start = time.perf_counter()
        for first in range(0, jobs, 1_000):
            await oban.enqueue_many(nothing.new(n) for n in range(first, min(first + 1_000, jobs)))
        seconds = time.perf_counter() - start
    await pool.close()
    return seconds


def fill(way: str, jobs: int) -> float:
    return uvloop.run(_fill(jobs))


async def _work() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    pool = await Oban.create_pool(SERVER)
    async with Oban(pool=pool, queues={"default": LIMIT}):
        await stop.wait()
    await pool.close()


def work(way: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    uvloop.run(_work())

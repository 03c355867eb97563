# /// script
# dependencies = ["procrastinate", "psycopg[binary]", "uvloop"]
# ///
"""Procrastinate: its asynchronous connector with concurrency, as its guide has it for jobs that wait."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

import uvloop
from common import SERVER, Peer, Way, mark
from procrastinate import App, PsycopgConnector

CONCURRENCY = 20

PEER = Peer(
    name="Procrastinate",
    broker="postgresql",
    packages=("procrastinate", "psycopg", "psycopg-binary", "uvloop"),
    ways={
        "async": Way(
            "async",
            f"PsycopgConnector (psycopg's C part, a pool of {CONCURRENCY + 2}), uvloop, concurrency={CONCURRENCY}; "
            "one call of SQL claims and one finishes a job, which is kept",
        ),
    },
    unfinished="SELECT count(*) FROM (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing') LIMIT 1)",
    finished="SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
    jobs=4_000,
    bulk="batch_defer of 1,000",
)

app = App(connector=PsycopgConnector(conninfo=SERVER, min_size=1, max_size=CONCURRENCY + 2))


@app.task(name="nothing")
async def nothing(n: int) -> None:
    mark(n)


async def _fill(jobs: int) -> float:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        start = time.perf_counter()
        for first in range(0, jobs, 1_000):
            await nothing.batch_defer_async(*({"n": n} for n in range(first, min(first + 1_000, jobs))))
        return time.perf_counter() - start


def fill(way: str, jobs: int) -> float:
    return uvloop.run(_fill(jobs))


async def _work() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY)


def work(way: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    with suppress(asyncio.CancelledError):
        uvloop.run(_work())

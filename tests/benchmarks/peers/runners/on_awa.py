# /// script
# dependencies = ["awa-pg", "uvloop"]
# ///
"""Awa: its runtime in Rust calls the handler on Python's event loop.

A partitioned queue, as its configuration guide has it for a hot workload: jobs keep their order within a partition only.
"""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass

import uvloop
from awa import AsyncClient, Job, PartitionedQueue
from common import SERVER, Peer, Way, mark

PARTITIONS = 4
WORKERS = 256
#: Its driver wants a host before the path of a Unix socket, which then wins.
URL = SERVER.replace("@/", "@localhost/", 1)

PEER = Peer(
    name="Awa",
    broker="postgresql",
    packages=("awa-pg", "uvloop"),
    ways={
        "async": Way(
            "async",
            f"uvloop, PartitionedQueue of {PARTITIONS}, max_workers_per_partition={WORKERS}, max_connections=20; "
            "completed jobs are kept for a while, then their partition of the table is emptied",
        ),
    },
    unfinished="SELECT count(*) FROM (SELECT FROM awa.jobs WHERE state <> 'completed' LIMIT 1)",
    finished="SELECT count(*) FROM awa.jobs WHERE state = 'completed'",
    jobs=20_000,
    bulk="enqueue_many_copy of 10,000",
)


QUEUE = PartitionedQueue("default", PARTITIONS)


@dataclass
class Nothing:
    n: int


async def _fill(jobs: int) -> float:
    async with AsyncClient(URL) as client:
        await client.migrate()
        await client.install_queue_storage(schema="awa")  # as the first worker of a new database does
        start = time.perf_counter()
        for first in range(0, jobs, 10_000):
            numbers = range(first, min(first + 10_000, jobs))
            places = [QUEUE.route_by_index(n) for n in numbers]
            await client.enqueue_many_copy([Nothing(n) for n in numbers], opts=places)
        return time.perf_counter() - start


def fill(way: str, jobs: int) -> float:
    return uvloop.run(_fill(jobs))


async def _work() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with AsyncClient(URL, max_connections=20) as client:

        @client.task(Nothing, queue=QUEUE.physical_queues[0])
        async def nothing(job: Job[Nothing]) -> None:
            mark(job.args.n)

        await client.start(QUEUE.queue_configs(WORKERS))
        await stop.wait()
        await client.shutdown()


def work(way: str) -> None:
    uvloop.run(_work())

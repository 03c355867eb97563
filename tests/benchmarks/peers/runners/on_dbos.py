# /// script
# dependencies = ["dbos", "psycopg[binary]"]
# ///
"""DBOS: a queue of workflows without steps, and of workflows of ten steps, polled more often than by default, with fewer threads.

A workflow is more than a job: its inputs, its result and each change of its state are recorded, so that it resumes
after a crash. DBOS runs asynchronous workflows on an event loop of its own and talks to the server from threads.
"""

from __future__ import annotations

import os
import signal
import time

import sqlalchemy as sa
from common import SERVER, Peer, Way, mark
from dbos import DBOS, DBOSClient, DBOSConfig

CONCURRENCY = 1_000
POLL = 0.1
THREADS = 16
URL = SERVER.replace("postgresql://", "postgresql+psycopg://", 1)

PEER = Peer(
    name="DBOS",
    broker="postgresql",
    packages=("dbos", "SQLAlchemy", "psycopg", "psycopg-binary"),
    ways={
        "async": Way(
            "async",
            f"psycopg's C part, worker_concurrency={CONCURRENCY:,}, polling_interval_sec={POLL}, max_executor_threads={THREADS}; "
            "a job is a workflow without steps, which records more than a job: its inputs, its result and its owner, to resume after a crash",
        ),
        "steps": Way("steps", "as its async way; a job is a workflow of ten async steps", jobs=500),
    },
    unfinished="SELECT count(*) FROM (SELECT FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING') LIMIT 1)",
    finished="SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'",
    jobs=4_000,
    bulk="enqueue_in_transaction, 1,000 in a transaction: there is no bulk call",
)


@DBOS.workflow(name="nothing")
async def nothing(n: int) -> None:
    mark(n)


@DBOS.step(name="increment")
async def increment(n: int) -> int:
    return n + 1


@DBOS.workflow(name="ten_steps")
async def ten_steps(n: int) -> None:
    value = n
    for _ in range(10):
        value = await increment(value)
    mark(n)


def launch(*queues: str) -> None:
    """Start DBOS in this process, which takes workflows from `queues` only."""
    settings: DBOSConfig = {
        "name": "peers",
        "system_database_url": URL,
        "executor_id": str(os.getpid()),
        "application_version": "1",
        "max_executor_threads": THREADS,
        "log_level": "WARNING",
    }
    DBOS(config=settings)
    DBOS.listen_queues(queues)
    DBOS.launch()


WORKFLOWS = {"async": "nothing", "steps": "ten_steps"}


def fill(way: str, jobs: int) -> float:
    launch()
    DBOS.register_queue("default", worker_concurrency=CONCURRENCY, polling_interval_sec=POLL)
    DBOS.destroy()
    client, engine = DBOSClient(system_database_url=URL), sa.create_engine(URL)
    start = time.perf_counter()
    for first in range(0, jobs, 1_000):
        with engine.begin() as connection:
            for n in range(first, min(first + 1_000, jobs)):
                client.enqueue_in_transaction(connection, {"queue_name": "default", "workflow_name": WORKFLOWS[way]}, n)
    seconds = time.perf_counter() - start
    client.destroy()
    return seconds


def work(way: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: DBOS.destroy())
    launch("default")
    signal.pause()

# /// script
# dependencies = ["celery[redis]", "hiredis"]
# ///
"""Celery on Redis: one process that executes, results ignored, a large prefetch, as its guide has it for short tasks."""

from __future__ import annotations

import os
import time

from celery import Celery
from common import SERVER, Peer, Way, mark

COMMON = (
    "hiredis, ignore_result, acks_late=False (before the task runs: a crash loses it), no gossip, mingle, heartbeat"
)

PEER = Peer(
    name="Celery on Redis",
    broker="redis",
    packages=("celery", "kombu", "redis", "hiredis"),
    ways={
        "prefork": Way("sync", f"{COMMON}; -P prefork -c 1, worker_prefetch_multiplier=128"),
        "threads": Way("sync", f"{COMMON}; -P threads -c 8, worker_prefetch_multiplier=128"),
        "solo": Way("sync", f"{COMMON}; -P solo, worker_prefetch_multiplier=128"),
    },
    unfinished="LLEN celery\nHLEN unacked",
    jobs=6_000,
    bulk="one apply_async after the other on one producer: there is no bulk call",
)

app = Celery("peers", broker=SERVER.replace("unix://", "redis+socket://"))
app.conf.update(
    task_ignore_result=True,
    task_store_errors_even_if_ignored=False,
    worker_prefetch_multiplier=128,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="nothing")
def nothing(n: int) -> None:
    mark(n)


def fill(way: str, jobs: int) -> float:
    with app.producer_or_acquire() as producer:
        start = time.perf_counter()
        for n in range(jobs):
            nothing.apply_async((n,), producer=producer)
        return time.perf_counter() - start


def work(way: str) -> None:
    pools = {"prefork": ["-P", "prefork", "-c", "1"], "threads": ["-P", "threads", "-c", "8"], "solo": ["-P", "solo"]}
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR", "-n", f"peers{os.getpid()}"]
    app.worker_main(["worker", *pools[way], *quiet])

# /// script
# dependencies = ["dramatiq[redis]", "hiredis"]
# ///
# ruff: noqa: E402
"""Dramatiq on Redis: threads (as many as its command starts), its default middleware, a large prefetch for short tasks."""

from __future__ import annotations

import os
import signal
import threading
import time

PREFETCH = 1_000
os.environ["dramatiq_queue_prefetch"] = str(PREFETCH)  # noqa: SIM112 - read with the import

import dramatiq
from common import SERVER, Peer, Way, mark
from dramatiq.brokers.redis import RedisBroker
from dramatiq.worker import Worker

THREADS = 8

PEER = Peer(
    name="Dramatiq on Redis",
    broker="redis",
    packages=("dramatiq", "redis", "hiredis"),
    ways={
        "threads": Way(
            "sync",
            f"hiredis, {THREADS} threads, dramatiq_queue_prefetch={PREFETCH}, "
            "default middleware; acknowledged after the task has run",
        ),
    },
    unfinished="HLEN dramatiq:default.msgs",
    jobs=15_000,
    bulk="one send after the other: there is no bulk call",
)

broker = RedisBroker(url=SERVER)
dramatiq.set_broker(broker)


@dramatiq.actor
def nothing(n: int) -> None:
    mark(n)


def fill(way: str, jobs: int) -> float:
    start = time.perf_counter()
    for n in range(jobs):
        nothing.send(n)
    return time.perf_counter() - start


def work(way: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    worker = Worker(broker, worker_threads=THREADS)
    worker.start()
    stop.wait()
    worker.stop()

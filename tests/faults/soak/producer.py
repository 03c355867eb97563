"""The producer of the soak: a process that enqueues by the clock, in small transactions, in both ways there are.

with Producer(url, Mix(seed=7), first=0, rate=400) as producer: ...
producer.committed                                         # the first number that is not committed
"""

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from typing import Any, Self

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import enqueue_many
from tests.faults.soak.tasks import Mix

_MOST, _BEHIND = 40, 500
"""Jobs in a transaction, and in one of a producer that is behind: the load must be what was asked for, on a busy host too."""
_PAUSE = 0.005
"""Seconds between two looks at the clock, when nothing is wanted yet."""


def _enqueue_in_bulk(engine: Engine, mix: Mix, first: int, number: int) -> None:
    """`number` jobs by one statement in one transaction."""
    with engine.begin() as connection:
        connection.execute(enqueue_many([mix.job(first + n).call() for n in range(number)]))


def _enqueue_as_rows(engine: Engine, mix: Mix, first: int, number: int) -> None:
    with Session(engine) as session:
        for n in range(number):
            session.add(mix.job(first + n).row())
        session.commit()


def enqueue_some(engine: Engine, mix: Mix, first: int, most: int, chance: random.Random) -> int:
    """One small transaction, in one of the two ways, for the jobs from `first` on; says of how many."""
    number, way = min(most, chance.randint(1, _MOST)), chance.choice((_enqueue_in_bulk, _enqueue_as_rows))
    way(engine, mix, first, number)
    return number


class Producer:
    """Enqueues the jobs `first`, `first` + 1, ..., `rate` of them a second, until the block ends."""

    def __init__(self, url: str, mix: Mix, *, first: int, rate: float, seed: int = 0) -> None:
        context = multiprocessing.get_context("spawn")
        self._committed = context.Value("Q", first)
        self._end = context.Event()
        self.process = context.Process(
            target=_produce, args=(url, mix, first, rate, seed, self._committed, self._end), name="producer", daemon=True
        )  # fmt: skip

    @property
    def committed(self) -> int:
        """All numbers below this one are committed. Raises if the producer has died."""
        if not self._end.is_set() and self.process.exitcode is not None:
            raise RuntimeError(f"the producer ended with {self.process.exitcode}")
        return int(self._committed.value)

    def __enter__(self) -> Self:
        self.process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.process.join(30)
        self.process.kill()


def _produce(url: str, mix: Mix, first: int, rate: float, seed: int, committed: Any, end: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the run itself ends us
    engine, chance = create_engine(url), random.Random(seed)
    begun, at = time.monotonic(), first
    while not end.is_set():
        wanted = first + int((time.monotonic() - begun) * rate) - at
        if wanted < 1:
            time.sleep(_PAUSE)
            continue
        if wanted > rate:  # a second's worth
            _enqueue_in_bulk(engine, mix, at, number := min(wanted, _BEHIND))
        else:
            number = enqueue_some(engine, mix, at, wanted, chance)
        at += number
        committed.value = at
    engine.dispose()

"""The producer: enqueues jobs of the workload, and workflows of them, and remembers of each what came of its transaction.

with Producer(url, rate=50) as producer: ...
"""

from __future__ import annotations

import random
import threading
from collections.abc import Collection, Sequence
from itertools import count, product
from typing import NamedTuple, Self, get_args

from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import Unique, Workflow
from sa_jobqueue.tasks.options import Scope
from sa_jobqueue.tasks.tasks import AnyTask
from tests.faults.planned import Plan, draw
from tests.faults.workload import LONGEST, MIX, SENT, Fate, job, send, ship

#: How some of the jobs are unique: by a few keys, so that many are duplicates. Their share among all of them.
UNIQUE = [
    Unique(
        f"{scope}-{on_clash}", scope=scope, period=1.0 if scope in ("finished", "window") else None, on_clash=on_clash
    )
    for scope, on_clash in product(get_args(Scope), ("skip", "replace"))
]
SHARE = 0.25

#: The share of transactions that enqueue a workflow, too.
FLOWS = 0.15

#: One job in ten has an expiry, and one in ten a deadline: at most this many seconds after it was enqueued.
LIMITED, _LATEST = 0.1, 4.0


class _Wanted(NamedTuple):
    key: str
    kind: AnyTask
    argument: float | str
    unique: Unique | None = None
    expires: float | None = None
    deadline: float | None = None


class Producer:
    """Enqueues `rate` jobs a second, on a thread of its own, until the block ends.

    `fates`: what came of each key's transaction, once that is over. `plans`: the workflows, by key; each is here before its fate is.
    """

    def __init__(self, url: str, *, rate: float, seed: int = 0, rolled_back: float = 0.15) -> None:
        self.fates: dict[str, Fate] = {}
        self.plans: dict[str, Plan] = {}
        self.url, self._rate, self.rolled_back = url, rate, rolled_back
        self._random, self._numbers = random.Random(seed), count()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="producer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Enqueue no more."""
        self._end.set()
        self._thread.join()

    def keys(self, fate: Fate = Fate.COMMITTED) -> list[str]:
        """The keys that had this fate so far."""
        return [key for key, its in self.fates.copy().items() if its is fate]

    def forget(self, keys: Collection[str]) -> None:
        """A failover may have lost what was committed of these."""
        for key in keys:
            if self.fates[key] is Fate.COMMITTED:
                self.fates[key] = Fate.UNKNOWN

    def add(self, session: Session, kinds: Sequence[AnyTask], argument: float | str) -> list[str]:
        """Enqueue these besides, in this session, all with the same argument; their keys."""
        jobs = [_Wanted(f"k{next(self._numbers)}", kind, argument) for kind in kinds]
        self._enqueue(session, jobs)
        return [wanted.key for wanted in jobs]

    def _loop(self) -> None:
        # A server that is gone must not hold the producer: it is a part of the test, not what is tested.
        engine = create_engine(self.url, connect_args={"connect_timeout": 2, "options": "-c statement_timeout=3s"})
        while not self._end.is_set():
            number = self._random.randint(1, 5)
            flow = draw(self._random, f"w{next(self._numbers)}") if self._random.random() < FLOWS else None
            kinds = self._random.choices(list(MIX), list(MIX.values()), k=number)
            jobs = [
                _Wanted(
                    f"k{next(self._numbers)}",
                    kind,
                    self._random.uniform(0.0, LONGEST),
                    self._random.choice(UNIQUE) if self._random.random() < SHARE else None,
                    self._limit(),
                    self._limit(),
                )
                for kind in kinds
            ]
            jobs += [
                one._replace(key=one.key + SENT, kind=send, unique=None, expires=None, deadline=None)
                for one in jobs
                if one.kind is ship
            ]
            try:
                self._enqueue(Session(engine), jobs, flow, rolls_back=self._random.random() < self.rolled_back)
            except DBAPIError:
                engine.dispose()
            self._end.wait((number + (len(flow[0].keys) if flow else 0)) / self._rate)
        engine.dispose()

    def _limit(self) -> float | None:
        return self._random.uniform(0.05, _LATEST) if self._random.random() < LIMITED else None

    def _enqueue(
        self,
        session: Session,
        jobs: Sequence[_Wanted],
        flow: tuple[Plan, Workflow] | None = None,
        *,
        rolls_back: bool = False,
    ) -> None:
        """One transaction."""
        fate, keys = Fate.ROLLED_BACK, [one.key for one in jobs]
        if flow is not None:
            self.plans[flow[0].key] = flow[0]
            keys += flow[0].keys
        try:
            with session:
                session.add_all(
                    job(one.kind, one.key, one.argument, one.unique, one.expires, one.deadline) for one in jobs
                )
                if flow is not None:
                    session.add(flow[1])
                session.flush()
                if rolls_back:
                    session.rollback()
                    return
                fate = Fate.UNKNOWN
                session.commit()
                fate = Fate.COMMITTED
        finally:
            self.fates |= dict.fromkeys(keys, fate)

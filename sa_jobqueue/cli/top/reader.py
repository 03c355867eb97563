"""The thread that talks to the database, so that keys are answered while the database is not."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from time import monotonic
from typing import TypeAlias

import sqlalchemy as sa

from ...health.one_job import JobSeen
from ...util.log import one_line
from ...util.urls import mask_passwords
from ..output import expected_errors, explained
from .read import Picture, read_job, read_picture

#: Does something in a transaction, and says what.
Action: TypeAlias = Callable[[sa.Connection], str]

#: The share of the time that may be spent on reading: what is slow is read less often.
_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to read."""

    failures: int = 10
    schedules: bool = False
    job: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read last, and what is wrong since when."""

    picture: Picture
    job: JobSeen | None = None
    took: float = 0.0
    """Seconds that it took to read it."""
    pause: float = 0.0
    """Seconds from then on until the next time."""
    problem: str | None = None
    since: datetime | None = None
    said: str = ""
    """What the last action came to."""
    done: int = 0
    """How many actions were carried out."""


class Reader:
    """Reads at intervals, and whenever it is asked to.

    `seen` is written by the thread of the reader alone, and `wanted` by the screen's; each reads the other's.
    """

    def __init__(self, engine: sa.Engine, picture: Picture, *, every: float, tell: Callable[[], None]) -> None:
        self.seen = Seen(picture)
        self.wanted = Wanted()
        self._engine = engine
        self._every = every
        self._tell = tell
        self._actions: deque[Action] = deque()
        self._again = threading.Event()
        self._connection: sa.Connection | None = None
        self._stopped = False

    def start(self) -> None:
        """Read from now on. The thread does not keep the process alive: a database that is away may hold it for long."""
        threading.Thread(target=self._run, name="top reads", daemon=True).start()

    def read_again(self, wanted: Wanted) -> None:
        """Read this, now."""
        self.wanted = wanted
        self._again.set()

    def do(self, action: Action) -> None:
        """Carry this out, in a transaction of its own, and read again."""
        self._actions.append(action)
        self._again.set()

    def stop(self) -> None:
        """Read no more, from the next time on."""
        self._stopped = True
        self._again.set()

    def _run(self) -> None:
        while not self._stopped:
            self._again.clear()
            while self._actions:
                self._act(self._actions.popleft())
            self._read()
            self._tell()
            self._again.wait(self.seen.pause)
        self._disconnect()

    def _read(self) -> None:
        wanted, seen, began = self.wanted, self.seen, monotonic()
        try:
            if self._connection is None:
                self._connection = self._engine.connect().execution_options(postgresql_readonly=True)
            with self._connection.begin():
                picture = read_picture(self._connection, failures=wanted.failures, schedules=wanted.schedules)
                job = None if wanted.job is None else read_job(self._connection, wanted.job)
        except expected_errors() as error:
            self._disconnect()
            since = seen.since or datetime.now().astimezone()
            self.seen = replace(
                seen, problem=one_line(mask_passwords(explained(error))), since=since, pause=self._every
            )
        else:
            took = monotonic() - began
            pause = max(self._every, took / _SHARE)
            self.seen = replace(seen, picture=picture, job=job, took=took, pause=pause, problem=None, since=None)

    def _act(self, action: Action) -> None:
        try:
            with self._engine.begin() as connection:
                connection.exec_driver_sql("SET LOCAL statement_timeout = '5s'")
                said = action(connection)
        except expected_errors() as error:
            said = f"not done: {one_line(mask_passwords(explained(error)))}"
        self.seen = replace(self.seen, said=said, done=self.seen.done + 1)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*expected_errors()):
                connection.invalidate()
            with suppress(*expected_errors()):
                connection.close()

"""The jobs of the soak: what there is, how often, and what each of them has to leave behind.

A job is a number. What it is follows from the number and the seed alone (`Mix.job`), so it need not be stored:

    mix = Mix(seed=7)
    session.execute(enqueue_many([mix.job(number).call() for number in range(100)]))   # jobs 0 to 99
    mix.kind(42).runs                                                                  # how often 42 has to run

Handlers leave two traces: a row in `soak.effect`, through `ctx.session`, and the number in a file of their process, at each
run. On a day without faults both happen exactly as often as `Kind` says.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import struct
import time
from array import array
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Column, MetaData, Table, bindparam, create_engine, insert, select
from sqlalchemy.schema import CreateSchema

from sa_jobqueue import AsyncJobContext, Call, Job, JobContext, JobStatus, Registry, RetryPolicy, Snooze, enqueue, task
from sa_jobqueue.tasks.tasks import AnyTask

FOLDER, RETAIN, ARCHIVE = "SA_SOAK_FOLDER", "SA_SOAK_RETAIN", "SA_SOAK_ARCHIVE"
"""Environment variables: where the handlers' files are, how many seconds a completed job is kept, and whether it is archived then."""

QUEUES = {"fast": 20, "default": 20, "slow": 100}
"""Slots in each process. The slow jobs mostly wait, so they get enough slots for the processor to be the limit."""
SNOOZES, DOOMED_ATTEMPTS = 2, 3
LARGE = 200_000
"""Characters of a large argument."""
LONGEST = 3.0
"""Seconds that a handler takes at most."""
LATEST = 60.0
"""Seconds to the time for which a job is scheduled, at most."""
ON_PURPOSE = "on purpose"

registry = Registry()
_NUMBER = struct.Struct("<Q")

metadata = MetaData(schema="soak")
# No key: a second effect of a job must not be refused, it must be seen.
effect = Table("effect", metadata, Column("number", BigInteger, nullable=False))


def prepare(url: str) -> None:
    """Make the table of the effects."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(CreateSchema("soak"))
        metadata.create_all(connection)
    engine.dispose()


# ---- what handlers leave behind


@functools.cache
def _file() -> int:
    return os.open(
        Path(os.environ[FOLDER]) / f"{os.getpid()}.runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644
    )  # fmt: skip


def _ran(number: int) -> None:
    """Note that this job's handler has come to its end, by an error too."""
    os.write(_file(), _NUMBER.pack(number))


def read_runs(folder: Path) -> array[int]:
    """The numbers of all runs, in no order."""
    runs: array[int] = array("Q")
    for file in sorted(folder.glob("*.runs")):
        runs.frombytes(file.read_bytes())
    return runs


_CLAIMS = select(Job.claims).where(Job.id == bindparam("id"))


def _effect(number: int) -> Any:
    return insert(effect).values(number=number)


# ---- the handlers


def _task(queue: str, **options: Any) -> Any:
    options = {"retry": RetryPolicy(base=1.0, factor=2.0, jitter=0.1), **options}
    retain, archive = float(os.environ.get(RETAIN, "120")), os.environ.get(ARCHIVE) == "yes"
    return task(queue=queue, retain=retain, archive=archive, registry=registry, **options)


@_task("fast")
async def nothing_async(number: int) -> None:
    _ran(number)


@_task("fast")
def nothing_sync(number: int) -> None:
    _ran(number)


@_task("default")
def insert_sync(ctx: JobContext, number: int) -> None:
    ctx.session.execute(_effect(number))
    _ran(number)


@_task("default")
async def insert_async(ctx: AsyncJobContext, number: int) -> None:
    await ctx.session.execute(_effect(number))
    _ran(number)


@_task("slow")
async def slow_async(number: int, seconds: float) -> None:
    await asyncio.sleep(seconds)
    _ran(number)


@_task("slow")
def slow_sync(ctx: JobContext, number: int, seconds: float) -> None:
    """Takes its time in the middle of its transaction."""
    ctx.session.execute(_effect(number))
    time.sleep(seconds)
    _ran(number)


@_task("default")
def stumble(ctx: JobContext, number: int) -> None:
    """Fails at its first attempt, after it has written."""
    ctx.session.execute(_effect(number))
    _ran(number)
    if ctx.attempt == 1:
        raise RuntimeError(ON_PURPOSE)


@_task("default", max_attempts=DOOMED_ATTEMPTS)
def doomed(ctx: JobContext, number: int) -> None:
    """Always fails, after it has written."""
    ctx.session.execute(_effect(number))
    _ran(number)
    raise RuntimeError(ON_PURPOSE)


@_task("default")
async def snooze(ctx: AsyncJobContext, number: int, seconds: float) -> Snooze | None:
    """Asks for later at its first claims."""
    _ran(number)
    if (await ctx.session.scalars(_CLAIMS, {"id": ctx.job_id})).one() <= SNOOZES:
        return Snooze(seconds)
    await ctx.session.execute(_effect(number))
    return None


@_task("default")
async def large(number: int, text: str) -> None:
    if len(text) != LARGE:
        raise ValueError(f"{len(text)} characters came")
    _ran(number)


# ---- the mix


@dataclass(frozen=True)
class Kind:
    """A kind of job. `weight`: how often it comes, compared with the others; `runs`, `effects`: what it has to leave."""

    title: str
    task: AnyTask
    weight: int
    runs: int = 1
    effects: int = 0
    ends: JobStatus = JobStatus.COMPLETED
    seconds: tuple[float, float] | None = None
    """From and to, where the handler wants to be told a time."""
    delay: tuple[float, float] | None = None
    """From and to, where the job is not due at once."""


KINDS = (
    Kind("fast, async", nothing_async, 300),
    Kind("fast, sync", nothing_sync, 200),
    Kind("INSERT through ctx.session, async", insert_async, 130, effects=1),
    Kind("INSERT through ctx.session, sync", insert_sync, 130, effects=1),
    Kind("scheduled, up to a minute ahead", nothing_async, 60, delay=(1.0, LATEST)),
    Kind("scheduled, with an INSERT", insert_sync, 60, effects=1, delay=(1.0, LATEST)),
    Kind("slow, async", slow_async, 30, seconds=(1.0, LONGEST)),
    Kind("slow, sync, in a transaction", slow_sync, 15, effects=1, seconds=(0.2, 1.0)),
    Kind("snoozing twice", snooze, 30, runs=SNOOZES + 1, effects=1, seconds=(0.5, LONGEST)),
    Kind("failing once", stumble, 20, runs=2, effects=1),
    Kind("failing for good", doomed, 20, runs=DOOMED_ATTEMPTS, ends=JobStatus.FAILED),
    Kind("200 kB of arguments", large, 5),
)


@dataclass(frozen=True)
class Planned:
    """A job to be."""

    task: AnyTask
    arguments: dict[str, Any]

    def call(self) -> Call:
        """For `enqueue_many`."""
        return self.task.call(**self.arguments)

    def row(self) -> Job:
        """For `session.add`."""
        return enqueue(self.task, **self.arguments)


@dataclass(frozen=True)
class Mix:
    """Says of each number what job it is. `pace` stretches or shortens all times; `at_once`: nothing is scheduled."""

    seed: int
    pace: float = 1.0
    at_once: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Mix, (self.seed, self.pace, self.at_once)  # the deck is made again: its tasks cannot be sent

    @cached_property
    def _deck(self) -> list[Kind]:
        """It is dealt again and again, so that any stretch of the numbers has the same mix."""
        deck = [kind for kind in KINDS for _ in range(kind.weight)]
        random.Random(self.seed).shuffle(deck)
        return deck

    @cached_property
    def _texts(self) -> list[str]:
        chance = random.Random(self.seed)
        return [chance.randbytes(LARGE // 2).hex() for _ in range(4)]

    def kind(self, number: int) -> Kind:
        """What kind of job this number is."""
        return self._deck[number % len(self._deck)]

    def job(self, number: int) -> Planned:
        """The job with this number."""
        kind, chance = self.kind(number), random.Random(self.seed * 1_000_000_007 + number)
        arguments: dict[str, Any] = {"number": number}
        options: dict[str, Any] = {"priority": chance.randint(0, 9) if chance.random() < 0.3 else 4}
        if kind.seconds is not None:
            arguments["seconds"] = chance.uniform(*kind.seconds) * self.pace
        if kind.task is large:
            arguments["text"] = chance.choice(self._texts)
        if kind.delay is not None and not self.at_once:
            options["delay"] = chance.uniform(*kind.delay) * self.pace
        return Planned(kind.task.options(**options), arguments)

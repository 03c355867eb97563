"""The place of a measurement: our tables in a schema that exists for the measurement only."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.schema import CreateSchema, CreateTable

from ...errors import JobQueueError
from ...migrations import upgrade_database
from ...models import Job, status_literal
from ...rules.lifecycle import JobStatus
from ...util.urls import mask_passwords
from .. import drop_scratch, only_one, scratch_engine

SCHEMA = "sa_jobqueue_bench"

#: A table that marks the schema as ours.
_MARK = sa.Table("made_by_sa_jobqueue_bench", sa.MetaData(schema=SCHEMA), sa.Column("n", sa.Integer))


@dataclass(frozen=True)
class Place:
    """A database with empty job tables in the schema of the measurement."""

    url: sa.URL
    engine: sa.Engine

    @property
    def address(self) -> str:
        """The URL for another process."""
        return self.url.render_as_string(hide_password=False)

    @contextmanager
    def looking(self) -> Generator[sa.Connection]:
        """A connection in autocommit whose queries use indexes."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            # By its own choice the planner would scan the table, and disturb the measurement.
            scans = ("enable_seqscan", "enable_bitmapscan")
            connection.execute(sa.select(*(sa.func.set_config(name, "off", False) for name in scans)))
            yield connection

    def settle(self) -> None:
        """Vacuum and analyze now, as autovacuum would later."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text(f"VACUUM ANALYZE {SCHEMA}.job"))


def open_engine(url: str | sa.URL, **options: Any) -> sa.Engine:
    """An engine that finds our tables in the schema of the measurement."""
    return scratch_engine(url, SCHEMA, **options)


@contextmanager
def place(url: sa.URL) -> Generator[Place]:
    """Make the schema, and drop it at the end, also after an error.

    Raises JobQueueError where another measurement runs in this database, or the schema is there and was not made here.
    """
    engine = open_engine(url)
    try:
        with only_one("benchmark", url, SCHEMA), _ending_in_order():
            _make(engine)
            try:
                upgrade_database(engine, schema=SCHEMA)
                yield Place(url, engine)
            finally:
                with engine.begin() as connection:
                    drop_scratch(connection, SCHEMA)
    finally:
        engine.dispose()


def _make(engine: sa.Engine) -> None:
    """Create the schema. A schema that a killed run has left is dropped first; any other is left alone."""
    with engine.begin() as connection:
        there = sa.select(
            sa.func.to_regnamespace(SCHEMA).is_not(None), sa.func.to_regclass(_MARK.fullname).is_not(None)
        )
        exists, ours = connection.execute(there).one()
        if exists and not ours:
            raise JobQueueError(
                f"the schema {SCHEMA!r} exists in this database and was not made by this command, so it is left alone: "
                "rename it, or give another database with --database-url"
            )
        drop_scratch(connection, SCHEMA)
        connection.execute(CreateSchema(SCHEMA))
        connection.execute(CreateTable(_MARK))


@contextmanager
def _ending_in_order() -> Generator[None]:
    """Let SIGTERM raise an exception, as Ctrl-C does, so that everything is cleaned up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# ---- The processes of a measurement: each gets ready first, then all begin at once.

_SPAWN = multiprocessing.get_context("spawn")

_INTERRUPTS = {signal.SIGINT, signal.SIGTERM}

#: A program calls it when it is ready. It returns when the program may begin: the pipe that will tell it to stop.
Ready = Callable[[], Connection]


class Processes:
    """Processes that run the same program."""

    def __init__(self, size: int, work: Callable[..., Any], arguments: tuple[Any, ...], numbered: bool) -> None:
        self._returned: dict[int, Any] = {}
        self._started: list[tuple[SpawnProcess, Connection]] = []
        try:
            for number in range(size):
                with _without_interrupts():  # until `kill` knows of it
                    self._started.append(_start(work, (number, *arguments) if numbered else arguments))
            for _, pipe in self._started:
                _answer(pipe)
        except BaseException:
            self.kill()
            raise

    @property
    def results(self) -> list[Any]:
        """What the ended processes returned."""
        return list(self._returned.values())

    @property
    def pids(self) -> list[int]:
        """Their process numbers."""
        return [process.pid or 0 for process, _ in self._started]

    def go(self) -> None:
        """Let them begin."""
        for _, pipe in self._started:
            pipe.send(None)

    def stop(self) -> None:
        """Tell them to stop; some may have ended by themselves."""
        for _, pipe in self._started:
            with suppress(OSError):
                pipe.send(None)

    def check(self) -> None:
        """Raise what a process has died of; note the results of those that have ended."""
        for number, (_, pipe) in enumerate(self._started):
            if number not in self._returned and pipe.poll():
                self._returned[number] = _answer(pipe)

    @property
    def ended(self) -> bool:
        """Whether all have."""
        self.check()
        return len(self._returned) == len(self._started)

    def wait(self) -> None:
        """Until all have ended."""
        for number, (process, pipe) in enumerate(self._started):
            if number not in self._returned:
                self._returned[number] = _answer(pipe)
            process.join()

    def kill(self) -> None:
        """End them at once."""
        for process, _ in self._started:
            process.kill()
            process.join()


@contextmanager
def processes(size: int, work: Callable[..., Any], *arguments: Any, numbered: bool = False) -> Generator[Processes]:
    """Start `work(ready, *arguments)` in `size` processes; each calls `ready()`, which returns when all may begin.

    `numbered`: each gets its number, from 0 on, before the arguments.

    The end of the block waits for the processes; an error kills them. Raises JobQueueError if a process failed.
    """
    group = Processes(size, work, arguments, numbered)
    try:
        yield group
        group.wait()
    except BaseException:
        group.kill()
        raise


def _start(work: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[SpawnProcess, Connection]:
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_run, args=(work, theirs, arguments), daemon=True)
    process.start()
    theirs.close()
    return process, ours


@contextmanager
def _without_interrupts() -> Generator[None]:
    """Put off Ctrl-C and SIGTERM: a process that is just starting could not handle them, and inherits that they wait.

    In this process another thread may get the signal, so a handler puts it off, too.
    """
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    resource_tracker.ensure_running()  # the first start would start it, and it lets Ctrl-C through again
    heard: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _: heard.append(number)) for number in _INTERRUPTS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if heard:
            signal.raise_signal(heard[0])


def _answer(pipe: Connection) -> Any:
    try:
        what, said = pipe.recv()
    except EOFError:
        raise JobQueueError("a process of the measurement has died") from None
    if what == "error":
        message, details = (mask_passwords(text) for text in said)
        failure = JobQueueError(f"a process of the measurement failed: {message}")
        failure.add_note(details)
        raise failure
    return said


def _run(work: Callable[..., Any], pipe: Connection, arguments: tuple[Any, ...]) -> None:
    # Ctrl-C in a terminal reaches all processes; the measuring process ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)

    def ready() -> Connection:
        pipe.send(("ready", None))
        pipe.recv()
        return pipe

    with suppress(EOFError, BrokenPipeError):  # the measuring process has gone
        try:
            pipe.send(("result", work(ready, *arguments)))
        except EOFError:
            raise
        except BaseException as error:
            reason = getattr(error, "orig", None) or error
            pipe.send(("error", (f"{type(error).__name__}: {reason}", traceback.format_exc())))


# ---- Progress seen from outside: what another connection sees is durable.

T = TypeVar("T")

#: Called with the number of jobs done and the number of all.
Tell = Callable[[int, int], None]

#: Seconds without any progress after which something must be wrong.
_STALLED = 60.0
_QUEUED, _RUNNING = status_literal(JobStatus.QUEUED), status_literal(JobStatus.RUNNING)
#: Those that run, and those that wait, each as an index has them: a measured job has no concurrency key.
_LIVE = (Job.status == _RUNNING, sa.and_(Job.status == _QUEUED, Job.concurrency_key.is_(None)))


def seconds_to_drain(
    connection: sa.Connection, group: Processes, *, last: int | None = None, tell: Tell | None = None
) -> float:
    """Let the processes begin and return the seconds from the start of the first claim to the last durable completion.

    `last`: the id of the job that comes last; by default the highest id. The clock is the database's. It begins
    with the first claim's transaction, so the start of a process is no part of it, and ends when this connection sees
    no job, up to `last`, that is queued or running.
    """
    final: int = connection.scalars(sa.select(sa.func.max(Job.id))).one() if last is None else last
    progress = _Progress(connection, group, final, tell)
    group.go()
    seen = progress.until(progress.begun, 0.002)
    # A single row by its key, until it is done; only then what costs more.
    progress.until(progress.last_is_done, 0.01)
    ended = progress.until(progress.ended, 0.002)
    # A job that was claimed and completed between two queries is still in the table, unless it was deleted.
    begun = connection.scalar(sa.select(sa.func.min(Job.claimed_at)).where(Job.id <= final))
    return (ended - min(seen, begun or seen)).total_seconds()


class _Progress:
    def __init__(self, connection: sa.Connection, group: Processes, last: int, tell: Tell | None) -> None:
        self._connection, self._group, self._last, self._tell = connection, group, last, tell
        self._first = self._front()
        self._start: datetime = connection.scalars(sa.select(sa.func.statement_timestamp())).one()

    def begun(self) -> datetime | None:
        """When the first claim began, once it is there."""
        at = self._connection.scalar(sa.select(sa.func.min(Job.claimed_at)).where(Job.status == _RUNNING))
        return self._start if at is None and self.last_is_done() else at

    def last_is_done(self) -> bool:
        live = sa.or_(Job.status == _QUEUED, Job.status == _RUNNING)
        return self._connection.scalar(sa.select(Job.id).where(Job.id == self._last, live)) is None

    def ended(self) -> datetime | None:
        """The time now, if nothing is live any more."""
        live = [sa.select(Job.id).where(is_live, Job.id <= self._last).exists() for is_live in _LIVE]
        return self._connection.scalar(sa.select(sa.func.statement_timestamp()).where(~live[0], ~live[1]))

    def _front(self) -> int:
        """The id of the next job to be claimed: nearly all before it are done. It is found by an index."""
        due = sa.select(Job.id).where(_LIVE[1], Job.queue == "default", Job.priority == 4)
        found = self._connection.scalar(due.order_by(Job.run_at, Job.id).limit(1))
        return self._last + 1 if found is None else found

    def _live(self) -> int:
        """How many jobs are queued or running; a slow query."""
        both = [sa.select(Job.id).where(is_live, Job.id <= self._last) for is_live in _LIVE]
        return self._connection.scalars(
            sa.select(sa.func.count()).select_from(both[0].union_all(both[1]).subquery())
        ).one()

    def until(self, look: Callable[[], T | None], pause: float) -> T:
        """Call `look` until its result is true, and return it."""
        live, asked_at, said_at = -1, time.monotonic(), 0.0
        while not (found := look()):
            self._group.check()
            now = time.monotonic()
            if self._tell is not None and now - said_at >= 0.25:
                said_at = now
                self._tell(self._front() - self._first, self._last + 1 - self._first)
            if now - asked_at > _STALLED:
                if live == (live := self._live()):
                    raise JobQueueError(f"no job has come to an end for {_STALLED:g} s, and {live} are left")
                asked_at = now
            time.sleep(pause)
        return found


def live_numbers(connection: sa.Connection) -> set[int]:
    """The numbers of the jobs that are queued or running."""
    number = Job.args["n"].astext.cast(sa.Integer)
    running, queued = (sa.select(number).where(is_live) for is_live in _LIVE)
    return set(connection.scalars(queued.union_all(running)))

"""The worker: one process that serves some queues.

>>> worker = Worker("postgresql://localhost/shop", queues={"mail": 10, "default": 50})
>>> worker.run()  # doctest: +SKIP

`run()` blocks and heeds SIGTERM and SIGINT: the first lets running jobs finish, the second does not wait for them.
`await worker.serve()` does the same inside a loop that is running already, without signals; `stop()` ends it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from enum import IntEnum
from time import monotonic
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from .. import operations
from ..context import ClaimedJob
from ..errors import ConfigurationError, DatabaseUnavailable
from ..lifecycle import Change, Event, Rules, decide
from ..migrations import check_schema
from ..models import SCHEMA, Job
from ..operations import Answer
from ..outcomes import Released
from ..settings import WorkerSettings
from ..tasks import Registry, default_registry
from ..urls import database_url, mask_passwords
from ..version import __version__
from .connections import Connector, check_engine, leave_out_closed
from .executor import Executor, Sessions
from .flight import Flight, Flights, Stop
from .lanes import Lane
from .listener import Listener
from .maintenance import Maintenance
from .runners import Runners
from .service import Service
from .signals import hearing_signals
from .writer import OutcomeWriter

__all__ = ["Ending", "Worker"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Connections of a worker process beside those of the handlers' sessions: service, maintenance, listener.
SERVICE_CONNECTIONS = 3
#: After the grace time, how long a handler that was asked to stop may take.
_LAST_CALL = 1.0
#: An event loop that does nothing for so many seconds, when all should have ended, is blocked.
_BEAT = 0.5
#: How long writing the last outcomes may take.
_FLUSH = 10.0


class Ending(IntEnum):
    """Why `run()` returned, as an exit code."""

    STOPPED = 0
    RECYCLE = 75  # asked to be started anew: max_jobs, max_memory, or all slots stuck


class Worker:
    """Serves `queues`, each with so many slots.

    `database`: a URL, or an `Engine`; where async handlers use `ctx.session`, give an `AsyncEngine` beside an Engine.
    With a URL the worker makes both itself. `sessionmaker`, `async_sessionmaker`: the application's own, for
    `ctx.session`. `registry`: the tasks it knows. `schema`: where the tables are, if not in `sa_jobqueue` and not
    said by the engine's `schema_translate_map`. `listen_url`: a direct URL for LISTEN when `database` is a pooler.
    `listen=False`: only poll. `max_jobs`, `max_memory` (bytes): end after so many jobs, or above so much resident
    memory, to be started anew. Everything else is in `settings`.

    Raises ConfigurationError for what cannot work.
    """

    def __init__(
        self,
        database: str | URL | Engine,
        queues: Mapping[str, int],
        *,
        async_engine: AsyncEngine | None = None,
        sessionmaker: sessionmaker[Session] | None = None,
        async_sessionmaker: async_sessionmaker[AsyncSession] | None = None,
        registry: Registry = default_registry,
        schema: str | None = None,
        listen: bool = True,
        listen_url: str | URL | None = None,
        max_jobs: int | None = None,
        max_memory: int | None = None,
        settings: WorkerSettings | None = None,
        job: type[Job] = Job,
    ) -> None:
        self.queues = _checked_queues(queues)
        self.settings = settings or WorkerSettings()
        self.registry = registry
        self.id = uuid.uuid4()
        self.concurrency = sum(self.queues.values())
        self._max_jobs, self._max_memory = max_jobs, max_memory
        self._job = job
        self._ours: list[Engine] = []
        self._ours_async: AsyncEngine | None = None
        if isinstance(database, Engine):
            self.engine = database
        else:
            self.engine = self._make_engine(database_url(database))
            if async_engine is None:
                async_engine = self._ours_async = create_async_engine(self.engine.url, **self._engine_options())
                leave_out_closed(async_engine.sync_engine)
        self._listener_engine: Engine | None = None
        if listen:
            self._listener_engine = self.engine if listen_url is None else self._make_engine(database_url(listen_url))
        given: Mapping[Any, Any] = self.engine.get_execution_options().get("schema_translate_map") or {}
        self._translate: dict[str | None, str | None] = {SCHEMA: schema} if schema is not None else dict(given)
        self._sessions = Sessions(
            engine=self.engine,
            async_engine=async_engine,
            maker=sessionmaker,
            async_maker=async_sessionmaker,
            translate=self._translate,
            idle_timeout=self.settings.session_idle_timeout,
            worker=str(self.id),
            job=job,
        )
        self.counts: Counter[str] = Counter()
        """What came of the jobs so far: by event, and "rescued", "lost", "unknown"."""
        self._count_lock = threading.Lock()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hurry: asyncio.Event | None = None
        self._task: asyncio.Task[Any] | None = None
        self._signals = 0
        self._serving = False
        self._ending = Ending.STOPPED

    # ---- running

    def run(self, *, until_idle: bool = False) -> Ending:
        """Work until a signal comes (or, `until_idle`, until there is nothing due); what it ended for.

        Raises SchemaError, DatabaseUnavailable, TaskError, ConfigurationError when it cannot begin.
        """
        with suppress(RuntimeError):  # there should be no loop
            asyncio.get_running_loop()
            raise ConfigurationError("an event loop is running here: use `await worker.serve()` instead of run()")
        loop = _new_loop()
        try:
            asyncio.set_event_loop(loop)
            with hearing_signals(self._heed_signal, self._end_blocked_loop):
                return loop.run_until_complete(self.serve(until_idle=until_idle))
        finally:
            # Not asyncio.run: it would wait for handlers that ignore being cancelled.
            asyncio.set_event_loop(None)
            loop.close()

    def _heed_signal(self, number: signal.Signals) -> float:
        """Stop; returns after how many seconds the handlers should have come to their end."""
        self._signals += 1
        now = self._signals > 1
        if now:
            logger.warning("%s again: leaving now", number.name)
        else:
            logger.info("%s: finishing what is running, for at most %g s", number.name, self.settings.grace)
        self.stop(now=now)
        return _LAST_CALL if now else self.settings.grace + _LAST_CALL

    def _end_blocked_loop(self) -> None:
        """The time to leave is over. If a handler blocks the event loop, give back what it holds, and end the process."""
        loop, beat = self._loop, threading.Event()
        if loop is None or not self._serving:
            return
        try:
            loop.call_soon_threadsafe(beat.set)
        except RuntimeError:
            return  # it is closed: run() is about to return
        if beat.wait(_BEAT):
            return
        logger.error("a handler blocks the event loop; what runs is given back, and the process ends")
        self._close_lanes()
        for flight in self._flights:
            self._executor.give_up(flight, Released(started=flight.started is not None))
        self._finish_services()
        logging.shutdown()
        os._exit(self._ending)

    def stop(self, *, now: bool = False) -> None:
        """End `run()` or `serve()`: claim no more, let what runs finish; `now`: do not wait for it. From any thread."""
        loop, event = self._loop, self._stop
        if loop is None or event is None:
            return
        if now:
            self._signals = max(self._signals, 2)
        try:
            loop.call_soon_threadsafe(event.set)
            if now and self._hurry is not None:
                loop.call_soon_threadsafe(self._hurry.set)
        except RuntimeError:
            logger.debug("the event loop is closed: the worker has ended")

    def _leaving(self) -> bool:
        """Whether a task that is cancelled is so because all are: with the one that serves, or after its end."""
        return not self._serving or (self._task is not None and self._task.cancelling() > 0)

    @property
    def serving(self) -> bool:
        """Whether it has begun, and not yet ended."""
        return self._serving

    async def serve(self, *, until_idle: bool = False) -> Ending:
        """Work inside the running event loop until `stop()` is called."""
        self.registry.resolve()
        self._loop, self._stop, self._hurry = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self._task, self._ending = asyncio.current_task(), Ending.STOPPED
        if self._signals:
            self._stop.set()  # a signal came before there was anything to stop
        try:
            await _apart(self._check_database)
        except BaseException:
            await self._dispose()
            raise
        self._assemble(until_idle)
        logger.info("worker %s serves %s", self.id, ", ".join(f"{name}={n}" for name, n in self.queues.items()))
        self._serving = True
        self._service.start()
        self._maintenance.start()
        if self._listener is not None:
            self._listener.start()
        else:
            logger.info("not listening for wake-ups; polling every %g s", self.settings.poll)
        try:
            await self._watch()
        finally:
            await self._shut_down()
            self._serving = False
        return self._ending

    async def _watch(self) -> None:
        """Until it is time to stop: because somebody said so, or to be started anew."""
        assert self._stop is not None
        while not self._stop.is_set():
            try:
                await asyncio.wait_for(self._stop.wait(), timeout=1.0 if self._max_jobs is None else 0.1)
            except TimeoutError:
                if (reason := self._wants_recycling()) is not None:
                    logger.warning("%s: ending, to be started anew", reason)
                    self._ending = Ending.RECYCLE
                    return
                self._service.watch.check()
                self._maintenance.watch.check()

    def _wants_recycling(self) -> str | None:
        waiting = any(lane.waiting for lane in self._lanes.values())
        if self._max_jobs is not None and self._service.claimed >= self._max_jobs and not waiting:
            return f"{self._service.claimed} jobs were claimed (max_jobs {self._max_jobs})"
        if self._max_memory is not None and (resident := _resident()) > self._max_memory:
            return f"{resident:,} bytes are resident (max_memory {self._max_memory:,})"
        for lane in self._lanes.values():
            if lane.stuck >= lane.limit:
                return f"all {lane.limit} slots of queue {lane.name!r} are held by handlers that timed out"
        return None

    async def _shut_down(self) -> None:
        """Two steps: let what runs finish; after the grace time, or a second signal, stop it and give it back."""
        assert self._hurry is not None
        self._close_lanes()
        await self._wait_for_runs(self.settings.grace, unless=self._hurry)
        left = [flight for flight in self._flights if not flight.reported]
        if left:
            logger.warning("%d jobs still run; they are stopped and given back", len(left))
            for flight in left:
                self._stop_flight(flight, Stop.SHUTDOWN)
            await self._wait_for_runs(_LAST_CALL)
            for flight in left:
                self._executor.give_up(flight, Released(started=flight.started is not None))
        await _apart(self._finish_services)
        await self._dispose()
        logger.info("worker %s has left: %s", self.id, ", ".join(f"{k} {v}" for k, v in sorted(self.counts.items())))

    async def _dispose(self) -> None:
        """Close the pools that are ours."""
        if self._ours_async is not None:
            await self._ours_async.dispose()
        for engine in self._ours:
            engine.dispose()

    def _close_lanes(self) -> None:
        """Claim no more, start no more, and give back what waits."""
        self._service.stop_claiming()
        for lane in self._lanes.values():
            for flight in lane.close():
                self._executor.give_up(flight, Released())
        self._service.wake()

    def _finish_services(self) -> None:
        """Write the last outcomes, and end the threads; maintenance strikes this worker off."""
        if not self._service.finish(_FLUSH):
            logger.error("%d outcomes could not be written; the jobs' leases will run out", len(self._writer))
        self._maintenance.finish(2.0)
        if self._listener is not None:
            self._listener.finish(2.0)

    async def _wait_for_runs(self, seconds: float, *, unless: asyncio.Event | None = None) -> None:
        """Until no handler runs and none of their commits is under way, at most `seconds`."""
        until = monotonic() + seconds
        while monotonic() < until and any(not flight.reported for flight in self._flights):
            if unless is not None and unless.is_set():
                return
            await asyncio.sleep(0.02)

    # ---- parts

    def _assemble(self, until_idle: bool) -> None:
        settings, translate = self.settings, self._translate
        connector = Connector(self.engine, lease=settings.lease, pooled=settings.pooled, translate=translate)
        self._flights = Flights()
        self._writer = OutcomeWriter(self._written, worker=str(self.id), job=self._job)
        self._executor = Executor(self._sessions, self._report, self._note, self._leaving)
        assert self._loop is not None
        self._runners = Runners(self._loop, self._executor, self._ended)
        self._lanes = {
            name: Lane(name, limit, buffer=settings.buffer, call=self._runners.call)
            for name, limit in self.queues.items()
        }  # fmt: skip
        self._listener = None
        if self._listener_engine is not None:
            engine = self._listener_engine.execution_options(schema_translate_map=translate)
            self._listener = Listener(engine, self._heard, job=self._job)
        self._service = Service(
            connector,
            worker=str(self.id),
            lanes=self._lanes,
            writer=self._writer,
            take_in=self._take_in,
            flights=self._flights,
            settings=settings,
            listening=lambda: self._listener is not None and self._listener.listening,
            idle=self.stop if until_idle else None,
            max_jobs=self._max_jobs,
            job=self._job,
        )
        self._maintenance = Maintenance(
            connector,
            worker=str(self.id),
            flights=self._flights,
            lanes=self._lanes,
            registry=self.registry,
            executor=self._executor,
            alive=self._alive,
            leave=lambda connection: operations.leave(connection, self.id),
            stop=self._stop_flight,
            wake=self._wake,
            settings=settings,
            job=self._job,
        )
        self._warned: dict[str, float] = {}

    def _wake(self) -> None:
        self._service.wake()

    def _ended(self, lane: Lane) -> None:
        self._service.ended(lane)

    def _heard(self, queue: str | None) -> None:
        self._service.look_at(queue)

    def _take_in(self, jobs: list[ClaimedJob]) -> None:
        """Jobs that were claimed just now: to the lanes; what this worker does not know goes back."""
        known, now = self.registry.get, monotonic()
        by_lane: dict[str, list[Flight]] = {name: [] for name in self._lanes}
        flights: list[Flight] = []
        for job in jobs:
            task = known(job.task)
            if task is None:
                self._return_unknown(job)
                continue
            flight = Flight(job, task, now)
            flights.append(flight)
            by_lane[job.queue].append(flight)
        self._flights.add(flights)
        for name, batch in by_lane.items():
            if batch:
                for flight in self._lanes[name].feed(batch):  # the worker leaves
                    self._executor.give_up(flight, Released())

    def _return_unknown(self, job: ClaimedJob) -> None:
        """Another release may know the task: back to the queue with a delay, and no attempt spent."""
        self.counts["unknown"] += 1
        if self._warned.get(job.task, 0.0) < monotonic():
            self._warned[job.task] = monotonic() + 60
            logger.warning(
                "job %d: no task named %r is registered here; it goes back for %g s. Is its module imported (--app), "
                "or was it renamed without an alias?", job.id, job.task, self.settings.unknown_delay,
                extra={"job_id": job.id, "task": job.task, "queue": job.queue},
            )  # fmt: skip
        self._writer.add(decide(job, Released(self.settings.unknown_delay), Rules(), random=0.5))

    def _report(self, flight: Flight, change: Change | None) -> None:
        """An outcome: on its way to the database; None: there is nothing left to write."""
        flight.reported = True
        if change is None:
            self._flights.drop(flight.job.id, flight.job.claims)
        else:
            self._writer.add(change)

    def _written(self, changes: list[Change], answer: Answer) -> None:
        self._flights.drop_all(changes)
        if answer is Answer.APPLIED:
            self._note(*changes)
            return
        for change in changes:
            self.counts["lost"] += 1
            logger.info("job %d: the outcome (%s) came too late; its claim was over", change.id, change.event.value)

    def _note(self, *changes: Change) -> None:
        completed = sum(change.event is Event.COMPLETE for change in changes)
        with self._count_lock:
            if completed:
                self.counts[Event.COMPLETE.value] += completed
            if completed < len(changes):
                self.counts.update(change.event.value for change in changes if change.event is not Event.COMPLETE)

    def _stop_flight(self, flight: Flight, why: Stop) -> None:
        """Ask a run to end; an async handler is cancelled, on its loop."""
        if flight.task.is_async and self._loop is not None:
            self._loop.call_soon_threadsafe(flight.ask_to_stop, why)
        else:
            flight.ask_to_stop(why)

    # ---- the database

    def _engine_options(self) -> dict[str, Any]:
        connect_args: dict[str, Any] = {
            "connect_timeout": 10,
            "keepalives": 1,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 20_000,
        }
        if self.settings.pooled:
            connect_args["prepare_threshold"] = None
        # One connection per slot, so that no handler waits for another's; the service takes its own out of the pool.
        return {
            "pool_size": max(self.concurrency, 1),
            "max_overflow": SERVICE_CONNECTIONS,
            "connect_args": connect_args,
        }

    def _make_engine(self, url: URL) -> Engine:
        engine = create_engine(url, **self._engine_options())
        leave_out_closed(engine)
        self._ours.append(engine)
        return engine

    def _check_database(self) -> None:
        """Is the server there, has it our schema, can it take our connections?"""
        try:
            with self.engine.connect() as connection:
                check_engine(connection)
                translated = connection.execution_options(schema_translate_map=self._translate)
                check_schema(translated, schema=self._translate.get(SCHEMA) or SCHEMA)
                limit = int(connection.execute(text("SHOW max_connections")).scalar_one())
        except DBAPIError as error:
            raise DatabaseUnavailable(f"the database does not answer: {mask_passwords(str(error.orig))}") from error
        if limit < SERVICE_CONNECTIONS + 1:
            raise ConfigurationError(f"the server allows {limit} connections; a worker needs {SERVICE_CONNECTIONS + 1}")
        if limit < SERVICE_CONNECTIONS + self.concurrency:
            logger.warning(
                "the server allows %d connections; with %d slots this worker may want %d, if every handler uses "
                "ctx.session at once", limit, self.concurrency, SERVICE_CONNECTIONS + self.concurrency,
            )  # fmt: skip

    def _alive(self, connection: Connection) -> None:
        operations.enrol(
            connection,
            self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=list(self.queues),
            concurrency=self.concurrency,
            version=__version__,
        )


async def _apart(work: Callable[[], T]) -> T:
    """Do `work` on a thread of its own: those of asyncio may all be taken by handlers that do not end."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="sa-jobqueue worker", daemon=True).start()
    return await asyncio.wrap_future(done)


def _checked_queues(queues: Mapping[str, int]) -> dict[str, int]:
    if not queues:
        raise ConfigurationError("a worker needs queues: {'default': 10}")
    for name, slots in queues.items():
        if not isinstance(name, str) or not 1 <= len(name) <= 200 or "\x00" in name:
            raise ConfigurationError(f"a queue's name has 1 to 200 characters and no NUL, not {name!r}")
        if isinstance(slots, bool) or not isinstance(slots, int) or not 1 <= slots <= 10_000:
            raise ConfigurationError(f"queue {name!r} needs 1 to 10,000 slots, not {slots!r}")
    return dict(queues)


def _new_loop() -> asyncio.AbstractEventLoop:
    """The loop of uvloop, where it is installed (extra `uvloop`), else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _resident() -> int:
    """Bytes of memory resident now."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

"""The parts of a worker that serves, connected: what is claimed goes in, outcomes come out and are counted.

The service claims jobs and hands them to `take_in`; lanes hold them for runners, which have the executor run them; what
came of each goes to the writer, which the service empties.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic

from sqlalchemy import Connection, Engine

from .. import operations
from ..context import ClaimedJob
from ..lifecycle import Change, Event, Rules, decide
from ..log import get_logger
from ..models import Job
from ..operations import Answer
from ..outcomes import Outcome, Released
from ..settings import WorkerSettings
from ..tasks import Registry
from ..version import __version__
from .connections import Connector
from .engines import Engines
from .executor import Executor, Sessions
from .flight import Flight, Flights, Stop
from .lanes import Lane
from .listener import Listener
from .lookout import Lookout
from .maintenance import Maintenance
from .part import PartThread
from .reopening import Reopening
from .runners import Runners
from .service import Service
from .unknown import UnknownTasks
from .writer import OutcomeWriter

__all__ = ["Assignment", "Crew"]

logger = get_logger(__name__)

#: How long writing the last outcomes may take, and what is under way elsewhere.
_FLUSH, _LAST_CHORE = 10.0, 2.0
#: So many times as many bytes as `enqueue()` sent can the text be that comes back: `1e308` has 309 digits.
_UNFOLDS = 64


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker was told to do, and with what."""

    id: uuid.UUID
    queues: dict[str, int]
    registry: Registry
    settings: WorkerSettings
    engines: Engines
    sessions: Sessions
    max_jobs: int | None
    max_memory: int | None
    job: type[Job]

    @property
    def place(self) -> str:
        """Where it works, for people: "web-1:4711"."""
        return f"{socket.gethostname()}:{os.getpid()}"


class Crew:
    """The parts for one `serve()`; made on the event loop that runs async handlers.

    `counts`: where to count. `leaving`: whether a task that is cancelled is so because all are. `idle`: called when
    nothing is due any more. `hopeless`: called, on another thread, when the event loop stays blocked past a timeout.
    """

    def __init__(
        self,
        assignment: Assignment,
        counts: Counter[str],
        *,
        leaving: Callable[[], bool],
        idle: Callable[[], None] | None,
        hopeless: Callable[[], None],
    ) -> None:
        engines, settings, job = assignment.engines, assignment.settings, assignment.job
        worker = str(assignment.id)
        connector = Connector(
            engines.main, lease=settings.lease, pooled=settings.pooled, translate=engines.translate
        )  # fmt: skip
        self._assignment = assignment
        self._counts, self._count_lock = counts, threading.Lock()
        self._unknown = UnknownTasks(settings.unknown_delay)
        self._loop = asyncio.get_running_loop()
        self.flights = Flights()
        self.writer = OutcomeWriter(self._written, job=job)
        self.executor = Executor(
            assignment.sessions,
            self._report,
            self._note,
            leaving,
            self._without_session,
            max_rescues=settings.max_rescues,
            log_jobs=settings.log_jobs,
        )
        self.runners = Runners(self._loop, self.executor, self._ended)
        self.lanes = {
            name: Lane(name, limit, buffer=settings.buffer, call=self.runners.call)
            for name, limit in assignment.queues.items()
        }  # fmt: skip
        self.service = Service(
            connector,
            worker=worker,
            lanes=self.lanes,
            writer=self.writer,
            take_in=self._take_in,
            set_aside=self._set_aside,
            flights=self.flights,
            settings=settings,
            listening=lambda: self.listener is not None and self.listener.listening,
            idle=idle,
            max_jobs=assignment.max_jobs,
            most_text=_most_text(assignment.registry),
            job=job,
        )
        self.reopening = Reopening(self._loop, self.lanes, self.service.wake)
        self.listener: Listener | None = None
        if engines.listener is not None:
            engine = engines.listener.execution_options(schema_translate_map=engines.translate)
            self.listener = Listener(engine, self.service.look_at, worker=worker, job=job)
        self.lookout = Lookout(self._loop, self.flights, hopeless)
        self.maintenance = Maintenance(
            connector,
            flights=self.flights,
            lanes=self.lanes,
            registry=assignment.registry,
            executor=self.executor,
            alive=self._alive,
            leave=lambda connection: operations.leave(connection, assignment.id),
            stop=self.stop_flight,
            wake=self.service.wake,
            blocked=lambda: self.lookout.blocked,
            settings=settings,
            job=job,
        )

    # ---- beginning and ending

    def start(self) -> None:
        """Begin to claim, to maintain, to listen, and to look after all that."""
        self.service.start()
        self.maintenance.start()
        if self.listener is not None:
            self.listener.start()
        else:
            logger.info("not listening for wake-ups; polling every %g s", self._assignment.settings.poll)
        self.lookout.start([part.watch for part in (self.service, self.maintenance, self.listener) if part is not None])

    def ended_part(self) -> PartThread | None:
        """A thread that should go on, and does not."""
        parts = (self.service, self.maintenance, self.listener, self.lookout)
        return next((part.thread for part in parts if part is not None and part.thread.has_ended), None)

    def running(self) -> list[Flight]:
        """The jobs whose outcomes are not known yet."""
        return [flight for flight in self.flights.runs() if not flight.reported]

    def stop_flight(self, flight: Flight, why: Stop) -> None:
        """Ask a run to end; an async handler is cancelled, on its loop."""
        if flight.task.is_async:
            self._loop.call_soon_threadsafe(flight.ask_to_stop, why)
        else:
            flight.ask_to_stop(why)

    def give_back(self, flights: Iterable[Flight]) -> None:
        """Wait for these no longer: they go back to their queues."""
        for flight in flights:
            self.executor.give_up(flight, Released(started=flight.started is not None))

    def close_lanes(self) -> None:
        """Claim no more, start no more, and give back what waits."""
        self.service.stop_claiming()
        for lane in self.lanes.values():
            for flight in lane.close():
                self.executor.give_up(flight, Released())
        self.service.wake()

    def finish(self) -> None:
        """Write the last outcomes, and end the threads; maintenance strikes this worker off."""
        written = self.service.finish(_FLUSH)
        self.reopening.finish()
        self.runners.finish()
        self.maintenance.finish(_LAST_CHORE)
        if self.listener is not None:
            self.listener.finish(_LAST_CHORE)
        self.lookout.finish(_LAST_CHORE)
        if not written:
            logger.error("%d outcomes could not be written; the jobs' leases will run out", len(self.writer))

    # ---- what the parts tell each other

    def _ended(self, lane: Lane) -> None:
        self.service.ended(lane)

    def _take_in(self, jobs: list[ClaimedJob], claimed_at: float) -> None:
        """Jobs that were claimed just now: to the lanes; what this worker does not know goes back."""
        known, now = self._assignment.registry.get, monotonic()
        by_lane: dict[str, list[Flight]] = {name: [] for name in self.lanes}
        flights: list[Flight] = []
        for job in jobs:
            task = known(job.task)
            if task is None:
                self._return_unknown(job)
                continue
            flight = Flight(job, task, now, claimed_at)
            flights.append(flight)
            by_lane[job.queue].append(flight)
        for lost in self.flights.add(flights):
            self._lose(lost)
        for name, batch in by_lane.items():
            if batch:
                for flight in self.lanes[name].feed(batch):  # the worker leaves
                    self.executor.give_up(flight, Released())

    def _lose(self, flight: Flight) -> None:
        """Its job was taken away, and claimed here again: no renewal will say that this run's claim is over."""
        if not flight.settled:
            logger.warning(
                "job %d: its claim was taken away, and it is claimed here again; the earlier run is stopped, and nothing it "
                "writes is kept",
                flight.job.id,
            )
            self.stop_flight(flight, Stop.LOST)

    def _set_aside(self, job: ClaimedJob, outcome: Outcome) -> None:
        """A job that was claimed and will not be run: this comes of it, unless the worker does not know it at all."""
        task = self._assignment.registry.get(job.task)
        if task is None:
            self._return_unknown(job)
        else:
            self.writer.add(decide(job, outcome, task.rules, random=0.5))

    def _return_unknown(self, job: ClaimedJob) -> None:
        """Another release may know the task: back to the queue with a delay, and no attempt spent."""
        self._counts["unknown"] += 1
        self.writer.add(decide(job, Released(self._unknown.seconds(job)), Rules(), random=0.5))

    def _without_session(self, flight: Flight, engine: Engine, why: str) -> None:
        self.reopening.pause(flight.job.queue, engine, why)

    def _report(self, flight: Flight, change: Change | None) -> None:
        """An outcome: on its way to the database; None: there is nothing left to write."""
        flight.reported = True
        if change is None:
            self.flights.drop(flight.job.id, flight.job.claim_token)
        else:
            self.writer.add(change)

    def _written(self, changes: list[Change], answer: Answer) -> None:
        self.flights.drop_all(changes)
        if answer is Answer.APPLIED:
            self._note(*changes)
            return
        for change in changes:
            self._counts["lost"] += 1
            logger.info("job %d: the outcome (%s) came too late; its claim was over", change.id, change.event.value)

    def _note(self, *changes: Change) -> None:
        completed = sum(change.event is Event.COMPLETE for change in changes)
        with self._count_lock:
            if completed:
                self._counts[Event.COMPLETE.value] += completed
            if completed < len(changes):
                self._counts.update(change.event.value for change in changes if change.event is not Event.COMPLETE)

    def _alive(self, connection: Connection) -> None:
        queues = self._assignment.queues
        operations.enrol(
            connection,
            self._assignment.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=list(queues),
            concurrency=sum(queues.values()),
            version=__version__,
        )


def _most_text(registry: Registry) -> int:
    """What `enqueue()` accepts is fetched, however far its limit was raised; PostgreSQL itself makes texts of 1 GiB at most."""
    return min(max(operations.MOST_TEXT, _UNFOLDS * registry.max_payload), 2**30)

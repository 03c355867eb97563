"""The parts of a worker that serves, connected: what is claimed goes in, outcomes come out and are counted.

The service claims jobs and hands them to `take_in`; lanes hold them for runners, which have the executor run them; what
came of each goes to the writer, which the service empties.
"""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic

from ..context import ClaimedJob
from ..lifecycle import Change, Rules, decide
from ..log import get_logger
from ..outcomes import Outcome, Released
from ..settings import WorkerSettings
from ..store import MOST_TEXT, Answer, Store
from ..tasks import Registry
from .claiming.claimer import Claimer
from .connections.engines import Engines
from .connections.listener import Listener
from .connections.service import Connector
from .maintenance.cancels import Cancels
from .maintenance.loop import Maintenance
from .maintenance.presence import Presence
from .maintenance.prune import Prune
from .maintenance.renew import Renewal
from .maintenance.rescue import Rescue
from .maintenance.timeouts import Timeouts
from .observer import Observer
from .process.threads import ServiceThread
from .running.executor import Executor
from .running.reopening import Reopening
from .running.run import Run, Runs, Stop
from .running.runners import Runners
from .running.sessions import Sessions
from .running.slots import Slots
from .running.writer import OutcomeWriter
from .unknown import UnknownTasks
from .watchdog import Watchdog

__all__ = ["Services", "WorkerSpec"]

logger = get_logger(__name__)

#: How long writing the last outcomes may take, and what is under way elsewhere.
_FLUSH, _LAST_CHORE = 10.0, 2.0
#: So many times as many bytes as `enqueue()` sent can the text be that comes back: `1e308` has 309 digits.
_UNFOLDS = 64


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker was told to do, and with what."""

    id: uuid.UUID
    queues: dict[str, int]
    registry: Registry
    settings: WorkerSettings
    engines: Engines
    sessions: Sessions
    max_jobs: int | None
    max_memory: int | None
    store: Store

    @property
    def place(self) -> str:
        """Where it works, for people: "web-1:4711"."""
        return f"{socket.gethostname()}:{os.getpid()}"


class Services:
    """The parts for one `serve()`; made on the event loop that runs async handlers.

    `counts`: where to count. `leaving`: whether a task that is cancelled is so because all are. `idle`: called when
    nothing is due any more. `hopeless`: called, on another thread, when the event loop stays blocked past a timeout.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        counts: Counter[str],
        *,
        leaving: Callable[[], bool],
        idle: Callable[[], None] | None,
        hopeless: Callable[[], None],
    ) -> None:
        engines, settings, store = spec.engines, spec.settings, spec.store
        worker = str(spec.id)
        connector = Connector(
            engines.main, lease=settings.lease, pooled=settings.pooled, translate=engines.translate
        )  # fmt: skip
        self._spec = spec
        self.observer = Observer(counts)
        self._unknown = UnknownTasks(settings.unknown_delay)
        self._loop = asyncio.get_running_loop()
        self.runs = Runs(self._loop)
        self.writer = OutcomeWriter(self._written, store=store)
        self.all_slots: dict[str, Slots] = {}
        self.reopening = Reopening(self._loop, self.all_slots, self._wake)
        self.executor = Executor(
            spec.sessions,
            runs=self.runs,
            writer=self.writer,
            observer=self.observer,
            reopening=self.reopening,
            leaving=leaving,
            max_rescues=settings.max_rescues,
            log_jobs=settings.log_jobs,
        )
        self.runners = Runners(self._loop, self.executor, self._ended)
        for name, limit in spec.queues.items():
            self.all_slots[name] = Slots(name, limit, buffer=settings.buffer, call=self.runners.call)
        self.claimer = Claimer(
            connector,
            worker=worker,
            all_slots=self.all_slots,
            writer=self.writer,
            take_in=self._take_in,
            set_aside=self._set_aside,
            runs=self.runs,
            settings=settings,
            listening=lambda: self.listener is not None and self.listener.listening,
            idle=idle,
            max_jobs=spec.max_jobs,
            most_text=_most_text(spec.registry),
            store=store,
        )
        self.listener: Listener | None = None
        if engines.listener is not None:
            engine = engines.listener.execution_options(schema_translate_map=engines.translate)
            self.listener = Listener(engine, self.claimer.look_at, worker=worker, store=store)
        self.watchdog = Watchdog(self._loop, self.runs, hopeless)
        self.maintenance = Maintenance(
            connector,
            timeouts=Timeouts(
                self.runs,
                self.all_slots,
                executor=self.executor,
                watchdog=self.watchdog,
                claimer=self.claimer,
                hoard=settings.hoard,
            ),
            renewal=Renewal(connector, self.runs, lease=settings.lease, store=store),
            presence=Presence(connector, spec.id, spec.queues, lease=settings.lease, store=store),
            others=[
                Cancels(connector, self.runs, store=store),
                Rescue(connector, registry=spec.registry, observer=self.observer, settings=settings, store=store),
                Prune(connector, settings=settings, store=store),
            ],
            lease=settings.lease,
        )

    # ---- beginning and ending

    def start(self) -> None:
        """Begin to claim, to maintain, to listen, and to look after all that."""
        self.claimer.start()
        self.maintenance.start()
        if self.listener is not None:
            self.listener.start()
        else:
            logger.info("not listening for wake-ups; polling every %g s", self._spec.settings.poll)
        self.watchdog.start(
            [part.deadline for part in (self.claimer, self.maintenance, self.listener) if part is not None]
        )

    def ended_part(self) -> ServiceThread | None:
        """A thread that should go on, and does not."""
        parts = (self.claimer, self.maintenance, self.listener, self.watchdog)
        return next((part.thread for part in parts if part is not None and part.thread.has_ended), None)

    def running(self) -> list[Run]:
        """The jobs whose outcomes are not known yet."""
        return [run for run in self.runs.all() if not run.reported]

    def give_back(self, runs: Iterable[Run]) -> None:
        """Wait for these no longer: they go back to their queues."""
        for run in runs:
            self.executor.give_up(run, Released(started=run.started is not None))

    def close_slots(self) -> None:
        """Claim no more, start no more, and give back what waits."""
        self.claimer.stop_claiming()
        for slots in self.all_slots.values():
            for run in slots.close():
                self.executor.give_up(run, Released())
        self.claimer.wake()

    def finish(self) -> None:
        """Write the last outcomes, and end the threads; maintenance strikes this worker off."""
        written = self.claimer.finish(_FLUSH)
        self.reopening.finish()
        self.runners.finish()
        self.maintenance.finish(_LAST_CHORE)
        if self.listener is not None:
            self.listener.finish(_LAST_CHORE)
        self.watchdog.finish(_LAST_CHORE)
        if not written:
            logger.error("%d outcomes could not be written; the jobs' leases will run out", len(self.writer))

    # ---- what the parts tell each other

    def _ended(self, slots: Slots) -> None:
        self.claimer.ended(slots)

    def _wake(self) -> None:
        self.claimer.wake()

    def _take_in(self, jobs: list[ClaimedJob], claimed_at: float) -> None:
        """Jobs that were claimed just now: to the lanes; what this worker does not know goes back."""
        known, now = self._spec.registry.get, monotonic()
        by_lane: dict[str, list[Run]] = {name: [] for name in self.all_slots}
        runs: list[Run] = []
        for job in jobs:
            task = known(job.task)
            if task is None:
                self._return_unknown(job)
                continue
            run = Run(job, task, now, claimed_at)
            runs.append(run)
            by_lane[job.queue].append(run)
        for lost in self.runs.add(runs):
            self._lose(lost)
        for name, batch in by_lane.items():
            if batch:
                for run in self.all_slots[name].feed(batch):  # the worker leaves
                    self.executor.give_up(run, Released())

    def _lose(self, run: Run) -> None:
        """Its job was taken away, and claimed here again: no renewal will say that this run's claim is over."""
        if not run.settled:
            logger.warning(
                "job %d: its claim was taken away, and it is claimed here again; the earlier run is stopped, and nothing it "
                "writes is kept",
                run.job.id,
            )
            self.runs.stop(run, Stop.LOST)

    def _set_aside(self, job: ClaimedJob, outcome: Outcome) -> None:
        """A job that was claimed and will not be run: this comes of it, unless the worker does not know it at all."""
        task = self._spec.registry.get(job.task)
        if task is None:
            self._return_unknown(job)
        else:
            self.writer.add(decide(job, outcome, task.rules, random=0.5))

    def _return_unknown(self, job: ClaimedJob) -> None:
        """Another release may know the task: back to the queue with a delay, and no attempt spent."""
        self.observer.unknown()
        self.writer.add(decide(job, Released(self._unknown.seconds(job)), Rules(), random=0.5))

    def _written(self, changes: list[Change], answer: Answer) -> None:
        self.runs.drop_all(changes)
        if answer is Answer.APPLIED:
            self.observer.written(changes)
            return
        self.observer.lost(len(changes))
        for change in changes:
            logger.info("job %d: the outcome (%s) came too late; its claim was over", change.id, change.event.value)


def _most_text(registry: Registry) -> int:
    """What `enqueue()` accepts is fetched, however far its limit was raised; PostgreSQL itself makes texts of 1 GiB at most."""
    return min(max(MOST_TEXT, _UNFOLDS * registry.max_payload), 2**30)

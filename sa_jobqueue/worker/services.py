"""The parts of a serving worker: here they are made, connected, started and stopped.

The claimer claims jobs, and the intake takes them to their slots. Runners pull them from there, and the executor runs them.
Outcomes go to the writer, which the claimer empties.
"""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from ..errors import ConfigurationError
from ..rules.outcomes import Released
from ..rules.reasons import CLAIMS_FAIL
from ..rules.settings import WorkerSettings
from ..sql.claims import MOST_TEXT
from ..sql.store import Store
from ..sql.waking import DUE_SOON, PERMITS_CHANGED, SCHEDULES_CHANGED, SIGNALS_SENT, WORKFLOWS_CHANGED
from ..tasks.registry import Registry
from ..util.log import get_logger
from .children.loading import ChildSetup
from .children.runner import Children, ChildRunner
from .claiming.claimer import Claimer
from .connections.engines import Engines
from .connections.listener import Listener
from .connections.service import Connector
from .maintenance.chore import Chore, Governor
from .maintenance.limits import DeclareLimits, ForgetStates
from .maintenance.loop import Maintenance
from .maintenance.notes import CountBacklog, DropStrayNotes, KeepStats, WriteNotes, WriteStats
from .maintenance.presence import Presence, Vitals
from .maintenance.pressure import WatchPressure
from .maintenance.prune import KeepArchive, Prune
from .maintenance.renew import Renewal, Rescue
from .maintenance.schedules import EnqueueTicks
from .maintenance.steps import ResumeWaiting
from .maintenance.timeouts import Cancels, EndLate, FreeKeys, Timeouts
from .maintenance.workflows import FindWorkflows, KeepWorkflows
from .process.inside import ServiceThread, resident
from .running.attempt_end import Telling
from .running.batches import BatchExecutor
from .running.executor import Executor
from .running.life import Life
from .running.reopening import Reopening, Reports, Sessions
from .running.run import Kind, Run, Runs
from .running.runners import Runners
from .running.slots import AllSlots, Slots
from .running.steps import Checkpoints
from .running.writer import OutcomeWriter
from .tally import Observer, QueueState, Tally, WorkerState
from .watchdog import Watchdog

logger = get_logger(__name__)

#: Seconds that writing the last outcomes may take; seconds to wait for the current work of each other thread.
_FLUSH, _LAST_CHORE = 10.0, 2.0
#: The text that comes back may have this many times the bytes that `enqueue()` sent: `1e308` has 309 digits.
_UNFOLDS = 64
#: Seconds between two writes of the worker's row because of jobs that its claims skip.
_APART = 1.0


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker's queues, settings and resources."""

    id: uuid.UUID
    queues: dict[str, int]
    registry: Registry
    settings: WorkerSettings
    engines: Engines
    sessions: Sessions
    max_jobs: int | None
    max_memory: int | None
    store: Store
    children: ChildSetup

    @property
    def place(self) -> str:
        """The host and process id, for people: "web-1:4711"."""
        return f"{socket.gethostname()}:{os.getpid()}"


class Services:
    """The parts for a `serve()`; made on the event loop that runs async handlers.

    `tally` takes the counts. `leaving()`: whether all tasks of the loop are being cancelled. `idle()` is called when no job is
    due any more; `drain()`, on the maintenance thread, when an operator asks for it; `hopeless()`, on the watchdog's thread, while the
    event loop stays blocked past a timeout.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        tally: Tally,
        *,
        leaving: Callable[[], bool],
        idle: Callable[[], None] | None,
        drain: Callable[[], None],
        hopeless: Callable[[], None],
    ) -> None:
        engines, settings, store = spec.engines, spec.settings, spec.store
        worker = str(spec.id)
        connector = Connector(engines.main, settings.lease, settings.pooled, engines.translate, store)
        loop = asyncio.get_running_loop()
        self._spec = spec
        self.leaving = False
        """Whether it claims no more. Written by the thread that closes the slots, read by any thread."""
        self.all_slots = AllSlots(spec.queues, buffer=settings.buffer, call=self._call)
        self.observer = Observer(tally, self.all_slots)
        self.runs = Runs(loop, self.observer)
        self.writer = OutcomeWriter(
            self.runs.end, store=store, was_ours=lambda change: self.runs.has_lasted(change, settings.lease)
        )
        self.reopening = Reopening(loop, self.all_slots, self._wake)
        self.waits = ResumeWaiting(connector)
        self.checkpoints = Checkpoints(connector)
        self.life = Life(spec.registry.start_hooks, spec.registry.stop_hooks)
        options: Mapping[str, Any] = {
            "sessions": replace(spec.sessions, checkpoints=self.checkpoints, life=self.life),
            "report": Reports(self.runs, self.writer, self._announce_waits).report,
            "pause": self.reopening.pause,
            "leaving": leaving,
            "max_rescues": settings.max_rescues,
            "log_jobs": settings.log_jobs,
            "notes": self.runs.notes,
            "telling": Telling(),
        }
        self.executor = Executor(**options)
        batches = BatchExecutor(runs=self.runs, all_slots=self.all_slots, **options)
        self.children = Children(spec.children, max_jobs=settings.max_child_jobs)
        in_child = ChildRunner(
            self.children, self.executor, settings.child_grace, engines.main, self.reopening.pause, self.runs.notes
        )
        self.claimer = Claimer(
            connector,
            worker=worker,
            all_slots=self.all_slots,
            writer=self.writer,
            registry=spec.registry,
            executor=self.executor,
            runs=self.runs,
            settings=settings,
            listening=self._is_listening,
            tell_work=self._spare,
            idle=idle,
            put_back=self.waits.put_back,
            observer=self.observer,
            max_jobs=spec.max_jobs,
            most_text=_most_text(spec.registry),
        )
        self.runners = Runners(loop, self.executor, batches, self.claimer.ended, in_child.run)
        self.listener: Listener | None = None
        if engines.listener is not None:
            engine = engines.listener.execution_options(schema_translate_map=engines.translate)
            self.listener = Listener(engine, self._heard, worker=worker, store=store)
        self.watchdog = Watchdog(loop, self.runs, hopeless)
        self.cancels = Cancels(connector, self.runs, self._is_listening)
        self.ticks = EnqueueTicks(connector, spec.registry)
        self.limits = DeclareLimits(connector, spec.registry)
        self.runs.touched.wake = self.claimer.wake
        self.workflows = FindWorkflows(connector, self.runs.touched)
        self.governor = Governor(settings.thresholds)
        archive = KeepArchive(connector, spec.registry, months=settings.archive_months)
        presence = Presence(
            connector,
            spec.id,
            slots=lambda: self.all_slots.limits,
            change=self._change_slots,
            changing=lambda: self.claimer.changing,
            tasks=_known(spec.registry),
            vitals=self._vitals,
            tally=tally,
            next_look=self.ticks.hear,
            undeclared=self.limits.hear,
            archived=archive.hear,
            drain=drain,
        )
        self.claimer.skipped.changed = self._hasten_presence
        pressure = WatchPressure(connector, self.governor, hold_back=self.claimer.hold_back, tell=presence.hasten)
        self._presence, every = presence, settings.prune_every
        self._spared: Mapping[str, Chore] = {
            "waits": self.waits,
            "events": self.workflows,
            "late": EndLate(connector, registry=spec.registry, observer=self.observer),
            "kept": Prune(connector, archive, every=every),
            "keys": FreeKeys(connector, every),
            "states": ForgetStates(connector, every),
            "workflows": KeepWorkflows(connector, self.workflows, archive, every=every),
            "notes": DropStrayNotes(connector, every),
        }
        """The chores that are not done where a survey finds nothing for them to do, by their names in `work_for_chores`."""
        self.maintenance = Maintenance(
            connector,
            timeouts=Timeouts(self.runs, self.all_slots, batches, self.watchdog, self.claimer, settings.hoard),
            renewal=Renewal(connector, self.runs),
            presence=presence,
            stats=WriteStats(connector, tally, spec.id),
            notes=WriteNotes(connector, self.runs.notes),
            others=[
                self.cancels,
                self.ticks,
                self.limits,
                Rescue(connector, spec.registry, self.observer, settings.max_rescues, self.runs.touched),
                archive,
                *self._spared.values(),
                KeepStats(connector),
                CountBacklog(connector, tally),
                *([pressure] if settings.thresholds else []),
            ],
        )
        self.runs.notes.wake = self.maintenance.wake

    # ---- beginning and ending

    def check_children(self) -> None:
        """Start a child process if tasks need it. Raises ConfigurationError if it cannot run them."""
        self.children.check(self._spec.registry, self._spec.queues)

    def start(self) -> None:
        """Start the claimer, maintenance, the listener and the watchdog."""
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
        """A thread that should go on but has ended; None if all go on."""
        parts = (self.claimer, self.maintenance, self.listener, self.watchdog)
        return next((part.thread for part in parts if part is not None and part.thread.has_ended), None)

    def running(self) -> list[Run]:
        """The runs whose outcomes are not known yet."""
        return [run for run in self.runs.all() if run.ended is None]

    def reporting(self) -> bool:
        """Whether the outcome of a run is not counted yet. Until then, its slot is taken."""
        return any(slots.running > slots.stuck for slots in list(self.all_slots.values()))

    def give_back(self, runs: Iterable[Run]) -> None:
        """Give these jobs back to their queues, and wait for their handlers no longer."""
        for run in runs:
            self.executor.give_up(run, Released(started=run.started is not None))
        self.claimer.wake()

    def close_slots(self) -> None:
        """Claim and start no more jobs, and give back the jobs that wait."""
        self.leaving = True
        self.claimer.stop_claiming()
        for slots in list(self.all_slots.values()):
            for run in slots.close():
                self.executor.give_up(run, Released())
        self.claimer.wake()

    def finish(self) -> None:
        """Write the last outcomes, and end the threads and children; maintenance deletes this worker's row."""
        self.children.close()  # first: their last writes would only wait for the outcomes, or make them wait
        written = self.claimer.finish(_FLUSH)
        self.reopening.finish()
        self.runners.finish()
        self.checkpoints.close()
        self.executor.telling.finish(_LAST_CHORE)
        self.maintenance.finish(_LAST_CHORE)
        if self.listener is not None:
            self.listener.finish(_LAST_CHORE)
        self.watchdog.finish(_LAST_CHORE)
        if not written:
            logger.error("%d outcomes could not be written; the jobs' leases will run out", len(self.writer))

    def state(self, counts: Mapping[str, int], *, serving: bool) -> WorkerState:
        """The state of the worker just now. For any thread."""
        return WorkerState(
            serving=serving,
            queues={
                name: QueueState(slots.limit, slots.running, slots.waiting, slots.stuck, slots.paused)
                for name, slots in list(self.all_slots.items())
                if slots.limit or slots.running
            },
            counts=counts,
            listening=self._is_listening(),
            blocked=self.watchdog.blocked,
            leaving=self.leaving,
            away=self.claimer.away or self.maintenance.away,
            late=max(monotonic() - min(self.claimer.moves_at, self.maintenance.moves_at), 0.0),
            pressure=self.governor.reason,
            share=self.governor.share,
            claimed=self.observer.claimed,
            started=self.observer.started,
            ended=self.observer.ended,
            rescued=self.observer.rescued,
            unfinished=len(self.running()),
            unwritten=len(self.writer),
            refused=self.writer.refused,
            claims=tuple(self.observer.claims),
            claim_seconds=self.observer.claim_seconds,
            memory=resident(),
            loop_lag=self.watchdog.lag,
        )

    # ---- called by parts

    def _call(self, slots: Slots, kind: Kind) -> None:
        self.runners.call(slots, kind)  # made after the slots

    def _wake(self) -> None:
        self.claimer.wake()

    def _change_slots(self, wanted: Any) -> str | None:
        """Let the claimer change the slots as an operator wants. Returns the reason if this is impossible, else None. On the maintenance thread."""
        try:
            limits = self.all_slots.changed(wanted)
            self._spec.engines.grow(sum(limits.values()), now=sum(self.all_slots.limits.values()))
        except ConfigurationError as error:
            return str(error)

        def change() -> None:
            for run in self.all_slots.change(limits):
                self.executor.give_up(run, Released())
            self._presence.hasten()
            self.maintenance.wake()

        self.claimer.change_slots(change)
        return None

    def _vitals(self) -> Vitals:
        refused = self.claimer.refused
        return {
            "memory": resident(),
            "loop_lag": self.watchdog.lag,
            "pressure": self.governor.reason if refused is None else f"{CLAIMS_FAIL}{refused}",
            "skipped": self.claimer.skipped.told(),
        }

    def _spare(self, work: Collection[str], until: float) -> None:
        """Until then, spare the chores for which a survey found no work; do the others when they are due."""
        wakes = False
        for name, chore in self._spared.items():
            wakes = wakes or (name in work and chore.quiet_until > 0)
            chore.quiet_until = 0.0 if name in work else until
        if wakes:
            self.maintenance.wake()

    def _hasten_presence(self) -> None:
        """Show operators the skipped jobs soon, but not with a write for each job."""
        self._presence.hasten(apart=_APART)
        self.maintenance.wake()

    def _heard(self, payload: str | None) -> None:
        """Act on a NOTIFY: the name of a queue, "" for a cancel, or `SCHEDULES_CHANGED`. None: some may have been missed."""
        if payload != "":
            self.claimer.notify(payload)  # a queue may have any name, also those of announcements
        if payload == PERMITS_CHANGED:
            self.claimer.limits_changed()
        if payload == DUE_SOON:
            self.claimer.due_soon()
        if payload == SCHEDULES_CHANGED:
            self.ticks.announce()
        elif payload == WORKFLOWS_CHANGED:
            self.workflows.announce()
        elif payload == SIGNALS_SENT:
            self.waits.announce()
        elif not payload:
            self.cancels.announce()
            if payload is None:
                self.workflows.announce()
                self.waits.announce()
        else:
            return
        self.maintenance.wake()

    def _announce_waits(self) -> None:
        self.waits.announce()
        self.maintenance.wake()

    def _is_listening(self) -> bool:
        return self.listener is not None and self.listener.listening


def _known(registry: Registry) -> dict[str, dict[str, Any]]:
    """The tasks of a registry, in the form of `WorkerRow.tasks`."""
    return {
        task.name: {"queue": task.queue, "timeout": task.timeout, "aliases": list(task.aliases)}
        | ({} if task.version == 1 else {"version": task.version})
        for task in registry
    }


def _most_text(registry: Registry) -> int:
    """Bytes to fetch of a job's arguments at most: as many as `enqueue()` accepts. PostgreSQL's texts have 1 GiB at most."""
    return min(max(MOST_TEXT, _UNFOLDS * registry.max_payload), 2**30)

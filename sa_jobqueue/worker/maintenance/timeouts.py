"""Giving up what takes too long: handlers past their timeout that do not end by themselves, and jobs that get no slot."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

import sqlalchemy as sa

from ...rules.failures import describe
from ...rules.lifecycle import Event
from ...rules.outcomes import Failed, Released
from ...sql.expiry import Late
from ...tasks.registry import Registry
from ...util.log import get_logger
from ..claiming.claimer import Claimer
from ..connections.service import Connector
from ..running.executor import Executor
from ..running.run import Run, Runs, Stop
from ..running.slots import Slots
from ..running.timeouts import is_late, timed_out
from ..tally import Observer
from ..watchdog import Watchdog
from .chore import Chore, Turn


class Timeouts:
    """Ends late attempts, whatever their handlers still do. The rules are in `running.timeouts`."""

    def __init__(
        self,
        runs: Runs,
        all_slots: Mapping[str, Slots],
        *,
        executor: Executor,
        watchdog: Watchdog,
        claimer: Claimer,
        hoard: float,
    ) -> None:
        self._runs, self._all_slots, self._executor = runs, all_slots, executor
        self._watchdog, self._claimer, self._hoard = watchdog, claimer, hoard

    @property
    def are_awaited(self) -> bool:
        """Whether a run has a timeout that may pass soon."""
        return any(run.timeout_at is not None for run in self._runs.all())

    def end_late(self) -> None:
        """Give up the attempts whose handlers are late: what they write afterwards is refused."""
        now, blocked = monotonic(), self._watchdog.blocked
        for run in self._runs.all():
            if is_late(run, now, blocked=blocked):
                run.timeout_at = None
                if not run.settled:
                    self._give_up(run, blocked=blocked)

    def give_back_stale(self) -> None:
        """Give back what was claimed and gets no slot, or waits for a blocked event loop."""
        for slots in self._all_slots.values():
            for run in slots.stale(self._hoard):
                self._executor.give_up(run, Released())
                self._claimer.wake()

    def _give_up(self, run: Run, *, blocked: bool) -> None:
        slots, error = self._all_slots[run.job.queue], timed_out(run)
        slots.abandon(run)
        blocks = run.task.is_async and blocked
        if blocks:
            why = "the event loop it runs on is blocked"
        elif run.task.is_async:
            why = "it was cancelled, and does not come to its end"
        else:
            why = "its thread may still run"
        if not self._executor.give_up(run, Failed(error, describe(error)), f"; {why}"):
            slots.keep(run)
            return
        # Only now: a handler that is told to stop may come back at once, and its end would be the one that counts.
        if blocks:
            # No cancel: should the loop answer again, asyncio's own timeout does that.
            run.stop = run.stop or Stop.TIMEOUT
        else:
            self._runs.stop(run, Stop.TIMEOUT)  # an async one is cancelled once more, in its cleanup perhaps
        self._claimer.wake()


# ---- Hearing of cancels sooner than by the renewal of leases.

#: Seconds between two looks where no announcement is heard. A run that is younger is not asked about: most have ended by then.
_CANCELS_EVERY = 1.0
#: Seconds between two looks where announcements are heard: an UPDATE by hand announces nothing.
_SELDOM = 5.0


class Cancels(Chore):
    """Stops the runs whose job an operator asked to cancel. `listening()`: whether that is announced."""

    def __init__(self, connector: Connector, runs: Runs, listening: Callable[[], bool]) -> None:
        super().__init__(_CANCELS_EVERY)
        self._connector, self._runs, self._listening = connector, runs, listening
        self._announced = False
        """Whether a cancel was announced. Set by any thread, reset by the maintenance thread."""
        self._looked = 0.0
        """When all runs were last asked about that are here for a while."""
        self._told = self._seen = 0.0
        """When a cancel was last announced, and when the runs that were here were last seen."""

    def announce(self) -> None:
        """A cancel was announced, perhaps of a job that runs here. For any thread; maintenance is to be woken after it."""
        self._announced = True
        self.at = 0.0

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Ask about what has been here for a while, or about all if a cancel was announced."""
        announced, self._announced = self._announced, False
        now = monotonic()
        running = [run for run in self._runs if run.stop is None]
        if announced:
            self._told = self._looked = now
        elif self._listening() and now < self._looked + _SELDOM:
            # Of those that have come since the last look, as after a fetch of long arguments, the announcement may be of one.
            running = [run for run in running if run.claimed < self._told and run.arrived > self._seen - _CANCELS_EVERY]
        else:
            running = [run for run in running if run.arrived <= now - _CANCELS_EVERY]
            self._looked = now if running else self._looked
        self._seen = now
        if not running:
            return False
        with self._connector.begin(connection):
            held = {run.job.id: run.job.claim_token for run in running}
            asked = self._connector.store.cancelled_among(connection, held)
        for run in running:
            if run.job.id in asked:
                self._runs.stop(run, Stop.CANCEL)
        return False


# ---- Freeing unique keys whose time is over, and those that changes by hand have left behind.

logger = get_logger(__name__)

_PAGE = 1_000


class FreeKeys(Chore):
    """Looks at all keys, a page at a time. Where there are none, that is one look into an empty table."""

    def __init__(self, connector: Connector, *, every: float) -> None:
        super().__init__(every, at=monotonic() + random.uniform(0, every))
        self._connector = connector
        self._after = ""

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Free some pages of keys."""
        while True:
            with self._connector.begin(connection):
                expired = self._connector.store.drop_expired_keys(connection, limit=_PAGE)
                last, freed = self._connector.store.free_stray_keys(connection, after=self._after, limit=_PAGE)
            if freed:
                logger.warning("%d unique keys were held by jobs that had ended or were gone; they are free now", freed)
            self._after = last or ""
            if last is None and expired < _PAGE:
                return False
            if turn.is_over:
                return True


# ---- Ending jobs that wait although their expiry or deadline is over.

#: Seconds between two looks, into an index that is mostly empty.
_EVERY = 10.0


class EndLate(Chore):
    """Cancels jobs that were not started by their expiry, and fails those that still wait at their deadline, a page at a time."""

    def __init__(self, connector: Connector, *, registry: Registry, observer: Observer) -> None:
        super().__init__(_EVERY, at=monotonic() + random.uniform(0, _EVERY))
        self._connector, self._registry, self._observer = connector, registry, observer

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """End some pages of jobs."""
        while True:
            with self._connector.begin(connection):
                # First: they are in the way of the others.
                forgotten = self._connector.store.forget_expiry(connection, limit=_PAGE)
                expired = self._connector.store.end_expired(connection, limit=_PAGE)
                overdue = self._connector.store.end_overdue(connection, limit=_PAGE)
            self._tell(expired, Event.CANCEL)
            self._tell(overdue, Event.FAIL)
            if expired:
                logger.info("jobs that were not started by their expiry are cancelled: %d", len(expired))
            if overdue:
                logger.warning("jobs that still waited at their deadline have failed: %d", len(overdue))
            if max(len(forgotten), len(expired), len(overdue)) < _PAGE:
                return False
            if turn.is_over:
                return True

    def _tell(self, late: Sequence[Late], event: Event) -> None:
        for job in late:
            task = self._registry.get(job.task)
            self._observer.end_late(job.queue, None if task is None else task.name, event)

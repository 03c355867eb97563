"""Time limits and cancels: late handlers, jobs that get no slot, requested cancels, unique keys, expiries and deadlines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
from ..running.batches import BatchExecutor
from ..running.gathering import Member
from ..running.run import Run, Runs, Stop
from ..running.slots import Slots
from ..running.timeouts import is_late, timed_out
from ..tally import Observer
from ..watchdog import Watchdog
from .chore import Chore, PagedChore, Turn


@dataclass(frozen=True)
class Timeouts:
    """Ends late attempts, even if their handlers go on. The rules are in `running.timeouts`.

    `hoard`: seconds after which a claimed job without a slot goes back.
    """

    runs: Runs
    all_slots: Mapping[str, Slots]
    executor: BatchExecutor
    watchdog: Watchdog
    claimer: Claimer
    hoard: float

    @property
    def are_awaited(self) -> bool:
        """Whether a run has a timeout that may pass soon."""
        return any(run.timeout_at is not None for run in self.runs.all())

    def end_late(self) -> None:
        """Give up the attempts whose handlers are late: what they write afterwards is refused."""
        now, blocked = monotonic(), self.watchdog.blocked
        for run in self.runs.all():
            if is_late(run, now, blocked=blocked):
                run.timeout_at = None
                if not run.settled:
                    self._give_up(run, blocked=blocked)

    def give_back_stale(self) -> None:
        """Give back claimed jobs that get no slot, or wait for a blocked event loop."""
        for slots in list(self.all_slots.values()):
            for run in slots.stale(self.hoard):
                self.executor.give_up(run, Released())
                self.claimer.wake()

    def _give_up(self, run: Run, *, blocked: bool) -> None:
        """Give up an attempt: a batch with all its jobs at its timeout, a single job of a batch at the job's deadline."""
        slots, error, note = self.all_slots[run.job.queue], timed_out(run), _goes_on(run, blocked=blocked)
        give_up = partial(self.executor.give_up, run, Failed(error, describe(error)))
        runs, stuck = [run], run
        batch = run.batch if isinstance(run, Member) else None
        if batch is not None:
            if batch.timeout_at is not None and batch.timeout_at <= monotonic():
                runs, give_up = list(batch.runs), partial(self.executor.give_up_batch, batch)
            elif not all(each.settled for each in batch.runs if each is not run):
                if give_up("; its batch goes on, and runs again without it"):
                    self._stop(run, blocked=blocked)
                return
            stuck = batch
        slots.abandon(stuck)
        if not give_up(note):
            slots.keep(stuck)
            return
        if batch is not None:
            runs[0].abandoned = True  # for the watchdog
        for each in runs:
            self._stop(each, blocked=blocked)

    def _stop(self, run: Run, *, blocked: bool) -> None:
        # Only now: a handler that is asked to stop may come back at once, and then its own end would count.
        if run.task.is_async and blocked:
            # No cancel: if the loop answers again, asyncio's own timeout cancels the handler.
            run.stop = run.stop or Stop.TIMEOUT
        else:
            self.runs.stop(run, Stop.TIMEOUT)  # an async handler is cancelled once more, in its cleanup perhaps
        self.claimer.wake()


def _goes_on(run: Run, *, blocked: bool) -> str:
    if not run.task.is_async:
        return "; its thread may still run"
    return (
        f"; {'the event loop it runs on is blocked' if blocked else 'it was cancelled, and does not come to its end'}"
    )


# ---- Hearing of cancels sooner than by the renewal of leases.

#: Seconds between two checks where no announcement is heard. Younger runs are not asked about: most jobs end before that.
_CANCELS_EVERY = 1.0
#: Seconds between two checks where announcements are heard: an UPDATE by hand announces nothing.
_SELDOM = 5.0


class Cancels(Chore):
    """Stops the runs whose job an operator asked to cancel. `listening()`: whether announcements are heard."""

    def __init__(self, connector: Connector, runs: Runs, listening: Callable[[], bool]) -> None:
        super().__init__(connector, _CANCELS_EVERY, at=0.0)
        self._runs, self._listening = runs, listening
        self._announced = False
        """Whether a cancel was announced. Set by any thread, reset by the maintenance thread."""
        self._checked = self._announced_at = self._seen = 0.0
        """When all older runs were last asked about; when a cancel was last announced; and when the runs here were last listed."""

    def announce(self) -> None:
        """Note that a cancel was announced, perhaps of a job that runs here. For any thread; wake maintenance after it."""
        self._announced = True
        self.at = 0.0

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Ask about runs that have been here for a while, or about all runs if a cancel was announced."""
        announced, self._announced = self._announced, False
        now = monotonic()
        running = [run for run in self._runs if run.stop is None]
        if announced:
            self._announced_at = self._checked = now
        elif self._listening() and now < self._checked + _SELDOM:
            # The announcement may concern a run that arrived after the last check, e.g. after fetching long arguments.
            new = self._seen - _CANCELS_EVERY
            running = [run for run in running if run.claimed < self._announced_at and run.arrived > new]
        else:
            running = [run for run in running if run.arrived <= now - _CANCELS_EVERY]
            self._checked = now if running else self._checked
        self._seen = now
        if not running:
            return False
        with self._connector.begin(connection):
            held = {run.job.id: run.job.claim_token for run in running}
            asked = self._store.cancelled_among(connection, held)
        for run in running:
            if run.job.id in asked:
                self._runs.stop(run, Stop.CANCEL)
        return False


logger = get_logger(__name__)

_PAGE = 1_000


class FreeKeys(PagedChore):
    """Frees unique keys whose time is over, and keys that changes by hand have left behind. It reads all keys."""

    _after = ""

    def do_page(self, connection: sa.Connection) -> bool:
        """Check a page of keys."""
        with self._connector.begin(connection):
            expired = self._store.drop_expired_keys(connection, limit=_PAGE)
            last, freed = self._store.free_stray_keys(connection, after=self._after, limit=_PAGE)
        if freed:
            logger.warning("%d unique keys were held by jobs that had ended or were gone; they are free now", freed)
        self._after = last or ""
        return last is not None or expired >= _PAGE


#: Seconds between two searches, in an index that is mostly empty.
_EVERY = 10.0


class EndLate(PagedChore):
    """Cancels jobs that were not started by their expiry, and fails those that still wait at their deadline, a page at a time."""

    def __init__(self, connector: Connector, *, registry: Registry, observer: Observer) -> None:
        super().__init__(connector, _EVERY)
        self._registry, self._observer = registry, observer

    def do_page(self, connection: sa.Connection) -> bool:
        """End a page of jobs."""
        with self._connector.begin(connection):
            # First, because these rows are in the way of the others.
            forgotten = self._store.forget_expiry(connection, limit=_PAGE)
            expired = self._store.end_expired(connection, limit=_PAGE)
            overdue = self._store.end_overdue(connection, limit=_PAGE)
        self._count(expired, Event.CANCEL)
        self._count(overdue, Event.FAIL)
        if expired:
            logger.info("jobs that were not started by their expiry are cancelled: %d", len(expired))
        if overdue:
            logger.warning("jobs that still waited at their deadline have failed: %d", len(overdue))
        return max(len(forgotten), len(expired), len(overdue)) >= _PAGE

    def _count(self, late: Sequence[Late], event: Event) -> None:
        for job in late:
            task = self._registry.get(job.task)
            self._observer.end_late(job.queue, None if task is None else task.name, event)

"""What has to be done from time to time, on a thread and a connection of its own: renewing leases, hearing of cancels,
ending what takes too long, rescuing what a dead worker held, deleting what was kept long enough, saying we are alive.

There is no leader: every worker does it, and rows locked by another are skipped.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from time import monotonic
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ... import operations
from ...lifecycle import Change, Rules, decide
from ...log import get_logger
from ...models import Job
from ...operations import Answer, Expired, Fault, fault_of
from ...outcomes import Failed, Released, Rescued
from ...retry import describe, entry
from ...settings import WorkerSettings
from ...tasks import Registry
from ..connections.deadline import Deadline
from ..connections.pool import backoff, drop_idle, hang_up
from ..connections.service import Connector, service_limit
from ..process.threads import ServiceThread
from ..running.executor import Executor
from ..running.joblog import holder_of, lasting, say_rescue
from ..running.run import Run, Runs, Stop
from ..running.slots import Slots
from ..running.timeouts import timed_out
from ..running.writer import OutcomeWriter

__all__ = ["Maintenance"]

logger = get_logger(__name__)

#: Seconds between two looks at deadlines of sync handlers and at cancels that were asked for.
_TICK = 0.25
#: Seconds that an event loop has to end an async handler by itself, before maintenance does.
_ASYNC_MARGIN = 2.0
#: The same where the loop answers, and has cancelled it: what a handler may need to clean up, to close a client or to wait
#: for a rollback. As long as a handler may go on blocking the loop.
_CLEANUP = 10.0
_CANCEL_CHECK = 1.0
_PAGE = 100
#: Jobs deleted in one statement at most.
_PRUNE_PAGE = 1_000
_BEFORE_ALL = -(2**63)
_EVER = float("-inf")
#: Seconds that a chore may take, however short the lease is: a host may be busy.
_SHORTEST_LIMIT = 2.0
#: A worker that has not been seen for so long is struck off.
_FORGET = timedelta(days=1)


@dataclass(slots=True)
class _Chore:
    """Something to do every so often."""

    every: float
    do: Callable[[Connection], bool | None]
    """True: there is more to do, so come again soon."""
    at: float = 0.0


class Maintenance:
    """The chores of one worker process. `stop(flight, why)` asks a running handler to end; `blocked()`: whether the event
    loop is known not to answer.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        runs: Runs,
        all_slots: dict[str, Slots],
        registry: Registry,
        executor: Executor,
        alive: Callable[[Connection], None],
        leave: Callable[[Connection], None],
        stop: Callable[[Run, Stop], None],
        wake: Callable[[], None],
        blocked: Callable[[], bool],
        settings: WorkerSettings,
        job: type[Job] = Job,
    ) -> None:
        self._connector, self._runs, self._all_slots = connector, runs, all_slots
        self._registry, self._executor = registry, executor
        self._alive, self._leave, self._stop, self._wake = alive, leave, stop, wake
        self._blocked = blocked
        self._settings, self._job = settings, job
        self._connection: Connection | None = None
        self._failures = 0
        lease = settings.lease
        rescue_every = max(min(lease / 4, 15.0), 0.25)
        # A lease that is renewed in time has half of itself left, at least.
        self._outage = max(lease / 2, 2 * rescue_every)
        # What takes several pages makes room for the others after a while.
        self._turn = lease / 12
        self._after = _BEFORE_ALL
        self._prune_page = _PRUNE_PAGE
        # Where the next page begins: what was deleted before is not walked over again. And how far the pages have come.
        self._prune_after = self._pruned_to = _EVER
        self._renewal = _Chore(lease / 6, self._renew)
        self._chores = [
            self._renewal,
            _Chore(_CANCEL_CHECK, self._hear_cancels),
            _Chore(rescue_every, self._rescue),
            _Chore(settings.prune_every, self._prune, at=monotonic() + random.uniform(0, settings.prune_every)),
            _Chore(max(min(lease / 3, 20.0), 1.0), self._say_alive),
        ]
        self._end = threading.Event()
        self.thread = ServiceThread("maintenance", self._loop)
        # Whatever the chore: found dead in time, so that another connection renews what this one should have.
        self.deadline = Deadline(max(lease / 4, _SHORTEST_LIMIT))
        self.rescued = 0
        """Jobs rescued so far."""

    def start(self) -> None:
        """Begin."""
        self.thread.start()

    def finish(self, timeout: float) -> None:
        """End; waits at most `timeout` seconds for what is under way."""
        self._end.set()
        self.thread.join(timeout)

    def _loop(self) -> None:
        while not self._end.wait(self._pause()):
            try:
                self._end_late_handlers()
                self._give_back_stale()
                self._do_chores()
                self._failures = 0
            except BaseException as error:
                with suppress(BaseException):  # of the application's: a filter of logs
                    self._broken(error)
        if self._connection is not None:
            self._say_goodbye(self._connection)

    def _pause(self) -> float:
        if self._failures:
            return backoff(self._failures, first=0.1, most=2.0)
        due = min(chore.at for chore in self._chores) - monotonic()
        return max(min(due, _TICK if any(run.timeout_at is not None for run in self._runs.all()) else due), 0.01)

    def _do_chores(self) -> None:
        if (connection := self._connection) is None:
            connection = self._connection = self._connector.connect(self.deadline)
            self._renewal.at = 0.0
        for chore in self._chores:
            if chore.at > monotonic() or self._end.is_set():
                continue
            # Whatever becomes of it: the others are not to wait for what fails each time.
            chore.at = monotonic() + chore.every * random.uniform(0.9, 1.0)
            try:
                with self.deadline.over(connection):
                    more = chore.do(connection)
            except DBAPIError as error:
                if error.connection_invalidated and not self._failures:
                    chore.at = 0.0  # it is not to blame: a connection may be cut whenever it is used
                if fault_of(error) in {Fault.AWAY, Fault.LATE}:
                    raise
                # One row must not keep the other chores from being done.
                logger.error("a chore of maintenance failed: %s", error.orig)
                more = False
            if more:
                chore.at = 0.0

    def _broken(self, error: BaseException) -> None:
        self._failures += 1
        broken, self._connection = self._connection, None
        if broken is not None:
            hang_up(broken)
        if self._failures == 1:
            drop_idle(self._connector.engine)
        if self._failures == 1 or self._failures % 20 == 0:
            log: Any = logger.warning if isinstance(error, DBAPIError) else logger.exception
            log("maintenance waits for the database (%s)", getattr(error, "orig", None) or error)

    def _end_late_handlers(self) -> None:
        """A sync handler cannot be stopped, nor an async one whose loop is blocked, or that does not let itself be
        cancelled: its attempt is given up, and what it writes later is refused.
        """
        now, blocked = monotonic(), self._blocked()
        for run in self._runs.all():
            if self._is_late(run, now, blocked=blocked):
                run.timeout_at = None
                if not run.settled:
                    self._give_up(run, blocked=blocked)

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
            self._stop(run, Stop.TIMEOUT)  # an async one is cancelled once more, in its cleanup perhaps
        self._wake()

    def _is_late(self, run: Run, now: float, *, blocked: bool) -> bool:
        if run.timeout_at is None:
            return False
        if not run.task.is_async:
            return run.timeout_at <= now
        if blocked:
            return run.timeout_at + _ASYNC_MARGIN <= now and run.runner is not None
        return run.timeout_at + _CLEANUP <= now

    def _give_back_stale(self) -> None:
        """What was claimed and does not get a slot, or an event loop that is not blocked, goes back to the queue."""
        for slots in self._all_slots.values():
            for run in slots.stale(self._settings.hoard):
                self._executor.give_up(run, Released())
                self._wake()

    def _renew(self, connection: Connection) -> None:
        """Renew what was claimed or renewed more than a third of a lease ago."""
        due = self._runs.unrenewed(self._settings.lease / 3)
        if not due:
            return
        now = monotonic()
        with self._connector.begin(connection):
            renewal = operations.renew(
                connection,
                {f.job.id: f.job.claim_token for f in due},
                lease=self._settings.lease,
                job=self._job,
            )
        for run in due:
            if run.job.id in renewal.lost:
                self._lose(run)
            elif run.job.id not in renewal.locked:
                run.renewed = now
            if run.job.id in renewal.cancel_requested:
                self._stop(run, Stop.CANCEL)

    def _lose(self, run: Run) -> None:
        if self._runs.lose(run):
            logger.warning("job %d: its lease is lost; it is stopped, and nothing it writes is kept", run.job.id)
            self._stop(run, Stop.LOST)

    def _hear_cancels(self, connection: Connection) -> None:
        """Ask for cancels of what has been running for a while, more often than leases are renewed."""
        running = [f for f in self._runs if f.arrived <= monotonic() - _CANCEL_CHECK and f.stop is None]
        if not running:
            return
        with self._connector.begin(connection):
            held = {f.job.id: f.job.claim_token for f in running}
            asked = operations.cancelled_among(connection, held, job=self._job)
        for run in running:
            if run.job.id in asked:
                self._stop(run, Stop.CANCEL)

    def _say_alive(self, connection: Connection) -> None:
        try:
            with self._connector.begin(connection):
                self._alive(connection)
                operations.forget_workers(connection, unseen_for=_FORGET)
        except DBAPIError as error:
            if fault_of(error) is not Fault.LATE:
                raise
            # No outage: with one, the leases of others would not be looked at for a while.
            logger.warning("the rows of the workers are locked (%s)", error.orig)

    def _say_goodbye(self, connection: Connection) -> None:
        # Not on a connection of the pool's: handlers that do not end may hold them all.
        try:
            with self._connector.begin(connection):
                self._leave(connection)
        except DBAPIError:
            logger.debug("could not strike the worker off", exc_info=True)
        hang_up(connection)

    def _rescue(self, connection: Connection) -> bool:
        """Rescue jobs whose lease has run out: some pages, between which leases are renewed. Whether more is left.

        Not before the database has been there for one lease: after an outage every lease looks expired at once. For how long
        it has been is told by all workers together: one that was started just now, in place of one that was killed, need not
        wait.
        """
        until = monotonic() + self._turn
        while not self._end.is_set():
            page = self._look_for_lost(connection)
            if page:
                # Beforehand: what keeps a page from being written does not keep the next.
                self._after = page[-1].claim.id
                self._write_rescues(connection, page)
            if len(page) < _PAGE:
                break
            if monotonic() >= until:
                return True
        self._after = _BEFORE_ALL
        return False

    def _look_for_lost(self, connection: Connection) -> list[Expired]:
        """A page of jobs whose leases ran out though they could be renewed.

        In one transaction, which has one now(): however long this process stands still on the way, an outage meanwhile makes
        nothing look expired.
        """
        with self._connector.begin(connection):
            if not operations.attest(connection, lease=self._settings.lease, outage=self._outage, job=self._job):
                return []
            return operations.expired(connection, after=self._after, limit=_PAGE, job=self._job)

    def _write_rescues(self, connection: Connection, page: list[Expired]) -> None:
        by_id = {found.claim.id: found for found in page}
        changes = [decide(f.claim, _rescued(f), self._rules(f), random=random.random()) for f in page]

        def done(ended: list[Change], answer: Answer) -> None:
            for change in ended:
                self._note(by_id[change.id], change, answer)

        writer = OutcomeWriter(done, job=self._job)
        writer.write_apart(lambda: self._connector.begin(connection), connection, changes)

    def _rules(self, found: Expired) -> Rules:
        """A worker may rescue what it does not know: `rescue=False` is looked at again where the job would be run."""
        task = self._registry.get(found.task)
        return replace(task.rules if task is not None else Rules(), max_rescues=self._settings.max_rescues)

    def _note(self, found: Expired, change: Change, answer: Answer) -> None:
        if answer is Answer.APPLIED:
            self.rescued += 1
            say_rescue(found, change)

    def _prune(self, connection: Connection) -> bool:
        """Delete what was kept long enough: some pages, between which leases are renewed. Whether more is left."""
        until = monotonic() + self._turn
        while not self._end.is_set() and self._prune_some(connection):
            if monotonic() >= until:
                return True
        return False

    def _prune_some(self, connection: Connection) -> bool:
        """Delete a page in a transaction of its own, and find how large the next may be. Whether there may be more."""
        page, seconds = self._prune_page, min(self._settings.lease / 8, service_limit(self._settings.lease))
        try:
            with self._connector.begin(connection):
                options: dict[str, Any] = {"seconds": seconds, "after": self._prune_after, "job": self._job}
                if page > 1:
                    jobs, reached = operations.prune(connection, limit=page, **options)
                    more = grows = jobs == page
                    self._prune_after, self._pruned_to = reached, max(reached, self._pruned_to)
                else:
                    deleted = operations.prune_first(connection, **options)
                    more, grows = deleted is not None, deleted is True  # those that cannot be deleted come together
        except DBAPIError as error:
            fault = fault_of(error)
            if fault is Fault.AWAY or (page == 1 and fault is not Fault.LATE):
                raise
            # Rows of the application's need one of them, or are locked, or have no index to be found by.
            self._prune_page = max(page // 10, 1)
            if page > 1:
                return True
            # Not even the first is found in time: too much of what was deleted is still there, for somebody's snapshot.
            self._prune_page = _PRUNE_PAGE
            self._prune_after, before = self._pruned_to, self._prune_after
            return self._prune_after > before
        if not more:
            self._prune_page, self._prune_after = _PRUNE_PAGE, _EVER
        elif grows:
            self._prune_page = min(2 * page, _PRUNE_PAGE)
        return more


def _rescued(found: Expired) -> Rescued:
    return Rescued(entry("WorkerLost", f"the lease of {holder_of(found)}, had run out {lasting(found.overdue)} before"))

"""Renewing the leases of the jobs that this worker holds, and rescuing jobs whose worker died."""

from __future__ import annotations

import random
from dataclasses import replace
from time import monotonic

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...rules.failures import entry
from ...rules.lifecycle import Change, Rules, decide
from ...rules.outcomes import Rescued
from ...sql.apply import Answer
from ...sql.claims import Fault, fault_of
from ...sql.leases import Expired
from ...sql.parts import FIRST_ID
from ...tasks.registry import Registry
from ...util.log import get_logger
from ..connections.service import Connector
from ..running.joblog import holder_of, lasting, say_rescue
from ..running.run import Run, Runs, Stop, WorkflowsToAdvance
from ..running.writer import OutcomeWriter
from ..tally import Observer
from .chore import Chore, PagedChore, Turn

logger = get_logger(__name__)

#: Leases renewed in one statement at most.
_PAGE = 10_000
#: Jobs named in the log whose leases cannot be renewed.
_NAMED = 20


class Renewal(Chore):
    """Renews the leases of jobs that were claimed or renewed more than a third of a lease ago.

    A trigger of the application may refuse a row, or make it take too long, and would keep all leases from being renewed.
    So after a failure fewer are renewed at a time, and a job whose lease cannot be renewed is tried alone, after all others. If
    a renewal took too long, the rest is renewed one by one with less time each: others may take as long, and leases run out meanwhile.
    """

    def __init__(self, connector: Connector, runs: Runs) -> None:
        super().__init__(connector, connector.lease / 6, at=0.0)
        self._runs = runs
        self._seconds = max(connector.lease / 8, 1.0)
        """The time limit of one statement: less than the deadline of maintenance."""
        self._seconds_alone = max(self._seconds / 4, 0.5)
        self._page = _PAGE
        self._one_by_one = False
        self._refused: set[Run] = set()

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Renew leases, and stop the runs whose claims are lost or that must be cancelled."""
        due = self._runs.unrenewed(self._connector.lease / 3)
        self._refused.intersection_update(due)
        others = [run for run in due if run not in self._refused]
        while others:
            part = others[: self._page]
            if (error := self._try(connection, part)) is None:
                if not self._one_by_one:
                    self._page = min(2 * self._page, _PAGE)
                del others[: len(part)]
            else:
                if fault_of(error) is Fault.LATE:  # a try with fewer rows may take as long
                    self._one_by_one = True
                if len(part) > 1:
                    self._page = 1 if self._one_by_one else len(part) // 2
                else:
                    if len(self._refused) < _NAMED:
                        logger.error("job %d: its lease cannot be renewed: %s", others[0].job.id, error.orig)
                    self._refused.add(others.pop(0))
            if turn.is_over and others:
                return True
        self._one_by_one = False
        for run in random.sample(list(self._refused), len(self._refused)):
            if turn.is_over:
                break
            if self._try(connection, [run], refused=True) is None:
                self._refused.remove(run)
        return False

    def _try(self, connection: sa.Connection, part: list[Run], *, refused: bool = False) -> DBAPIError | None:
        """Renew these leases. Returns the error if one of them may be why the database refuses."""
        seconds = self._seconds_alone if self._one_by_one or refused else self._seconds
        try:
            self._renew(connection, part, seconds)
        except DBAPIError as error:
            if fault_of(error) is Fault.AWAY:
                raise
            return error
        return None

    def _renew(self, connection: sa.Connection, part: list[Run], seconds: float) -> None:
        now = monotonic()
        held = {run.job.id: run.job.claim_token for run in part}
        with self._connector.begin(connection):
            renewal = self._store.renew(connection, held, lease=self._connector.lease, seconds=seconds)
        for run in part:
            if run.job.id in renewal.lost:
                self._lose(run)
            elif run.job.id not in renewal.locked:
                run.renewed = now
            if run.job.id in renewal.cancel_requested:
                self._runs.stop(run, Stop.CANCEL)

    def _lose(self, run: Run) -> None:
        if not self._runs.lose(run):
            return
        goes_on = not run.settled  # otherwise it has just ended, or its end is logged elsewhere
        self._runs.stop(run, Stop.LOST)  # an async handler may have ended before this returns
        if goes_on:
            logger.warning("job %d: its lease is lost; it is stopped, and nothing it writes is kept", run.job.id)


# ---- Rescuing jobs whose worker died.

#: Jobs rescued in one transaction at most.
_RESCUE_PAGE = 100


class Rescue(PagedChore):
    """Takes jobs whose lease has run out from their worker.

    It waits until the database has been available for the time of a lease, because after an outage every lease seems expired. All
    workers together store since when it is available, so a worker that replaces a killed worker need not wait.
    """

    def __init__(
        self,
        connector: Connector,
        registry: Registry,
        observer: Observer,
        max_rescues: int,
        touched: WorkflowsToAdvance,
    ) -> None:
        super().__init__(connector, max(min(connector.lease / 4, 15.0), 0.25), at=0.0)
        self._registry, self._observer = registry, observer
        self._max_rescues, self._touched = max_rescues, touched
        # A lease that is renewed in time has at least half of itself left.
        self._outage = max(connector.lease / 2, 2 * self.every)
        self._after = FIRST_ID

    def do_page(self, connection: sa.Connection) -> bool:
        """Rescue a page of jobs."""
        page = self._find_expired(connection)
        if page:
            # Set before the write: an error that keeps this page from being written does not keep the next.
            self._after = page[-1].claim.id
            self._write(connection, page)
        if len(page) < _RESCUE_PAGE:
            self._after = FIRST_ID
            return False
        return True

    def _find_expired(self, connection: sa.Connection) -> list[Expired]:
        """A page of jobs whose leases ran out though they could be renewed.

        One transaction, which has a single now(): even if this process is suspended in between, an outage meanwhile makes no lease
        seem expired.
        """
        with self._connector.begin(connection):
            if not self._store.attest(connection, lease=self._connector.lease, outage=self._outage):
                return []
            return self._store.expired(connection, after=self._after, limit=_RESCUE_PAGE)

    def _write(self, connection: sa.Connection, page: list[Expired]) -> None:
        by_id, rescued = {found.claim.id: found for found in page}, 0
        changes = [self._decide(found) for found in page]

        def done(ended: list[Change], answer: Answer) -> None:
            nonlocal rescued
            if answer is Answer.APPLIED:
                rescued += len(ended)
                self._touched.note(ended)
                for change in ended:
                    found = by_id[change.id]
                    task = self._registry.get(found.task)
                    self._observer.rescue(found.queue, None if task is None else task.name, change.event)
                    say_rescue(found, change)

        writer = OutcomeWriter(done, store=self._store)
        writer.write_apart(lambda: self._connector.begin(connection), connection, changes)
        if rescued:
            with self._connector.begin_one(connection):
                self._store.permits_freed(connection)

    def _decide(self, found: Expired) -> Change:
        why = f"the lease of {holder_of(found)}, had run out {lasting(found.overdue)} before"
        # A worker may rescue a job whose task it does not know: `rescue=False` is checked again where the job would run.
        task = self._registry.get(found.task)
        rules = replace(task.rules if task is not None else Rules(), max_rescues=self._max_rescues)
        return decide(found.claim, Rescued(entry("WorkerLost", why)), rules, random=random.random())

"""Renewing the leases of what this worker holds."""

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
from .chore import Chore, Turn

logger = get_logger(__name__)

#: Leases renewed in one statement at most.
_PAGE = 10_000
#: Jobs named in the log whose leases cannot be renewed.
_NAMED = 20


class Renewal(Chore):
    """Renews what was claimed or renewed more than a third of a lease ago.

    A trigger of the application's may refuse one row, or make it take too long, and would keep all leases from being renewed.
    So after a failure fewer are renewed at a time, and a job whose lease cannot be renewed is tried alone, after all others. Where
    one took too long, the rest is renewed one by one and gets less time each: others may take as long, and leases run out meanwhile.
    """

    def __init__(self, connector: Connector, runs: Runs) -> None:
        super().__init__(connector.lease / 6)
        self._connector, self._runs = connector, runs
        self._seconds = max(connector.lease / 8, 1.0)
        """For one statement: less than the deadline of maintenance."""
        self._seconds_alone = max(self._seconds / 4, 0.5)
        self._page = _PAGE
        self._one_by_one = False
        self._refused: set[Run] = set()

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Renew, stop the runs whose claims are lost, and those that are to be cancelled."""
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
                if fault_of(error) is Fault.LATE:  # where time is the matter, another try of some takes as long
                    self._one_by_one = True
                if len(part) > 1:
                    self._page = 1 if self._one_by_one else len(part) // 2
                else:
                    self._refuse(others.pop(0), error)
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

    def _refuse(self, run: Run, error: DBAPIError) -> None:
        if len(self._refused) < _NAMED:
            logger.error("job %d: its lease cannot be renewed: %s", run.job.id, error.orig)
        self._refused.add(run)

    def _renew(self, connection: sa.Connection, part: list[Run], seconds: float) -> None:
        now = monotonic()
        held = {run.job.id: run.job.claim_token for run in part}
        with self._connector.begin(connection):
            renewal = self._connector.store.renew(connection, held, lease=self._connector.lease, seconds=seconds)
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
        goes_on = not run.settled  # else it has just ended, or its end says what became of it
        self._runs.stop(run, Stop.LOST)  # an async handler may have ended before this returns
        if goes_on:
            logger.warning("job %d: its lease is lost; it is stopped, and nothing it writes is kept", run.job.id)


# ---- Rescuing jobs whose worker died.

#: Jobs rescued in one transaction at most.
_RESCUE_PAGE = 100


class Rescue(Chore):
    """Takes jobs whose lease has run out from their worker.

    Not before the database has been there for one lease, because after an outage every lease looks expired. All workers
    together keep the time for which it has been there, so a worker that replaces one that was killed need not wait.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        registry: Registry,
        observer: Observer,
        max_rescues: int,
        touched: WorkflowsToAdvance,
    ) -> None:
        super().__init__(max(min(connector.lease / 4, 15.0), 0.25))
        self._connector, self._registry, self._observer = connector, registry, observer
        self._max_rescues, self._touched = max_rescues, touched
        # A lease that is renewed in time has at least half of itself left.
        self._outage = max(connector.lease / 2, 2 * self.every)
        self._after = FIRST_ID

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Rescue some pages."""
        while True:
            page = self._find_expired(connection)
            if page:
                # Beforehand: what keeps a page from being written does not keep the next.
                self._after = page[-1].claim.id
                self._write(connection, page)
            if len(page) < _RESCUE_PAGE:
                self._after = FIRST_ID
                return False
            if turn.is_over:
                return True

    def _find_expired(self, connection: sa.Connection) -> list[Expired]:
        """A page of jobs whose leases ran out though they could be renewed.

        In one transaction, which has one now(): however long this process stands still on the way, an outage meanwhile makes
        nothing look expired.
        """
        with self._connector.begin(connection):
            if not self._connector.store.attest(connection, lease=self._connector.lease, outage=self._outage):
                return []
            return self._connector.store.expired(connection, after=self._after, limit=_RESCUE_PAGE)

    def _write(self, connection: sa.Connection, page: list[Expired]) -> None:
        by_id, rescued = {found.claim.id: found for found in page}, 0
        changes = [decide(found.claim, _rescued(found), self._rules(found), random=random.random()) for found in page]

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

        writer = OutcomeWriter(done, store=self._connector.store)
        writer.write_apart(lambda: self._connector.begin(connection), connection, changes)
        if rescued:
            with self._connector.begin_one(connection):
                self._connector.store.permits_freed(connection)

    def _rules(self, found: Expired) -> Rules:
        """A worker may rescue a job whose task it does not know: `rescue=False` is checked again where the job would run."""
        task = self._registry.get(found.task)
        return replace(task.rules if task is not None else Rules(), max_rescues=self._max_rescues)


def _rescued(found: Expired) -> Rescued:
    return Rescued(entry("WorkerLost", f"the lease of {holder_of(found)}, had run out {lasting(found.overdue)} before"))

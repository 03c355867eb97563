"""Rescuing jobs whose worker died."""

from __future__ import annotations

import random
from dataclasses import replace

import sqlalchemy as sa

from ...failures import entry
from ...lifecycle import Change, Rules, decide
from ...outcomes import Rescued
from ...store import FIRST_ID, Answer, Expired
from ...tasks import Registry
from ..connections.service import Connector
from ..observer import Observer
from ..running.joblog import holder_of, lasting, say_rescue
from ..running.touched import TouchedWorkflows
from ..running.writer import OutcomeWriter
from .chore import Chore, Turn

__all__ = ["Rescue"]

#: Jobs rescued in one transaction at most.
_PAGE = 100


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
        touched: TouchedWorkflows,
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
            if len(page) < _PAGE:
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
            return self._connector.store.expired(connection, after=self._after, limit=_PAGE)

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

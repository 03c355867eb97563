"""Advances workflows, in the claimer's round: the ends that it has written release the members that waited for them.

A worker reads the workflows in which something has happened here, so it need not search. Events that others have left are found by
maintenance.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from time import monotonic

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...sql.claims import Fault, fault_of
from ...sql.workflows.pruning import Advanced
from ...util.log import get_logger
from ..connections.service import Connector
from ..running.run import WorkflowsToAdvance
from .demand import Demand

logger = get_logger(__name__)

#: Events read in one step at most.
_MOST = 1_000
#: Workflows in one step at most.
_PAGE = 500
#: While handlers run, the pause between two steps is this many times as long as the last step took: a step for few events costs
#: nearly as much as a step for many.
_SPACING = 4.0
#: Seconds until a workflow is tried again that another transaction has locked: the first time, and at most.
_LOCKED_FIRST, _LOCKED_LATER = 0.003, 0.1
#: Seconds until a workflow is tried again after an error.
_FAILED = 1.0
#: The position of the last event is kept if a workflow has this many events in a step: behind a held snapshot, the events that were
#: read are in the way of each later step.
_MANY = 100
#: Seconds, at least, between two steps that begin at the front, and how many times the duration of the last.
_SWEEP, _SWEEP_SPACING = 0.05, 20.0


class MovingWorkflows:
    """The workflows that this worker advances. Only for the claimer's thread. `busy()`: whether handlers run."""

    def __init__(
        self, connector: Connector, touched: WorkflowsToAdvance, demand: Demand, *, busy: Callable[[], bool]
    ) -> None:
        self._connector, self._touched, self._demand, self._busy = connector, touched, demand, busy
        self._due: dict[int, float] = {}
        """The workflows to advance, with the `monotonic()` time of each."""
        self._waits: dict[int, float] = {}
        """By workflow that was locked, the last wait in seconds."""
        self._points: dict[int, int] = {}
        """By workflow with many events, the last event that was read."""
        self._alone: set[int] = set()
        """Workflows of a step that failed. Each is moved alone until that succeeds, so that it does not hold up the others."""
        self._next = self._sweep_at = 0.0

    def next_at(self) -> float | None:
        """When the next step is due; None: no step is due."""
        if not self._due and not self._touched:
            return None
        first = 0.0 if self._touched else min(self._due.values())
        return max(first, self._next) if self._busy() else first

    def finds_more(self, connection: sa.Connection) -> bool:
        """Whether there is a workflow to advance, also if another worker has left it."""
        if not self._due and not self._touched:
            with self._connector.begin_one(connection):
                self._touched.add(self._connector.store.stray_workflows(connection))
        return bool(self._due) or bool(self._touched)

    def move(self, connection: sa.Connection) -> None:
        """Do a step, if one is due."""
        at = self.next_at()
        began = monotonic()
        if at is None or at > began:
            return
        for workflow in self._touched.take():
            self._due[workflow] = min(self._due.get(workflow, 0.0), began)
        due_now = [workflow for workflow, due in self._due.items() if due <= began]
        chosen = [workflow for workflow in due_now if workflow in self._alone][:1] or due_now[:_PAGE]
        sweeps = began >= self._sweep_at
        after = {workflow: 0 if sweeps else self._points.get(workflow, 0) for workflow in chosen}
        try:
            with self._connector.begin_one(connection):
                done = self._connector.store.advance(connection, after, most=_MOST)
        except DBAPIError as error:
            if fault_of(error) is Fault.AWAY:
                raise
            if len(chosen) > 1 and fault_of(error) is Fault.ROW:
                self._alone.update(chosen)
                return
            logger.error("workflows could not be moved on, from %d on: %s", chosen[0], error.orig)
            self._due |= dict.fromkeys(chosen, began + _FAILED)
            return
        self._alone.difference_update(chosen)
        took = monotonic() - began
        self._next = monotonic() + _SPACING * took
        if sweeps:
            self._sweep_at = monotonic() + max(_SWEEP, _SWEEP_SPACING * took)
        self._settle(after, done)
        for queue in done.queues:
            self._demand.notify(queue)

    def _settle(self, after: dict[int, int], done: Advanced) -> None:
        """Decide when each of these workflows is advanced next."""
        many = done.eaten >= _MANY * len(done.read)
        now = monotonic()
        for workflow, begun in after.items():
            if workflow in done.busy:
                wait = min(2 * self._waits.get(workflow, _LOCKED_FIRST / 2), _LOCKED_LATER)
                self._waits[workflow], self._due[workflow] = wait, now + wait * random.uniform(0.5, 1.5)
                continue
            self._waits.pop(workflow, None)
            if workflow in done.read and many:
                self._points[workflow] = done.read[workflow]
            if workflow in done.again or (workflow in done.read and many):
                # After all others: it may have filled this step alone.
                del self._due[workflow]
                self._due[workflow] = 0.0
            elif begun:  # it began behind a point: an event may have come before that
                self._due[workflow] = self._sweep_at
            else:
                del self._due[workflow]
                self._points.pop(workflow, None)

"""Chores for workflows: finding workflows that no worker advances, deleting those that are over, repairing effects of plain SQL."""

from __future__ import annotations

from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...sql.claims import Fault, fault_of, is_month_missing
from ...sql.parts import FIRST_ID
from ...util.log import get_logger
from ..connections.service import Connector
from ..running.run import WorkflowsToAdvance
from .chore import Chore, Turn
from .prune import KeepArchive

logger = get_logger(__name__)

#: Seconds between two searches, in tables that are mostly empty.
_EVERY = 5.0
_PAGE = 1_000
#: Workflows deleted between two searches for more that are over.
_WORKFLOWS = 100


class FindWorkflows(Chore):
    """Finds workflows with events that no worker may know of: events of operators, of producers, and of a worker that was killed.
    It also cancels workflows whose deadline is over.
    """

    def __init__(self, connector: Connector, touched: WorkflowsToAdvance) -> None:
        super().__init__(connector, _EVERY)
        self._touched = touched

    def announce(self) -> None:
        """Note that there are such events. For any thread; wake maintenance after it."""
        self.at = 0.0

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Find such workflows, and pass them to the claimer."""
        with self._connector.begin(connection):
            found = self._store.stray_workflows(connection, limit=_PAGE)
        self._touched.add(found)
        return False


class KeepWorkflows(Chore):
    """Deletes workflows whose retention is over, with all their jobs, or moves the jobs to the archive. It also releases jobs that wait
    for a job that has ended without an event.
    """

    def __init__(self, connector: Connector, finder: FindWorkflows, archive: KeepArchive, *, every: float) -> None:
        super().__init__(connector, every)
        self._finder, self._archive = finder, archive
        self._after = self._after_workflow = FIRST_ID

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Delete some pages, and repair some."""
        more = self._archive.is_known and self._prune(connection, turn)
        return self._heal(connection, turn) or more

    def _prune(self, connection: sa.Connection, turn: Turn) -> bool:
        while True:
            with self._connector.begin(connection):
                over = self._store.workflows_over(connection, limit=_WORKFLOWS)
            for workflow in over:
                gone: int | None = _PAGE
                while gone == _PAGE:
                    gone = self._prune_page(connection, workflow)
                    if turn.is_over:
                        return True
            if len(over) < _WORKFLOWS:
                return False

    def _prune_page(self, connection: sa.Connection, workflow: int, *, months: bool = False) -> int | None:
        """Delete a page of a workflow's members. Returns their number; None: no more can be deleted now. `months`: the months of the
        archive that they need have just been made.
        """
        options: dict[str, Any] = {"limit": _PAGE, "seconds": self._connector.lease / 4, "months": months}
        if self._archive.is_used:
            options["archive"] = True
        try:
            with self._connector.begin(connection):
                return self._store.prune_workflow(connection, workflow, **options)
        except DBAPIError as error:
            if fault_of(error) is Fault.LATE:  # the archive is locked
                return None
            if not is_month_missing(error):
                raise
        make = partial(self._store.make_months_of_members, id=workflow, limit=_PAGE)
        made = self._archive.make(connection, make)
        return None if made is None else self._prune_page(connection, workflow, months=True)

    def _heal(self, connection: sa.Connection, turn: Turn) -> bool:
        # One page in each turn: most of these have ended long ago.
        with self._connector.begin_one(connection):
            last, healed = self._store.heal_workflows(connection, after=self._after_workflow, limit=_PAGE)
        self._after_workflow = FIRST_ID if last is None else last
        self._announce(healed)
        while True:
            with self._connector.begin_one(connection):
                last, healed = self._store.heal_members(connection, after=self._after, limit=_PAGE)
            self._after = FIRST_ID if last is None else last
            self._announce(healed)
            if last is None:
                return False
            if turn.is_over:
                return True

    def _announce(self, healed: int) -> None:
        if healed:
            logger.warning("jobs of workflows had ended without saying so, perhaps by plain SQL: %d", healed)
            self._finder.announce()

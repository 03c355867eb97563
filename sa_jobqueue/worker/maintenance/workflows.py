"""Chores for workflows: finding those that no worker moves on, deleting those that are over, mending what plain SQL has done."""

from __future__ import annotations

import random
from time import monotonic
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
    """Finds workflows with events that no worker may know of: those of operators, of producers, and of a worker that was killed.
    It also cancels workflows whose deadline is over.
    """

    def __init__(self, connector: Connector, touched: WorkflowsToAdvance) -> None:
        super().__init__(_EVERY, at=monotonic() + random.uniform(0, _EVERY))
        self._connector, self._touched = connector, touched

    def announce(self) -> None:
        """There are such events. For any thread; maintenance is to be woken after it."""
        self.at = 0.0

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Find them."""
        with self._connector.begin(connection):
            found = self._connector.store.stray_workflows(connection, limit=_PAGE)
        self._touched.add(found)
        return False


class KeepWorkflows(Chore):
    """Deletes workflows whose time to be kept is over, with all their jobs, or moves these to the archive. It also releases what waits
    for a job that has ended without an event.
    """

    def __init__(self, connector: Connector, finder: FindWorkflows, archive: KeepArchive, *, every: float) -> None:
        super().__init__(every, at=monotonic() + random.uniform(0, every))
        self._connector, self._finder, self._archive = connector, finder, archive
        self._after = self._after_workflow = FIRST_ID

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Delete some pages, and mend some."""
        more = self._archive.is_known and self._prune(connection, turn)
        return self._heal(connection, turn) or more

    def _prune(self, connection: sa.Connection, turn: Turn) -> bool:
        store = self._connector.store
        while True:
            with self._connector.begin(connection):
                over = store.workflows_over(connection, limit=_WORKFLOWS)
            for workflow in over:
                gone: int | None = _PAGE
                while gone == _PAGE:
                    gone = self._prune_page(connection, workflow)
                    if turn.is_over:
                        return True
            if len(over) < _WORKFLOWS:
                return False

    def _prune_page(self, connection: sa.Connection, workflow: int, *, months: bool = False) -> int | None:
        """Delete a page of its members. Returns how many there were; None: no more of it can be deleted now. `months`: those of the
        archive that it needs have just been made.
        """
        store = self._connector.store
        options: dict[str, Any] = {"limit": _PAGE, "seconds": self._connector.lease / 4, "months": months}
        if self._archive.is_used:
            options["archive"] = True
        try:
            with self._connector.begin(connection):
                return store.prune_workflow(connection, workflow, **options)
        except DBAPIError as error:
            if fault_of(error) is Fault.LATE:  # the archive is locked
                return None
            if not is_month_missing(error):
                raise
        made = self._archive.make(connection, lambda own: store.make_months_of_members(own, workflow, limit=_PAGE))
        return None if made is None else self._prune_page(connection, workflow, months=True)

    def _heal(self, connection: sa.Connection, turn: Turn) -> bool:
        # One page in each turn: most of these have ended long ago.
        with self._connector.begin_one(connection):
            last, healed = self._connector.store.heal_workflows(connection, after=self._after_workflow, limit=_PAGE)
        self._after_workflow = FIRST_ID if last is None else last
        self._tell(healed)
        while True:
            with self._connector.begin_one(connection):
                last, healed = self._connector.store.heal_members(connection, after=self._after, limit=_PAGE)
            self._after = FIRST_ID if last is None else last
            self._tell(healed)
            if last is None:
                return False
            if turn.is_over:
                return True

    def _tell(self, healed: int) -> None:
        if healed:
            logger.warning("jobs of workflows had ended without saying so, perhaps by plain SQL: %d", healed)
            self._finder.announce()

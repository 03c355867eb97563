"""The end of a claim: its outcome is written, or came too late."""

from __future__ import annotations

from ...lifecycle import Change
from ...log import get_logger
from ...store import Answer
from ..observer import Observer
from .run import Runs

__all__ = ["FinishedClaims"]

logger = get_logger(__name__)


class FinishedClaims:
    """Drops the claims of written changes from `runs`, and tells `observer`.

    The writer calls `end` for a batch, the executor for a change that was committed with its handler's writes.
    """

    def __init__(self, runs: Runs, observer: Observer) -> None:
        self._runs, self._observer = runs, observer

    def end(self, changes: list[Change], answer: Answer) -> None:
        """The database has answered so to all of these changes."""
        self._runs.drop_all(changes)
        if answer is Answer.APPLIED:
            self._observer.written(changes)
            return
        self._observer.lost(len(changes))
        for change in changes:
            logger.info("job %d: the outcome (%s) came too late; its claim was over", change.id, change.event.value)

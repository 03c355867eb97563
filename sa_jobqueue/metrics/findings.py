"""The doctor's findings as metrics. It takes longer than a scrape may, so a thread of its own looks, at most once a minute."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from time import monotonic

import sqlalchemy as sa
from prometheus_client.core import Metric as Family

from ..doctor import LEVELS, Finding, examine
from ..log import get_logger
from ..store import Store
from . import names
from .families import Families

__all__ = ["Findings"]

logger = get_logger(__name__)

#: Seconds between two looks.
_EVERY = 60.0


class Findings:
    """What the doctor found at its last look. Any thread may ask."""

    def __init__(self, engine: sa.Engine, store: Store) -> None:
        self._engine, self._store = engine, store
        self._lock = threading.Lock()
        self._at = 0.0
        self._looking = False
        """Whether a look is under way: one may hang. A scrape sets it, with `_at` under the lock; the thread that looked takes it back."""
        self._found: list[Finding] = []
        """Written by the thread that looks, as a whole."""

    def collect(self) -> Iterator[Family]:
        """What is known; begins to look again where that is old."""
        with self._lock:
            due = not self._looking and (not self._at or monotonic() >= self._at + _EVERY)
            if due:
                self._looking, self._at = True, monotonic()
        if due:
            try:
                threading.Thread(target=self._look, name="sa-jobqueue metrics doctor", daemon=True).start()
            except RuntimeError:  # no more threads, or the interpreter ends
                self._looking = False
                logger.debug("the doctor has no thread")
        families = Families()
        for finding in self._found:
            for level in LEVELS:
                families.add(names.FINDING, finding.level == level, finding.name, level)
        return iter(families)

    def _look(self) -> None:
        try:
            self._found = examine(self._engine, probe=False, store=self._store)
        except Exception:  # the database is away: its metric says so
            self._found = []
            logger.debug("the doctor could not look", exc_info=True)
        finally:
            self._looking = False

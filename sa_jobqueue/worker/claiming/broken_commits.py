"""Giving back what a broken commit may have claimed: the server committed, and its answer was lost with the connection."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...log import get_logger
from ...store import Fault, end_backend, fault_of
from ..connections.service import APPLICATION, Connector
from ..running.run import Runs
from ..running.writer import OutcomeWriter
from .bisection import may_be_a_jobs

__all__ = ["BrokenCommits"]

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BrokenCommits:
    """Gives back the jobs that this worker holds by its row and that neither `runs` nor `writer` know of."""

    connector: Connector
    runs: Runs
    writer: OutcomeWriter
    worker: str

    def give_back(self, connection: sa.Connection, *, backend: int | None) -> None:
        """Give them back, after ending the server process `backend` of the broken connection.

        That process may be busy with our last statement, which would claim after we have looked.
        """
        known = {*self.runs.claims(), *self.writer.claims()}
        if backend is not None:
            self._end(connection, backend)
        released = []
        try:
            with self.connector.begin(connection):
                released = self.connector.store.release_unknown(connection, worker=self.worker, known=known)
        except DBAPIError as error:
            if not may_be_a_jobs(error):
                raise
            logger.error(
                "what a broken commit has claimed cannot be given back; its lease will run out: %s", error.orig
            )
        if released:
            logger.warning("gave back %d jobs that a broken commit had claimed", len(released))

    def _end(self, connection: sa.Connection, backend: int) -> None:
        limit = self.connector.limit / 2
        try:
            with self.connector.begin_one(connection):
                end_backend(connection, backend, application=APPLICATION, seconds=limit)
        except DBAPIError as error:
            if fault_of(error) is Fault.AWAY:
                raise
            logger.debug("the server process of a broken connection could not be ended: %s", error.orig)

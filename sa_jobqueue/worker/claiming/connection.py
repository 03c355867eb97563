"""The claimer's connection: opened when it is needed, and again after a failure."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...rules.failures import clean, message_of
from ...sql.claims import Fault, fault_of
from ...sql.workers import end_backend
from ...util.log import get_logger
from ..connections.pool import Deadline, give_up
from ..connections.service import APPLICATION, Connector
from ..running.run import Runs
from ..running.writer import OutcomeWriter
from .recovery import may_be_a_jobs

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BrokenCommits:
    """Gives back the jobs that this worker holds in the table and that neither `runs` nor `writer` know of."""

    connector: Connector
    runs: Runs
    writer: OutcomeWriter
    worker: str

    def give_back(self, connection: sa.Connection, *, backend: int | None) -> None:
        """Give these jobs back, after ending the server process `backend` of the broken connection.

        That process may be busy with our last statement, which would claim jobs after this search.
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


#: Characters of an error that operators see.
_LENGTH = 300


def said_by_database(error: BaseException) -> str:
    """The message of a failed round, without the CONTEXT of the server: that quotes whole functions of ours."""
    return message_of(getattr(error, "orig", None) or error).partition("\nCONTEXT:")[0]


class ClaimerConnection:
    """The connection of the claimer, and its failures. Only for the claimer's thread."""

    def __init__(self, connector: Connector, deadline: Deadline, broken_commits: BrokenCommits) -> None:
        self._connector, self._deadline, self._broken_commits = connector, deadline, broken_commits
        self.current: sa.Connection | None = None
        self.failures = 0
        """Rounds in a row that have failed."""
        self.refused: tuple[float, str] | None = None
        """When the database last refused a round, by `monotonic()`, and its message. Any thread may read it."""
        self._backend: int | None = None
        """The pid of the server process of this or the last connection; None behind a pooler."""
        self.in_doubt = False
        """Whether a commit may have claimed jobs that this process does not know of: set before a claim, and reset when its jobs
        are handed over, when the server has answered that it failed, and when a new connection has given them back."""

    def make(self, *, any_claimed: bool) -> sa.Connection:
        """Connect. After a failure, or if this worker has claimed jobs, give back jobs that a broken commit may have claimed."""
        connection = self._connector.connect(self._deadline)
        if self.failures or any_claimed:
            try:
                with self._deadline.over(connection):
                    self._broken_commits.give_back(connection, backend=self._backend)
            except BaseException:
                connection.close()
                raise
        self.current, self.in_doubt = connection, False
        raw: Any = connection.connection.dbapi_connection
        self._backend = None if self._connector.pooled else raw.info.backend_pid
        return connection

    def works(self) -> None:
        """Note that a round has succeeded."""
        failures, self.failures = self.failures, 0
        if failures:
            logger.warning("the database is back")

    def give_up(self, error: BaseException, *, kept: int) -> None:
        """Close the connection after a round that failed by `error`. `kept` outcomes wait to be written."""
        self.failures += 1
        broken, self.current = self.current, None
        answers = isinstance(error, DBAPIError) and fault_of(error) is not Fault.AWAY
        if answers:
            self.refused = monotonic(), clean(said_by_database(error)[:_LENGTH])
        if give_up(broken, self._connector.engine, failures=self.failures):
            log: Any = logger.warning if isinstance(error, DBAPIError) else logger.exception
            what = "refuses what is asked of it" if answers else "does not answer"
            text = "the database %s (%s); %d outcomes are kept; trying again"
            log(text, what, said_by_database(error), kept)

    def close(self) -> None:
        """Close the connection, because the worker leaves."""
        if self.current is not None:
            self.current.close()

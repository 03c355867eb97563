"""The claimer's connection: made when it is needed, and made again after a failure."""

from __future__ import annotations

from time import monotonic
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...failures import clean
from ...log import get_logger
from ...store import Fault, fault_of
from ..connections.deadline import Deadline
from ..connections.pool import give_up
from ..connections.service import Connector
from .broken_commits import BrokenCommits

__all__ = ["ClaimerConnection"]

logger = get_logger(__name__)

#: Characters that operators are told of an error.
_LENGTH = 300


class ClaimerConnection:
    """Only for the claimer's thread."""

    def __init__(self, connector: Connector, deadline: Deadline, broken_commits: BrokenCommits) -> None:
        self._connector, self._deadline, self._broken_commits = connector, deadline, broken_commits
        self.current: sa.Connection | None = None
        self.failures = 0
        """Rounds in a row that have failed."""
        self.refused: tuple[float, str] | None = None
        """When a round failed because the database refused something, by `monotonic()`, and what it said. Any thread may read it."""
        self._backend: int | None = None
        """The number of its server process, or of the last one's; None behind a pooler."""
        self.in_doubt = False
        """Whether a commit may have claimed jobs that this process does not know of: set before a claim, and reset when its jobs
        are handed over, when the server has said that it failed, and when a new connection has given them back."""

    def make(self, *, any_claimed: bool) -> sa.Connection:
        """Connect, and give back what a broken commit may have claimed if there was one, or if this worker has claimed jobs."""
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
        """A round has succeeded."""
        failures, self.failures = self.failures, 0
        if failures:
            logger.warning("the database is back")

    def give_up(self, error: BaseException, *, kept: int) -> None:
        """A round failed by `error`: close the connection. `kept` outcomes wait to be written."""
        self.failures += 1
        broken, self.current = self.current, None
        answers = isinstance(error, DBAPIError) and fault_of(error) is not Fault.AWAY
        if answers:
            self.refused = monotonic(), clean(str(getattr(error, "orig", None) or error)[:_LENGTH])
        if give_up(broken, self._connector.engine, failures=self.failures):
            log: Any = logger.warning if isinstance(error, DBAPIError) else logger.exception
            log(
                "the database %s (%s); %d outcomes are kept; trying again",
                "refuses what is asked of it" if answers else "does not answer",
                getattr(error, "orig", None) or error,
                kept,
            )

    def close(self) -> None:
        """The worker leaves."""
        if self.current is not None:
            self.current.close()

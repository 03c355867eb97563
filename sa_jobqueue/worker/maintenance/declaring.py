"""What schedules and limits share: writing down what this worker's code declares, and finding what no code declares any more."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...sql.claims import Fault, fault_of
from ...sql.schedules.declared import Declaring
from ..connections.service import Connector

#: Seconds until the next try after an error.
AGAIN = 1.0
#: Seconds between two times that a worker writes what its code declares.
DECLARE_EVERY = 60.0
#: What no living worker has declared for this long is not declared any more.
GONE = timedelta(minutes=5)


class Declarations:
    """Writes down what this worker's code declares, now and every now and then. One thread uses it.

    `write`: does it. `what`, `grant`: what it is, and the right that a worker's role needs for it. `named(name)`: one of them, as the
    log calls it. `logger`: whose log it is. `any`: whether the code declares anything.
    """

    def __init__(
        self,
        connector: Connector,
        write: Callable[[sa.Connection], Declaring],
        *,
        what: str,
        grant: str,
        named: Callable[[str], str],
        logger: logging.Logger,
        any: bool,
    ) -> None:
        self._connector, self._write = connector, write
        self._what, self._grant, self._said, self._logger = what, grant, named, logger
        self._named: set[str] = set()
        """Names for which the log has already told that the definition here is not in use."""
        self.at = 0.0 if any else math.inf
        """When to do it next, by `monotonic()`."""

    def write_down(self, connection: sa.Connection, now: float) -> bool:
        """Do it, at `now`. Whether it is done, or cannot be: not if another transaction was in the way."""
        self.at = now + AGAIN  # if it cannot be done now
        try:
            with self._connector.begin(connection):
                result = self._write(connection)
        except DBAPIError as error:
            if (fault := fault_of(error)) is Fault.AWAY:
                raise
            if fault is Fault.LATE:
                return False
            self.at = now + DECLARE_EVERY
            self._logger.error(
                "the %s that this worker's code declares cannot be written down: %s%s",
                self._what,
                error.orig,
                self._mend(error),
            )
            return True
        self._tell(result)
        if result.locked:
            return False
        self.at = now + DECLARE_EVERY * random.uniform(0.9, 1.0)
        return True

    def _tell(self, result: Declaring) -> None:
        for name in result.made:
            self._logger.info("%s is new", self._said(name))
        for name in result.changed:
            self._logger.info("%s is changed to what the code declares", self._said(name))
        for name in result.resumed:
            self._logger.info("%s goes on: code declares it again", self._said(name))
        for name in result.held:
            self._warn(name, "stays as an operator has set it; the code declares another")
        for name in result.taken:
            self._warn(name, "was made at run time; the code that declares it must give another name")
        for name in result.superseded:
            self._warn(name, "has a newer definition than this worker's code declares, which is left")

    def _warn(self, name: str, what: str) -> None:
        if name not in self._named:
            self._named.add(name)
            self._logger.warning("%s %s", self._said(name), what)

    def _mend(self, error: DBAPIError) -> str:
        """What to do where the worker's role may not write them."""
        if getattr(error.orig, "sqlstate", None) != "42501":
            return ""
        return f"; `sa-jobqueue grants --role ROLE --can {self._grant}` prints the right that this worker's role lacks"


class TimeToDeclare:
    """Whether living workers have had the time to declare what they declare; not so after an outage, in which none could."""

    def __init__(self, now: float) -> None:
        self._well_since, self._well_until = now, now
        """Since when, and until when, this worker could have declared what it declares."""

    def is_over(self, now: float) -> bool:
        """Whether it is. To be asked every `DECLARE_EVERY` seconds at least, where the database answers."""
        if now > self._well_until + 2 * DECLARE_EVERY:
            self._well_since = now
        self._well_until = now
        return now - self._well_since >= GONE.total_seconds()

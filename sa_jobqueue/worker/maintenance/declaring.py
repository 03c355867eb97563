"""Shared by schedules and limits: storing the definitions that this worker's code declares, and finding those no code declares."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...sql.claims import Fault, fault_of
from ...sql.schedules.declared import Declaring
from ..connections.service import Connector
from .chore import missing_right

#: Seconds until the next try after an error.
AGAIN = 1.0
#: Seconds between two times that a worker stores the definitions that its code declares.
DECLARE_EVERY = 60.0
#: A definition that no living worker has declared for this long counts as not declared any more.
GONE = timedelta(minutes=5)


@dataclass
class Declarations:
    """Stores the definitions that this worker's code declares, again and again. One thread uses it.

    `declare`: the method of the store that does it. `what`, `grant`: their kind, and the right that a worker's role needs to store
    them. `named(name)`: a definition, as the log calls it. `logger`: the log to write to.
    """

    connector: Connector
    declare: Callable[..., Declaring]
    definitions: Mapping[Any, Any]
    what: str
    grant: str
    named: Callable[[str], str]
    logger: logging.Logger
    at: float = field(init=False)
    """When to do it next, by `monotonic()`."""
    _warned: set[str] = field(init=False, default_factory=set)
    """Names for which the log has already told that the definition here is not in use."""

    def __post_init__(self) -> None:
        self.at = 0.0 if self.definitions else math.inf

    def write_down(self, connection: sa.Connection, now: float) -> bool:
        """Store the definitions, at `now`. False: another transaction is in the way; an error is logged and counts as done."""
        self.at = now + AGAIN  # if it cannot be done now
        try:
            with self.connector.begin(connection):
                result = self.declare(connection, self.definitions, gone=GONE)
        except DBAPIError as error:
            if (fault := fault_of(error)) is Fault.AWAY:
                raise
            if fault is Fault.LATE:
                return False
            self.at = now + DECLARE_EVERY
            text = "the %s that this worker's code declares cannot be written down: %s%s"
            self.logger.error(text, self.what, error.orig, missing_right(error, self.grant))
            return True
        self._log(result)
        if result.locked:
            return False
        self.at = now + DECLARE_EVERY * random.uniform(0.9, 1.0)
        return True

    def _log(self, result: Declaring) -> None:
        for names, text in (
            (result.made, "is new"),
            (result.changed, "is changed to what the code declares"),
            (result.resumed, "goes on: code declares it again"),
        ):
            for name in names:
                self.logger.info("%s %s", self.named(name), text)
        for names, text in (
            (result.held, "stays as an operator has set it; the code declares another"),
            (result.taken, "was made at run time; the code that declares it must give another name"),
            (result.superseded, "has a newer definition than this worker's code declares, which is left"),
        ):
            for name in names:
                if name not in self._warned:
                    self._warned.add(name)
                    self.logger.warning("%s %s", self.named(name), text)


class TimeToDeclare:
    """The time that living workers need to declare their definitions. It begins again after an outage, in which they could not."""

    def __init__(self, now: float) -> None:
        self._well_since, self._well_until = now, now
        """Since when, and until when, this worker could have declared its definitions."""

    def is_over(self, now: float) -> bool:
        """Whether the time is over. Call it every `DECLARE_EVERY` seconds at least, where the database answers."""
        if now > self._well_until + 2 * DECLARE_EVERY:
            self._well_since = now
        self._well_until = now
        return now - self._well_since >= GONE.total_seconds()

"""The pressure governor: while the database is over thresholds that the operator has set, this worker claims less."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...sql.claims import Fault, fault_of
from ...sql.workers import Pressure, read_pressure
from ...util.log import get_logger
from ..connections.service import Connector
from .chore import Chore, Governor, Turn, Turned

logger = get_logger(__name__)

#: Seconds between two readings.
_EVERY = 5.0


class WatchPressure(Chore):
    """Reads the pressure, and passes the share of the slots to claim for to `hold_back`. `tell` is called when the pressure
    begins and when it is over, so that the worker's row shows it.

    A value that cannot be read holds nothing back. Any thread may read from `governor` what is held back just now.
    """

    def __init__(
        self, connector: Connector, governor: Governor, *, hold_back: Callable[[float], None], tell: Callable[[], None]
    ) -> None:
        super().__init__(connector, _EVERY, at=0.0)
        self._hold_back, self._tell = hold_back, tell
        self.governor = governor
        """Only the maintenance thread changes it."""
        self._is_unreadable = self._logged_hidden = False
        """Whether the last reading failed; and whether the log has told of hidden sessions."""

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Read the pressure, and decide."""
        try:
            with self._connector.begin_one(connection):
                pressure = read_pressure(connection)
        except DBAPIError as error:
            self._let_go(error)
            if fault_of(error) is Fault.AWAY:
                raise
            return False
        self._log_readable(pressure)
        turned = self.governor.hear(pressure)
        self._hold_back(self.governor.share)
        if turned is not None:
            self._tell()
        if turned is Turned.BEGUN:
            logger.warning(
                "the database is under pressure: %s; claiming less, down to one job at a time of each queue, until that is over",
                self.governor.reason,
            )  # fmt: skip
        elif turned is Turned.RECOVERED:
            logger.info("the database is under no pressure any more: claiming for all slots again")
        return False

    def _let_go(self, error: DBAPIError) -> None:
        if held := self.governor.let_go():
            self._hold_back(1.0)
            self._tell()
        if fault_of(error) is Fault.AWAY:  # maintenance logs it
            if held:
                logger.info("the pressure on the database is not known: claiming for all slots again")
        elif not self._is_unreadable:
            self._is_unreadable = True
            logger.warning(
                "the pressure on the database cannot be read, and nothing is held back until it can: %s", error.orig
            )

    def _log_readable(self, pressure: Pressure) -> None:
        if self._is_unreadable:
            self._is_unreadable = False
            logger.info("the pressure on the database can be read again")
        if pressure.hidden and not self._logged_hidden:
            self._logged_hidden = True
            logger.warning(
                "what %d other sessions or standbys do is hidden from this worker's role, so their pressure is not known: "
                "GRANT pg_read_all_stats to the role", pressure.hidden,
            )  # fmt: skip

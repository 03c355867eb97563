"""Being woken for new jobs."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from ..statements.depths import due_queues
from ..statements.waking import channel_of, open_gates
from ..statements.workers import EVERY_QUEUE
from .tables import OfTables

__all__ = ["Waking"]


class Waking(OfTables):
    """The gates that a worker opens, and the channel on which it is told."""

    def listen_for(self, connection: sa.Connection, queues: Sequence[str], *, seconds: float) -> None:
        """Ask to be woken for `queues` during the next `seconds`; "*" among them stands for all."""
        wanted = None if EVERY_QUEUE in queues else queues
        connection.execute(open_gates(queues=wanted, seconds=seconds, schema=self.schema_on(connection)))

    def due_queues(self, connection: sa.Connection) -> set[str]:
        """The queues that have due jobs."""
        return set(connection.scalars(due_queues(job=self.tables.job)))

    def channel(self, connection: sa.Connection) -> str:
        """The channel on which wake-ups come."""
        name = channel_of(table=self.tables.job.__tablename__, schema=self.schema_on(connection))
        return str(connection.scalar(name))

"""How hard pressed a database is just now, as a value."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from ..statements.pressure import database_pressure

__all__ = ["Pressure", "read_pressure"]


@dataclass(frozen=True, slots=True)
class Pressure:
    """What presses on a database at one moment. The session that reads it is not counted."""

    snapshot_seconds: float
    """The age of the oldest transaction in this database that keeps VACUUM from removing rows: one of a session, or a prepared one.
    0: there is none."""
    snapshot_xids: int
    """How many transactions ago the oldest row version became dead that VACUUM must keep for some session, prepared transaction,
    standby or replication slot."""
    lock_waits: int
    """Sessions in this database that wait for a lock; not those of the workers' own."""
    replication_seconds: float | None
    """How far the last standby is behind, by what it says. None: there is no standby, or all of them have caught up, or this role
    may not know."""
    replication_bytes: int | None
    """The same, in bytes of WAL that it has not replayed. None: there is no standby, or this role may not know."""
    active: int
    """Sessions in this database that execute something; not those of the workers' own."""
    connections: int
    """Sessions of clients on the whole server, busy or not."""
    hidden: int
    """Sessions in this database, and standbys, of which this role may not know what they do. `GRANT pg_read_all_stats` shows them."""


def read_pressure(connection: sa.Connection) -> Pressure:
    """Read it; some milliseconds with hundreds of sessions."""
    return Pressure(**connection.execute(database_pressure()).mappings().one())

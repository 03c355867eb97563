"""Reading a database's condition: each part is one statement.

Call them in a transaction with a `statement_timeout`, and READ ONLY if you like: they write nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from ..models import Base
from ..statements import depths
from ..statements import health as statements
from ..statements import sizes as size_statements
from ..store import Store, default_store
from .sizes import IndexSize, NextId, TableSize
from .values import BlockIO, Depth, Health, Holder, LockWait, Overdue, Server, Slot, Standby

__all__ = [
    "read_depths",
    "read_health",
    "read_holders",
    "read_indexes",
    "read_io",
    "read_lock_waits",
    "read_next_ids",
    "read_overdue",
    "read_server",
    "read_since_first_job",
    "read_slots",
    "read_standbys",
    "read_tables",
]

_Value = TypeVar("_Value")

#: From this version on there is pg_stat_io.
_HAS_IO = 16


def read_health(connection: sa.Connection, store: Store = default_store) -> Health:
    """Everything, in ten statements."""
    server = read_server(connection)
    return Health(
        server=server,
        holders=read_holders(connection),
        tables=read_tables(connection, store),
        indexes=read_indexes(connection, store),
        slots=read_slots(connection),
        standbys=read_standbys(connection),
        lock_waits=read_lock_waits(connection, store),
        io=read_io(connection, server),
        overdue=read_overdue(connection, store),
        depths=read_depths(connection, store),
    )


def read_server(connection: sa.Connection) -> Server:
    """The server: its version, settings that matter, connections, and counters of this database."""
    return Server(**connection.execute(statements.server_facts()).mappings().one())


def read_holders(connection: sa.Connection) -> list[Holder]:
    """What keeps old rows from being removed, the oldest first."""
    return _all(connection, statements.snapshot_holders(), Holder)


def read_tables(connection: sa.Connection, store: Store = default_store) -> list[TableSize]:
    """The queue's tables, by name."""
    return _all(connection, size_statements.table_sizes(**_ours(connection, store)), TableSize)


def read_indexes(connection: sa.Connection, store: Store = default_store) -> list[IndexSize]:
    """The indexes of the queue's tables, by table and name."""
    return _all(connection, size_statements.index_sizes(**_ours(connection, store)), IndexSize)


def read_next_ids(connection: sa.Connection, store: Store = default_store) -> list[NextId]:
    """The tables of ours that number their rows, in two statements: the first finds the sequences."""
    ours = _ours(connection, store)
    found = connection.execute(size_statements.identities(**ours)).all()
    if not found:
        return []
    return _all(connection, size_statements.next_ids(schema=ours["schema"], sequences=dict(map(tuple, found))), NextId)


def read_since_first_job(connection: sa.Connection, store: Store = default_store) -> float | None:
    """Seconds since the oldest job that is there or was counted; None: there is none."""
    tables = store.tables
    seconds: float | None = connection.scalar(depths.since_first_job(job=tables.job, stat=tables.stat))
    return seconds


def read_slots(connection: sa.Connection) -> list[Slot]:
    """The server's replication slots."""
    return _all(connection, statements.slots(), Slot)


def read_standbys(connection: sa.Connection) -> list[Standby]:
    """The servers that follow this one; on a standby, also itself."""
    return _all(connection, statements.standbys(), Standby)


def read_lock_waits(connection: sa.Connection, store: Store = default_store) -> list[LockWait]:
    """Who waits for a lock, and uses a table of ours; the longest first."""
    return _all(connection, statements.lock_waits(**_ours(connection, store)), LockWait)


def read_io(connection: sa.Connection, server: Server) -> list[BlockIO]:
    """Blocks read and written by kind of process; nothing before PostgreSQL 16."""
    return _all(connection, statements.block_io(), BlockIO) if server.major >= _HAS_IO else []


def read_overdue(connection: sa.Connection, store: Store = default_store) -> Overdue:
    """Finished jobs that cleanup has not come to yet."""
    row = connection.execute(depths.purge_overdue(job=store.tables.job)).mappings().one()
    return Overdue(**row)


def read_depths(connection: sa.Connection, store: Store = default_store) -> list[Depth]:
    """The queues that have queued jobs, by name."""
    return _all(connection, depths.queue_depths(job=store.tables.job), Depth)


def _ours(connection: sa.Connection, store: Store) -> dict[str, Any]:
    """The schema, and the names of the tables in it that are ours."""
    names = {table.name for table in Base.metadata.tables.values()} | {store.tables.job.__tablename__}
    return {"schema": store.schema_on(connection), "tables": sorted(names)}


def _all(connection: sa.Connection, statement: sa.Executable, kind: type[_Value]) -> list[_Value]:
    rows: Sequence[Any] = connection.execute(statement).mappings().all()
    return [kind(**row) for row in rows]

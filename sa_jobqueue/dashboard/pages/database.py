"""The database below the queue: what the doctor finds, how large tables and indexes are, and who holds old snapshots."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from ...health import Holder, read_holders, read_indexes, read_server, read_tables
from ...health.sizes import IndexSize, TableSize
from ...store import store_of
from ..doctoring import examined
from ..kept import Kept
from ..look import Look
from ..page import Page

__all__ = ["DATABASE"]

#: Sizes change slowly; to ask for them touches each file of the tables.
_sizes: Kept[tuple[list[TableSize], list[IndexSize]]] = Kept(15.0)
#: Indexes and holders that are shown, the largest and the oldest.
_INDEXES, _HOLDERS = 100, 20
#: Seconds and transactions up to which a session is not worth a line: pages, claims and commands hold theirs for milliseconds.
_SHORT, _FEW = 5.0, 1_000
#: Characters of a statement that are shown.
_QUERY = 300


def read_database(look: Look) -> dict[str, Any]:
    """All of it. A viewer who may see some queues alone is not shown what sessions of the database do."""
    connection, store = look.connection, store_of(look.job)
    doctor = examined(look)
    tables, indexes = _sizes.get(
        connection, look.job, lambda: (read_tables(connection, store), read_indexes(connection, store))
    )
    levels = [one.level for one in doctor.findings]
    return {
        "now": connection.scalar(sa.select(sa.func.now())),
        "server": read_server(connection),
        "looked": doctor.at,
        "findings": doctor.findings,
        "levels": {level: levels.count(level) for level in ("problem", "notice", "ok")},
        "tables": sorted(tables, key=lambda one: -(one.bytes + one.index_bytes + one.toast_bytes)),
        "total": sum(one.bytes + one.index_bytes + one.toast_bytes for one in tables),
        "indexes": sorted(indexes, key=lambda one: -one.bytes)[:_INDEXES],
        "sees_sessions": look.queues is None,
        "holders": [one for one in read_holders(connection) if _lasts(one)][:_HOLDERS] if look.queues is None else [],
        "letters": _QUERY,
    }


def _lasts(holder: Holder) -> bool:
    return holder.kind != "session" or holder.seconds is None or holder.seconds >= _SHORT or holder.xids >= _FEW


DATABASE = Page("database", "/database", read_database, adds_up=True)

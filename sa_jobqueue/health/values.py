"""The condition of a database, with a class for each kind of row.

Seconds and bytes are plain numbers. None: PostgreSQL does not say, or hides it from this role.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

#: Of a page, its header and what is behind the rows.
_PAGE_HEADER = 24
#: Of an index's page as well, what follows the entries.
_INDEX_PAGE_HEADER = 40


@dataclass(frozen=True, slots=True)
class NextId:
    """A table of ours that numbers its rows."""

    table: str
    next: int
    """The id that its next row gets."""
    highest: int
    """The highest id of a row; 0 without rows."""


@dataclass(frozen=True, slots=True)
class TableSize:
    """A table of ours."""

    name: str
    live: int
    dead: int
    planned_rows: int
    """Rows as the planner believes, since the last vacuum or analyze."""
    changed_since_analyze: int
    bytes: int
    index_bytes: int
    toast_bytes: int
    block_bytes: int
    row_bytes: float | None
    options: Sequence[str]
    """Storage parameters, "fillfactor=85"."""
    since_vacuum: float | None
    since_analyze: float | None
    vacuums: int
    autovacuums: int
    frozen_age: int
    seq_scans: int
    seq_rows: int
    blocks_read: int
    blocks_hit: int
    index_blocks_read: int
    index_blocks_hit: int

    @property
    def autovacuum(self) -> bool:
        """Whether the table leaves autovacuum on."""
        return _option(self.options, "autovacuum_enabled", "on") in {"on", "true", "yes", "1"}

    def vacuum_at(self, settings: Mapping[str, str]) -> int:
        """The number of dead rows from which on autovacuum comes, by the server's settings."""
        least, share = (
            float(_option(self.options, name, settings[name]))
            for name in ("autovacuum_vacuum_threshold", "autovacuum_vacuum_scale_factor")
        )
        return round(least + share * self.planned_rows)

    @property
    def needed_bytes(self) -> int | None:
        """An estimate of what the live rows need: their number times the mean size of a row, in pages as full as `fillfactor`
        says. Values in TOAST are not counted, as in `bytes`. None before the first analyze.
        """
        fill = int(_option(self.options, "fillfactor", "100")) / 100
        return _needed(max(self.live, self.planned_rows), self.row_bytes, self.block_bytes, _PAGE_HEADER, fill)

    @property
    def bloat_bytes(self) -> int:
        """An estimate of the space that holds no live row. Some of it is normal: it is used again."""
        return max(self.bytes - (self.bytes if self.needed_bytes is None else self.needed_bytes), 0)


@dataclass(frozen=True, slots=True)
class IndexSize:
    """An index of a table of ours."""

    table: str
    name: str
    valid: bool
    """False after a CREATE INDEX CONCURRENTLY that failed, and during it."""
    ready: bool
    building: bool
    """Whether a CREATE INDEX CONCURRENTLY is in progress, as far as this role may see."""
    unique: bool
    bytes: int
    planned_rows: int
    block_bytes: int
    entry_bytes: float | None
    options: Sequence[str]
    scans: int
    rows_read: int
    rows_fetched: int

    @property
    def needed_bytes(self) -> int | None:
        """An estimate, as for tables. An index with many equal values may need less."""
        fill = int(_option(self.options, "fillfactor", "90")) / 100
        return _needed(self.planned_rows, self.entry_bytes, self.block_bytes, _INDEX_PAGE_HEADER, fill)

    @property
    def bloat_bytes(self) -> int:
        """An estimate of the space that holds no entry of a live row."""
        return max(self.bytes - (self.bytes if self.needed_bytes is None else self.needed_bytes), 0)


def _option(options: Sequence[str], name: str, default: str) -> str:
    found = (value for option_name, _, value in (option.partition("=") for option in options) if option_name == name)
    return next(found, default)


def _needed(rows: int, each: float | None, block: int, header: int, fill: float) -> int | None:
    if each is None:
        return None
    in_a_page = max((block - header) * fill / each, 1.0)
    return (round(rows / in_a_page) + 1) * block


@dataclass(frozen=True, slots=True)
class Server:
    """The server, and the counters of this database."""

    version: str
    version_number: int
    """150018 for 15.18."""
    in_recovery: bool
    """It is a standby. The numbers of rows of a standby's tables are zero: the primary counts them."""
    database: str
    role: str
    sees_all: bool
    """Whether this role sees the states, times and queries of other roles' sessions."""
    settings: Mapping[str, str]
    notify_queue: float
    """How full the notification queue is, from 0 to 1. All databases of the server share it."""
    connections: int
    """Those of clients, to all databases."""
    connections_here: int
    connections_active: int
    connections_idle_in_transaction: int
    connections_of_queue: int
    """Those of workers and commands."""
    frozen_age: int
    """Transactions since the oldest row that is not frozen, in this database."""
    commits: int
    rollbacks: int
    deadlocks: int
    conflicts: int
    temp_bytes: int
    blocks_read: int
    blocks_hit: int
    """Blocks that were in shared_buffers."""
    read_seconds: float
    """Time spent reading blocks; 0 without `times_io`."""
    write_seconds: float

    @property
    def major(self) -> int:
        """15, 16, ..."""
        return self.version_number // 10_000

    @property
    def connections_max(self) -> int:
        """How many clients may connect that are not superusers and have no reserved connections."""
        reserved = ("superuser_reserved_connections", "reserved_connections")
        return int(self.settings["max_connections"]) - sum(int(self.settings.get(setting, 0)) for setting in reserved)

    @property
    def connections_ratio(self) -> float:
        """The part of `connections_max` that is used; 1 or more: the next client is refused."""
        return self.connections / max(self.connections_max, 1)

    @property
    def autovacuum(self) -> bool:
        """Whether autovacuum runs at all."""
        return self.settings["autovacuum"] == "on"

    @property
    def times_io(self) -> bool:
        """Whether the server measures how long blocks take: `track_io_timing`."""
        return self.settings["track_io_timing"] == "on"

    @property
    def freeze_max_age(self) -> int:
        """The age from which on a table is vacuumed even where autovacuum is off."""
        return int(self.settings["autovacuum_freeze_max_age"])


@dataclass(frozen=True, slots=True)
class Holder:
    """What keeps VACUUM from removing rows that died since: a session, a prepared transaction, a slot or a standby."""

    kind: Literal["session", "prepared", "slot", "standby"]
    xids: int
    """Transactions that have begun since."""
    seconds: float | None
    """How long its transaction is open."""
    name: str | None
    """The application's name, or that of the prepared transaction or the slot."""
    role: str | None
    pid: int | None
    state: str | None
    query_start: datetime | None
    query: str | None

    @property
    def hidden(self) -> bool:
        """Whether it is a session of another role, whose details this role may not see."""
        return self.kind in {"session", "standby"} and self.state is None


@dataclass(frozen=True, slots=True)
class Slot:
    """A replication slot."""

    name: str
    kind: str
    active: bool
    database: str | None
    wal_status: str | None
    retained: int | None
    """Bytes of WAL that are kept for it."""
    xmin_age: int | None
    catalog_xmin_age: int | None


@dataclass(frozen=True, slots=True)
class Standby:
    """A standby of this server; with the name '' it is this server itself."""

    name: str
    address: str | None
    state: str | None
    bytes: int | None
    """WAL that is not replayed there yet."""
    seconds: float | None


@dataclass(frozen=True, slots=True)
class LockWait:
    """A session that uses a table of ours and waits for a lock."""

    pid: int
    table: str
    mode: str
    seconds: float | None
    blocked_by: Sequence[int]
    """The processes in its way."""
    name: str | None
    role: str | None
    blocker_name: str | None
    blocker_role: str | None
    blocker_state: str | None


@dataclass(frozen=True, slots=True)
class BlockIO:
    """Blocks of tables and indexes that a kind of process has read and written, for the whole server."""

    process: str
    reads: int
    writes: int
    extends: int
    hits: int
    evictions: int
    fsyncs: int
    read_seconds: float
    write_seconds: float


@dataclass(frozen=True, slots=True)
class Overdue:
    """Finished jobs that should be deleted by now; `rows` is counted up to 10,001."""

    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Depth:
    """A queue that has queued jobs; both numbers are counted up to 10,001."""

    queue: str
    queued: int
    due: int
    oldest_due_age: float | None

"""The sizes of tables and indexes, and how much of them is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["IndexSize", "NextId", "TableSize"]

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
    """False after a CREATE INDEX CONCURRENTLY that failed, and while one is at work."""
    ready: bool
    building: bool
    """Whether one is at work, as far as this role may see."""
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
    found = (value for one, _, value in (option.partition("=") for option in options) if one == name)
    return next(found, default)


def _needed(rows: int, each: float | None, block: int, header: int, fill: float) -> int | None:
    if each is None:
        return None
    in_a_page = max((block - header) * fill / each, 1.0)
    return (round(rows / in_a_page) + 1) * block

"""What every runner shares: how it describes itself, where its server is, and the board on which handlers sign.

Only the standard library: it is imported in the virtual environment of each peer.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

#: Where the broker is, as a URL: PostgreSQL's or Redis's.
SERVER = os.environ.get("PEERS_SERVER", "")


@dataclass(frozen=True)
class Way:
    """One way to run a peer."""

    handler: str
    """`async` or `sync`: the kind of the no-op job; or `steps`: an async job of ten empty steps."""
    settings: str
    """What was set, for the reader of the figures."""
    jobs: int = 0
    """The number of jobs for a drain of some seconds; 0: as many as `Peer.jobs`."""


@dataclass(frozen=True)
class Peer:
    """What a runner says of itself; each runner module has one as `PEER`."""

    name: str
    broker: str
    """`postgresql` or `redis`."""
    packages: tuple[str, ...]
    """Whose versions are told beside the figures."""
    ways: dict[str, Way]
    unfinished: str
    """Counts the jobs without a durable completion: one SQL query, or Redis commands, one a line, that are added up."""
    jobs: int
    """How many jobs make a drain of some seconds."""
    bulk: str
    """How jobs are enqueued in bulk."""
    finished: str | None = None
    """Counts the jobs whose completion is on record: SQL; None where no record is kept."""


class Board:
    """A file with a byte for each job, in memory that all processes share."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self.bytes = mmap.mmap(file.fileno(), 0)

    def mark(self, job: int) -> None:
        """Count one more execution of `job`."""
        self.bytes[job] += 1


_path = os.environ.get("PEERS_BOARD")
mark = Board(Path(_path)).mark if _path else lambda job: None

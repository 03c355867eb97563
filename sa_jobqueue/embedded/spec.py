"""What an embedded server is, and where its files are."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from ..errors import EmbeddedUnavailable

__all__ = ["DEFAULT_SETTINGS", "GIVE_A_DATABASE", "ServerSpec", "default_directory"]

DEFAULT_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "max_connections": "200",
        "shared_buffers": "128MB",
        "max_wal_size": "2GB",
        "log_checkpoints": "off",
    }
)
"""Settings of a server for development. Durability stays on: what a command has committed outlives a power cut."""

GIVE_A_DATABASE = "give a database with --database-url or SA_JOBQUEUE_DATABASE_URL"
"""The way out that is left wherever the embedded server cannot be used."""

#: Bytes that fit into `sockaddr_un.sun_path` with its final NUL: 104 on macOS and the BSDs, 108 on Linux.
_SOCKET_PATH_LIMIT = 103


def default_directory() -> Path:
    """Return the folder of the embedded server: `SA_JOBQUEUE_EMBEDDED_DIR`, else one in the user's data folder; as root, a
    system folder.

    Root's server runs as another user, who could not reach a folder inside root's home.
    """
    _refuse_windows()
    if said := os.environ.get("SA_JOBQUEUE_EMBEDDED_DIR"):
        return Path(said)
    if os.geteuid() == 0:
        return Path("/var/lib/sa_jobqueue")
    if sys.platform == "darwin":
        return _expanded(Path("~/Library/Application Support/sa_jobqueue"))
    data_home = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (data_home if data_home.is_absolute() else _expanded(Path("~/.local/share"))) / "sa_jobqueue"


@dataclass(frozen=True)
class ServerSpec:
    """The folder, version, settings and programs of a server; see `EmbeddedServer`."""

    directory: Path = field(default_factory=default_directory)
    version: int = 18
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    programs: Path | None = None

    def __post_init__(self) -> None:
        _refuse_windows()
        object.__setattr__(self, "directory", _expanded(self.directory).resolve())
        if not set(str(self.directory)).isdisjoint('"$`\\\n'):  # pg_ctl passes its paths through a shell
            raise EmbeddedUnavailable(
                f"the embedded PostgreSQL cannot live in {str(self.directory)!r}: choose a plainer name"
            )

    @property
    def home(self) -> Path:
        """The folder of this major version."""
        return self.directory / str(self.version)

    @property
    def data(self) -> Path:
        """PostgreSQL's data directory."""
        return self.home / "data"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.home / "log"

    @property
    def socket_directory(self) -> Path:
        """The folder of the Unix socket: beside the data, or a short path where that would be too long for a socket."""
        beside = self.home / "run"
        if len(os.fsencode(beside / ".s.PGSQL.5432.lock")) <= _SOCKET_PATH_LIMIT:
            return beside
        return Path("/tmp") / f"sa_jobqueue-{hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]}"  # noqa: S108


def _refuse_windows() -> None:
    if sys.platform == "win32":
        raise EmbeddedUnavailable(f"the embedded PostgreSQL runs on Linux and macOS: {GIVE_A_DATABASE}")


def _expanded(folder: Path) -> Path:
    """The folder, with the home folder in place of `~` or `~user`."""
    try:
        return folder.expanduser()
    except RuntimeError:
        raise EmbeddedUnavailable(
            f"the embedded PostgreSQL cannot live in {str(folder)!r}: there is no such home folder: "
            "set SA_JOBQUEUE_EMBEDDED_DIR to a folder of yours"
        ) from None

"""A server's clock that steps, as one does that was set by hand: by libfaketime (Debian's package), which is asked what time it is.

clock = ServerClock(folder)
server = Server.make(folder, guard, environment=clock.environment)
clock.step(-3)                      # three seconds behind, from now on
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["LIBRARY", "ServerClock"]

#: The library; None: it is not installed.
LIBRARY: Path | None = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


class ServerClock:
    """How far the clock of all processes with this environment is ahead. Their monotonic clocks are right."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.ahead = 0.0
        self._write()

    @property
    def environment(self) -> Mapping[str, str]:
        """For the programs whose clock it is to be."""
        assert LIBRARY is not None
        return {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def step(self, ahead: float) -> None:
        """Let the clock be so many seconds ahead of the true one, or behind it."""
        self.ahead = ahead
        self._write()

    def _write(self) -> None:
        # In one go: the server reads it each time.
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{self.ahead:+.1f}\n")
        fresh.chmod(0o644)
        fresh.replace(self._file)

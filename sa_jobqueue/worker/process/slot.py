"""The place of one worker process under a supervisor, which starts one process there after the other."""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["Slot", "described"]


@dataclass(slots=True, eq=False)
class Slot:
    """What the supervisor knows of it. Only the supervisor's main thread touches it."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    start_at: float | None = 0.0
    """When to start it (again); None: not at all, or it runs."""
    deaths: int = 0
    """Fast deaths in a row, and starts that failed."""
    starts: int = 0
    cannot_work: bool = False
    """What its last process said of itself."""
    restarts: bool = False
    """Its process drains, to be started again."""
    kill_at: float | None = None
    """When its process has had the time to drain."""

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its process, if there is one."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def close(self) -> int:
        """Mark that its process has ended. Returns the pid."""
        process, self.process = self.process, None
        assert process is not None
        if process.stdin is not None:
            process.stdin.close()
        return process.pid


def described(code: int) -> str:
    """How a process has ended, by its exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"

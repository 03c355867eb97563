"""How worker processes tell their supervisor what they have counted: a line of JSON each second, over a pipe of each.

A worker writes from a thread of its own, so a supervisor that does not read holds up nothing else. What a killed worker has counted
since its last line is lost to the metrics.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from ..log import get_logger
from ..worker.process.signals import start_deaf
from .snapshot import Snapshot
from .sums import Sums

__all__ = ["Receiver", "Sender"]

logger = get_logger(__name__)

#: Seconds between two lines.
_EVERY = 1.0
#: Seconds that the last line may take.
_LAST = 1.0


class Sender:
    """In a worker process: writes what `read` returns to the pipe `end`."""

    def __init__(self, end: int, read: Callable[[], Snapshot]) -> None:
        os.set_inheritable(end, False)  # or a program that a handler starts would keep the pipe open
        self._end, self._read = end, read
        self._finish = threading.Event()
        self._thread = threading.Thread(target=self._send, name="sa-jobqueue metrics", daemon=True)

    def start(self) -> None:
        """Begin."""
        with suppress(RuntimeError):  # the host allows no more threads
            start_deaf(self._thread)

    def finish(self) -> None:
        """Write a last line; waits for a second at most."""
        self._finish.set()
        if self._thread.ident is not None:
            self._thread.join(_LAST)

    def _send(self) -> None:
        try:
            with os.fdopen(self._end, "wb", buffering=0) as pipe:
                while True:
                    finishing = self._finish.is_set()
                    line = self._read().to_line()
                    while line:
                        line = line[pipe.write(line) or 0 :]
                    if finishing:
                        return
                    self._finish.wait(_EVERY)
        except OSError:
            logger.debug("the supervisor does not hear the metrics any more")


class Receiver:
    """In the supervisor: hears the pipes, each on a thread of its own, and adds up what comes in `sums`."""

    def __init__(self, *, ended: Callable[[int], None] | None = None) -> None:
        self.sums = Sums()
        self.is_leaving = False
        """Whether no process is started any more. Written by the supervisor's thread, read by any."""
        self._ended = ended
        """Is told the process id of each process that has ended."""
        self._starts: dict[int, int] = {}
        """How often each number was started. Only the supervisor's thread uses it."""

    def open(self, number: int) -> int:
        """A pipe for the process that is started next under this number; its writing end."""
        process = number, self._starts.get(number, 0) + 1
        reading, writing = os.pipe()
        try:
            name = f"sa-jobqueue metrics of {number}"
            start_deaf(threading.Thread(target=self._hear, args=(process, reading), name=name, daemon=True))
        except RuntimeError:
            os.close(reading)
            os.close(writing)
            raise
        self._starts[number] = process[1]
        return writing

    def ended(self, number: int, pid: int) -> None:
        """The process with this number has ended."""
        self.sums.end((number, self._starts[number]))
        if self._ended is not None:
            self._ended(pid)

    def leaving(self) -> None:
        """No process is started any more."""
        self.is_leaving = True

    def _hear(self, process: tuple[int, int], pipe: int) -> None:
        try:
            with os.fdopen(pipe, "rb") as lines:
                for line in lines:
                    if line.endswith(b"\n"):  # else it was killed while it wrote
                        self.sums.hear(process, Snapshot.from_line(line))
        except (OSError, ValueError) as error:
            logger.warning("worker process %d says nothing more to the metrics: %s", process[0], error)
        finally:
            self.sums.close(process)

"""Waiting: for a condition, and for the lock that one command holds while it starts or stops a server."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import EmbeddedUnavailable
from .spec import GIVE_A_DATABASE

if sys.platform != "win32":
    import fcntl

__all__ = ["PATIENCE", "exclusively", "polls"]

PATIENCE = 120.0
"""Seconds to wait for another command's start, or for crash recovery."""


@contextmanager
def exclusively(directory: Path) -> Generator[None]:
    """Make the folder and hold its lock, which the kernel drops when this process ends, however it ends.

    An error of the file system becomes an EmbeddedUnavailable that says the way out.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o755 if os.geteuid() == 0 else 0o700)
        with open(directory / "lock", "a") as file:
            for _ in polls():
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    continue
            else:
                raise EmbeddedUnavailable(f"another command has held {file.name} for {PATIENCE:.0f} seconds")
            yield
    except OSError as error:
        raise EmbeddedUnavailable(
            f"the embedded PostgreSQL cannot use {directory}: {error}; set SA_JOBQUEUE_EMBEDDED_DIR to a folder of yours, "
            f"or {GIVE_A_DATABASE}"
        ) from error


def polls(patience: float = PATIENCE) -> Iterator[None]:
    """Yield at once, then every 50 ms until `patience` seconds are over."""
    deadline = time.monotonic() + patience
    yield
    while time.monotonic() < deadline:
        time.sleep(0.05)
        yield

"""Effects of a job outside the database, and points at which its worker is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

FOLDER = "SA_STEPS_FOLDER"


def note(name: str) -> str:
    file = os.open(Path(os.environ[FOLDER]) / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, name.encode() + b"\n")
        os.fsync(file)
    finally:
        os.close(file)
    return name


def die(point: str) -> None:
    """Kill this process when it reaches this point for the first time."""
    mark = Path(os.environ[FOLDER]) / point
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

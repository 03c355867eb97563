"""A job behind a breaker, for workers that are real processes: each start of its handler leaves a line, and the handler waits for a file."""

from __future__ import annotations

import os
import time
from pathlib import Path

from sa_jobqueue import Breaker, Registry, task
from tests.support.killed import FOLDER, note

registry = Registry()
FAILURES = 3


@task(registry=registry, name="call", breaker=Breaker(failures=FAILURES, per=3_600, rest=3_600), max_attempts=20)
def call() -> None:
    note(f"{os.getpid()}")
    while not (Path(os.environ[FOLDER]) / "answers").exists():
        if (Path(os.environ[FOLDER]) / "refuses").exists():
            raise ConnectionError("the other side is down")
        time.sleep(0.01)

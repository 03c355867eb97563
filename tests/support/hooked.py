"""Hooks and shared values of worker processes and their children, which import this module: each writes a line into the file of HOOKED."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from sa_jobqueue import INJECTED, Inject, Registry, task

registry = Registry()


def say(what: str) -> None:
    """Write a line: what, and the process."""
    with Path(os.environ["HOOKED"]).open("a") as out:
        out.write(f"{what} {os.getpid()}\n")


@registry.on_worker_start
def start() -> None:
    """Fails if the test wants it."""
    if "FAILS" in os.environ:
        raise OSError("no model")
    say("start")


@registry.on_worker_stop
async def stop() -> None:
    """Says so."""
    say("stop")


def get_model() -> Iterator[int]:
    """A value that is the process."""
    say("opened")
    yield os.getpid()
    say("closed")


@task(registry=registry, name="computes", executor="process")
def computes(model: Annotated[int, Inject(get_model, scope="worker")] = INJECTED) -> None:
    """Runs in a child process."""
    say(f"ran by {model} in")

"""Tasks for workers and their child processes, which import this module.

With SURROUNDED in the environment there is a middleware, which writes what it sees into the file that it names.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import text

from sa_jobqueue import Attempt, JobContext, Middleware, Registry, RetryPolicy, add_middleware, task

registry = Registry()


def say(line: str) -> None:
    """Write a line into the file."""
    with Path(os.environ["SURROUNDED"]).open("a") as out:
        out.write(f"{line}\n")


class Says(Middleware):
    """Writes down each beginning and each end."""

    @contextmanager
    def around(self, attempt: Attempt) -> Generator[None]:
        attempt.at_end(lambda outcome, error: say(f"{attempt.job_id} {outcome} {type(error).__name__}"))
        say(
            f"{attempt.job_id} begins, {attempt.meta.get('tenant')}, in the worker: {os.getpid() == int(os.environ['WORKER'])}"
        )
        yield
        say(f"{attempt.job_id} returned")


if "SURROUNDED" in os.environ:
    add_middleware(Says())


@task(registry=registry, executor="process")
def writes(ctx: JobContext) -> None:
    """Writes a row."""
    ctx.session.execute(text("INSERT INTO note VALUES ('written')"))


@task(registry=registry, executor="process", retry=RetryPolicy(no_retry=(ValueError,)))
def fails() -> None:
    """Fails for good."""
    raise ValueError("no")


@task(registry=registry, name="logs")
def logs() -> None:
    """Says something by a logger of the application's."""
    logging.getLogger("shop").warning("a line", extra={"queue": "its own"})


@task(registry=registry, name="logs_async")
async def logs_async() -> None:
    """The same, also on a thread."""
    await asyncio.to_thread(logging.getLogger("shop").warning, "a line")


@task(registry=registry, name="logs_in_child", executor="process")
def logs_in_child() -> None:
    """The same in a child process."""
    logging.getLogger("shop").warning("a line")

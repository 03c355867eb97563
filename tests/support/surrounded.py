"""Tasks that run in child processes, with middleware there: a child imports this module, with SURROUNDED in its environment.

The middleware writes what it sees into the file that SURROUNDED names.
"""

from __future__ import annotations

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
    """Writes a row, and a line by a logger of its own."""
    ctx.session.execute(text("INSERT INTO note VALUES ('written')"))
    logging.getLogger("shop").warning("the handler's line")


@task(registry=registry, executor="process", retry=RetryPolicy(no_retry=(ValueError,)))
def fails() -> None:
    """Fails for good."""
    raise ValueError("no")

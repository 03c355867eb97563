"""An application with Sentry, whose transport writes what would be sent into the file that REPORTED names.

As a program it enqueues the tasks that its arguments name, within a transaction of Sentry's.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from typing import Any

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import BatchContext, Batching, JobContext, Registry, Retry, RetryPolicy, Snooze, enqueue, task
from sa_jobqueue.sentry import SaJobqueueIntegration

registry = Registry()
ONCE = RetryPolicy(base=0.0, jitter=0, no_retry=(KeyError,))


class Recording(Transport):
    """Writes each event and each transaction as a line."""

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            if item.type in {"event", "transaction"}:
                with open(os.environ["REPORTED"], "a") as out:
                    out.write(
                        json.dumps({"type": item.type, "pid": os.getpid(), **item.payload.json}, default=str) + "\n"
                    )


def start(**options: Any) -> None:
    """As an application does when it is imported."""
    sentry_sdk.init(
        dsn="https://public@sentry.invalid/1",
        transport=Recording,
        traces_sample_rate=1.0,
        auto_enabling_integrations=False,  # those of other libraries
        integrations=[SaJobqueueIntegration(**options)],
    )


start(**json.loads(os.environ.get("REPORTED_OPTIONS", "{}")))


@task(registry=registry, name="sync", retry=ONCE)
def sync() -> None:
    """Fails twice: it is tried again in between."""
    sentry_sdk.add_breadcrumb(message="a step")
    raise LookupError("no such order")


@task(registry=registry, name="async", retry=ONCE)
async def asynchronous() -> None:
    """The same on the event loop."""
    await asyncio.sleep(0)
    raise LookupError("no such order")


@task(registry=registry, name="batched", batch=Batching(10), retry=RetryPolicy(no_retry=(LookupError,)))
def batched(ctx: BatchContext) -> None:
    """The first job of the batch fails alone."""
    ctx.fail(ctx.jobs[0], LookupError("no such order"))


@task(registry=registry, name="child", executor="process", retry=ONCE)
def child() -> None:
    """The same in a child process."""
    raise LookupError("no such order")


@task(registry=registry, name="late", timeout=0.2, retry=RetryPolicy(no_retry=(BaseException,)))
def late(ctx: JobContext) -> None:
    """Does not end at its timeout."""
    while not ctx.cancelled:
        time.sleep(0.01)


_outcomes = [Snooze(0.0), Retry(0.0)]


@task(registry=registry, name="outcomes")
def outcomes(ctx: JobContext) -> None:
    """Raises an outcome, which is not an error, and then waits."""
    if _outcomes:
        raise _outcomes.pop()
    ctx.sleep_for(3600)


@task(registry=registry, name="says")
def says() -> None:
    """Reports something by itself."""
    logging.getLogger("shop").error("a line of its own")


@task(registry=registry, name="fits")
def fits(number: int) -> None:
    """Its arguments may not fit."""


def main() -> None:
    """Enqueue."""
    engine = create_engine(os.environ["SA_JOBQUEUE_DATABASE_URL"])
    with sentry_sdk.start_transaction(op="http.server", name="POST /orders"), Session(engine) as session:
        for name in sys.argv[1:]:
            found: Any = registry.get(name)
            session.add(enqueue(name) if name == "fits" else enqueue(found.options(max_attempts=2)))
        session.commit()


if __name__ == "__main__":
    main()

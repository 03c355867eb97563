"""A task that runs in batches, and whose worker is killed in the first of them: for `--app`."""

from __future__ import annotations

from sqlalchemy import text

from sa_jobqueue import BatchContext, Batching, Registry, task
from tests.support.killed import die, note

registry = Registry()


@task(registry=registry, name="write", batch=Batching(100))
def write(ctx: BatchContext, numbers: list[int]) -> None:
    """Write a row for each job. The worker dies when half of the first batch is written."""
    note(f"batch of {len(numbers)}")
    for place, number in enumerate(numbers):
        if place == len(numbers) // 2:
            die("in the middle")
        ctx.session.execute(text("INSERT INTO entry_of_batch (n) VALUES (:n)"), {"n": number})

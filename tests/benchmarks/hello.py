"""The application of the worker whose start is measured."""

from __future__ import annotations

from sa_jobqueue import task


@task
def hello(n: int) -> None:
    """Do nothing."""

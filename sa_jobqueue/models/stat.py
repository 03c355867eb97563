"""The table of what jobs came to, by minute and by hour."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from .base import Base, vacuum_by_traffic

__all__ = ["Stat"]


class Stat(Base):
    """What the jobs of one task in one queue came to within a minute or an hour, in all workers together."""

    __tablename__ = "stat"

    seconds: Mapped[int] = mapped_column(sa.Integer, primary_key=True, autoincrement=False)
    """How long the time is for which the row stands: 60, or 3600."""
    at: Mapped[datetime] = mapped_column(primary_key=True)
    """When that time began."""
    completed: Mapped[int] = mapped_column(sa.BigInteger)
    retried: Mapped[int] = mapped_column(sa.BigInteger)
    """Attempts that failed and are followed by another."""
    failed: Mapped[int] = mapped_column(sa.BigInteger)
    """Jobs that failed for good."""
    cancelled: Mapped[int] = mapped_column(sa.BigInteger)
    snoozed: Mapped[int] = mapped_column(sa.BigInteger)
    released: Mapped[int] = mapped_column(sa.BigInteger)
    """Jobs that their worker gave back."""
    rescued: Mapped[int] = mapped_column(sa.BigInteger)
    """Jobs that were taken from a worker that died."""
    lost: Mapped[int] = mapped_column(sa.BigInteger)
    """Outcomes that came when their claim was over, so that they were not written."""
    run_seconds: Mapped[float]
    """How long all handlers together took."""
    wait_seconds: Mapped[float]
    """How long all jobs together had been due when their handlers were called."""
    queue: Mapped[str] = mapped_column(sa.Text, primary_key=True)
    task: Mapped[str] = mapped_column(sa.Text, primary_key=True)
    """The name of the task; "(unknown)" for jobs that a worker gave back because it has no task of their name."""
    runs: Mapped[list[int]] = mapped_column(ARRAY(sa.BigInteger))
    """Handlers by how long they took, in the buckets of `sa_jobqueue.histogram`."""
    waits: Mapped[list[int]] = mapped_column(ARRAY(sa.BigInteger))
    """Handlers by how long their jobs had been due, likewise."""


vacuum_by_traffic(Stat, also="fillfactor = 50, ")

"""The tables of what running jobs say: how far they are, and their log lines."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from .base import Base, vacuum_by_traffic

__all__ = ["LogPart", "Progress"]


class Progress(Base):
    """How far a job is, or was at its end: what its handler last told `ctx.progress`."""

    __tablename__ = "job_progress"

    job_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    claim_token: Mapped[int] = mapped_column(sa.BigInteger)
    """Of the claim that wrote it. If the job has another token by now, this row says nothing any more."""
    fraction: Mapped[float]
    written_at: Mapped[datetime]
    claims: Mapped[int] = mapped_column(sa.Integer)
    """`Job.claims` at that claim: a claim does not overwrite what a later one has written."""
    message: Mapped[str | None]


class LogPart(Base):
    """Some log lines of one claim of a job, written together."""

    __tablename__ = "job_log"

    job_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    claim_token: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    part: Mapped[int] = mapped_column(sa.Integer, primary_key=True, autoincrement=False)
    """0, 1, ...: the order of the parts of one claim. The oldest are deleted when there are more lines than are kept."""
    written_at: Mapped[datetime]
    attempt: Mapped[int] = mapped_column(sa.SmallInteger)
    lines: Mapped[list[Any]] = mapped_column(JSONB)
    """`[seconds since 1970, level, text]` each, the oldest first."""


vacuum_by_traffic(Progress, also="fillfactor = 50, ")  # room for an update on the same page
vacuum_by_traffic(LogPart)

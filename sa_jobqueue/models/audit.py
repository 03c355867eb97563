"""The table of what operators did."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from .base import Base

__all__ = ["AuditEntry"]


class AuditEntry(Base):
    """What an operator did in one transaction."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(sa.BigInteger, sa.Identity(), primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
    """When that transaction began."""
    count: Mapped[int] = mapped_column(sa.BigInteger)
    """How many jobs, schedules or other things were changed by it."""
    action: Mapped[str] = mapped_column(sa.Text)
    """"retry", "cancel", "pause" and so on."""
    who: Mapped[str] = mapped_column(sa.Text)
    """As the application named the viewer."""
    target: Mapped[dict[str, Any]] = mapped_column(JSONB)
    """What it was done to, as it was asked for: `{"id": ["7"]}`, `{"status": ["failed"], "queue": ["mail"]}`."""

"""What operators did: written in the transaction of the deed, and read again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from ..models import AuditEntry, Job, JobMixin
from .beside import with_companions
from .parts import table_of

__all__ = ["list_audit", "record_action"]


@with_companions
def record_action(
    action: str,
    *,
    who: str,
    target: Mapping[str, Any],
    count: int,
    job: type[JobMixin] = Job,
    audit: type[AuditEntry] = AuditEntry,
) -> sa.Executable:
    """Note that `who` has done this to `count` things. It is for the transaction that does it, so there is both or neither.

    >>> statement = record_action("retry", who="ada", target={"queue": ["mail"]}, count=12)
    """
    return sa.insert(audit).values(action=action, who=who, target=dict(target), count=count)


@with_companions
def list_audit(
    *,
    before: int | None = None,
    who: str | None = None,
    action: str | None = None,
    limit: int = 50,
    job: type[JobMixin] = Job,
    audit: type[AuditEntry] = AuditEntry,
) -> sa.Select[Any]:
    """What was done, the last first: id, at, who, action, target, count.

    `before`: only what has a lower id. `who`, `action`: only what this operator did, only what was done so.
    """
    columns = table_of(audit).c
    query = sa.select(*(columns[name] for name in ("id", "at", "who", "action", "target", "count")))
    if before is not None:
        query = query.where(audit.id < before)
    if who is not None:
        query = query.where(audit.who == who)
    if action is not None:
        query = query.where(audit.action == action)
    return query.order_by(audit.id.desc()).limit(limit)

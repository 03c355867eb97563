"""Who did what, when, to how many: the last first."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from ...statements import list_audit
from ..look import Look
from ..page import Page
from ..strings import TEXTS

__all__ = ["AUDIT"]

_PAGE = 50
#: Values of a target that are named.
_NAMED = 10
#: No index finds an entry by these; so it is looked for among this number, the newest.
_NEWEST = 100_000
#: What can be done, as the audit calls it.
ACTIONS = tuple(key.removeprefix("act.") for key in TEXTS if key.startswith("act."))


def read_audit(look: Look) -> dict[str, Any]:
    """A page of entries."""
    query, audit = look.query, look.options.beside.audit
    who, action = query.one("who"), query.one("action")
    statement = list_audit(
        before=query.id("before"), who=who or None, action=action or None, limit=_PAGE + 1, job=look.job
    )
    if who or action:
        statement = statement.where(audit.id > sa.select(sa.func.max(audit.id) - _NEWEST).scalar_subquery())
    rows = look.connection.execute(statement).mappings().all()
    return {
        "now": look.connection.scalar(sa.select(sa.func.now())),
        "entries": [{**row, "target": _said(row["target"])} for row in rows[:_PAGE]],
        "before": rows[_PAGE - 1]["id"] if len(rows) > _PAGE else None,
        "filtered": bool(who or action),
        "actions": ACTIONS if not action or action in ACTIONS else (*ACTIONS, action),
        "newest": _NEWEST,
    }


def _said(target: Any) -> list[tuple[str, str]]:
    """What it was done to: each field of the form, and its values."""
    if not isinstance(target, dict):
        return [("", str(target))]
    found = []
    for name, given in target.items():
        values = [str(one) for one in given] if isinstance(given, list) else [str(given)]
        more = len(values) - _NAMED
        found.append((str(name), ", ".join(values[:_NAMED]) + (f", … {more:,}" if more > 0 else "")))
    return found


AUDIT = Page("audit", "/audit", read_audit, adds_up=True, of_all_queues=True)

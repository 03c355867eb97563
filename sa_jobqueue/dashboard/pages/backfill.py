"""A backfill before it is done: which ticks of a schedule would become jobs, by the rule that will decide."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from ...schedules import Cron, rule_of
from ...schedules.coming import rule_in_words
from ..look import Look
from ..page import Page
from ..schedule_deeds import MOST, found_schedule, plan_of, zone_in
from .schedules import local

__all__ = ["BACKFILL"]

#: Ticks that are named at each end of the range.
_NAMED = 10


def read_backfill(look: Look) -> dict[str, Any]:
    """The form, and what it would do."""
    row = found_schedule(look, look.path["id"])
    zone = zone_in(row)
    rule = rule_of(row["expression"], row["timezone"])
    shown: dict[str, Any] = {
        "schedule": row,
        "words": rule_in_words(rule),
        "zone": rule.timezone if isinstance(rule, Cron) else "UTC",
        "most": MOST,
        "plan": None,
    }
    if not look.query.one("from"):
        return shown
    plan = plan_of(look, row, zone, lock=False)
    ticks = [local(at, zone) for at in plan.ticks]
    until = look.query.one("to") or row["now"].astimezone(UTC).isoformat()
    return {
        **shown,
        "plan": plan,
        "first": ticks[:_NAMED],
        "last": ticks[max(len(ticks) - _NAMED, _NAMED) :],
        "between": max(len(ticks) - 2 * _NAMED, 0),
        "left_from": None if plan.left_from is None else local(plan.left_from, zone),
        # What is confirmed is what was shown: a range that ends now ends when this was read.
        "fields": [("id", row["id"]), ("from", look.query.one("from")), ("to", until)],
    }


BACKFILL = Page("backfill", "/schedules/{id}/backfill", read_backfill, in_menu=False, adds_up=True, is_live=False)

"""The schedules, with their next times and their last job, by name, a page at a time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from itertools import islice
from typing import Any

import sqlalchemy as sa

from ...errors import OptionError
from ...models import Overlap
from ...rules.schedules import Cron, Missed, coming_ticks, rule_in_words, rule_of, state_of, zone_of
from ...statements import list_schedules
from ...util.log import one_line
from ...util.urls import mask_passwords
from ..actions.schedules import MOST, found_schedule, plan_of, reached_schedules, schedule_of, zone_in
from ..request import Page, PageContext

_PAGE = 50
#: The next times that are shown.
_TIMES = 5
#: The year of a tick that means that there are no more.
_NEVER = 9_999
#: The treatment of ticks that no worker served, and of ticks during which a job runs, in words.
MISSED: Mapping[Missed, str] = {"once": "one job for all", "skip": "left out", "all": "a job for each"}
OVERLAP: Mapping[Overlap, str] = {
    "allow": "allowed",
    "skip": "left out",
    "queue_one": "one waits",
    "cancel_running": "the running job is cancelled",
}
_PAUSED_BY = {
    "operator": "by an operator",
    "failures": "because its jobs failed",
    "undeclared": "because no code declares it any longer",
}


def read_schedules(context: PageContext) -> dict[str, Any]:
    """A page of schedules."""
    query, schedule = context.query, schedule_of(context)
    statement = list_schedules(job=context.job).where(*reached_schedules(context)).limit(_PAGE + 1)
    if after := query.one("after"):
        statement = statement.where(schedule.name > after)
    if name := query.one("name"):
        statement = statement.where(schedule.name.icontains(name, autoescape=True))
    for column in ("task", "queue"):
        if given := query.one(column):
            statement = statement.where(getattr(schedule, column) == given)
    state = query.one("state")
    if state == "paused":
        statement = statement.where(schedule.paused_at.is_not(None))
    elif state == "bad":
        statement = statement.where(schedule.error.is_not(None))
    rows = context.connection.execute(statement).mappings().all()
    return {
        "schedules": [_shown(row) for row in rows[:_PAGE]],
        "after": rows[_PAGE - 1]["name"] if len(rows) > _PAGE else None,
        "filtered": any(query.one(name) for name in ("name", "task", "queue", "state")),
    }


def _shown(row: sa.RowMapping) -> dict[str, Any]:
    """A row of the table."""
    words, zone, times, problem = "", None, list[datetime](), row["error"]
    try:
        rule = rule_of(row["expression"], row["timezone"])
        zone, words = zone_of(rule), rule_in_words(rule)
        times = [at for at in islice(coming_ticks(rule, row), _TIMES) if at.year < _NEVER]
    except OptionError as error:  # a row that was written by hand, or an unknown zone
        problem = problem or str(error)
    return {
        **row,
        "missed": MISSED[row["missed"]],
        "overlap": OVERLAP[row["overlap"]],
        "paused_by": _PAUSED_BY[row["paused_by"] or "operator"],
        "state": state_of(row) if problem is None or row["paused_at"] is not None else "bad",
        "words": words,
        "expression": " ".join(row["expression"].split()),
        "zone": "" if row["expression"].startswith("every ") else row["timezone"],
        "times": [(at, local(at, zone)) for at in times],
        "problem": "" if problem is None else one_line(mask_passwords(problem)),
        "reason": one_line(mask_passwords(row["pause_reason"] or "")),
    }


def local(at: datetime, zone: tzinfo | None) -> str:
    """A time in the zone of its schedule, as in Mon 2026-11-30 07:30:00 +01:00."""
    time = at.astimezone(zone)
    offset = f"{time:%z}"
    return f"{time:%a %Y-%m-%d %H:%M:%S} {offset[:3]}:{offset[3:5]}"


SCHEDULES = Page("schedules", "Schedules", "/schedules", read_schedules, adds_up=True)

# ---- The preview of a backfill.

#: The ticks that are listed at each end of the range.
_LISTED = 10


def read_backfill(context: PageContext) -> dict[str, Any]:
    """The form, and the jobs that it would enqueue."""
    row = found_schedule(context, context.path["id"])
    zone = zone_in(row)
    rule = rule_of(row["expression"], row["timezone"])
    shown: dict[str, Any] = {
        "schedule": row,
        "words": rule_in_words(rule),
        "zone": rule.timezone if isinstance(rule, Cron) else "UTC",
        "most": MOST,
        "plan": None,
    }
    if not context.query.one("from"):
        return shown
    plan = plan_of(context, row, zone, lock=False)
    ticks = [local(at, zone) for at in plan.ticks]
    until = context.query.one("to") or row["now"].astimezone(UTC).isoformat()
    return {
        **shown,
        "plan": plan,
        "first": ticks[:_LISTED],
        "last": ticks[max(len(ticks) - _LISTED, _LISTED) :],
        "between": max(len(ticks) - 2 * _LISTED, 0),
        "left_from": None if plan.left_from is None else local(plan.left_from, zone),
        # The confirmed range is the shown range: without a given end it ends when this was read.
        "fields": [("id", row["id"]), ("from", context.query.one("from")), ("to", until)],
    }


BACKFILL = Page(
    "backfill", "Backfill", "/schedules/{id}/backfill", read_backfill, in_menu=False, adds_up=True, is_live=False
)

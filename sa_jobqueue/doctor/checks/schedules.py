"""Schedules that do not enqueue what they should."""

from __future__ import annotations

import sqlalchemy as sa

from ...log import escaped, one_line
from ...statements.parts import in_seconds
from ...words import listed
from ..examination import Examination
from ..finding import Finding, Level, found

__all__ = ["check_schedules"]

_MOST = 100


def check_schedules(examination: Examination) -> Finding:
    """Those whose time has passed, that have an error, or that were paused because their jobs failed."""
    schedule = examination.store.tables.schedule
    late = schedule.due_at < in_seconds(-examination.thresholds.seen, name="seen_seconds")
    active = schedule.paused_at.is_(None)
    rows = examination.connection.execute(
        sa.select(
            schedule.name, schedule.error, schedule.paused_by, schedule.pause_reason, (active & late).label("late")
        )
        .where(sa.or_(active & late, schedule.error.is_not(None), schedule.paused_by == "failures"))
        .order_by(schedule.name)
        .limit(_MOST)
    ).all()
    number = examination.connection.scalar(sa.select(sa.func.count()).select_from(schedule)) or 0
    behind = [escaped(row.name) for row in rows if row.late]
    failing = [f"{escaped(row.name)} ({escaped(one_line(row.error))})" for row in rows if row.error]
    paused = [escaped(row.name) for row in rows if row.paused_by == "failures"]
    ill: list[tuple[Level, str, str]] = []
    if behind:
        advice = "start a worker that declares or serves them: any worker enqueues the jobs of all schedules"
        ill.append(("problem", f"no worker has looked at what is due: {listed(behind)}", advice))
    if failing:
        advice = "mend the rule or the task's options; `sa-jobqueue schedule list` shows the whole error"
        ill.append(("problem", f"not enqueued because of an error: {listed(failing, 3)}", advice))
    if paused:
        advice = "see why its jobs fail (`sa-jobqueue list --status failed`), then `sa-jobqueue schedule resume NAME`"
        ill.append(("problem", f"paused because its jobs failed: {listed(paused)}", advice))
    well = "there are no schedules" if not number else f"{number} {'is' if number == 1 else 'are'} in time"
    return found("schedules", well, *ill, schedules=number, behind=len(behind), paused=len(paused))

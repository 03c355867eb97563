"""What goes wrong: failed jobs by task, error and first line, the most frequent first; and the jobs of one such group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from ...health.one_job import clamped
from ...urls import mask_passwords
from ..error_groups import ERROR_DEEDS, HOURS, NEWEST_FAILED, groups, named, of_group
from ..look import Look
from ..page import Page

__all__ = ["ERRORS"]

#: Jobs of a group that are shown.
_PAGE = 50
#: The drawing of a group's hours.
_WIDTH, _HEIGHT = 96, 20
_COLUMNS = ("task", "group", "jobs", "first", "last", "error")


def read_errors(look: Look) -> dict[str, Any]:
    """The groups; or, where one is named, its newest jobs."""
    now = look.connection.scalar(sa.select(sa.func.now()))
    actions = [name for name, deed in ERROR_DEEDS.items() if look.access.may(deed.needs)]
    shown: dict[str, Any] = {"now": now, "actions": actions, "most": NEWEST_FAILED, "group": None}
    if look.query.one("group"):
        return {**shown, "group": named(look.query), "jobs": _jobs(look)}
    rows, number, of_all, floor = groups(look)
    found = [_shown(row) for row in rows]
    return {**shown, "rows": found, "floor": floor, "number": number, "of_all": of_all}


def _shown(row: Any) -> dict[str, Any]:
    counted: Counter[int] = Counter(row.hours or ())
    hours = [counted[ago] for ago in range(HOURS - 1, -1, -1)]
    return {
        **{name: getattr(row, name) for name in _COLUMNS},
        "name": row.error.rpartition(".")[2],
        "line": mask_passwords(row.line),
        "points": _points(hours),
        "lately": sum(hours),
    }


def _points(hours: Sequence[int]) -> str:
    """A line through the numbers, for an SVG of 96 by 20."""
    most = max([*hours, 1])
    step = _WIDTH / (len(hours) - 1)
    return " ".join(
        f"{round(place * step, 1):g},{round(1 + (_HEIGHT - 2) * (1 - number / most), 1):g}"
        for place, number in enumerate(hours)
    )


def _jobs(look: Look) -> list[dict[str, Any]]:
    job = look.job
    statement = (
        sa.select(
            job.id, job.task, job.queue, job.attempt, job.max_attempts, clamped(job.finished_at).label("finished_at"),
            job.errors[-1]["type"].astext.label("error"), job.errors[-1]["message"].astext.label("message"),
        )
        .where(*of_group(look))
        .order_by(job.id.desc())
        .limit(_PAGE + 1)
    )  # fmt: skip
    rows = look.connection.execute(statement).mappings().all()
    return [{**row, "message": mask_passwords(row["message"] or "")} for row in rows]


ERRORS = Page("errors", "/errors", read_errors)

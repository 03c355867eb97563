"""The form that changes what a job is to do: a page of its own, so that nothing refreshes itself under the hands of who fills it in."""

from __future__ import annotations

from typing import Any

from ...lifecycle import FINISHED, HELD
from ...options import MAX_PRIORITY
from ..look import Look
from ..page import Page
from ..shown import value_of
from .job import seen_of

__all__ = ["EDIT"]


def read_edit(look: Look) -> dict[str, Any]:
    """What stands in the fields at first. Arguments that are masked, or too long, do not: an empty field leaves them as they are."""
    seen = seen_of(look)
    value = value_of("args", seen, look.options.format_args)
    return {
        "now": seen.now,
        "job": seen.job,
        "reading": seen.reading,
        "may_edit": look.access.may("edit") and seen.job.status not in HELD,
        "is_running": seen.job.status in HELD,
        "may_retry": seen.job.status in FINISHED and look.access.may("retry"),
        "args": value.said if value.is_whole else "",
        "is_hidden": not value.is_whole,
        "priorities": range(MAX_PRIORITY, -1, -1),
        "queues": sorted(look.queues) if look.queues is not None else None,
    }


EDIT = Page("edit", "/jobs/{id}/edit", read_edit, in_menu=False, is_live=False)

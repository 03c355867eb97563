"""Every text that a page shows, in one place.

>>> text("nav.jobs")
'Jobs'
>>> text("done.retry", n="12 jobs")
'Retried 12 jobs.'
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["TEXTS", "text"]

TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "nav.skip": "To the content",
        "nav.menu": "Pages",
        "nav.jobs": "Jobs",
        "nav.overview": "Overview",
        "nav.errors": "Errors",
        "nav.queues": "Queues",
        "nav.limits": "Limits and keys",
        "nav.workers": "Workers",
        "nav.schedules": "Schedules",
        "nav.workflows": "Workflows",
        "nav.database": "Database",
        "nav.audit": "Audit",
        "live.label": "Refresh",
        "live.off": "off",
        "live.seconds": "every {n} s",
        "live.at": "as of {at}",
        "theme.label": "Dark or light",
        "read_only": "You may look, and change nothing.",
        "replica": "Read from a replica.",
        "refusal.slow": "The database took longer than 2 s for this, and it was given up. Narrow the filter.",
        "refusal.away": "The database does not answer. This page tries again by itself.",
        "refusal.rights": "The database role of this dashboard may not do this. `sa-jobqueue grants --can read --can admin` prints what it needs.",
        "refusal.schema": "The tables do not fit this release.",
        "refusal.locked": "Another transaction has locked it. Nothing was changed; try again.",
        "refusal.replica": "This database is a standby, which can only be read. Give the dashboard the primary as its engine.",
        "refusal.refused": "It was refused.",
        "forbidden.title": "Not allowed",
        "forbidden.closed": "The dashboard is closed. Give it access=..., a function that says what a request may do.",
        "forbidden.page": "You may not see this page.",
        "forbidden.action": "You may not do this.",
        "missing.title": "Not found",
        "missing.page": "There is no such page.",
        "bad.title": "That could not be read",
        "notice.back": "Go on from the start",
        "confirm.title": "Please confirm",
        "confirm.retry": "Run {n} {unit} again, now?",
        "confirm.cancel": "Cancel {n} {unit}? Those that run are asked to stop.",
        "confirm.discard": "Give up {n} {unit} that wait? They end as failed.",
        "confirm.delete": "Delete {n} finished {unit} for ever?",
        "confirm.yes": "Yes, {what}",
        "confirm.no": "No, go back",
        "more.title": "Done in part",
        "more.so_far": "{n} {unit} so far. There are more; this goes on by itself.",
        "more.go_on": "Go on",
        "act.retry": "Retry",
        "act.cancel": "Cancel",
        "act.discard": "Discard",
        "act.delete": "Delete",
        "jobs.all": "all",
        "jobs.tabs": "By status",
        "jobs.filter.id": "Id",
        "jobs.filter.task": "Task",
        "jobs.filter.queue": "Queue",
        "jobs.filter.tag": "Tag",
        "jobs.filter.subject": "About",
        "jobs.filter.key": "Key",
        "jobs.filter.error": "Error",
        "jobs.filter.newer_than": "Newer than",
        "jobs.filter.args": "Arguments",
        "jobs.filter.go": "Filter",
        "jobs.filter.clear": "Clear",
        "jobs.partly": "Tags and arguments are searched among the newest {n} jobs.",
        "jobs.tick_all": "Tick all jobs of this page",
        "jobs.tick": "Tick job {id}",
        "jobs.column.id": "Id",
        "jobs.column.state": "State",
        "jobs.column.task": "Task",
        "jobs.column.queue": "Queue",
        "jobs.column.attempt": "Attempt",
        "jobs.column.enqueued": "Enqueued",
        "jobs.column.when": "Last",
        "jobs.column.error": "Error",
        "jobs.with_ticked": "With the ticked:",
        "jobs.with_all": "With all that match the filter:",
        "table.none": "None.",
        "table.next": "Older",
        "table.first": "Newest",
        "done.nothing": "Nothing was changed.",
        "done.retry": "Retried {n}.",
        "done.cancel": "Cancelled {n}.",
        "done.discard": "Discarded {n}.",
        "done.delete": "Deleted {n}.",
        "done.left": "Left as they are, because another transaction had locked or changed them: {n}.",
    }
)


def text(key: str, /, **values: object) -> str:
    """The text of this key, with its values in their places. Raises KeyError where there is none."""
    found = TEXTS[key]
    return found.format(**values) if values else found

"""A job that is to be enqueued, checked and encoded, before it is a row.

>>> from sa_jobqueue import TaskName
>>> call = TaskName("shop.send_receipt").call(order_id=7)
>>> call.with_meta(tenant="acme").meta
'{"tenant":"acme"}'
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from .errors import OptionError, PayloadError
from .objects import Subject, Waiting
from .payload import encode_plain, load

__all__ = ["Call"]


class Call(NamedTuple):
    """A job to be enqueued, checked and encoded: `Task.call` makes it, `enqueue_many` takes it."""

    task: str
    args: str
    """JSON text."""
    queue: str
    priority: int
    max_attempts: int
    run_at: datetime | timedelta
    """A time with a zone, or how long after the database's now."""
    meta: str
    """JSON text."""
    uniqueness: str | None = None
    """JSON text: see `Unique.rule`."""
    expires: datetime | timedelta | None = None
    """As `run_at`: until when it is to be started."""
    deadline: datetime | timedelta | None = None
    """As `run_at`: until when it is to have ended."""
    key: str | None = None
    """By which it is ordered, limited and served in turn."""
    units: int | None = None
    """How much of a rate it takes; None: 1."""
    subject: Subject | None = None
    """What it is about."""
    columns: tuple[tuple[str, Any], ...] | None = None
    """What the columns are to have that a job table of the application's own has besides, by attribute."""
    waiting: Waiting | None = None
    """What completes `args` and `subject` once objects in them have their keys; None: they are complete."""
    given_meta: str | None = None
    """The `meta` before any middleware changed it, which is that of a schedule's jobs; None: none has changed it."""

    def completed(self) -> Call:
        """A copy with the keys of all objects. Raises PayloadError if one is not in the database yet."""
        if self.waiting is None:
            return self
        self.waiting.refuse_changes()
        args, rule = self.waiting.completed(self.args), self.waiting.rule
        uniqueness = self.uniqueness if rule is None else rule(args)
        subject = self.subject or self.waiting.subject()
        return self._replace(args=args, uniqueness=uniqueness, subject=subject, waiting=None)

    def with_meta(self, /, **entries: Any) -> Call:
        """A copy with these entries in its `meta`, beside those that are there, or in their place.

        Raises OptionError for what is no plain JSON, and for `tags`, which are an option of the task.
        """
        if "tags" in entries:
            raise OptionError('meta["tags"] is where tags are stored: give them to the task, .options(tags=[...])')
        if self.meta != "{}":
            entries = {**load(self.meta), **entries}
        try:
            return self._replace(meta=encode_plain(entries, what="meta", item=""))
        except PayloadError as error:
            raise OptionError(str(error)) from error

"""A job that is to be enqueued, checked and encoded, before it is a row.

>>> from sa_jobqueue import TaskName
>>> call = TaskName("shop.send_receipt").call(order_id=7)
>>> call.with_meta(tenant="acme").meta
'{"tenant":"acme"}'
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from ..arguments.objects import PendingArguments
from ..arguments.storable import encode_plain, load
from ..arguments.subjects import Subject
from ..errors import ConfigurationError, OptionError, PayloadError
from ..models import JobMixin
from ..util.urls import without_secrets


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
    """The row that it is about."""
    extras: str | None = None
    """JSON text: see `Job.extras`."""
    columns: tuple[tuple[str, Any], ...] | None = None
    """The values of the application's own columns of the job table, by attribute."""
    after: JobMixin | None = None
    """A job of the same session, which must complete first."""
    waiting: PendingArguments | None = None
    """Completes `args` and `subject` once objects in them have their keys; None: they are complete."""
    given_meta: str | None = None
    """The `meta` before any middleware changed it, which is that of a schedule's jobs; None: none has changed it."""

    def __repr__(self) -> str:
        args = json.dumps(without_secrets(load(self.args)), ensure_ascii=False)
        return f"<Call {self.task!r} in {self.queue!r}: {args}>"

    def completed(self, *, flushed: bool = False) -> Call:
        """A copy with the keys of all objects. `flushed`: a flush has just written them. Raises PayloadError if an object is not in the database
        yet, and OptionError for a job that is to run after another job.
        """
        if self.after is not None:
            raise OptionError(
                f"task {self.task!r}: after= is for session.add(enqueue(...)), one job at a time; for many jobs build a Workflow"
            )
        if self.waiting is None:
            return self
        if not flushed:
            self.waiting.refuse_changes()
        args, rule = self.waiting.completed(self.args), self.waiting.rule
        uniqueness = self.uniqueness if rule is None else rule(args)
        subject = self.subject or self.waiting.subject()
        return self._replace(args=args, uniqueness=uniqueness, subject=subject, waiting=None)

    def with_meta(self, /, **entries: Any) -> Call:
        """A copy with these entries added to its `meta`; they replace entries of the same name.

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


#: The rare parts of a call: the rare fields, the user's own columns, and the pending arguments.
RARE = slice(Call._fields.index("uniqueness"), Call._fields.index("waiting") + 1)
#: The value of nearly all calls there.
NOTHING = (None,) * (RARE.stop - RARE.start)


# ---- The makers of a session for each job: the application's `sessionmaker` and `async_sessionmaker`, checked before they are used.

SessionMaker: TypeAlias = Callable[[], Session]
"""A `sessionmaker`, for any class of sessions."""
AsyncSessionMaker: TypeAlias = Callable[[], AsyncSession]
"""An `async_sessionmaker`."""


def check_makers(*, sessionmaker: object = None, async_sessionmaker: object = None) -> None:
    """Raise ConfigurationError for a maker that does not make a session of its kind for each job. None: there is no maker."""
    _check("sessionmaker", sessionmaker, Session)
    _check("async_sessionmaker", async_sessionmaker, AsyncSession)


def _check(name: str, maker: Any, wanted: type[Any]) -> None:
    if maker is None:
        return
    if not callable(maker):
        raise ConfigurationError(f"{name} is what SQLAlchemy's {name}() returns, not {maker!r}")
    made = getattr(maker, "class_", wanted)
    if isinstance(made, type) and not issubclass(made, wanted):
        article = "an" if wanted is AsyncSession else "a"
        raise ConfigurationError(f"{name} makes {made.__name__} objects; {article} {wanted.__name__} is expected")
    if isinstance(maker, (scoped_session, async_scoped_session)):
        raise ConfigurationError(
            f"{name} makes a Session for each job; {maker!r} would give one to several: pass its session_factory"
        )
    if getattr(maker, "kw", {}).get("twophase"):
        raise ConfigurationError(f"{name} has twophase=True: a job and its writes are one transaction of one database")

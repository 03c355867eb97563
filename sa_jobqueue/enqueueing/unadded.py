"""A warning for jobs that were made and never added to a session: in Python's development mode, and in tests with the fixture `jobqueue`.

In all other processes this module is not imported, and no job is watched.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import wraps
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session

from ..models import JobMixin
from . import jobs

__all__ = ["watch_jobs", "watched_jobs"]

#: By the id of a job that no session has got yet: what warns when the job, or the program, ends.
_unadded: dict[int, weakref.finalize[Any, JobMixin]] = {}


def watch_jobs() -> None:
    """Watch all jobs that this process makes from now on."""
    if not event.contains(Session, "transient_to_pending", _added):
        event.listen(Session, "transient_to_pending", _added)
        _see_bulk_saves()
    jobs.Watching.told = _made


@contextmanager
def watched_jobs() -> Generator[None]:
    """Watch the jobs that are made meanwhile. At the end warn about those that are still in no session."""
    if jobs.Watching.told is not None:
        yield  # in development mode they are watched anyway
        return
    watch_jobs()
    try:
        yield
    finally:
        jobs.Watching.told = None
        for one in [*_unadded.values()]:
            one()


def _made(job: JobMixin) -> None:
    caller = sys._getframe(3)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # behind `enqueue` and what it calls
    place = caller.f_code.co_filename, caller.f_lineno, caller.f_globals.setdefault("__warningregistry__", {})
    _unadded[id(job)] = weakref.finalize(job, _warn, id(job), job.task, *place)


def _added(_session: object, one: object) -> None:
    if (found := _unadded.pop(id(one), None)) is not None:
        found.detach()


def _warn(key: int, task: str, filename: str, line: int, registry: dict[Any, Any]) -> None:
    del _unadded[key]
    warnings.warn_explicit(
        f"a job of task {task!r} was never added to a session: write session.add(enqueue(...)), and commit",
        RuntimeWarning,
        filename,
        line,
        registry=registry,
    )


def _see_bulk_saves() -> None:
    """`bulk_save_objects` writes objects without an event, and leaves them outside of the session."""
    sessions: Any = Session
    save = sessions.bulk_save_objects

    @wraps(save)
    def bulk_save_objects(session: Session, objects: Iterable[object], *args: Any, **options: Any) -> None:
        given = [*objects]
        for one in given:
            _added(session, one)
        save(session, given, *args, **options)

    sessions.bulk_save_objects = bulk_save_objects

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

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session

from ..models import JobMixin
from .flushing import Watching

#: By the id of a job that no session has got yet: what warns when the job, or the program, ends.
_unadded: dict[int, weakref.finalize[Any, JobMixin]] = {}
#: Warnings that a filter turned into errors, a list for each active `watched_jobs`. It raises them when it ends, because Python swallows
#: what a finaliser raises.
_errors: list[list[RuntimeWarning]] = []


def watch_jobs() -> None:
    """Watch all jobs that this process makes from now on."""
    if not event.contains(Session, "transient_to_pending", _added):
        event.listen(Session, "transient_to_pending", _added)
        _see_what_has_no_event()
    Watching.made = _made


@contextmanager
def watched_jobs() -> Generator[None]:
    """Watch the jobs that are made meanwhile. At the end warn about those that are still in no session.

    Raises the first of the warnings where a filter makes errors of them.
    """
    if Watching.made is not None:
        yield  # in development mode they are watched anyway
        return
    watch_jobs()
    _errors.append([])
    try:
        yield
    finally:
        Watching.made = None
        for warn in [*_unadded.values()]:
            warn()
        errors = _errors.pop()
    if errors:
        raise errors[0]


def _made(job: JobMixin) -> None:
    caller = sys._getframe(3)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # behind `enqueue` and what it calls
    place = caller.f_code.co_filename, caller.f_lineno, caller.f_globals.setdefault("__warningregistry__", {})
    _unadded[id(job)] = weakref.finalize(job, _warn, id(job), job.task, *place)


def _added(_session: object, instance: object) -> None:
    if (found := _unadded.pop(id(instance), None)) is not None:
        found.detach()


def _warn(key: int, task: str, filename: str, line: int, registry: dict[Any, Any]) -> None:
    del _unadded[key]
    message = f"a job of task {task!r} was never added to a session: write session.add(enqueue(...)), and commit"
    try:
        warnings.warn_explicit(message, RuntimeWarning, filename, line, registry=registry)
    except RuntimeWarning as error:
        if _errors:
            _errors[-1].append(error)
        else:
            warnings.showwarning(error, RuntimeWarning, filename, line)


def _see_what_has_no_event() -> None:
    """`bulk_save_objects` writes objects, and `merge` adds copies of them: the objects themselves stay outside of the session."""
    sessions: Any = Session
    save, copy = sessions.bulk_save_objects, sessions.merge
    copy_all: Any = getattr(sessions, "merge_all", None)

    @wraps(save)
    def bulk_save_objects(session: Session, objects: Iterable[object], *args: Any, **options: Any) -> None:
        jobs = [*objects]
        for job in jobs:
            _added(session, job)
        save(session, jobs, *args, **options)

    @wraps(copy)
    def merge(session: Session, instance: object, *args: Any, **options: Any) -> Any:
        _copied(session, instance)
        return copy(session, instance, *args, **options)

    def merge_all(session: Session, instances: Iterable[object], **options: Any) -> Any:
        jobs = [*instances]
        for job in jobs:
            _copied(session, job)
        return copy_all(session, jobs, **options)

    sessions.bulk_save_objects, sessions.merge = bulk_save_objects, merge
    if copy_all is not None:  # from SQLAlchemy 2.1 on
        sessions.merge_all = wraps(copy_all)(merge_all)


def _copied(session: Session, instance: object) -> None:
    """It is copied into the session, and with it the objects that its relationships lead to."""
    _added(session, instance)
    if (state := sa.inspect(instance, raiseerr=False)) is not None:
        for related, *_ in state.mapper.cascade_iterator("merge", state):
            _added(session, related)

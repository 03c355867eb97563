"""Whether a job was enqueued: assertions that show the differences."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, TypeAlias, cast, overload

import sqlalchemy as sa
from pydantic_core import to_json
from sqlalchemy.orm import InstanceState, Session

from ..arguments.loading import is_same
from ..arguments.objects import About
from ..arguments.references import Reference
from ..arguments.storable import load
from ..arguments.subjects import Subject, named_anything
from ..errors import PayloadError, TaskError
from ..models import Job
from ..rules.job_fields import JOB_FIELDS, JobField
from ..tasks.options import Options
from ..tasks.registry import TaskName, default_registry
from ..tasks.tasks import AnyTask, Task
from ..tasks.upcasts import version_of
from ..util.urls import HIDDEN, without_secrets
from .transaction import AsyncSide, Side, SyncSide, on

_Named: TypeAlias = AnyTask | TaskName | str

#: Jobs that a message names.
_SHOWN = 10
#: A time that was given in Python and a time that was counted by the database may differ by this much.
_CLOSE = timedelta(seconds=1)


@overload
def enqueued(session: SyncSide, task: _Named, /, **partial: Any) -> list[Job]: ...
@overload
def enqueued(session: AsyncSide, task: _Named, /, **partial: Any) -> Coroutine[Any, Any, list[Job]]: ...
def enqueued(session: Side, task: _Named, /, **partial: Any) -> Any:
    """The jobs of `task` that are enqueued and have not ended, the oldest first, as `assert_enqueued` finds them."""
    wanted = _Wanted(task, partial)
    return on(session, lambda own: [job for job in _live(own, wanted) if not wanted.differences(job)])


@overload
def assert_enqueued(session: SyncSide, task: _Named, /, **partial: Any) -> Job: ...
@overload
def assert_enqueued(session: AsyncSide, task: _Named, /, **partial: Any) -> Coroutine[Any, Any, Job]: ...
def assert_enqueued(session: Side, task: _Named, /, **partial: Any) -> Any:
    """Assert that a job of `task` is enqueued, and return it; of several, the oldest.

    `session`: it is flushed before; of an `AsyncSession` the call is awaited. `partial`: arguments of the job, all or some, compared
    by == with what the handler would get, and objects by their keys. Options that differ from those of the task are compared, too:
    `assert_enqueued(session, send.options(queue="mail", delay=60), order_id=7)`. What has ended is not enqueued. Jobs of a class of your own
    are found by the registry of the task, and `columns` are compared, too.

    Raises AssertionError that says how the jobs of this task differ, and which others there are.
    """
    __tracebackhide__ = True  # so that pytest shows the line of the test
    wanted = _Wanted(task, partial)

    def work(own: Session) -> Job:
        __tracebackhide__ = True
        live = _live(own, wanted)
        found = next((job for job in live if not wanted.differences(job)), None)
        if found is None:
            raise AssertionError(_absent(own, wanted, live))
        return found

    return on(session, work)


@overload
def assert_not_enqueued(session: SyncSide, task: _Named, /, **partial: Any) -> None: ...
@overload
def assert_not_enqueued(session: AsyncSide, task: _Named, /, **partial: Any) -> Coroutine[Any, Any, None]: ...
def assert_not_enqueued(session: Side, task: _Named, /, **partial: Any) -> Any:
    """Assert that no such job is enqueued. The arguments are those of `assert_enqueued`."""
    __tracebackhide__ = True
    wanted = _Wanted(task, partial)

    def work(own: Session) -> None:
        __tracebackhide__ = True
        if found := [job for job in _live(own, wanted) if not wanted.differences(job)]:
            lines = [
                f"{len(found)} of {wanted} {'is' if len(found) == 1 else 'are'} enqueued:",
                *map(_line, found[:_SHOWN]),
            ]
            raise AssertionError("\n  ".join(lines))

    return on(session, work)


class _Wanted:
    """What a job is compared with."""

    def __init__(self, task: _Named, partial: Mapping[str, Any]) -> None:
        if isinstance(task, str):
            task = TaskName(task)
        self.name, self.partial = task.name, partial
        self.names = (task.name, *task.aliases) if isinstance(task, Task) else (task.name,)
        self._task = task if isinstance(task, Task) else default_registry.get(task.name)
        self._options = dict(_changed(task))
        self._hidden = self._task.parameters.secrets if self._task is not None and partial else frozenset[str]()
        registry: Any = task.registry if isinstance(task, Task) else default_registry
        self.job: type[Job] = registry.job

    def __str__(self) -> str:
        given = [
            f"{name}={HIDDEN if name in self._hidden else _named_value(value)}" for name, value in self.partial.items()
        ]
        options = [f"{name}={_shown(value)}" for name, value in self._options.items()]
        return f"{self.name}({', '.join(given)})" + (f" with {', '.join(options)}" if options else "")

    def differences(self, job: Job) -> list[str]:
        """How the job differs from what is wanted."""
        args = self._args(job)
        found = [
            self._difference(name, value, args)
            for name, value in self.partial.items()
            if name not in args or not _equal(args[name], value)
        ]
        for name, value in self._options.items():
            of_job = (
                {attribute: getattr(job, attribute) for attribute in value} if name == "columns" else _READ[name](job)
            )
            if not _same(of_job, value):
                found.append(f"{name}={_shown(of_job)}, not {_shown(value)}")
        return found

    def _difference(self, name: str, wanted: Any, args: Mapping[str, Any]) -> str:
        is_hidden = name in self._hidden or without_secrets(args.get(name)) == HIDDEN
        if name not in args:
            return f"no {name}, instead of {HIDDEN if is_hidden else _named_value(wanted)}"
        return (
            f"{name}, which is not shown, differs"
            if is_hidden
            else f"{name}={args[name]!r}, not {_named_value(wanted)}"
        )

    def _args(self, job: Job) -> Mapping[str, Any]:
        """The arguments as the handler gets them; as they are stored, if there is no handler, or they do not fit it."""
        if self._task is None or not self.partial:
            return job.args
        try:
            text = self._task.upcasts.current(to_json(job.args).decode(), version_of(job.extras))
            args, kwargs = self._task.decode(text)
        except (PayloadError, TaskError):
            return job.args
        return {**job.args, **dict(zip(self._task.parameters.positional, args, strict=False)), **kwargs}


def _named_value(value: Any) -> str:
    """A value for a message; objects by their class and key."""
    if isinstance(value, list):
        return f"[{', '.join(map(_named_value, value))}]"
    return named_anything(value) if isinstance(sa.inspect(value, raiseerr=False), InstanceState) else repr(value)


def _changed(task: AnyTask | TaskName) -> Iterator[tuple[str, Any]]:
    """The options that are not those with which the task was declared."""
    chosen = task.chosen
    declared = Options()
    if isinstance(task, Task) and (found := cast(Any, task.registry).get(task.name)) is not None:
        declared = found.chosen
    for option in fields(Options):
        value: Any = getattr(chosen, option.name)
        if option.name == "columns":
            if value is not None:
                yield option.name, dict(value)
            continue
        if value == getattr(declared, option.name) or option.name not in _READ:
            continue
        yield option.name, _READABLE.get(option.name, lambda given: given)(value)


def _subject(value: About | None) -> Subject | None:
    return value.subject() if isinstance(value, Reference) else value or None


#: Options that must be converted before they can be compared with the columns of a job.
_READABLE: Mapping[str, Callable[[Any], Any]] = {"meta": load, "subject": _subject, "extras": load}


def _reading(field: JobField) -> Callable[[Job], Any]:
    """What is read of a job for an option. A time is also read as a delay."""
    if field.kind != "time":
        return attrgetter(field.attribute)

    def read(job: Job) -> Any:
        at = getattr(job, field.column)
        return at, at and at - job.created_at

    return read


_READ = {field.attribute: _reading(field) for field in JOB_FIELDS}


def _same(of_job: Any, wanted: Any) -> bool:
    if not isinstance(of_job, tuple) or isinstance(of_job, Subject):
        return bool(of_job == wanted)
    at, delay = cast(tuple[Any, Any], of_job)
    if at is None or wanted is None:
        return at is wanted
    apart: timedelta = abs((delay if isinstance(wanted, timedelta) else at) - wanted)
    return apart < _CLOSE


def _equal(value: Any, other: Any) -> bool:
    try:
        return is_same(value, other)
    except Exception:  # an __eq__ whose answer is no bool
        return False


def _shown(value: Any) -> str:
    if isinstance(value, Subject):
        return str(value)
    if isinstance(value, tuple):
        at, delay = cast(tuple[Any, Any], value)
        return "nothing" if at is None else f"{at.isoformat(sep=' ')} (after {delay})"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    return str(value) if isinstance(value, timedelta) else repr(value)


def _live(session: Session, wanted: _Wanted) -> Sequence[Job]:
    session.flush()
    job = wanted.job
    return _read(session, sa.select(job).where(job.task.in_(wanted.names), job.is_live).order_by(job.id))


def _read(session: Session, jobs: sa.Select[Any]) -> Sequence[Job]:
    """The jobs as they are in the database, also where the session has loaded them before."""
    found: Sequence[Job] = session.scalars(jobs.execution_options(populate_existing=True)).all()
    return found


def _absent(session: Session, wanted: _Wanted, live: Sequence[Job]) -> str:
    lines = [f"{wanted} is not enqueued."]
    of = wanted.job
    of_task = of.task.in_(wanted.names)
    if live:
        lines.append(
            f"{len(live):,} {'job' if len(live) == 1 else 'jobs'} of this task {'is' if len(live) == 1 else 'are'}:"
        )
        lines += [f"  job {job.id}: {', '.join(wanted.differences(job))}" for job in live[:_SHOWN]]
    else:
        others = _read(session, sa.select(of).where(of.is_live, ~of_task).order_by(of.id).limit(_SHOWN))
        lines.append("No job of this task is; enqueued are:" if others else "No job of any task is.")
        lines += map(_line, others)
    ended = _read(session, sa.select(of).where(of.is_finished, of_task).order_by(of.id.desc()).limit(_SHOWN))
    if ended:
        lines += ["Ended, and so no longer enqueued:", *(f"{_line(job)}, {job.status.value}" for job in ended)]
    return "\n".join(lines)


def _line(job: Job) -> str:
    given = ", ".join(f"{name}={value!r}" for name, value in without_secrets(job.args).items())
    return f"  job {job.id}: {job.task}({given})"

"""Making jobs: pure functions that check, encode and return what the caller's own session writes.

>>> job = enqueue("shop.send_receipt", order_id=7)
>>> job.task, job.args
('shop.send_receipt', {'order_id': 7})

`session.add(job)` puts it into the transaction that is open there; nothing is written before. A refusal is raised
before any SQL, so it leaves the session as it was.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final, Generic, ParamSpec, TypeVar, overload

import sqlalchemy as sa

from ..errors import ConfigurationError, OptionError
from ..models import Job, JobMixin, JsonText, insert_in_order, is_job_class, own_column
from ..rules.job_fields import RARE_FIELDS
from ..sql.insert import insert_jobs
from ..tasks.calls import NOTHING, RARE, Call
from ..tasks.registry import TaskName
from ..tasks.tasks import Task
from .chains import wait_for_job
from .flushing import Listeners, Watching, wait_for_keys

F = ParamSpec("F")
P = ParamSpec("P")
R = TypeVar("R")
J = TypeVar("J", bound=JobMixin)


class Enqueue(Generic[J]):
    """Makes jobs of a class: `enqueue` makes jobs of `Job`.

    For a job table of your own, see `JobMixin`, make another and use it in its place:

        enqueue = Enqueue(Job)
        session.add(enqueue(send_receipt, order.id))

    Raises ConfigurationError for what is no job class.
    """

    def __init__(self, job: type[J], /) -> None:
        if not is_job_class(job):
            raise ConfigurationError(f"Enqueue() takes a mapped class of jobs, class Job(JobMixin, Base), not {job!r}")
        self.job: Final = job

    @overload
    def __call__(self, task: Task[F, P, R], /, *args: P.args, **kwargs: P.kwargs) -> J: ...
    @overload
    def __call__(self, task: str | TaskName, /, **kwargs: Any) -> J: ...
    def __call__(self, task: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A transient job with these arguments, for `session.add`: see `enqueue`."""
        return _made(self.job, task, args, kwargs)

    def __repr__(self) -> str:
        return f"Enqueue({self.job.__name__})"


@overload
def enqueue(task: Task[F, P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job: ...
@overload
def enqueue(task: str | TaskName, /, **kwargs: Any) -> Job: ...
def enqueue(task: Any, /, *args: Any, **kwargs: Any) -> Job:
    """A transient `Job` with these arguments, for `session.add`.

    `task`: a `Task`, or a name for producers that do not import the handlers; then the arguments are keywords of
    plain JSON, the queue is "default" (`TaskName(name).options(queue=...)` for another), and the worker checks them.

    An argument that is a mapped object is stored as its key, and the first such object is the job's subject (`Job.subject`), unless the options of
    the task say another. It may be new: then the flush that writes it writes its job, too.

    Raises PayloadError where the arguments do not fit the handler or cannot be stored, OptionError for a bad name,
    TaskError where the handler's annotations cannot be resolved.
    """
    return _made(Job, task, args, kwargs)


def _made(job: type[J], task: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> J:
    if not isinstance(task, (Task, TaskName)):
        task = _named(task)
    call = task.call(*args, **kwargs)
    made = job(
        task=call.task,
        args=JsonText(call.args),
        queue=call.queue,
        priority=call.priority,
        max_attempts=call.max_attempts,
        run_at=call.run_at,
        meta=JsonText(call.meta),
    )
    Listeners.needed = True
    if call[RARE] != NOTHING:
        _set_rare(made, call)
    if Watching.made is not None:
        Watching.made(made)
    return made


def _set_rare(made: JobMixin, call: Call) -> None:
    """Set the rare attributes that the call has."""
    if call.waiting is not None:
        wait_for_keys(made, call.waiting)
        if call.waiting.about is not None:
            insert_in_order(JobMixin)
    if call.after is not None:
        wait_for_job(made, call.after)
    for field in RARE_FIELDS:
        if (value := getattr(call, field.attribute)) is not None:
            insert_in_order(JobMixin)
            setattr(made, field.column, JsonText(value) if field.kind == "json" else field.part_of(value))
    for name, value in call.columns or ():
        own_column(type(made), name)
        setattr(made, name, value)


def _named(task: object) -> TaskName:
    if isinstance(task, str):
        return TaskName(task)
    if isinstance(task, Call):
        raise OptionError("enqueue() takes a task and its arguments; a Call is for enqueue_many([call])")
    if task is None:
        raise OptionError(
            "enqueue() takes a task or its name, not None: write enqueue(send, 1), not enqueue(send(1)), which runs the handler"
        )
    raise OptionError(f"enqueue() takes a task or its name, not {task!r}: decorate the function with @task")


def enqueue_many(calls: Iterable[Call], *, job: type[JobMixin] = Job) -> sa.Executable:
    """A single INSERT for all `calls` (see `Task.call`): `session.execute(enqueue_many(...))`, sync or async, ORM or Core.

    Returns the ids, in the order of the calls. A delay counts from the database's now().
    """
    checked: list[Any] = list(calls)
    for call in checked:
        if not isinstance(call, Call):
            raise OptionError(f"enqueue_many() takes calls, task.call(...), not {call!r}")
    return insert_jobs(checked, job=job)


if sys.flags.dev_mode:
    from .unadded import watch_jobs

    watch_jobs()

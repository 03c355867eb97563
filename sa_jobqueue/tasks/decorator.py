"""`@task`: the declaration of a task, checked where it stands."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from ..arguments.batches import AsyncBatchContext, BatchContext
from ..arguments.context import AsyncJobContext, JobContext
from ..arguments.storable import shown
from ..errors import TaskError, TaskWarning
from ..rules.lifecycle import Rules
from ..rules.limits import NO_SHARE, Breaker, Limits
from ..rules.retry import Duration, RetryPolicy, checked_duration
from .batching import Batching, checked_batching
from .followups import with_follow_ups
from .options import (
    MAX_ATTEMPTS,
    MAX_PRIORITY,
    Options,
    Unique,
    checked_int,
    checked_limit,
    checked_name,
    checked_unique,
    extras_of,
)
from .registry import Registry, default_registry
from .tasks import AnyTask, Task, default_name, function_of

#: Less than an interpreter with this package needs, in bytes; so that a number of megabytes is not taken for a number of bytes.
_LEAST_MEMORY = 2**24

_DEFAULT_RETAIN = Rules().retain
#: The least time that a failed job stays, in seconds.
_RETAIN_FAILED = cast(float, Rules().retain_failed)

#: Log lines kept of an attempt with `keep_logs=True`, and the most that can be asked for.
_LINES, _MAX_LINES = 200, 1_000

F = ParamSpec("F")
P = ParamSpec("P")
R = TypeVar("R", covariant=True)  # noqa: PLC0105
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
X = TypeVar("X", BatchContext, AsyncBatchContext)


class _Decorator(Protocol):
    """What `task(...)` with options returns: a decorator that keeps the types of its handler."""

    @overload
    def __call__(
        self, handler: Callable[Concatenate[JobContext, P], R], /
    ) -> Task[Concatenate[JobContext, P], P, R]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[AsyncJobContext, P], R], /
    ) -> Task[Concatenate[AsyncJobContext, P], P, R]: ...
    @overload
    def __call__(self, handler: Callable[P, R], /) -> Task[P, P, R]: ...


class _BatchDecorator(Protocol):
    """The result of `task(batch=...)`. A job is enqueued with one item of each list. Python's types cannot express this for any number of
    parameters, so there is an overload for each number up to four.
    """

    @overload
    def __call__(self, handler: Callable[[X], R], /) -> Task[[X], [], R]: ...
    @overload
    def __call__(self, handler: Callable[[X, list[A]], R], /) -> Task[[X, list[A]], [A], R]: ...
    @overload
    def __call__(self, handler: Callable[[X, list[A], list[B]], R], /) -> Task[[X, list[A], list[B]], [A, B], R]: ...
    @overload
    def __call__(
        self, handler: Callable[[X, list[A], list[B], list[C]], R], /
    ) -> Task[[X, list[A], list[B], list[C]], [A, B, C], R]: ...
    @overload
    def __call__(
        self, handler: Callable[[X, list[A], list[B], list[C], list[D]], R], /
    ) -> Task[[X, list[A], list[B], list[C], list[D]], [A, B, C, D], R]: ...


@overload
def task(handler: Callable[Concatenate[JobContext, P], R], /) -> Task[Concatenate[JobContext, P], P, R]: ...
@overload
def task(handler: Callable[Concatenate[AsyncJobContext, P], R], /) -> Task[Concatenate[AsyncJobContext, P], P, R]: ...
@overload
def task(handler: Callable[P, R], /) -> Task[P, P, R]: ...
@overload
def task(
    *,
    name: str | None = None,
    aliases: Iterable[str] = (),
    queue: str = "default",
    priority: int = 4,
    max_attempts: int = 10,
    retry: RetryPolicy | None = None,
    timeout: Duration | None = None,
    retain: Duration | None = _DEFAULT_RETAIN,
    archive: bool | None = None,
    record: bool = False,
    keep_logs: bool | int = False,
    steps: Literal["warn", "fail", "hold"] = "warn",
    rescue: bool = True,
    unique: Unique | None = None,
    expires_in: Duration | None = None,
    deadline: Duration | None = None,
    executor: Literal["process"] | None = None,
    memory_limit: int | None = None,
    limits: Limits | None = None,
    breaker: Breaker | None = None,
    dry_run: bool = False,
    version: int = 1,
    on_failure: AnyTask | None = None,
    on_success: AnyTask | None = None,
    registry: Registry | None = None,
) -> _Decorator: ...
@overload
def task(
    *,
    batch: Batching,
    name: str | None = None,
    aliases: Iterable[str] = (),
    queue: str = "default",
    priority: int = 4,
    max_attempts: int = 10,
    retry: RetryPolicy | None = None,
    timeout: Duration | None = None,
    retain: Duration | None = _DEFAULT_RETAIN,
    archive: bool | None = None,
    record: bool = False,
    unique: Unique | None = None,
    expires_in: Duration | None = None,
    deadline: Duration | None = None,
    limits: Limits | None = None,
    version: int = 1,
    on_failure: AnyTask | None = None,
    on_success: AnyTask | None = None,
    registry: Registry | None = None,
) -> _BatchDecorator: ...
def task(
    handler: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    aliases: Iterable[str] = (),
    queue: str = "default",
    priority: int = 4,
    max_attempts: int = 10,
    retry: RetryPolicy | None = None,
    timeout: Duration | None = None,
    retain: Duration | None = _DEFAULT_RETAIN,
    archive: bool | None = None,
    record: bool = False,
    keep_logs: bool | int = False,
    steps: Literal["warn", "fail", "hold"] = "warn",
    rescue: bool = True,
    unique: Unique | None = None,
    expires_in: Duration | None = None,
    deadline: Duration | None = None,
    executor: Literal["process"] | None = None,
    memory_limit: int | None = None,
    limits: Limits | None = None,
    breaker: Breaker | None = None,
    dry_run: bool = False,
    version: int = 1,
    on_failure: AnyTask | None = None,
    on_success: AnyTask | None = None,
    batch: Batching | None = None,
    registry: Registry | None = None,
    **unknown: object,
) -> Any:
    """Make a task of a function, `def` or `async def`; `@task` or `@task(...)`.

    The worker injects a first parameter annotated `JobContext` (`AsyncJobContext` in an `async def`), which is no part of
    the arguments.

    `name`: the task's name in the row, by default "module.function". For a script that runs as `__main__` the module is
    the name of its file (`python shop.py` gives "shop.function", as `--app shop` does), or what `python -m` was given.
    `aliases`: names under which older rows know it. `registry`: where to register; the default registry if None.

    `queue`, `priority`, `max_attempts`, `unique`, `expires_in`, `deadline`: what its jobs have unless `Task.options`, which
    explains them, says otherwise.

    `retry`: when to try again. `timeout`: seconds or timedelta for an attempt. `rescue`: False for a job that must not run
    twice: it fails if its worker dies.

    `retain`: how long a finished job stays, in seconds or as a timedelta; 0: completed jobs are deleted at once,
    None: forever. Failed jobs stay at least 30 days. `archive`: True to move it to the archive then, as an `ArchivedJob`, instead of
    deleting it; None: as the registry says. `record`: store what the handler returns in `Job.result`, checked
    against its return annotation, if there is any. `keep_logs`: store the last log lines that an attempt writes through
    `ctx.logger`; their number, up to 1,000, or True for 200.

    `steps`: what happens if the arguments of a step differ from its record: "warn" logs a warning and uses the record, "fail" fails the attempt,
    and "hold" holds the job until it is retried.

    `batch`: the handler takes many jobs in one call: a `BatchContext`, and then parameters that are lists with one item per job; see
    `Batching`. Not with `executor`, `keep_logs`, `dry_run` and `rescue=False`.

    `executor`: "process" runs a `def` handler in a child process, which is killed when it exceeds its timeout; None: on a
    thread. `memory_limit`: bytes that such a process may have resident, at least 16 MiB.

    `limits`: how many of its jobs may run at once and how fast they may start, over all workers and in any queue;
    see `Limits`. Those of a queue are declared by `Registry.queue`.

    `breaker`: stops starting jobs of the task, or of a key, after too many failures; see `Breaker`.

    `dry_run`: True allows operators to try a job on the dashboard: the handler runs, and its writes through `ctx.session` are shown and
    undone. Other effects are not undone, so set it only for handlers without other effects, or with harmless ones. Not with
    `executor`.

    `version`: the version of the handler's arguments, 1 to 32,767. Its jobs store it. Raise it when the arguments change, and read rows of
    older versions with `Task.upcast`. A worker gives jobs of a newer version back to the queue.

    `on_failure`, `on_success`: the task of the follow-up. The statement that ends a job of this task as failed, or as completed, enqueues the
    follow-up; a cancelled job has no follow-up. Its parameters are filled by name: `job_id: int`, `task: str`, `args: dict`; after a failure
    `error: str`, after a completion `result`. It has the options of its task, and no follow-ups.

    Raises TaskError for a declaration that cannot work. Annotations are resolved later, at the first job or when a worker
    starts. Warns with TaskWarning about a function that has neither a `name` nor a `registry` and is declared inside another
    function, in a notebook or on stdin, because a worker may not find it there.
    """
    _check_given(registry, unknown)
    flags = {"record": record, "rescue": rescue, "archive": False if archive is None else archive, "dry_run": dry_run}
    for flag, value in flags.items():
        if not isinstance(value, bool):
            raise TaskError(f"{flag} must be True or False, not {value!r}")
    options = Options(
        queue=checked_name(queue, "queue", TaskError),
        priority=checked_int(priority, "priority", 0, MAX_PRIORITY, TaskError),
        max_attempts=checked_int(max_attempts, "max_attempts", 1, MAX_ATTEMPTS, TaskError),
        unique=None if unique is None else checked_unique(unique, TaskError),
        expires=_limit_of_all(expires_in, "expires_in"),
        deadline=_limit_of_all(deadline, "deadline"),
        extras=_extras(version, on_failure, on_success, record),
    )
    _check_executor(executor, memory_limit, dry_run)
    excluded = {
        'executor="process"': executor,
        "keep_logs=True": keep_logs,
        "dry_run=True": dry_run,
        "rescue=False": not rescue,
    }
    batches = checked_batching(batch, excluded)
    if steps not in {"warn", "fail", "hold"}:
        raise TaskError(f'steps must be "warn", "fail" or "hold", not {steps!r}')
    if limits is not None:
        _check_limits(limits)
    lines = _LINES if keep_logs is True else keep_logs
    if lines is not False:
        checked_int(lines, "keep_logs", 1, _MAX_LINES, TaskError)
    rules = _rules(retry, retain, rescue, breaker)
    if record and rules.retain == 0:
        raise TaskError(
            "record=True needs a row to keep the result in, and retain=0 deletes it at once: give another retain"
        )
    if archive and rules.retain == 0:
        raise TaskError(
            "archive=True moves what has finished, and retain=0 deletes completed jobs at once: give another retain, as 1 s"
        )
    seconds = None if timeout is None else checked_duration(timeout, "timeout", TaskError)
    if seconds == 0:
        raise TaskError("timeout must be more than 0 seconds; None means no limit")
    if isinstance(aliases, str):
        raise TaskError(f"aliases must be a list of names, not the text {aliases!r}")
    others = tuple(checked_name(alias, "alias", TaskError) for alias in aliases)

    def decorate(handler: Callable[F, R]) -> Task[F, Any, R]:
        _check_handler(handler, name, executor)
        home = default_registry if registry is None else registry
        made: Task[F, Any, R] = Task(
            handler,
            name=checked_name(default_name(handler) if name is None else name, "task name", TaskError),
            aliases=others,
            options=options,
            rules=rules,
            archive=archive,
            timeout=seconds,
            record=record,
            executor=executor,
            memory_limit=memory_limit,
            keep_logs=int(lines),
            steps=steps,
            limits=limits,
            dry_run=dry_run,
            version=version,
            batch=batches,
            registry=home,
        )
        home.add(made)
        if name is None and registry is None:
            _warn_if_hidden(made)
        return made

    return decorate if handler is None else decorate(handler)


def _check_given(registry: object, unknown: dict[str, object]) -> None:
    if unknown:
        from ..rules.hints import unknown_option

        takes: Any = task
        raise TaskError(unknown_option(next(iter(unknown)), "your_task", takes.__kwdefaults__))
    if registry is not None and not isinstance(registry, Registry):
        raise TaskError(f"registry must be a Registry, not {registry!r}")


def _check_limits(limits: object) -> None:
    if not isinstance(limits, Limits):
        raise TaskError(f"limits must be Limits(...), not {shown(limits)}")
    if limits.share == "time":
        raise TaskError(f"limits: {NO_SHARE}")


def _check_executor(executor: object, memory_limit: int | None, dry_run: bool) -> None:
    if executor not in {None, "process"}:
        raise TaskError(f'executor must be "process", or None for a thread or the event loop, not {executor!r}')
    if dry_run and executor is not None:
        raise TaskError(
            f"dry_run=True runs a handler in the dashboard's process, and executor={executor!r} needs another"
        )
    if memory_limit is not None:
        if executor is None:
            raise TaskError('memory_limit is the limit of a child process: give executor="process" with it')
        if type(memory_limit) is not int or not _LEAST_MEMORY <= memory_limit <= sys.maxsize:
            raise TaskError(
                f"memory_limit must be a number of bytes, at least {_LEAST_MEMORY:,} (16 MiB), not {shown(memory_limit)}: "
                "2 GiB are 2 * 2**30"
            )


def _extras(version: object, on_failure: object, on_success: object, record: bool) -> str | None:
    extras = extras_of(version, TaskError)
    if on_failure is None and on_success is None:
        return extras
    given = {"on_failure": on_failure, "on_success": on_success}
    return with_follow_ups(extras, given, TaskError, record=record)


def _limit_of_all(value: Duration | None, what: str) -> timedelta | None:
    """A limit of all jobs of a task: no datetime, which would be the same for all."""
    if value is None:
        return None
    if isinstance(value, datetime):
        raise TaskError(
            f"{what} of a task must be seconds or a timedelta, not {shown(value)}; one job can have a time, by task.options()"
        )
    return cast(timedelta | None, checked_limit(value, what, TaskError))


def _check_handler(handler: object, name: str | None, executor: str | None) -> None:
    """Refuse what cannot be a handler."""
    shown = getattr(handler, "__qualname__", None) or repr(handler)
    if isinstance(handler, str):
        raise TaskError(f"@task takes its options by name: write @task(queue={shown}), or @task(name={shown})")
    if not inspect.isfunction(handler):
        raise TaskError(
            f"a task is a function (def or async def), not {shown} of type {type(handler).__name__}: "
            "write a function that calls it"
        )
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise TaskError(f"{shown} is a generator, which a worker does not iterate: return instead of yield")
    if executor is not None and inspect.iscoroutinefunction(handler):
        raise TaskError(
            f'{shown} is an `async def`, and executor="process" is for `def` handlers: a child process runs one job at a time; '
            "write a `def` that calls asyncio.run()"
        )
    if handler.__name__ == "<lambda>" and name is None:
        raise TaskError("a lambda has no name for the row: give it one, task(name=...)")
    first = next(iter(function_of(handler).__code__.co_varnames[: handler.__code__.co_argcount]), None)
    owner = handler.__qualname__.rpartition(".")[0]
    if owner and not owner.endswith("<locals>") and first in {"self", "cls"}:
        raise TaskError(f"{shown} is a method, and a worker has no object to call it on: decorate a plain function")


def _warn_if_hidden(made: AnyTask) -> None:
    """Warn if the declaration does not run when a worker imports the application."""
    function = function_of(made.handler)
    known = function.__globals__
    outer, _, inner = function.__qualname__.rpartition(".<locals>.")
    if outer:
        why = f"a worker knows the task {made.name!r} only after a call of {outer}(): declare {inner} at the top of a module"
    elif (
        known.get("__name__") == "__main__"
        and known.get("__spec__") is None
        and not Path(known.get("__file__") or "").is_file()
    ):
        why = f"no worker can import {made.name!r} from a notebook, stdin or -c: declare it in a module that --app can name"
    else:
        return
    warnings.warn_explicit(
        f"{why}; if this is intended, give the task a name: @task(name=...)",
        TaskWarning,
        filename=function.__code__.co_filename,
        lineno=function.__code__.co_firstlineno,
        registry=known.setdefault("__warningregistry__", {}),
    )


def _rules(retry: object, retain: Duration | None, rescue: bool, breaker: object) -> Rules:
    if breaker is not None and not isinstance(breaker, Breaker):
        raise TaskError(f"breaker must be Breaker(...), not {shown(breaker)}")
    policy = RetryPolicy() if retry is None else retry
    if not isinstance(policy, RetryPolicy):
        raise TaskError(f"retry must be a RetryPolicy, not {retry!r}")
    if retain is None:
        return Rules(policy, retain=None, retain_failed=None, rescue=rescue, breaker=breaker)
    seconds = checked_duration(retain, "retain", TaskError)
    # A failed job is evidence, so it stays at least as long as completed jobs.
    longest = max(seconds, _RETAIN_FAILED)
    return Rules(policy, retain=seconds, retain_failed=longest, rescue=rescue, breaker=breaker)

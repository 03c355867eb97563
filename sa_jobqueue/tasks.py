"""Tasks: handlers with a name, and the rules for their jobs.

>>> from datetime import timedelta
>>> @task(queue="mail", max_attempts=5, name="shop.send_receipt")
... def send_receipt(order_id: int) -> str:
...     return f"receipt for {order_id}"
>>> send_receipt(7)
'receipt for 7'
>>> send_receipt.options(priority=9, delay=timedelta(hours=1)).call(7)
Call(task='shop.send_receipt', args='{"order_id":7}', queue='mail', priority=9, ...)

A row names a registered task. A worker never imports anything because of the name in a row.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

from .context import AsyncJobContext, JobContext
from .durations import Duration
from .errors import ConfigurationError, OptionError, PayloadError, ResultError, TaskError, TaskWarning
from .lifecycle import Rules
from .log import get_logger
from .makers import AsyncSessionMaker, SessionMaker, check_makers
from .models import Job, Overlap, Schedule
from .options import (
    MAX_ATTEMPTS,
    MAX_PRIORITY,
    Call,
    Enqueueable,
    Options,
    checked_duration,
    checked_int,
    checked_limit,
    checked_name,
    checked_unique,
)
from .payload import MAX_PAYLOAD, Arguments, Results, encode_plain
from .results import JobEnd, result_as
from .retry import RetryPolicy
from .schedules import Every, Missed, rule_of
from .unique import Unique

__all__ = ["AnyTask", "Registry", "Task", "TaskName", "default_registry", "task"]

logger = get_logger(__name__)

#: What jsonb itself can hold, in bytes.
_MAX_JSONB = 2**28 - 1

#: Less than an interpreter with this package needs, in bytes; so that a number of megabytes is not taken for one of bytes.
_LEAST_MEMORY = 2**24

_DEFAULT_RETAIN = Rules().retain
#: The least time that a failed job stays, in seconds.
_RETAIN_FAILED = cast(float, Rules().retain_failed)

#: Log lines kept of an attempt with `keep_logs=True`, and the most that can be asked for.
_LINES, _MAX_LINES = 200, 1_000

F = ParamSpec("F")
"""The handler's parameters."""
P = ParamSpec("P")
"""The parameters that are enqueued: all but the context."""
T = TypeVar("T")
R = TypeVar("R", covariant=True)  # noqa: PLC0105
"""What the handler returns; for an `async def` its coroutine. Covariant, as what a function returns is."""


class Task(Enqueueable, Generic[F, P, R]):
    """A handler that jobs can name. Calling it calls the handler; `enqueue(task, ...)` makes a job of it.

    `Task[Concatenate[JobContext, P], P, R]` for a handler that takes a context first, `Task[P, P, R]` for the others.
    """

    __name__: str
    __qualname__: str

    def __init__(
        self,
        handler: Callable[F, R],
        *,
        name: str,
        aliases: tuple[str, ...],
        options: Options,
        rules: Rules,
        timeout: float | None,
        record: bool,
        executor: str | None,
        memory_limit: int | None,
        keep_logs: int,
        registry: Registry,
    ) -> None:
        self.handler = handler
        self.name = name
        self.aliases = aliases
        self.rules = rules
        """Retries, retention, rescue: what `lifecycle.decide` needs to know of the task."""
        self.timeout = timeout
        """Seconds that one attempt may take, or None."""
        self.record = record
        """Whether the return value is stored in `Job.result`."""
        self.executor = executor
        """"process" for a handler that runs in a child process, else None."""
        self.memory_limit = memory_limit
        """Bytes that the child process may have resident while it runs the handler, or None."""
        self.keep_logs = keep_logs
        """How many log lines of an attempt are kept; 0: none."""
        self.registry = registry
        self.is_async = inspect.iscoroutinefunction(handler)
        self._options = options
        self._arguments = Arguments(handler, task=name)
        self._results = Results(handler, task=name)
        self.decode = self._arguments.decode
        """JSON text of a row -> (args, kwargs) for the handler, after its context. Raises PayloadError if it does not fit."""
        functools.update_wrapper(self, handler)
        if self.is_async:
            _mark_coroutine_function(self)

    def __call__(self, /, *args: F.args, **kwargs: F.kwargs) -> R:
        """Call the handler, here and now."""
        return self.handler(*args, **kwargs)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call:
        """One job with these arguments, for `enqueue_many`. Raises PayloadError if they do not fit."""
        return self._make_call(self._arguments.encode(args, kwargs, limit=self.registry.max_payload))

    def _defaults(self) -> Mapping[str, Any]:
        return self._arguments.defaults

    @functools.cached_property
    def context(self) -> type[JobContext | AsyncJobContext] | None:
        """The class of the context that the handler takes first; None if it takes none."""
        return self._arguments.context

    @overload
    def result(self: Task[F, P, Coroutine[Any, Any, T]], job: Job | JobEnd) -> T: ...
    @overload
    def result(self: Task[F, P, T], job: Job | JobEnd) -> T: ...
    def result(self, job: Job | JobEnd) -> Any:
        """The result of a job of this task, of the type that its handler is annotated to return.

        `job`: as a query has loaded it, or as `wait_for` returns it. The task must say `record=True`. Raises ResultError if the job
        is not of this task, did not complete, or its result does not fit.
        """
        end = job if isinstance(job, JobEnd) else job.end
        if end.task is not None and end.task not in (self.name, *self.aliases):
            raise ResultError(f"job {end.id} is of task {end.task!r}, not of {self.name!r}")
        return result_as(end, self._results.hint)

    def resolve(self) -> None:
        """Resolve the handler's annotations now instead of at the first job. Raises TaskError if one cannot be resolved."""
        self._arguments.resolve()
        if self.record:
            self._results.resolve()

    def encode_result(self, value: object) -> str:
        """What the handler returned, as JSON text. Raises PayloadError if it cannot be stored."""
        return self._results.encode(value, limit=self.registry.max_payload)

    def __reduce__(self) -> str:
        """Pickle the task by its name, as functions are pickled, so that a pool of processes can take it."""
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<Task {self.name!r}>"


class TaskName(Enqueueable):
    """A task known by name only, for producers that do not import the handlers.

    >>> TaskName("shop.send_receipt").options(queue="mail").call(order_id=7).args
    '{"order_id":7}'

    The queue is "default" unless the options name another, because the options of the handler's task are not known here.
    """

    def __init__(self, name: str) -> None:
        self.name = checked_name(name, "task name", OptionError)
        self._options = Options()

    def call(self, /, *args: Any, **kwargs: Any) -> Call:
        """One job with these keyword arguments, which must be plain JSON. A worker checks them against the handler."""
        if args:
            raise PayloadError(f"task {self.name!r}: by name, a task takes keyword arguments only")
        args_text = encode_plain(kwargs, what=f"task {self.name!r}", limit=default_registry.max_payload)
        return self._make_call(args_text)

    def __repr__(self) -> str:
        return f"TaskName({self.name!r})"


AnyTask: TypeAlias = Task[..., ..., Any]


class Registry:
    """The tasks by name and alias.

    `max_payload`: the most bytes of encoded arguments, or of a result, that its tasks accept, up to 268,435,455.
    `sessionmaker`, `async_sessionmaker`: the application's own, for `ctx.session` in workers that were given no other.
    All three can also be set later; set a sessionmaker before you make the worker. Raises ConfigurationError for a value
    that cannot be used.
    """

    max_payload: int
    """The most bytes of encoded arguments that are accepted."""
    sessionmaker: SessionMaker | None
    """What makes `ctx.session` for `def` handlers; None: the worker."""
    async_sessionmaker: AsyncSessionMaker | None
    """What makes `ctx.session` for `async def` handlers; None: the worker."""

    def __init__(
        self,
        *,
        max_payload: int = MAX_PAYLOAD,
        sessionmaker: SessionMaker | None = None,
        async_sessionmaker: AsyncSessionMaker | None = None,
    ) -> None:
        self.max_payload = max_payload
        self.sessionmaker = sessionmaker
        self.async_sessionmaker = async_sessionmaker
        self._tasks: dict[str, AnyTask] = {}
        self._schedules: dict[str, tuple[Any, Callable[[], Schedule]]] = {}
        self.get: Callable[[str], AnyTask | None] = self._tasks.get
        """The task of this name or alias, or None."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "max_payload":
            checked_int(value, name, 1, _MAX_JSONB, ConfigurationError)
        elif name in {"sessionmaker", "async_sessionmaker"}:
            check_makers(**{name: value})
        super().__setattr__(name, value)

    def add(self, added: AnyTask) -> None:
        """Register a task. Raises TaskError if another handler has its name or one of its aliases.

        If a reload of its module declares the same function again, the new task replaces the old one.
        """
        names = (added.name, *added.aliases)
        replaced = [found for name in names if (found := self._tasks.get(name)) is not None]
        for found in replaced:
            if _origin(found) != _origin(added):
                taken = next(name for name in names if self._tasks.get(name) is found)
                raise TaskError(
                    f"task name {taken!r} is taken by {_place(found)}; {_place(added)} needs another: "
                    "@task(name=...), or another alias"
                )
            if _line(found) != _line(added) or _twins(found, added):
                logger.warning("task %r is declared again: %s, now %s", found.name, _place(found), _place(added))
        for found in replaced:
            for name in (found.name, *found.aliases):
                self._tasks.pop(name, None)
        self._tasks.update(dict.fromkeys(names, added))

    def resolve(self) -> None:
        """Resolve the annotations of all tasks, and check the arguments of all schedules. Raises TaskError or PayloadError for the
        first that cannot be used.
        """
        for one in self:
            one.resolve()
        _ = self.schedules

    def schedule(
        self,
        rule: str | Every,
        job: AnyTask | TaskName | Call,
        /,
        *args: Any,
        name: str | None = None,
        timezone: str = "UTC",
        missed: Missed = "once",
        catch_up: Duration | None = None,
        overlap: Overlap = "allow",
        jitter: Duration = 0.0,
        pause_after: int | None = None,
    ) -> None:
        """Declare a schedule: workers with this registry keep its row as it is declared here. All arguments are those of `Schedule`.

        Raises OptionError for a value that cannot be used, and where another schedule has the name; PayloadError for arguments that
        do not fit the task.
        """

        def make() -> Schedule:
            return Schedule(
                rule, job, *args, name=name, timezone=timezone, missed=missed, catch_up=catch_up, overlap=overlap,
                jitter=jitter, pause_after=pause_after,
            )  # fmt: skip

        wanted = name if name is not None else job.task if isinstance(job, Call) else getattr(job, "name", "")
        try:
            wanted = make().name
        except TaskError:  # an annotation that cannot be resolved yet: the worker will
            rule_of(rule, timezone)
        task = None if isinstance(job, Call) else job
        if wanted in self._schedules and not self._is_reloaded(self._schedules[wanted][0], task):
            raise OptionError(f"another schedule is called {wanted!r}: give this one a name=")
        self._schedules[wanted] = (task, make)

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """The schedules that are declared here, by name; as transient objects."""
        return {name: make() for name, (_, make) in self._schedules.items()}

    def _is_reloaded(self, before: object, after: object) -> bool:
        """Whether one task replaced the other when its module was loaded again."""
        return (
            isinstance(before, Task)
            and isinstance(after, Task)
            and before is not after
            and self.get(before.name) is not before
            and _origin(before) == _origin(after)
        )

    def __iter__(self) -> Iterator[AnyTask]:
        """Each task once, in the order of declaration."""
        return iter([one for name, one in self._tasks.items() if name == one.name])


default_registry = Registry()
"""Where `@task` registers without a `registry`. Its `max_payload` is also the limit for jobs that are enqueued by name."""


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
    record: bool = False,
    keep_logs: bool | int = False,
    rescue: bool = True,
    unique: Unique | None = None,
    expires_in: Duration | None = None,
    deadline: Duration | None = None,
    executor: Literal["process"] | None = None,
    memory_limit: int | None = None,
    registry: Registry | None = None,
) -> _Decorator: ...
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
    record: bool = False,
    keep_logs: bool | int = False,
    rescue: bool = True,
    unique: Unique | None = None,
    expires_in: Duration | None = None,
    deadline: Duration | None = None,
    executor: Literal["process"] | None = None,
    memory_limit: int | None = None,
    registry: Registry | None = None,
) -> Any:
    """Make a task of a function, `def` or `async def`; `@task` or `@task(...)`.

    The worker injects a first parameter annotated `JobContext` (`AsyncJobContext` in an `async def`), which is no part of
    the arguments.

    `name`: the task's name in the row, by default "module.function". For a script that runs as `__main__` the module is
    the name of its file (`python shop.py` gives "shop.function", as `--app shop` does), or what `python -m` was given.
    `aliases`: names under which older rows know it. `queue`, `priority`, `max_attempts`: what its jobs have unless
    `Task.options` says otherwise. `retry`: when to try again. `timeout`: seconds or timedelta for one attempt.
    `retain`: how long a finished job stays, in seconds or as a timedelta; 0: completed jobs are deleted at once,
    None: for ever. Failed ones stay at least 30 days. `record`: store what the handler returns in `Job.result`, checked
    against its return annotation, if it has one. `keep_logs`: True for the last 200 log lines that an attempt writes through
    `ctx.logger`, or their number, up to 1,000: they are stored.
    `rescue`: False for a job that must not run twice: it fails if its worker dies. `unique`: what makes its jobs
    unique, see `Unique`. `expires_in`, `deadline`: see `Task.options`, counted from the enqueueing. `executor`: "process" runs a `def` handler in a child process, which is killed when it exceeds
    its timeout; None: on a thread. `memory_limit`: bytes that such a process may have resident. `registry`: where to register; the default registry if None.

    Raises TaskError for a declaration that cannot work. Annotations are resolved later, at the first job or when a worker
    starts. Warns with TaskWarning about a function that has neither a `name` nor a `registry` and is declared inside another
    function, in a notebook or on stdin, because a worker may not find it there.
    """
    if registry is not None and not isinstance(registry, Registry):
        raise TaskError(f"registry must be a Registry, not {registry!r}")
    for flag, value in {"record": record, "rescue": rescue}.items():
        if not isinstance(value, bool):
            raise TaskError(f"{flag} must be True or False, not {value!r}")
    options = Options(
        queue=checked_name(queue, "queue", TaskError),
        priority=checked_int(priority, "priority", 0, MAX_PRIORITY, TaskError),
        max_attempts=checked_int(max_attempts, "max_attempts", 1, MAX_ATTEMPTS, TaskError),
        unique=None if unique is None else checked_unique(unique, TaskError),
        expires=None if expires_in is None else checked_limit(expires_in, "expires_in", TaskError),
        deadline=None if deadline is None else checked_limit(deadline, "deadline", TaskError),
    )
    _check_executor(executor, memory_limit)
    lines = _LINES if keep_logs is True else keep_logs
    if lines is not False:
        checked_int(lines, "keep_logs", 1, _MAX_LINES, TaskError)
    rules = _rules(retry, retain, rescue)
    if record and rules.retain == 0:
        raise TaskError(
            "record=True needs a row to keep the result in, and retain=0 deletes it at once: give another retain"
        )
    seconds = None if timeout is None else checked_duration(timeout, "timeout", TaskError)
    if seconds == 0:
        raise TaskError("timeout must be more than 0 seconds; None means no limit")
    if isinstance(aliases, str):
        raise TaskError(f"aliases must be a list of names, not the text {aliases!r}")
    others = tuple(checked_name(alias, "alias", TaskError) for alias in aliases)

    def decorate(handler: Callable[F, R]) -> Task[F, Any, R]:
        _check_handler(handler, name, executor)
        made: Task[F, Any, R] = Task(
            handler,
            name=checked_name(_default_name(handler) if name is None else name, "task name", TaskError),
            aliases=others,
            options=options,
            rules=rules,
            timeout=seconds,
            record=record,
            executor=executor,
            memory_limit=memory_limit,
            keep_logs=int(lines),
            registry=default_registry if registry is None else registry,
        )
        made.registry.add(made)
        if name is None and registry is None:
            _warn_if_hidden(made)
        return made

    return decorate if handler is None else decorate(handler)


def _mark_coroutine_function(made: AnyTask) -> None:
    """Tell frameworks that ask whether to await a call of the task (Starlette's BackgroundTasks, FastAPI)."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(made)
    else:
        made._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]  # noqa: SLF001


def _check_executor(executor: object, memory_limit: int | None) -> None:
    if executor not in {None, "process"}:
        raise TaskError(f'executor must be "process", or None for a thread or the event loop, not {executor!r}')
    if memory_limit is not None:
        if executor is None:
            raise TaskError('memory_limit is the limit of a child process: give executor="process" with it')
        checked_int(memory_limit, "memory_limit", _LEAST_MEMORY, sys.maxsize, TaskError)


def _check_handler(handler: object, name: str | None, executor: str | None) -> None:
    """Refuse what cannot be a handler."""
    shown = getattr(handler, "__qualname__", None) or repr(handler)
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
    first = next(iter(_function(handler).__code__.co_varnames[: handler.__code__.co_argcount]), None)
    owner = handler.__qualname__.rpartition(".")[0]
    if owner and not owner.endswith("<locals>") and first in {"self", "cls"}:
        raise TaskError(f"{shown} is a method, and a worker has no object to call it on: decorate a plain function")


def _function(handler: Callable[..., Any]) -> FunctionType:
    """The function behind the decorators. The handler itself, if they wrap a partial or another object."""
    inner: Any = inspect.unwrap(handler)
    return inner if hasattr(inner, "__code__") else cast(FunctionType, handler)


def _default_name(handler: Callable[..., Any]) -> str:
    module = handler.__module__
    if module in {"__main__", "__mp_main__"}:  # the latter: the same script, imported by a spawned child
        known = _function(handler).__globals__
        spec, file = known.get("__spec__"), known.get("__file__")
        module = spec.name if spec is not None else Path(file).stem if file else module
    return f"{module}.{handler.__qualname__}"


def _warn_if_hidden(made: AnyTask) -> None:
    """Warn if the declaration does not run when a worker imports the application."""
    function = _function(made.handler)
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


def _rules(retry: object, retain: Duration | None, rescue: bool) -> Rules:
    policy = RetryPolicy() if retry is None else retry
    if not isinstance(policy, RetryPolicy):
        raise TaskError(f"retry must be a RetryPolicy, not {retry!r}")
    if retain is None:
        return Rules(policy, retain=None, retain_failed=None, rescue=rescue)
    seconds = checked_duration(retain, "retain", TaskError)
    # A failed job is evidence, so it stays at least as long as the completed ones.
    return Rules(policy, retain=seconds, retain_failed=max(seconds, _RETAIN_FAILED), rescue=rescue)


def _origin(one: AnyTask) -> tuple[str, str]:
    """The file and name of the function. They stay the same after a reload, and whether the file is run or imported."""
    function = _function(one.handler)
    return str(Path(function.__code__.co_filename)), function.__qualname__


def _line(one: AnyTask) -> int:
    return _function(one.handler).__code__.co_firstlineno


def _twins(one: AnyTask, other: AnyTask) -> bool:
    """Whether both are closures of one `def`, from a factory or a loop. After a reload they are not: it compiles the `def` again."""
    return one.handler is not other.handler and _function(one.handler).__code__ is _function(other.handler).__code__


def _place(one: AnyTask) -> str:
    file, name = _origin(one)
    return f"{name} ({file}:{_line(one)})"

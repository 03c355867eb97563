"""A task: a handler with its name, its options and its rules, as an object."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from ..arguments.arguments import Arguments
from ..arguments.batches import AsyncBatchContext, BatchContext
from ..arguments.ends import JobEnd, result_as
from ..arguments.injected import Injected, check_early
from ..arguments.inputs import Inputs
from ..arguments.objects import ObjectText, about
from ..arguments.results import Results
from ..arguments.secrets import Sealing, SecretKeys
from ..arguments.signature import Context, Plan
from ..errors import ResultError, StatusError, TaskError
from ..models import JobMixin, JobReadings, status_in
from ..rules.lifecycle import JobStatus, Rules
from ..rules.limits import Limits
from .batching import Batching, Grouping
from .calls import Call, SessionMaker
from .options import Enqueueable, Options
from .upcasts import Upcaster, Upcasts

if TYPE_CHECKING:
    from ..rules.callbacks import Callbacks

F = ParamSpec("F")
"""The handler's parameters."""
G = ParamSpec("G")
"""The parameters of a batch handler after its context."""
P = ParamSpec("P")
"""The parameters that are enqueued: all but the context."""
T = TypeVar("T")
U = TypeVar("U", bound=Upcaster)
R = TypeVar("R", covariant=True)  # noqa: PLC0105
"""What the handler returns; for an `async def` its coroutine. Covariant, as what a function returns is."""


#: The states of a job that waits.
_WAITING = (JobStatus.QUEUED, JobStatus.BLOCKED)


class Home(Protocol):
    """What a task asks of its registry, which is a floor above."""

    @property
    def max_payload(self) -> int: ...
    @property
    def archive(self) -> bool: ...
    @property
    def job(self) -> type[JobMixin]: ...
    @property
    def sessionmaker(self) -> SessionMaker | None: ...
    @property
    def callbacks(self) -> Callbacks | None: ...
    @property
    def overrides(self) -> Mapping[Callable[..., Any], Callable[..., Any]]: ...
    @property
    def start_hooks(self) -> tuple[Callable[[], Any], ...]: ...
    @property
    def stop_hooks(self) -> tuple[Callable[[], Any], ...]: ...
    @property
    def secrets(self) -> SecretKeys | None: ...


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
        archive: bool | None,
        timeout: float | None,
        record: bool,
        executor: str | None,
        memory_limit: int | None,
        keep_logs: int,
        steps: str = "warn",
        limits: Limits | None,
        dry_run: bool,
        version: int = 1,
        batch: Batching | None = None,
        registry: Home,
    ) -> None:
        self.handler = handler
        self.name = name
        self.aliases = aliases
        self.rules = rules
        """Retries, retention, rescue: what `lifecycle.decide` needs to know of the task."""
        self._archive = archive
        self.timeout = timeout
        """Seconds that an attempt may take, or None."""
        self.record = record
        """Whether the return value is stored in `Job.result`."""
        self.executor = executor
        """"process" for a handler that runs in a child process, else None."""
        self.memory_limit = memory_limit
        """Bytes that the child process may have resident while it runs the handler, or None."""
        self.keep_logs = keep_logs
        """How many log lines of an attempt are kept; 0: none."""
        self.steps = steps
        """What happens if the arguments of a step differ from its record: "warn", "fail" or "hold"."""
        self.limits = limits
        """The limits of its jobs, in any queue, as the code declares them; None: no limits."""
        self.dry_run = dry_run
        """Whether its jobs may be tried: see `task`."""
        self.batch = batch
        """The rules by which its jobs form batches; None: the handler takes one job."""
        self.registry = registry
        self.is_async = inspect.iscoroutinefunction(handler)
        self._options = options
        self.version = version
        """The version of the arguments that the handler takes, from 1 on."""
        self.sealing = Sealing((name, *aliases), lambda: registry.secrets)
        """Encrypts and decrypts its secret arguments."""
        self.upcasts = Upcasts(name, version, self.sealing)
        """The functions that read arguments of older versions."""
        check_early(handler, f"task {name!r}")
        self._arguments = Arguments(handler, task=name, batch=batch is not None, sealing=self.sealing)
        self._results = Results(handler, task=name, batch=batch is not None)
        self._afters: dict[int, tuple[Arguments, Inputs]] = {}
        self.decode = self._arguments.decode
        """JSON text of the current version -> (args, kwargs) for the handler, after its context. Raises PayloadError if it does not fit.

        If the task `takes_objects`, they are still references.
        """
        functools.update_wrapper(self, handler, updated=())
        own, cls = vars(self), type(self)
        # What other decorators have put on the function comes along, but takes the place of nothing here.
        own |= {
            name: attribute for name, attribute in vars(handler).items() if name not in own and not hasattr(cls, name)
        }
        if self.is_async:
            _mark_coroutine_function(self)

    def __call__(self, /, *args: F.args, **kwargs: F.kwargs) -> R:
        """Call the handler, here and now."""
        return self.handler(*args, **kwargs)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call:
        """One job with these arguments, for `enqueue_many`. Raises PayloadError if they do not fit."""
        return self._make_call(self._arguments.encode(args, kwargs, limit=self.registry.max_payload))

    def upcast(self, version: int) -> Callable[[U], U]:
        """A decorator for the function that reads the arguments of this older version: `@send.upcast(1)`.

        The function takes the stored arguments, a dict of plain JSON, and returns the arguments of the next version, also as plain
        JSON. If it raises, the job fails, and can be retried.

        Raises TaskError for a version that is not older than the task's, or that has an upcaster already.
        """

        def decorate(function: U) -> U:
            self.upcasts.add(version, function)
            return function

        return decorate

    def edit(self, job: JobMixin | int, /, *args: P.args, **kwargs: P.kwargs) -> sa.Executable:
        """A statement that gives a job of this task, itself or its id, these arguments in place of its own. Returns its id if it did.

        They are checked as those of `enqueue`, and are all arguments of the job. Only a job that waits is changed; it keeps its subject,
        and a unique job keeps the key that was made of its former arguments. Nothing is returned where a worker has claimed the job meanwhile, where there
        is none, or where it is of another task.

        Raises PayloadError for arguments that do not fit, and of a `job` that is an object TaskError if it is of another task, and
        StatusError if it does not wait or takes the results of other jobs, or was not flushed. TypeError for a `job` that is neither.
        """
        names = (self.name, *self.aliases)
        if type(job) is int and abs(job) < 2**63:
            job_id, model = job, self.registry.job
        elif not isinstance(job, JobMixin):
            raise TypeError(f"edit() takes a job or its id, and then the arguments, not {job!r}")
        else:
            job_id, model = job.id, type(job)
            if job.task not in names:
                raise TaskError(f"job {job_id} is of task {job.task!r}, not of {self.name!r}")
            if job.status not in _WAITING or job.inputs is not None:
                state = job.status if job.inputs is None else "given the results of other jobs"
                raise StatusError(
                    f"job {job_id} is {state}: only a job that waits, with all its arguments, can be edited"
                )
        text = self._arguments.encode(args, kwargs, limit=self.registry.max_payload)
        if job_id is None:  # before the flush  # pyright: ignore[reportUnnecessaryComparison]
            raise StatusError("the job has no id yet: flush it first, or enqueue another")
        if isinstance(text, ObjectText):
            text, _, waiting = about(self.name, text, None, None)
            text = text if waiting is None else waiting.completed(text)
        here = model.id == job_id, model.task.in_(names), status_in(model.status, _WAITING), model.inputs.is_(None)
        changed = {
            "args": sa.cast(sa.bindparam("edited_args", str(text), sa.Text), JSONB),
            "extras": self._edited_extras(model),
        }
        edited = sa.update(model).where(*here).values(changed).returning(model.id)
        return edited.execution_options(synchronize_session=False)

    def _edited_extras(self, model: type[JobMixin]) -> sa.ColumnElement[Any]:
        """The `extras` of a job with the version of this task."""
        empty: sa.ColumnElement[Any] = sa.literal_column("'{}'::jsonb", JSONB)
        if self.version == 1:
            return sa.func.nullif(
                model.extras.op("-", return_type=JSONB())(sa.literal_column("'version'", sa.Text)), empty
            )
        given = sa.literal_column(f"'{{\"version\": {self.version}}}'::jsonb", JSONB)
        return sa.func.coalesce(model.extras, empty).op("||", return_type=JSONB())(given)

    def call_after(self, count: int, /, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """The call for a job whose first `count` parameters are results of other jobs; 0: the first is a list of results."""
        given, _ = self._after(count)
        return self._make_call(given.encode(args, kwargs, limit=self.registry.max_payload))

    def decode_after(self, count: int, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the handler of such a job, after its context and those results."""
        return self._after(count)[0].decode(text)

    def inputs(self, count: int) -> Inputs:
        """The parameters for those results."""
        return self._after(count)[1]

    def _after(self, count: int) -> tuple[Arguments, Inputs]:
        if self.batch is not None:
            raise TaskError(f"task {self.name!r} runs in batches, so its jobs take no results of other jobs")
        if (found := self._afters.get(count)) is None:
            arguments = Arguments(self.handler, task=self.name, given=count or 1, sealing=self.sealing)
            found = self._afters[count] = arguments, Inputs(self.handler, task=self.name, count=count)
        return found

    def plain_call(self, /, *args: Any, **kwargs: Any) -> Call:
        """The call without any middleware, as a schedule keeps it."""
        return self._make_call(self._arguments.encode(args, kwargs, limit=self.registry.max_payload), plain=True)

    def _defaults(self) -> Mapping[str, Any]:
        return self._arguments.defaults

    @property
    def parameters(self) -> Plan:
        """What the handler takes after its context. Raises TaskError if an annotation cannot be resolved."""
        return self._arguments.resolve()

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The defaults of its parameters, as the plain JSON that they would be as arguments."""
        return self._arguments.defaults

    @property
    def archive(self) -> bool:
        """Whether its finished jobs are moved to the archive when their time in the table of jobs is over."""
        return self.registry.archive if self._archive is None else self._archive

    @functools.cached_property
    def context(self) -> Context | None:
        """The class of the context that the handler takes first; None if it takes none."""
        return self._arguments.context

    @functools.cached_property
    def takes_objects(self) -> bool:
        """Whether an argument is a mapped object, or holds some."""
        return self._arguments.resolve().objects

    @functools.cached_property
    def is_filled(self) -> bool:
        """Whether the worker fills parameters of the handler with objects or injected values."""
        return self.takes_objects or self._injected is not None

    @functools.cached_property
    def _injected(self) -> Injected | None:
        return self._arguments.resolve().injected

    @property
    def injected(self) -> Injected | None:
        """The handler's injected values, with the current overrides; None: none."""
        injected = self._injected
        if injected is None or not self.registry.overrides:
            return injected
        return injected.overridden(self.registry.overrides, what=f"task {self.name!r}", is_async=self.is_async)

    @functools.cached_property
    def grouping(self) -> Grouping | None:
        """The value that all jobs of a batch have in common; None without `by`. Raises TaskError if the handler has no such argument."""
        if self.batch is None or self.batch.by is None:
            return None
        return Grouping(self.batch.by, self.parameters, self.name)

    @overload
    def result(
        self: Task[Concatenate[AsyncBatchContext, G], P, Coroutine[Any, Any, list[T]]], job: JobReadings | JobEnd
    ) -> T: ...
    @overload
    def result(self: Task[Concatenate[BatchContext, G], P, list[T]], job: JobReadings | JobEnd) -> T: ...
    @overload
    def result(self: Task[F, P, Coroutine[Any, Any, T]], job: JobReadings | JobEnd) -> T: ...
    @overload
    def result(self: Task[F, P, T], job: JobReadings | JobEnd) -> T: ...
    def result(self, job: JobReadings | JobEnd) -> Any:
        """The result of a job of this task, of the type that its handler is annotated to return.

        `job`: as a query has loaded it, also from the archive, or as `wait_for` returns it. The task must say `record=True`. Raises ResultError if the job
        is not of this task, did not complete, or its result does not fit.
        """
        end = job if isinstance(job, JobEnd) else job.end
        if end.task is not None and end.task not in (self.name, *self.aliases):
            raise ResultError(f"job {end.id} is of task {end.task!r}, not of {self.name!r}")
        return result_as(end, self._results.hint)

    def resolve(self) -> None:
        """Resolve the handler's annotations now instead of at the first job. Raises TaskError if an annotation cannot be resolved, or the
        upcaster of an older version is missing.
        """
        self._arguments.resolve()
        self.upcasts.check()
        if self.record:
            self._results.resolve()
        _ = self.grouping

    def encode_result(self, value: object) -> str:
        """What the handler returned, as JSON text. Raises PayloadError if it cannot be stored."""
        return self._results.encode(value, limit=self.registry.max_payload)

    def __reduce__(self) -> str:
        """Pickle the task by its name, as functions are pickled, so that a pool of processes can take it."""
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<Task {self.name!r}>"


AnyTask: TypeAlias = Task[..., ..., Any]


def _mark_coroutine_function(made: AnyTask) -> None:
    """Tell frameworks that ask whether to await a call of the task (Starlette's BackgroundTasks, FastAPI)."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(made)
    else:
        made._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]  # noqa: SLF001


# ---- The Python function behind a handler: its name for the row, and where it is declared.

Handler: TypeAlias = Callable[..., Any]


def function_of(handler: Handler) -> FunctionType:
    """The function behind the decorators. The handler itself, if they wrap a partial or another object."""
    inner: Any = inspect.unwrap(handler)
    return inner if hasattr(inner, "__code__") else cast(FunctionType, handler)


def default_name(handler: Handler) -> str:
    """The module and the function, "shop.send". For a script that runs as `__main__` the module is the name under which it could be imported."""
    module = handler.__module__
    if module in {"__main__", "__mp_main__"}:  # the latter: the same script, imported by a spawned child
        known = function_of(handler).__globals__
        spec, file = known.get("__spec__"), known.get("__file__")
        module = spec.name if spec is not None else Path(file).stem if file else module
    return f"{module}.{handler.__qualname__}"


def origin_of(handler: Handler) -> tuple[str, str]:
    """The file and name of the function. They stay the same after a reload, and whether the file is run or imported."""
    function = function_of(handler)
    return str(Path(function.__code__.co_filename)), function.__qualname__


def line_of(handler: Handler) -> int:
    """The line of its file in which the function begins."""
    return function_of(handler).__code__.co_firstlineno


def are_twins(handler: Handler, other: Handler) -> bool:
    """Whether both are closures of the same `def`, from a factory or a loop. After a reload they are not: it compiles the `def` again."""
    return handler is not other and function_of(handler).__code__ is function_of(other).__code__


def place_of(handler: Handler) -> str:
    """Name, file and line, for a message."""
    file, name = origin_of(handler)
    return f"{name} ({file}:{line_of(handler)})"

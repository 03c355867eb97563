"""The tasks, schedules and limits of an application, by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..arguments.secrets import SecretKeys, is_marked
from ..arguments.storable import MAX_PAYLOAD, encode_plain, shown
from ..errors import ConfigurationError, OptionError, PayloadError, TaskError
from ..models import Job, JobMixin, Overlap, Schedule, is_job_class
from ..rules.limits import Limits, Owner
from ..rules.retry import Duration
from ..rules.schedules import Every, Missed, rule_of
from ..util.log import get_logger
from ..util.urls import SECRET
from .calls import AsyncSessionMaker, Call, SessionMaker, check_makers
from .options import Enqueueable, Options, checked_int, checked_name, extras_of
from .tasks import AnyTask, Task, are_twins, line_of, origin_of, place_of

if TYPE_CHECKING:
    from ..rules.callbacks import Callbacks

logger = get_logger(__name__)

H = TypeVar("H", bound=Callable[[], Any])

#: What jsonb itself can hold, in bytes.
_MAX_JSONB = 2**28 - 1


#: They limit nothing.
_NONE = Limits()


class _Declared(NamedTuple):
    """A schedule as code declares it."""

    job: AnyTask | TaskName | Call
    make: Callable[[], Schedule]
    """Makes a transient object of it. Raises TaskError while the handler's annotations cannot be resolved."""


class Registry:
    """The tasks by name and alias.

    `max_payload`: the most bytes of encoded arguments, or of a result, that its tasks accept, up to 268,435,455.
    `sessionmaker`, `async_sessionmaker`: the application's own, for `ctx.session` in workers that were given no other.
    `job`: the class of the jobs that workers of these tasks run, if it is the application's own: see `JobMixin`.
    `archive`: whether finished jobs of those of its tasks that do not say it themselves are moved to the archive: see `task`.
    `callbacks`: the settings of `ctx.callback_url`: see `Callbacks`. `secrets`: the keys of secret arguments: see `SecretKeys`.
    All of them can also be set later, but before the worker is made. Raises ConfigurationError for a value
    that cannot be used.
    """

    max_payload: int
    """The most bytes of encoded arguments that are accepted."""
    sessionmaker: SessionMaker | None
    """What makes `ctx.session` for `def` handlers; None: the worker."""
    async_sessionmaker: AsyncSessionMaker | None
    """What makes `ctx.session` for `async def` handlers; None: the worker."""

    job: type[JobMixin]
    """The class of the jobs that workers of these tasks run."""

    archive: bool
    """Whether finished jobs are moved to the archive, unless their task says otherwise."""

    callbacks: Callbacks | None
    """The settings of `ctx.callback_url`; None: handlers cannot use it."""

    secrets: SecretKeys | None
    """The keys of secret arguments; None: tasks with secret arguments cannot be enqueued or run."""

    def __init__(
        self,
        *,
        max_payload: int = MAX_PAYLOAD,
        sessionmaker: SessionMaker | None = None,
        async_sessionmaker: AsyncSessionMaker | None = None,
        job: type[JobMixin] = Job,
        archive: bool = False,
        callbacks: Callbacks | None = None,
        secrets: SecretKeys | None = None,
    ) -> None:
        self.max_payload = max_payload
        self.sessionmaker = sessionmaker
        self.async_sessionmaker = async_sessionmaker
        self.job = job
        self.archive = archive
        self.callbacks = callbacks
        self.secrets = secrets
        self._tasks: dict[str, AnyTask] = {}
        self._schedules: dict[str, _Declared] = {}
        self._queues: dict[str, Limits] = {}
        self.overrides: Mapping[Callable[..., Any], Callable[..., Any]] = {}
        """The overridden providers, with their replacements: see `override`."""
        self.start_hooks: tuple[Callable[[], Any], ...] = ()
        self.stop_hooks: tuple[Callable[[], Any], ...] = ()
        self.get: Callable[[str], AnyTask | None] = self._tasks.get
        """The task of this name or alias, or None."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "max_payload":
            checked_int(value, name, 1, _MAX_JSONB, ConfigurationError)
        elif name in {"sessionmaker", "async_sessionmaker"}:
            check_makers(**{name: value})
        elif name == "job" and not is_job_class(value):
            raise ConfigurationError(f"job is a mapped class, class Job(JobMixin, Base), not {shown(value)}")
        elif name == "archive" and not isinstance(value, bool):
            raise ConfigurationError(f"archive must be True or False, not {shown(value)}")
        elif name == "callbacks" and value is not None and not hasattr(value, "sign"):
            raise ConfigurationError(f"callbacks is Callbacks(url=..., keys=[...]), not {shown(value)}")
        elif name == "secrets" and not isinstance(value, (SecretKeys, NoneType)):
            raise ConfigurationError(
                f'secrets is SecretKeys({{"2026": key}}, current="2026"), not a {type(value).__name__}'
            )
        super().__setattr__(name, value)

    def add(self, added: AnyTask) -> None:
        """Register a task. Raises TaskError if another handler has its name or one of its aliases.

        If a reload of its module declares the same function again, the new task replaces the old task.
        """
        names = (added.name, *added.aliases)
        replaced = [found for name in names if (found := self._tasks.get(name)) is not None]
        for found in replaced:
            if origin_of(found.handler) != origin_of(added.handler):
                taken = next(name for name in names if self._tasks.get(name) is found)
                raise TaskError(
                    f"task name {taken!r} is taken by {place_of(found.handler)}; {place_of(added.handler)} needs another: "
                    "@task(name=...), or another alias"
                )
            before, now = found.handler, added.handler
            if line_of(before) != line_of(now) or are_twins(before, now):
                logger.warning("task %r is declared again: %s, now %s", found.name, place_of(before), place_of(now))
        for found in replaced:
            for name in (found.name, *found.aliases):
                self._tasks.pop(name, None)
        self._tasks.update(dict.fromkeys(names, added))

    def resolve(self) -> None:
        """Resolve the annotations of all tasks, check the arguments of all schedules, and check that there are keys for secrets. Raises TaskError or
        PayloadError for the first problem.
        """
        for task in self:
            task.resolve()
            if task.sealing.keys() is None and (hidden := sorted(task.parameters.encrypted)):
                raise TaskError(
                    f"task {task.name!r}: {hidden[0]!r} is secret, and its registry has no keys: set default_registry.secrets = SecretKeys(...), "
                    "or that of the task's own registry"
                )
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
        make = functools.partial(
            _without_secrets, rule, job, *args, name=name, timezone=timezone, missed=missed, catch_up=catch_up, overlap=overlap,
            jitter=jitter, pause_after=pause_after,
        )  # fmt: skip
        wanted = name if name is not None else job.task if isinstance(job, Call) else getattr(job, "name", "")
        try:
            wanted = make().name
        except TaskError:  # an annotation that cannot be resolved yet: the worker will
            rule_of(rule, timezone)
        if (before := self._schedules.get(wanted)) is not None and not self._is_reloaded(before.job, job):
            raise OptionError(f"another schedule is called {wanted!r}: give this one a name=")
        self._schedules[wanted] = _Declared(job, make)

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """The schedules that are declared here, by name; as transient objects."""
        return {name: declared.make() for name, declared in self._schedules.items()}

    def queue(self, name: str, /, *, limits: Limits) -> None:
        """Declare the limits of a queue: they hold for all of its jobs together, of all tasks. See `Limits`.

        Workers with this registry write them down when they start, and then operators may change them. Raises OptionError for a
        value that cannot be used, and where other limits of this queue are declared already.
        """
        name = checked_name(name, "queue", OptionError)
        if not isinstance(limits, Limits):
            raise OptionError(f"queue {name!r}: limits must be Limits(...), not {shown(limits)}")
        before = self._queues.setdefault(name, limits)
        if before != limits:
            raise OptionError(f"queue {name!r} has other limits already: {before}")

    @property
    def limits(self) -> Mapping[tuple[Owner, str], Limits]:
        """The limits that are declared here, of queues and of tasks: by ("queue", name) and ("task", name)."""
        queues: dict[tuple[Owner, str], Limits] = {("queue", name): limits for name, limits in self._queues.items()}
        tasks: dict[tuple[Owner, str], Limits] = {("task", known.name): known.limits for known in self if known.limits}
        return {owner: limits for owner, limits in (queues | tasks).items() if limits != _NONE}

    def on_worker_start(self, hook: H) -> H:
        """A decorator: call the function when a worker starts, before its first job. Child processes of `executor="process"` call it, too.

        `hook`: a function without parameters; a `def` is called on a thread, an `async def` on the event loop of the handlers.
        Hooks are called in the order of their declaration. If a hook raises, the worker does not start, and `run()` raises HookError.

        Raises TaskError if `hook` has parameters or is not a function.
        """
        self.start_hooks += (_checked_hook(hook, "on_worker_start"),)
        return hook

    def on_worker_stop(self, hook: H) -> H:
        """A decorator: call the function when a worker stops, after its handlers have ended and the values of the scope "worker" are closed.

        Hooks are called in reverse order. An exception of a hook is logged. Hooks are not called if the process is killed, or if
        a start hook has failed. `hook`: as for `on_worker_start`.
        """
        self.stop_hooks += (_checked_hook(hook, "on_worker_stop"),)
        return hook

    @contextmanager
    def override(self, provider: Callable[..., Any], by: Callable[..., Any], /) -> Generator[None]:
        """Replace `provider` by the provider `by` in this block, for the handlers of these tasks. For tests.

        The override affects only this process, and no value of the scope "worker" that a running worker has already made. Raises TaskError if
        `by` is not a function.
        """
        if not callable(by):
            raise TaskError(
                f"override() takes a provider, a function that returns the value, not {shown(by)}: lambda: fake"
            )
        before, self.overrides = self.overrides, {**self.overrides, provider: by}
        try:
            yield
        finally:
            self.overrides = before

    def include(self, other: Registry) -> None:
        """Add the tasks, schedules, limits of queues and hooks of another registry to this registry. The other settings stay with its tasks.

        Raises TaskError or OptionError if both registries use one name for different things.
        """
        for task in other:
            self.add(task)
        for name, declared in other._schedules.items():  # its own class
            if name in self._schedules:
                raise OptionError(f"two registries declare the schedule {name!r}: give one of them another name=")
            self._schedules[name] = declared
        for name, limits in other._queues.items():
            self.queue(name, limits=limits)
        self.start_hooks += other.start_hooks
        self.stop_hooks += other.stop_hooks

    def _is_reloaded(self, before: object, after: object) -> bool:
        """Whether a task replaced the other when its module was loaded again."""
        return (
            isinstance(before, Task)
            and isinstance(after, Task)
            and before is not after
            and self.get(before.name) is not before
            and origin_of(before.handler) == origin_of(after.handler)
        )

    def __iter__(self) -> Iterator[AnyTask]:
        """Each task once, in the order of declaration."""
        return iter([known for name, known in self._tasks.items() if name == known.name])


def _checked_hook(hook: H, what: str) -> H:
    try:
        inspect.signature(hook).bind()
    except TypeError:
        raise TaskError(f"{what} takes a function without parameters, not {shown(hook)}") from None
    if inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook):
        raise TaskError(f"{what}: {hook.__qualname__} is a generator: write on_worker_start and on_worker_stop")
    return hook


def _without_secrets(*args: Any, **options: Any) -> Schedule:
    """A schedule that code declares. Raises OptionError for a secret argument, because each process would encrypt it differently, and so change the schedule."""
    made = Schedule(*args, **options)
    if hidden := [name for name, value in made.args.items() if is_marked(value, SECRET)]:
        raise OptionError(
            f"schedule {made.name!r}: {hidden[0]!r} is secret, and code cannot declare a schedule with it: read the secret in the handler, or make the "
            "schedule at run time, session.add(Schedule(...))"
        )
    return made


default_registry = Registry()
"""Where `@task` registers without a `registry`. Its `max_payload` is also the limit for jobs that are enqueued by name."""


class TaskName(Enqueueable):
    """A task known by name only, for producers that do not import the handlers.

    >>> TaskName("shop.send_receipt").options(queue="mail").call(order_id=7).args
    '{"order_id":7}'

    The queue is "default" unless the options name another, because the options of the handler's task are not known here.
    `version`: the version of the arguments that this producer sends, see `@task(version=...)`. Raises OptionError for an invalid version.
    """

    def __init__(self, name: str, *, version: int = 1) -> None:
        self.name = checked_name(name, "task name", OptionError)
        self._options = Options(extras=extras_of(version, OptionError))

    def call(self, /, *args: Any, **kwargs: Any) -> Call:
        """One job with these keyword arguments, which must be plain JSON. A worker checks them against the handler."""
        return self._make_call(self._encode(args, kwargs))

    def call_after(self, _count: int, /, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """The call for a job whose first parameters are results of other jobs, as by `Task.call_after`."""
        return self._make_call(self._encode(args, dict(kwargs)))

    def plain_call(self, /, *args: Any, **kwargs: Any) -> Call:
        """The same, past all middleware: what a schedule keeps."""
        return self._make_call(self._encode(args, kwargs), plain=True)

    def _encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if args:
            raise PayloadError(f"task {self.name!r}: by name, a task takes keyword arguments only")
        return encode_plain(kwargs, what=f"task {self.name!r}", limit=default_registry.max_payload)

    def __repr__(self) -> str:
        return f"TaskName({self.name!r})"

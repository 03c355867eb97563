"""In a child: the application, as its worker has it. Tasks are found by the place where their handlers are declared."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NoReturn, cast

from ...errors import SessionUnavailable, TaskError
from ...models import JobMixin, schema_of
from ...sql.store import Store, store_of
from ...tasks.middleware import are_added
from ...tasks.registry import Registry, default_registry
from ...tasks.tasks import AnyTask, Task
from ...util.urls import database_url
from ..connections.engines import Engines
from ..running.reopening import Sessions
from .messages import place_of_task


class Maker(StrEnum):
    """What makes `ctx.session` in the worker, and whether a child can have the same."""

    NONE = "none"  # the worker's own engine
    REGISTRY = "registry"  # the sessionmaker of the registry, which a child imports, too
    OWN = "own"  # a sessionmaker that only the Worker was given


@dataclass(frozen=True, slots=True)
class ChildSetup:
    """What holds for all children of a worker. `url`: of the engine that the worker has made; None where it was given one."""

    url: str | None = field(repr=False)
    maker: Maker
    translate: tuple[tuple[str | None, str | None], ...]
    pooled: bool
    idle: float | None
    max_rescues: int
    log_jobs: bool
    job: tuple[str, str]
    """Module and name of the class of the jobs."""
    app: tuple[str, ...] = ()
    """What `--app` names: modules, and attributes of modules."""
    argv: tuple[str, ...] = ()
    main: tuple[str, str] | None = None
    """How to import the worker's script: "name" or "path", and that."""
    job_fields: bool = False
    """Whether lines of handlers carry the fields of their jobs: see `sa_jobqueue.tasks.middleware`."""
    levels: tuple[tuple[str, int], ...] = ()
    """The levels of the worker's loggers that have one; "" is the root."""
    tasks: tuple[tuple[str, ...], ...] = ()
    """The tasks that the child looks up at once, each as `place_of_task` says."""

    @staticmethod
    def job_class(job: type[JobMixin]) -> tuple[str, str]:
        """Where a child finds this class."""
        return job.__module__, job.__qualname__

    def now(self, tasks: Iterable[AnyTask] = ()) -> ChildSetup:
        """The setup of a child that is started now."""
        return replace(
            self,
            argv=tuple(sys.argv),
            main=None if self.app else main_module(sys.modules.get("__main__")),
            job_fields=are_added(),
            levels=tuple(_levels()),
            tasks=tuple(tuple(place_of_task(task)) for task in tasks),
        )


def main_module(main: Any) -> tuple[str, str] | None:
    """How to import the script that runs as `main`, by the rules of multiprocessing; None if it cannot be imported."""
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        return ("name", name)
    file = getattr(main, "__file__", None)
    return None if file is None else ("path", str(file))


def _levels() -> Iterable[tuple[str, int]]:
    yield "", logging.getLogger().getEffectiveLevel()
    for name, logger in list(logging.Logger.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and logger.level:
            yield name, logger.level


class Loaded:
    """The application: its tasks, and what makes their sessions. Making one imports it, and raises what that raises."""

    def __init__(self, setup: ChildSetup) -> None:
        self._setup = setup
        sys.argv[:] = setup.argv
        _import_main(setup.main)
        named = [_named(name) for name in setup.app]
        # A Worker of the application's has made its engines here, too. It is known by its sessions: this room is below it.
        self._of_worker = next(
            (made for one in named if isinstance(made := getattr(one, "sessions", None), Sessions)), None
        )
        registries = (one if isinstance(one, Registry) else getattr(one, "registry", None) for one in named)
        self._registries = [one for one in registries if isinstance(one, Registry)]
        self._sessions: dict[int, Sessions] = {}

    def task(self, name: str, module: str, qualname: str) -> AnyTask:
        """The task of this name, whose handler is declared there. Raises TaskError if it cannot be found."""
        home = sys.modules["__main__"] if module in {"__main__", "__mp_main__"} else importlib.import_module(module)
        found: Any = home
        for part in qualname.split("."):
            found = getattr(found, part, None)
        if isinstance(found, Task) and found.name == name:
            return found
        for registry in (*self._registries, *vars(home).values(), default_registry):
            if isinstance(registry, Registry) and (known := registry.get(name)) is not None:
                return known
        raise TaskError(
            f"the task {name!r} is not known there after importing {module!r}; declare its handler at the top of a module"
        )

    def sessions(self, task: AnyTask) -> Sessions:
        """What makes the session of this task's handler."""
        if self._of_worker is not None:
            return self._of_worker
        key = id(task.registry)
        if key not in self._sessions:
            self._sessions[key] = self._make_sessions(task)
        return self._sessions[key]

    def _make_sessions(self, task: AnyTask) -> Sessions:
        setup, maker = self._setup, None
        if setup.maker is Maker.REGISTRY:
            registries = (task.registry, *self._registries)
            maker = next((one.sessionmaker for one in registries if one.sessionmaker is not None), None)
        engine = None if setup.url is None else _engine(setup)
        if setup.maker is Maker.OWN or (engine is None and maker is None):
            maker = _refuse
        return Sessions(
            engine=engine,
            maker=maker,
            translate=dict(setup.translate),
            idle_timeout=setup.idle,
            store=_store(*setup.job),
        )


def _engine(setup: ChildSetup) -> Any:
    """An engine as the worker has made it, with one connection at most, because one job runs at a time."""
    assert setup.url is not None
    named = schema_of(_job_class(*setup.job))
    engines = Engines(
        database_url(setup.url),
        async_engine=None,
        listen=False,
        listen_url=None,
        schema=dict(setup.translate).get(named),
        named=named,
        slots=1,
        pooled=setup.pooled,
    )
    return engines.main


def _store(module: str, qualname: str) -> Store:
    return store_of(_job_class(module, qualname))


def _job_class(module: str, qualname: str) -> type[JobMixin]:
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return cast(type[JobMixin], found)


def _import_main(main: tuple[str, str] | None) -> None:
    """Import the script of the worker, as multiprocessing does: its name is not `__main__`, but `__mp_main__`."""
    if main is not None:
        from multiprocessing import spawn

        how, what = main
        spawn.prepare({f"init_main_from_{how}": what})


def _named(name: str) -> Any:
    """What `--app` names: a module; or an attribute of one, called where it is a function."""
    module_name, _, attribute = name.partition(":")
    module = importlib.import_module(module_name)
    if not attribute:
        return module
    found = getattr(module, attribute)
    return found() if inspect.isroutine(found) or isinstance(found, functools.partial) else found


def _refuse() -> NoReturn:
    raise SessionUnavailable(
        "ctx.session in a child process: the worker was given an Engine or a sessionmaker, which cannot be taken to another "
        "process; give it a URL, or set Registry(sessionmaker=...) in a module"
    )

"""Loads the application in a child, as in its worker. Tasks are found by the place where their handlers are declared."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NoReturn

from ...errors import SessionUnavailable, TaskError
from ...models import JobMixin, schema_of
from ...sql.store import store_of
from ...tasks.middleware import are_added
from ...tasks.registry import Registry, default_registry
from ...tasks.tasks import AnyTask, Task
from ...util.urls import database_url
from ..connections.engines import Engines
from ..connections.service import Connector
from ..running.life import Life
from ..running.reopening import Sessions
from ..running.steps import Checkpoints
from .messages import place_of_task


class Maker(StrEnum):
    """The origin of `ctx.session` in the worker, which decides whether a child can have it, too."""

    NONE = "none"  # the worker's own engine
    REGISTRY = "registry"  # the sessionmaker of the registry, which a child imports, too
    OWN = "own"  # a sessionmaker that only the Worker was given


@dataclass(frozen=True, slots=True)
class ChildSetup:
    """The setup of all children of a worker. `url`: of the engine that the worker has made; None where the application gave one."""

    url: str | None = field(repr=False)
    maker: Maker
    translate: tuple[tuple[str | None, str | None], ...]
    pooled: bool
    idle: float | None
    lease: float
    max_rescues: int
    log_jobs: bool
    job: tuple[str, str]
    """Module and name of the class of the jobs."""
    app: tuple[str, ...] = ()
    """The names given to `--app`: modules, and attributes of modules."""
    argv: tuple[str, ...] = ()
    main: tuple[str, str] | None = None
    """How to import the worker's script: "name" or "path", and its name or path."""
    job_fields: bool = False
    """Whether lines of handlers carry the fields of their jobs: see `sa_jobqueue.tasks.middleware`."""
    levels: tuple[tuple[str, int], ...] = ()
    """The levels of the worker's loggers that have a level; "" is the root."""
    tasks: tuple[tuple[str, ...], ...] = ()
    """The tasks that the child looks up at once, each as `place_of_task` returns it."""

    hooked: tuple[tuple[str, ...], ...] = ()
    """A task of each registry whose hooks the child calls."""

    @staticmethod
    def job_class(job: type[JobMixin]) -> tuple[str, str]:
        """Where a child finds this class."""
        return job.__module__, job.__qualname__

    def now(self, tasks: Iterable[AnyTask] = (), hooked: Iterable[AnyTask] = ()) -> ChildSetup:
        """The setup of a child that is started now. `hooked`: a task of each registry whose hooks the child calls."""
        return replace(
            self,
            argv=tuple(sys.argv),
            main=None if self.app else main_module(sys.modules.get("__main__")),
            job_fields=are_added(),
            levels=tuple(_levels()),
            tasks=tuple(tuple(place_of_task(task)) for task in tasks),
            hooked=tuple(tuple(place_of_task(task)) for task in hooked),
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
    """The application: its tasks and their sessions. The constructor imports it, and raises what the import raises."""

    def __init__(self, setup: ChildSetup) -> None:
        self._setup = setup
        sys.argv[:] = setup.argv
        if setup.main is not None:
            # Import the script of the worker, as multiprocessing does: its name is not `__main__`, but `__mp_main__`.
            from multiprocessing import spawn

            how, what = setup.main
            spawn.prepare({f"init_main_from_{how}": what})
        named = [_named(name) for name in setup.app]
        # An application's Worker has made its engines here, too. It is recognized by its sessions, because this room is below it.
        sessions = (getattr(found, "sessions", None) for found in named)
        self._of_worker = next((made for made in sessions if isinstance(made, Sessions)), None)
        registries = (found if isinstance(found, Registry) else getattr(found, "registry", None) for found in named)
        self._registries = [registry for registry in registries if isinstance(registry, Registry)]
        self._sessions: dict[int, Sessions] = {}
        homes = [self.task(*place).registry for place in setup.hooked]
        self.life = Life(
            [hook for home in homes for hook in home.start_hooks], [hook for home in homes for hook in home.stop_hooks]
        )

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
        """Makes the session of this task's handler."""
        if self._of_worker is not None:
            self._of_worker = self._equipped(self._of_worker)
            return self._of_worker
        key = id(task.registry)
        if key not in self._sessions:
            self._sessions[key] = self._make_sessions(task)
        return self._sessions[key]

    def _make_sessions(self, task: AnyTask) -> Sessions:
        setup, maker = self._setup, None
        if setup.maker is Maker.REGISTRY:
            makers = (registry.sessionmaker for registry in (task.registry, *self._registries))
            maker = next((made for made in makers if made is not None), None)
        job: Any = importlib.import_module(setup.job[0])
        for part in setup.job[1].split("."):
            job = getattr(job, part)
        translate, named, engine = dict(setup.translate), schema_of(job), None
        if (
            setup.url is not None
        ):  # as the worker has made it, with one connection at most, because one job runs at a time
            engine = Engines(
                database_url(setup.url), schema=translate.get(named), named=named, slots=1, pooled=setup.pooled,
                async_engine=None, listen=False, listen_url=None,
            ).main  # fmt: skip
        if setup.maker is Maker.OWN or (engine is None and maker is None):
            maker = _refuse
        made = Sessions(engine=engine, maker=maker, translate=translate, idle_timeout=setup.idle, store=store_of(job))
        return self._equipped(made)

    def _equipped(self, sessions: Sessions) -> Sessions:
        """These sessions, with injected values, and with connections for the steps of their handlers if they have an engine."""
        setup, checkpoints = self._setup, sessions.checkpoints
        if sessions.life is self.life:
            return sessions
        if sessions.engine is not None:
            connector = Connector(sessions.engine, setup.lease, setup.pooled, sessions.translate, sessions.store)
            checkpoints = Checkpoints(connector)
        return replace(sessions, checkpoints=checkpoints, life=self.life)


def _named(name: str) -> Any:
    """The object that `--app` names: a module; or an attribute of a module, called where it is a function."""
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

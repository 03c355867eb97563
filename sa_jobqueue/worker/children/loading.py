"""In a child: the application, as its worker has it. Tasks are found by the place where their handlers are declared."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from typing import Any, NoReturn, cast

from ...errors import SessionUnavailable, TaskError
from ...models import JobMixin, schema_of
from ...store import Store, store_of
from ...tasks import AnyTask, Registry, Task, default_registry
from ...urls import database_url
from ..connections.engines import Engines
from ..running.sessions import Sessions
from .setup import ChildSetup, Maker

__all__ = ["Loaded"]


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

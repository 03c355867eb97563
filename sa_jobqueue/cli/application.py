"""The application that `--app` names: its tasks, and its Worker if it makes one."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError, OptionError, TaskError
from ..models import Job, JobMixin, is_own, schema_of
from ..tasks.registry import Registry, default_registry
from ..util.log import enable_loggers, place_of
from ..util.schema import SCHEMA
from ..worker import Worker
from .config import Config, working_folder


@dataclass(frozen=True, slots=True)
class Application:
    """The application that `--app` names: its tasks, and its Worker if it makes one."""

    registry: Registry
    worker: Worker | None = None


def load_registry(config: Config) -> Registry:
    """Import the modules that `--app` names, and return the tasks that they declare. Raises ConfigurationError."""
    return load_app(config).registry


def own_jobs(config: Config, registry: Registry) -> tuple[Config, type[JobMixin]]:
    """The settings and the class of the tasks' jobs. The schema of an own job table replaces the default schema."""
    schema = schema_of(registry.job)
    if not is_own(registry.job) or config.schema not in (SCHEMA, schema):
        return config, Job
    return replace(config, schema=schema), registry.job


def load_app(config: Config) -> Application:
    """Import the modules that `--app` names, and return their tasks and their Worker. Raises ConfigurationError."""
    folder = str(working_folder())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    named = [_named(name) for name in config.app]
    enable_loggers()
    registries = list({id(found): found for found in named if isinstance(found, Registry)}.values())
    match [found for found in named if isinstance(found, Worker)]:
        case []:
            return Application(_merged(registries))
        case [worker]:
            if any(registry not in (worker.registry, default_registry) for registry in registries):
                raise ConfigurationError(
                    "--app names a Worker and a Registry that is not the Worker's: Worker(registry=...)"
                )
            return Application(worker.registry, worker)
        case _:
            raise ConfigurationError("--app names several Workers; a process has one")


def _merged(registries: Sequence[Registry]) -> Registry:
    """All of them as one registry. A task reads `archive`, `callbacks` and `secrets` in its own registry."""
    if len(registries) <= 1:
        return next(iter(registries), default_registry)
    merged = Registry(
        max_payload=max(registry.max_payload for registry in registries),
        sessionmaker=_only("sessionmaker", registries),
        async_sessionmaker=_only("async_sessionmaker", registries),
        job=_only("job", registries),
    )
    for registry in registries:
        try:
            merged.include(registry)
        except (OptionError, TaskError) as error:
            raise ConfigurationError(f"--app names registries that do not go together: {error}") from error
    return merged


def check_tasks(config: Config, registry: Registry) -> None:
    """Raise ConfigurationError if there is no task: a worker could only put each job back."""
    if next(iter(registry), None) is not None:
        return
    named = ", ".join(config.app)
    others = [
        f"{name}:{attribute}"
        for name in config.app
        if name in sys.modules
        for attribute, value in vars(sys.modules[name]).items()
        if isinstance(value, Registry) and next(iter(value), None) is not None
    ]
    if others:
        raise ConfigurationError(
            f"--app {named}: no task is declared there in the default registry; name yours, --app {','.join(others)}"
        )
    problem = f"--app {named}: no task is declared there;" if named else "there are no tasks to run:"
    raise ConfigurationError(f"{problem} name the module that declares them, as in --app shop.tasks")


def _only(name: str, registries: Iterable[Registry]) -> Any:
    """The value of an attribute that several registries share, or None."""
    found = {id(value): value for registry in registries if (value := getattr(registry, name)) is not None}
    if len(found) > 1:
        raise ConfigurationError(f"--app names registries that differ in their {name}; a worker has one")
    return next(iter(found.values()), None)


def _named(name: str) -> Registry | Worker:
    module_name, _, attribute = name.partition(":")
    module = _import(module_name)
    if not attribute:
        return default_registry
    found: Any = getattr(module, attribute, None)
    if inspect.isroutine(found) or isinstance(found, functools.partial):
        try:
            found = found()
        except Exception as error:  # whatever the user's function does
            place = place_of(error, package=name.partition(".")[0].partition(":")[0], anywhere=True)
            raise ConfigurationError(
                f"--app {name}: calling it failed: {type(error).__name__}: {error} ({place}; --debug shows the traceback)"
            ) from error
    if not isinstance(found, (Registry, Worker)):
        if not hasattr(module, attribute):
            raise ConfigurationError(f"--app {name}: the module {module_name!r} has no name {attribute!r}")
        raise ConfigurationError(
            f"--app {name}: {attribute!r} in {module_name!r} is of type {type(found).__name__}, "
            "not a Registry, a Worker, or a function that makes a Worker"
        )
    return found


def _import(name: str) -> Any:
    if name.endswith(".py") and not name.startswith("."):
        module = name.removesuffix(".py").replace("/", ".")
        raise ConfigurationError(
            f"--app {name}: expected a module, not its file: --app {module}, or for a Worker or Registry in it "
            f"--app {module}:worker"
        )
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError(f"--app {name}: not the name of a module; expected dots, as in shop.tasks")
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # whatever the user's module does
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise ConfigurationError(
                f"--app {name}: there is no module {error.name!r} (looked in {Path.cwd()} and on Python's path)"
            ) from error
        reason, place = str(error), place_of(error, package=name.partition(".")[0], anywhere=True)
        if isinstance(error, SyntaxError) and error.filename is not None:
            reason, place = error.msg, f"{error.filename}, line {error.lineno}"
        raise ConfigurationError(
            f"--app {name}: importing it failed: {type(error).__name__}: {reason} ({place}; --debug shows the traceback)"
        ) from error

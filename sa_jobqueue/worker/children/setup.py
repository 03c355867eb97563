"""What a child needs to know of its worker before it can run the first job, as values that JSON has."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from ...job_fields import are_added
from ...models import JobMixin
from ...tasks import AnyTask
from .messages import place_of_task

__all__ = ["ChildSetup", "Maker", "main_module"]


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
    """Whether lines of handlers carry the fields of their jobs: see `sa_jobqueue.job_fields`."""
    levels: tuple[tuple[str, int], ...] = ()
    """The levels of the worker's loggers that have one; "" is the root."""
    tasks: tuple[tuple[str, ...], ...] = ()
    """The tasks that the child looks up at once, each as `place_of_task` says."""

    @staticmethod
    def job_class(job: type[JobMixin]) -> tuple[str, str]:
        """Where a child finds this class."""
        return job.__module__, job.__qualname__

    def now(self, tasks: Iterable[AnyTask] = ()) -> dict[str, Any]:
        """The message for a child that is started now."""
        filled = replace(
            self,
            argv=tuple(sys.argv),
            main=None if self.app else main_module(sys.modules.get("__main__")),
            job_fields=are_added(),
            levels=tuple(_levels()),
            tasks=tuple(tuple(place_of_task(task)) for task in tasks),
        )
        return asdict(filled)

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> ChildSetup:
        """The setup of such a message."""
        values: dict[str, Any] = dict(said)
        values["maker"] = Maker(values["maker"])
        return cls(**values)


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

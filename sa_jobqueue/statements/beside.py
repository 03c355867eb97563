"""What lets a builder that is given `job=` alone find the tables beside those jobs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from ..models import Base, Job, in_schema, schema_of

__all__ = ["with_companions"]

P = ParamSpec("P")
R = TypeVar("R")


def with_companions(build: Callable[P, R]) -> Callable[P, R]:
    """Let the companions that a call does not give be those of the schema of its `job`."""
    defaults = {name: one.default for name, one in inspect.signature(build).parameters.items()}
    beside: dict[str, type[Base]] = {
        name: model
        for name, model in defaults.items()
        if isinstance(model, type) and issubclass(model, Base) and model is not Job
    }

    @wraps(build)
    def built(*args: P.args, **kwargs: P.kwargs) -> R:
        job: Any = kwargs.get("job", Job)
        if job is not Job:
            schema = schema_of(job)
            for name, model in beside.items():
                kwargs.setdefault(name, in_schema(model, schema))
        return build(*args, **kwargs)

    return built

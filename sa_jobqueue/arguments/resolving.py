"""Resolve the annotations of handlers and of providers."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ..errors import TaskError
from .batches import AsyncBatchContext, BatchContext
from .context import AsyncJobContext, JobContext


def signature(handler: Callable[..., Any]) -> inspect.Signature:
    """The handler's signature, with its annotations left unresolved."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(handler, annotation_format=Format.FORWARDREF)
    return inspect.signature(handler)


def return_hint(handler: Callable[..., Any], what: str) -> Any:
    """The resolved return annotation; `Any` without an annotation. Raises TaskError if the annotation cannot be resolved."""
    annotation = signature(handler).return_annotation
    if annotation is inspect.Signature.empty:
        return Any
    try:
        return resolved(handler, "return", annotation)
    except Exception as error:
        raise TaskError(
            f"{what}: its return annotation, {annotation!r}, cannot be resolved ({type(error).__name__}: {error}): its "
            "results (record=True) are checked against it, so import it at the top of the handler's module, outside "
            "`if TYPE_CHECKING:`"
        ) from error


def resolved(handler: Callable[..., Any], name: str, annotation: Any) -> Any:
    """The annotation of the parameter `name`, or of the result."""
    known = getattr(inspect.unwrap(handler), "__globals__", {})
    # The contexts are known even if the module imports them for the type checker only.
    contexts = (JobContext, AsyncJobContext, BatchContext, AsyncBatchContext)
    spare = {context.__name__: context for context in contexts} | {"sa_jobqueue": sys.modules["sa_jobqueue"]}
    holder: Any = SimpleNamespace(__annotations__={name: annotation})
    return typing.get_type_hints(holder, spare, known, include_extras=True)[name]


def hints_of(handler: Callable[..., Any], parameters: list[inspect.Parameter], what: str) -> dict[str, Any]:
    """The parameters' annotations, resolved without the return type."""
    hints: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.annotation is inspect.Parameter.empty:
            continue
        try:
            hints[parameter.name] = resolved(handler, parameter.name, parameter.annotation)
        except Exception as error:
            raise TaskError(
                f"{what}: the annotation of {parameter.name!r}, {parameter.annotation!r}, cannot be resolved "
                f"({type(error).__name__}: {error}): a worker needs it, so import it at the top of the module, "
                "outside `if TYPE_CHECKING:`"
            ) from error
    return hints

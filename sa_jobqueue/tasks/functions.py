"""The Python function behind a handler: its name for the row, and where it is declared."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, TypeAlias, cast

__all__ = ["are_twins", "default_name", "function_of", "line_of", "origin_of", "place_of"]

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


def are_twins(one: Handler, other: Handler) -> bool:
    """Whether both are closures of one `def`, from a factory or a loop. After a reload they are not: it compiles the `def` again."""
    return one is not other and function_of(one).__code__ is function_of(other).__code__


def place_of(handler: Handler) -> str:
    """Name, file and line, for a message."""
    file, name = origin_of(handler)
    return f"{name} ({file}:{line_of(handler)})"

"""Helpers that know nothing of jobs; here, public names of a package that are imported with their first use (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__getattr__` and `__dir__` for the package `package`.

    Args:
        package: Its `__name__`.
        modules: For each module below it the public names that come from there, with spaces between them. A module that is itself
            public has its own name there.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}
    namespace = vars(sys.modules[package])

    def get(name: str) -> Any:
        if (module := module_of.get(name)) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = import_module(f".{module}", package)
        namespace[name] = value = found if name == module else getattr(found, name)
        return value

    return get, lambda: sorted({*namespace, *module_of})

"""Statements are compiled once in the tests' process: once for each engine took half of what a worker in a test costs.

share_compiled()        # for all engines that are made from now on
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Dialect, Engine
from sqlalchemy.orm import Mapper
from sqlalchemy.util import LRUCache

OWN = {"_psycopg_adapters_map", "_type_memos", "dbapi", "dispatch", "identifier_preparer", "loaded_dbapi"}
OWN |= {"type_compiler", "type_compiler_instance"}
"""What each dialect makes for itself, out of its class and its settings."""

first: dict[Any, Dialect] = {}
"""The first dialect of each class with each settings."""
stands_for: WeakKeyDictionary[Dialect, Dialect] = WeakKeyDictionary()
"""The first dialect that is as this one."""


class SharedCache(LRUCache[Any, Any]):
    """As SQLAlchemy's own, but equal dialects share what is compiled."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(shared(key), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(shared(key), value)


def shared(key: Any) -> Any:
    dialect, *rest, translated, many = key
    if translated:  # the statement remembers which schemas were, which the key does not tell
        return key
    if (like := stands_for.get(dialect)) is None:
        settings = frozenset((name, repr(value)) for name, value in vars(dialect).items() if name not in OWN)
        like = stands_for[dialect] = first.setdefault((type(dialect), settings), dialect)
    return (like, *rest, many)


def share_compiled() -> None:
    """Let all engines and mappers have one cache."""
    cache = SharedCache(1_000)
    Engine._compiled_cache = property(lambda _: cache, lambda _, own: None)  # type: ignore[assignment]
    Mapper._compiled_cache = cache  # type: ignore[assignment]

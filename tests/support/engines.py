"""Engines for tests, which share what SQLAlchemy has compiled for an earlier test on the same database.

An engine of its own would compile each statement again: that was two fifths of the processor time of `tests/statements`.
"""

from __future__ import annotations

from functools import lru_cache

from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tests.support import pooler


def new_engine(url: str) -> Engine:
    """Make an engine with a pool of its own, and with the dialect and the compiled statements of the first for `url`."""
    if _first(url).dialect._has_events:  # a test listens to it
        _first.cache_clear()
    return _like(_first(url))


def new_async_engine(url: str) -> AsyncEngine:
    """Make an async engine with a pool of its own, and the dialect and compiled statements of the first for `url`."""
    if _first_async(url).dialect._has_events:
        _first_async.cache_clear()
    return AsyncEngine(_like(_first_async(url)))


@lru_cache(maxsize=32)
def _first(url: str) -> Engine:
    return create_engine(url, **pooler.engine_options(url))


@lru_cache(maxsize=32)
def _first_async(url: str) -> Engine:
    return create_async_engine(url, **pooler.engine_options(url)).sync_engine


def _like(first: Engine) -> Engine:
    engine = Engine(first.pool.recreate(), first.dialect, first.url)
    engine._compiled_cache = first._compiled_cache
    return engine

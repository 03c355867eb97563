"""Engines for tests, which share the dialect of an earlier test on the same database: it need not ask the server again.

`tests.support.compiling` lets them, and the engines that the tested code makes, share what SQLAlchemy has compiled, too.
"""

from __future__ import annotations

from functools import lru_cache

from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tests.support import pooler


def new_engine(url: str) -> Engine:
    """Make an engine with a pool of its own, and with the dialect of the first for `url`."""
    if _first(url).dialect._has_events:  # a test listens to it
        _first.cache_clear()
    return _like(_first(url))


def new_async_engine(url: str) -> AsyncEngine:
    """Make an async engine with a pool of its own, and with the dialect of the first for `url`."""
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
    return Engine(first.pool.recreate(), first.dialect, first.url)

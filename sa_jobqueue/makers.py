"""What makes a session for each job: the application's `sessionmaker` and `async_sessionmaker`, checked before they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from .errors import ConfigurationError

__all__ = ["AsyncSessionMaker", "SessionMaker", "check_makers"]

SessionMaker: TypeAlias = Callable[[], Session]
"""A `sessionmaker`, for any class of sessions."""
AsyncSessionMaker: TypeAlias = Callable[[], AsyncSession]
"""An `async_sessionmaker`."""


def check_makers(*, sessionmaker: object = None, async_sessionmaker: object = None) -> None:
    """Raise ConfigurationError for a maker that does not make a session of its kind for each job. None: there is no maker."""
    _check("sessionmaker", sessionmaker, Session)
    _check("async_sessionmaker", async_sessionmaker, AsyncSession)


def _check(name: str, maker: Any, wanted: type[Any]) -> None:
    if maker is None:
        return
    if not callable(maker):
        raise ConfigurationError(f"{name} is what SQLAlchemy's {name}() returns, not {maker!r}")
    made = getattr(maker, "class_", wanted)
    if isinstance(made, type) and not issubclass(made, wanted):
        article = "an" if wanted is AsyncSession else "a"
        raise ConfigurationError(f"{name} makes {made.__name__} objects; {article} {wanted.__name__} is expected")
    if isinstance(maker, (scoped_session, async_scoped_session)):
        raise ConfigurationError(
            f"{name} makes a Session for each job; {maker!r} would give one to several: pass its session_factory"
        )
    if getattr(maker, "kw", {}).get("twophase"):
        raise ConfigurationError(f"{name} has twophase=True: a job and its writes are one transaction of one database")

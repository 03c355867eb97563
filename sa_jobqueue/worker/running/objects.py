"""Calling a handler whose arguments are mapped objects: they are loaded in its session first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from ...context import AsyncJobContext, JobContext
from ...objects import filled, load, references
from .run import Run

__all__ = ["call_async_with_objects", "call_with_objects"]


def call_with_objects(
    run: Run, open_session: Callable[[], Session], handler: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Call a `def` handler with the objects. `open_session`: for a handler without a context."""
    run.undecoded = True
    if wanted := list(references((args, kwargs))):
        load(_session(args, open_session), wanted)
        args, kwargs = filled(args), filled(kwargs)
    run.undecoded = False
    return handler(*args, **kwargs)


async def call_async_with_objects(
    run: Run, open_session: Callable[[], AsyncSession], handler: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """The same of an `async def` handler."""
    run.undecoded = True
    if wanted := list(references((args, kwargs))):
        await _session(args, open_session).run_sync(load, wanted)
        args, kwargs = filled(args), filled(kwargs)
    run.undecoded = False
    return await handler(*args, **kwargs)


def _session(args: tuple[Any, ...], open_session: Callable[[], Any]) -> Any:
    """That of the handler's context, if it takes one."""
    context = args[0] if args and isinstance(args[0], (JobContext, AsyncJobContext)) else None
    return open_session() if context is None else context.session

"""The metrics of the database as a small web application, to be mounted in the application's own.

app.mount("/metrics", metrics_app(engine))  # FastAPI, Starlette

app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/metrics": metrics_wsgi_app(engine)})  # Flask
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import sqlalchemy as sa
from prometheus_client import make_asgi_app, make_wsgi_app

from .database import QueueCollector
from .endpoint import registry_of

__all__ = ["metrics_app", "metrics_wsgi_app"]

_ASGI = Callable[[Any, Any, Any], Awaitable[None]]


def metrics_app(engine: sa.Engine, *, schema: str | None = None, findings: bool = True) -> _ASGI:
    """An ASGI application that answers every path with the metrics of `engine`'s database. It looks at it on a thread.

    `schema`, `findings`: as in `QueueCollector`, whose errors it raises.
    """
    collector = QueueCollector(engine, schema=schema, findings=findings)
    answer: Any = make_asgi_app(registry_of(collector))

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await asyncio.to_thread(collector.refresh)  # then the answer finds what is kept
            await answer(scope, receive, send)

    return application


def metrics_wsgi_app(engine: sa.Engine, *, schema: str | None = None, findings: bool = True) -> Any:
    """The same as a WSGI application."""
    return make_wsgi_app(registry_of(QueueCollector(engine, schema=schema, findings=findings)))

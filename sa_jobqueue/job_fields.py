"""The job's fields on each log line that its handler writes, by whatever logger.

`sa-jobqueue work --log-format json` does this by itself. A worker inside of your own program asks for it:

>>> import logging
>>> handler = logging.StreamHandler()
>>> add_job_fields(handler)

Records that pass `handler` have the attributes job_id, task, queue and attempt then, if they were logged while a handler ran.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from .middleware import Attempt, Middleware, add_middleware, installed

__all__ = ["add_job_fields", "add_source", "are_added", "remove_source"]

Source = Callable[[], Mapping[str, Any]]

_fields: ContextVar[Mapping[str, Any] | None] = ContextVar("sa_jobqueue_job_fields", default=None)
#: What else lines of handlers carry. Any thread reads it.
_sources: list[Source] = []


def add_job_fields(handler: logging.Handler) -> None:
    """Give the records that pass `handler` the fields of the job in whose handler they are logged: job_id, task, queue, attempt; with
    OpenTelemetry, trace_id and span_id, too. A field that a record has already stays.

    It installs a middleware. Threads that a handler starts do not know the job, but those of `asyncio.to_thread` do.
    """
    add_middleware(_middleware)
    handler.addFilter(_filter)  # once, however often it is added


def are_added() -> bool:
    """Whether lines carry them in this process."""
    return _middleware in installed.all


def add_source(source: Source) -> None:
    """Let lines of handlers carry what `source()` returns just then, too."""
    if source not in _sources:
        _sources.append(source)


def remove_source(source: Source) -> None:
    """Let them carry it no longer; nothing if they do not."""
    with suppress(ValueError):
        _sources.remove(source)


class _JobFields(Middleware):
    @contextmanager
    def around(self, attempt: Attempt) -> Generator[None]:
        token = _fields.set(attempt.fields)
        try:
            yield
        finally:
            _fields.reset(token)


def _filter(record: logging.LogRecord) -> bool:
    fields = _fields.get()
    if fields is not None:
        _add(record, fields)
        for source in tuple(_sources):
            with suppress(Exception):  # a line without its trace is better than none
                _add(record, source())
    return True


def _add(record: logging.LogRecord, fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if not hasattr(record, name):
            setattr(record, name, value)


_middleware = _JobFields()

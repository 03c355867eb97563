"""The installed middleware around the one call of a handler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from ...errors import JobStopped, MiddlewareError
from ...middleware import Attempt, Middleware
from .attempt_end import AttemptEnd
from .run import Run

__all__ = ["surrounded"]

#: How the messages of `contextlib` begin for a generator that does not yield once.
_NOT_ONCE = "generator didn't "


def surrounded(run: Run, layers: Sequence[Middleware], handler: Callable[..., Any]) -> Callable[..., Any]:
    """`handler` with these around it. Raises JobStopped if the run was given up meanwhile: then nothing is entered."""
    run.attempt_end = end = AttemptEnd(run.job)
    if run.settled:  # looked at only now: a thread that gives it up later finds the callbacks
        raise JobStopped(f"job {run.job.id} was given up before its handler was called")
    attempt = Attempt(run.job, end.add)
    if not run.task.is_async:
        return lambda *args, **kwargs: _call(layers, attempt, handler, args, kwargs)
    return lambda *args, **kwargs: _await(layers, attempt, handler, args, kwargs)


def _call(
    layers: Sequence[Middleware],
    attempt: Attempt,
    handler: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    if not layers:
        return handler(*args, **kwargs)
    with _Layer(layers[0], attempt):
        return _call(layers[1:], attempt, handler, args, kwargs)
    return None  # it has suppressed the handler's exception


async def _await(
    layers: Sequence[Middleware],
    attempt: Attempt,
    handler: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    if not layers:
        return await handler(*args, **kwargs)
    with _Layer(layers[0], attempt):
        return await _await(layers[1:], attempt, handler, args, kwargs)
    return None


class _Layer:
    """One middleware's context manager. What it does wrong is said with its name."""

    __slots__ = ("_attempt", "_exit", "_middleware")

    def __init__(self, middleware: Middleware, attempt: Attempt) -> None:
        self._middleware, self._attempt = middleware, attempt
        self._exit: Callable[..., object]

    def __enter__(self) -> None:
        manager: Any = self._middleware.around(self._attempt)
        try:
            enter, self._exit = manager.__enter__, manager.__exit__
        except AttributeError:
            raise MiddlewareError(
                f"{type(self._middleware).__qualname__}.around() returned {manager!r}; it must return a context manager, with "
                "__enter__ and __exit__: is @contextmanager missing, or is it an async one?"
            ) from None
        try:
            enter()
        except RuntimeError as error:
            self._refuse(error)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            # What stops a handler is no Exception: kept back, it would make a job complete that was broken off.
            return bool(self._exit(kind, error, trace)) and isinstance(error, Exception)
        except RuntimeError as failure:
            if failure is not error:
                self._refuse(failure)
            raise

    def _refuse(self, error: RuntimeError) -> None:
        if str(error).startswith(_NOT_ONCE):
            raise MiddlewareError(
                f"{type(self._middleware).__qualname__}.around() must yield once, and end when an exception comes out of its "
                f"yield: {error}"
            ) from error

"""What type checkers make of middleware: read by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from typing import Any, assert_type

from sa_jobqueue import Attempt, Call, Middleware, add_middleware, remove_middleware


class AsGenerator(Middleware):
    def before_enqueue(self, call: Call) -> Call:
        return call.with_meta(tenant="acme")

    @contextmanager
    def around(self, attempt: Attempt) -> Generator[None]:
        assert_type(attempt.job_id, int)
        assert_type(attempt.task, str)
        assert_type(attempt.meta, Mapping[str, Any])
        assert_type(attempt.enqueued_at, datetime)
        assert_type(attempt.waited, float)
        attempt.at_end(self.note)
        yield

    def note(self, outcome: str, error: BaseException | None) -> None: ...


class AsManager(Middleware):
    def around(self, attempt: Attempt) -> AbstractContextManager[int]:
        return nullcontext(attempt.attempt)


class GivesNothing(Middleware):
    def around(self, attempt: Attempt) -> None: ...  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]


def lists_are_of_objects(attempt: Attempt) -> None:
    """Not of classes; and a callback takes both arguments."""
    add_middleware(AsGenerator())
    remove_middleware(AsManager())
    add_middleware(AsGenerator)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    attempt.at_end(lambda outcome: None)  # type: ignore[arg-type, misc]  # pyright: ignore[reportArgumentType]

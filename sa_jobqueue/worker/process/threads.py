"""The worker's own threads. None of them ends unnoticed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import ClassVar

__all__ = ["ServiceThread"]


class ServiceThread(threading.Thread):
    """Runs `work` until the worker ends. `Serving` looks at `has_ended` once a second."""

    inside: ClassVar[list[Callable[[], AbstractContextManager[object]]]] = []
    """In these each thread does all its work; tracing puts in what leaves it out. Changed before a worker starts."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        super().__init__(name=f"sa-jobqueue {name}", daemon=True)
        self._work = work
        self.error: BaseException | None = None
        """The error that ended it. Written by the thread, read after its end."""

    def run(self) -> None:
        try:
            with ExitStack() as stack:
                for one in self.inside:
                    stack.enter_context(one())
                self._work()
        except BaseException as error:  # SystemExit as well, which would end a thread silently
            self.error = error

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end; not at all if it could not be started."""
        if self.ident is not None:
            super().join(timeout)

    @property
    def has_ended(self) -> bool:
        """Whether it was started and has ended."""
        return self.ident is not None and not self.is_alive()

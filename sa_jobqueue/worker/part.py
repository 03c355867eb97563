"""The threads that a worker cannot do without: each goes on whatever happens, and none ends unnoticed."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["PartThread"]


class PartThread(threading.Thread):
    """Does `work`, to the end of the worker."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        super().__init__(name=f"sa-jobqueue {name}", daemon=True)
        self._work = work
        self.error: BaseException | None = None
        """What has ended it. Written by the thread, read after its end."""

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # SystemExit, too, which would end a thread without a word
            self.error = error

    @property
    def has_ended(self) -> bool:
        """Whether it was started, and does nothing more."""
        return self.ident is not None and not self.is_alive()

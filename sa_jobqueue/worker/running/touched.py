"""The workflows in which something has happened here: ends of their members that are committed, and not looked at yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from ...lifecycle import Change

__all__ = ["TouchedWorkflows"]


class TouchedWorkflows:
    """Any thread notes them. The claimer's thread takes them, and moves them on. `wake` wakes it."""

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self.wake = wake
        self.any = False
        """Whether a member of a workflow was claimed here. Set by the claimer's thread, read by any."""
        self._ids: deque[int] = deque()

    def __bool__(self) -> bool:
        return bool(self._ids)

    def note(self, changes: Iterable[Change]) -> None:
        """These changes are committed."""
        self.add([change.workflow for change in changes if change.workflow is not None])

    def add(self, ids: Iterable[int]) -> None:
        """Something has happened in these workflows."""
        if ids := list(ids):
            self._ids.extend(ids)
            self.wake()

    def take(self) -> set[int]:
        """All that were noted since the last time."""
        return {self._ids.popleft() for _ in range(len(self._ids))}

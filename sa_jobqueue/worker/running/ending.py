"""How a run has ended, as far as the database knows of it."""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeAlias

from ...lifecycle import Change

__all__ = ["LOST", "Lost", "RunEnding", "ToWrite", "Written"]


class Written:
    """The change is in the database: it was committed together with what the handler wrote."""

    __slots__ = ("change",)

    def __init__(self, change: Change) -> None:
        self.change = change


class ToWrite:
    """The change is for the writer."""

    # No named tuple: one is made for each job, and takes 0.08 µs longer (November 2026).
    __slots__ = ("change",)

    def __init__(self, change: Change) -> None:
        self.change = change


class Lost(Enum):
    """The claim is over: there is nothing to write, and what the handler wrote is not kept."""

    LOST = "lost"


LOST: Final = Lost.LOST

RunEnding: TypeAlias = Written | ToWrite | Lost

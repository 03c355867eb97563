"""A page: where it is, what it reads, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from .look import Look
from .query import Query

__all__ = ["Elsewhere", "Missing", "Page", "Read"]

#: Reads what the template shows, by name. Raises BadInput for a filter that cannot be read, Missing, and Elsewhere.
Read: TypeAlias = Callable[[Look], dict[str, Any]]


class Missing(Exception):
    """There is no such thing, or the viewer may not know that there is; as text it says what was looked for."""


class Elsewhere(Exception):
    """What was asked for is at another path, below the dashboard."""

    def __init__(self, path: str, query: Query | None = None) -> None:
        super().__init__(path)
        self.path, self.query = path, Query() if query is None else query


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the dashboard. Its template is `pages/NAME.html`, and the text of its link `nav.NAME`."""

    name: str
    path: str
    read: Read
    in_menu: bool = True
    adds_up: bool = False
    """Whether it shows sums over the jobs of all tenants, and so is not for a viewer who may see only some of them."""
    of_all_queues: bool = False
    """Whether it shows what concerns all queues, and so is not for a viewer who may see only some."""
    is_live: bool = True
    """Whether it refreshes itself."""

"""Whose limits or pause a form or an address means: a queue's, a task's, or those of one key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from ..limits import Owner
from ..statements.overview import list_workers
from ..statements.workers import serves
from .deeds import Done
from .look import Look
from .page import Missing
from .refusals import BadInput
from .strings import text

__all__ = ["PLACE", "Place", "done_to", "is_mine", "place_of", "shown_limits"]

#: The fields that say it.
PLACE = ("owner", "name", "key")


@dataclass(frozen=True, slots=True)
class Place:
    """A queue or a task, and perhaps one key of it."""

    owner: Owner
    name: str
    key: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        """As statements take it, beside the name."""
        return {"owner": self.owner, "key": self.key}

    @property
    def said(self) -> str:
        """As in "queue mail, key acme"."""
        return f"{self.owner} {self.name}" + (f", key {self.key}" if self.key else "")


def place_of(look: Look) -> Place:
    """The place that the viewer names, and may change. Raises BadInput, and Missing for one that belongs to others as well."""
    query = look.query
    owner: Any = query.one("owner", "queue")
    if owner not in get_args(Owner):
        raise BadInput("owner", owner, f"one of {', '.join(get_args(Owner))}")
    if not (name := query.one("name")):
        raise BadInput("name", "", f"the name of a {owner}")
    if not is_mine(look, owner, name):
        raise Missing(text("missing.place", owner=owner, name=name))
    return Place(owner, name, query.one("key") or None)


def done_to(look: Look, place: Place, count: int) -> Done:
    """The result of an action on a queue or a task. It warns if no live worker serves a queue of this name, which may be misspelt."""
    live = [worker.queues for worker in look.connection.execute(list_workers(job=look.job)) if not worker.stale]
    unserved = place.owner == "queue" and bool(live) and not any(serves(queues, place.name) for queues in live)
    return Done(count, of=place.said, apart={"unserved": count} if unserved else {})


def shown_limits(row: Mapping[str, Any]) -> str:
    """The values of a row that a form of limits shows, in one text: the form sends it back, and so says what it has shown."""
    names = ("running", "rate_count", "rate_seconds", "rate_burst", "weight")
    of_keys = tuple(f"key_{name}" for name in names[:-1])
    values = ((name, row.get(name)) for name in (*names, *of_keys))
    return ", ".join(
        f"{name}={value}" for name, value in values if value is not None and (name, value) != ("weight", 1)
    )


def is_mine(look: Look, owner: str, name: str) -> bool:
    """Whether the viewer sees all of its jobs. The jobs of a task may be in any queue."""
    if look.access.is_partial:
        return False
    return look.queues is None or (owner == "queue" and name in look.queues)

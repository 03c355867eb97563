"""What a queue in production needs, and which checks look at it. docs/howto/production-checklist.md explains each item."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .finding import Finding, Level, worst

__all__ = ["ITEMS", "Item", "State", "states_of"]

State: TypeAlias = Level | Literal["yours to decide"]


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to be sure of."""

    title: str
    checks: tuple[str, ...] = ()
    """Those that look at it; none: no command can know it."""


#: In the order of the page.
ITEMS: Sequence[Item] = (
    Item("A job is claimed, and owned, in one transaction", ("plans", "locks")),
    Item("Jobs are claimed in a predictable order", ("plans", "waiting")),
    Item("The claim reads an index of queued jobs alone", ("indexes", "plans", "bloat")),
    Item("Finished jobs are out of the claim's way", ("dead-rows", "vacuum")),
    Item("Every queue and every task has workers", ("workers", "queues", "tasks", "wake-ups", "limits")),
    Item("Failed attempts wait, and end", ("failures",)),
    Item("The lease and the timeouts fit the jobs", ("leases", "timeouts")),
    Item("Handlers may run twice"),
    Item("Errors can be found again"),
    Item("Work comes in bounded batches"),
    Item("Numbers are watched"),
    Item("Finished jobs are deleted in time", ("cleanup", "archive")),
    Item("The database has room for a queue", ("snapshot", "connections", "notify-queue", "frozen-age", "slots")),
    Item("You know when to take the queue elsewhere"),
)


def states_of(findings: Iterable[Finding]) -> list[tuple[Item, State, list[Finding]]]:
    """Each item with its state, and what was found about it that is not well.

    An item is as bad as the worst of its checks; one without checks, or whose checks were not made, is yours to decide.
    """
    by_name: Mapping[str, Finding] = {finding.name: finding for finding in findings}
    states: list[tuple[Item, State, list[Finding]]] = []
    for item in ITEMS:
        answers = [by_name[name] for name in item.checks if name in by_name]
        state: State = worst(one.level for one in answers) if answers else "yours to decide"
        states.append((item, state, [one for one in answers if one.level != "ok"]))
    return states

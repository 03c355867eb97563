"""A member of a workflow in words: its name, and which of its parents it needs. `node`: a row of `workflow_nodes`."""

from __future__ import annotations

from typing import Any

from ...models import GATE

__all__ = ["joins_of", "name_of"]

#: Parents that are named one by one; of more, the number is said.
_NAMED = 5
#: Of parents that did not complete: how the join is called by which the child runs all the same.
_JOINS = {"run": "settled", "skip": "those that complete"}


def name_of(task: str) -> str:
    """The name of its task, or "gate"."""
    return "gate" if task == GATE else task


def joins_of(node: Any) -> str:
    """As in "any of 3", "at least 2 of 3", "settled", or "settled: 11, 12" where that holds for some; empty: it needs all."""
    policies = dict(zip(node.parents or (), node.policies or (), strict=True))
    counted = sum(policy == "count" for policy in policies.values())
    said = []
    if counted:
        said.append(f"{'any' if node.needed == 1 else f'at least {node.needed}'} of {counted:,}")
    for policy, name in _JOINS.items():
        its = [parent for parent, other in policies.items() if other == policy]
        if its and len(its) == len(policies):
            said.append(name)
        elif its:
            said.append(f"{name}: {', '.join(map(str, its))}" if len(its) <= _NAMED else f"{name}: {len(its):,}")
    return "; ".join(said)

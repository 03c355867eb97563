"""Small workflows of the workload whose ends are known beforehand, whatever happens to workers.

plan, workflow = draw(random, "w7")    # members "w7/0", "w7/1", ...; what is called back "w7/success", "w7/failure", "w7/end"
session.add(workflow)
plan.ends["w7/1"]                      # "completed", "failed" or "cancelled"
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sa_jobqueue import Workflow
from sa_jobqueue.tasks.tasks import AnyTask
from sa_jobqueue.workflows import Node
from tests.faults import workload
from tests.faults.workflows import expected

__all__ = ["EVENTS", "Plan", "draw"]

EVENTS = ("success", "failure", "end")
"""Of what a workflow tells."""

#: Seconds that a member takes at most.
_LONGEST = workload.LONGEST / 4
_KINDS: Sequence[AnyTask] = (
    workload.plain,
    workload.plain_async,
    workload.write,
    workload.write_async,
    workload.write_late,
    workload.stumble,
    workload.snooze,
)


@dataclass(frozen=True)
class Plan:
    """What a workflow consists of, by the keys of its members."""

    key: str
    """Of the workflow: in its `meta`, as that of a job is."""
    jobs: Mapping[str, str]
    """The members: "ok", or "fail" if it always fails."""
    edges: Sequence[tuple[str, str, str]]
    """Child, parent, and what becomes of the child if the parent does not complete."""
    needed: Mapping[str, int]
    """How many of its parents of the policy "count" a member needs."""

    @cached_property
    def ends(self) -> Mapping[str, str]:
        """How each member must end."""
        return expected(self.jobs, self.edges, self.needed)

    @property
    def status(self) -> str:
        """How the workflow must end."""
        return next((end for end in ("failed", "cancelled") if end in self.ends.values()), "completed")

    @property
    def sizes(self) -> tuple[int, int, int]:
        """How many edges, joins and callbacks it has."""
        return len(self.edges), len(self.needed), len(EVENTS)

    def told(self, event: str) -> bool:
        """Whether this must happen to the workflow, and what was to be told of it is enqueued."""
        return event == "end" or self.status == {"success": "completed", "failure": "failed"}[event]

    def callback(self, event: str) -> str:
        """The key of the job that is enqueued when this happens."""
        return f"{self.key}/{event}"

    @property
    def keys(self) -> list[str]:
        """Of all jobs that there will be."""
        return [*self.jobs, *(self.callback(event) for event in EVENTS if self.told(event))]

    @cached_property
    def parents(self) -> Mapping[str, list[tuple[str, str]]]:
        """Of each member that waits: for whom, by which policy."""
        found: dict[str, list[tuple[str, str]]] = {}
        for child, parent, policy in self.edges:
            found.setdefault(child, []).append((parent, policy))
        return found


def draw(random: random.Random, key: str) -> tuple[Plan, Workflow]:
    """A workflow of 2 to 6 members with joins and policies of all kinds, and what to do with its ends."""
    flow = Workflow("audited", meta={"key": key})
    drawn = _Drawn(random, flow)
    for number in range(random.choice([2, 3, 4, 6])):
        drawn.add(f"{key}/{number}")
    plan = Plan(key, drawn.jobs, drawn.edges, drawn.needed)
    for event, on in zip(EVENTS, (flow.on_success, flow.on_failure, flow.on_end), strict=True):
        on(workload.write.options(meta={"key": plan.callback(event)}), 0.0)
    return plan, flow


class _Drawn:
    """A workflow and what is known of it, member by member."""

    def __init__(self, random: random.Random, flow: Workflow) -> None:
        self._random, self._flow = random, flow
        self.jobs: dict[str, str] = {}
        self.edges: list[tuple[str, str, str]] = []
        self.needed: dict[str, int] = {}
        self._nodes: dict[str, Node[Any]] = {}
        self._parts: set[str] = set()

    def add(self, key: str) -> None:
        """One more member, which waits for some of those before it."""
        random, flow = self._random, self._flow
        parents = random.sample(list(self._nodes), min(len(self._nodes), random.choice([0, 1, 1, 2, 3])))
        policy = random.choice(["cancel", "run", "skip", "count"])
        seconds = random.uniform(0.0, _LONGEST)
        fails = random.random() < 0.15
        task, args = random.choice(_KINDS) if not fails else workload.doomed, [seconds]
        if random.random() < 0.5:
            task, args = workload.part, [seconds, fails]
            self._parts.add(key)
        if not parents:
            self._nodes[key] = flow.add(_named(task, key, fails), *args)
        elif policy != "count" and self._parts.issuperset(parents):
            fails = False
            self._parts.discard(key)
            wanted = self._wanted(parents, policy)
            self._nodes[key] = flow.gather(
                self._join(key, parents, policy), _named(workload.take, key), wanted, seconds
            )
        else:
            self._nodes[key] = flow.after(self._join(key, parents, policy), _named(task, key, fails), *args)
        self.jobs[key] = "fail" if fails else "ok"
        self.edges += [(key, parent, policy) for parent in parents]
        others = self._nodes.keys() - {key, *parents}
        if parents and others and random.random() < 0.3:
            other = random.choice(sorted(others))
            flow.depend(self._nodes[key], self._nodes[other])
            self.edges.append((key, other, "cancel"))

    def _join(self, key: str, parents: Sequence[str], policy: str) -> Any:
        nodes, flow = [self._nodes[parent] for parent in parents], self._flow
        if policy == "count":
            self.needed[key] = self._random.randint(1, len(nodes))
            return flow.at_least(self.needed[key], nodes)
        return {"cancel": flow.all, "run": flow.settled, "skip": flow.completed}[policy](nodes)

    def _wanted(self, parents: Sequence[str], policy: str) -> list[str | None]:
        """What the parents will have returned; None: in place of a result."""
        ends = expected(self.jobs, self.edges, self.needed)
        found = [parent if ends[parent] == "completed" else None for parent in parents]
        return found if policy == "run" else [one for one in found if one is not None]


def _named(task: AnyTask, key: str, fails: bool = False) -> AnyTask:
    return task.options(meta={"key": key}, **({"max_attempts": workload.DOOMED_ATTEMPTS} if fails else {}))

"""What the auditor knows of workflows: each of the producer's is there as a whole or not at all, and goes as its plan says."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

from sa_jobqueue.rules.lifecycle import FINISHED, JobStatus
from tests.faults.evidence import Evidence, Step
from tests.faults.planned import EVENTS, Plan
from tests.faults.workload import Fate

__all__ = ["RULES"]


def members_end_as_planned(given: Evidence) -> Iterator[str]:
    """Each member of a workflow that is there ends as its own fate and the ends of its parents say."""
    for plan in given.plans:
        for key, end in plan.ends.items():
            row = given.members.get(key)
            if row is not None and row.status != end and given.fates.get(key) is not Fate.ROLLED_BACK:
                yield f"{row} should be {end}, by {plan}"


def workflows_are_there_as_a_whole(given: Evidence) -> Iterator[str]:
    """All of it, if its transaction committed, and nothing if that rolled back; one or the other, if that is not known."""
    for plan in given.plans:
        fate = given.fates.get(next(iter(plan.jobs)))
        flows = given.flows.get(plan.key, [])
        there = {
            "workflow": [1] * len(flows),
            "members": [key for key in plan.jobs if key in given.members],
            "callbacks": [event for event in EVENTS if given.by_key.get(plan.callback(event))],
        }
        nothing = not any(there.values())
        whole = len(flows) == 1 and len(there["members"]) == len(plan.jobs) and flows[0].sizes == plan.sizes
        if fate is Fate.COMMITTED and not whole:
            yield f"committed, and not whole: {there}, {flows}, of {plan}"
        elif fate is Fate.ROLLED_BACK and not nothing:
            yield f"rolled back, and yet: {there}, of {plan}"
        elif fate is Fate.UNKNOWN and not whole and not nothing:
            yield f"a part of a workflow: {there}, {flows}, of {plan}"


def members_wait_for_what_they_depend_on(given: Evidence) -> Iterator[str]:
    """A member is released when all that it waits for has ended as its policies allow, and cancelled only when that cannot come."""
    for plan in given.plans:
        for key in plan.jobs:
            steps = given.by_key.get(key, [])
            parents = plan.parents.get(key, [])
            if steps and steps[0].now != (JobStatus.BLOCKED if parents else JobStatus.QUEUED):
                yield f"it began as it may not: {steps[0]}"
            for step in steps:
                if step.was == JobStatus.BLOCKED:
                    yield from _misjudged(given, plan, key, step)


def _misjudged(given: Evidence, plan: Plan, key: str, step: Step) -> Iterator[str]:
    """Whether the step by which a member was released, or cancelled, came too early or for no reason."""
    parents = [(_state(given, parent, step.n), policy) for parent, policy in plan.parents.get(key, [])]
    broken = any(policy == "cancel" and state in _BROKEN for state, policy in parents)
    counted = [state for state, policy in parents if policy == "count"]
    completed, needed = counted.count(JobStatus.COMPLETED), plan.needed.get(key, 0)
    possible = completed + sum(state not in FINISHED for state in counted)
    if step.now == JobStatus.CANCELLED:
        if not broken and possible >= needed:
            yield f"cancelled for no reason, when its parents were {parents}: {step}"
    elif (
        broken
        or completed < needed
        or any(state not in FINISHED for state, policy in parents if policy != "count")
    ):  # fmt: skip
        yield f"released too early, when its parents were {parents}: {step}"


_BROKEN = FINISHED - {JobStatus.COMPLETED}


def _state(given: Evidence, key: str, n: int) -> str | None:
    """What a job was just before a step of another, which has seen all that was committed before it."""
    steps = given.by_key.get(key, [])
    place = bisect_left(steps, n, key=lambda step: step.n)
    return steps[place - 1].now if place else None


def callbacks_come_once(given: Evidence) -> Iterator[str]:
    """What a workflow calls back is enqueued once, when that has happened to it; and what does not happen is not told."""
    for plan in given.plans:
        if not given.flows.get(plan.key):
            continue
        for event in EVENTS:
            made = [step for step in given.by_key.get(plan.callback(event), []) if step.was is None]
            if len(made) != plan.told(event):
                yield f"{plan.callback(event)} was enqueued {len(made)} times: {plan}"
            for step in made[:1]:
                states = {key: _state(given, key, step.n) for key in plan.jobs}
                happened = {
                    "success": set(states.values()) == {JobStatus.COMPLETED},
                    "failure": JobStatus.FAILED in states.values(),
                    "end": FINISHED.issuperset(states.values()),
                }
                if not happened[event]:
                    yield f"{plan.callback(event)} was enqueued when its workflow was {states}: {step}"


def workflows_come_to_rest(given: Evidence) -> Iterator[str]:
    """In the end the workflow has ended as its members did, no event of it is unread, and none of its members is blocked."""
    for plan in given.plans:
        for flow in given.flows.get(plan.key, []):
            if not flow.finished or flow.status != plan.status:
                yield f"{flow} should be {plan.status}, by {plan}"
            if flow.events:
                yield f"{flow.events} events are unread: {flow}"
        for key in plan.jobs:
            row = given.members.get(key)
            if row is not None and row.status == JobStatus.BLOCKED:
                yield f"still blocked: {row}"


def no_end_is_told_late(given: Evidence) -> Iterator[str]:
    """Workers found no end of a member that had not been told: only plain SQL by hand makes such."""
    yield from given.mended


RULES: dict[str, Callable[[Evidence], Iterator[str]]] = {
    rule.__name__: rule
    for rule in (
        members_end_as_planned,
        workflows_are_there_as_a_whole,
        members_wait_for_what_they_depend_on,
        callbacks_come_once,
        workflows_come_to_rest,
        no_end_is_told_late,
    )
}

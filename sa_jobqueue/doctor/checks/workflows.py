"""Workflows whose jobs wait for each other, or for what will not come."""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

from ...statements.workflows.healing import blocked_edges, stray_members
from ...words import jobs_of
from ..examination import Examination
from ..finding import Finding, Level, found

__all__ = ["check_workflows"]

#: Edges that are looked at, and blocked jobs.
_SAMPLE = 10_000
#: Jobs of a cycle that are named.
_NAMED = 6


def check_workflows(examination: Examination) -> Finding:
    """The builder makes no cycle, and an end tells the workflow. By SQL of the user's own there may be both."""
    tables, connection = examination.store.tables, examination.connection
    edges = connection.execute(blocked_edges(limit=_SAMPLE, job=tables.job, dependency=tables.dependency)).all()
    cycle = _cycle((child, parent) for child, parent in edges)
    stray = connection.execute(stray_members(limit=_SAMPLE, job=tables.job, event=tables.event)).all()
    ill: list[tuple[Level, str, str]] = []
    if cycle:
        named = " → ".join(map(str, cycle[:_NAMED])) + (" → …" if len(cycle) > _NAMED else "")
        ill.append(
            (
                "problem",
                f"jobs wait for each other: {named}",
                "delete one of these rows of workflow_dependency, or cancel the workflow: `sa-jobqueue workflow cancel ID`",
            )
        )
    if stray:
        said = f"{jobs_of(len(stray))} waiting for others that have ended, as after an UPDATE by hand: {stray[0].id}"
        ill.append(("problem", said, "a worker releases or cancels them within a minute: start one, or see its log"))
    return found("workflows", "no job waits for what will not come", *ill, cycle=len(cycle), stray=len(stray))


def _cycle(edges: Iterable[tuple[int, int]]) -> list[int]:
    """The jobs of a cycle, each of which waits for the next; empty if there is none."""
    graph: TopologicalSorter[int] = TopologicalSorter()
    for child, parent in edges:
        graph.add(child, parent)
    try:
        graph.prepare()
    except CycleError as error:
        jobs: list[int] = error.args[1][:0:-1]  # it names the first again, at the end
        first = jobs.index(min(jobs))
        return [*jobs[first:], *jobs[:first], jobs[first]]
    return []

"""Workflows whose jobs wait for each other, or for what will not come; and workflows that no worker moves on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from ...health.work import BehindWorkflow, read_behind_workflows
from ...rules.words import age, jobs_of, listed
from ...sql.workflows.healing import blocked_edges, stray_members
from ...sql.workflows.readings import paused_workflows
from ..examination import Examination
from ..finding import Finding, Level, beyond, found

_Ill = tuple[Level, str, str]

#: Edges that are looked at, and blocked jobs.
_SAMPLE = 10_000
#: Jobs of a cycle, and workflows, that are named.
_NAMED = 6


def check_workflows(examination: Examination) -> Finding:
    """The builder makes no cycle, and an end tells the workflow. By SQL of the user's own there may be both. What is told, workers read."""
    connection = examination.connection
    edges = connection.execute(blocked_edges(limit=_SAMPLE, job=examination.store.job)).all()
    cycle = _cycle((child, parent) for child, parent in edges)
    stray = connection.execute(stray_members(limit=_SAMPLE, job=examination.store.job)).all()
    behind = read_behind_workflows(connection, examination.store)
    unread = [one for one in behind if _is_unread(examination, one)]
    day = examination.thresholds.paused[1]
    paused = connection.scalars(paused_workflows(seconds=day, job=examination.store.job)).all()
    ill: list[_Ill] = []
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
    ill += _unread(examination, unread)
    notes = [f"paused for more than {age(day)}: {_listed(paused)}"] if paused else []
    if ill:
        ill.extend(("ok", note, "") for note in notes)
    return found(
        "workflows",
        "; ".join(["no job waits for what will not come", *notes]),
        *ill,
        cycle=len(cycle),
        stray=len(stray),
        unread=len(unread),
        paused=len(paused),
    )


def _is_unread(examination: Examination, one: BehindWorkflow) -> bool:
    """Whether it is behind for longer than a worker needs; or without a time, and there is no worker."""
    if one.seconds is None:
        return not examination.live_workers
    return one.seconds >= examination.thresholds.unread[0]


def _unread(examination: Examination, unread: Sequence[BehindWorkflow]) -> Iterator[_Ill]:
    if not unread:
        return
    longest = sorted(unread, key=lambda one: -(one.seconds or 0.0))
    seconds = longest[0].seconds
    level = "notice" if seconds is None else beyond(seconds, examination.thresholds.unread)
    since = "" if seconds is None else f", the first for {age(seconds)}"
    advice = (
        "any worker moves them on within seconds: see the log of those that run, and `locks`"
        if examination.live_workers
        else "start a worker: any worker moves all workflows on"
    )
    yield level, f"no worker has read what happened in: {_listed([one.id for one in longest])}{since}", advice


def _listed(ids: Sequence[int]) -> str:
    """As in "workflow 7" or "workflows 7, 9"."""
    return f"workflow{'s' if len(ids) > 1 else ''} {listed([str(one) for one in ids], _NAMED)}"


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

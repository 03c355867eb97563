"""Jobs that wait for each other, for ended jobs or for an operator, and workflows that no worker advances."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from ...health.work import BehindWorkflow, read_behind_workflows
from ...rules.words import age, jobs_of, listed
from ...sql.steps import held_jobs
from ...sql.workflows.healing import blocked_edges, stray_members
from ...sql.workflows.readings import paused_workflows
from ...util.log import escaped
from ..examination import Examination
from ..finding import Fault, Finding, beyond, found

#: The most edges and blocked jobs that are read.
_SAMPLE = 10_000
#: The most jobs of a cycle, and workflows, that are listed.
_NAMED = 6


def check_workflows(examination: Examination) -> Finding:
    """Cycles and missed ends, which only SQL of the user's own can make; and workflows whose events no worker has read."""
    connection = examination.connection
    edges = connection.execute(blocked_edges(limit=_SAMPLE, job=examination.store.job)).all()
    cycle = _cycle((child, parent) for child, parent in edges)
    stray = connection.execute(stray_members(limit=_SAMPLE, job=examination.store.job)).all()
    behind = read_behind_workflows(connection, examination.store)
    unread = [workflow for workflow in behind if _is_unread(examination, workflow)]
    day = examination.thresholds.paused[1]
    paused = connection.scalars(paused_workflows(seconds=day, job=examination.store.job)).all()
    faults: list[Fault] = []
    if cycle:
        named = " → ".join(map(str, cycle[:_NAMED])) + (" → …" if len(cycle) > _NAMED else "")
        advice = (
            "delete one of these rows of workflow_dependency, or cancel the workflow: `sa-jobqueue workflow cancel ID`"
        )
        faults.append(("problem", f"jobs wait for each other: {named}", advice))
    if stray:
        detail = f"{jobs_of(len(stray))} waiting for others that have ended, as after an UPDATE by hand: {stray[0].id}"
        advice = "a worker releases or cancels them within a minute: start one, or see its log"
        faults.append(("problem", detail, advice))
    if held := connection.execute(held_jobs(limit=_SAMPLE, job=examination.store.job)).all():
        named = listed([f"job {row.job_id} at step {escaped(row.step)}" for row in held], _NAMED)
        detail = f"{jobs_of(len(held))} held, because the arguments of a step differ from its record: {named}"
        advice = "`sa-jobqueue retry ID` goes on with the record; to run the step again, first give it a higher `revision=` in the code"
        faults.append(("notice", detail, advice))
    faults += _unread(examination, unread)
    notes = [f"paused for more than {age(day)}: {_listed(paused)}"] if paused else []
    if faults:
        faults.extend(("ok", note, "") for note in notes)
    return found(
        "workflows",
        "; ".join(["no job waits for an ended job", *notes]),
        *faults,
        about=[("workflow", str(workflow.id)) for workflow in unread],
        cycle=len(cycle),
        stray=len(stray),
        held=len(held),
        unread=len(unread),
        paused=len(paused),
    )


def _is_unread(examination: Examination, workflow: BehindWorkflow) -> bool:
    """Whether a workflow is behind for longer than a worker needs, or there is no worker."""
    if workflow.seconds is None:
        return not examination.live_workers
    return workflow.seconds >= examination.thresholds.unread[0]


def _unread(examination: Examination, unread: Sequence[BehindWorkflow]) -> Iterator[Fault]:
    if not unread:
        return
    longest = sorted(unread, key=lambda workflow: -(workflow.seconds or 0.0))
    seconds = longest[0].seconds
    level = "notice" if seconds is None else beyond(seconds, examination.thresholds.unread)
    since = "" if seconds is None else f", the first for {age(seconds)}"
    advice = "start a worker: any worker advances all workflows"
    if examination.live_workers:
        advice = "any worker advances them within seconds: see the workers' log, and the check `locks`"
    yield level, f"no worker has read the events of: {_listed([workflow.id for workflow in longest])}{since}", advice


def _listed(ids: Sequence[int]) -> str:
    """Return a text like "workflow 7" or "workflows 7, 9"."""
    return f"workflow{'s' if len(ids) > 1 else ''} {listed(list(map(str, ids)), _NAMED)}"


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

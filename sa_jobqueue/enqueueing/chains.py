"""Jobs that wait for another job of their session, `enqueue(b.options(after=job))`: the flush writes both as members of a workflow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa

from ..arguments.subjects import Subject
from ..errors import OptionError
from ..models import JobMixin, companions_of
from ..rules.job_fields import JOB_FIELDS
from ..rules.lifecycle import JobStatus
from ..sql.parts import table_of
from ..sql.workflows.insert import BEGINS, MemberRows, add_members
from ..tasks.calls import Call

#: The job that each job waits for.
_parents: WeakKeyDictionary[JobMixin, JobMixin] = WeakKeyDictionary()
#: Seconds that the workflow is kept after its end; the default of `Workflow`.
_RETAIN = 7 * 86_400.0
#: What the INSERT of a job returns.
_MADE = ("id", "created_at", "claims", "attempt", "rescues", "duplicate_of")


def wait_for_job(job: JobMixin, parent: JobMixin) -> None:
    """Make `job` wait for `parent`: the flush that writes `job` writes both as a workflow."""
    _parents[job] = parent


def chains_of(instances: Iterable[object]) -> list[list[JobMixin]]:
    """The new jobs that wait for other jobs, together with those jobs: one list per workflow, each job after its parent.

    Raises OptionError if a job's parent is not new in this session.
    """
    if not _parents:
        return []
    new = [instance for instance in instances if isinstance(instance, JobMixin)]
    here, chains = set(map(id, new)), dict[int, list[JobMixin]]()
    depth: dict[int, int] = {}
    for job in new:
        first, steps = job, 0
        while (parent := _parents.get(first)) is not None and id(first) in here:
            if id(parent) not in here:
                raise _not_here(first, parent)
            first, steps = parent, steps + 1
        depth[id(job)] = steps
        chains.setdefault(id(first), []).append(job)
    return [sorted(chain, key=lambda job: depth[id(job)]) for chain in chains.values() if len(chain) > 1]


def _not_here(job: JobMixin, parent: JobMixin) -> OptionError:
    state = sa.inspect(parent)
    if state.persistent or state.detached or state.deleted:
        where = f"job {parent.id} of {parent.task!r}, which is in the database already"
    else:
        where = f"a job of {parent.task!r} that was not added to this session, or whose arguments are new objects"
    return OptionError(
        f"a job of {job.task!r} is to run after {where}: add both to one session before a flush; to a workflow that is there, "
        "Workflow.at(id) adds jobs"
    )


def insert_chain(connection: sa.Connection, jobs: Sequence[JobMixin], inserted: Callable[..., None]) -> None:
    """Insert these jobs as members of a new workflow. `inserted`: sets the attributes that the INSERT returns."""
    table = table_of(type(jobs[0]))
    flow = table_of(companions_of(type(jobs[0])).workflow)
    values = {"name": jobs[0].task[:200], "retain": _RETAIN}
    workflow = connection.scalar(sa.insert(flow).values(values).returning(flow.c.id)) or 0
    rows, number = MemberRows(), {id(job): place for place, job in enumerate(jobs, 1)}
    for job in jobs:
        parent = _parents.get(job)
        rows.calls.append(_call_of(job))
        rows.inputs.append(None)
        rows.waits.append(BEGINS if parent is None else number[id(parent)])
        if parent is not None:
            rows.children.append(number[id(job)])
            rows.parents.append(-number[id(parent)])
            rows.policies.append("cancel")
            rows.positions.append(None)
    ids = connection.scalar(add_members(workflow, rows, schema=table.schema)) or []
    made = {
        row.id: row
        for row in connection.execute(sa.select(*(table.c[name] for name in _MADE)).where(table.c.id.in_(ids)))
    }
    inserted(connection, jobs, _MADE, [made[job_id] for job_id in ids])
    for job in jobs:
        vars(job)["workflow_id"] = workflow
        if (parent := _parents.get(job)) is not None and vars(job)["status"] is JobStatus.QUEUED:
            vars(job).update(status=JobStatus.BLOCKED, blocked_by=parent.id)


def _call_of(job: JobMixin) -> Call:
    """The call from which `enqueue` made the job."""
    known: Mapping[str, Any] = vars(job)
    given: dict[str, Any] = {}
    for field in JOB_FIELDS:
        value = known.get(field.column)
        if field.part is None:
            given[field.attribute] = str.__str__(value) if field.kind == "json" and value is not None else value
    if (of := known.get("subject_type")) is not None:
        given["subject"] = Subject(of, known.get("subject_id") or "")
    return Call(**given)

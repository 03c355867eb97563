"""Changing what a job is to do, and running a copy of one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import sqlalchemy as sa

from ...errors import OptionError, PayloadError
from ...models import status_in
from ...rules.lifecycle import FINISHED, Event, JobStatus, sources
from ...sql.readings.depths import CAP
from ...statements import cancel_jobs, copy_jobs, discard_jobs, edit_jobs, prune_jobs, retry_jobs
from ...tasks.options import MAX_PRIORITY
from ..access import Action
from ..filters import FILTERS, chosen
from ..query import Query
from ..refusals import BadInput
from ..request import Missing, PageContext
from . import Done, PageAction
from .workflows import reopened

_ARGS = 'a JSON object, as in {"order_id": 7}'


def _edit(context: PageContext) -> Done:
    """Change one job; with `again`, run it again as it is then. All of it, or nothing."""
    job, query = context.job, context.query
    mine = [job.id == _id(query), *context.mine()]
    changes = _changes(context)
    again = query.one("again") == "yes"
    if again and not context.access.may("retry"):
        raise BadInput("again", "yes", "nothing: you may not run jobs again")
    if not changes and not again:
        raise BadInput("the form", "nothing new", "arguments, a queue, a priority or a time")
    done = Done(1)
    if again:
        seen = list(context.connection.scalars(sa.select(job.id).where(*mine)))
        if not reopened(context, seen):
            done = _changed(context, retry_jobs(*mine, locked="skip", job=job))
    if changes and done.count:
        try:
            statement = edit_jobs(*mine, **changes, locked="skip", job=job)
        except (PayloadError, OptionError) as error:
            raise BadInput("the form", ", ".join(changes), f"values that a job can have ({error})") from error
        done = _changed(context, statement)
        if done.count and context.connection.scalar(sa.select(job.id).where(*mine)) is None:
            raise BadInput("the form", ", ".join(changes), "values with which you may still see the job")
    return done


def _changed(context: PageContext, statement: Any) -> Done:
    rows = context.connection.execute(statement).all()
    changed = sum(row.changed for row in rows)
    return Done(changed, len(rows) - changed)


def _changes(context: PageContext) -> dict[str, Any]:
    """What is to become of the job. An empty field leaves what is there."""
    query = context.query
    found: dict[str, Any] = {}
    if given := query.one("args"):
        found["args"] = _object(given)
    if queue := query.one("queue"):
        if context.queues is not None and queue not in context.queues:
            raise BadInput("queue", queue, f"one of {', '.join(sorted(context.queues))}")
        found["queue"] = queue
    if query.one("priority"):
        found["priority"] = query.number("priority", 0, range(MAX_PRIORITY + 1))
    if (run_at := query.moment("run_at")) is not None:
        found["run_at"] = run_at
    return found


def _object(given: str) -> dict[str, Any]:
    try:
        found = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise BadInput("args", given, f"{_ARGS} ({error})") from error
    if not isinstance(found, dict):
        raise BadInput("args", given, _ARGS)
    return found


def _copy(context: PageContext) -> Done:
    """Enqueue a copy of one job, and go to it."""
    job = context.job
    rows = context.connection.execute(copy_jobs(job.id == _id(context.query), *context.mine(), job=job)).all()
    return Done(len(rows), to=f"/jobs/{rows[0].id}" if rows else None)


def _id(query: Query) -> int:
    named = query.id("id")
    if named is None:
        raise Missing("There is no job ? here, or it is none that you may see.")
    return named


#: By name. The arguments are not in the audit: who may read that need not be one who may see them.
CHANGE_ACTIONS = {
    action.name: action
    for action in (
        PageAction(
            "edit", "Edit", "Changed {n}.", "edit", _edit, target=("id", "queue", "priority", "run_at", "again")
        ),
        PageAction("copy", "Run a copy", "Enqueued a copy: this one.", "copy", _copy),
    )
}

# ---- What is done to jobs: those whose boxes are ticked, or all that match a filter, a page at a time.

#: Jobs that are changed in one transaction.
_PAGE = 1_000
#: What an action may make of a job instead of what its `done` says: the job's status then, and the text for the viewer.
Apart: TypeAlias = Mapping[str, tuple[JobStatus, str]]
_ASKED: Apart = MappingProxyType({"asked": (JobStatus.RUNNING, "Asked to stop, because they run: {n}.")})
WAITS: Apart = MappingProxyType(
    {"waits": (JobStatus.BLOCKED, "Back in their workflows, where they wait for the jobs before them: {n}.")}
)


def possible(context: PageContext, statuses: Sequence[JobStatus]) -> list[sa.ColumnElement[bool]]:
    """The criteria of the jobs to act on: those of the form, in a status that allows it. Raises BadInput where it names none."""
    if not any(context.query.one(name) for name in FILTERS) and context.query.one("all") != "yes":
        raise BadInput("the form", "no job", "at least one: tick some, or filter them")
    return [*chosen(context), status_in(context.job.status, statuses)]


def action_on_jobs(
    name: str,
    label: str,
    done: str,
    needs: Action,
    *,
    which: Callable[[PageContext], list[sa.ColumnElement[bool]]],
    build: Callable[..., Any],
    question: str,
    target: tuple[str, ...],
    careful: bool = False,
    asks: Callable[[PageContext], bool] | None = None,
    apart: Apart = MappingProxyType({}),
    **options: Any,
) -> PageAction:
    """An action that executes the statement `build(...)` for the jobs that `which` names, a page at a time."""

    def count(context: PageContext) -> int:
        some: sa.Select[Any] = (
            sa.select(sa.literal_column("1")).select_from(context.job).where(*which(context)).limit(CAP)
        )
        return context.connection.scalar(sa.select(sa.func.count()).select_from(some.subquery())) or 0

    def do(context: PageContext) -> Done:
        job = context.job
        after = context.query.number("after", 0, range(2**63))
        page = sa.select(job.id).where(*which(context), job.id > after).order_by(job.id).limit(_PAGE)
        ids = list(context.connection.scalars(page))
        if not ids:
            return Done(0)
        back = reopened(context, ids) if build is retry_jobs else []
        rows = context.connection.execute(build(job.id.in_(ids), *which(context), job=job, **options)).all()
        changed = [*back, *(row.id for row in rows if getattr(row, "changed", True))]
        became = {end: _number(context, changed, status) for end, (status, _) in apart.items()}
        return Done(
            len(changed), len(set(ids).difference(changed)), ids[-1] if len(ids) == _PAGE else None, apart=became
        )

    texts = {end: words for end, (_, words) in apart.items()}
    return PageAction(name, label, done, needs, do, count, question, careful, asks, target=target, apart=texts)


def _number(context: PageContext, ids: Sequence[int], status: JobStatus) -> int:
    """How many of these jobs have this status."""
    job = context.job
    statement = sa.select(sa.func.count()).where(job.id.in_(ids), status_in(job.status, (status,)))
    return context.connection.scalar(statement) or 0


def _has_completed(context: PageContext) -> bool:
    """Whether one of the jobs has completed: it does again what it has done."""
    some: sa.Select[Any] = (
        sa.select(sa.literal_column("1")).select_from(context.job).where(*possible(context, (JobStatus.COMPLETED,)))
    )
    return context.connection.scalar(some.limit(sa.literal_column("1"))) is not None


def _action(
    name: Action, done: str, statuses: Sequence[JobStatus], build: Callable[..., Any], question: str, **options: Any
) -> PageAction:
    return action_on_jobs(
        name, name.capitalize(), done, name, which=lambda context: possible(context, statuses), build=build, question=question,
        target=(*FILTERS, "all"), **options,
    )  # fmt: skip


#: By name. A row that another transaction has locked is left as it is, and said.
JOB_ACTIONS = {
    action.name: action
    for action in (
        _action(
            "retry", "Retried {n}.", sources(Event.REQUEUE), retry_jobs,
            "Run {n} {unit} again, now? What a completed job has done, it does once more.",
            asks=_has_completed, apart=WAITS, locked="skip",
        ),
        _action(
            "cancel", "Cancelled {n}.", sources(Event.CANCEL), cancel_jobs, "Cancel {n} {unit}? What runs is asked to stop.",
            apart=_ASKED, locked="skip",
        ),
        _action(
            "discard", "Discarded {n}.", sources(Event.DISCARD), discard_jobs,
            "Give up {n} waiting {unit}? What is given up ends as failed.", careful=True, locked="skip",
        ),
        _action(
            "delete", "Deleted {n}.", tuple(one for one in JobStatus if one in FINISHED), prune_jobs,
            "Delete {n} finished {unit}, permanently?", careful=True, limit=_PAGE,
        ),
    )
}  # fmt: skip

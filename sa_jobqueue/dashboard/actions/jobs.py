"""Actions on jobs: edit and copy a job; retry, cancel, discard and delete jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import sqlalchemy as sa

from ...errors import OptionError, PayloadError
from ...models import status_in, status_literal
from ...rules.lifecycle import FINISHED, Event, JobStatus, sources
from ...sql.readings.depths import CAP
from ...statements import cancel_jobs, copy_jobs, discard_jobs, edit_jobs, prune_jobs, retry_jobs
from ...tasks.options import MAX_PRIORITY
from ..access import Action
from ..filters import FILTERS, chosen
from ..query import Query
from ..refusals import BadInput
from ..request import ONE, Missing, PageContext
from . import Done, PageAction
from .workflows import reopened


def _edit(context: PageContext) -> Done:
    """Change a job; with `again`, also run it again. All of it, or nothing."""
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
    """The changes of the form. An empty field changes nothing."""
    query = context.query
    changes: dict[str, Any] = {}
    if (args := query.json_object("args", reason=True)) is not None:
        changes["args"] = args
    if queue := query.one("queue"):
        if context.queues is not None and queue not in context.queues:
            raise BadInput("queue", queue, f"one of {', '.join(sorted(context.queues))}")
        changes["queue"] = queue
    if query.one("priority"):
        changes["priority"] = query.number("priority", 0, range(MAX_PRIORITY + 1))
    if (run_at := query.moment("run_at")) is not None:
        changes["run_at"] = run_at
    return changes


def _copy(context: PageContext) -> Done:
    """Enqueue a copy of a job, and go to it."""
    job = context.job
    rows = context.connection.execute(copy_jobs(job.id == _id(context.query), *context.mine(), job=job)).all()
    return Done(len(rows), to=f"/jobs/{rows[0].id}" if rows else None)


def _id(query: Query) -> int:
    if (job_id := query.id("id")) is None:
        raise Missing("There is no job ? here, or you may not see it.")
    return job_id


#: By name. The arguments are not in the audit, because its readers may not be allowed to see them.
CHANGE_ACTIONS = {
    action.name: action
    for action in (
        PageAction(
            "edit", "Edit", "Changed {n}.", "edit", _edit, target=("id", "queue", "priority", "run_at", "again")
        ),
        PageAction("copy", "Run a copy", "Enqueued this copy.", "copy", _copy),
    )
}

# ---- Actions on ticked jobs, or on all jobs that match a filter, a page at a time.

#: Jobs that are changed in one transaction.
_PAGE = 1_000
#: Other results of an action on a job: the job's status then, and the text for the viewer.
Variants: TypeAlias = Mapping[str, tuple[JobStatus, str]]
_ASKED: Variants = MappingProxyType({"asked": (JobStatus.RUNNING, "Asked to stop, because they are running: {n}.")})
WAITS: Variants = MappingProxyType(
    {"waits": (JobStatus.BLOCKED, "Back in their workflows, where they wait for the jobs before them: {n}.")}
)


def possible(context: PageContext, statuses: Sequence[JobStatus]) -> list[sa.ColumnElement[bool]]:
    """The criteria of the form's jobs in a status that allows the action. Raises BadInput if the form chooses no jobs."""
    if not any(context.query.one(name) for name in FILTERS) and context.query.one("all") != "yes":
        raise BadInput("the form", "no job", "at least one job: tick some, or filter them")
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
    typed: str | None = None,
    variants: Variants = MappingProxyType({}),
    statuses: Sequence[JobStatus] = tuple(JobStatus),
    **options: Any,
) -> PageAction:
    """An action that executes the statement `build(...)` for the jobs that meet the criteria `which`, a page at a time."""

    def count(context: PageContext) -> int:
        return context.count(sa.select(ONE).select_from(context.job).where(*which(context)).limit(CAP))

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
        numbers = {
            name: context.count(sa.select(ONE).where(job.id.in_(changed), status_in(job.status, (status,))))
            for name, (status, _) in variants.items()
        }
        last = ids[-1] if len(ids) == _PAGE else None
        left = len(set(ids).difference(changed))
        return Done(len(changed), left, last, variants=numbers, ids=changed if build is retry_jobs else ())

    texts = {name: text for name, (_, text) in variants.items()}
    undo = "undo" if build is retry_jobs else ""
    return PageAction(
        name, label, done, needs, do, count, question, careful, asks, typed, target, texts, statuses=statuses, undo=undo
    )


def _has_completed(context: PageContext) -> bool:
    """Whether one of the jobs has completed, and would do its work again."""
    some: sa.Select[Any] = sa.select(ONE).select_from(context.job).where(*possible(context, (JobStatus.COMPLETED,)))
    return context.connection.scalar(some.limit(ONE)) is not None


def _action(
    name: Action, done: str, statuses: Sequence[JobStatus], build: Callable[..., Any], question: str, **options: Any
) -> PageAction:
    return action_on_jobs(
        name, name.capitalize(), done, name, which=lambda context: possible(context, statuses), build=build, question=question,
        target=(*FILTERS, "all"), statuses=statuses, **options,
    )  # fmt: skip


#: By name. Rows that another transaction has locked are not changed, and counted.
JOB_ACTIONS = {
    action.name: action
    for action in (
        _action(
            "retry", "Retried {n}.", sources(Event.REQUEUE), retry_jobs,
            "Run {n} {unit} again, now? Completed jobs do their work again.",
            asks=_has_completed, variants=WAITS, locked="skip",
        ),
        _action(
            "cancel", "Cancelled {n}.", sources(Event.CANCEL), cancel_jobs, "Cancel {n} {unit}? Running jobs are asked to stop.",
            variants=_ASKED, locked="skip",
        ),
        _action(
            "discard", "Discarded {n}.", sources(Event.DISCARD), discard_jobs,
            "Give up {n} waiting {unit}? They end as failed.", careful=True, typed="action", locked="skip",
        ),
        _action(
            "delete", "Deleted {n}.", tuple(status for status in JobStatus if status in FINISHED), prune_jobs,
            "Delete {n} finished {unit}, permanently?", careful=True, typed="action", limit=_PAGE,
        ),
    )
}  # fmt: skip


def _undo(context: PageContext) -> Done:
    """Cancel the jobs of a retry that have not started since. The entries of the audit between `first` and `last` name them."""
    query, job, audit = context.query, context.job, context.tables.audit
    first, last = query.id("first"), query.id("last")
    if first is None or last is None:
        raise BadInput("the form", "no action", "the first and the last entry of its audit")
    undoable = [name for name, action in JOB_ACTIONS.items() if action.undo] + ["retry_group"]
    entries = sa.select(audit.at, audit.target).where(audit.id.between(first, last), audit.action.in_(undoable))
    done = Done(0)
    for at, target in context.connection.execute(entries):
        ids = map(int, target.get("ids") or target.get("id", ()))
        unstarted = [job.status == status_literal(JobStatus.QUEUED), sa.func.coalesce(job.claimed_at < at, sa.true())]
        part = _changed(context, cancel_jobs(job.id.in_(ids), *unstarted, *context.mine(), locked="skip", job=job))
        done = Done(done.count + part.count, done.left + part.left)
    return done


UNDO = PageAction(
    "undo", "Undo what has not started", "Cancelled {n}, because they had not started.", "cancel", _undo, target=("first", "last")
)  # fmt: skip

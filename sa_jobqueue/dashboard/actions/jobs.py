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
from ..request import Look, Missing
from .base import Deed, Done
from .workflows import reopened

_ARGS = 'a JSON object, as in {"order_id": 7}'


def _edit(look: Look) -> Done:
    """Change one job; with `again`, run it again as it is then. All of it, or nothing."""
    job, query = look.job, look.query
    mine = [job.id == _id(query), *look.mine()]
    changes = _changes(look)
    again = query.one("again") == "yes"
    if again and not look.access.may("retry"):
        raise BadInput("again", "yes", "nothing: you may not run jobs again")
    if not changes and not again:
        raise BadInput("the form", "nothing new", "arguments, a queue, a priority or a time")
    done = Done(1)
    if again:
        seen = list(look.connection.scalars(sa.select(job.id).where(*mine)))
        if not reopened(look, seen):
            done = _changed(look, retry_jobs(*mine, locked="skip", job=job))
    if changes and done.count:
        try:
            statement = edit_jobs(*mine, **changes, locked="skip", job=job)
        except (PayloadError, OptionError) as error:
            raise BadInput("the form", ", ".join(changes), f"values that a job can have ({error})") from error
        done = _changed(look, statement)
        if done.count and look.connection.scalar(sa.select(job.id).where(*mine)) is None:
            raise BadInput("the form", ", ".join(changes), "values with which you may still see the job")
    return done


def _changed(look: Look, statement: Any) -> Done:
    rows = look.connection.execute(statement).all()
    changed = sum(row.changed for row in rows)
    return Done(changed, len(rows) - changed)


def _changes(look: Look) -> dict[str, Any]:
    """What is to become of the job. An empty field leaves what is there."""
    query = look.query
    found: dict[str, Any] = {}
    if given := query.one("args"):
        found["args"] = _object(given)
    if queue := query.one("queue"):
        if look.queues is not None and queue not in look.queues:
            raise BadInput("queue", queue, f"one of {', '.join(sorted(look.queues))}")
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


def _copy(look: Look) -> Done:
    """Enqueue a copy of one job, and go to it."""
    job = look.job
    rows = look.connection.execute(copy_jobs(job.id == _id(look.query), *look.mine(), job=job)).all()
    return Done(len(rows), to=f"/jobs/{rows[0].id}" if rows else None)


def _id(query: Query) -> int:
    named = query.id("id")
    if named is None:
        raise Missing("There is no job ? here, or it is none that you may see.")
    return named


#: By name. The arguments are not in the audit: who may read that need not be one who may see them.
CHANGE_DEEDS = {
    deed.name: deed
    for deed in (
        Deed("edit", "Edit", "Changed {n}.", "edit", _edit, target=("id", "queue", "priority", "run_at", "again")),
        Deed("copy", "Run a copy", "Enqueued a copy: this one.", "copy", _copy),
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


def possible(look: Look, statuses: Sequence[JobStatus]) -> list[sa.ColumnElement[bool]]:
    """The criteria of the jobs to act on: those of the form, in a status that allows it. Raises BadInput where it names none."""
    if not any(look.query.one(name) for name in FILTERS) and look.query.one("all") != "yes":
        raise BadInput("the form", "no job", "at least one: tick some, or filter them")
    return [*chosen(look), status_in(look.job.status, statuses)]


def deed_of_jobs(
    name: str,
    label: str,
    done: str,
    needs: Action,
    *,
    which: Callable[[Look], list[sa.ColumnElement[bool]]],
    build: Callable[..., Any],
    question: str,
    target: tuple[str, ...],
    careful: bool = False,
    asks: Callable[[Look], bool] | None = None,
    apart: Apart = MappingProxyType({}),
    **options: Any,
) -> Deed:
    """A deed that executes the statement `build(...)` for the jobs that `which` names, a page at a time."""

    def count(look: Look) -> int:
        some: sa.Select[Any] = sa.select(sa.literal_column("1")).select_from(look.job).where(*which(look)).limit(CAP)
        return look.connection.scalar(sa.select(sa.func.count()).select_from(some.subquery())) or 0

    def do(look: Look) -> Done:
        job = look.job
        after = look.query.number("after", 0, range(2**63))
        page = sa.select(job.id).where(*which(look), job.id > after).order_by(job.id).limit(_PAGE)
        ids = list(look.connection.scalars(page))
        if not ids:
            return Done(0)
        back = reopened(look, ids) if build is retry_jobs else []
        rows = look.connection.execute(build(job.id.in_(ids), *which(look), job=job, **options)).all()
        changed = [*back, *(row.id for row in rows if getattr(row, "changed", True))]
        became = {end: _number(look, changed, status) for end, (status, _) in apart.items()}
        return Done(
            len(changed), len(set(ids).difference(changed)), ids[-1] if len(ids) == _PAGE else None, apart=became
        )

    texts = {end: words for end, (_, words) in apart.items()}
    return Deed(name, label, done, needs, do, count, question, careful, asks, target=target, apart=texts)


def _number(look: Look, ids: Sequence[int], status: JobStatus) -> int:
    """How many of these jobs have this status."""
    job = look.job
    statement = sa.select(sa.func.count()).where(job.id.in_(ids), status_in(job.status, (status,)))
    return look.connection.scalar(statement) or 0


def _has_completed(look: Look) -> bool:
    """Whether one of the jobs has completed: it does again what it has done."""
    some: sa.Select[Any] = (
        sa.select(sa.literal_column("1")).select_from(look.job).where(*possible(look, (JobStatus.COMPLETED,)))
    )
    return look.connection.scalar(some.limit(sa.literal_column("1"))) is not None


def _deed(
    name: Action, done: str, statuses: Sequence[JobStatus], build: Callable[..., Any], question: str, **options: Any
) -> Deed:
    return deed_of_jobs(
        name, name.capitalize(), done, name, which=lambda look: possible(look, statuses), build=build, question=question,
        target=(*FILTERS, "all"), **options,
    )  # fmt: skip


#: By name. A row that another transaction has locked is left as it is, and said.
JOB_DEEDS = {
    deed.name: deed
    for deed in (
        _deed(
            "retry", "Retried {n}.", sources(Event.REQUEUE), retry_jobs,
            "Run {n} {unit} again, now? What a completed job has done, it does once more.",
            asks=_has_completed, apart=WAITS, locked="skip",
        ),
        _deed(
            "cancel", "Cancelled {n}.", sources(Event.CANCEL), cancel_jobs, "Cancel {n} {unit}? What runs is asked to stop.",
            apart=_ASKED, locked="skip",
        ),
        _deed(
            "discard", "Discarded {n}.", sources(Event.DISCARD), discard_jobs,
            "Give up {n} waiting {unit}? What is given up ends as failed.", careful=True, locked="skip",
        ),
        _deed(
            "delete", "Deleted {n}.", tuple(one for one in JobStatus if one in FINISHED), prune_jobs,
            "Delete {n} finished {unit}, permanently?", careful=True, limit=_PAGE,
        ),
    )
}  # fmt: skip

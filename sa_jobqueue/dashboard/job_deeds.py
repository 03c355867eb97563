"""What is done to jobs: those whose boxes are ticked, or all that match a filter, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from ..lifecycle import FINISHED, Event, JobStatus, sources
from ..models import status_in
from ..statements import cancel_jobs, discard_jobs, prune_jobs, retry_jobs
from ..statements.depths import CAP
from .access import Action
from .deeds import Deed, Done
from .filters import FILTERS, chosen
from .look import Look
from .refusals import BadInput
from .workflow_deeds import reopened

__all__ = ["JOB_DEEDS", "WAITS", "deed_of_jobs", "possible"]

#: Jobs that are changed in one transaction.
_PAGE = 1_000
#: One that runs is asked to stop, and a member of a workflow waits for its parents.
_ASKED: Mapping[str, Sequence[JobStatus]] = MappingProxyType({"asked": (JobStatus.RUNNING,)})
WAITS: Mapping[str, Sequence[JobStatus]] = MappingProxyType({"waits": (JobStatus.BLOCKED,)})


def possible(look: Look, statuses: Sequence[JobStatus]) -> list[sa.ColumnElement[bool]]:
    """The criteria of the jobs to act on: those of the form, in a status that allows it. Raises BadInput where it names none."""
    if not any(look.query.one(name) for name in FILTERS) and look.query.one("all") != "yes":
        raise BadInput("the form", "no job", "at least one: tick some, or filter them")
    return [*chosen(look), status_in(look.job.status, statuses)]


def deed_of_jobs(
    name: str,
    needs: Action,
    which: Callable[[Look], list[sa.ColumnElement[bool]]],
    build: Callable[..., Any],
    *,
    target: tuple[str, ...],
    careful: bool = False,
    asks: Callable[[Look], bool] | None = None,
    apart: Mapping[str, Sequence[JobStatus]] = MappingProxyType({}),
    **options: Any,
) -> Deed:
    """A deed that executes the statement `build(...)` for the jobs that `which` names, a page at a time.

    `apart`: statuses that a changed job has where something else became of it, and the end of the text that says so.
    """

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
        became = {end: _number(look, changed, statuses) for end, statuses in apart.items()}
        return Done(
            len(changed), len(set(ids).difference(changed)), ids[-1] if len(ids) == _PAGE else None, apart=became
        )

    return Deed(name, needs, do, count, careful, asks, target=target, apart=tuple(apart))


def _number(look: Look, ids: Sequence[int], statuses: Sequence[JobStatus]) -> int:
    """How many of these jobs have one of these statuses."""
    job = look.job
    return (
        look.connection.scalar(sa.select(sa.func.count()).where(job.id.in_(ids), status_in(job.status, statuses))) or 0
    )


def _has_completed(look: Look) -> bool:
    """Whether one of the jobs has completed: it does again what it has done."""
    some: sa.Select[Any] = (
        sa.select(sa.literal_column("1")).select_from(look.job).where(*possible(look, (JobStatus.COMPLETED,)))
    )
    return look.connection.scalar(some.limit(sa.literal_column("1"))) is not None


def _deed(
    name: str, needs: Action, statuses: Sequence[JobStatus], build: Callable[..., Any], *, careful: bool = False, **options: Any
) -> Deed:  # fmt: skip
    return deed_of_jobs(
        name, needs, lambda look: possible(look, statuses), build, target=(*FILTERS, "all"), careful=careful, **options
    )  # fmt: skip


#: By name. A row that another transaction has locked is left as it is, and said.
JOB_DEEDS = {
    deed.name: deed
    for deed in (
        _deed("retry", "retry", sources(Event.REQUEUE), retry_jobs, asks=_has_completed, apart=WAITS, locked="skip"),
        _deed("cancel", "cancel", sources(Event.CANCEL), cancel_jobs, apart=_ASKED, locked="skip"),
        _deed("discard", "discard", sources(Event.DISCARD), discard_jobs, careful=True, locked="skip"),
        _deed(
            "delete",
            "delete",
            tuple(one for one in JobStatus if one in FINISHED),
            prune_jobs,
            careful=True,
            limit=_PAGE,
        ),
    )
}

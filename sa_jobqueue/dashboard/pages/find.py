"""What the field in the head of all pages finds: a job by its id, the jobs of a task, a queue or a row."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import any_, func, literal, select

from ...lifecycle import JobStatus
from ...models import status_literal
from ...objects import Subject
from ..look import Look
from ..page import Elsewhere, Page
from ..query import Query, as_id
from ..refusals import BadInput
from .job import archived_of

__all__ = ["FIND"]

#: Names are looked for among those of this time.
_LATELY = timedelta(days=1)


def read_find(look: Look) -> dict[str, Any]:
    """Raises Elsewhere where it is clear what is meant. Else the page asks what it is."""
    asked = look.query.one("q")
    if not asked:
        return {"asked": "", "is_id": False, "kinds": []}
    number = _id(asked)
    if is_id := number is not None:
        if look.connection.scalar(select(look.job.id).where(look.job.id == number, *look.mine())) is not None or (
            archived_of(look, number) is not None
        ):
            raise Elsewhere(f"/jobs/{number}")
    elif ":" in asked and _is_subject(asked):
        raise Elsewhere("/jobs", Query([("subject", asked)]))
    kinds = [] if is_id else _kinds(look, asked)
    if len(kinds) == 1:
        raise Elsewhere("/jobs", Query([(kinds[0], asked)]))
    return {"asked": asked, "is_id": is_id, "kinds": kinds or ["task", "queue", "tag", "key", "error", "subject"]}


def _id(asked: str) -> int | None:
    try:
        return as_id("q", asked)
    except BadInput:
        return None


def _is_subject(asked: str) -> bool:
    try:
        Subject.parse(asked)
    except ValueError:
        return False
    return True


def _kinds(look: Look, name: str) -> list[str]:
    """Whether a task or a queue of this name is known: to a worker, of the last day, or by a job that is queued."""
    job, beside = look.job, look.options.beside
    if look.access.is_partial:
        return []
    worker, stat = beside.worker, beside.stat
    lately = [stat.seconds == 60, stat.at > func.now() - _LATELY]
    queues = [] if look.queues is None else [stat.queue.in_(sorted(look.queues))]
    is_task = [
        select(literal(1)).where(*lately, *queues, stat.task == name).exists(),
        *([select(literal(1)).where(worker.tasks.has_key(name)).exists()] if look.queues is None else []),
    ]
    queued = job.status == status_literal(JobStatus.QUEUED)
    is_queue = [
        select(literal(1)).where(*lately, stat.queue == name).exists(),
        select(literal(1)).where(literal(name) == any_(worker.queues)).exists(),
        select(literal(1)).where(queued, job.concurrency_key.is_(None), job.queue == name).exists(),
    ]
    found = look.connection.execute(select(*is_task, *is_queue)).one()
    task, queue = any(found[: len(is_task)]), any(found[len(is_task) :])
    may_see = look.queues is None or name in look.queues
    return [kind for kind, is_there in (("task", task), ("queue", queue and may_see)) if is_there]


FIND = Page("find", "/find", read_find, in_menu=False, is_live=False)

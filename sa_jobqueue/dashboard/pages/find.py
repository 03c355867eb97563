"""What the field in the head of all pages finds: a job by its id, the jobs of a task, a queue or a row."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from ...arguments.subjects import Subject
from ...models import status_literal
from ...rules.lifecycle import JobStatus
from ..filters import seen_in_archive
from ..query import Query, as_id
from ..refusals import BadInput
from ..request import Elsewhere, Page, PageContext

#: Names are looked for among those of this time.
_LATELY = timedelta(days=1)


def read_find(context: PageContext) -> dict[str, Any]:
    """Raises Elsewhere where it is clear what is meant. Else the page asks what it is."""
    asked = context.query.one("q")
    if not asked:
        return {"asked": "", "is_id": False, "kinds": []}
    number = _id(asked)
    if number is not None:
        if _is_there(context, number):
            raise Elsewhere(f"/jobs/{number}")
    elif ":" in asked and _is_subject(asked):
        raise Elsewhere("/jobs", Query([("subject", asked)]))
    kinds = [] if number is not None else _kinds(context, asked)
    if len(kinds) == 1:
        raise Elsewhere("/jobs", Query([(kinds[0], asked)]))
    return {
        "asked": asked,
        "is_id": number is not None,
        "kinds": kinds,
    }


def _is_there(context: PageContext, id: int) -> bool:
    """Whether there is a job with this id that the viewer may see, in its table or in the archive."""

    def has(seen: PageContext) -> bool:
        found = sa.select(seen.job.id).where(seen.job.id == id, *seen.mine()).limit(sa.literal_column("1"))
        return seen.connection.scalar(found) is not None

    return has(context) or ((archived := seen_in_archive(context)) is not None and has(archived))


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


def _kinds(context: PageContext, name: str) -> list[str]:
    """Whether a task or a queue of this name is known: to a worker, of the last day, or by a job that is queued."""
    job, beside = context.job, context.options.beside
    if context.access.is_partial:
        return []
    worker, stat = beside.worker, beside.stat
    lately = [stat.seconds == 60, stat.at > sa.func.now() - _LATELY]
    queues = [] if context.queues is None else [stat.queue.in_(sorted(context.queues))]
    is_task = [
        sa.select(sa.literal(1)).where(*lately, *queues, stat.task == name).exists(),
        *([sa.select(sa.literal(1)).where(worker.tasks.has_key(name)).exists()] if context.queues is None else []),
    ]
    queued = job.status == status_literal(JobStatus.QUEUED)
    is_queue = [
        sa.select(sa.literal(1)).where(*lately, stat.queue == name).exists(),
        sa.select(sa.literal(1)).where(sa.literal(name) == sa.any_(worker.queues)).exists(),
        sa.select(sa.literal(1)).where(queued, job.concurrency_key.is_(None), job.queue == name).exists(),
    ]
    found = context.connection.execute(sa.select(*is_task, *is_queue)).one()
    task, queue = any(found[: len(is_task)]), any(found[len(is_task) :])
    may_see = context.queues is None or name in context.queues
    return [kind for kind, is_there in (("task", task), ("queue", queue and may_see)) if is_there]


FIND = Page("find", "Find", "/find", read_find, in_menu=False, is_live=False)

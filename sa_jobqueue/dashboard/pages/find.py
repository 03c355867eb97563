"""The search field of all pages: it finds a job by its id, and the jobs of a task, a queue or a row."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from ...arguments.subjects import Subject
from ...models import status_literal
from ...rules.lifecycle import JobStatus
from ..filters import seen_in_archive
from ..query import Query, as_id
from ..refusals import BadInput
from ..request import ONE, Elsewhere, Page, PageContext

#: Names are searched in the statistics of this time.
_LATELY = timedelta(days=1)


def read_find(context: PageContext) -> dict[str, Any]:
    """Raises Elsewhere if only one meaning is possible. Else the page asks which is meant."""
    asked = context.query.one("q")
    if not asked:
        return {"asked": "", "is_id": False, "kinds": []}
    with suppress(BadInput):
        number = as_id("q", asked)
        if _exists(context, number):
            raise Elsewhere(f"/jobs/{number}")
        return {"asked": asked, "is_id": True, "kinds": []}
    with suppress(ValueError):
        if ":" in asked and Subject.parse(asked):
            raise Elsewhere("/jobs", Query([("subject", asked)]))
    kinds = _kinds(context, asked)
    if len(kinds) == 1:
        raise Elsewhere("/jobs", Query([(kinds[0], asked)]))
    return {"asked": asked, "is_id": False, "kinds": kinds}


def _exists(context: PageContext, id: int) -> bool:
    """Whether the table or the archive has a job with this id that the viewer may see."""

    def has(seen: PageContext) -> bool:
        found = sa.select(seen.job.id).where(seen.job.id == id, *seen.mine()).limit(ONE)
        return seen.connection.scalar(found) is not None

    return has(context) or ((archived := seen_in_archive(context)) is not None and has(archived))


def _kinds(context: PageContext, name: str) -> list[str]:
    """Whether a task or a queue with this name is known: from a worker, the statistics of the last day, or a queued job."""
    if context.access.is_partial:
        return []
    job, worker, stat = context.job, context.tables.worker, context.tables.stat
    lately = [stat.seconds == 60, stat.at > sa.func.now() - _LATELY]
    queues = [] if context.queues is None else [stat.queue.in_(sorted(context.queues))]
    queued = job.status == status_literal(JobStatus.QUEUED)

    def exists(*where: Any) -> Any:
        return sa.select(sa.literal(1)).where(*where).exists()

    is_task = [
        exists(*lately, *queues, stat.task == name),
        *([exists(worker.tasks.has_key(name))] if context.queues is None else []),
    ]
    is_queue = [
        exists(*lately, stat.queue == name),
        exists(sa.literal(name) == sa.any_(worker.queues)),
        exists(queued, job.concurrency_key.is_(None), job.queue == name),
    ]
    found = context.connection.execute(sa.select(*is_task, *is_queue)).one()
    task, queue = any(found[: len(is_task)]), any(found[len(is_task) :])
    may_see = context.queues is None or name in context.queues
    return [kind for kind, is_known in (("task", task), ("queue", queue and may_see)) if is_known]


FIND = Page("find", "Find", "/find", read_find, in_menu=False, is_live=False)

"""A job: its state and the reasons, its attempts and its actions; and the form that edits a job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...arguments.subjects import Subject
from ...health.explain import explain_each, explain_job
from ...health.one_job import JobSeen, StepSeen, archived_lines, read_job, read_steps, schedule_said
from ...models import GATE, TASK_GROUP
from ...rules.lifecycle import FINISHED, HELD, Event, JobStatus, sources
from ...rules.limits import keys_said, units_said
from ...rules.reasons import WaitReason
from ...rules.words import follow_ups_of, size
from ...sql.parts import in_calendar, table_of
from ...sql.steps import differs
from ...statements import job_logs
from ...tasks.options import MAX_PRIORITY
from ...util.urls import mask_passwords
from ..access import Action
from ..actions.limits import is_mine
from ..filters import seen_in_archive
from ..query import Query, as_id
from ..render import Value, errors_of, shown_value, subject_link, too_large, value_of
from ..request import Missing, Page, PageContext
from ..timeline import timeline_of
from .errors import group_of
from .questions import waiting
from .registry import tryable

T = TypeVar("T")
#: The most log lines and the most steps that are shown, unless the viewer asks for all.
_LAST_LINES, _LAST_STEPS = 200, 100


def seen_of(context: PageContext) -> JobSeen:
    """The job that the path names. Raises Missing if the viewer may see no such job."""
    named = as_id("id", context.path["id"])
    seen = read_job(context.connection, named, where=context.mine(), job=context.job)
    if seen is None:
        raise Missing(f"There is no job {named} here, or you may not see it.")
    return seen


def _seen_anywhere(context: PageContext) -> JobSeen:
    """The job that the path names, in the table or the archive. Raises Missing."""
    try:
        return seen_of(context)
    except Missing:
        archived = seen_in_archive(context)
        if archived is None:
            raise
        return seen_of(archived)


def read_one(context: PageContext) -> dict[str, Any]:
    """The page of a job."""
    seen = _seen_anywhere(context)
    job, options = seen.job, context.options
    failures, older = errors_of(seen)
    lines, more = _lines(context, seen)
    steps, more_steps = _steps(context, seen)
    is_blocked = job.status is JobStatus.BLOCKED
    asked = waiting(context, context.tables.wait.job_id == job.id, most=1) if is_blocked else []
    subject = None if job.subject_type is None else Subject(job.subject_type, job.subject_id or "")
    return {
        "now": seen.now,
        "job": job,
        "units": units_said(job.units, job.extras),
        "other_keys": keys_said(job.extras),
        "follow_ups": follow_ups_of(job.extras),
        "reading": seen.reading,
        "sums_up": not context.access.is_partial,
        "key": None if (job.concurrency_key or TASK_GROUP).startswith(TASK_GROUP) else job.concurrency_key,
        "why": _why(context, job.id, job.concurrency_key),
        "buttons": _buttons(context, seen),
        "asked": asked,
        "may_edit": context.access.may("edit") and job.status not in HELD and job.archived_at is None,
        "timeline": timeline_of(seen, failures, steps, _waits(context, job.id) if is_blocked else ()),
        "steps": [step._asdict() | {"result": _result_of(context, seen, step)} for step in steps],
        "more_steps": more_steps,
        "may_fork": context.access.may("copy")
        and job.status in FINISHED
        and job.archived_at is None
        and job.inputs is None,
        "failures": failures,
        "errors_note": _errors_note(seen, older),
        "group": group_of(context, job.id) if job.archived_at is None else None,
        "values": [(part, value_of(part, seen, options.format_args)) for part in ("args", "meta", "result")],
        "progress_message": mask_passwords(job.progress_message or ""),
        "lines": lines,
        "lines_note": too_large(seen, "logs") if "logs" in seen.sizes else "",
        "more_lines": more,
        "subject": None if subject is None else str(subject),
        "subject_link": None if subject is None else subject_link(subject, options.link_subject),
        "worker": _worker(context, job.worker),
        "schedule": schedule_said(context.connection, job.schedule_id, job=context.job),
        "holder": _holder(context, job.unique_key),
        "duplicate_of": next(iter(context.seen([job.duplicate_of])), None) if job.duplicate_of else None,
    }


def _waits(context: PageContext, id: int) -> list[dict[str, Any]]:
    """The wait for which a blocked job is suspended, if it is; as `timeline_of` takes it."""
    wait = table_of(context.tables.wait).c
    columns = in_calendar(wait.since).label("since"), wait.signal, wait.step
    found = context.connection.execute(sa.select(*columns).where(wait.job_id == id)).mappings()
    return [{**row} for row in found]


def _errors_note(seen: JobSeen, older: int) -> str:
    if "errors" in seen.sizes:
        return too_large(seen, "errors")
    return f"The errors of the last attempts. Older ones, not shown: {older:,}." if older else ""


def why_each(context: PageContext, ids: Sequence[int]) -> dict[int, str]:
    """The deciding reason of each of these jobs. Nothing if the row of any of them cannot be read."""
    found = _readable(context, lambda: explain_each(context.connection, ids, context.job)) or []
    firsts = [(job, job.reasons[0]) for job in found]
    seen = set(context.seen([other for _, reason in firsts for other in reason.job_ids or ()]))
    return {job.job_id: mask_passwords(_visible(context, reason, seen).said(job.distant)) for job, reason in firsts}


def _readable(context: PageContext, read: Callable[[], T]) -> T | None:
    """What `read` returns; None if a row cannot be read."""
    try:
        with context.connection.begin_nested():
            return read()
    except (ValueError, RecursionError):
        return None
    except DBAPIError as error:
        # A time that Python cannot hold; any other error fails the page.
        if error.connection_invalidated or getattr(error.orig, "sqlstate", None):
            raise
        return None


def _why(context: PageContext, id: int, key: str | None) -> list[dict[str, Any]] | None:
    """The reasons why it is not running, or how it ended, with advice. None if its row cannot be read."""
    found = _readable(context, lambda: explain_job(context.connection, id, job=context.job))
    if found is None:
        return None
    seen = set(context.seen([other for reason in found.reasons for other in reason.job_ids or ()]))
    reasons = [_visible(context, reason, seen) for reason in found.reasons]
    # Of other keys there is no page.
    return [
        {
            "said": mask_passwords(reason.said(found.distant)), "needs_help": reason.needs_help, "advice": reason.advice(id),
            "jobs": list(reason.job_ids or ()), "name": reason.name, "key": reason.key if reason.key == key else None,
            "limit": _limit_of(context, reason, key),
        }
        for reason in reasons
    ]  # fmt: skip


def _limit_of(context: PageContext, reason: WaitReason, key: str | None) -> tuple[str, Query] | None:
    """The page of the limit or pause that the reason is about; None: it is about no limit, or the viewer may not see it."""
    if reason.owner is None or reason.name is None or not is_mine(context, reason.owner, reason.name):
        return None
    is_key = reason.key is not None and reason.key == key
    return (f"/keys/{reason.key}", Query()) if is_key else ("/limits", Query([("name", reason.name)]))


def _visible(context: PageContext, reason: WaitReason, seen: Collection[int]) -> WaitReason:
    """Hide the ids of jobs that are not `seen`, and the number of jobs that the viewer may not see."""
    ids = reason.job_ids and [other for other in reason.job_ids if other in seen]
    counts_others = context.access.is_partial or (context.queues is not None and reason.owner == "task")
    return reason._replace(job_ids=ids, used=None if reason.what == "turn" and counts_others else reason.used)


def _buttons(context: PageContext, seen: JobSeen) -> list[tuple[str, str, str]]:
    """The possible actions: name, text and kind of each button."""
    job = seen.job
    if job.archived_at is not None:
        return []  # archived jobs cannot be changed
    is_done = job.status in FINISHED
    has_completed = job.status is JobStatus.COMPLETED
    is_early = job.status is JobStatus.QUEUED and job.run_at > seen.now
    can_copy = job.inputs is None and job.task != GATE
    wanted: list[tuple[bool, Action, str, str, str]] = [
        (is_done and not has_completed, "retry", "retry", "Retry", "primary"),
        (is_early, "retry", "retry", "Run now", "primary"),
        (_is_held(context, job), "retry", "retry", "Retry", "primary"),
        (job.status in sources(Event.CANCEL) and job.cancel_requested_at is None, "cancel", "cancel", "Cancel", ""),
        (can_copy, "copy", "copy", "Run a copy", ""),
        (has_completed, "retry", "retry", "Run again…", ""),
        (tryable(context, job) is not None, "try", "try", "Try", ""),
        (job.status in sources(Event.DISCARD), "discard", "discard", "Discard", "danger"),
        (is_done, "delete", "delete", "Delete", "danger"),
    ]
    return [
        (action, label, kind) for is_possible, needs, action, label, kind in wanted if is_possible and context.access.may(needs)
    ]  # fmt: skip


def _lines(context: PageContext, seen: JobSeen) -> tuple[Sequence[Any], int]:
    """Its last log lines, and the number of earlier lines."""
    if seen.job.archived_at is None:
        found: Sequence[Any] = context.connection.execute(job_logs(seen.job.id, log=context.tables.log)).all()
    else:
        found = archived_lines(seen.job)
    kept = found if context.query.one("logs") == "all" else found[-_LAST_LINES:]
    return [{**line._asdict(), "message": mask_passwords(line.message or "")} for line in kept], len(found) - len(kept)


def _is_held(context: PageContext, job: Any) -> bool:
    """Whether the job is held because the arguments of a step differ from its record."""
    if job.status is not JobStatus.BLOCKED:
        return False
    return bool(context.connection.scalar(sa.select(differs(context.job)).where(context.job.id == job.id)))


def _steps(context: PageContext, seen: JobSeen) -> tuple[Sequence[StepSeen], int]:
    """The last recorded steps of a job, and the number of earlier steps."""
    is_archived = seen.job.archived_at is not None
    job = context.tables.archived_job if is_archived else context.job
    found = read_steps(context.connection, seen.job.id, job=job)
    kept = found if context.query.one("steps") == "all" else found[-_LAST_STEPS:]
    return kept, len(found) - len(kept)


def _result_of(context: PageContext, seen: JobSeen, step: StepSeen) -> Value:
    """The result of a step, masked by `format_args`."""
    if step.size is not None:
        return Value(note=f"too large to be shown: {size(step.size)}")
    return shown_value("result", seen.job.task, step.result, context.options.format_args)


def _worker(context: PageContext, id: str | None) -> str:
    """The host and process of a worker; its id if it has left."""
    if id is None:
        return ""
    worker = context.tables.worker
    row = context.connection.execute(
        sa.select(worker.host, worker.pid).where(sa.cast(worker.id, sa.Text) == id)
    ).first()
    return f"{id}, which has left" if row is None else f"{row.host}:{row.pid}"


def _holder(context: PageContext, key: str | None) -> int | None:
    """The job that holds this unique key now."""
    if key is None:
        return None
    held = context.tables.unique_key
    holder = context.connection.scalars(sa.select(held.job_id).where(held.key == key)).all()
    return next(iter(context.seen(holder)), None)


JOB = Page("job", "Job", "/jobs/{id}", read_one, in_menu=False)

# ---- The form that edits a job: a page of its own, so that it is not refreshed while a viewer fills it in.


def read_edit(context: PageContext) -> dict[str, Any]:
    """The initial values of the fields, without masked or too long arguments: an empty field keeps them."""
    seen = seen_of(context)
    value = value_of("args", seen, context.options.format_args)
    return {
        "now": seen.now,
        "job": seen.job,
        "reading": seen.reading,
        "may_edit": context.access.may("edit") and seen.job.status not in HELD,
        "is_running": seen.job.status in HELD,
        "may_retry": seen.job.status in FINISHED and context.access.may("retry"),
        "args": value.said if value.is_whole else "",
        "is_hidden": not value.is_whole,
        "priorities": range(MAX_PRIORITY, -1, -1),
        "queues": sorted(context.queues) if context.queues is not None else None,
    }


EDIT = Page("edit", "Edit a job", "/jobs/{id}/edit", read_edit, in_menu=False, is_live=False)

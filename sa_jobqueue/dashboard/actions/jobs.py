"""Actions on jobs: edit and copy a job; retry, cancel, discard and delete jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeAlias

import sqlalchemy as sa

from ...errors import OptionError, PayloadError
from ...health.one_job import clamped, read_steps
from ...models import status_in, status_literal
from ...rules.failures import moment_said
from ...rules.lifecycle import FINISHED, Event, JobStatus, sources
from ...sql.admin import may_retry
from ...sql.parts import in_seconds, table_of
from ...sql.readings.depths import CAP
from ...sql.secrets import has_marks
from ...statements import cancel_jobs, copy_jobs, discard_jobs, edit_jobs, fork_job, prune_jobs, retry_jobs
from ...tasks.options import MAX_PRIORITY
from ..access import Action
from ..filters import FILTERS, chosen
from ..query import Query, as_id
from ..refusals import BadInput
from ..request import ONE, Missing, PageContext
from . import Done, PageAction
from .workflows import BROKEN, reopened


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
    if "args" in changes and context.connection.scalar(sa.select(has_marks(job.args)).where(*mine)):
        raise BadInput(
            "args", "arguments", "nothing: some of them are secret, and only code, by Task.edit, can change them"
        )
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


def _fork(context: PageContext) -> Done:
    """Enqueue a fork of a job from a step on, and go to the new job."""
    job_id, step = _with_steps(context)
    forked = context.connection.execute(fork_job(job_id, from_step=step, job=context.job)).scalar_one()
    return Done(1, to=f"/jobs/{forked}", more={"new": forked})


def _repeated(context: PageContext) -> int:
    """The number of recorded steps that a fork repeats."""
    job_id, step = _with_steps(context)
    names = [recorded.name for recorded in read_steps(context.connection, job_id, job=context.job)]
    return len(names) - names.index(step) if step in names else 0


def _with_steps(context: PageContext) -> tuple[int, str]:
    """The job of the form, which the viewer may see, and the step."""
    if not context.seen([job_id := _id(context.query)]):
        raise Missing(f"There is no job {job_id} here, or you may not see it.")
    return job_id, context.query.one("from_step") or ""


def _id(query: Query) -> int:
    if (job_id := query.id("id")) is None:
        raise Missing("There is no job ? here, or you may not see it.")
    return job_id


#: The arguments are not in the audit, because its readers may not be allowed to see them.
CHANGE_ACTIONS = (
    PageAction("edit", "Edit", "Changed {n}.", "edit", _edit, target=("id", "queue", "priority", "run_at", "again")),
    PageAction("copy", "Run a copy", "Enqueued this copy.", "copy", _copy),
    PageAction(
        "fork", "Retry from this step", "Enqueued this job, which repeats the work from that step on.", "copy", _fork, _repeated,
        "Repeat the work from this step on, in a new job? {n} recorded {unit} will run again; earlier steps keep their results. "
        "The old job does not change.",
        asks=lambda _: True, target=("id", "from_step"), unit="step",
    ),
)  # fmt: skip

# ---- Actions on ticked jobs, or on all jobs that match a filter, a page at a time.

#: Jobs that are changed in one transaction.
_PAGE = 1_000
#: Other results of an action on a job: the job's status then, and the text for the viewer.
Variants: TypeAlias = Mapping[str, tuple[JobStatus, str]]
_ASKED: Variants = {"asked": (JobStatus.RUNNING, "Asked to stop, because they are running: {n}.")}
WAITS: Variants = {
    "waits": (JobStatus.BLOCKED, "Back in their workflows, where they wait for the jobs before them: {n}.")
}


def possible(context: PageContext, allowed: sa.ColumnElement[bool]) -> list[sa.ColumnElement[bool]]:
    """The criteria of the form's jobs that the action allows. Raises BadInput if the form chooses no jobs."""
    if not any(context.query.one(name) for name in FILTERS) and context.query.one("all") != "yes":
        raise BadInput("the form", "no job", "at least one job: tick some, or filter them")
    return [*chosen(context), allowed]


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
        before, back = _before(context, ids) if build is retry_jobs else [], list[int]()
        if before:
            back = reopened(context, ids)
        rows = context.connection.execute(build(job.id.in_(ids), *which(context), job=job, **options)).all()
        changed = [*back, *(row.id for row in rows if getattr(row, "changed", True))]
        numbers = {
            name: context.count(sa.select(ONE).where(job.id.in_(changed), status_in(job.status, (status,))))
            for name, (status, _) in variants.items()
        }
        last = ids[-1] if len(ids) == _PAGE else None
        left = len(set(ids).difference(changed))
        kept = more(context, changed)
        if not before:
            return Done(len(changed), left, last, variants=numbers, more=kept)
        again = [row for row in before if row.status is JobStatus.FAILED and row.id in set(changed)]
        by_cancel = bool(context.query.one("undo")) or any(row.status not in BROKEN for row in before)
        kept = {
            **kept, "failed": [row.id for row in again], "retained": [row.kept for row in again],
            "undo": "by cancel" if by_cancel else "fully",
        }  # fmt: skip
        return Done(len(changed), left, last, variants=numbers, more=kept, undo="undo_by_cancel" if by_cancel else "")

    texts = {name: text for name, (_, text) in variants.items()}
    undo, more = _UNDO.get(build, ("", lambda context, ids: {}))
    return PageAction(
        name, label, done, needs, do, count, question, careful, asks, typed, target, texts, statuses=statuses, undo=undo
    )


def _named(context: PageContext, ids: Sequence[int]) -> dict[str, Any]:
    """The ids for the audit, unless the form has named them."""
    return {} if context.query.one("id") else {"ids": ids}


def _before(context: PageContext, ids: Sequence[int]) -> Sequence[Any]:
    """The id and status of each of these jobs, and for how many seconds after its end it is `kept`; None: forever."""
    job = context.job
    kept = sa.cast(sa.func.extract("epoch", clamped(job.purge_at) - clamped(job.finished_at)), sa.BigInteger)
    return context.connection.execute(sa.select(job.id, job.status, kept.label("kept")).where(job.id.in_(ids))).all()


def cancelled(context: PageContext, ids: Sequence[int]) -> dict[str, Any]:
    """For the audit: the jobs among these that are cancelled, and the time of their end, which is equal if one statement has cancelled them."""
    job = context.job
    ended = sa.select(job.id, job.finished_at).where(job.id.in_(ids), status_in(job.status, (JobStatus.CANCELLED,)))
    rows = context.connection.execute(ended.order_by(job.id)).all()
    times = {"ended": [row.finished_at.isoformat() for row in rows[:1]]}
    return {**_named(context, [row.id for row in rows]), **times}


#: By the statement of an action: the name of the action that undoes it, and its values for the audit.
_UNDO: Mapping[Any, tuple[str, Callable[[PageContext, Sequence[int]], dict[str, Any]]]] = {
    retry_jobs: ("undo", _named),
    cancel_jobs: ("undo_cancel", cancelled),
}


def _has_completed(context: PageContext) -> bool:
    """Whether one of the jobs has completed, and would do its work again."""
    completed = context.job.status == status_literal(JobStatus.COMPLETED)
    some: sa.Select[Any] = sa.select(ONE).select_from(context.job).where(*possible(context, completed))
    return context.connection.scalar(some.limit(ONE)) is not None


def _action(
    name: Action, done: str, statuses: Sequence[JobStatus], build: Callable[..., Any], question: str, **options: Any
) -> PageAction:
    def which(context: PageContext) -> list[sa.ColumnElement[bool]]:
        job = context.job
        return possible(context, may_retry(job) if build is retry_jobs else status_in(job.status, statuses))

    return action_on_jobs(
        name, name.capitalize(), done, name, which=which, build=build, question=question,
        target=(*FILTERS, "all"), statuses=statuses, **options,
    )  # fmt: skip


#: Rows that another transaction has locked are not changed, and counted.
JOB_ACTIONS = (
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
)  # fmt: skip


# ---- Undoing an action. Its number is the id of its first entry in the audit; further entries name that entry.

_UNDOABLE = ("retry", "retry_group", "cancel", "cancel_queue")
#: The next entries among which those of an action are searched: as many transactions may have been between its first and its last.
_ENTRIES = 10_000
#: The entries of an action whose jobs are read to find out whether it can be undone. If it has more, it is not known.
_SEARCHED = 100


def is_of(context: PageContext, number: int) -> list[sa.ColumnElement[bool]]:
    """The criteria of the audit's entries of the action with this number."""
    audit = context.tables.audit
    is_part = audit.target[("part_of", "0")].astext == sa.literal(str(number), sa.Text)
    return [audit.id.between(number, number + _ENTRIES), sa.or_(audit.id == number, is_part)]


def _entries(context: PageContext, number: int, most: int, kind: str = "", after: int = 0) -> Sequence[Any]:
    """Entries, above the id `after`, of the action with this number, if it can be undone and its name begins with `kind`."""
    audit, names = context.tables.audit, [name for name in _UNDOABLE if name.startswith(kind)]
    statement = sa.select(audit.id, audit.at, audit.action, audit.target).where(
        *is_of(context, number), audit.id > after
    )
    return context.connection.execute(statement.where(audit.action.in_(names)).order_by(audit.id).limit(most)).all()


def to_undo(context: PageContext, entry: Any) -> list[sa.ColumnElement[bool]]:
    """The criteria of the jobs that an undo of this entry of the audit changes, and that the viewer may see.

    Of a retry they have not started; of a cancel nothing has changed them since.
    """
    job, target = context.job, _target_of(entry)
    found: list[sa.ColumnElement[bool]] = [sa.false()]
    with suppress(BadInput, ValueError, TypeError, LookupError):  # an entry that was written by hand
        ids = sa.literal(_ids_of(target), sa.ARRAY(sa.BigInteger))
        if entry.action.startswith("cancel"):
            is_same = job.finished_at == datetime.fromisoformat(target["ended"][0])
            found = [job.id == sa.func.any(ids), job.status == status_literal(JobStatus.CANCELLED), is_same]
        else:
            is_same = sa.func.coalesce(job.claimed_at < entry.at, sa.true())
            found = [job.id == sa.func.any(ids), status_in(job.status, (JobStatus.QUEUED, JobStatus.BLOCKED)), is_same]
    return [*found, *context.mine()]


def _target_of(entry: Any) -> Mapping[str, Any]:
    return entry.target if isinstance(entry.target, dict) else {}


def _ids_of(target: Mapping[str, Any]) -> list[int]:
    """The ids of the jobs in an entry. Raises errors for an entry that was written by hand."""
    return [as_id("id", str(given)) for given in target.get("ids") or target["id"]]


def _retained(entry: Any) -> dict[int, float | None]:
    """The jobs of a retry that had failed before, and for how many seconds each was kept; None: forever."""
    target = _target_of(entry)
    with suppress(BadInput, ValueError, TypeError, LookupError):  # an entry that was written by hand
        kept = zip(target["failed"], target["retained"], strict=True)
        return {as_id("id", str(given)): seconds and float(seconds) for given, seconds in kept}
    return {}


def undo_of(context: PageContext, number: int | None) -> str | None:
    """The action that undoes the action with this number. None: there is none, the viewer may not do it, or it would change no job."""
    found = _entries(context, number, _SEARCHED + 1) if number else []
    undo = "undo" if all(_target_of(entry).get("undo") == "fully" for entry in found) else "undo_by_cancel"
    if found and found[0].action.startswith("cancel"):
        undo = "undo_cancel"
    if not found or not context.access.may("retry" if undo == "undo_cancel" else "cancel"):
        return None
    some = (sa.select(ONE).select_from(context.job).where(*to_undo(context, entry)).limit(ONE) for entry in found)
    return undo if len(found) > _SEARCHED or any(map(context.count, some)) else None


def _undo(context: PageContext, kind: str, change: Callable[[PageContext, Any], Done]) -> Done:
    """Change the jobs of an entry of the action, whose name begins with `kind`; further entries have transactions of their own."""
    if (number := context.query.id("number")) is None:
        raise BadInput("the form", "no action", "the number of an action")
    found = _entries(context, number, 2, kind, context.query.number("after", 0, range(2**63)))
    done = change(context, found[0]) if found else Done(0)
    return replace(done, after=found[0].id if len(found) > 1 else None)


def _end_again(context: PageContext, entry: Any) -> Done:
    """End the jobs of a retry that have not started. A job that had failed fails again, with its old error and retention; other jobs are cancelled."""
    job, table, retained = context.job, table_of(context.job), _retained(entry)
    last, may = table.c.errors[-1], to_undo(context, entry)
    rows = context.connection.execute(
        sa.select(table.c.id, last["at"].astext.label("at"), last["attempt"].astext.label("attempt")).where(
            job.id.in_(list(retained)), *may
        )
    ).all()
    statement = discard_jobs(job.id.in_([row.id for row in rows]), *may, reason=None, locked="skip", job=job)
    ended = context.connection.execute(statement).all()
    back = {row.id for row in ended if row.changed}
    if own := [{"its_id": row.id, **_end_of(row), "kept": retained[row.id]} for row in rows if row.id in back]:
        at = sa.func.coalesce(sa.bindparam("at", type_=sa.DateTime(timezone=True)), table.c.finished_at)
        kept = in_seconds(sa.bindparam("kept", type_=sa.Float), after=at)
        values = {"finished_at": at, "purge_at": kept, "attempt": sa.bindparam("tried", type_=sa.SmallInteger)}
        context.connection.execute(sa.update(table).where(table.c.id == sa.bindparam("its_id")).values(values), own)
    done = _changed(context, cancel_jobs(job.id.not_in(list(retained)), *may, locked="skip", job=job))
    left = done.left + len(ended) - len(back)
    return Done(done.count + len(back), left, variants={"failed": len(back)})


def _end_of(row: Any) -> dict[str, Any]:
    """The time and the number of the last failed attempt, from the last error, which the application may have written."""
    tried = str(row.attempt or "")
    return {"at": moment_said(row.at), "tried": int(tried) if tried.isdecimal() and int(tried) < 2**15 else 0}


def _bring_back(context: PageContext, entry: Any) -> Done:
    """Queue jobs again as they were before their cancel. Those of a cancelled workflow would be cancelled again."""
    job, workflow = context.job, context.tables.workflow
    table = table_of(job)
    kept = [table.c[name] for name in ("run_at", "attempt", "rescues", "expires_at", "deadline_at")]
    before = sa.select(
        table.c.id.label("its_id"), *(sa.cast(column, sa.Text).label(f"old_{column.name}") for column in kept)
    )
    rows = context.connection.execute(before.where(*to_undo(context, entry))).mappings().all()
    ids = [row["its_id"] for row in rows]
    back = reopened(context, ids)
    if own := [{**row} for row in rows if row["its_id"] in set(back)]:
        old = {column: sa.cast(sa.bindparam(f"old_{column.name}", type_=sa.Text), column.type) for column in kept}
        context.connection.execute(sa.update(table).where(table.c.id == sa.bindparam("its_id")).values(old), own)
    is_over = sa.select(ONE).where(workflow.id == job.workflow_id, workflow.cancelled_at.is_not(None)).correlate(job)
    may = [job.id.in_(ids), status_in(job.status, (JobStatus.CANCELLED,)), sa.not_(is_over.exists())]
    retried = context.connection.execute(retry_jobs(*may, as_before=True, locked="skip", job=job)).all()
    changed = [*back, *(row.id for row in retried if row.changed)]
    waits = context.count(sa.select(ONE).where(job.id.in_(changed), status_in(job.status, (JobStatus.BLOCKED,))))
    return Done(len(changed), len(set(ids).difference(changed)), variants={"waits": waits})


UNDO_ACTIONS = (
    *(
        PageAction(
            name, label, "Cancelled {n}, because they had not started.", "cancel",
            lambda context: _undo(context, "retry", _end_again), target=("number",),
            variants={"failed": "Failed again, as before the retry: {n}."},
        ) for name, label in (("undo", "Undo what has not started"), ("undo_by_cancel", "Cancel what has not started"))
    ),
    PageAction(
        "undo_cancel", "Undo", "Back in the queue, as before the cancel: {n}.", "retry",
        lambda context: _undo(context, "cancel", _bring_back), target=("number",),
        variants={name: text for name, (_, text) in WAITS.items()},
        left="another job has their unique key, their workflow was cancelled, or another transaction has locked them",
    ),
)  # fmt: skip

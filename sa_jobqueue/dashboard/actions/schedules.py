"""Actions on schedules and workers. A viewer may act on schedules whose jobs go to one of the viewer's queues."""

from __future__ import annotations

from collections.abc import Callable
from datetime import tzinfo
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from ...enqueueing.backfill import Backfill, plan_backfill
from ...errors import ConfigurationError, OptionError
from ...models import Schedule
from ...rules.schedules import rule_of, zone_of
from ...sql.readings.depths import list_workers
from ...sql.workers import MOST_SLOTS, checked_slots
from ...statements import drain_workers, list_schedules, pause_schedules, resume_schedules, run_schedules, set_slots
from ..access import Action
from ..query import A_TIME, as_id
from ..refusals import BadInput
from ..request import Missing, PageContext
from . import Done, PageAction

#: The most ticks of a backfill, which are computed while the viewer waits.
MOST = 5_000
#: The most characters of a reason.
_REASON = 300


def schedule_of(context: PageContext) -> type[Schedule]:
    """The mapped class of the schedules."""
    return context.tables.schedule


def reached_schedules(context: PageContext) -> list[sa.ColumnElement[bool]]:
    """The criteria of the schedules that the viewer may see. Tenants see none."""
    if context.access.is_partial:
        return [sa.false()]
    return [] if context.queues is None else [schedule_of(context).queue.in_(sorted(context.queues))]


def found_schedule(context: PageContext, id: str) -> sa.RowMapping:
    """The schedule with this id, a row of `list_schedules`. Raises BadInput, and Missing."""
    schedule = schedule_of(context)
    statement = list_schedules(job=context.job).where(schedule.id == as_id("id", id), *reached_schedules(context))
    row = context.connection.execute(statement).mappings().one_or_none()
    if row is None:
        raise Missing(f"There is no schedule {id}.")
    return row


def zone_in(row: sa.RowMapping) -> tzinfo:
    """The zone of the schedule. Raises BadInput for an invalid rule."""
    try:
        return zone_of(rule_of(row["expression"], row["timezone"]))
    except OptionError as error:
        raise BadInput("rule", row["expression"], str(error)) from error


def plan_of(context: PageContext, row: sa.RowMapping, zone: tzinfo, *, lock: bool) -> Backfill:
    """The ticks of a backfill, from the form's `from` on and before its `to`. Raises BadInput."""
    start, end = context.query.moment("from", zone), context.query.moment("to", zone)
    if start is None:
        raise BadInput("from", "", A_TIME)
    if end is not None and end <= start:
        raise BadInput("to", context.query.one("to"), "a time after the first one")
    try:
        plan = plan_backfill(context.connection, row["name"], start, end, lock=lock, most=MOST, job=context.job)
    except OptionError as error:
        raise BadInput("from", context.query.one("from"), f"another time: {error}") from error
    if plan is None:
        raise Missing(f"There is no schedule {row['id']}.")
    return plan


def _named(row: sa.RowMapping, **more: Any) -> dict[str, Any]:
    return {"id": [str(row["id"])], "name": [row["name"]], **more}


def _action(
    name: str, label: str, done: str, needs: Action, build: Callable[..., sa.Executable], *, unit: str = "schedule"
) -> PageAction:
    def do(context: PageContext) -> Done:
        row = found_schedule(context, context.query.one("id"))
        schedule = schedule_of(context)
        options = {"reason": _reason(context)} if build is pause_schedules else {}
        statement = build(schedule.id == row["id"], schedule=schedule, **options)
        return Done(len(context.connection.scalars(statement).all()), target=_named(row), of=row["name"])

    return PageAction(name, label, done, needs, do, unit=unit)


def _reason(context: PageContext) -> str:
    who = context.access.who
    given = context.query.one("reason")[:_REASON]
    return f"{given} ({who})" if given and who else given or f"paused by {who or 'an operator'}"


def _backfill(context: PageContext) -> Done:
    row = found_schedule(context, context.query.one("id"))
    plan = plan_of(context, row, zone_in(row), lock=True)
    plan.enqueue(context.connection)
    target = _named(row, **{name: context.query.all(name) for name in ("from", "to") if context.query.one(name)})
    return Done(len(plan.ticks), to="/schedules", of=row["name"], target=target)


SCHEDULE_ACTIONS = (
    _action("pause_schedule", "Pause", "Paused the schedule {of}.", "pause", pause_schedules),
    _action("resume_schedule", "Resume", "Resumed the schedule {of}, from now on.", "pause", resume_schedules),
    _action(
        "run_schedule", "Run now", "Enqueued {n} of the schedule {of}.", "run_schedule", run_schedules, unit="job"
    ),
    PageAction(
        "backfill", "Enqueue them", "Enqueued {n} for past ticks of the schedule {of}.", "backfill", _backfill
    ),
)  # fmt: skip

# ---- Workers.


def may_ask(context: PageContext, action: Action) -> bool:
    """Whether the viewer may ask any worker to do this: not if the viewer sees only some queues, since a worker may serve others."""
    return context.access.may(action) and context.queues is None and not context.access.is_partial


def _asked_worker(context: PageContext, action: Action) -> UUID:
    """The id of the worker that the form names. Raises BadInput, and Missing."""
    given = context.query.one("worker")
    try:
        worker_id = UUID(given)
    except ValueError as error:
        raise BadInput("worker", given, "the id of a worker") from error
    if not may_ask(context, action):
        raise Missing("There is no worker that you may ask.")
    return worker_id


def _asked(context: PageContext, worker_id: UUID, statement: sa.Executable, of: str = "") -> Done:
    """Ask a worker by this statement."""
    asked = context.connection.execute(statement).all()
    workers = context.connection.execute(list_workers(job=context.job)) if asked else ()
    return Done(len(asked), variants={"stale": sum(row.stale for row in workers if row.id == worker_id)}, of=of)


def _drain(context: PageContext) -> Done:
    worker_id = _asked_worker(context, "drain_worker")
    return _asked(context, worker_id, drain_workers(context.tables.worker.id == worker_id, job=context.job))


def _set_slots(context: PageContext) -> Done:
    worker_id = _asked_worker(context, "set_slots")
    name, given = context.query.one("queue"), context.query.one("slots")
    try:
        slots = checked_slots({name: int(given) if given.isascii() and given.isdecimal() else given}, least=0)
    except ConfigurationError as error:
        raise BadInput("slots", f"{name}={given}", f"a queue and 0 to {MOST_SLOTS:,} slots") from error
    statement = set_slots(context.tables.worker.id == worker_id, slots=slots, job=context.job)
    return _asked(context, worker_id, statement, of=f"{name}={given}")


WORKER_ACTIONS = (
    PageAction(
        "drain_worker", "Ask to drain", "Asked. The worker notices within 20 s, finishes its running jobs, and ends.",
        "drain_worker", _drain, target=("worker",), unit="worker",
        variants={
            "stale": "Asked, but the worker is stale. A dead worker never notices; a frozen worker drains once it goes on."
        },
    ),
    PageAction(
        "set_slots", "Set slots", "Asked for {of}. The worker notices within 20 s; it keeps the slots until its process ends.",
        "set_slots", _set_slots, target=("worker", "queue", "slots"), unit="worker",
        variants={"stale": "Asked for {of}, but the worker is stale. A dead worker never notices."},
    ),
)  # fmt: skip

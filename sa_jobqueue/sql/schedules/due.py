"""Schedules: which are due, and the jobs of their ticks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, NamedTuple

import sqlalchemy as sa

from ...errors import OptionError
from ...models import Job, JobMixin, companions_of, schema_function, status_literal
from ...rules.lifecycle import JobStatus
from ...rules.schedules import due_ticks, rule_of
from ..admin import cancel_jobs
from ..parts import ONE, array, epoch, epoch_of, in_seconds, members, rows, table_of
from ..tables import StorePart


def next_look(*, job: type[JobMixin] = Job) -> sa.Select[Any]:
    """Seconds until the next schedule is due; no row if there is no schedule."""
    columns = table_of(companions_of(job).schedule).c
    return (
        sa.select(sa.type_coerce(epoch(columns.due_at) - epoch(sa.func.clock_timestamp()), sa.Float()))
        .where(columns.paused_at.is_(None))
        .order_by(columns.due_at)
        .limit(ONE)
    )


def due_schedules(*, limit: int, only: int | None = None, job: type[JobMixin] = Job) -> sa.Executable:
    """The schedules that are due, locked; schedules that another transaction has locked are left out. `only`: this schedule alone.

    Times come in seconds since 1970, because a `datetime` cannot hold them all; and the database's now() with them.
    """
    columns = table_of(companions_of(job).schedule).c
    this = [] if only is None else [columns.id == sa.bindparam("only_id", only, sa.BigInteger)]
    return (
        sa.select(
            columns.id, columns.name, columns.expression, columns.timezone, columns.missed, columns.catch_up, columns.overlap,
            columns.jitter, columns.pause_after, epoch_of(columns.counts_from), epoch_of(columns.next_at),
            epoch_of(columns.waiting_since), columns.error, epoch(sa.func.now()).label("now"),
        )
        .where(columns.paused_at.is_(None), columns.due_at <= sa.func.now(), *this)
        .order_by(columns.due_at, columns.id)
        .limit(sa.bindparam("page", limit, sa.Integer))
        .with_for_update(key_share=True, skip_locked=True)
    )  # fmt: skip


def live_jobs(ids: Sequence[int], *, job: type[JobMixin] = Job) -> sa.Executable:
    """Those of these schedules that have jobs which have not finished."""
    columns = table_of(job).c
    wanted = rows("wanted", id=array("schedule_ids", ids, sa.BigInteger()))
    # Not EXISTS, which may be planned as a hash over all live jobs.
    live = (
        sa.select(sa.literal_column("true", sa.Boolean))
        .where(columns.schedule_id == wanted.c.id, columns.finished_at.is_(None))
        .limit(ONE)
        .correlate(wanted)
        .scalar_subquery()
    )
    return sa.select(wanted.c.id).where(live)


def failing_schedules(ids: Sequence[int], *, job: type[JobMixin] = Job) -> sa.Executable:
    """Those of these schedules whose last `pause_after` finished jobs have all failed, since they began to count."""
    jobs, table = table_of(job).c, table_of(companions_of(job).schedule)
    last = (
        sa.select(jobs.status)
        .where(jobs.schedule_id == table.c.id, jobs.finished_at >= table.c.counts_from)
        .order_by(jobs.finished_at.desc())
        .limit(table.c.pause_after)
        .correlate(table)
        .subquery("last")
    )
    failed = (
        sa.select(sa.func.count().filter(last.c.status == status_literal(JobStatus.FAILED)))
        .correlate(table)
        .scalar_subquery()
    )
    wanted = table.c.id == sa.func.any(array("schedule_ids", ids, sa.BigInteger()))
    return sa.select(table.c.id).where(wanted, failed >= table.c.pause_after)


def enqueue_ticks(
    *,
    schedules: Sequence[int],
    times: Sequence[float],
    numbers: Sequence[int],
    delays: Sequence[float],
    job: type[JobMixin] = Job,
) -> sa.Executable:
    """Insert a job for each tick: of which schedule it is, when it is, in seconds since 1970, for how many it stands, and how many
    seconds after it the job is due. Returns their ids.

    It calls a function of the schema, because a worker's role may insert no other jobs.
    """
    call = schema_function(
        "enqueue_ticks",
        table_of(companions_of(job).schedule).schema,
        array("tick_schedules", schedules, sa.BigInteger()),
        array("tick_times", times, sa.Float(53)),
        array("tick_numbers", numbers, sa.Integer()),
        array("tick_delays", delays, sa.Float(53)),
        of=sa.BigInteger(),
    )
    return sa.select(call.label("id"))


#: The columns of `move_schedules`, each an array: the schedule, its next tick, when to read it next (None: at the next tick), the
#: last tick for which a job was enqueued, the tick that waits; all in seconds since 1970. And how many ticks were left out.
MOVE: Mapping[str, Any] = {
    "id": sa.BigInteger(), "next_at": sa.Float(53), "due_at": sa.Float(53), "last_tick_at": sa.Float(53), "waiting_since": sa.Float(53),
    "left_out": sa.BigInteger(),
}  # fmt: skip


def move_schedules(*, job: type[JobMixin] = Job, **given: Sequence[Any]) -> sa.Executable:
    """Write the new times of these schedules; see `MOVE`. A schedule without a next tick has no more ticks."""
    table = table_of(companions_of(job).schedule)
    move = rows("move", **{name: array(f"move_{name}", given[name], of) for name, of in MOVE.items()})
    never: sa.ColumnElement[Any] = sa.literal_column("'infinity'::timestamptz")
    return (
        sa.update(table)
        .where(members(table.c.id, sa.select(move.c.id)), table.c.id == move.c.id)
        .values(
            next_at=sa.func.to_timestamp(move.c.next_at),
            due_at=sa.func.coalesce(sa.func.to_timestamp(sa.func.coalesce(move.c.due_at, move.c.next_at)), never),
            last_tick_at=sa.func.coalesce(sa.func.to_timestamp(move.c.last_tick_at), table.c.last_tick_at),
            waiting_since=sa.func.to_timestamp(move.c.waiting_since),
            left_out=table.c.left_out + move.c.left_out,
            error=sa.null(),
        )
    )


def set_aside(id: int, *, error: str, seconds: float, job: type[JobMixin] = Job) -> sa.Executable:
    """Note why a schedule could not be handled. It is tried again after `seconds`.

    Returns its name, and the error that it had before.
    """
    table = table_of(companions_of(job).schedule)
    this = (
        sa.select(table.c.id, table.c.error)
        .where(table.c.id == sa.bindparam("this_id", id, sa.BigInteger))
        .with_for_update(key_share=True)
        .cte("this")
    )
    return (
        sa.update(table)
        .where(table.c.id == this.c.id)
        .values(error=sa.bindparam("reason", error, sa.Text), due_at=in_seconds(seconds, name="delay_seconds"))
        .returning(table.c.name, this.c.error.label("before"))
    )


def pause_failing(ids: Sequence[int], *, job: type[JobMixin] = Job) -> sa.Executable:
    """Pause schedules whose last jobs have failed. Returns their names."""
    schedule = companions_of(job).schedule
    columns = table_of(schedule).c
    return (
        sa.update(table_of(schedule))
        .where(columns.id == sa.func.any(array("schedule_ids", ids, sa.BigInteger())), columns.paused_at.is_(None))
        .values(
            paused_at=sa.func.now(),
            paused_by=sa.literal_column("'failures'"),
            pause_reason=sa.func.concat(
                sa.literal_column("'its last '"), columns.pause_after, sa.literal_column("' jobs have failed'")
            ),
        )
        .returning(columns.name, columns.pause_after)
    )


# ---- Enqueueing the ticks of schedules.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Seconds between two found at a tick that waits for the end of another job.
_TRY_AGAIN = 1.0
#: Seconds until a schedule is tried again that could not be handled.
_SET_ASIDE = 60.0
#: Seconds after which no further ticks of a page are worked out. After an outage of days that may take milliseconds for each
#: schedule.
_MOST_WORK = 0.5


@dataclass(slots=True)
class Ticked:
    """The result of a pass over due schedules."""

    ids: list[int] = field(default_factory=list)
    """The schedules that were due."""
    enqueued: int = 0
    """How many jobs were enqueued."""
    bad: list[tuple[str, str]] = field(default_factory=list)
    """(name, reason) of the schedules that failed for a new reason since the last pass."""
    paused: list[tuple[str, int]] = field(default_factory=list)
    """Schedules that were paused, each with the number of its jobs in a row that have failed."""


class _DueSchedule(NamedTuple):
    """A due schedule, its ticks that are to be enqueued, each with the number it stands for, and the time of the next."""

    row: Any
    first: float
    """The first tick that was not handled."""
    ticks: Sequence[tuple[float, int]]
    next_at: float | None
    left_out: int
    goes_on: bool
    """Whether there are more ticks by now than are enqueued at once."""


class _Move(NamedTuple):
    """The new times of a schedule: see `MOVE`."""

    id: int
    next_at: float | None
    due_at: float | None = None
    last_tick_at: float | None = None
    waiting_since: float | None = None
    left_out: int = 0


class _Step(NamedTuple):
    """The changes for a schedule: the jobs to enqueue, as (schedule, tick, number of ticks, delay); its new times; and whether its live
    jobs are cancelled.
    """

    jobs: Sequence[tuple[int, float, int, float]]
    move: _Move
    cancels: bool = False


class Schedules(StorePart):
    """Enqueueing what is due."""

    def next_look(self, connection: sa.Connection) -> float | None:
        """Seconds until the next schedule is due; None if there is no schedule."""
        found: float | None = connection.scalar(next_look(job=self.job))
        return found

    def enqueue_due(
        self,
        connection: sa.Connection,
        result: Ticked,
        *,
        limit: int,
        random: Callable[[], float],
        only: int | None = None,
    ) -> None:
        """Enqueue the ticks of at most `limit` schedules that are due, and move them on. `only`: of this schedule.

        They are locked until the transaction ends, so a single worker enqueues a tick. `result` is filled also if an error is
        raised: then with what was done until then.
        """
        found: list[_DueSchedule] = []
        until = monotonic() + _MOST_WORK
        for row in connection.execute(due_schedules(limit=limit, only=only, job=self.job)):
            result.ids.append(row.id)
            if found and monotonic() > until:
                continue  # it stays due
            try:
                found.append(_due(row))
            except (OptionError, OverflowError) as error:
                if (name := self.set_aside(connection, row.id, str(error))) is not None:
                    result.bad.append((name, str(error)))
        failing, live = self._failing(connection, found, result), self._live(connection, found)
        steps = [_step(due, live=due.row.id in live, random=random) for due in found if due.row.id not in failing]
        if cancelled := [step.move.id for step in steps if step.cancels]:
            job = self.job
            connection.execute(cancel_jobs(job.schedule_id.in_(cancelled), job.finished_at.is_(None), job=job))
        if jobs := [entry for step in steps for entry in step.jobs]:
            schedules, times, numbers, delays = zip(*jobs, strict=True)
            connection.execute(
                enqueue_ticks(schedules=schedules, times=times, numbers=numbers, delays=delays, job=self.job)
            )
            result.enqueued = len(jobs)
        if steps:
            given = dict(zip(MOVE, zip(*(step.move for step in steps), strict=True), strict=True))
            connection.execute(move_schedules(**given, job=self.job))

    def set_aside(self, connection: sa.Connection, id: int, error: str, *, briefly: bool = False) -> str | None:
        """Note why a schedule could not be handled. Returns its name, or None if the same reason was noted before."""
        seconds = _TRY_AGAIN if briefly else _SET_ASIDE
        statement = set_aside(id, error=_clean(error), seconds=seconds, job=self.job)
        row = connection.execute(statement).first()
        return None if row is None or row.before == _clean(error) else str(row.name)

    def _failing(self, connection: sa.Connection, found: Sequence[_DueSchedule], result: Ticked) -> set[int]:
        """Pause the schedules among these whose jobs fail. Returns their ids."""
        asked = [due.row.id for due in found if due.row.pause_after is not None and due.ticks]
        if not asked:
            return set()
        failing = failing_schedules(asked, job=self.job)
        ids = [row.id for row in connection.execute(failing)]
        if ids:
            paused = connection.execute(pause_failing(ids, job=self.job))
            result.paused = [(row.name, row.pause_after) for row in paused]
        return set(ids)

    def _live(self, connection: sa.Connection, found: Sequence[_DueSchedule]) -> set[int]:
        asked = [due.row.id for due in found if due.row.overlap != "allow" and due.ticks]
        return {row.id for row in connection.execute(live_jobs(asked, job=self.job))} if asked else set()


def _due(row: Any) -> _DueSchedule:
    """The ticks of a schedule that are due by now. Raises OptionError if they cannot be worked out.

    A tick that had to wait for another job is not missed: it is enqueued, together with those that came meanwhile.
    """
    rule = rule_of(row.expression, row.timezone)
    now = _time(row.now, "now()")
    if row.next_at is None:
        next_at = rule.after(_time(row.counts_from, "counts_from"))
    else:
        next_at = _time(row.next_at, "next_at")
    waits = row.waiting_since is not None
    together = waits or (row.missed == "all" and row.overlap != "allow")
    due = due_ticks(
        rule,
        next_at,
        now,
        missed="once" if together else row.missed,
        catch_up=None if waits or row.catch_up is None else timedelta(seconds=row.catch_up),
    )
    ticks = [(at.timestamp(), number) for at, number in due.ticks]
    return _DueSchedule(row, next_at.timestamp(), ticks, due.next_at.timestamp(), due.left_out, due.goes_on)


def _time(seconds: float, what: str) -> datetime:
    try:
        return _EPOCH + timedelta(seconds=seconds)
    except (OverflowError, ValueError) as error:
        raise OptionError(f"{what} is not a time between the years 1 and 9999") from error


def _step(due: _DueSchedule, *, live: bool, random: Callable[[], float]) -> _Step:
    """The changes for the ticks, after `overlap`. `live`: whether a job of the schedule is not finished."""
    row, ticks, left_out = due.row, due.ticks, due.left_out
    if ticks and row.overlap != "allow":
        ticks = [(ticks[-1][0], sum(number for _, number in ticks))]
    clashes = live and bool(ticks)
    if clashes and row.overlap == "queue_one":
        since = due.first if row.waiting_since is None else row.waiting_since
        return _Step((), _Move(row.id, due.first, due_at=row.now + _TRY_AGAIN, waiting_since=since))
    if clashes and row.overlap == "skip":
        left_out, ticks = left_out + ticks[0][1], []
    jobs = [(row.id, at, number, row.jitter * random()) for at, number in ticks]
    move = _Move(
        row.id,
        due.next_at,
        due_at=row.now if due.goes_on else None,
        last_tick_at=ticks[-1][0] if ticks else None,
        left_out=left_out,
    )
    return _Step(jobs, move, cancels=clashes and row.overlap == "cancel_running")


def _clean(error: str) -> str:
    return error.replace("\0", "")[:1_000]

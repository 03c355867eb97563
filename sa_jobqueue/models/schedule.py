"""A schedule as a mapped class."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Protocol, TypeAlias, cast, get_args

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Mapped, mapped_column, validates

from ..errors import OptionError
from ..rules.failures import clean
from ..rules.job_fields import JOB_FIELDS, JobField
from ..rules.retry import Duration, checked_duration
from ..rules.schedules import Every, Missed, expression_of, rule_of
from .base import Base, JsonObject, JsonText, field_checks, partial_index, vacuum_by_traffic

Overlap: TypeAlias = Literal["allow", "skip", "queue_one", "cancel_running"]

#: The smallest `catch_up`, in seconds. With less, each tick would be too old when a worker reads the schedule.
_LEAST_CATCH_UP = 1.0
#: The largest `pause_after`.
_MOST_FAILURES = 1_000


class _Call(Protocol):
    """A `Call`, which is a floor above."""

    @property
    def task(self) -> str: ...
    @property
    def given_meta(self) -> str | None: ...


class _Task(Protocol):
    def plain_call(self, /, *args: Any, **kwargs: Any) -> Any: ...


def _kept(field: JobField, call: _Call) -> Any:
    """The value of a call that a schedule keeps in the column of this field."""
    value = field.read(call)
    if field.column == "meta" and call.given_meta is not None:
        value = call.given_meta  # the additions of middleware belong to a single enqueueing, as the trace of a request
    return JsonText(value) if field.kind == "json" and value is not None else value


class Schedule(Base):
    """A job to be enqueued again and again, at set times.

    `rule`: a cron expression of five fields, "0 7 * * mon-fri", read in `timezone`; or `every(...)`. `job`: a task with the `args`
    of its jobs; or a call, `task.call(...)`, which takes keywords as well and is checked by type checkers. `name`: 1 to 200
    characters, unique among the schedules of the database; by default the task's name.

    `missed`, what to do about ticks at which no worker was there: "once", one job for all of them; "skip", none; "all", a job for
    each. `catch_up`: how late a tick may be enqueued, at least 1, in seconds or as a timedelta; None: however late.

    `overlap`, if a job of this schedule is not finished when the next tick comes: "allow", enqueue another; "skip", leave the tick
    out; "queue_one", enqueue one job when the other has ended, for all ticks meanwhile; "cancel_running", cancel the other.

    `jitter`: each job is due up to this much later than its tick, by chance; in seconds or as a timedelta. `pause_after`: pause
    when this many jobs in a row have failed.

    The jobs have the options of the task, also `expires_in` and `deadline`, which count from when a job is enqueued.

    Raises OptionError for a value that cannot be used, PayloadError for arguments that do not fit the task.
    """

    __tablename__ = "schedule"

    id: Mapped[int] = mapped_column(sa.BigInteger, sa.Identity(always=False), primary_key=True)
    name: Mapped[str]
    expression: Mapped[str]
    """The rule as text: a cron expression, or "every" and an interval."""
    timezone: Mapped[str] = mapped_column(server_default=sa.text("'UTC'"))
    """The name of the zone in which a cron expression is read."""
    missed: Mapped[str] = mapped_column(server_default=sa.text("'once'"))
    catch_up: Mapped[float | None]
    """Seconds; None: however late."""
    overlap: Mapped[str] = mapped_column(server_default=sa.text("'allow'"))
    jitter: Mapped[float] = mapped_column(server_default=sa.text("0"))
    """Seconds."""
    pause_after: Mapped[int | None] = mapped_column(sa.Integer)
    task: Mapped[str]
    args: Mapped[dict[str, Any]] = mapped_column(JsonObject(), server_default=sa.text("'{}'::jsonb"))
    queue: Mapped[str] = mapped_column(server_default=sa.text("'default'"))
    priority: Mapped[int] = mapped_column(sa.SmallInteger, server_default=sa.text("4"))
    max_attempts: Mapped[int] = mapped_column(sa.SmallInteger, server_default=sa.text("10"))
    meta: Mapped[dict[str, Any]] = mapped_column(JsonObject(), server_default=sa.text("'{}'::jsonb"))
    uniqueness: Mapped[dict[str, Any] | None] = mapped_column(JsonObject(none_as_null=True))
    expires_in: Mapped[float | None]
    """Seconds after a job was enqueued by which it must have been started; None: however late."""
    deadline: Mapped[float | None]
    """Seconds after a job was enqueued in which all its attempts must be made; None: however long."""
    concurrency_key: Mapped[str | None] = mapped_column(sa.Text(collation="C"))
    """The key of its jobs: see `Task.options`."""
    units: Mapped[int | None] = mapped_column(sa.SmallInteger)
    """The units of its jobs; None: 1."""
    extras: Mapped[dict[str, Any] | None] = mapped_column(JsonObject(none_as_null=True))
    """The rare attributes of its jobs, as `Job.extras`."""
    created_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
    counts_from: Mapped[datetime] = mapped_column(server_default=sa.func.now())
    """From when the first tick is counted: since the schedule was made, or its rule changed, or its pause ended."""
    next_at: Mapped[datetime | None]
    """The next tick; None until a worker has worked it out."""
    due_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
    """When a worker reads it next."""
    last_tick_at: Mapped[datetime | None]
    """The last tick for which a job was enqueued."""
    waiting_since: Mapped[datetime | None]
    """The tick that waits for the end of the job before it: with `overlap="queue_one"`."""
    left_out: Mapped[int] = mapped_column(sa.BigInteger, server_default=sa.text("0"))
    """Ticks for which no job was enqueued: missed, or because of `overlap`."""
    paused_at: Mapped[datetime | None]
    """Since when it is paused; None: it is not. It may be set."""
    paused_by: Mapped[str | None]
    """Who paused it: "operator"; "failures", see `pause_after`; or "undeclared": no code declares it any more."""
    pause_reason: Mapped[str | None]
    error: Mapped[str | None]
    """Why a worker could not work out its ticks, or enqueue a job; None: it could."""
    declared_at: Mapped[datetime | None]
    """When a worker's code declared it last as it is; None: it was not made by code."""
    declared: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """What code has declared. A column that differs from it was edited by hand, and is left alone."""
    definitions: Mapped[list[str] | None] = mapped_column(ARRAY(sa.Text))
    """Digests of the definitions that code has declared so far; the last is current."""

    def __init__(
        self,
        rule: str | Every,
        job: _Task | _Call,
        /,
        *args: Any,
        name: str | None = None,
        timezone: str = "UTC",
        missed: Missed = "once",
        catch_up: Duration | None = None,
        overlap: Overlap = "allow",
        jitter: Duration = 0.0,
        pause_after: int | None = None,
    ) -> None:
        call: _Call
        given: Any = job
        if isinstance(given, tuple):
            if args:
                raise OptionError(
                    "a call has its arguments already: schedule(rule, task.call(...)) or schedule(rule, task, ...)"
                )
            call = cast(_Call, given)
        elif callable(getattr(given, "plain_call", None)):
            call = given.plain_call(*args)
        else:
            mend = f"by name it is TaskName({job!r})" if isinstance(job, str) else "decorate the function with @task"
            raise OptionError(f"a schedule takes a task or a call, task.call(...), not {job!r}: {mend}")
        if (waiting := getattr(call, "waiting", None)) is not None:
            raise waiting.error(
                "a schedule takes objects with the task, schedule(rule, task, order), and not in a call"
            )
        if getattr(call, "after", None) is not None:
            raise OptionError("a schedule's jobs cannot wait for another job: set after=False")
        if getattr(call, "columns", None):
            raise OptionError(
                "columns of your own are not filled for the jobs of a schedule: give the column a server_default, or leave it out"
            )
        if getattr(call, "run_at", None):  # a delay of 0 is none
            raise OptionError(
                "a schedule says when its jobs are due: give the task no run_at and no delay, but perhaps jitter="
            )
        super().__init__(
            name=call.task if name is None else name,
            expression=rule,
            timezone=timezone,
            missed=missed,
            catch_up=catch_up,
            overlap=overlap,
            jitter=jitter,
            pause_after=pause_after,
            **{field.schedule: _kept(field, call) for field in JOB_FIELDS if field.schedule is not None},
        )
        if missed == "all" and overlap != "allow":
            raise OptionError(f'missed="all" makes several jobs at once, which overlap={overlap!r} does not allow')
        for key in ("expires_in", "deadline"):
            seconds = getattr(self, key)
            if seconds is not None and seconds <= self.jitter:
                raise OptionError(
                    f"a schedule's {key} must be longer than its jitter, {self.jitter:g} s, and not {seconds:g} s: "
                    "some of its jobs would be due too late"
                )
        rule_of(self.expression, self.timezone)

    @validates("name", "timezone")
    def _check_text(self, key: str, value: object) -> str:
        longest = 200 if key == "name" else 100
        if not isinstance(value, str) or not 1 <= len(value) <= longest or clean(value) != value:
            raise OptionError(
                f"a schedule's {key} must be a text of 1 to {longest} characters, without NUL and lone surrogates, not {value!r}"
            )
        if key == "timezone" and "expression" in vars(self):
            rule_of(self.expression, value)
        return value

    @validates("expression")
    def _check_rule(self, key: str, value: object) -> str:
        rule = rule_of(value, vars(self).get("timezone", "UTC"))
        return expression_of(rule)

    @validates("missed", "overlap")
    def _check_choice(self, key: str, value: object) -> object:
        allowed = get_args(Missed if key == "missed" else Overlap)
        if value not in allowed:
            raise OptionError(f"a schedule's {key} must be one of {', '.join(allowed)}, not {value!r}")
        return value

    @validates("catch_up", "jitter")
    def _check_duration(self, key: str, value: Duration | None) -> float | None:
        if value is None and key == "catch_up":
            return None
        seconds = checked_duration(cast(Duration, value), f"a schedule's {key}")
        if key == "catch_up" and seconds < _LEAST_CATCH_UP:
            raise OptionError(
                f"a schedule's {key} must be at least {_LEAST_CATCH_UP:g} second, not {seconds:g}: a worker comes to each tick some "
                'milliseconds late; to leave out missed ticks there is missed="skip"'
            )
        return seconds

    @validates("expires_in", "deadline")
    def _check_limit(self, key: str, value: Duration | None) -> float | None:
        if value is None:
            return None
        if isinstance(value, datetime):
            raise OptionError(
                f"the jobs of a schedule cannot all have the same {'expiry' if key == 'expires_in' else key}, {value}: "
                f"give the task a duration, as in .options({key}=3600)"
            )
        seconds = checked_duration(value, f"a schedule's {key}")
        if seconds == 0:
            raise OptionError(f"a schedule's {key} must be more than 0 seconds, or None")
        return seconds

    @validates("pause_after")
    def _check_number(self, key: str, value: object) -> object:
        if value is not None and (type(value) is not int or not 1 <= value <= _MOST_FAILURES):
            raise OptionError(
                f"a schedule's {key} must be an integer from 1 to {_MOST_FAILURES:,}, or None, not {value!r}"
            )
        return value

    def __repr__(self) -> str:
        state = self.__dict__
        paused = ", paused" if state.get("paused_at") else ""
        return f"<Schedule {state.get('name')!r}: {state.get('expression')!r}{paused}>"

    __table_args__ = (
        sa.UniqueConstraint("name", name="schedule_name_key"),
        sa.CheckConstraint("char_length(name) BETWEEN 1 AND 200", name="schedule_name_check"),
        sa.CheckConstraint("char_length(expression) BETWEEN 1 AND 500", name="schedule_expression_check"),
        sa.CheckConstraint("char_length(timezone) BETWEEN 1 AND 100", name="schedule_timezone_check"),
        sa.CheckConstraint("missed IN ('once', 'skip', 'all')", name="schedule_missed_check"),
        sa.CheckConstraint("catch_up BETWEEN 1 AND 3155760000", name="schedule_catch_up_check"),
        sa.CheckConstraint(
            "overlap IN ('allow', 'skip', 'queue_one', 'cancel_running')", name="schedule_overlap_check"
        ),
        sa.CheckConstraint("jitter BETWEEN 0 AND 3155760000", name="schedule_jitter_check"),
        sa.CheckConstraint("pause_after BETWEEN 1 AND 1000", name="schedule_pause_after_check"),
        sa.CheckConstraint("expires_in > 0 AND expires_in <= 3155760000", name="schedule_expires_in_check"),
        sa.CheckConstraint("deadline > 0 AND deadline <= 3155760000", name="schedule_deadline_check"),
        sa.CheckConstraint("paused_by IN ('operator', 'failures', 'undeclared')", name="schedule_paused_by_check"),
        *field_checks("schedule", concurrency_key=(1, 200)),
        partial_index("schedule_due_idx", "due_at", where="paused_at IS NULL"),
    )


vacuum_by_traffic(Schedule)

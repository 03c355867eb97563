"""Limits as rows: of queues and tasks, of single keys, and what claims keep about them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from .base import Base, partial_index, vacuum_by_traffic

#: What the `concurrency_key` of a limited task's jobs begins with, where they have no key. No key of a user's begins so.
TASK_GROUP = "\x01"


def _rate_check(table: str, prefix: str = "") -> sa.CheckConstraint:
    count, seconds, burst = (f"{prefix}rate_{part}" for part in ("count", "seconds", "burst"))
    return sa.CheckConstraint(
        f"num_nulls({count}, {seconds}, {burst}) IN (0, 3) AND {count} >= 1 AND {seconds} >= 0.000001 AND {seconds} <= 31557600 AND {burst} >= 1",
        name=f"{table}_{prefix}rate_check",
    )


class LimitRow(Base):
    """The limits of a queue, or of a task in any queue. NULL: no such limit."""

    __tablename__ = "job_limit"

    owner: Mapped[str] = mapped_column(sa.Text, primary_key=True)
    """Whether of a "queue" or a "task"."""
    name: Mapped[str] = mapped_column(sa.Text, primary_key=True)
    """Of the queue, or of the task."""
    running: Mapped[int | None] = mapped_column(sa.Integer)
    """How many of its jobs may run at once, over all workers."""
    rate_count: Mapped[int | None] = mapped_column(sa.Integer)
    """How many units may start in `rate_seconds`."""
    rate_seconds: Mapped[float | None]
    rate_burst: Mapped[int | None] = mapped_column(sa.Integer)
    """How many of them at once."""
    key_running: Mapped[int | None] = mapped_column(sa.Integer)
    """How many jobs of each key may run, unless its `KeyRow` has another number."""
    key_rate_count: Mapped[int | None] = mapped_column(sa.Integer)
    key_rate_seconds: Mapped[float | None]
    key_rate_burst: Mapped[int | None] = mapped_column(sa.Integer)
    strict: Mapped[bool] = mapped_column(server_default=sa.text("false"))
    """Whether a key whose job waits to be tried again waits with it."""
    when_full: Mapped[str] = mapped_column(server_default=sa.text("'wait'"))
    """What becomes of the jobs of a key beyond `max_waiting`."""
    max_waiting: Mapped[int | None] = mapped_column(sa.Integer)
    """How many jobs of a key may wait; None: any number."""
    rates: Mapped[list[dict[str, Any]] | None] = mapped_column(JSONB(none_as_null=True))
    """Further rates as JSON: `unit` ("" without a name), `count`, `seconds` and `burst` of each."""
    key_rates: Mapped[list[dict[str, Any]] | None] = mapped_column(JSONB(none_as_null=True))
    """Further rates of each key, unless its `KeyRow` has rates."""
    per: Mapped[dict[str, dict[str, Any]] | None] = mapped_column(JSONB(none_as_null=True))
    """By the name of a key that only limits, as "provider": the columns of a `KeyRow` that hold for each of its values."""
    share: Mapped[str] = mapped_column(server_default=sa.text("'starts'"))
    """What the keys share equally: "starts" or "time"."""
    paused_at: Mapped[datetime | None]
    """Since when nothing of it is started; None: it is not paused."""
    pause_reason: Mapped[str | None]
    broken_until: Mapped[datetime | None]
    """The time until which the task's breaker is open; after this time, one job at a time probes. None: the breaker is closed."""
    held: Mapped[bool] = mapped_column(server_default=sa.text("false"))
    """Whether an operator has changed it, so that code does not."""
    declared: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    """What code declared last."""
    declared_at: Mapped[datetime | None]
    definitions: Mapped[list[str] | None] = mapped_column(ARRAY(sa.Text))
    """Digests of what code has declared so far."""
    version: Mapped[int] = mapped_column(sa.BigInteger, server_default=sa.text("0"))
    """A random number, new with each change."""

    __table_args__ = (
        sa.CheckConstraint("owner IN ('queue', 'task')", name="job_limit_owner_check"),
        sa.CheckConstraint("char_length(name) BETWEEN 1 AND 200", name="job_limit_name_check"),
        sa.CheckConstraint("running >= 1", name="job_limit_running_check"),
        _rate_check("job_limit"),
        sa.CheckConstraint("key_running >= 1", name="job_limit_key_running_check"),
        _rate_check("job_limit", "key_"),
        sa.CheckConstraint(
            "when_full IN ('wait', 'drop_newest', 'replace_oldest_waiting', 'cancel_running')",
            name="job_limit_when_full_check",
        ),
        sa.CheckConstraint("max_waiting BETWEEN 0 AND 1000000", name="job_limit_max_waiting_check"),
        sa.CheckConstraint(
            "jsonb_typeof(rates) = 'array' AND jsonb_typeof(key_rates) = 'array'", name="job_limit_rates_check"
        ),
        sa.CheckConstraint("jsonb_typeof(per) = 'object'", name="job_limit_per_check"),
        sa.CheckConstraint("share IN ('starts', 'time')", name="job_limit_share_check"),
    )


class KeyRow(Base):
    """The limits that an operator has set for a key of a queue, or of a task."""

    __tablename__ = "job_key"

    owner: Mapped[str] = mapped_column(sa.Text, primary_key=True)
    """Whether of a "queue" or a "task". The row of a key that only limits has its name behind it: "queue:provider"."""
    name: Mapped[str] = mapped_column(sa.Text, primary_key=True)
    key: Mapped[str] = mapped_column(sa.Text(collation="C"), primary_key=True)
    running: Mapped[int | None] = mapped_column(sa.Integer)
    """In place of the owner's `key_running`; None: that holds."""
    rate_count: Mapped[int | None] = mapped_column(sa.Integer)
    rate_seconds: Mapped[float | None]
    rate_burst: Mapped[int | None] = mapped_column(sa.Integer)
    rates: Mapped[list[dict[str, Any]] | None] = mapped_column(JSONB(none_as_null=True))
    """Further rates of this key; None: the owner's `key_rates` hold."""
    weight: Mapped[int] = mapped_column(sa.SmallInteger, server_default=sa.text("1"))
    """How many jobs the key gets in its turn."""
    paused_at: Mapped[datetime | None]
    pause_reason: Mapped[str | None]
    broken_until: Mapped[datetime | None]
    """As in `LimitRow`, for the task's jobs with this key."""

    __table_args__ = (
        sa.CheckConstraint("split_part(owner, ':', 1) IN ('queue', 'task')", name="job_key_owner_check"),
        sa.CheckConstraint("char_length(name) BETWEEN 1 AND 200", name="job_key_name_check"),
        sa.CheckConstraint("char_length(key) BETWEEN 1 AND 200", name="job_key_key_check"),
        sa.CheckConstraint("running >= 1", name="job_key_running_check"),
        _rate_check("job_key"),
        sa.CheckConstraint("jsonb_typeof(rates) = 'array'", name="job_key_rates_check"),
        sa.Index("job_key_further_idx", "name", postgresql_where=sa.text("rates IS NOT NULL OR owner LIKE '%:%'")),
        sa.CheckConstraint("weight BETWEEN 1 AND 1000", name="job_key_weight_check"),
        partial_index("job_key_broken_idx", "name", where="broken_until IS NOT NULL"),
    )


class LimitState(Base):
    """The state of the rates and the breaker of a queue, a task, or a key of either. Only workers write it."""

    __tablename__ = "limit_state"

    free_at: Mapped[datetime | None]
    """When the rate would be as if nothing had started: the theoretical arrival time of the generic cell rate algorithm."""
    blocked_until: Mapped[datetime | None]
    """Until when none of its jobs is started, because a handler was rate limited."""
    owed_at: Mapped[datetime | None]
    """When its rate last let something start."""
    owed: Mapped[float | None]
    """How many units of the rate's burst were used up then. So a state says something to another rate, too."""
    lowest_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    """No job of it with a lower id runs, as long as its limit has this `version`."""
    version: Mapped[int | None] = mapped_column(sa.BigInteger)
    failed_at: Mapped[list[datetime] | None] = mapped_column(ARRAY(sa.DateTime(timezone=True)))
    """The times of the last failures that the breaker counts, the newest first."""
    owner: Mapped[str] = mapped_column(sa.Text, primary_key=True)
    name: Mapped[str] = mapped_column(sa.Text, primary_key=True)
    key: Mapped[str] = mapped_column(sa.Text(collation="C"), primary_key=True)
    """Empty: all of its jobs."""


for _model in (LimitRow, KeyRow):
    vacuum_by_traffic(_model)
vacuum_by_traffic(LimitState, also="fillfactor = 50, ")

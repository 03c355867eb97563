"""The tables of durable steps: recorded steps, signals, waits of suspended jobs, and the keys of `once`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from ..arguments.storable import encode_value, load
from ..errors import OptionError
from ..rules.retry import Duration, seconds_of
from .base import Base, partial_index, vacuum_by_traffic

#: The most characters of the name of a step or a signal.
MAX_NAME = 200


def checked_name(name: object, what: str) -> str:
    """The name of a step or a signal. Raises OptionError if it is not a text of 1 to 200 printable characters."""
    if isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable():
        return name
    raise OptionError(f"the name of a {what} is a text of 1 to {MAX_NAME} printable characters, not {name!r:.80}")


class Step(Base):
    """A recorded step of a job: a step that has ended, with its result."""

    __tablename__ = "step"

    job_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    claim_token: Mapped[int] = mapped_column(sa.BigInteger)
    """The token of the claim that recorded the step."""
    unused_by: Mapped[int | None] = mapped_column(sa.BigInteger)
    """The token of the claim whose run completed without calling the step."""
    ended_at: Mapped[datetime] = mapped_column(server_default=sa.func.clock_timestamp())
    took: Mapped[float | None]
    """Seconds that the step ran; None for a wait."""
    revision: Mapped[int] = mapped_column(sa.Integer)
    kind: Mapped[str] = mapped_column(sa.Text)
    """"step", "signal", "timeout" (no signal came in time), "sleep", "join", "callback" or "patch"."""
    name: Mapped[str] = mapped_column(sa.Text(collation="C"), primary_key=True)
    """The full name: "charge", and "charge#2" for the second step of that name."""
    digest: Mapped[str | None] = mapped_column(sa.Text)
    """A hash of the arguments. None: any arguments are accepted, because a job that was held at this step was retried."""
    result: Mapped[Any | None] = mapped_column(JSONB)


class Signal(Base):
    """A message to a handler that waits for its name: `session.add(Signal("order:17:approve", Approval(by="ann")))`.

    The signal commits with the sender's own rows, or not at all. One handler takes the signal, which deletes the row. `payload`: anything that
    pydantic turns into JSON. `expires_in`: seconds or timedelta for which the signal is kept if no handler takes it; 30 days by default.

    Raises OptionError for an invalid name, and PayloadError for a payload that cannot be stored.
    """

    __tablename__ = "signal"

    id: Mapped[int] = mapped_column(sa.BigInteger, sa.Identity(), primary_key=True)
    sent_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
    expires_at: Mapped[datetime] = mapped_column(server_default=sa.text("now() + interval '30 days'"))
    look_at: Mapped[datetime] = mapped_column(server_default=sa.text("'epoch'"))
    """When workers next look for a job that waits for the signal."""
    name: Mapped[str] = mapped_column(sa.Text(collation="C"))
    payload: Mapped[Any] = mapped_column(JSONB, server_default=sa.text("'null'::jsonb"))

    __table_args__ = (
        sa.CheckConstraint("char_length(name) BETWEEN 1 AND 200", name="signal_name_check"),
        sa.Index("signal_name_idx", "name", "id"),
        sa.Index("signal_look_idx", "look_at"),
        sa.Index("signal_expires_idx", "expires_at"),
    )

    def __init__(self, name: str, payload: object = None, *, expires_in: Duration | None = None) -> None:
        self.name = checked_name(name, "signal")
        self.payload = load(encode_value(payload, what=f"signal {name!r}: its payload"))
        if expires_in is not None:
            if (seconds := seconds_of(expires_in, what="Signal(expires_in=...)")) <= 0:
                raise OptionError(f"Signal(expires_in=...) must be more than 0 seconds, not {expires_in!r}")
            later: Any = sa.func.now() + sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds)
            self.expires_at = later


class Wait(Base):
    """What a suspended job waits for: a signal, a time or other jobs."""

    __tablename__ = "wait"

    job_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    since: Mapped[datetime] = mapped_column(server_default=sa.func.now())
    until: Mapped[datetime | None]
    """When the wait ends even if no signal has come or the jobs have not ended; None: never."""
    due_at: Mapped[datetime | None]
    """When workers next look at the wait, even without a signal."""
    resumed_at: Mapped[datetime | None]
    """Since when the job is back in its queue."""
    is_new: Mapped[bool] = mapped_column(server_default=sa.text("true"))
    """Workers have not yet looked for signals that were sent before the wait began."""
    step: Mapped[str] = mapped_column(sa.Text(collation="C"))
    """The name of the step."""
    signal: Mapped[str | None] = mapped_column(sa.Text(collation="C"))
    question: Mapped[Any | None] = mapped_column(JSONB(none_as_null=True))
    """The question to the person who sends the signal: see `as_asked`."""
    jobs: Mapped[list[int] | None] = mapped_column(ARRAY(sa.BigInteger))
    """The ids of the jobs whose ends the job waits for."""

    __table_args__ = (
        partial_index("wait_new_idx", "job_id", where="is_new"),
        partial_index("wait_signal_idx", "signal", "since", where="resumed_at IS NULL AND signal IS NOT NULL"),
        partial_index("wait_held_idx", "job_id", where="resumed_at IS NULL AND signal IS NULL AND due_at IS NULL"),
        partial_index("wait_since_idx", "since", where="resumed_at IS NULL AND signal > ''"),
        partial_index("wait_due_idx", "due_at", where="resumed_at IS NULL AND due_at IS NOT NULL"),
    )


class Inbox(Base):
    """A key of `once`."""

    __tablename__ = "inbox"

    done_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
    key: Mapped[str] = mapped_column(sa.Text(collation="C"), primary_key=True)

    __table_args__ = (
        sa.CheckConstraint("char_length(key) BETWEEN 1 AND 500", name="inbox_key_check"),
        sa.Index("inbox_done_idx", "done_at"),
    )


vacuum_by_traffic(Step)
vacuum_by_traffic(Signal)
vacuum_by_traffic(Wait, also="fillfactor = 70, ")
vacuum_by_traffic(Inbox)

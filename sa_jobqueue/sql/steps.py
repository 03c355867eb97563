"""Durable steps: record a step under the fence of the claim, take a signal, suspend a job, and put it back into its queue."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple, overload

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from ..errors import OptionError
from ..models import Job, JobMixin, companions_of, schema_function, status_literal
from ..rules.lifecycle import Change, JobStatus
from ..rules.retry import Duration
from .apply import Answer, Outcomes
from .ends import fence
from .parts import (
    ONE,
    columns_of,
    epoch,
    in_calendar,
    in_seconds,
    materialized,
    members,
    packed,
    packed_texts,
    seconds_since,
    table_of,
)  # fmt: skip
from .tables import Compiled

#: The most characters of a key of `once`.
_MAX_KEY = 500


class Recorded(NamedTuple):
    """A recorded step. `kind`: see `Step.kind`. `result`: JSON text, or None."""

    name: str
    kind: str
    revision: int = 1
    digest: str | None = None
    result: str | None = None
    is_ours: bool = True
    """Whether this claim recorded the step."""


class Awaiting(NamedTuple):
    """The wait from an earlier run of the job: the name of its step, and the seconds until it ends; None: it has no end."""

    step: str
    seconds: float | None


class WaitFor(NamedTuple):
    """The signal, time or jobs that a job is suspended for: see `Wait`. `seconds` or `at`: the end of the wait. `question`: JSON text."""

    step: str
    signal: str | None = None
    seconds: float | None = None
    at: datetime | None = None
    question: str | None = None
    jobs: Sequence[int] | None = None

    def __str__(self) -> str:
        if self.signal is not None:
            return f"signal {self.signal!r}"
        if self.jobs is not None:
            return f"the ends of the jobs {', '.join(map(str, self.jobs))}"
        if self.at is not None:
            return self.at.isoformat(sep=" ")
        if self.seconds is not None:
            return f"{self.seconds:g} s to pass"
        return f"a retry, because step {self.step!r} has other arguments"


class Resumed(NamedTuple):
    """The result of `resume_waiting`: the number of jobs put back, whether to call it again at once, and the seconds until the next wait is due."""

    jobs: int
    busy: bool
    due_in: float | None


def _held(table: sa.Table) -> sa.CTE:
    """The job, if the claim is still valid. Its lock makes a rescue wait until this statement has committed."""
    valid = fence(
        table, id=sa.bindparam("of_job", type_=sa.BigInteger), token=sa.bindparam("token", type_=sa.BigInteger)
    )
    return materialized(sa.select(table.c.id).where(valid).with_for_update(key_share=True), "held")


def _no_longer_waits(job: type[JobMixin], once: sa.CTE) -> sa.CTE:
    """Delete the wait of this step, if `once` has a row."""
    waits = table_of(companions_of(job).wait)
    mine = (
        waits.c.job_id == sa.bindparam("of_job", type_=sa.BigInteger),
        waits.c.step == sa.bindparam("step", type_=sa.Text),
        sa.select(once.c[0]).exists(),
    )
    return sa.delete(waits).where(*mine).cte("over")


_VALUES = ("claim_token", "revision", "kind", "name", "digest", "took", "result")


def record_step(*, job: type[JobMixin] = Job) -> sa.Executable:
    """Record a step that has ended, and end its wait. Returns a row if the claim is still valid.

    Parameters: of_job, token, step, kind, revision, digest, took, result (JSON text).
    """
    table, steps = table_of(job), table_of(companions_of(job).step)
    held = _held(table)
    values = (
        sa.bindparam("token", type_=sa.BigInteger), sa.bindparam("revision", type_=sa.Integer), sa.bindparam("kind", type_=sa.Text),
        sa.bindparam("step", type_=sa.Text), sa.bindparam("digest", type_=sa.Text), sa.bindparam("took", type_=sa.Float(53)),
        sa.cast(sa.bindparam("result", type_=sa.Text), JSONB),
    )  # fmt: skip
    # The row exists if the answer of the first try was lost, or if it has an older revision.
    written = insert(steps).from_select(["job_id", *_VALUES], sa.select(held.c.id, *values), include_defaults=False)
    again = {name: written.excluded[name] for name in _VALUES} | {"ended_at": sa.func.clock_timestamp()}
    return (
        written.on_conflict_do_update(index_elements=["job_id", "name"], set_=again)
        .returning(steps.c.job_id)
        .add_cte(held, _no_longer_waits(job, held))
    )


def take_signal(*, job: type[JobMixin] = Job) -> sa.Executable:
    """Take the oldest signal of this name and record it as the result of a step, if the claim is still valid.

    It skips signals that another handler is taking. Parameters: of_job, token, step, signal. Returns a row with the payload as JSON text if it
    took a signal.
    """
    tables = companions_of(job)
    table, steps, signals = table_of(job), table_of(tables.step), table_of(tables.signal)
    held = _held(table)
    oldest = (
        sa.select(signals.c.id)
        .where(
            signals.c.name == sa.bindparam("signal", type_=sa.Text),
            signals.c.expires_at > sa.func.now(),
            sa.select(held.c.id).exists(),
        )
        .order_by(signals.c.id)
        .limit(ONE)
        .with_for_update(skip_locked=True, of=signals)
        .scalar_subquery()
    )
    taken = sa.delete(signals).where(signals.c.id == oldest).returning(signals.c.payload).cte("taken")
    made: Any = sa.select(
        held.c.id, sa.bindparam("token", type_=sa.BigInteger), sa.literal_column("1"), sa.literal_column("'signal'"),
        sa.bindparam("step", type_=sa.Text), taken.c.payload,
    ).select_from(held.join(taken, sa.true()))  # fmt: skip
    names = ["job_id", "claim_token", "revision", "kind", "name", "result"]
    written = sa.insert(steps).from_select(names, made, include_defaults=False)
    return written.returning(sa.cast(steps.c.result, sa.Text)).add_cte(held, taken, _no_longer_waits(job, taken))


def read_steps(*, job: type[JobMixin] = Job) -> sa.Executable:
    """The recorded steps of a job. The wait of the job is a row of the kind "wait", whose result is the number of seconds that are left.

    Parameters: of_job, token.
    """
    tables = companions_of(job)
    steps, waits = table_of(tables.step).c, table_of(tables.wait).c
    of_job = sa.bindparam("of_job", type_=sa.BigInteger)
    left = sa.cast(epoch(waits.until) - epoch(sa.func.clock_timestamp()), sa.Text)
    return sa.union_all(
        sa.select(
            steps.name, steps.kind, steps.revision, steps.digest, sa.cast(steps.result, sa.Text),
            steps.claim_token == sa.bindparam("token", type_=sa.BigInteger),
        ).where(steps.job_id == of_job),
        sa.select(
            waits.step, sa.literal_column("'wait'"), ONE, sa.null(), left, sa.literal_column("false", sa.Boolean)
        ).where(waits.job_id == of_job),
    )  # fmt: skip


def note_unused(*, job: type[JobMixin] = Job) -> sa.Executable:
    """Mark the recorded steps that a completing run has not called. Parameters: of_job, token, names.

    It needs no fence, because only marks of the job's last claim are shown.
    """
    steps = table_of(companions_of(job).step)
    names = sa.cast(sa.bindparam("names", type_=sa.Text), sa.ARRAY(sa.Text))
    mine = steps.c.job_id == sa.bindparam("of_job", type_=sa.BigInteger), steps.c.name == sa.func.any(names)
    return sa.update(steps).where(*mine).values(unused_by=sa.bindparam("token", type_=sa.BigInteger))


def step_columns(steps: sa.FromClause, of: sa.FromClause, *, most: int | None = None) -> list[sa.Label[Any]]:
    """The columns of `job_steps`. `of`: the jobs."""
    result: sa.ColumnElement[Any] = steps.c.result
    size: sa.ColumnElement[Any] = sa.func.pg_column_size(result)
    if most is not None:
        bound: sa.ColumnElement[int] = sa.literal_column(str(most))
        # Two tests: the stored size may be that of a compressed value, and a large value must not become a text only to be measured.
        # The stored size may be that of a compressed value. What is large is not made into text to be measured.
        size = sa.case((size <= bound, sa.func.octet_length(sa.cast(result, sa.Text))), else_=size)
        result = sa.case((size <= bound, result))
    completed = of.c.status == status_literal(JobStatus.COMPLETED)
    unused = sa.and_(completed, steps.c.unused_by == of.c.claim_token)
    orphaned = sa.func.coalesce(unused, sa.literal_column("false"), type_=sa.Boolean())
    left_out = sa.case((result.is_(None), size))
    named = {"orphaned": orphaned, "size": left_out, "result": sa.type_coerce(result, JSONB)}
    plain = columns_of(steps.c, "name kind revision ended_at took")
    return [*(column.label(column.name) for column in plain), *(column.label(name) for name, column in named.items())]


def job_steps(id: int, *, most: int | None = None, job: type[JobMixin] = Job) -> sa.Select[Any]:
    """The recorded steps of a job, in the order in which they ended.

    Columns: `name`; `kind`, see `models.Step`; `revision`; `ended_at`; `took`, in seconds, NULL for waits; `orphaned`, whether the job completed
    without calling the step; `result`; `size`, the bytes of a result that is left out. `most`: results of more bytes are left out.
    """
    table, steps = table_of(job), table_of(companions_of(job).step)
    return (
        sa.select(*step_columns(steps, table, most=most))
        .select_from(steps.outerjoin(table, table.c.id == steps.c.job_id))
        .where(steps.c.job_id == sa.bindparam("job_id", id, sa.BigInteger))
        .order_by(steps.c.ended_at, steps.c.name)
    )


def differs(job: type[JobMixin]) -> sa.ColumnElement[bool]:
    """Whether a job is held because the arguments of a step differ from the recorded arguments."""
    table, waits = table_of(job), table_of(companions_of(job).wait)
    held = sa.select(ONE).where(waits.c.job_id == table.c.id, *_waits_for_nothing(waits)).correlate(table).exists()
    return sa.and_(table.c.status == status_literal(JobStatus.BLOCKED), table.c.blocked_by.is_(None), held)


def _waits_for_nothing(waits: sa.Table) -> list[sa.ColumnElement[bool]]:
    return [waits.c[name].is_(None) for name in ("resumed_at", "signal", "due_at")]


def held_jobs(*, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """The jobs that are held because the arguments of a step differ from its record: their ids, and the names of the steps."""
    table, waits = table_of(job), table_of(companions_of(job).wait)
    found = sa.select(waits.c.job_id, waits.c.step).join(table, table.c.id == waits.c.job_id)
    return found.where(*_waits_for_nothing(waits), differs(job)).order_by(waits.c.job_id).limit(limit)


def forget_waits(ids: sa.Select[Any], *, job: type[JobMixin]) -> tuple[sa.CTE, ...]:
    """CTEs for the statement that retries jobs. They delete the waits, and let a step at which a job was held accept any arguments."""
    waits, steps = table_of(companions_of(job).wait), table_of(companions_of(job).step)
    over = (
        sa.delete(waits).where(members(waits.c.job_id, ids)).returning(waits.c.job_id, waits.c.step).cte("waits_over")
    )
    accepted = sa.update(steps).where(steps.c.job_id == over.c.job_id, steps.c.name == over.c.step).values(digest=None)
    return over, accepted.cte("accepted")


def begin_wait(*, job: type[JobMixin] = Job) -> sa.Executable:
    """Insert the wait of a job that was just suspended. If the job already waited in this step, the wait keeps its beginning and its end.

    Parameters: of_job, step, signal, seconds, at, question (JSON text), jobs.
    """
    waits = table_of(companions_of(job).wait)
    seconds = sa.bindparam("seconds", type_=sa.Float(53))
    until = sa.func.coalesce(sa.bindparam("at", type_=sa.DateTime(timezone=True)), in_seconds(seconds))
    others = sa.cast(sa.bindparam("jobs", type_=sa.Text), sa.ARRAY(sa.BigInteger))
    due = sa.case((others.is_not(None), sa.func.now()), else_=until)
    names = ["job_id", "step", "signal", "until", "due_at", "question", "jobs"]
    values = (
        sa.bindparam("of_job", type_=sa.BigInteger), sa.bindparam("step", type_=sa.Text), sa.bindparam("signal", type_=sa.Text), until, due,
        sa.cast(sa.bindparam("question", type_=sa.Text), JSONB), others,
    )  # fmt: skip
    written = insert(waits).from_select(names, sa.select(*values), include_defaults=False)
    goes_on = waits.c.step == written.excluded.step
    again: dict[str, Any] = {name: written.excluded[name] for name in names[1:]} | {
        "resumed_at": sa.null(),
        "is_new": sa.true(),
    }
    for name, kept in (("until", waits.c.until), ("since", waits.c.since)):
        again[name] = sa.case((goes_on, kept), else_=written.excluded[name])
    again["due_at"] = sa.case((goes_on & others.is_(None), waits.c.until), else_=written.excluded.due_at)
    return written.on_conflict_do_update(index_elements=["job_id"], set_=again)


def send_signal(
    name: str, payload: object = None, *, expires_in: Duration | None = None, job: type[JobMixin] = Job
) -> sa.Executable:
    """Insert a `Signal`, in the caller's transaction. Returns its id. Raises what `Signal` raises."""
    model = companions_of(job).signal
    given = model(name, payload, expires_in=expires_in)
    values = {key: value for key, value in vars(given).items() if key in {"name", "payload", "expires_at"}}
    return sa.insert(model).values(**values).returning(model.id)


def waits_for_signals(*, limit: int, job: type[JobMixin] = Job) -> sa.Select[Any]:
    """The jobs that wait for a signal, the longest wait first: job_id, task, queue, signal, step, question, since, until and seconds."""
    table, waits = table_of(job).c, table_of(companions_of(job).wait).c
    by_index = waits.resumed_at.is_(None), waits.signal > sa.literal_column("''", sa.Text)
    waiting = *by_index, table.status == status_literal(JobStatus.BLOCKED)
    times = [in_calendar(time).label(time.key) for time in (waits.since, waits.until)]
    columns = [*columns_of(waits, "job_id signal step question"), *columns_of(table, "task queue"), *times]
    found = sa.select(*columns, seconds_since(waits.since).label("seconds")).where(*waiting, table.id == waits.job_id)
    return found.order_by(waits.since).limit(sa.bindparam("most", limit, sa.Integer))


def question_for(signal: str, *, job: type[JobMixin] = Job) -> sa.Select[Any]:
    """The question of the job that gets the next signal of this name."""
    waits = table_of(companions_of(job).wait).c
    waiting = sa.select(waits.question).where(waits.signal == signal, waits.resumed_at.is_(None))
    return waiting.order_by(waits.since).limit(ONE)


def read_ticket(signal: str, key: str, expires: int, *, job: type[JobMixin] = Job) -> sa.Executable:
    """Whether the address of a callback has `expired`, whether it was `used`, and the `question` of the job that waits for its signal."""
    inbox = table_of(companions_of(job).inbox)
    return sa.select(
        (epoch(sa.func.now()) >= sa.literal(expires, sa.BigInteger)).label("expired"), sa.select(ONE).where(inbox.c.key == key).exists().label("used"),
        question_for(signal, job=job).scalar_subquery().label("question"),
    )  # fmt: skip


def note_once(key: str, *, job: type[JobMixin] = Job) -> sa.Executable:
    """Insert this key, and return a row if it is new. A second transaction that inserts the key waits until the first one ends."""
    inbox = table_of(companions_of(job).inbox)
    return insert(inbox).values(key=key).on_conflict_do_nothing().returning(inbox.c.key)


@overload
def once(session: Session, key: str, *, job: type[JobMixin] = Job) -> bool: ...
@overload
def once(session: AsyncSession, key: str, *, job: type[JobMixin] = Job) -> Awaitable[bool]: ...
def once(session: Session | AsyncSession, key: str, *, job: type[JobMixin] = Job) -> bool | Awaitable[bool]:
    """Whether this key is new. Call it in the transaction that does the work: a message that comes twice is then handled once.

    Write `if once(session, message.id): ...`, and `await once(...)` with an AsyncSession. A second transaction that asks for the key waits until the
    first one ends, and gets True if the first one rolls back. Keys are kept for 30 days.

    Raises OptionError if the key is not a text of 1 to 500 characters.
    """
    if not (isinstance(key, str) and 0 < len(key) <= _MAX_KEY and "\0" not in key):
        raise OptionError(f"the key of once() is a text of 1 to {_MAX_KEY} characters, not {key!r:.80}")
    if isinstance(session, AsyncSession):
        return session.run_sync(once, key, job=job)
    return session.execute(note_once(key, job=job)).first() is not None


class Steps(Outcomes):
    """The recorded steps of jobs, their signals and waits."""

    def read_steps(self, connection: sa.Connection, id: int, token: int) -> tuple[dict[str, Recorded], Awaiting | None]:
        """The recorded steps of a job by name, and the wait from an earlier run."""
        found, waits = {}, None
        for name, kind, revision, digest, result, is_ours in self._read_steps.rows(
            connection, {"of_job": id, "token": token}
        ):
            if kind == "wait":
                waits = Awaiting(name, None if result is None else float(result))
            else:
                found[name] = Recorded(name, kind, revision, digest, result, is_ours)
        return found, waits

    def record_step(
        self, connection: sa.Connection, id: int, token: int, step: Recorded, *, took: float | None = None
    ) -> bool:
        """Record a step; False: the claim is no longer valid."""
        values = {
            "of_job": id, "token": token, "step": step.name, "kind": step.kind, "revision": step.revision, "digest": step.digest,
            "took": took, "result": step.result,
        }  # fmt: skip
        return bool(self._record_step.rows(connection, values))

    def seconds_now(self, connection: sa.Connection) -> float:
        """The database's time, in seconds since 1970."""
        return connection.scalar(sa.select(epoch(sa.func.now()))) or 0.0

    def take_signal(self, connection: sa.Connection, id: int, token: int, *, step: str, signal: str) -> str | None:
        """Take a signal, and return its payload as JSON text. None: there is no signal, or the claim is no longer valid."""
        values = {"of_job": id, "token": token, "step": step, "signal": signal}
        found = self._take_signal.rows(connection, values)
        return found[0][0] if found else None

    def note_unused(self, connection: sa.Connection, id: int, token: int, names: Sequence[str]) -> None:
        """Mark the recorded steps that a completing run has not called."""
        connection.execute(self._note_unused, {"of_job": id, "token": token, "names": packed_texts(names)})

    def suspend(self, connection: sa.Connection, change: Change, wait: WaitFor) -> Answer:
        """Block a job until `wait` is over, in the caller's transaction. A job whose cancel was requested is cancelled instead.

        It also removes the job's expiry, because a job that has begun does not expire.
        """
        table = table_of(self.job)
        answer = self.apply_one(connection, change)
        if answer is Answer.APPLIED:
            expires = table.c.id == change.id, table.c.expires_at.is_not(None)
            connection.execute(sa.update(table).where(*expires).values(expires_at=None))
            jobs = None if wait.jobs is None else packed(wait.jobs)
            connection.execute(self._begin_wait, {"of_job": change.id, **wait._asdict(), "jobs": jobs})
        return answer

    def resume_waiting(self, connection: sa.Connection, *, most: int) -> Resumed:
        """Put waiting jobs back into their queues."""
        function = schema_function(
            "resume_waiting", table_of(self.job).schema, sa.bindparam("most", most, sa.Integer), of=sa.Integer()
        )
        found: Any = function.table_valued("resumed", "busy", "due_in")
        resumed, busy, due_in = connection.execute(sa.select(found.c.resumed, found.c.busy, found.c.due_in)).one()
        return Resumed(resumed or 0, busy, due_in)

    _read_steps = cached_property(lambda self: Compiled(read_steps(job=self.job)))
    _record_step = cached_property(lambda self: Compiled(record_step(job=self.job)))
    _take_signal = cached_property(lambda self: Compiled(take_signal(job=self.job)))
    _note_unused = cached_property(lambda self: note_unused(job=self.job))
    _begin_wait = cached_property(lambda self: begin_wait(job=self.job))

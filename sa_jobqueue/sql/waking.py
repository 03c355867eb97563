"""Wake-up gates: asking for notifications about new jobs.

A gate is a sequence, used as a cell that belongs to no transaction. It holds the second of the epoch until which some
worker wants to be woken. The INSERT trigger reads it, and is silent when that time is over. A queue's name is hashed to
one of sixteen gates; one more, `gate_any`, holds the latest of their times.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, REGCLASS, UUID, insert
from sqlalchemy.dialects.postgresql import array as pg_array

from ..arguments.ends import JobEnd
from ..models import Job, JobMixin, companions_of, status_in
from ..rules.lifecycle import FINISHED, JobStatus
from ..util.schema import GATES, SCHEMA
from .archived import archived_ends
from .claims import PRIORITIES
from .limits.state import is_keyless, is_later, knows_limits
from .notes import ONCE_KEPT
from .parts import ONE, ZERO, array, columns_of, epoch, in_seconds, packed, packed_texts, rows, table_of
from .readings.depths import due_queues
from .tables import Compiled, StorePart
from .workers import EVERY_QUEUE

#: The notification on a table's channel for a new or changed schedule, in place of a queue's name.
SCHEDULES_CHANGED = "(schedules)"
#: The notification for changed limits, or a free permit.
PERMITS_CHANGED = "(limits)"
#: The notification for jobs that will be due within ten seconds, or that were put back into a queue.
DUE_SOON = "(due)"
#: The notification for signals.
SIGNALS_SENT = "(signals)"
#: The notification for events of workflows that no worker may know.
WORKFLOWS_CHANGED = "(workflows)"


def open_gates(*, queues: Sequence[str] | None, seconds: float, schema: str = SCHEMA) -> sa.Select[Any]:
    """Ask to be woken for `queues`, None: for any, during the next `seconds`. Never shortens what another worker asked for."""
    number: sa.ColumnElement[Any]
    if queues is None:
        number = sa.func.generate_series(ZERO, sa.literal_column(str(GATES - 1)))
    else:
        wanted = rows("wanted", queue=array("queue_names", queues, sa.Text()))
        number = sa.func.hashtext(wanted.c.queue).op("&")(sa.literal_column(str(GATES - 1)))
    each, latest = sa.select(sa.cast(number, sa.Text).label("gate")), sa.select(sa.literal_column("'any'", sa.Text))
    asked = sa.union_all(each, latest).subquery("asked")
    prefix = sa.func.concat(
        sa.func.quote_ident(sa.bindparam("in_schema", schema, sa.Text)), sa.literal_column("'.gate_'")
    )
    return _opened(sa.func.concat(prefix, asked.c.gate), seconds).select_from(asked)


def _opened(gate: Any, seconds: float) -> sa.Select[Any]:
    """Open the gate of this name, or prolong its time, for the next `seconds`."""
    cell = sa.cast(gate, REGCLASS)
    clock = sa.func.extract("epoch", sa.func.clock_timestamp()) + sa.bindparam("open_seconds", seconds, sa.Float)
    until = sa.cast(sa.func.ceil(clock), sa.BigInteger)
    return sa.select(sa.func.setval(cell, sa.func.greatest(until, sa.func.pg_sequence_last_value(cell))))


def channel_of(*, table: str, schema: str = SCHEMA) -> sa.Executable:
    """The channel of a table's notifications."""
    in_schema, of_table = sa.bindparam("in_schema", schema, sa.Text), sa.bindparam("of_table", table, sa.Text)
    name = sa.func.concat(sa.func.quote_ident(in_schema), sa.literal_column("'.'"), sa.func.quote_ident(of_table))
    oid = sa.cast(sa.cast(name, REGCLASS), sa.BigInteger)
    return sa.select(sa.func.concat(sa.literal_column("'sa_jobqueue_'"), oid))


# ---- What an idle worker reads every few seconds, in place of polls of each queue and of searches of each chore.


class Surveyed(NamedTuple):
    """What a survey has found."""

    due_in: Mapping[str, float]
    """By queue, the seconds until its first job is due: 0 or less if it is due. A queue without a job is not in it."""
    work: Collection[str]
    """The names in `work_for_chores` of the chores that may have work."""


def work_for_chores(job: type[JobMixin]) -> Mapping[str, sa.ColumnElement[bool]]:
    """By name, whether maintenance may have something to do. Each costs a probe of an index, which is mostly empty."""
    tables, table, now = companions_of(job), table_of(job).c, sa.func.now()
    workflow = table_of(tables.workflow).c

    def any_in(model: Any, *where: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        return sa.select(ONE).select_from(table_of(model)).where(*where).limit(ONE).scalar_subquery().is_not(None)

    overdue = workflow.deadline_at <= now, workflow.finished_at.is_(None), workflow.cancelled_at.is_(None)
    done = table_of(tables.inbox).c.done_at <= now - ONCE_KEPT
    waits = status_in(table.status, (JobStatus.QUEUED, JobStatus.BLOCKED))
    return {
        "waits": any_in(tables.wait, table_of(tables.wait).c.resumed_at.is_(None)),
        "events": sa.or_(any_in(tables.event), any_in(tables.workflow, *overdue)),
        "late": any_in(job, waits, sa.func.least(table.expires_at, table.deadline_at) <= now),
        "kept": any_in(job, table.purge_at <= now),
        "keys": any_in(tables.unique_key),
        "states": any_in(tables.limit_state),
        "workflows": any_in(tables.workflow),
        "notes": sa.or_(
            any_in(tables.progress),
            any_in(tables.log),
            any_in(tables.step),
            any_in(tables.wait, sa.not_(table_of(tables.wait).c.is_new)),
            any_in(tables.signal),
            any_in(tables.inbox, done),
        ),
    }


def survey(
    *, queues: Sequence[str], but: Sequence[int], known: int | None, seconds: float, job: type[JobMixin] = Job
) -> sa.Executable:
    """Read when the next job of each of these queues is due, except the jobs `but`, and what there is for maintenance to do. The gates
    of the queues are opened for `seconds`. Fails as `claim_jobs` does, where the worker does not know the limits.

    Returns a row for each queue: name, seconds until a job is due, the names of `work_for_chores`, and a number that means nothing.
    """
    table = table_of(job)
    columns = table.c
    queue = rows("queue", name=array("queue_names", queues, sa.Text()))
    slot = rows("slot", level=array("levels", packed(PRIORITIES), sa.SmallInteger()))
    first = (
        sa.select(columns.run_at)
        .where(
            columns.queue == queue.c.name,
            columns.priority == slot.c.level,
            is_keyless(table),
            columns.id != sa.func.all(array("but_ids", but, sa.BigInteger())),
        )
        .order_by(columns.run_at, columns.id)
        .limit(ONE)
        .correlate(queue, slot)
        .lateral("first")
    )
    next_at = sa.select(sa.func.min(first.c.run_at)).select_from(slot.join(first, sa.true())).correlate(queue)
    later = sa.select(columns.run_at).where(columns.queue == queue.c.name, is_later(table)).order_by(columns.run_at)
    next_with_key = later.limit(ONE).correlate(queue)
    found = [sa.case((there, sa.literal_column(f"'{name}'", sa.Text))) for name, there in work_for_chores(job).items()]
    opened = open_gates(queues=queues, seconds=seconds).subquery("opened")
    return sa.select(
        queue.c.name,
        epoch(sa.func.least(next_at.scalar_subquery(), next_with_key.scalar_subquery())) - epoch(sa.func.now()),
        sa.select(sa.func.array_remove(pg_array(found), sa.null())).scalar_subquery(),
        sa.select(sa.func.max(opened.c[0])).scalar_subquery(),
    ).where(knows_limits(table, table_of(companions_of(job).limit), {"queue_names": queues, "known_limits": known}))


# ---- Being woken for new jobs.


class Waking(StorePart):
    """The gates that a worker opens, the channel of its notifications, and what it reads while it is idle."""

    def listen_for(self, connection: sa.Connection, queues: Sequence[str], *, seconds: float) -> None:
        """Ask to be woken for `queues` during the next `seconds`; "*" stands for all queues."""
        wanted = None if EVERY_QUEUE in queues else queues
        connection.execute(open_gates(queues=wanted, seconds=seconds, schema=self.schema_on(connection)))

    def survey(
        self,
        connection: sa.Connection,
        queues: Sequence[str],
        *,
        but: Sequence[int] = (),
        known: int | None = None,
        seconds: float,
    ) -> Surveyed:
        """Read what there is to do now and later, and ask to be woken for `queues` during the next `seconds`."""
        given = {
            "queue_names": packed_texts(queues),
            "but_ids": packed(but),
            "known_limits": known,
            "open_seconds": seconds,
            "in_schema": self.schema_on(connection),
        }
        found = self._survey.rows(connection, given)
        due_in = {queue: seconds for queue, seconds, _, _ in found if seconds is not None}
        return Surveyed(due_in, found[0][2] if found else ())

    _survey = cached_property(
        lambda self: Compiled(survey(queues=[], but=[], known=None, seconds=0.0, job=self.job), binary=True)
    )

    def due_queues(self, connection: sa.Connection) -> set[str]:
        """The queues that have due jobs."""
        return set(connection.scalars(due_queues(job=self.job)))

    def channel(self, connection: sa.Connection) -> str:
        """The channel of the notifications about new jobs."""
        return str(connection.scalar(channel_of(table=self.job.__tablename__, schema=self.schema_on(connection))))


# ---- Waiting for the end of jobs: entering the awaited jobs, and reading their ends.


def ends_of(ids: Sequence[int], *, job: type[JobMixin] = Job) -> sa.Executable:
    """id, task and status of those of these jobs that exist, and of ended jobs the result and the last error."""
    columns = table_of(job).c
    ended = status_in(columns.status, FINISHED)
    last = columns.errors.op("->", return_type=JSONB())(sa.literal_column("-1"))
    asked = rows("asked", id=array("ended_ids", ids, sa.BigInteger()))
    return sa.select(
        *columns_of(columns, "id task status"),
        sa.case((ended, columns.result)).label("result"),
        sa.case((ended, last)).label("error"),
    ).where(columns.id == asked.c.id)


def wait_for_jobs(ids: Sequence[int], *, waiter: uuid.UUID, seconds: float, job: type[JobMixin] = Job) -> sa.Executable:
    """Enter that `waiter` waits for these jobs during the next `seconds`, or prolong that."""
    wanted = rows("wanted", id=array("awaited_ids", ids, sa.BigInteger()))
    source = sa.select(
        wanted.c.id, sa.bindparam("of_waiter", waiter, UUID(as_uuid=True)), in_seconds(seconds, name="wait_seconds")
    ).order_by(wanted.c.id)
    statement = insert(companions_of(job).awaited).from_select(["job_id", "waiter", "expires_at"], source)
    return statement.on_conflict_do_update(
        index_elements=["job_id", "waiter"], set_={"expires_at": statement.excluded.expires_at}
    )


def end_waits(ids: Sequence[int], *, waiter: uuid.UUID, job: type[JobMixin] = Job) -> sa.Executable:
    """Remove the entries of `waiter` for these jobs."""
    awaited = companions_of(job).awaited
    ended = rows("ended", id=array("awaited_ids", ids, sa.BigInteger()))
    return sa.delete(awaited).where(
        awaited.job_id == ended.c.id, awaited.waiter == sa.bindparam("of_waiter", waiter, UUID(as_uuid=True))
    )


def drop_expired_waits(*, job: type[JobMixin] = Job) -> sa.Executable:
    """Delete what processes left behind that were killed while they waited."""
    awaited = companions_of(job).awaited
    return sa.delete(awaited).where(awaited.expires_at <= sa.func.now())


def open_end_gate(*, seconds: float, schema: str = SCHEMA) -> sa.Executable:
    """Let statements that end jobs read `awaited` during the next `seconds`. Never shortens the time that another process asked for."""
    in_schema = sa.func.quote_ident(sa.bindparam("in_schema", schema, sa.Text))
    return _opened(sa.func.concat(in_schema, sa.literal_column("'.gate_end'")), seconds)


# ---- Waiting for the end of jobs.


class EndWaits(StorePart):
    """The awaited jobs, their ends, and the channel of the notifications about them."""

    def ends(self, connection: sa.Connection, ids: Sequence[int]) -> dict[int, JobEnd | None]:
        """The end of each of these jobs: None while it has not ended, and a `JobEnd` that `is_gone` if there is no such job."""
        found: dict[int, JobEnd | None] = {job_id: JobEnd(job_id, None, None, None, None) for job_id in ids}
        for job_id, task, status, result, error in connection.execute(ends_of(ids, job=self.job)):
            last = error if isinstance(error, dict) else None  # plain SQL may have written any JSON
            found[job_id] = JobEnd(job_id, task, status, result, last) if status in FINISHED else None
        return found

    def archived_ends(self, connection: sa.Connection, ids: Sequence[int]) -> dict[int, JobEnd | None]:
        """The ends of those of these jobs that are in the archive."""
        found: dict[int, JobEnd | None] = {}
        for job_id, task, status, result, error in connection.execute(archived_ends(ids, job=self.job)):
            found[job_id] = JobEnd(job_id, task, status, result, error if isinstance(error, dict) else None)
        return found

    def wait_for(
        self, connection: sa.Connection, ids: Sequence[int], *, waiter: uuid.UUID, seconds: float, schema: str
    ) -> None:
        """Ask for notifications about the ends of these jobs during the next `seconds`."""
        connection.execute(
            open_end_gate(seconds=seconds, schema=schema)
        )  # first, because a row says nothing while the gate is closed
        connection.execute(wait_for_jobs(ids, waiter=waiter, seconds=seconds, job=self.job))

    def end_waits(self, connection: sa.Connection, ids: Sequence[int], *, waiter: uuid.UUID) -> None:
        """Remove the entries of `waiter` for these jobs."""
        connection.execute(end_waits(ids, waiter=waiter, job=self.job))

    def drop_expired_waits(self, connection: sa.Connection) -> None:
        """Delete the entries of processes that were killed while they waited."""
        connection.execute(drop_expired_waits(job=self.job))

    def channel_of_ends(self, connection: sa.Connection, *, schema: str) -> str:
        """The channel of the notifications about the ends of awaited jobs, by id."""
        return str(connection.scalar(channel_of(table=self.tables.awaited.__tablename__, schema=schema)))

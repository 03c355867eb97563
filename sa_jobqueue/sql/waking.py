"""Wake-up gates: asking for notifications about new jobs.

A gate is a sequence, used as a cell that belongs to no transaction. It holds the second of the epoch until which some
worker wants to be woken. The INSERT trigger reads it, and is silent when that time is over. A queue's name is hashed to
one of sixteen gates; one more, `gate_any`, holds the latest of their times.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, REGCLASS, UUID, insert

from ..arguments.ends import JobEnd
from ..models import Job, JobMixin, companions_of, status_in
from ..rules.lifecycle import FINISHED
from ..util.schema import GATES, SCHEMA
from .archived import archived_ends
from .parts import ZERO, array, columns_of, in_seconds, rows, table_of
from .readings.depths import due_queues
from .tables import StorePart
from .workers import EVERY_QUEUE

#: The notification on a table's channel for a new or changed schedule, in place of a queue's name.
SCHEDULES_CHANGED = "(schedules)"
#: The notification for changed limits, or a free permit.
PERMITS_CHANGED = "(limits)"
#: The notification for events of workflows that no worker may know.
WORKFLOWS_CHANGED = "(workflows)"


def open_gates(*, queues: Sequence[str] | None, seconds: float, schema: str = SCHEMA) -> sa.Executable:
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


# ---- Being woken for new jobs.


class Waking(StorePart):
    """The gates that a worker opens, and the channel of its notifications."""

    def listen_for(self, connection: sa.Connection, queues: Sequence[str], *, seconds: float) -> None:
        """Ask to be woken for `queues` during the next `seconds`; "*" stands for all queues."""
        wanted = None if EVERY_QUEUE in queues else queues
        connection.execute(open_gates(queues=wanted, seconds=seconds, schema=self.schema_on(connection)))

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

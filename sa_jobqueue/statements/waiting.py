"""Waiting for the end of jobs: saying which are awaited, and looking at what became of them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, REGCLASS, UUID, insert

from ..lifecycle import FINISHED
from ..models import SCHEMA, Awaited, Job, JobMixin, status_in
from .parts import array, in_seconds, rows, table_of

__all__ = ["drop_expired_waits", "end_waits", "ends_of", "open_end_gate", "wait_for_jobs"]


def ends_of(ids: Sequence[int], *, job: type[JobMixin] = Job) -> sa.Executable:
    """Of these jobs, those that are there: id, task, status, and of one that has ended its result and its last error."""
    columns = table_of(job).c
    ended = status_in(columns.status, FINISHED)
    last = columns.errors.op("->", return_type=JSONB())(sa.literal_column("-1"))
    asked = rows("asked", id=array("ended_ids", ids, sa.BigInteger()))
    return sa.select(
        columns.id,
        columns.task,
        columns.status,
        sa.case((ended, columns.result)).label("result"),
        sa.case((ended, last)).label("error"),
    ).where(columns.id == asked.c.id)


def wait_for_jobs(
    ids: Sequence[int], *, waiter: uuid.UUID, seconds: float, awaited: type[Awaited] = Awaited
) -> sa.Executable:
    """Say that `waiter` waits for these jobs during the next `seconds`. Said again, it is for longer."""
    wanted = rows("wanted", id=array("awaited_ids", ids, sa.BigInteger()))
    source = sa.select(
        wanted.c.id, sa.bindparam("of_waiter", waiter, UUID(as_uuid=True)), in_seconds(seconds, name="wait_seconds")
    ).order_by(wanted.c.id)
    statement = insert(awaited).from_select(["job_id", "waiter", "expires_at"], source)
    return statement.on_conflict_do_update(
        index_elements=["job_id", "waiter"], set_={"expires_at": statement.excluded.expires_at}
    )


def end_waits(ids: Sequence[int], *, waiter: uuid.UUID, awaited: type[Awaited] = Awaited) -> sa.Executable:
    """Say that `waiter` does not wait for these jobs any more."""
    ended = rows("ended", id=array("awaited_ids", ids, sa.BigInteger()))
    return sa.delete(awaited).where(
        awaited.job_id == ended.c.id,
        awaited.waiter == sa.bindparam("of_waiter", waiter, UUID(as_uuid=True)),
    )


def drop_expired_waits(*, awaited: type[Awaited] = Awaited) -> sa.Executable:
    """Delete what processes left behind that were killed while they waited."""
    return sa.delete(awaited).where(awaited.expires_at <= sa.func.now())


def open_end_gate(*, seconds: float, schema: str = SCHEMA) -> sa.Executable:
    """Have what ends jobs look at `awaited` during the next `seconds`. Never shortens what another process asked for."""
    name: Any = sa.func.concat(
        sa.func.quote_ident(sa.bindparam("in_schema", schema, sa.Text)), sa.literal_column("'.gate_end'")
    )
    gate = sa.cast(name, REGCLASS)
    clock = sa.func.extract("epoch", sa.func.clock_timestamp()) + sa.bindparam("open_seconds", seconds, sa.Float)
    until = sa.cast(sa.func.ceil(clock), sa.BigInteger)
    return sa.select(sa.func.setval(gate, sa.func.greatest(until, sa.func.pg_sequence_last_value(gate))))

"""Making jobs in bulk: one INSERT over arrays, of the same text for one job and for 100,000."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    DateTime,
    Executable,
    Float,
    SmallInteger,
    Text,
    cast,
    func,
    insert,
    select,
)
from sqlalchemy.dialects.postgresql import JSONB

from ..models import Job
from ..options import Call
from ._parts import array, in_seconds, rows, table_of

__all__ = ["insert_jobs"]


def insert_jobs(calls: Iterable[Call], *, job: type[Job] = Job) -> Executable:
    """Insert a job for each call (see `Task.call`); delays count from the database's now().

    Returns the column `id`, in the order of the calls.
    """
    given = _parameters(calls)
    table = table_of(job)
    call = rows(
        "call",
        task=array("call_task", given["call_task"], Text()),
        args=array("call_args", given["call_args"], Text()),
        queue=array("call_queue", given["call_queue"], Text()),
        priority=array("call_priority", given["call_priority"], SmallInteger()),
        max_attempts=array("call_max_attempts", given["call_max_attempts"], SmallInteger()),
        time=array("call_time", given["call_time"], DateTime(timezone=True)),
        delay=array("call_delay", given["call_delay"], Float(53)),
        meta=array("call_meta", given["call_meta"], Text()),
    )
    source = select(
        call.c.task,
        cast(call.c.args, JSONB),
        call.c.queue,
        call.c.priority,
        call.c.max_attempts,
        func.coalesce(call.c.time, in_seconds(call.c.delay)),
        cast(call.c.meta, JSONB),
    )
    columns = ["task", "args", "queue", "priority", "max_attempts", "run_at", "meta"]
    return insert(job).from_select(columns, source, include_defaults=False).returning(table.c.id)


def _parameters(calls: Iterable[Call]) -> dict[str, Any]:
    """A list for each parameter of the statement, by its name."""
    columns: Sequence[Sequence[Any]] = list(zip(*calls, strict=True)) or [()] * len(Call._fields)
    task, args, queue, priority, max_attempts, due, meta = columns
    return {
        "call_task": list(task),
        "call_args": list(args),
        "call_queue": list(queue),
        "call_priority": list(priority),
        "call_max_attempts": list(max_attempts),
        "call_time": [one.isoformat() if isinstance(one, datetime) else None for one in due],
        "call_delay": [one.total_seconds() if isinstance(one, timedelta) else None for one in due],
        "call_meta": list(meta),
    }

"""The condition of the database that the queue lives in, as typed values: for `doctor`, for metrics and for pages.

    with engine.connect() as connection:
        health = read_health(connection)
    print(health.server.connections, [table.dead for table in health.tables])

Each part can be read alone: `read_server`, `read_holders`, `read_tables` and so on are one statement each.
"""

from .limits import LimitUse, PausedKey, read_limit_uses, read_paused_keys, read_ready_keys
from .one_job import JobSeen, read_job
from .read import (
    read_depths,
    read_health,
    read_holders,
    read_indexes,
    read_io,
    read_lock_waits,
    read_next_ids,
    read_overdue,
    read_server,
    read_since_first_job,
    read_slots,
    read_standbys,
    read_tables,
)
from .sizes import IndexSize, NextId, TableSize
from .values import BlockIO, Depth, Health, Holder, LockWait, Overdue, Server, Slot, Standby
from .work import QueueSeen, WorkerSeen, Working, read_workers, read_working
from .workflows import BehindWorkflow, WorkflowCounts, read_behind_workflows, read_workflows

__all__ = [
    "BehindWorkflow",
    "BlockIO",
    "Depth",
    "Health",
    "Holder",
    "IndexSize",
    "JobSeen",
    "LimitUse",
    "LockWait",
    "NextId",
    "Overdue",
    "PausedKey",
    "QueueSeen",
    "Server",
    "Slot",
    "Standby",
    "TableSize",
    "WorkerSeen",
    "WorkflowCounts",
    "Working",
    "read_behind_workflows",
    "read_depths",
    "read_health",
    "read_holders",
    "read_indexes",
    "read_io",
    "read_job",
    "read_limit_uses",
    "read_lock_waits",
    "read_next_ids",
    "read_overdue",
    "read_paused_keys",
    "read_ready_keys",
    "read_server",
    "read_since_first_job",
    "read_slots",
    "read_standbys",
    "read_tables",
    "read_workers",
    "read_workflows",
    "read_working",
]

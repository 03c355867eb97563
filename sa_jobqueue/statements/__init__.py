"""The SQL of the queue, as Core expressions: builders take keywords and return an executable; they see no connection.

>>> from sqlalchemy.dialects import postgresql
>>> statement = claim_jobs(worker="mine", queues={"mail": 10}, lease=60)
>>> "FOR NO KEY UPDATE SKIP LOCKED" in str(statement.compile(dialect=postgresql.dialect()))
True

Every builder takes the mapped class as `job=Job` or `schedule=Schedule`. A status in them is a literal, because a generic plan cannot prove
that a parameter implies the predicate of a partial index. A batch is arrays, so that the text does not grow with it.
"""

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from .admin import cancel_jobs, discard_jobs, release_jobs, retry_jobs
    from .apply import apply_changes
    from .audit import list_audit, record_action
    from .chosen import criteria_of
    from .claim import claim_jobs
    from .counts import count_jobs
    from .edit import copy_jobs, edit_jobs
    from .insert import insert_jobs
    from .leases import expired_leases, renew_leases
    from .limit_admin import pause, remove_limit, resume, set_limit
    from .limit_list import list_limits
    from .limits import read_limits
    from .notes import job_logs
    from .prune import prune_jobs
    from .schedule_admin import list_schedules, pause_schedules, remove_schedules, resume_schedules, run_schedules
    from .stats import sum_stats
    from .why import why_waiting
    from .workers import drain_workers
    from .workflows.actions import cancel_workflows, pause_workflows, resume_workflows, retry_workflow
    from .workflows.looks import workflow_counts, workflow_nodes
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "admin": "cancel_jobs discard_jobs release_jobs retry_jobs",
            "apply": "apply_changes",
            "audit": "list_audit record_action",
            "chosen": "criteria_of",
            "claim": "claim_jobs",
            "counts": "count_jobs",
            "edit": "copy_jobs edit_jobs",
            "insert": "insert_jobs",
            "leases": "expired_leases renew_leases",
            "limit_admin": "pause remove_limit resume set_limit",
            "limit_list": "list_limits",
            "limits": "read_limits",
            "notes": "job_logs",
            "prune": "prune_jobs",
            "schedule_admin": "list_schedules pause_schedules remove_schedules resume_schedules run_schedules",
            "stats": "sum_stats",
            "why": "why_waiting",
            "workers": "drain_workers",
            "workflows.actions": "cancel_workflows pause_workflows resume_workflows retry_workflow",
            "workflows.looks": "workflow_counts workflow_nodes",
        },
    )

__all__ = [
    "apply_changes",
    "cancel_jobs",
    "cancel_workflows",
    "claim_jobs",
    "copy_jobs",
    "count_jobs",
    "criteria_of",
    "discard_jobs",
    "drain_workers",
    "edit_jobs",
    "expired_leases",
    "insert_jobs",
    "job_logs",
    "list_audit",
    "list_limits",
    "list_schedules",
    "pause",
    "pause_schedules",
    "pause_workflows",
    "prune_jobs",
    "read_limits",
    "record_action",
    "release_jobs",
    "remove_limit",
    "remove_schedules",
    "renew_leases",
    "resume",
    "resume_schedules",
    "resume_workflows",
    "retry_jobs",
    "retry_workflow",
    "run_schedules",
    "set_limit",
    "sum_stats",
    "why_waiting",
    "workflow_counts",
    "workflow_nodes",
]

"""The SQL of the queue, as Core expressions: builders take keywords and return an executable; they see no connection.

>>> from sqlalchemy.dialects import postgresql
>>> statement = claim_jobs(worker="mine", queues={"mail": 10}, lease=60)
>>> "FOR NO KEY UPDATE SKIP LOCKED" in str(statement.compile(dialect=postgresql.dialect()))
True

Every builder takes the mapped class as `job=Job` or `schedule=Schedule`. A status in them is a literal, because a generic plan cannot prove
that a parameter implies the predicate of a partial index. A batch is arrays, so that the text does not grow with it.
"""

from typing import TYPE_CHECKING

from ..util import lazily

__all__ = [
    "apply_changes",
    "cancel_jobs",
    "cancel_workflows",
    "claim_jobs",
    "close_breaker",
    "copy_jobs",
    "count_jobs",
    "criteria_of",
    "discard_jobs",
    "drain_workers",
    "edit_jobs",
    "expired_leases",
    "fork_job",
    "insert_jobs",
    "job_logs",
    "job_steps",
    "list_audit",
    "list_limits",
    "list_schedules",
    "open_breaker",
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
    "send_signal",
    "set_limit",
    "set_slots",
    "sum_stats",
    "why_waiting",
    "workflow_counts",
    "workflow_nodes",
]


if TYPE_CHECKING:
    from ..sql.admin import cancel_jobs, discard_jobs, release_jobs, retry_jobs
    from ..sql.apply import apply_changes
    from ..sql.chosen import criteria_of
    from ..sql.claims import claim_jobs
    from ..sql.edit import copy_jobs, edit_jobs, fork_job, list_audit, record_action
    from ..sql.insert import insert_jobs
    from ..sql.leases import expired_leases, renew_leases
    from ..sql.limits.admin import close_breaker, list_limits, open_breaker, pause, remove_limit, resume, set_limit
    from ..sql.limits.state import read_limits
    from ..sql.notes import job_logs
    from ..sql.prune import prune_jobs
    from ..sql.readings.depths import count_jobs
    from ..sql.readings.stats import sum_stats
    from ..sql.readings.why import why_waiting
    from ..sql.schedules.admin import list_schedules, pause_schedules, remove_schedules, resume_schedules, run_schedules
    from ..sql.steps import job_steps, send_signal
    from ..sql.workers import drain_workers, set_slots
    from ..sql.workflows.actions import cancel_workflows, pause_workflows, resume_workflows, retry_workflow
    from ..sql.workflows.readings import workflow_counts, workflow_nodes
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            ".sql.admin": "cancel_jobs discard_jobs release_jobs retry_jobs",
            ".sql.apply": "apply_changes",
            ".sql.edit": "list_audit record_action copy_jobs edit_jobs fork_job",
            ".sql.chosen": "criteria_of",
            ".sql.claims": "claim_jobs",
            ".sql.readings.depths": "count_jobs",
            ".sql.insert": "insert_jobs",
            ".sql.leases": "expired_leases renew_leases",
            ".sql.limits.admin": "close_breaker open_breaker pause remove_limit resume set_limit list_limits",
            ".sql.limits.state": "read_limits",
            ".sql.notes": "job_logs",
            ".sql.prune": "prune_jobs",
            ".sql.schedules.admin": "list_schedules pause_schedules remove_schedules resume_schedules run_schedules",
            ".sql.readings.stats": "sum_stats",
            ".sql.readings.why": "why_waiting",
            ".sql.workers": "drain_workers set_slots",
            ".sql.steps": "job_steps send_signal",
            ".sql.workflows.actions": "cancel_workflows pause_workflows resume_workflows retry_workflow",
            ".sql.workflows.readings": "workflow_counts workflow_nodes",
        },
    )

"""A job queue that is part of a SQLAlchemy application: PostgreSQL runs the jobs that your own transactions enqueue.

>>> from sqlalchemy.orm import Session
>>> from sa_jobqueue import JobContext, enqueue, task
>>> @task(queue="mail", max_attempts=5)
... def send_receipt(ctx: JobContext, order_id: int) -> None:
...     ctx.logger.info("receipt for order %d", order_id)
>>> with Session() as session:
...     session.add(enqueue(send_receipt, 7))  # commits with your own rows, or not at all
"""

from typing import TYPE_CHECKING

from .util import lazily

__all__ = [
    "INJECTED",
    "ArchivedJob",
    "AsyncBatchContext",
    "AsyncJobContext",
    "Attempt",
    "Batch",
    "BatchContext",
    "BatchJob",
    "Batching",
    "Breaker",
    "Call",
    "CallbackUrl",
    "Callbacks",
    "Cancel",
    "Discard",
    "Ending",
    "Enqueue",
    "Failed",
    "Fresh",
    "Inject",
    "Job",
    "JobContext",
    "JobEnd",
    "JobExplanation",
    "JobMixin",
    "JobQueueError",
    "JobRead",
    "JobStatus",
    "KeyLimits",
    "Limits",
    "Load",
    "Middleware",
    "QueueState",
    "Rate",
    "RateLimited",
    "Registry",
    "Retry",
    "RetryPolicy",
    "Schedule",
    "Secret",
    "SecretKeys",
    "Sensitive",
    "Signal",
    "Snooze",
    "Subject",
    "Task",
    "TaskName",
    "TaskTally",
    "Unique",
    "WaitReason",
    "Worker",
    "WorkerSettings",
    "WorkerState",
    "Workflow",
    "__version__",
    "add_middleware",
    "companions_of",
    "default_registry",
    "enqueue",
    "enqueue_many",
    "enqueue_select",
    "errors",
    "every",
    "explain_job",
    "jobs_relationship",
    "on_change",
    "on_change_revision",
    "on_change_sql",
    "once",
    "remove_middleware",
    "statements",
    "task",
    "wait_for",
]


if TYPE_CHECKING:
    from . import errors, statements
    from .arguments.annotations import Fresh, Load
    from .arguments.batches import AsyncBatchContext, BatchContext, BatchJob
    from .arguments.context import AsyncJobContext, JobContext
    from .arguments.ends import JobEnd
    from .arguments.injected import INJECTED, Inject
    from .arguments.inputs import Failed
    from .arguments.secrets import Secret, SecretKeys, Sensitive
    from .arguments.subjects import Subject
    from .enqueueing.change_triggers import on_change_revision, on_change_sql
    from .enqueueing.jobs import Enqueue, enqueue, enqueue_many
    from .enqueueing.on_change import on_change
    from .enqueueing.select import enqueue_select
    from .errors import JobQueueError
    from .health.explain import JobExplanation, explain_job
    from .models import ArchivedJob, Job, JobMixin, Schedule, Signal, companions_of
    from .models.job import JobRead
    from .models.relationship import jobs_relationship
    from .rules.callbacks import Callbacks, CallbackUrl
    from .rules.lifecycle import JobStatus
    from .rules.limits import Breaker, KeyLimits, Limits, Rate
    from .rules.outcomes import Cancel, Discard, RateLimited, Retry, Snooze
    from .rules.reasons import WaitReason
    from .rules.retry import RetryPolicy
    from .rules.schedules import every
    from .rules.settings import WorkerSettings
    from .rules.tally import TaskTally
    from .sql.steps import once
    from .tasks.batching import Batching
    from .tasks.calls import Call
    from .tasks.decorator import task
    from .tasks.middleware import Attempt, Middleware, add_middleware, remove_middleware
    from .tasks.options import Unique
    from .tasks.registry import Registry, TaskName, default_registry
    from .tasks.tasks import Task
    from .version import __version__
    from .waiting import wait_for
    from .worker import Ending, QueueState, Worker, WorkerState
    from .workflows import Batch, Workflow
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "errors": "errors JobQueueError",
            "statements": "statements",
            "sql.steps": "once",
            "arguments.batches": "AsyncBatchContext BatchContext BatchJob",
            "tasks.batching": "Batching",
            "tasks.calls": "Call",
            "arguments.context": "AsyncJobContext JobContext",
            "enqueueing.jobs": "Enqueue enqueue enqueue_many",
            "enqueueing.on_change": "on_change",
            "enqueueing.change_triggers": "on_change_revision on_change_sql",
            "enqueueing.select": "enqueue_select",
            "health.explain": "JobExplanation explain_job",
            "rules.callbacks": "CallbackUrl Callbacks",
            "rules.lifecycle": "JobStatus",
            "rules.limits": "Breaker KeyLimits Limits Rate",
            "tasks.middleware": "Attempt Middleware add_middleware remove_middleware",
            "models": "ArchivedJob Job JobMixin Schedule Signal companions_of",
            "arguments.annotations": "Fresh Load",
            "arguments.secrets": "Secret SecretKeys Sensitive",
            "arguments.subjects": "Subject",
            "rules.outcomes": "Cancel Discard RateLimited Retry Snooze",
            "arguments.inputs": "Failed",
            "arguments.injected": "INJECTED Inject",
            "models.job": "JobRead",
            "rules.reasons": "WaitReason",
            "arguments.ends": "JobEnd",
            "rules.retry": "RetryPolicy",
            "rules.schedules": "every",
            "rules.settings": "WorkerSettings",
            "models.relationship": "jobs_relationship",
            "rules.tally": "TaskTally",
            "tasks.registry": "Registry TaskName default_registry",
            "tasks.tasks": "Task",
            "tasks.decorator": "task",
            "tasks.options": "Unique",
            "version": "__version__",
            "waiting": "wait_for",
            "worker": "Ending QueueState Worker WorkerState",
            "workflows": "Batch Workflow",
        },
    )

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

from .lazy import lazily

if TYPE_CHECKING:
    from . import errors, statements
    from .calls import Call
    from .context import AsyncJobContext, JobContext
    from .enqueueing.jobs import Enqueue, enqueue, enqueue_many
    from .enqueueing.select import enqueue_select
    from .errors import JobQueueError
    from .explain import JobExplanation, explain_job
    from .lifecycle import JobStatus
    from .limits import KeyLimits, Limits, Rate
    from .middleware import Attempt, Middleware, add_middleware, remove_middleware
    from .models import ArchivedJob, Job, JobMixin, Schedule, companions_of
    from .objects import Fresh, Load, Subject
    from .outcomes import Cancel, Discard, RateLimited, Retry, Snooze
    from .payload import Failed
    from .read import JobRead
    from .reasons import WaitReason
    from .results import JobEnd
    from .retry import RetryPolicy
    from .schedules import every
    from .settings import WorkerSettings
    from .subjects import jobs_relationship
    from .tally import TaskTally
    from .tasks import Registry, Task, TaskName, default_registry, task
    from .unique import Unique
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
            "calls": "Call",
            "context": "AsyncJobContext JobContext",
            "enqueueing.jobs": "Enqueue enqueue enqueue_many",
            "enqueueing.select": "enqueue_select",
            "explain": "JobExplanation explain_job",
            "lifecycle": "JobStatus",
            "limits": "KeyLimits Limits Rate",
            "middleware": "Attempt Middleware add_middleware remove_middleware",
            "models": "ArchivedJob Job JobMixin Schedule companions_of",
            "objects": "Fresh Load Subject",
            "outcomes": "Cancel Discard RateLimited Retry Snooze",
            "payload": "Failed",
            "read": "JobRead",
            "reasons": "WaitReason",
            "results": "JobEnd",
            "retry": "RetryPolicy",
            "schedules": "every",
            "settings": "WorkerSettings",
            "subjects": "jobs_relationship",
            "tally": "TaskTally",
            "tasks": "Registry Task TaskName default_registry task",
            "unique": "Unique",
            "version": "__version__",
            "waiting": "wait_for",
            "worker": "Ending QueueState Worker WorkerState",
            "workflows": "Batch Workflow",
        },
    )

__all__ = [
    "ArchivedJob",
    "AsyncJobContext",
    "Attempt",
    "Batch",
    "Call",
    "Cancel",
    "Discard",
    "Ending",
    "Enqueue",
    "Failed",
    "Fresh",
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
    "remove_middleware",
    "statements",
    "task",
    "wait_for",
]

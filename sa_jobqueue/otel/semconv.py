"""The names that spans and metrics have, in one place: OpenTelemetry's conventions for messaging are still being developed.

As of version 1.45. There were no older names here, so `OTEL_SEMCONV_STABILITY_OPT_IN` has nothing to choose from.
"""

from __future__ import annotations

from typing import Final

__all__ = ["SYSTEM_NAME"]

SYSTEM_NAME: Final = "sa_jobqueue"

# ---- attributes of the conventions

SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGE_ID: Final = "messaging.message.id"
ERROR_TYPE: Final = "error.type"

#: The event of a span that an exception has failed, and its attributes.
EXCEPTION: Final = "exception"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_TRACE: Final = "exception.stacktrace"

#: What producers do. The type is "create", not "send": a job is sent when the application's session writes its row.
ENQUEUE: Final = "enqueue"
CREATE: Final = "create"
#: What workers do, by name and by type.
PROCESS: Final = "process"

# ---- our own

TASK: Final = "sa_jobqueue.task"
ATTEMPT: Final = "sa_jobqueue.attempt"
MAX_ATTEMPTS: Final = "sa_jobqueue.max_attempts"
RESCUES: Final = "sa_jobqueue.rescues"
WAIT: Final = "sa_jobqueue.wait_seconds"
OUTCOME: Final = "sa_jobqueue.outcome"
BUCKET: Final = "le"
"""As Prometheus has it: up to how many seconds, or "+Inf"."""

# ---- metrics

CONSUMED: Final = "messaging.client.consumed.messages"
JOBS: Final = "sa_jobqueue.jobs"
RUN_TIME: Final = "sa_jobqueue.job.run_time"
WAIT_TIME: Final = "sa_jobqueue.job.wait_time"
RUNS: Final = "sa_jobqueue.job.run_time.bucket"
WAITS: Final = "sa_jobqueue.job.wait_time.bucket"

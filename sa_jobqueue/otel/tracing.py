"""A span where a job is enqueued, and a span around each attempt. The context travels in the job's `meta`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import Token
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

from opentelemetry import propagate, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from ..rules.failures import describe, error_text
from ..tasks.calls import Call
from ..tasks.middleware import Attempt, Middleware
from ..util.log import get_logger

logger = get_logger(__name__)

Continue: TypeAlias = Literal["auto", "child", "link"]

#: The key in a job's meta of the context of its enqueueing.
_META: Final = "otel"
#: Seconds after the enqueueing within which an attempt belongs to its trace: with "auto".
_SOON: Final = 60.0
_EMPTY: Final = Context()
_ERRORS: Final = frozenset({"failed", "retried"})


def trace_fields() -> Mapping[str, Any]:
    """The ids of the current span, for the log lines of a handler."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": trace.format_trace_id(context.trace_id), "span_id": trace.format_span_id(context.span_id)}


class Tracing(Middleware):
    """Makes the spans. `continues`: whether an attempt is in the trace of its enqueueing, or only linked to it.

    `enqueue_spans`: whether an enqueueing has a span of its own. Otherwise an attempt is linked to the span that was current then.
    """

    def __init__(self, tracer: Tracer, *, continues: Continue, enqueue_spans: bool) -> None:
        self._tracer, self._continues, self._enqueue_spans = tracer, continues, enqueue_spans

    def before_enqueue(self, call: Call) -> Call:
        """Put the context of this enqueueing into the call's meta, if its trace is recorded."""
        outer = trace.get_current_span()
        context = outer.get_span_context()
        if context.is_valid and not context.is_remote and not outer.is_recording():
            return call  # in a trace that is not recorded: without asking again for each job most of the cost is saved
        if not is_instrumentation_enabled():
            return call
        try:
            return self._traced(call, is_recorded=outer.is_recording() or context.is_valid)
        except Exception as error:  # from a sampler or propagator; or the context cannot be stored
            logger.warning("task %s: its enqueueing is not traced: %r", call.task, error)
            return call

    def _traced(self, call: Call, *, is_recorded: bool) -> Call:
        """`call` with its context. `is_recorded`: whether the current span is recorded, here or where the request came from."""
        if not self._enqueue_spans:
            return _with_context(call, None) if is_recorded else call
        name, attributes = _producer(call.queue)
        span = self._tracer.start_span(name, None, SpanKind.PRODUCER, attributes)
        if not span.is_recording():
            return _with_context(call, None) if is_recorded else call
        try:
            span.set_attribute(TASK, call.task)
            return _with_context(call, trace.set_span_in_context(span))
        finally:
            span.end()

    def around(self, attempt: Attempt) -> AbstractContextManager[object]:
        """A span of the attempt."""
        return _Processing(self, attempt)

    def start(self, attempt: Attempt) -> Context:
        """Begin the attempt's span. Returns the context for the handler."""
        context, links = self._origin(attempt)
        if attempt.of_batch:  # linked to the enqueueings of its jobs, and in the trace of none of them
            context, links = _EMPTY, [link for job in attempt.jobs for link in self._origin(job)[1]]
        name, attributes = _consumer(attempt.queue)
        span = self._tracer.start_span(name, context, SpanKind.CONSUMER, attributes, links)
        if span.is_recording():
            span.set_attributes({TASK: attempt.task, BATCH_COUNT: len(attempt.jobs)} if attempt.of_batch else {
                MESSAGE_ID: str(attempt.job_id), TASK: attempt.task, ATTEMPT: attempt.attempt,
                MAX_ATTEMPTS: attempt.max_attempts, RESCUES: attempt.rescues, WAIT: attempt.waited,
            })  # fmt: skip
            attempt.at_end(lambda outcome, error: _end(span, outcome, error))
        return trace.set_span_in_context(span, context)

    def _origin(self, attempt: Attempt) -> tuple[Context, list[Link]]:
        """The context from the job's enqueueing, and the link to it, if it was recorded."""
        carrier = attempt.meta.get(_META)
        if not isinstance(carrier, dict):
            return _EMPTY, []
        texts = {key: value for key, value in carrier.items() if isinstance(value, str)}
        context = propagate.extract(texts, _EMPTY)
        enqueued = trace.get_current_span(context).get_span_context()
        if not enqueued.is_valid:
            return context, []
        if not self._is_child(attempt):  # only the span is left out: baggage is kept
            context = trace.set_span_in_context(trace.INVALID_SPAN, context)
        return context, [Link(enqueued)]

    def _is_child(self, attempt: Attempt) -> bool:
        if self._continues != "auto":
            return self._continues == "child"
        return attempt.attempt == 1 and time.time() - attempt.enqueued_at.timestamp() <= _SOON


class _Processing:
    """The attempt's span is current while its handler runs. It ends when the outcome is decided."""

    __slots__ = ("_attempt", "_token", "_tracing")

    def __init__(self, tracing: Tracing, attempt: Attempt) -> None:
        self._tracing, self._attempt = tracing, attempt
        self._token: Token[Context]

    def __enter__(self) -> None:
        try:
            context = self._tracing.start(self._attempt)
        except Exception as error:  # as in `before_enqueue`: the job matters more than its trace
            logger.warning("job %d is not traced: %r", self._attempt.job_id, error)
            context = _EMPTY
        self._token = attach(context)

    def __exit__(self, *error: object) -> None:
        detach(self._token)


@lru_cache(maxsize=1_000)
def _producer(queue: str) -> tuple[str, dict[str, str]]:
    """The name of an enqueueing's span, and the attributes by which a sampler may decide."""
    return _described(queue, ENQUEUE, CREATE)


@lru_cache(maxsize=1_000)
def _consumer(queue: str) -> tuple[str, dict[str, str]]:
    return _described(queue, PROCESS, PROCESS)


def _described(queue: str, operation: str, kind: str) -> tuple[str, dict[str, str]]:
    attributes = {SYSTEM: SYSTEM_NAME, DESTINATION: queue, OPERATION_NAME: operation, OPERATION_TYPE: kind}
    return f"{operation} {queue}", attributes


def _end(span: Span, outcome: str, error: BaseException | None) -> None:
    try:
        span.set_attribute(OUTCOME, outcome)
        if outcome in _ERRORS:
            _fail(span, outcome, error)
    finally:
        span.end()


def _fail(span: Span, outcome: str, error: BaseException | None) -> None:
    if error is None:
        span.set_attribute(ERROR_TYPE, outcome)
        span.set_status(Status(StatusCode.ERROR, outcome))
        return
    # Not `record_exception`: it fails where `str(error)` does, and the texts may be of any length.
    entry = describe(error)
    texts = {EXCEPTION_TYPE: entry.type, EXCEPTION_MESSAGE: entry.message, EXCEPTION_TRACE: entry.traceback}
    span.add_event(EXCEPTION, texts)
    span.set_attribute(ERROR_TYPE, entry.type)
    span.set_status(Status(StatusCode.ERROR, error_text(entry.type, entry.message)))


def _with_context(call: Call, context: Context | None) -> Call:
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    return call.with_meta(**{_META: carrier}) if carrier else call


# ---- The names of spans and metrics, in one place: OpenTelemetry's conventions for messaging are still being developed.

SYSTEM_NAME: Final = "sa_jobqueue"

# ---- attributes of the conventions

SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGE_ID: Final = "messaging.message.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"

#: The event of a span that an exception has failed, and its attributes.
EXCEPTION: Final = "exception"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_TRACE: Final = "exception.stacktrace"

#: The operation of producers. Its type is "create", not "send": a job is sent when the application's session writes its row.
ENQUEUE: Final = "enqueue"
CREATE: Final = "create"
#: The operation of workers, and its type.
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

"""Sentry: failed jobs become events with the job's tags, and a trace leads from the enqueueing to the attempt.

    import sentry_sdk
    from sa_jobqueue.sentry import SaJobqueueIntegration

    sentry_sdk.init("https://...", integrations=[SaJobqueueIntegration()])

The extra `sentry` installs the SDK. Call `init` in a module that `--app` imports, so that workers and their child processes call it.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

try:
    import sentry_sdk
except ImportError as error:
    raise ImportError("this needs sentry-sdk: pip install 'sa_jobqueue[sentry]'") from error

from sentry_sdk.integrations import Integration
from sentry_sdk.integrations.dedupe import DedupeIntegration
from sentry_sdk.scope import Scope, add_global_event_processor, use_isolation_scope
from sentry_sdk.utils import event_from_exception

from .errors import JobSuspended
from .rules.failures import name_of
from .rules.outcomes import HandlerOutcome
from .tasks.calls import Call
from .tasks.middleware import Attempt, Middleware, add_middleware
from .util.log import get_logger
from .worker.running import joblog

__all__ = ["SaJobqueueIntegration"]


logger = get_logger(__name__)

_META = "sentry"
_SYSTEM = "sa_jobqueue"
#: The most jobs of a batch that an event lists.
_SHOWN = 100
_LEVELS = {"failed": "error", "retried": "warning"}


class SaJobqueueIntegration(Integration):
    """Reports jobs that have failed finally. `every_failure`: also attempts that are retried, as warnings.

    `trace`: False for no spans, and no connection of an attempt with its enqueueing.
    """

    identifier = "sa_jobqueue"
    origin = "auto.queue.sa_jobqueue"

    def __init__(self, *, every_failure: bool = False, trace: bool = True) -> None:
        self.reported = frozenset({"failed", "retried"} if every_failure else {"failed"})
        self.trace = trace

    @staticmethod
    def setup_once() -> None:
        """Called by the SDK, once in a process. The installed functions check each time whether the integration is active."""
        add_middleware(_reporting)
        add_global_event_processor(_reporting.drop_duplicate)


def _integration() -> SaJobqueueIntegration | None:
    return sentry_sdk.get_client().get_integration(SaJobqueueIntegration)


class _Reporting(Middleware):
    def __init__(self) -> None:
        self._open: set[int] = set()
        """The jobs whose attempts are reported here. Any thread changes it, by atomic steps."""

    def before_enqueue(self, call: Call) -> Call:
        """Put the trace's headers into the call's meta."""
        integration = _integration()
        if integration is None or not integration.trace:
            return call
        try:
            with sentry_sdk.start_span(op="queue.publish", name=call.task, origin=SaJobqueueIntegration.origin) as span:
                _describe(span, {"messaging.system": _SYSTEM, "messaging.destination.name": call.queue})
                headers = {"sentry-trace": sentry_sdk.get_traceparent(), "baggage": sentry_sdk.get_baggage()}
                return call.with_meta(**{_META: {name: value for name, value in headers.items() if value}})
        except Exception as error:  # the job matters more than its trace
            logger.warning("task %s: its enqueueing is not traced: %r", call.task, error)
            return call

    @contextmanager
    def around(self, attempt: Attempt) -> Generator[None]:
        """A scope of the attempt's own, and a transaction. Events that the handler captures have the job's tags, too."""
        integration = _integration()
        if integration is None:
            yield
            return
        with sentry_sdk.isolation_scope() as scope:
            _fill(scope, attempt)
            for job in attempt.jobs:
                self._open.add(job.job_id)
                job.at_end(partial(self._end, job, scope, attempt.of_batch))
            if not integration.trace:
                yield
                return
            outcome: BaseException | None = None
            with _transaction(attempt):
                try:
                    yield
                except (HandlerOutcome, JobSuspended) as raised:  # an outcome, not an error of the transaction
                    outcome = raised
            if outcome is not None:
                raise outcome

    def _end(self, attempt: Attempt, scope: Scope, of_batch: bool, outcome: str, error: BaseException | None) -> None:
        try:
            if of_batch and outcome in _LEVELS:
                scope = scope.fork()
                _tag(scope, attempt)
            self._report(attempt, scope, outcome, error)
        finally:
            self._open.discard(attempt.job_id)

    def _report(self, attempt: Attempt, scope: Scope, outcome: str, error: BaseException | None) -> None:
        integration = _integration()
        if (
            error is None
            or isinstance(error, HandlerOutcome)
            or integration is None
            or outcome not in integration.reported
        ):
            return
        options = sentry_sdk.get_client().options
        mechanism = {"type": SaJobqueueIntegration.identifier, "handled": False}
        event, hint = event_from_exception(error, client_options=options, mechanism=mechanism)
        event.update(
            {"level": _LEVELS[outcome], "fingerprint": [_SYSTEM, attempt.task, name_of(type(error))]}  # type: ignore[typeddict-item]
        )
        with use_isolation_scope(scope):
            DedupeIntegration.reset_last_seen()  # it has seen the exception in the worker's own log
            sentry_sdk.capture_event(event, hint=hint)

    def drop_duplicate(self, event: Any, hint: Mapping[str, Any]) -> Any:
        """Drop, by None, the event that the SDK makes of a worker's log line about a failure that is reported here, or of a line
        that a child process has logged and reported.
        """
        record = hint.get("log_record")
        if record is None or _integration() is None:
            return event
        is_reported = record.name == joblog.__name__ and getattr(record, "job_id", None) in self._open
        return None if is_reported or record.process not in (None, os.getpid()) else event


_reporting = _Reporting()


def _fill(scope: Scope, attempt: Attempt) -> None:
    scope.clear_breadcrumbs()
    scope.set_transaction_name(attempt.task, source="task")
    if attempt.of_batch:
        scope.set_tags({"task": attempt.task, "queue": attempt.queue})
        scope.set_context("batch", {"jobs": [job.job_id for job in attempt.jobs[:_SHOWN]], "size": len(attempt.jobs)})
    else:
        _tag(scope, attempt)


def _tag(scope: Scope, attempt: Attempt) -> None:
    scope.set_tags({"task": attempt.task, "queue": attempt.queue, "job_id": str(attempt.job_id)})
    fields = ("attempt", "max_attempts", "rescues", "waited")
    context = {name: getattr(attempt, name) for name in fields}
    scope.set_context("job", {**context, "enqueued_at": attempt.enqueued_at.isoformat()})


def _transaction(attempt: Attempt) -> Any:
    headers = attempt.meta.get(_META)
    items = headers.items() if isinstance(headers, dict) else ()
    plain = {key: value for key, value in items if isinstance(value, str)}
    made = sentry_sdk.continue_trace(
        plain, op="queue.process", name=attempt.task, source="task", origin=SaJobqueueIntegration.origin
    )
    _describe(
        made,
        {
            "messaging.system": _SYSTEM,
            "messaging.destination.name": attempt.queue,
            "messaging.message.id": str(attempt.job_id),
            "messaging.message.retry.count": attempt.attempt - 1,
            "messaging.message.receive.latency": attempt.waited * 1_000,
        },
    )
    return sentry_sdk.start_transaction(made, custom_sampling_context={"sa_jobqueue": attempt.fields})


def _describe(span: Any, data: Mapping[str, Any]) -> None:
    for name, value in data.items():
        span.set_data(name, value)

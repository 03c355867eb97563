"""What middleware and tracing add to a job: processor time of this process, to enqueue it and to run its handler.

Nothing of it waits for the database, so the jobs are not written: a job is a call that is made, and a run that an executor ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import Mock

from opentelemetry import trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler

from sa_jobqueue import Attempt, Call, Middleware, add_middleware, remove_middleware
from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.otel.tracing import Tracing
from sa_jobqueue.worker.running.executor import Executor
from sa_jobqueue.worker.running.reopening import Sessions
from sa_jobqueue.worker.running.run import Run

from .report import Figure, interleaved
from .schema import Bench
from .tasks import nothing_sync


class _Bare(Middleware):
    """Does what the least middleware does: nothing."""

    def before_enqueue(self, call: Call) -> Call:
        return call

    def around(self, attempt: Attempt) -> AbstractContextManager[object]:
        return nullcontext()


class _Nowhere(SpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def middleware(bench: Bench) -> Iterator[Figure]:
    """One that does nothing, against none."""
    yield from _added(bench, "a middleware that does nothing", partial(_with, _Bare()))


def tracing(bench: Bench) -> Iterator[Figure]:
    """Tracing whose spans are recorded and exported to nowhere, and tracing whose spans are not, against none."""
    yield from _added(bench, "tracing, recorded", partial(_traced, ALWAYS_ON))
    yield from _added(bench, "tracing, not recorded", partial(_traced, ParentBased(ALWAYS_OFF)), at_most=6.0)


def _added(
    bench: Bench, what: str, inside: Callable[[], AbstractContextManager[object]], at_most: float | None = None
) -> Iterator[Figure]:
    """The least of several measurements, because whatever else happens on the machine only adds."""
    jobs, repeat = (500, 2) if bench.small else (10_000, 3 * bench.repeat)
    pairs = interleaved(repeat, partial(_measure, jobs, inside), partial(_measure, jobs, nullcontext))
    with_it, without = min(one for one, _ in pairs), min(other for _, other in pairs)
    yield Figure(f"{what}: added to a job", with_it - without, "µs", at_most=at_most)
    yield Figure(f"{what}: the job without it, as far as it is measured here", without, "µs")


def _measure(jobs: int, inside: Callable[[], AbstractContextManager[object]]) -> float:
    """Microseconds of processor time for each job."""
    executor = Executor(
        Sessions(), report=_ignore, pause=Mock(), leaving=lambda: False, max_rescues=5, log_jobs=False, notes=Mock()
    )
    unsettled: set[Run] = set()
    with inside():
        begun = time.thread_time()
        for number in range(jobs):
            call = nothing_sync.call(number)
            now = time.time()
            job = ClaimedJob(number, 1, "default", call.task, 4, now, 1, 10, 0, call.args, call.meta, now)
            executor.run(Run(job, nothing_sync, 0.0, 0.0, unsettled))
        return (time.thread_time() - begun) / jobs * 1e6


def _ignore(run: Run, ending: object) -> None:
    """The outcome goes nowhere."""


@contextmanager
def _with(middleware: Middleware) -> Iterator[None]:
    add_middleware(middleware)
    try:
        yield
    finally:
        remove_middleware(middleware)


@contextmanager
def _traced(sampler: Sampler) -> Iterator[None]:
    """Tracing, within a request."""
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(BatchSpanProcessor(_Nowhere()))
    tracer = provider.get_tracer("benchmark")
    request = attach(trace.set_span_in_context(tracer.start_span("request")))
    try:
        with _with(Tracing(tracer, continues="auto", enqueue_spans=True)):
            yield
    finally:
        detach(request)
        provider.shutdown()

"""What middleware and tracing add to a job: processor time of this process, to enqueue it and to run its handler.

Nothing of it waits for the database, so the jobs are not written: a job is a call that is made, and a run that an executor ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Annotated, Any
from unittest.mock import Mock

from opentelemetry import trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler

from sa_jobqueue import INJECTED, Attempt, Call, Inject, Middleware, Registry, add_middleware, remove_middleware, task
from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.otel.tracing import Tracing
from sa_jobqueue.tasks.tasks import AnyTask
from sa_jobqueue.worker.running.attempt_end import Telling
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


class _Generator(Middleware):
    """Does nothing, in the usual form."""

    @contextmanager
    def around(self, attempt: Attempt) -> Iterator[None]:
        yield


class _Client:
    """What is injected."""


class _Other:
    """What is injected, too."""


def _get_client() -> Iterator[_Client]:
    yield _Client()


def _get_other() -> Iterator[_Other]:
    yield _Other()


@task(registry=Registry(), name="injected")
def _injected(
    n: int,
    client: Annotated[_Client, Inject(_get_client, scope="worker")] = INJECTED,
    other: Annotated[_Other, Inject(_get_other, scope="worker")] = INJECTED,
) -> None:
    """Like `nothing_sync`, with two shared clients."""


@task(registry=Registry(), name="injected for each attempt")
def _injected_each(
    n: int,
    client: Annotated[_Client, Inject(_get_client)] = INJECTED,
    other: Annotated[_Other, Inject(_get_other)] = INJECTED,
) -> None:
    """Like `nothing_sync`, with two clients of its own."""


def injected(bench: Bench) -> Iterator[Figure]:
    """Three middlewares and two injected clients, against none; and the clients alone."""
    bare, usual = (partial(_with, *(kind() for _ in range(3))) for kind in (_Bare, _Generator))
    yield from _added(bench, "3 middlewares that do nothing, 2 shared clients", bare, at_most=5.0, handler=_injected)
    yield from _added(bench, "3 @contextmanager middlewares, 2 shared clients", usual, handler=_injected)
    yield from _added(bench, "2 shared clients", nullcontext, handler=_injected)
    yield from _added(bench, "2 clients of the attempt, by generators", nullcontext, handler=_injected_each)


def tracing(bench: Bench) -> Iterator[Figure]:
    """Tracing whose spans are recorded and exported to nowhere, and tracing whose spans are not, against none."""
    yield from _added(bench, "tracing, recorded", partial(_traced, ALWAYS_ON))
    yield from _added(bench, "tracing, not recorded", partial(_traced, ParentBased(ALWAYS_OFF)), at_most=6.0)


def _added(
    bench: Bench,
    what: str,
    inside: Callable[[], AbstractContextManager[object]],
    at_most: float | None = None,
    handler: AnyTask = nothing_sync,
) -> Iterator[Figure]:
    """The least of several measurements, because whatever else happens on the machine only adds."""
    jobs, repeat = (500, 2) if bench.small else (10_000, 3 * bench.repeat)
    pairs = interleaved(repeat, partial(_measure, jobs, inside, handler), partial(_measure, jobs, nullcontext))
    with_it, without = min(one for one, _ in pairs), min(other for _, other in pairs)
    yield Figure(f"{what}: added to a job", with_it - without, "µs", at_most=at_most)
    yield Figure(f"{what}: the job without it, as far as it is measured here", without, "µs")


def _measure(jobs: int, inside: Callable[[], AbstractContextManager[object]], handler: AnyTask = nothing_sync) -> float:
    """Microseconds of processor time for each job."""
    executor = Executor(
        Sessions(),
        report=_ignore,
        pause=Mock(),
        leaving=lambda: False,
        max_rescues=5,
        log_jobs=False,
        notes=Mock(),
        telling=Telling(),
    )
    unsettled: set[Run] = set()
    with inside():
        begun = time.thread_time()
        for number in range(jobs):
            call = handler.call(number)
            now = time.time()
            job = ClaimedJob(number, 1, "default", call.task, 4, now, 1, 10, 0, call.args, call.meta, now)
            executor.run(Run(job, handler, 0.0, 0.0, unsettled))
        return (time.thread_time() - begun) / jobs * 1e6


def _ignore(run: Run, ending: object) -> None:
    """The outcome goes nowhere."""


@contextmanager
def _with(*middlewares: Middleware) -> Iterator[None]:
    for middleware in middlewares:
        add_middleware(middleware)
    try:
        yield
    finally:
        for middleware in middlewares:
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

"""What tracing makes of jobs: spans, their parents and links, and what they say; metrics; what is left out."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled, suppress_instrumentation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import SpanKind, StatusCode
from sqlalchemy import Engine, event, text

from sa_jobqueue import (
    AsyncJobContext,
    BatchContext,
    Batching,
    Call,
    Cancel,
    Discard,
    JobContext,
    Middleware,
    Registry,
    Retry,
    RetryPolicy,
    Schedule,
    Snooze,
    TaskName,
    add_middleware,
    enqueue,
    remove_middleware,
    task,
)
from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.otel import SaJobqueueInstrumentor
from sa_jobqueue.rules.lifecycle import Event
from sa_jobqueue.tasks.middleware import add_job_fields, installed
from sa_jobqueue.worker import tally as totals
from sa_jobqueue.worker.tally import Tally, add_to_totals
from tests.support.working import add, add_one, drain, job_of

SOON = RetryPolicy(base=0.0, jitter=0)
KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


@dataclass
class Traced:
    """The instrumentor, with exporters in memory."""

    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader

    def instrument(self, sampler: Sampler = ALWAYS_ON, **options: Any) -> trace.Tracer:
        """A tracer of the application's own."""
        provider = TracerProvider(sampler=sampler)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        meters = MeterProvider([self.reader])
        SaJobqueueInstrumentor().instrument(tracer_provider=provider, meter_provider=meters, **options)
        return provider.get_tracer("application")

    def spans(self, kind: SpanKind | None = None) -> list[ReadableSpan]:
        found = self.exporter.get_finished_spans()
        return [span for span in found if kind is None or span.kind is kind]

    def processed(self) -> ReadableSpan:
        (span,) = self.spans(SpanKind.CONSUMER)
        return span

    def produced(self) -> ReadableSpan:
        (span,) = self.spans(SpanKind.PRODUCER)
        return span

    def metric(self, metric: str, /, **labels: Any) -> float | None:
        data = self.reader.get_metrics_data()
        if data is None:
            return None
        metrics = [one for r in data.resource_metrics for scope in r.scope_metrics for one in scope.metrics]
        for point in (point for one in metrics if one.name == metric for point in one.data.data_points):
            plain = {key.rpartition(".")[2]: value for key, value in point.attributes.items()}
            if labels.items() <= plain.items():
                return float(point.value)  # type: ignore[union-attr]
        return None


@pytest.fixture
def traced() -> Iterator[Traced]:
    made = Traced(InMemorySpanExporter(), InMemoryMetricReader())
    yield made
    if SaJobqueueInstrumentor().is_instrumented_by_opentelemetry:
        SaJobqueueInstrumentor().uninstrument()
    for middleware in installed.all:
        remove_middleware(middleware)


def declare(registry: Registry, kind: str, value: Any = None, **options: Any) -> None:
    """The task "handler", which returns or raises `value`."""

    def work() -> Any:
        if isinstance(value, Exception) and not isinstance(value, (Retry, Snooze, Cancel, Discard)):
            raise value
        return value

    @task(registry=registry, name="handler", **options)
    def sync() -> Any:
        return work()

    if kind == "async":

        @task(registry=(other := Registry()), name="handler", **options)
        async def asynchronous() -> Any:
            return work()

        registry._tasks["handler"] = other._tasks["handler"]


def same_trace(one: ReadableSpan, other: ReadableSpan) -> bool:
    return one.context.trace_id == other.context.trace_id


def is_linked(one: ReadableSpan, to: ReadableSpan) -> bool:
    return [link.context.span_id for link in one.links] == [to.context.span_id]


@KINDS
@pytest.mark.parametrize(
    ("way", "age", "attempt", "is_child"),
    [
        ("auto", 0, 1, True),
        ("auto", 90, 1, False),
        ("auto", 0, 2, False),
        ("child", 90, 2, True),
        ("link", 0, 1, False),
    ],
)
def test_an_attempt_is_in_the_trace_of_its_enqueueing_or_in_its_own(
    engine: Engine,
    url: str,
    registry: Registry,
    traced: Traced,
    kind: str,
    way: str,
    age: int,
    attempt: int,
    is_child: bool,
) -> None:
    """By itself: the first attempt is, if it begins within a minute. It is linked in any case."""
    tracer = traced.instrument(trace=way)
    declare(registry, kind)
    with tracer.start_as_current_span("request"):
        id = add_one(engine, enqueue("handler"))
    change = text(
        "UPDATE sa_jobqueue.job SET created_at = now() - :age * interval '1 second', attempt = :before WHERE id = :id"
    )
    with engine.begin() as connection:
        connection.execute(change, {"age": age, "before": attempt - 1, "id": id})
    drain(url, registry)
    produced, processed = traced.produced(), traced.processed()
    assert same_trace(produced, processed) is is_child
    assert (processed.parent is not None and processed.parent.span_id == produced.context.span_id) is is_child
    assert is_linked(processed, produced)
    assert processed.attributes is not None
    assert processed.attributes["sa_jobqueue.attempt"] == attempt


@KINDS
@pytest.mark.parametrize(
    ("value", "outcome", "error"),
    [
        (None, "completed", None),
        (Snooze(3600), "snoozed", None),
        (Cancel("no"), "cancelled", None),
        (Retry(3600), "retried", "retried"),
        (Discard("no"), "failed", "failed"),
        (LookupError("no such order"), "failed", "LookupError"),
    ],
)
def test_a_span_says_what_came_of_the_attempt(
    engine: Engine, url: str, registry: Registry, traced: Traced, kind: str, value: Any, outcome: str, error: str | None
) -> None:
    """A failed attempt is an error, with its exception; a snooze and a cancel are not."""
    traced.instrument()
    declare(registry, kind, value)
    id = add_one(engine, enqueue(registry.get("handler").options(max_attempts=1 if error == "LookupError" else 10)))  # type: ignore[union-attr]
    drain(url, registry)
    span = traced.processed()
    assert span.name == "process default"
    assert span.attributes is not None
    assert span.attributes["messaging.message.id"] == str(id)
    assert span.attributes["sa_jobqueue.outcome"] == outcome
    assert span.attributes.get("error.type") == error
    assert (span.status.status_code is StatusCode.ERROR) is (error is not None)
    assert [one.name for one in span.events] == (["exception"] if error == "LookupError" else [])


@KINDS
def test_a_job_that_a_handler_enqueues_is_a_child_of_its_attempt(
    engine: Engine, url: str, registry: Registry, traced: Traced, kind: str
) -> None:
    """And what the handler traces itself is, too."""
    tracer = traced.instrument()

    @task(registry=registry, name="child")
    def child() -> None: ...

    @task(registry=registry, name="sync")
    def sync(ctx: JobContext) -> None:
        with tracer.start_as_current_span("inside"):
            ctx.session.add(enqueue(child))

    @task(registry=registry, name="async")
    async def asynchronous(ctx: AsyncJobContext) -> None:
        await asyncio.sleep(0)
        with tracer.start_as_current_span("inside"):
            ctx.session.add(enqueue(child))

    add_one(engine, enqueue(kind))
    drain(url, registry)
    _, produced = traced.spans(SpanKind.PRODUCER)
    outer, inner = sorted(traced.spans(SpanKind.CONSUMER), key=lambda span: span.start_time or 0)
    (inside,) = [span for span in traced.spans() if span.name == "inside"]
    assert inside.parent == outer.context
    assert produced.parent == inside.context
    assert inner.parent is not None
    assert inner.parent.span_id == produced.context.span_id
    assert len({span.context.trace_id for span in traced.spans()}) == 1


def test_what_is_not_recorded_leaves_nothing_in_the_row(
    engine: Engine, url: str, registry: Registry, traced: Traced
) -> None:
    """Neither within a request that is not sampled, nor alone. The handler's own spans are not recorded either."""
    tracer = traced.instrument(ParentBased(ALWAYS_OFF))
    recorded: list[bool] = []

    @task(registry=registry, name="handler")
    def handler() -> None:
        with tracer.start_as_current_span("inside") as span:
            recorded.append(span.is_recording() or not span.get_span_context().is_valid)

    first = add_one(engine, enqueue(handler))
    with tracer.start_as_current_span("request"):
        second = add_one(engine, enqueue(handler.options(meta={"note": 1})))
    drain(url, registry)
    assert [job_of(engine, id).meta for id in (first, second)] == [{}, {"note": 1}]
    assert recorded == [False, False]
    assert traced.spans() == []


def test_a_trace_that_only_passes_through_goes_on(engine: Engine, url: str, registry: Registry, traced: Traced) -> None:
    """Of a request whose trace is recorded elsewhere, where nothing is recorded here. Its baggage goes along, in a new trace, too."""
    traced.instrument(ALWAYS_OFF, trace="link")
    found: list[Any] = []

    @task(registry=registry, name="handler")
    def handler() -> None:
        found.append(baggage.get_baggage("tenant"))

    carrier = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "baggage": "tenant=acme"}
    token = context.attach(propagate.extract(carrier))
    try:
        id = add_one(engine, enqueue(handler.options(tags=["paper"])))
    finally:
        context.detach(token)
    assert job_of(engine, id).meta == {"tags": ["paper"], "otel": carrier}
    drain(url, registry)
    assert found == ["acme"]


def test_enqueueing_need_not_be_a_span(engine: Engine, url: str, registry: Registry, traced: Traced) -> None:
    """Then attempts are tied to the span in which it was done: for thousands of calls in one statement."""
    tracer = traced.instrument(enqueue_spans=False)
    declare(registry, "sync")
    add_one(engine, enqueue("handler"))
    with tracer.start_as_current_span("request") as request:
        add_one(engine, enqueue("handler"))
    drain(url, registry, queues={"default": 1})
    assert traced.spans(SpanKind.PRODUCER) == []
    alone, within = traced.spans(SpanKind.CONSUMER)
    assert (alone.parent, alone.links) == (None, ())
    assert within.parent is not None
    assert within.parent.span_id == request.get_span_context().span_id


def test_what_is_suppressed_is_not_traced(traced: Traced) -> None:
    """As by `suppress_instrumentation`."""
    traced.instrument()
    with suppress_instrumentation():
        assert enqueue("handler").meta == {}
    assert traced.spans() == []


def test_a_schedule_keeps_no_trace(traced: Traced) -> None:
    """That of its declaration is not that of its ticks."""
    tracer = traced.instrument()
    with tracer.start_as_current_span("deployment"):
        schedule = Schedule("* * * * *", task(registry=Registry(), name="tick")(lambda: None))
    assert schedule.meta == {}
    assert [span.name for span in traced.spans()] == ["deployment"]


@pytest.mark.parametrize("carrier", ["nonsense", {"traceparent": "nonsense"}, {"traceparent": 7}, None])
def test_a_meta_that_is_no_context_does_no_harm(
    engine: Engine, url: str, registry: Registry, traced: Traced, carrier: Any
) -> None:
    """By hand, or by another program: the job has a trace of its own."""
    declare(registry, "sync")
    id = add_one(engine, enqueue(registry.get("handler").options(meta={"otel": carrier})))  # type: ignore[union-attr]
    traced.instrument()
    drain(url, registry)
    assert job_of(engine, id).status == "completed"
    assert (traced.processed().parent, traced.processed().links) == (None, ())


class Hostile(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")

    __repr__ = __str__


@pytest.mark.parametrize("error", [Hostile(), ValueError("x" * 5_000_000)], ids=["no text", "a long text"])
def test_a_span_ends_whatever_the_exception_brings_along(
    engine: Engine, url: str, registry: Registry, traced: Traced, error: Exception
) -> None:
    """What it says of the exception is what the job's row says: an exporter would choke on more."""

    @task(registry=registry, name="handler", retry=RetryPolicy(base=3_600.0, jitter=0))
    def handler() -> None:
        raise error

    traced.instrument()
    id = add_one(engine, enqueue("handler"))
    drain(url, registry)
    span = traced.processed()
    (event,) = span.events
    (stored,) = job_of(engine, id).errors
    assert event.attributes is not None
    assert (event.attributes["exception.type"], event.attributes["exception.message"]) == (
        stored["type"],
        stored["message"],
    )
    assert len(str(event.attributes["exception.stacktrace"])) <= 8_000
    assert span.status.description == f"{stored['type']}: {stored['message']}"


class Broken(Sampler):
    def should_sample(self, *args: Any, **kwargs: Any) -> Any:
        raise LookupError("no sampler")

    def get_description(self) -> str:
        return "broken"


def test_tracing_that_fails_costs_the_trace_and_not_the_job(
    engine: Engine, url: str, registry: Registry, traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it is a part of the application's own, or what is to be stored. It is said in the log."""
    traced.instrument(Broken())
    declare(registry, "sync")
    id = add_one(engine, enqueue("handler"))
    drain(url, registry)
    assert job_of(engine, id).status == "completed"
    assert "task handler: its enqueueing is not traced: LookupError('no sampler')" in caplog.text
    assert f"job {id} is not traced: LookupError('no sampler')" in caplog.text


def test_an_exception_without_a_text_ends_its_span_as_well(
    engine: Engine, url: str, registry: Registry, traced: Traced
) -> None:
    """Its own `str()` fails."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise LookupError

    traced.instrument()
    declare(registry, "sync", Mute(), retry=RetryPolicy(base=3600, jitter=0))
    add_one(engine, enqueue("handler"))
    drain(url, registry)
    span = traced.processed()
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description is not None
    assert "str() of the exception failed" in span.status.description


def test_a_context_that_cannot_be_stored_is_left_out(
    traced: Traced, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a propagator of the application's own."""
    monkeypatch.setattr(propagate, "inject", lambda carrier, context: carrier.update(x="\0"))
    traced.instrument()
    assert enqueue("handler").meta == {}
    assert "task handler: its enqueueing is not traced: OptionError" in caplog.text


def test_the_worker_itself_is_left_out(engine: Engine, url: str, registry: Registry, traced: Traced) -> None:
    """Its claims and chores would be traces without end; the statements of handlers are for whatever traces statements."""
    enabled: dict[str, bool] = {}
    traced.instrument()

    @task(registry=registry, name="handler")
    def handler(ctx: JobContext) -> None:
        ctx.session.execute(text("SELECT 'the handler''s'"))

    from sqlalchemy import Engine as AnyEngine

    def heed(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        said = "handler" if "the handler" in statement else "claim" if "SKIP LOCKED" in statement else "other"
        enabled[said] = is_instrumentation_enabled()

    add_one(engine, enqueue(handler))
    event.listen(AnyEngine, "before_cursor_execute", heed)
    try:
        drain(url, registry)
    finally:
        event.remove(AnyEngine, "before_cursor_execute", heed)
    assert (enabled["handler"], enabled["claim"]) == (True, False)


def test_lines_of_handlers_carry_their_trace(
    engine: Engine, url: str, registry: Registry, traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    """Where they carry the job's fields."""
    traced.instrument()
    add_job_fields(caplog.handler)

    @task(registry=registry, name="handler")
    def handler() -> None:
        logging.getLogger("shop").warning("here")

    add_one(engine, enqueue(handler))
    drain(url, registry)
    (record,) = [one for one in caplog.records if one.name == "shop"]
    assert int(vars(record)["trace_id"], 16) == traced.processed().context.trace_id
    assert int(vars(record)["span_id"], 16) == traced.processed().context.span_id


def test_metrics_are_what_the_workers_have_counted(
    engine: Engine, url: str, registry: Registry, traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all workers of the process; cumulative, by task and outcome."""
    # The SDK keeps 2,000 series of an instrument: with those of the tests before, there may be more.
    monkeypatch.setattr(totals, "_gone", {})
    monkeypatch.setattr(totals, "_counted", [])
    traced.instrument()

    @task(registry=registry, name="counted_by_otel")  # no other test has a task of this name
    def counted() -> None: ...

    for _ in range(2):
        add_one(engine, enqueue(counted))
        add_one(engine, enqueue(TaskName("counted_by_otel"), wrong=1))
    workers = [drain(url, registry, queues={"default": 1}) for _ in range(2)]
    assert sum(one.counts["completed"] for one in workers) == 2
    assert traced.metric("sa_jobqueue.jobs", task="counted_by_otel", outcome="completed") == 2
    assert traced.metric("sa_jobqueue.jobs", task="counted_by_otel", outcome="failed") == 2
    assert traced.metric("messaging.client.consumed.messages", task="counted_by_otel", system="sa_jobqueue") == 4
    assert (traced.metric("sa_jobqueue.job.wait_time", task="counted_by_otel") or 0) > 0
    assert traced.metric("sa_jobqueue.job.run_time.bucket", task="counted_by_otel", le="+Inf") == sum(
        sum(one.runs) for worker in workers for one in worker.tally()
    )


def test_what_a_worker_has_counted_stays_when_it_is_gone(
    engine: Engine, url: str, registry: Registry, traced: Traced
) -> None:
    """A program may make a worker for each drain; a counter that falls would look like a restart."""
    traced.instrument()

    @task(registry=registry, name="counted.for.good")
    def quick() -> None: ...

    for done in (1, 2):
        add_one(engine, enqueue(quick))
        drain(url, registry)
        gc.collect()
        assert traced.metric("sa_jobqueue.jobs", task="counted.for.good", outcome="completed") == done


def test_after_the_end_of_tracing_nothing_is_left(engine: Engine, url: str, registry: Registry, traced: Traced) -> None:
    """And it can begin again."""
    traced.instrument()
    SaJobqueueInstrumentor().uninstrument()
    assert installed.all == ()
    declare(registry, "sync")
    assert enqueue("handler").meta == {}
    add_one(engine, enqueue("handler"))
    drain(url, registry)
    assert traced.spans() == []
    assert traced.metric("sa_jobqueue.jobs") is None if traced.reader.get_metrics_data() else True
    SaJobqueueInstrumentor().instrument()
    assert len(installed.all) == 1


def test_metrics_can_go_back_to_a_provider_that_had_them(traced: Traced) -> None:
    """Its instruments are still there, and observe again."""
    readers = [InMemoryMetricReader(), InMemoryMetricReader()]
    providers = [MeterProvider([reader]) for reader in readers]
    tally = Tally()
    tally.add_one("default", "goes.back", Event.RESCUE)
    worker = Registry()  # any object
    add_to_totals(worker, tally)
    for number in (0, 1, 0):
        SaJobqueueInstrumentor().instrument(meter_provider=providers[number])
        seen = [Traced(traced.exporter, reader).metric("sa_jobqueue.jobs", task="goes.back") for reader in readers]
        assert seen == [1 if number == 0 else None, 1 if number == 1 else None]
        SaJobqueueInstrumentor().uninstrument()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trace": "always"}, "trace must be one of auto, child, link, not 'always'"),
        ({"spans": 1}, "no option spans; there are"),
    ],
)
def test_an_option_that_is_not_there_is_refused(options: dict[str, Any], said: str) -> None:
    """Nothing is installed by that."""
    with pytest.raises(ConfigurationError, match=said):
        SaJobqueueInstrumentor().instrument(**options)
    assert installed.all == ()


def test_other_middleware_beside_it_keeps_its_own_meta(traced: Traced) -> None:
    """Each has its own key."""

    class Stamp(Middleware):
        def before_enqueue(self, call: Call) -> Call:
            return call.with_meta(tenant="acme")

    add_middleware(Stamp())
    traced.instrument()
    assert set(enqueue("handler").meta) == {"tenant", "otel"}


def test_a_batch_is_one_span_that_is_linked_to_the_enqueueings_of_its_jobs(
    engine: Engine, registry: Registry, traced: Traced
) -> None:
    """In the trace of none of them, because it is for all."""

    @task(registry=registry, name="batched", batch=Batching(10))
    def batched(ctx: BatchContext, numbers: list[int]) -> None: ...

    traced.instrument()
    add(engine, enqueue(batched, 1), enqueue(batched, 2))
    drain(engine, registry)
    span, produced = traced.processed(), traced.spans(SpanKind.PRODUCER)
    assert [link.context.span_id for link in span.links] == [one.context.span_id for one in produced]
    assert not any(same_trace(span, one) for one in produced)
    assert span.attributes is not None
    assert span.attributes["messaging.batch.message_count"] == 2
    assert span.attributes["sa_jobqueue.outcome"] == "completed"

"""The instrumentor: `opentelemetry-instrument` finds it, and applications call it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar, get_args
from weakref import WeakKeyDictionary

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter_provider
from opentelemetry.trace import get_tracer

from ..errors import ConfigurationError
from ..rules.lifecycle import COUNTED
from ..rules.tally import BOUNDS, TaskTally
from ..tasks.middleware import add_middleware, add_source, remove_middleware, remove_source
from ..version import __version__
from ..worker.process.inside import ServiceThread
from ..worker.tally import totals
from . import tracing as semconv
from .tracing import Continue, Tracing, trace_fields

_BOUNDS = (*(f"{bound:g}" for bound in BOUNDS), "+Inf")

_Observe = Callable[[TaskTally, dict[str, str]], Iterator[Observation]]


class Metrics:
    """A meter's instruments. They observe nothing while `active` is false, because an instrument cannot be removed."""

    def __init__(self, meter: Meter) -> None:
        self.active = True

        def counter(name: str, unit: str, description: str, observe: _Observe) -> None:
            def callback(options: CallbackOptions) -> Iterable[Observation]:
                return list(self._observations(observe))

            meter.create_observable_counter(name, [callback], unit, description)

        counter(semconv.CONSUMED, "{message}", "Attempts that ended in this process.", _consumed)
        counter(semconv.JOBS, "{job}", "Attempts by outcome.", _by_outcome)
        counter(semconv.RUN_TIME, "s", "How long handlers ran, all together.", _run_time)
        counter(semconv.WAIT_TIME, "s", "How long jobs were due before they started, all together.", _wait_time)
        counter(semconv.RUNS, "{job}", "Jobs by the time that their handlers ran, at most `le` seconds.", _runs)
        counter(semconv.WAITS, "{job}", "Jobs by the time that they were due before, at most `le` seconds.", _waits)

    def _observations(self, observe: _Observe) -> Iterator[Observation]:
        for tally in totals() if self.active else ():
            yield from observe(tally, {semconv.DESTINATION: tally.queue, semconv.TASK: tally.task})


def _consumed(tally: TaskTally, labels: dict[str, str]) -> Iterator[Observation]:
    names = {semconv.SYSTEM: semconv.SYSTEM_NAME, semconv.OPERATION_NAME: semconv.PROCESS}
    yield Observation(tally.jobs, labels | names)


def _by_outcome(tally: TaskTally, labels: dict[str, str]) -> Iterator[Observation]:
    for outcome in COUNTED:
        if number := getattr(tally, outcome):
            yield Observation(number, labels | {semconv.OUTCOME: outcome})


def _run_time(tally: TaskTally, labels: dict[str, str]) -> Iterator[Observation]:
    yield Observation(tally.run_seconds, labels)


def _wait_time(tally: TaskTally, labels: dict[str, str]) -> Iterator[Observation]:
    yield Observation(tally.wait_seconds, labels)


def _runs(tally: TaskTally, labels: dict[str, str]) -> Iterator[Observation]:
    return _cumulative(tally.runs, labels)


def _waits(tally: TaskTally, labels: dict[str, str]) -> Iterator[Observation]:
    return _cumulative(tally.waits, labels)


def _cumulative(counts: Sequence[int], labels: dict[str, str]) -> Iterator[Observation]:
    """The counts of each bucket and all buckets below it."""
    total = 0
    for bound, count in zip(_BOUNDS, counts, strict=True):
        total += count
        yield Observation(total, labels | {semconv.BUCKET: bound})


_SCOPE = "sa_jobqueue"
_OPTIONS = frozenset({"tracer_provider", "meter_provider", "trace", "enqueue_spans"})


class SaJobqueueInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Traces and counts the jobs of this process. `instrument()` begins, `uninstrument()` ends; it is a singleton.

    Options of `instrument`: `tracer_provider` and `meter_provider`; the global providers by default. `trace`: whether an
    attempt is in the trace of its enqueueing: with "auto" the first attempt of a job, if it begins within a minute; with "child" each
    attempt; with "link" none. Each attempt is linked to its enqueueing. `enqueue_spans`: False for no spans of enqueueings.

    Call it before a worker starts. Raises ConfigurationError for an unknown option.
    """

    _tracing: Tracing | None = None
    _metrics: ClassVar[WeakKeyDictionary[MeterProvider, Metrics]] = WeakKeyDictionary()
    """By provider: its instruments cannot be removed, and their names cannot be used again."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """No dependencies: the instrumentor comes with the library that it instruments."""
        return ()

    def _instrument(self, **options: Any) -> None:
        if unknown := sorted(options.keys() - _OPTIONS):
            raise ConfigurationError(
                f"instrument() has no option {', '.join(unknown)}; there are {', '.join(sorted(_OPTIONS))}"
            )
        trace = options.get("trace", "auto")
        if trace not in get_args(Continue):
            raise ConfigurationError(f"trace must be one of {', '.join(get_args(Continue))}, not {trace!r}")
        tracer = get_tracer(_SCOPE, __version__, options.get("tracer_provider"))
        self._tracing = Tracing(tracer, continues=trace, enqueue_spans=options.get("enqueue_spans", True))
        add_middleware(self._tracing)
        add_source(trace_fields)
        # A worker claims, writes and renews for all jobs together: spans of its statements would not help.
        ServiceThread.inside.append(suppress_instrumentation)
        provider = options.get("meter_provider") or get_meter_provider()
        if provider not in self._metrics:
            self._metrics[provider] = Metrics(provider.get_meter(_SCOPE, __version__))
        self._metrics[provider].active = True

    def _uninstrument(self, **options: Any) -> None:
        if self._tracing is not None:
            remove_middleware(self._tracing)
        remove_source(trace_fields)
        if suppress_instrumentation in ServiceThread.inside:
            ServiceThread.inside.remove(suppress_instrumentation)
        for metrics in self._metrics.values():
            metrics.active = False

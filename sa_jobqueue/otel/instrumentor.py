"""The instrumentor: what `opentelemetry-instrument` looks for, and what applications call."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, get_args
from weakref import WeakKeyDictionary

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.metrics import MeterProvider, get_meter_provider
from opentelemetry.trace import get_tracer

from ..errors import ConfigurationError
from ..job_fields import add_source, remove_source
from ..middleware import add_middleware, remove_middleware
from ..version import __version__
from ..worker.process.threads import ServiceThread
from .metrics import Metrics
from .tracing import Continue, Tracing, trace_fields

__all__ = ["SaJobqueueInstrumentor"]

_SCOPE = "sa_jobqueue"
_OPTIONS = frozenset({"tracer_provider", "meter_provider", "trace", "enqueue_spans"})


class SaJobqueueInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Traces and counts the jobs of this process. `instrument()` begins, `uninstrument()` ends; there is one instrumentor.

    Options of `instrument`: `tracer_provider` and `meter_provider`; the global ones if they are not given. `trace`: whether an
    attempt is in the trace of its enqueueing. "auto", the first attempt of a job is, if it begins within a minute; "child", each
    is; "link", none is. Each attempt is linked to its enqueueing. `enqueue_spans`: False for no span of each enqueueing.

    Call it before a worker starts. Raises ConfigurationError for an option that it does not have.
    """

    _tracing: Tracing | None = None
    _metrics: ClassVar[WeakKeyDictionary[MeterProvider, Metrics]] = WeakKeyDictionary()
    """By provider: its instruments cannot be taken back, and no others of their names can be made."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """None: it comes with what it instruments."""
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
        # A worker claims, writes and renews for all jobs together: as spans, its statements would only be in the way.
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

"""OpenTelemetry: a span where a job is enqueued, one for each attempt, the link between them, and metrics.

    from sa_jobqueue.otel import SaJobqueueInstrumentor

    SaJobqueueInstrumentor().instrument()

The extra `otel` brings what it needs. `opentelemetry-instrument sa-jobqueue work ...` finds it by itself.
"""

from .instrumentor import SaJobqueueInstrumentor

__all__ = ["SaJobqueueInstrumentor"]

"""OpenTelemetry: a span for each enqueueing and for each attempt, the link between them, and metrics.

    from sa_jobqueue.otel import SaJobqueueInstrumentor

    SaJobqueueInstrumentor().instrument()

The extra `otel` brings what it needs. `opentelemetry-instrument sa-jobqueue work ...` finds it by itself.
"""

try:
    import opentelemetry.instrumentation.instrumentor  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ImportError as error:
    raise ImportError("tracing needs OpenTelemetry: pip install 'sa_jobqueue[otel]'") from error

from .instrumentor import SaJobqueueInstrumentor

__all__ = ["SaJobqueueInstrumentor"]

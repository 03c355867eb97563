"""Metrics for Prometheus: what the workers did, and what the database says. It needs the extra `sa_jobqueue[metrics]`.

    from prometheus_client import REGISTRY
    from sa_jobqueue.metrics import QueueCollector

    REGISTRY.register(QueueCollector(engine))

`sa-jobqueue work --metrics-port 9100` and `sa-jobqueue metrics` serve them without code.
"""

try:
    import prometheus_client  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ImportError as error:
    raise ImportError("metrics need prometheus-client: pip install 'sa_jobqueue[metrics]'") from error

from .database import QueueCollector
from .endpoint import metrics_app, metrics_wsgi_app
from .sums import WorkerCollector

__all__ = ["QueueCollector", "WorkerCollector", "metrics_app", "metrics_wsgi_app"]

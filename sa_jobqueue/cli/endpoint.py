"""Serving the metrics of workers: in this process, or in the supervisor of several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.log import get_logger
from sa_jobqueue.worker.process.supervisor import Reports
from sa_jobqueue.worker.worker import Worker

if TYPE_CHECKING:
    from sa_jobqueue.metrics.endpoint import Endpoint
    from sa_jobqueue.metrics.pipes import Sender

__all__ = ["open_endpoint", "send_metrics", "serve_supervisor", "serve_worker"]

logger = get_logger(__name__)


def open_endpoint(host: str, port: int, *, handlers: bool = False) -> Endpoint:
    """Take the port. Raises ConfigurationError where it is taken, or where prometheus-client is not installed.

    `handlers`: the metrics of the application's handlers are to be served, too.
    """
    try:
        from sa_jobqueue.metrics.endpoint import Endpoint, check_handlers
    except ImportError as error:
        raise ConfigurationError(str(error)) from error
    if handlers:
        check_handlers()
    return Endpoint(host, port)


def serve_worker(endpoint: Endpoint, worker: Worker) -> None:
    """Serve the metrics of the one worker of this process."""
    from sa_jobqueue.metrics import WorkerCollector
    from sa_jobqueue.metrics.endpoint import registry_of
    from sa_jobqueue.metrics.probes import WorkerProbes
    from sa_jobqueue.metrics.snapshot import read_snapshot

    endpoint.serve(registry_of(WorkerCollector(worker), handlers=True), WorkerProbes(lambda: read_snapshot(worker)))
    logger.info("metrics at %s", endpoint.url)


def serve_supervisor(endpoint: Endpoint) -> Reports:
    """Serve the sums over the worker processes of a supervisor; where these are to report."""
    from sa_jobqueue.metrics.endpoint import forget_process, registry_of
    from sa_jobqueue.metrics.pipes import Receiver
    from sa_jobqueue.metrics.probes import SupervisorProbes
    from sa_jobqueue.metrics.workers import TotalsCollector

    receiver = Receiver(ended=forget_process)
    endpoint.serve(registry_of(TotalsCollector(receiver.sums.totals), handlers=True), SupervisorProbes(receiver))
    logger.info("metrics at %s", endpoint.url)
    return receiver


def send_metrics(end: int, worker: Worker) -> Sender:
    """In a supervised process: begin to tell the supervisor over the pipe `end`."""
    from sa_jobqueue.metrics.pipes import Sender
    from sa_jobqueue.metrics.snapshot import read_snapshot

    sender = Sender(end, lambda: read_snapshot(worker))
    sender.start()
    return sender

"""The command `metrics`: metrics of the database for Prometheus, alerts, and a Grafana board. Metrics of `work`."""

from __future__ import annotations

import signal
import sys
from importlib.resources import files
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigurationError
from ..util.log import get_logger
from ..worker.process.signals import signals_go_to
from ..worker.process.supervisor import Reports
from ..worker.worker import Worker
from .config import Config
from .place import open_engine

if TYPE_CHECKING:
    from ..metrics.endpoint import Endpoint
    from ..metrics.sums import Sender


logger = get_logger(__name__)


def open_endpoint(host: str, port: int, *, handlers: bool = False) -> Endpoint:
    """Listen on the port. Raises ConfigurationError if it is taken, or if prometheus-client is not installed.

    `handlers`: metrics of the application's handlers will be served as well.
    """
    try:
        from ..metrics.endpoint import Endpoint, check_handlers
    except ImportError as error:
        raise ConfigurationError(str(error)) from error
    if handlers:
        check_handlers()
    return Endpoint(host, port)


def serve_worker(endpoint: Endpoint, worker: Worker) -> None:
    """Serve the metrics of this process's worker."""
    from ..metrics import WorkerCollector
    from ..metrics.endpoint import WorkerProbes, registry_of
    from ..metrics.sums import read_snapshot

    endpoint.serve(registry_of(WorkerCollector(worker), handlers=True), WorkerProbes(lambda: read_snapshot(worker)))
    logger.info("metrics at %s", endpoint.url)


def serve_supervisor(endpoint: Endpoint) -> Reports:
    """Serve the sums over a supervisor's worker processes, and return the receiver of their reports."""
    from ..metrics.endpoint import SupervisorProbes, forget_process, registry_of
    from ..metrics.sums import Receiver, TotalsCollector

    receiver = Receiver(ended=forget_process)
    endpoint.serve(registry_of(TotalsCollector(receiver.sums.totals), handlers=True), SupervisorProbes(receiver))
    logger.info("metrics at %s", endpoint.url)
    return receiver


def send_metrics(end: int, worker: Worker) -> Sender:
    """In a supervised process: start to report to the supervisor over the pipe `end`."""
    from ..metrics.sums import Sender, read_snapshot

    sender = Sender(end, lambda: read_snapshot(worker))
    sender.start()
    return sender


def metrics(
    config: Config,
    *,
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65_535, help="0: any free port.")] = 9_101,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="The address to serve at; 0.0.0.0: all addresses of this machine.")
    ] = "127.0.0.1",
    rules: Annotated[bool, typer.Option("--rules", help="Print a file of alerts for Prometheus, and exit.")] = False,
    grafana: Annotated[bool, typer.Option("--grafana", help="Print a Grafana dashboard as JSON, and exit.")] = False,
) -> None:
    """Serve metrics of the database to Prometheus: backlog, age, cleanup, sizes, vacuum, snapshots, locks, connections.

    A database needs one such process. It reads at most every 5 seconds, and its role needs only `sa-jobqueue grants --can read`.
    `sa-jobqueue work --metrics-port` serves the metrics of workers.

    sa-jobqueue metrics --port 9101
    sa-jobqueue metrics --rules > sa_jobqueue_rules.yaml
    sa-jobqueue metrics --grafana > sa_jobqueue_board.json
    """
    if rules and grafana:
        raise ConfigurationError("--rules and --grafana print two different files; give one of them")
    if rules or grafana:
        name = "rules.yaml" if rules else "grafana.json"
        sys.stdout.write((files("sa_jobqueue") / "metrics" / name).read_text(encoding="utf-8"))
        return
    endpoint = open_endpoint(host, port)
    from ..metrics import QueueCollector
    from ..metrics.endpoint import DatabaseProbes, registry_of

    collector = QueueCollector(open_engine(config))

    def is_up() -> bool:
        collector.refresh()
        return collector.is_up

    received: SimpleQueue[int] = SimpleQueue()
    with signals_go_to(lambda number, frame: received.put(number)):
        endpoint.serve(registry_of(collector), DatabaseProbes(is_up))
        logger.info("metrics of the database at %s", endpoint.url)
        logger.info("%s: ending", signal.Signals(received.get()).name)
    endpoint.close()

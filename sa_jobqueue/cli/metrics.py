"""The command `metrics`: what the database says, for Prometheus; and the alerts and the Grafana board that come with it."""

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
    """Take the port. Raises ConfigurationError where it is taken, or where prometheus-client is not installed.

    `handlers`: the metrics of the application's handlers are to be served, too.
    """
    try:
        from ..metrics.endpoint import Endpoint, check_handlers
    except ImportError as error:
        raise ConfigurationError(str(error)) from error
    if handlers:
        check_handlers()
    return Endpoint(host, port)


def serve_worker(endpoint: Endpoint, worker: Worker) -> None:
    """Serve the metrics of the one worker of this process."""
    from ..metrics import WorkerCollector
    from ..metrics.endpoint import WorkerProbes, registry_of
    from ..metrics.sums import read_snapshot

    endpoint.serve(registry_of(WorkerCollector(worker), handlers=True), WorkerProbes(lambda: read_snapshot(worker)))
    logger.info("metrics at %s", endpoint.url)


def serve_supervisor(endpoint: Endpoint) -> Reports:
    """Serve the sums over the worker processes of a supervisor; where these are to report."""
    from ..metrics.endpoint import SupervisorProbes, forget_process, registry_of
    from ..metrics.sums import Receiver, TotalsCollector

    receiver = Receiver(ended=forget_process)
    endpoint.serve(registry_of(TotalsCollector(receiver.sums.totals), handlers=True), SupervisorProbes(receiver))
    logger.info("metrics at %s", endpoint.url)
    return receiver


def send_metrics(end: int, worker: Worker) -> Sender:
    """In a supervised process: begin to tell the supervisor over the pipe `end`."""
    from ..metrics.sums import Sender, read_snapshot

    sender = Sender(end, lambda: read_snapshot(worker))
    sender.start()
    return sender


def metrics(
    config: Config,
    *,
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65_535, help="0: any that is free.")] = 9_101,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="The address to serve at; 0.0.0.0: all of this machine.")
    ] = "127.0.0.1",
    rules: Annotated[bool, typer.Option("--rules", help="Print a file of alerts for Prometheus, and end.")] = False,
    grafana: Annotated[bool, typer.Option("--grafana", help="Print a dashboard for Grafana as JSON, and end.")] = False,
) -> None:
    """Serve what the database says to Prometheus: backlog, age, cleanup, sizes, vacuum, snapshots, locks, connections.

    One such process is enough for a database. It reads, at most every 5 seconds, and its role needs no more than
    `sa-jobqueue grants --can read`. The metrics of workers are served by `sa-jobqueue work --metrics-port`.

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

    heard: SimpleQueue[int] = SimpleQueue()
    with signals_go_to(lambda number, frame: heard.put(number)):
        endpoint.serve(registry_of(collector), DatabaseProbes(is_up))
        logger.info("metrics of the database at %s", endpoint.url)
        logger.info("%s: ending", signal.Signals(heard.get()).name)
    endpoint.close()

"""The command `metrics`: what the database says, for Prometheus; and the alerts and the Grafana board that come with it."""

from __future__ import annotations

import signal
import sys
from importlib.resources import files
from queue import SimpleQueue
from typing import Annotated

import typer

from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.log import get_logger
from sa_jobqueue.worker.process.signals import signals_go_to

from .config import Config
from .endpoint import open_endpoint
from .place import open_engine

__all__ = ["metrics"]

logger = get_logger(__name__)


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
    from sa_jobqueue.metrics import QueueCollector
    from sa_jobqueue.metrics.endpoint import registry_of
    from sa_jobqueue.metrics.probes import DatabaseProbes

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

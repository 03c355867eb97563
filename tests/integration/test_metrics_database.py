"""The metrics of the database, collected from a real one."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import Engine

from sa_jobqueue.metrics import QueueCollector


def test_x(engine: Engine) -> None:
    registry = CollectorRegistry()
    registry.register(QueueCollector(engine))
    print(generate_latest(registry).decode())
    assert 0

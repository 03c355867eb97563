"""The metrics and probes of real worker processes."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

import pytest

from sa_jobqueue import enqueue
from tests.acceptance.app import nothing
from tests.acceptance.conftest import Shop
from tests.support.commands import Command
from tests.support.waiting import wait_until


def get(worker: Command, path: str) -> tuple[int, str]:
    """What a command's endpoint answers."""
    found = re.search(r"http://\S+?(?=/metrics)", worker.output)
    assert found is not None, worker.output
    try:
        with urllib.request.urlopen(found[0] + path, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def value(worker: Command, series: str) -> float | None:
    """One series of the command's metrics."""
    lines = [line for line in get(worker, "/metrics")[1].splitlines() if line.startswith(f"{series} ")]
    return float(lines[0].rpartition(" ")[2]) if lines else None


@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_serves_its_metrics(shop: Shop, processes: int) -> None:
    """All of it."""
    with shop.work(f"--processes={processes}", "--metrics-port=0") as worker:
        shop.add(*(enqueue(nothing, n) for n in range(20)))
        shop.wait_for()
        series = 'sa_jobqueue_jobs_total{outcome="completed",queue="default",task="tests.acceptance.app.nothing"}'
        wait_until(lambda: value(worker, series) == 20, message="20 jobs in the metrics")
        print(get(worker, "/metrics")[1])
        print(get(worker, "/livez"), get(worker, "/readyz"), get(worker, "/nothing"))

"""A real Prometheus on this machine, which scrapes each second, and is asked.

with run_prometheus(folder, {"workers": "127.0.0.1:9100"}) as prometheus:
    wait_until(lambda: prometheus.ask("sum(sa_jobqueue_jobs_total)") == [({}, 5.0)])
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.waiting import wait_until

__all__ = ["PROGRAM", "Prometheus", "run_prometheus"]

PROGRAM = shutil.which("prometheus")


@dataclass
class Prometheus:
    """A server that runs."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def get(self, path: str, **parameters: str) -> Any:
        """The data of one answer of its API; RuntimeError with what it says is wrong."""
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}{query}", timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{parameters}: {error.read().decode()}") from error

    def ask(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """The labels and the value of each series that the expression gives now."""
        found = self.get("query", query=expression)["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def is_up(self) -> bool:
        """Whether it answers."""
        if self.process.poll() is not None:
            raise RuntimeError(f"ended with {self.process.returncode}:\n{self.log.read_text()}")
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=30) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextmanager
def run_prometheus(folder: Path, targets: Mapping[str, str], rules: Path) -> Generator[Prometheus]:
    """A Prometheus that scrapes `targets`, host and port by the name of the job, with its files in `folder`."""
    configuration = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": [target]}]} for name, target in targets.items()
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": address,
        "log.level": "warn",
    }
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(PROGRAM), *(f"--{name}={value}" for name, value in arguments.items())],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    started = Prometheus(process, f"http://{address}", log)
    try:
        wait_until(started.is_up)
        yield started
    finally:
        process.kill()
        process.wait()

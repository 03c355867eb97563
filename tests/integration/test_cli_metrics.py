"""The command `metrics`: it serves what the database says, and prints the alerts and the board."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from tests.support.cli import invoke
from tests.support.commands import start_command
from tests.support.databases import Databases
from tests.support.metrics import get, value
from tests.support.waiting import wait_until

PROMTOOL = shutil.which("promtool")


def test_it_serves_what_the_database_says_until_a_signal_comes(database_url: str, databases: Databases) -> None:
    """Ready while the database answers, alive in any case; it ends with 0."""
    with start_command("metrics", "--port=0", url=database_url) as command:
        command.wait_for("/metrics")
        assert value(command, "sa_jobqueue_database_up") == 1
        assert get(command, "/readyz") == (200, "ready\n")
        if PROMTOOL is not None:
            said = get(command, "/metrics")[1]
            checked = subprocess.run(
                [PROMTOOL, "check", "metrics"], input=said, capture_output=True, text=True, check=False
            )
            assert (checked.returncode, checked.stderr) == (0, "")
        with databases.away(database_url):
            wait_until(lambda: value(command, "sa_jobqueue_database_up") == 0)
            assert get(command, "/readyz") == (503, "the database does not answer\n")
            assert get(command, "/livez") == (200, "live\n")
        wait_until(lambda: value(command, "sa_jobqueue_database_up") == 1)
        command.send(signal.SIGTERM)
        assert command.wait() == 0


def test_it_begins_while_the_database_is_away() -> None:
    """That is what its metrics say."""
    with start_command("metrics", "--port=0", url="postgresql://me@127.0.0.1:1/nowhere") as command:
        command.wait_for("/metrics")
        assert value(command, "sa_jobqueue_database_up") == 0
        command.send(signal.SIGINT)
        assert command.wait() == 0


def test_a_signal_is_heard_while_many_ask() -> None:
    """Each question is answered by a thread of its own, and none of these takes the signal from the main thread."""
    with start_command("metrics", "--port=0", url="postgresql://me@127.0.0.1:1/nowhere") as command:
        command.wait_for("/metrics")
        ended = threading.Event()

        def ask() -> None:
            while not ended.is_set():
                with suppress(OSError):
                    get(command, "/livez")

        with ThreadPoolExecutor(4) as threads:
            for _ in range(4):
                threads.submit(ask)
            try:
                command.send(signal.SIGTERM)
                assert command.wait() == 0
            finally:
                ended.set()


def test_a_port_that_is_taken_is_said(url: str) -> None:
    """In one line, with exit code 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = invoke("metrics", f"--port={taken.getsockname()[1]}", url=url)
    assert done.exit_code == 2
    assert "Address already in use; choose another port" in done.stderr


def test_a_folder_for_the_metrics_of_handlers_that_is_not_there_is_said(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As prometheus_client would, and with what to do."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "nowhere"))
    done = invoke("work", "--app=tests.acceptance.app:registry", "--drain", "--metrics-port=0", url=url)
    assert done.exit_code == 2
    assert "PROMETHEUS_MULTIPROC_DIR: there is no folder" in done.stderr


def test_a_host_that_this_machine_does_not_have_is_said(url: str) -> None:
    """As for a port."""
    done = invoke("metrics", "--host=192.0.2.1", "--port=0", url=url)
    assert done.exit_code == 2
    assert "no metrics on port 0 of 192.0.2.1" in done.stderr


def test_it_prints_the_alerts_and_the_board() -> None:
    """As files for Prometheus and Grafana; no database is asked."""
    assert yaml.safe_load(invoke("metrics", "--rules").stdout)["groups"][0]["name"] == "sa_jobqueue"
    assert json.loads(invoke("metrics", "--grafana").stdout)["uid"] == "sa-jobqueue"
    refused = invoke("metrics", "--grafana", "--rules")
    assert refused.exit_code == 2
    assert "give one of them" in refused.stderr


@pytest.mark.parametrize("command", [("metrics",), ("work", "--metrics-port=0")])
def test_without_the_extra_it_says_what_to_install(
    command: tuple[str, ...], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, before anything is started."""
    for name in [name for name in sys.modules if name.startswith(("prometheus_client", "sa_jobqueue.metrics"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    done = invoke(*command, url=url)
    assert done.exit_code == 2
    assert "error: metrics need prometheus-client: pip install 'sa_jobqueue[metrics]'" in done.stderr


def test_a_worker_without_metrics_imports_nothing_of_them(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And has no thread for them."""
    for name in [name for name in sys.modules if name.startswith(("prometheus_client", "sa_jobqueue.metrics"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert invoke("work", "--app=tests.acceptance.app:registry", "--drain", url=url).exit_code == 0
    assert not any(name.startswith("sa_jobqueue.metrics") for name in sys.modules)

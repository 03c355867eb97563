"""The metrics and probes of real worker processes, and a real Prometheus that asks for them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from importlib.resources import as_file
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from sa_jobqueue import Workflow, enqueue
from sa_jobqueue.statements import pause, set_limit
from tests.acceptance.app import held_without_session, nothing, write, write_and_fail
from tests.acceptance.conftest import APP, ONE, Shop
from tests.support.cli import refused
from tests.support.commands import PACKAGE, ROOT, start_command
from tests.support.databases import Databases
from tests.support.expressions import RULES
from tests.support.grafana_board import expressions
from tests.support.metrics import address_of, get, value
from tests.support.nightly import nightly
from tests.support.prometheus import PROGRAM, run_prometheus
from tests.support.waiting import wait_until
from tests.support.working import lapse, long_healthy

PROMTOOL = shutil.which("promtool")
COMPLETED = 'sa_jobqueue_jobs_total{outcome="completed",queue="default",task="tests.acceptance.app.nothing"}'


@pytest.mark.parametrize("processes", [1, *nightly(2)])
def test_a_worker_serves_the_metrics_of_all_its_processes(shop: Shop, processes: int) -> None:
    """One port: counters as sums, slots of all, memory of each."""
    with shop.work(f"--processes={processes}", "--metrics-port=0", "--queue=default=3") as worker:
        wait_until(lambda: value(worker, "sa_jobqueue_processes") == processes)
        assert value(worker, COMPLETED) == 0, (
            "a task that was not run yet has a zero, so that a rate sees its first job"
        )
        shop.add(*(enqueue(nothing, n) for n in range(20)))
        shop.wait_for()
        wait_until(lambda: value(worker, COMPLETED) == 20)
        assert value(worker, 'sa_jobqueue_slots{queue="default"}') == 3 * processes
        assert value(worker, f'sa_jobqueue_memory_bytes{{process="{processes}"}}')
        wait_until(lambda: get(worker, "/readyz") == (200, "ready\n"))
        assert get(worker, "/livez") == (200, "live\n")
        assert get(worker, "/elsewhere")[0] == 404
        if PROMTOOL is not None:
            checked = subprocess.run(
                [PROMTOOL, "check", "metrics"],
                input=get(worker, "/metrics")[1],
                capture_output=True,
                text=True,
                check=False,
            )
            assert (checked.returncode, checked.stderr) == (0, "")


def test_a_killed_process_takes_its_gauges_along_and_leaves_its_counts(shop: Shop) -> None:
    """Its successor begins at zero, and the sum does not."""
    with shop.work(*ONE, "--metrics-port=0", "--queue=default=3") as worker:
        shop.add(*(enqueue(nothing, n) for n in range(20)))
        wait_until(lambda: value(worker, COMPLETED) == 20)
        for process in worker.children():
            process.kill()
        wait_until(lambda: value(worker, "sa_jobqueue_processes") == 0)
        assert value(worker, COMPLETED) == 20
        assert value(worker, 'sa_jobqueue_slots{queue="default"}') is None
        assert get(worker, "/readyz")[0] == 503
        assert get(worker, "/livez")[0] == 200
        wait_until(lambda: value(worker, "sa_jobqueue_processes") == 1)
        shop.add(enqueue(nothing, 21))
        wait_until(lambda: value(worker, COMPLETED) == 21)


@pytest.mark.parametrize("supervised", [(), *nightly(ONE)], ids=["alone", "supervised"])
def test_a_worker_that_leaves_is_not_ready_and_goes_on_counting(shop: Shop, supervised: tuple[str, ...]) -> None:
    """Until its last job has ended, and that is counted."""
    with shop.work(*supervised, "--metrics-port=0") as worker:
        shop.add(enqueue(held_without_session, "slow"))
        shop.wait_said("started-slow")
        wait_until(lambda: get(worker, "/readyz")[0] == 200)
        worker.send(signal.SIGTERM)
        wait_until(lambda: get(worker, "/readyz") == (503, "it is leaving\n"))
        assert get(worker, "/livez")[0] == 200
        shop.go("slow")
        assert worker.wait() == 0


def test_a_worker_whose_database_is_away_lives_and_is_not_ready(shop: Shop, databases: Databases) -> None:
    """To start it again would not bring the database back."""
    with shop.work("--metrics-port=0") as worker:
        wait_until(lambda: get(worker, "/readyz") == (200, "ready\n"))
        with databases.away(shop.url):
            wait_until(lambda: get(worker, "/readyz") == (503, "the database does not answer\n"))
            assert get(worker, "/livez") == (200, "live\n")
            assert value(worker, "sa_jobqueue_processes") == 1
        wait_until(lambda: get(worker, "/readyz") == (200, "ready\n"))


@pytest.mark.parametrize("processes", [1, 2])
def test_a_port_that_is_taken_is_said_before_a_worker_begins(shop: Shop, processes: int) -> None:
    """One line: what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("work", f"--app={APP}", f"--processes={processes}", f"--metrics-port={port}", url=shop.url)
    assert f"no metrics on port {port} of 127.0.0.1: Address already in use; choose another port" in said


def test_what_handlers_count_themselves_is_served_too(shop: Shop, tmp_path: Path) -> None:
    """By prometheus_client in its multiprocess mode."""
    folder = tmp_path / "multiprocess"
    folder.mkdir()
    (tmp_path / "counting.py").write_text(
        "from prometheus_client import Counter\n"
        "from sa_jobqueue import Registry, task\n"
        "registry = Registry()\n"
        "orders = Counter('shop_orders', 'Orders')\n"
        "@task(registry=registry, name='counting.order')\n"
        "def order() -> None:\n"
        "    orders.inc()\n"
    )
    environment = {
        "PROMETHEUS_MULTIPROC_DIR": str(folder),
        "PYTHONPATH": os.pathsep.join(map(str, [tmp_path, PACKAGE, ROOT])),
    }
    with shop.work("--processes=2", "--metrics-port=0", app="counting:registry", env=environment) as worker:
        with shop.engine.begin() as connection:
            connection.execute(
                text(
                    "INSERT INTO sa_jobqueue.job (task, queue) SELECT 'counting.order', 'default' FROM generate_series(1, 5)"
                )
            )
        shop.wait_for()
        wait_until(lambda: value(worker, "shop_orders_total") == 5)
        wait_until(lambda: value(worker, 'sa_jobqueue_slots{queue="default"}') == 2 * 10)


@pytest.mark.nightly
@pytest.mark.skipif(PROGRAM is None, reason="there is no prometheus here (Debian's package prometheus)")
def test_prometheus_sees_every_job_and_no_counter_going_back_while_a_worker_is_killed(
    shop: Shop, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The totals are those of the database, and every expression of the board and of the alerts is answered."""
    folder = tmp_path_factory.mktemp("prometheus")
    long_healthy(shop.engine, 20.0)
    with (
        as_file(RULES) as rules,
        shop.work("--processes=2", "--lease=20", "--metrics-port=0", "--queue=default=4") as worker,
        start_command("metrics", "--port=0", url=shop.url) as database,
    ):
        database.wait_for("/metrics")
        targets = {"workers": address_of(worker), "database": address_of(database)}
        with run_prometheus(folder, targets, rules) as prometheus:

            def total(outcome: str) -> float:
                found = prometheus.ask(f'sum(sa_jobqueue_jobs_total{{outcome="{outcome}"}})')
                return found[0][1] if found else 0.0

            wait_until(lambda: prometheus.ask('sa_jobqueue_workers{state="live"} == 2'))
            shop.add(*(enqueue(nothing, n) for n in range(300)), *(enqueue(write, str(n)) for n in range(20)))
            shop.add(enqueue(write_and_fail, "never"))
            wait_until(lambda: (total("completed"), total("retried"), total("failed")) == (320, 1, 1))

            ids = shop.add(*(enqueue(held_without_session, name) for name in "abcd"))
            killed = {name: shop.wait_said(f"started-{name}")[0] for name in "abcd"}
            os.kill(killed["a"], signal.SIGKILL)
            lapse(shop.engine, *(id for id, name in zip(ids, "abcd", strict=True) if killed[name] == killed["a"]))
            for name in "abcd":
                if killed[name] != killed["a"]:
                    shop.go(name)
            shop.wait_for(*ids)
            shop.add(*(enqueue(nothing, n) for n in range(100)))
            wait_until(lambda: total("completed") == 424)
            rescued = sum(pid == killed["a"] for pid in killed.values())
            wait_until(lambda: prometheus.ask("sum(sa_jobqueue_rescued_total)") == [({}, rescued)])

            for counter in ("sa_jobqueue_jobs_total", "sa_jobqueue_job_run_seconds_count", "sa_jobqueue_claimed_total"):
                assert prometheus.ask(f"max(resets({counter}[10m]))") == [({}, 0)]
            run = prometheus.ask("sum(sa_jobqueue_job_run_seconds_count)")[0][1]
            assert run == 424 + 2, (
                "each run is counted once: those that completed, and both attempts of the one that fails"
            )

            # A queue of its own, which no worker serves, has a limit, a pause, a job with a key, and a workflow; a task has a limit.
            workflow = Workflow("quiet")
            workflow.add(nothing.options(queue="quiet"), 0)
            with Session(shop.engine) as session, session.begin():
                session.add_all([enqueue(nothing.options(queue="quiet", key="a"), 0), workflow])
            with shop.engine.begin() as connection:
                connection.execute(set_limit("quiet", running=5))
                connection.execute(set_limit("quiet", owner="task", running=5))
                connection.execute(pause("quiet"))
            shop.execute_alone("VACUUM ANALYZE sa_jobqueue.job")
            with shop.engine.connect() as connection:
                absent = ["replication"]  # there is no standby
                absent += ["database_io"] * (connection.dialect.server_version_info < (16,))  # type: ignore[operator]
            for expression in expressions():
                if not any(name in expression for name in absent):
                    asked = expression.replace("$__rate_interval", "1m").replace("$queue", ".*")
                    wait_until(lambda asked=asked: prometheus.ask(asked), message=f"an answer to {asked}")
            groups = prometheus.get("rules")["groups"]
            states = {
                rule["name"]: (rule["health"], rule.get("lastError")) for group in groups for rule in group["rules"]
            }
            assert states
            assert set(states.values()) <= {("ok", None)}

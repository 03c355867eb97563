"""What a worker costs that has nothing to do: processor time of its own and of its server processes, and memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import psutil

from sa_jobqueue.trials.bench.processes import processes

from .report import Figure
from .schema import SCHEMA, Bench
from .workers import SLOTS, serve

MIB = 1024 * 1024


def idle(bench: Bench) -> Iterator[Figure]:
    """After the first looks, which come soon after each other. The server processes count only if the server is on this machine."""
    bench.empty()
    bench.settle()
    own, server, servers, resident = cost(bench)
    yield Figure(f"idle worker and its {servers} server processes", own + server, "% of a core", at_most=0.5)
    yield Figure("idle worker alone", own, "% of a core")
    yield Figure("idle worker, resident memory", resident, "MiB", at_most=90)


def cost(bench: Bench) -> tuple[float, float, int, float]:
    """Of an idle worker: percent of a core for itself and for its server processes, how many these are, and its memory in MiB."""
    seconds, settled = (0.5, 0.5) if bench.small else (20.0, 3.0)
    before = _backends(bench)
    with processes(1, serve, bench.address, {"default": SLOTS}) as group:
        group.go()
        bench.wait_for(f"SELECT count(*) FROM {SCHEMA}.worker")
        time.sleep(settled)
        worker = psutil.Process(group.pids[0])
        servers = [psutil.Process(pid) for pid in _backends(bench) - before if psutil.pid_exists(pid)]
        shares, server_shares = [], []
        for _ in range(bench.repeat):
            mine, theirs = _processor_time(worker), sum(map(_processor_time, servers))
            time.sleep(seconds)
            shares.append((_processor_time(worker) - mine) / seconds * 100)
            server_shares.append((sum(map(_processor_time, servers)) - theirs) / seconds * 100)
        resident = worker.memory_info().rss / MIB
        group.stop()
    return statistics.median(shares), statistics.median(server_shares), len(servers), resident


def _backends(bench: Bench) -> set[int]:
    pids = bench.execute("SELECT array_agg(pid) FROM pg_stat_activity WHERE datname = current_database()")
    return set(pids)


def _processor_time(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)

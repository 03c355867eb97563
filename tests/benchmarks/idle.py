"""What a worker costs that has nothing to do: processor time of its own and of its server processes, transactions, and memory. And what
its start costs, against a process that imports the libraries which it is built on.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil

from sa_jobqueue.trials.bench.processes import processes

from .report import Figure, compared
from .schema import SCHEMA, Bench
from .workers import SLOTS, serve

MIB = 1024 * 1024


def idle(bench: Bench) -> Iterator[Figure]:
    """After the first looks, which come soon after each other. The server processes count only if the server is on this machine."""
    bench.empty()
    bench.settle()
    own, server, servers, resident, transactions = cost(bench)
    yield Figure(f"idle worker and its {servers} server processes", own + server, "% of a core", at_most=0.5)
    yield Figure("idle worker alone", own, "% of a core")
    yield Figure("idle worker, resident memory", resident, "MiB", at_most=90)
    yield Figure("idle worker, transactions", transactions, "a second", at_most=0.5)
    pairs = [(_started(_WORK, bench.address), _started(_LIBRARIES)) for _ in range(1 if bench.small else 10)]
    against = "SQLAlchemy, pydantic, psycopg, typer imported"
    seconds = [(work[0], libraries[0]) for work, libraries in pairs]
    yield compared("sa-jobqueue work until it serves, processor time", seconds, "s", against, at_most=1.4)
    more = statistics.median(work[1] - libraries[1] for work, libraries in pairs)
    yield Figure("the same, resident memory beyond that", more, "MiB", at_most=10)


#: What a worker is built on; and a worker that tells when it serves. Each prints a line when it is ready.
_LIBRARIES = """
import sqlalchemy, sqlalchemy.orm, sqlalchemy.ext.asyncio, sqlalchemy.dialects.postgresql, pydantic, psycopg, typer
import time
print(time.process_time(), flush=True)
time.sleep(60)
"""
_WORK = f"""
import logging, sys, time

class Tell(logging.Handler):
    def emit(self, record):
        if " serves " in record.getMessage():
            print(time.process_time(), flush=True)

logging.getLogger("sa_jobqueue").addHandler(Tell())
sys.argv[1:] = ["work", "--app=tests.benchmarks.hello", "--schema={SCHEMA}", f"--database-url={{sys.argv[1]}}", "--log-level=info"]
from sa_jobqueue.cli import main
main()
"""


def _started(program: str, *arguments: str) -> tuple[float, float]:
    """The processor time in seconds until a program is ready, and its memory in MiB some seconds later."""
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        seconds = float(process.stdout.readline())
        time.sleep(5)
        resident = psutil.Process(process.pid).memory_info().rss / MIB
        process.terminate()
    return seconds, resident


def cost(bench: Bench) -> tuple[float, float, int, float, float]:
    """Of an idle worker: percent of a core for itself and for its server processes, how many these are, its memory in MiB, and its
    transactions in a second.
    """
    seconds, settled = (0.5, 0.5) if bench.small else (20.0, 15.0)
    before = _backends(bench)
    with processes(1, serve, bench.address, {"default": SLOTS}) as group:
        group.go()
        bench.wait_for(f"SELECT count(*) FROM {SCHEMA}.worker")
        time.sleep(settled)
        worker = group.pids[0]
        servers = [pid for pid in _backends(bench) - before if psutil.pid_exists(pid)]
        shares, server_shares = [], []
        before, began = bench.execute(_TRANSACTIONS), time.monotonic()
        for _ in range(bench.repeat):
            mine, theirs = processor_time(worker), sum(map(processor_time, servers))
            time.sleep(seconds)
            shares.append((processor_time(worker) - mine) / seconds * 100)
            server_shares.append((sum(map(processor_time, servers)) - theirs) / seconds * 100)
        transactions = (bench.execute(_TRANSACTIONS) - before - 1) / (time.monotonic() - began)
        resident = psutil.Process(worker).memory_info().rss / MIB
        group.stop()
    return statistics.median(shares), statistics.median(server_shares), len(servers), resident, transactions


#: The server counts a process's transactions up to ten seconds late.
_TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"


def _backends(bench: Bench) -> set[int]:
    pids = bench.execute("SELECT array_agg(pid) FROM pg_stat_activity WHERE datname = current_database()")
    return set(pids)


def processor_time(pid: int) -> float:
    """Seconds of a process, all of its threads together.

    Linux counts them in nanoseconds; the steps of 10 ms that psutil reads are longer than what an idle process takes in seconds.
    """
    if sys.platform == "linux":
        return time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3) of a process
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)

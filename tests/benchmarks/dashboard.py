"""The dashboard: how long a page of it takes beside many jobs, and what ten viewers cost a queue that is drained."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import httpx2

from .drain import rate_of_ours
from .report import Figure, compared, interleaved
from .schema import SCHEMA, Bench

#: A live page asks again after so long: see dashboard/static/app.js.
_AGAIN = 2.0
_VIEWERS = 10

#: The pages, and the filters for which there is an index.
PAGES = (
    "/", "/jobs", "/jobs?status=failed", "/jobs?status=running", "/jobs?status=blocked", "/jobs?status=completed", "/jobs?queue=q3",
    "/jobs?status=failed&task=t7", "/jobs?status=failed&error=E3", "/jobs?subject=Order:777", "/jobs?workflow={flow}", "/jobs?id={middle}",
    "/jobs/{middle}", "/errors", "/tasks", "/tasks/t7", "/queues", "/queues/q3", "/limits", "/workers", "/schedules", "/workflows", "/workflows/{flow}", "/database", "/audit",
    "/find?q={middle}",
)  # fmt: skip

#: What jobs have alike. `n` is the number of one.
_COMMON = (
    "'q' || n % 20, 't' || n % 100, jsonb_build_object('order_id', n, 'to', 'customer' || n || '@example.com'), "
    "CASE WHEN n % 3 = 0 THEN jsonb_build_object('tags', jsonb_build_array('t' || n % 50)) ELSE '{}' END, "
    "CASE WHEN n % 4 = 0 THEN 'Order' END, CASE WHEN n % 4 = 0 THEN (n / 4)::text END"
)
_COLUMNS = "queue, task, args, meta, subject_type, subject_id"
_BEGUN = "attempt, claims, claim_token, worker"

#: Of each hundred rows: those that are done, failed, due, later.
_FILL = {
    90: (
        f"INSERT INTO {SCHEMA}.job ({_COLUMNS}, {_BEGUN}, status, created_at, run_at, claimed_at, finished_at, purge_at) "
        f"SELECT {_COMMON}, 1, 1, 1, 'w', CASE WHEN n % 20 = 7 THEN 'cancelled' ELSE 'completed' END, at, at, at, at, at + interval '7 days' "
        "FROM generate_series(1, :jobs) AS n, LATERAL (SELECT now() - (:jobs - n) * interval '60 ms' AS at) AS t"
    ),
    3: (
        f"INSERT INTO {SCHEMA}.job ({_COLUMNS}, {_BEGUN}, status, finished_at, errors) "
        f"SELECT {_COMMON}, 3, 3, 1, 'w', 'failed', at, jsonb_build_array(jsonb_build_object('at', at, 'attempt', 3, 'type', 'shop.E' || n % 7, "
        "'message', 'no answer of ' || n % 40, 'traceback', repeat('  File \"/srv/shop/mail.py\", line 7' || chr(10), 12))) "
        "FROM generate_series(1, :jobs) AS n, LATERAL (SELECT now() - (:jobs - n) * interval '1 s' AS at) AS t"
    ),
    4: (
        f"INSERT INTO {SCHEMA}.job ({_COLUMNS}, run_at, priority, concurrency_key) "
        f"SELECT {_COMMON}, now() - (:jobs - n) * interval '1 s', n % 10, CASE WHEN n % 10 = 0 THEN 'k' || n % 1000 END "
        "FROM generate_series(1, :jobs) AS n"
    ),
    2: (
        f"INSERT INTO {SCHEMA}.job ({_COLUMNS}, run_at) SELECT {_COMMON}, now() + interval '1 day' + n * interval '1 s' "
        "FROM generate_series(1, :jobs) AS n"
    ),
}  # fmt: skip
_REST = (
    f"INSERT INTO {SCHEMA}.workflow (name) SELECT 'flow' || n % 10 FROM generate_series(1, 200) AS n",
    (f"INSERT INTO {SCHEMA}.job ({_COLUMNS}, {_BEGUN}, status, workflow_id, finished_at) "
    f"SELECT {_COMMON}, 1, 1, 1, 'w', 'completed', w.id, now() FROM {SCHEMA}.workflow AS w, generate_series(1, 9) AS n"),
    (f"INSERT INTO {SCHEMA}.stat (seconds, at, queue, task, completed, retried, failed, cancelled, snoozed, suspended, released, rescued, lost, "
    "run_seconds, wait_seconds, runs, waits) "
    "SELECT 60, date_trunc('minute', now()) - m * interval '1 min', 'q' || t % 20, 't' || t, 100, 1, 1, 0, 0, 0, 0, 0, 0, 12.5, 30.0, "
    "array_fill(0::bigint, ARRAY[19]), array_fill(5::bigint, ARRAY[19]) FROM generate_series(0, 1440) AS m, generate_series(0, 99) AS t"),
)  # fmt: skip


def dashboard(bench: Bench) -> Iterator[Figure]:
    """Each page 40 times, one after the other, of a server in a process of its own."""
    rows, times = (10_000, 3) if bench.small else (10_000_000, 40)
    yield compared(
        f"drain, {_VIEWERS} viewers of the dashboard : none",
        interleaved(bench.repeat, partial(_drain, bench, True), partial(_drain, bench, False)),
        "jobs/s",
        "none",
        at_least=0.97,
    )
    bench.empty()
    for share, sql in _FILL.items():
        bench.execute(sql, jobs=rows * share // 100)
    for sql in _REST:
        bench.execute(sql)
    bench.settle()
    bench.execute("VACUUM ANALYZE")
    # Ids go on from what was measured before.
    middle = bench.execute(f"SELECT min(id) FROM {SCHEMA}.job") + rows // 2
    flow = bench.execute(f"SELECT min(id) FROM {SCHEMA}.workflow") + 100
    slowest = (0.0, "")
    with _served(bench) as address, httpx2.Client(base_url=address, follow_redirects=True, timeout=30) as client:
        for page in PAGES:
            path = page.format(middle=middle, flow=flow)
            mark = "&" if "?" in path else "?"
            # An answer is kept for a second for all that ask the same: the addresses differ.
            found = [_milliseconds(client, f"{path}{mark}x={number}") for number in range(times)]
            slowest = max(slowest, (statistics.quantiles(found, n=20, method="inclusive")[-1], page))
    bench.empty()
    yield Figure(f"dashboard, {rows:,} jobs: the slowest page ({slowest[1]}), p95", slowest[0], "ms", at_most=100)


def _milliseconds(client: httpx2.Client, path: str) -> float:
    began = time.perf_counter()
    answer = client.get(path)
    assert answer.status_code == 200, (path, answer)
    return (time.perf_counter() - began) * 1_000


@contextmanager
def _served(bench: Bench) -> Iterator[str]:
    """The address of `sa-jobqueue dashboard`, once it answers."""
    command = [sys.executable, "-m", "sa_jobqueue", "dashboard", "--port", "0", "--database-url", bench.address]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = ""
            while "http://" not in said:
                said = process.stderr.readline()
                assert said, "the dashboard ended"
            yield said.partition("dashboard: ")[2].split()[0]
        finally:
            process.terminate()


def _drain(bench: Bench, viewers: bool) -> float:
    """Jobs per second of one process."""
    jobs = 2_000 if bench.small else 100_000
    if not viewers:
        return rate_of_ours(bench, jobs, "nothing")
    with _served(bench) as address:
        going = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(_watch(address, going)))
        thread.start()
        try:
            return rate_of_ours(bench, jobs, "nothing")
        finally:
            going.set()
            thread.join()


async def _watch(address: str, ended: threading.Event) -> None:
    """Ten viewers of the Overview, as their browsers ask."""

    async def view(client: httpx2.AsyncClient, number: int) -> None:
        await asyncio.sleep(_AGAIN * number / _VIEWERS)
        while not ended.is_set():
            answer = await client.get("/", headers={"hx-request": "true"})
            assert answer.status_code == 200, answer
            await asyncio.sleep(_AGAIN)

    async with httpx2.AsyncClient(base_url=address, timeout=30) as client:
        await asyncio.gather(*(view(client, number) for number in range(_VIEWERS)))

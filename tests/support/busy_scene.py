"""A database in the middle of a working day: queues with work, workers of each kind, limits that are reached, pauses, failed jobs, and what the
last hours came to.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, insert, text

from sa_jobqueue.models import WorkerRow
from tests.support.factory import make_job, make_jobs
from tests.support.limits import key, limit, rate

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


@dataclass(frozen=True)
class Scene:
    """What a test may ask about."""

    live: UUID
    stale: UUID
    held_back: UUID
    failed: list[int]
    running: list[int]


def make_worker(connection: Connection, *, unseen: float = 1.0, **columns: Any) -> UUID:
    """A worker that was seen some seconds ago."""
    id = uuid4()
    values = {
        "host": "web-1", "pid": 4711, "queues": ["mail", "sync"], "concurrency": 10, "version": "1.0", "memory": 94_000_000,
        "loop_lag": 0.004, **columns,
    }  # fmt: skip
    seen = text(f"now() - interval '{unseen} s'")
    connection.execute(
        insert(WorkerRow).values(id=id, seen_at=seen, started_at=text("now() - interval '2 h'"), **values)
    )
    return id


def add_stats(
    connection: Connection, queue: str, task: str, *, minutes: int = 90, each: int = 60, failed: int = 1
) -> None:
    """What each of the last minutes came to; the waits are in the buckets of 5 ms to 1 s."""
    connection.execute(
        text("""
        INSERT INTO sa_jobqueue.stat (seconds, at, queue, task, completed, retried, failed, cancelled, snoozed, suspended, released, rescued,
            lost, run_seconds, wait_seconds, runs, waits)
        SELECT 60, date_trunc('minute', now()) - n * interval '1 min', :queue, :task,
            CAST(:each * (1.2 + sin(n / 7.0)) AS bigint), n % 4, CASE WHEN n % 5 = 0 THEN :failed ELSE 0 END, n % 9 / 8, 0, 0, 0, 0, 0,
            12.5, 30.0, array_fill(0::bigint, ARRAY[19]), ARRAY[0, 0, 5, 20, 40, 20, 10, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]::bigint[]
        FROM generate_series(0, :minutes) AS n
        """),
        {"queue": queue, "task": task, "minutes": minutes, "each": each, "failed": failed},
    )


def add_backlog(connection: Connection, queue: str, due: str, *, minutes: int = 90) -> None:
    """What was counted at the end of each of the last minutes, the last but one included; `due`: SQL about `n`, how long ago that was."""
    connection.execute(
        text(f"""
        INSERT INTO sa_jobqueue.backlog (at, due, running, oldest, more, queue)
        SELECT date_trunc('minute', now()) - n * interval '1 min', due, CAST(queue <> '' AS integer), CASE WHEN due > 0 THEN due * 60 END, false, queue
        FROM generate_series(1, :minutes) AS n, LATERAL (VALUES (:queue, {due}), ('', 0)) AS counted (queue, due)
        ON CONFLICT DO NOTHING
        """),
        {"queue": queue, "minutes": minutes},
    )


def fill(connection: Connection) -> Scene:
    """All of it, in the caller's transaction."""
    live = make_worker(connection)
    stale = make_worker(connection, unseen=300, host="web-2", pid=815)
    held_back = make_worker(
        connection,
        host="batch-1",
        queues=["index"],
        concurrency=4,
        pressure="a standby is 9 s behind (max_replication_lag is 5)",
    )
    make_jobs(connection, 12, queue="mail", task="shop.send_receipt", run_at=-2 * MINUTE)
    make_jobs(connection, 3, queue="mail", task="shop.send_receipt", run_at=HOUR)
    make_jobs(connection, 2, queue="sync", task="shop.sync_stock", run_at=-HOUR, concurrency_key="42")
    make_jobs(connection, 5, queue="reports", task="shop.report", run_at=-HOUR)
    running = [
        make_job(
            connection, "running", queue="mail", task="shop.send_receipt", worker=str(live), claimed_at=-3 * MINUTE
        ),
        make_job(connection, "running", queue="mail", task="shop.send_receipt", worker=str(live)),
        make_job(connection, "running", queue="sync", task="shop.sync_stock", worker=str(live), concurrency_key="42"),
        make_job(connection, "running", queue="index", task="shop.index", worker=str(held_back)),
    ]
    refused = {
        "type": "smtplib.SMTPServerDisconnected",
        "message": "Connection unexpectedly closed\nmore",
        "attempt": 1,
    }
    missing = {"type": "builtins.KeyError", "message": "'sku-17'", "attempt": 1}
    failed = make_jobs(connection, 7, "failed", queue="mail", task="shop.send_receipt", errors=[refused])
    failed += make_jobs(connection, 2, "failed", queue="index", task="shop.index", errors=[missing])
    make_jobs(connection, 4, "completed", queue="mail", task="shop.send_receipt")
    limit(connection, "mail", running=2, held=True, **rate(500, 60.0, 50))
    limit(connection, "sync", key_running=1, strict=True)
    limit(connection, "shop.report", owner="task", running=5)
    limit(
        connection, "reports", paused_at=text("now() - interval '25 min'"), pause_reason="the warehouse is being loaded"
    )
    key(connection, "42", "sync", running=1, weight=5)
    key(connection, "7", "sync", paused_at=text("now() - interval '10 min'"), pause_reason="asked by the customer")
    add_stats(connection, "mail", "shop.send_receipt", each=220, failed=3)
    add_stats(connection, "sync", "shop.sync_stock", each=40)
    add_stats(connection, "index", "shop.index", each=12)
    return Scene(live, stale, held_back, failed, running)

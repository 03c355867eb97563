"""A database in which something goes on, so that each page of the dashboard has what it can show. No worker is behind it.

scene = fill(connection)
viewer.see(f"/workflows/{scene.workflow}")
"""

from __future__ import annotations

import random
import re
import uuid
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Connection, func, insert, select, text, update
from sqlalchemy.orm import Session

import sa_jobqueue
from sa_jobqueue import JobContext, Registry, Schedule, TaskName, Workflow, enqueue, every
from sa_jobqueue.arguments.questions import as_asked
from sa_jobqueue.dashboard.pages import PAGES
from sa_jobqueue.models import AuditEntry, Backlog, Job, LogPart, Progress, Stat, Step, Wait, WorkerRow, WorkflowRow
from sa_jobqueue.rules.schedules import rule_of
from sa_jobqueue.rules.tally import BUCKETS, bucket_of
from tests.support.factory import make_job
from tests.support.limits import key, limit, rate

__all__ = ["REGISTRY", "Scene", "addresses", "fill", "fill_workflow"]

REGISTRY = Registry()
"""The tasks that the dashboard of the scene may enqueue and try."""


@sa_jobqueue.task(registry=REGISTRY, name="shop.send_receipt", queue="mail", dry_run=True)
def send_receipt(ctx: JobContext, order_id: int, to: str, copies: list[str] | None = None) -> None:
    ctx.logger.info("writing the receipt of order %d", order_id)
    ctx.session.add(enqueue(TaskName("shop.render_invoice"), order_id=order_id))


#: A group of errors, which is resolved.
GROUP = {
    "task": "shop.close_month",
    "error": "shop.ledger.Unbalanced",
    "group": sha256("by … EUR".encode()).hexdigest()[:16],
}

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/mail.py", line 41, in send_receipt
    connection = smtp.connect(host, timeout=10)
  File "/srv/shop/smtp.py", line 18, in connect
    return socket.create_connection((host, port), timeout)
ConnectionRefusedError: [Errno 111] Connection refused"""

#: What can go wrong: class, message.
ERRORS = (
    ("builtins.ConnectionRefusedError", "[Errno 111] Connection refused"),
    ("shop.payments.CardDeclined", "the card of customer 4711 was declined: insufficient funds"),
    ("builtins.TimeoutError", "the provider did not answer within 30 s"),
    ("builtins.KeyError", "'shipping_address'"),
)


@dataclass(frozen=True, slots=True)
class Scene:
    """The ids of some rows that have a page of their own."""

    job: int
    """One that failed after three attempts."""
    running: int
    schedule: int
    paused_schedule: int
    workflow: int
    """One that runs, with a job that failed."""
    large_workflow: int
    """One of 620 jobs."""


def addresses(scene: Scene) -> dict[str, str]:
    """Every page by its name, with something in the place of what its path names; and some that show more by a query."""
    ids = {"jobs": scene.job, "schedules": scene.schedule, "workflows": scene.workflow}
    found = {
        page.name: re.sub(r"\{[^}]*\}", str(ids.get(page.path.split("/")[1], 1)), page.path) for page in PAGES
    }  # fmt: skip
    return {
        **found,
        "jobs that failed": "/jobs?status=failed&queue=mail",
        "a preview": f"/schedules/{scene.schedule}/backfill?from=2025-11-03&to=2025-12-20",
        "a large workflow": f"/workflows/{scene.large_workflow}",
        "all of a workflow": f"/workflows/{scene.workflow}?unfold=yes",
        "a group of errors": f"/errors?{urlencode(GROUP)}",
        "a form that enqueues": "/enqueue?task=shop.send_receipt",
        "a key": "/keys/tenant-0",
        "nothing": "/nowhere",
        "what cannot be read": "/jobs?before=x",
    }


def fill(connection: Connection) -> Scene:
    """Fill it, in the caller's transaction."""
    # The same each time: a picture of it can be compared with the one before.
    chance = random.Random(32)
    workers = _workers(connection)
    failed, running = _jobs(connection, chance, workers)
    _limits(connection)
    schedule, paused = _schedules(connection)
    flow = _workflow(connection)
    large = fill_workflow(connection, 600)
    _stats(connection, chance)
    _audit(connection)
    asked = {"job_id": make_job(connection, "blocked", task="shop.refund"), "step": "signal:refund", "signal": "refund"}
    connection.execute(insert(Wait).values(**asked, question=as_asked("Refund order 17?", bool)))
    return Scene(failed, running, schedule, paused, flow, large)


def _workers(connection: Connection) -> list[str]:
    tasks = {
        "shop.send_receipt": {"queue": "mail", "timeout": 30, "aliases": []},
        "shop.charge": {"queue": "payments", "timeout": 60, "aliases": ["shop.pay"]},
        "shop.render_invoice": {"queue": "default", "timeout": None, "aliases": []},
    }
    found = []
    for host, pid, queues, seen, more in (
        ("web-1", 4211, ["default", "mail"], timedelta(seconds=-3), {}),
        ("web-2", 977, ["default", "mail", "payments"], timedelta(seconds=-5), {"pressure": "its memory is 91 % of what it may have"}),
        ("batch-1", 31, ["reports"], timedelta(minutes=-14), {}),
    ):  # fmt: skip
        id = uuid.uuid4()
        connection.execute(
            insert(WorkerRow).values(
                id=id, host=host, pid=pid, queues=queues, concurrency=16, version="0.1.0", started_at=func.now() - DAY,
                seen_at=func.now() + seen, lease=60.0, schema_version=1, memory=312_000_000, loop_lag=0.004, tasks=tasks, **more,
            )
        )  # fmt: skip
        found.append(str(id))
    return found


def _failure(at: str, attempt: int, number: int) -> dict[str, Any]:
    kind, message = ERRORS[number % len(ERRORS)]
    return {"at": at, "attempt": attempt, "type": kind, "message": message, "traceback": TRACEBACK}


def _jobs(connection: Connection, chance: random.Random, workers: list[str]) -> tuple[int, int]:
    queues = {
        "mail": "shop.send_receipt",
        "payments": "shop.charge",
        "reports": "shop.report",
        "default": "shop.render_invoice",
    }
    now = connection.scalar(select(func.now()))
    assert now is not None
    for number in range(160):
        queue = chance.choice(list(queues))
        status = chance.choice(["completed"] * 8 + ["queued"] * 3 + ["failed"] * 2 + ["cancelled"])
        age = -timedelta(seconds=chance.uniform(30, 80_000))
        values: dict[str, Any] = {
            "queue": queue, "task": queues[queue], "args": {"order_id": 700 + number, "to": f"customer{number}@example.com"},
            "meta": {"tags": [chance.choice(["web", "import", "eu"])]}, "created_at": age, "priority": chance.randint(2, 6),
            "subject_type": "Order", "subject_id": str(700 + number),
        }  # fmt: skip
        if status == "queued":
            values["run_at"] = timedelta(seconds=chance.uniform(-900, 7_200))
            if number % 5 == 0:
                values |= {"attempt": 2, "claims": 2, "errors": [_failure(str(now - HOUR), 2, number)]}
        else:
            took = timedelta(seconds=chance.uniform(0.02, 25))
            values |= {"claimed_at": age + took, "finished_at": age + 2 * took, "worker": chance.choice(workers)}
        if status == "failed":
            values |= {
                "attempt": 3,
                "max_attempts": 3,
                "errors": [_failure(str(now - HOUR / n), n, number) for n in (1, 2, 3)],
            }
        if status == "completed" and number % 3 == 0:
            values["result"] = {"sent": True, "message_id": f"<{number}@shop>"}
        make_job(connection, status, **values)
    for number in range(12):
        values = {
            "concurrency_key": f"tenant-{number % 3}",
            "queue": "payments",
            "task": "shop.charge",
            "args": {"order_id": number},
        }
        make_job(connection, "queued", created_at=-10 * MINUTE, run_at=-10 * MINUTE, **values)
    running = [
        make_job(
            connection, "running", queue=queue, task=task, args={"order_id": 7}, worker=chance.choice(workers[:2]), created_at=-MINUTE,
            concurrency_key="tenant-0" if queue == "payments" else None,
        )
        for queue, task in queues.items()
    ]  # fmt: skip
    connection.execute(
        insert(Progress).values(
            job_id=running[0], claim_token=1, claims=1, fraction=0.4, written_at=func.now(), message="page 2 of 5"
        )
    )
    errors = [_failure(str(now - ago), n, 0) for n, ago in enumerate((4.5 * MINUTE, 3.5 * MINUTE, MINUTE), 1)]
    failed = make_job(
        connection, "failed", queue="mail", task="shop.send_receipt", args={"order_id": 4711, "to": "ada@example.com"}, attempt=3,
        max_attempts=3, errors=errors, meta={"tags": ["web"]}, subject_type="Order", subject_id="4711", created_at=-5 * MINUTE,
        run_at=-1.7 * MINUTE, claimed_at=-1.5 * MINUTE, finished_at=-MINUTE, purge_at=30 * DAY - MINUTE, worker=workers[0],
    )  # fmt: skip
    for name, ago, result in (
        ("find address", 4.6 * MINUTE, "ada@example.com"),
        ("render", 3.6 * MINUTE, {"pages": 1}),
    ):
        step = {"kind": "step", "revision": 1, "name": name, "took": 0.4, "result": result, "ended_at": now - ago}
        connection.execute(insert(Step).values(job_id=failed, claim_token=1, **step))
    for job in (failed, running[0]):
        lines = [[now.timestamp() - 5, "INFO", "connecting"], [now.timestamp(), "WARNING", "no answer yet"]]
        connection.execute(
            insert(LogPart).values(job_id=job, claim_token=1, part=0, written_at=func.now(), attempt=1, lines=lines)
        )
    return failed, running[0]


def _limits(connection: Connection) -> None:
    limit(connection, "payments", running=8, key_running=1, **rate(100, 60.0, 10))
    limit(connection, "shop.send_receipt", owner="task", **rate(20, 1.0, 5))
    limit(connection, "reports", paused_at=func.now() - HOUR, pause_reason="the warehouse is being moved")
    key(connection, "tenant-1", "payments", running=3, weight=2)


def _schedules(connection: Connection) -> tuple[int, int]:
    made = [
        Schedule("30 7 * * mon-fri", TaskName("shop.report").call(region="EU"), name="daily report", timezone="Europe/Vienna"),
        Schedule(every(300), TaskName("shop.clean_up"), overlap="skip", missed="skip"),
        Schedule("0 3 1 * *", TaskName("shop.close_month"), name="month's end", overlap="queue_one", pause_after=3),
        Schedule("@hourly", TaskName("shop.sync_stock"), name="stock"),
    ]  # fmt: skip
    with Session(connection, join_transaction_mode="create_savepoint", expire_on_commit=False) as session:
        session.add_all(made)
        session.flush()
        ids = [one.id for one in made]
        session.commit()
    first, second, third, fourth = ids
    now = connection.scalar(select(func.now()))
    assert now is not None
    connection.execute(
        update(Schedule)
        .where(Schedule.id == first)
        .values(
            last_tick_at=func.now() - DAY,
            left_out=2,
            counts_from=func.now() - 60 * DAY,
            next_at=rule_of(made[0].expression, made[0].timezone).after(now),
        )
    )
    connection.execute(
        update(Schedule)
        .where(Schedule.id == third)
        .values(
            paused_at=func.now() - 2 * HOUR, paused_by="failures", pause_reason="3 of its jobs in a row have failed"
        )
    )
    connection.execute(update(Schedule).where(Schedule.id == fourth).values(error="no such time zone"))
    make_job(connection, "completed", task="shop.report", schedule_id=first, tick_at=-DAY, ticks=1)
    error = {
        "at": str(now - DAY),
        "attempt": 1,
        "type": "shop.ledger.Unbalanced",
        "message": "by 0.01 EUR",
        "traceback": None,
    }
    make_job(
        connection, "failed", task="shop.close_month", schedule_id=third, tick_at=-DAY, ticks=1, max_attempts=1, errors=[error],
        created_at=-DAY, run_at=-DAY, claimed_at=-DAY, finished_at=-DAY + MINUTE,
    )  # fmt: skip
    make_job(connection, "running", task="shop.clean_up", schedule_id=second, tick_at=-MINUTE, ticks=1)
    return first, third


def _workflow(connection: Connection) -> int:
    """An import in the middle: some pages are fetched, one has failed, the rest waits."""
    flow = Workflow("nightly import", deadline=86_400.0, meta={"source": "supplier"})
    found = flow.add(TaskName("shop.find_pages"))
    fetched = [flow.after(found, TaskName("shop.fetch"), page=page) for page in range(9)]
    prices = flow.after(found, TaskName("shop.fetch_prices"))
    merged = flow.after([one.settled for one in fetched], TaskName("shop.merge"))
    checked = flow.after([merged, prices], TaskName("shop.check"))
    flow.after(checked, TaskName("shop.publish"))
    flow.after(checked.settled, TaskName("shop.report_import"))
    flow.on_failure("shop.tell_the_shop")
    flow.on_end("shop.clean_up")
    id = _added(connection, flow)
    ids = [node.job_id for node in (found, *fetched, prices)]
    for number, job in enumerate(ids):
        _ended(connection, job, timedelta(minutes=-50 + 4 * number), timedelta(minutes=3 + number % 4))
    _failed(connection, ids[3])
    for blocked, by in ((merged, ids[7]), (checked, merged.job_id)):
        connection.execute(update(Job).where(Job.id == blocked.job_id).values(blocked_by=by))
    for job in ids[7:9]:
        connection.execute(
            text(
                "UPDATE sa_jobqueue.job SET status = 'running', claim_token = 1, claims = 1, attempt = 1, finished_at = NULL, purge_at = NULL, "
                "claimed_at = now() - interval '2 minutes', lease_expires_at = now() + interval '1 minute', worker = 'w' WHERE id = :id"
            ),
            {"id": job},
        )
    connection.execute(update(WorkflowRow).where(WorkflowRow.id == id).values(created_at=func.now() - HOUR))
    connection.execute(
        text("UPDATE sa_jobqueue.job SET created_at = now() - interval '1 hour' WHERE workflow_id = :id"), {"id": id}
    )
    done = Workflow("welcome")
    done.after(done.add(TaskName("shop.make_account")), TaskName("shop.send_welcome"))
    other = _added(connection, done)
    for number, job in enumerate(
        connection.scalars(select(Job.id).where(Job.workflow_id == other).order_by(Job.id)).all()
    ):
        _ended(connection, job, timedelta(minutes=-20 + number), timedelta(seconds=20))
    connection.execute(
        update(WorkflowRow)
        .where(WorkflowRow.id == other)
        .values(status="completed", created_at=func.now() - 21 * MINUTE, finished_at=func.now() - 18 * MINUTE)
    )
    paused = Workflow("newsletter")
    paused.add(TaskName("shop.send_newsletter"))
    connection.execute(
        update(WorkflowRow).where(WorkflowRow.id == _added(connection, paused)).values(paused_at=func.now() - HOUR)
    )
    return id


def fill_workflow(connection: Connection, pages: int) -> int:
    """One that fans out to so many pages, most of which are done; its id."""
    flow = Workflow("index all pages")
    listed = flow.add(TaskName("shop.list_pages"))
    indexed = [flow.after(listed, TaskName("shop.index_page"), page=page) for page in range(pages)]
    counted = [flow.after(one, TaskName("shop.count_words")) for one in indexed[:18]]
    flow.after([*indexed, *counted], TaskName("shop.publish_index"))
    id = _added(connection, flow)
    jobs = [listed.job_id, *(node.job_id for node in indexed[: pages - 20])]
    connection.execute(
        text(
            "UPDATE sa_jobqueue.job SET status = 'completed', claim_token = 1, claims = 1, attempt = 1, blocked_by = NULL, "
            "claimed_at = now() - interval '9 minutes' + id % 400 * interval '1 second', "
            "finished_at = now() - interval '8 minutes' + id % 400 * interval '1 second' WHERE id = ANY (:ids)"
        ),
        {"ids": jobs},
    )
    connection.execute(
        text("UPDATE sa_jobqueue.job SET created_at = now() - interval '10 minutes' WHERE workflow_id = :id"),
        {"id": id},
    )
    connection.execute(update(WorkflowRow).where(WorkflowRow.id == id).values(created_at=func.now() - 10 * MINUTE))
    return id


def _added(connection: Connection, flow: Workflow) -> int:
    with Session(connection, join_transaction_mode="create_savepoint") as session:
        session.add(flow)
        session.flush()
        id = flow.id
        session.commit()
    return id


def _ended(connection: Connection, job: int, began: timedelta, took: timedelta) -> None:
    connection.execute(
        text(
            "UPDATE sa_jobqueue.job SET status = 'completed', claim_token = 1, claims = 1, attempt = 1, blocked_by = NULL, "
            "claimed_at = now() + :began, finished_at = now() + :began + :took WHERE id = :id"
        ),
        {"id": job, "began": began, "took": took},
    )


def _failed(connection: Connection, job: int) -> None:
    kind, message = ERRORS[0]
    connection.execute(
        text(
            "UPDATE sa_jobqueue.job SET status = 'failed', errors = jsonb_build_array(jsonb_build_object('type', CAST(:kind AS text), "
            "'message', CAST(:message AS text), 'attempt', 1, 'at', now(), 'traceback', CAST(:traceback AS text))) WHERE id = :id"
        ),
        {"id": job, "kind": kind, "message": message, "traceback": TRACEBACK},
    )


def _stats(connection: Connection, chance: random.Random) -> None:
    """The last day, in minutes, of three tasks."""
    rows = []
    at = connection.scalar(select(func.date_trunc("minute", func.now())))
    assert at is not None
    for queue, task, most, run in (
        ("mail", "shop.send_receipt", 240, 0.2), ("payments", "shop.charge", 60, 1.4), ("default", "shop.render_invoice", 90, 0.6),
    ):  # fmt: skip
        for minute in range(24 * 60):
            number = chance.randint(most // 3, most)
            failed = number // 40 if minute % 90 < 12 else 0
            runs, waits = [0] * BUCKETS, [0] * BUCKETS
            for of, typical in ((runs, run), (waits, 0.08 if minute % 90 > 12 else 12.0 - minute % 90)):
                for spread in (0.4, 1.0, 3.0):
                    of[bucket_of(typical * spread * chance.uniform(0.7, 1.4))] += number // 3
            rows.append(
                {
                    "seconds": 60, "at": at - minute * MINUTE, "queue": queue, "task": task, "completed": number, "retried": failed * 2,
                    "failed": failed, "cancelled": 0, "snoozed": 0, "suspended": 0, "released": 0, "rescued": 0, "lost": 0, "run_seconds": number * run,
                    "wait_seconds": number * 0.1, "runs": runs, "waits": waits,
                }
            )  # fmt: skip
    connection.execute(insert(Stat), rows)
    depths = [
        {"at": at - minute * MINUTE, "queue": queue, "due": due, "running": 4 if queue else 0, "oldest": due * 50.0 or None, "more": False}
        for minute in range(1, 25 * 60)
        for queue, due in (
            ("", 0),
            ("mail", chance.randint(0, 6) + max(12 - minute % 90, 0)),
            ("payments", chance.randint(0, 3)),
        )
    ]  # fmt: skip
    connection.execute(insert(Backlog), depths)


def _audit(connection: Connection) -> None:
    entries = [
        ("ada@example.com", "retry", {"status": ["failed"], "queue": ["mail"]}, 412),
        ("grace@example.com", "pause_schedule", {"id": ["3"], "name": ["month's end"]}, 1),
        ("ada@example.com", "cancel", {"id": [str(number) for number in range(1, 30)]}, 29),
        ("someone at 10.0.0.7", "backfill", {"id": ["1"], "name": ["daily report"], "from": ["2026-11-01T00:00"]}, 18),
        ("grace@example.com", "resolve_errors", {name: [value] for name, value in GROUP.items()}, 1),
    ]
    for number, (who, action, target, count) in enumerate(entries):
        values = {"who": who, "action": action, "target": target, "count": count}
        connection.execute(insert(AuditEntry).values(at=func.now() - (number + 1) * 7 * MINUTE, **values))

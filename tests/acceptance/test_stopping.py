"""How a worker leaves: in two steps, with nothing of its own left behind."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from itertools import count, islice
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, enqueue
from sa_jobqueue.tasks import AnyTask
from tests.acceptance import app
from tests.acceptance.conftest import Shop
from tests.support.waiting import wait_until

BUSY = 25.0
"""Seconds that a busy machine may add. Without the promise it would be a minute or ten."""

SLOW_COMMIT = text("""
    CREATE FUNCTION sleep_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_sleep(split_part(NEW.note, ' ', 2)::float); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION sleep_at_commit()
""")


@pytest.mark.parametrize("held", [app.held, app.held_async, app.held_without_session])
def test_sigterm_lets_running_jobs_finish_and_gives_the_others_back(shop: Shop, held: AnyTask) -> None:
    """Nothing that was claimed is left running, and what had not been started has spent no attempt."""
    fast = shop.add(*(enqueue(app.nothing, n) for n in range(300)))
    running = shop.add(enqueue(held, "a"), enqueue(held, "b"))
    waiting = shop.add(*(enqueue(app.nothing, n) for n in range(200)))
    with shop.work("--queue=default=2", "--lease=30") as worker:
        shop.wait_said("started-a")
        shop.wait_said("started-b")
        worker.send(signal.SIGTERM)
        worker.wait_for("SIGTERM")
        shop.go("a")
        shop.go("b")
        assert worker.wait() == 0
    finished = shop.jobs()
    assert {job.status for job in finished if job.id in {*fast, *running}} == {JobStatus.COMPLETED}
    assert {(job.status, job.attempt, job.rescues) for job in finished if job.id in waiting} <= {
        (JobStatus.QUEUED, 0, 0),
        (JobStatus.COMPLETED, 1, 0),
    }
    assert any(job.status == JobStatus.QUEUED for job in finished)
    assert shop.execute(text("SELECT FROM sa_jobqueue.worker")) == []


@pytest.mark.parametrize("task", [app.slow_commit, app.slow_commit_async])
def test_sigterm_waits_for_a_commit_that_is_under_way(shop: Shop, task: AnyTask) -> None:
    """A handler that has returned, and whose writes are being committed, still counts as running."""
    shop.execute(SLOW_COMMIT)
    (job_id,) = shop.add(enqueue(task, 1.5))
    with shop.work("--lease=30") as worker:
        shop.wait_said("slow-commit")
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    job = shop.job(job_id)
    assert (job.status, job.attempt, job.rescues) == (JobStatus.COMPLETED, 1, 0)
    assert len(shop.effects()) == 1


@pytest.mark.parametrize("task", [app.held, app.held_async, app.never_ends, app.ignore_cancel])
def test_a_second_sigterm_does_not_wait_for_handlers(shop: Shop, task: AnyTask) -> None:
    """The worker leaves within seconds; the job goes back with no attempt spent and no write kept, and says why."""
    (job_id,) = shop.add(enqueue(task, "a"))
    with shop.work("--grace=60", "--lease=30") as worker:
        shop.wait_said("started-a")
        worker.send(signal.SIGTERM)
        worker.wait_for("SIGTERM: finishing")
        begun = monotonic()
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
        assert monotonic() - begun < 2 + BUSY
    job = shop.job(job_id)
    assert (job.status, job.attempt, job.rescues) == (JobStatus.QUEUED, 0, 1)
    assert [(error["type"], error["message"]) for error in job.errors] == [
        ("Interrupted", "the worker left while it ran")
    ]
    assert shop.effects() == []


@pytest.mark.parametrize("task", [app.ignore_cancel, app.sleep_in_thread, app.never_ends])
def test_no_handler_holds_the_process_longer_than_the_grace_time(shop: Shop, task: AnyTask) -> None:
    """Neither one that ignores its cancellation, nor a thread, which cannot be ended."""
    ids = shop.add(*(enqueue(task, f"a{n}") for n in range(10)))
    with shop.work("--grace=0.5", "--lease=30") as worker:
        for n in range(10):
            shop.wait_said(f"started-a{n}")
        begun = monotonic()
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
        assert monotonic() - begun < 0.5 + 2 + BUSY
    assert {(job.status, job.attempt) for job in shop.wait_for(*ids, status=JobStatus.QUEUED)} == {
        (JobStatus.QUEUED, 0)
    }


def test_a_handler_that_blocks_the_event_loop_does_not_hold_the_process(shop: Shop) -> None:
    """The grace time holds even where the loop that would end the worker cannot run."""
    (job_id,) = shop.add(enqueue(app.block, 600))
    with shop.work("--grace=0.5", "--lease=30") as worker:
        shop.wait_said("blocking")
        begun = monotonic()
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
        assert monotonic() - begun < 0.5 + 2 + BUSY
    job = shop.job(job_id)
    assert (job.status, job.attempt) == (JobStatus.QUEUED, 0)
    assert shop.effects() == []


def test_a_rolling_restart_under_load_loses_nothing_and_spends_no_attempt(shop: Shop) -> None:
    """Each worker is asked to stop when the next one serves, while jobs go on being enqueued."""
    end, numbers = threading.Event(), count()
    unfinished = select(func.count()).where(Job.status != JobStatus.COMPLETED)

    def produce() -> None:
        with Session(shop.engine) as session:
            while not end.is_set():
                tasks = (app.write, app.write_async, app.nothing, app.nothing_async)
                session.add_all(enqueue(tasks[n % 4], **_argument(n)) for n in islice(numbers, 20))
                session.commit()
                # Else a slow worker would never be done.
                wait_until(lambda: end.is_set() or session.scalars(unfinished).one() < 200)

    producer = threading.Thread(target=produce)
    options = ("--queue=default=4", "--lease=30", "--grace=30")
    with ExitStack() as stack:
        old = stack.enter_context(shop.work(*options))
        producer.start()
        stack.callback(producer.join)
        stack.callback(end.set)
        for _ in range(3):
            done = len(shop.effects())
            new = stack.enter_context(shop.work(*options))
            old.send(signal.SIGTERM)
            assert old.wait() == 0
            wait_until(lambda done=done: len(shop.effects()) > done + 20)
            old = new
        end.set()
        producer.join()
        jobs = shop.wait_for()
    assert {(job.attempt, job.rescues) for job in jobs} == {(1, 0)}
    written = sorted(effect.job_id for effect in shop.effects())
    assert written == sorted(job.id for job in jobs if "write" in job.task)
    assert len({effect.pid for effect in shop.effects()}) == 4


def _argument(number: int) -> dict[str, Any]:
    return {"note": str(number)} if number % 4 < 2 else {"number": number}

"""How a worker leaves: in two steps, with nothing of its own left behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count, islice

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, enqueue
from tests.acceptance import app
from tests.acceptance.conftest import Shop
from tests.support.nightly import nightly
from tests.support.waiting import wait_until

SLOW_COMMIT = text("""
    CREATE FUNCTION sleep_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_sleep(split_part(NEW.note, ' ', 2)::float); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION sleep_at_commit()
""")


def test_sigterm_lets_running_jobs_finish_and_gives_the_others_back(shop: Shop) -> None:
    """Nothing that was claimed is left running, and what had not been started has spent no attempt."""
    fast = shop.add(*(enqueue(app.nothing, n) for n in range(300)))
    held = {"a": app.held, "b": app.held_async, "c": app.held_without_session}
    running = shop.add(*(enqueue(task, name) for name, task in held.items()))
    waiting = shop.add(*(enqueue(app.nothing, n) for n in range(200)))
    with shop.work("--queue=default=3", "--lease=30") as worker:
        for name in held:
            shop.wait_said(f"started-{name}")
        worker.send(signal.SIGTERM)
        wait_until(lambda: sum(job.status == JobStatus.RUNNING for job in shop.jobs()) == len(held))
        for name in held:
            shop.go(name)
        assert worker.wait() == 0
    finished = shop.jobs()
    assert {job.status for job in finished if job.id in {*fast, *running}} == {JobStatus.COMPLETED}
    assert {(job.status, job.attempt, job.rescues) for job in finished if job.id in waiting} <= {
        (JobStatus.QUEUED, 0, 0),
        (JobStatus.COMPLETED, 1, 0),
    }
    assert any(job.status == JobStatus.QUEUED for job in finished)
    assert shop.execute(text("SELECT FROM sa_jobqueue.worker")) == []


def test_sigterm_waits_for_a_commit_that_is_under_way(shop: Shop) -> None:
    """A handler that has returned, and whose writes are being committed, still counts as running."""
    shop.execute(SLOW_COMMIT)
    ids = shop.add(enqueue(app.slow_commit, 1.5), enqueue(app.slow_commit_async, 1.5))
    with shop.work("--lease=30") as worker:
        shop.wait_said("slow-commit", 2)
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    for job in map(shop.job, ids):
        assert (job.status, job.attempt, job.rescues) == (JobStatus.COMPLETED, 1, 0)
    assert len(shop.effects()) == 2


def test_a_second_signal_does_not_wait_for_handlers(shop: Shop) -> None:
    """The worker leaves long before its grace time; the jobs go back with no attempt spent and no write kept, and say why."""
    tasks = {"a": app.held, "b": app.held_async, "c": app.never_ends, "d": app.ignore_cancel}
    ids = shop.add(*(enqueue(task, name) for name, task in tasks.items()))
    with shop.work("--grace=600", "--lease=30") as worker:
        for name in tasks:
            shop.wait_said(f"started-{name}")
        worker.send(signal.SIGTERM)
        worker.wait_for("SIGTERM: finishing")
        worker.send(signal.SIGINT)
        assert worker.wait() == 0
    for job in map(shop.job, ids):
        assert (job.status, job.attempt, job.rescues) == (JobStatus.QUEUED, 0, 1)
        assert [(error["type"], error["message"]) for error in job.errors] == [
            ("Interrupted", "the worker left while it ran")
        ]
    assert shop.effects() == []


def test_no_handler_holds_the_process_longer_than_the_grace_time(shop: Shop) -> None:
    """Neither one that ignores its cancellation, nor a thread, which cannot be ended: each of them would go on for ten minutes."""
    tasks = (app.ignore_cancel, app.sleep_in_thread, app.never_ends)
    names = {f"{kind.__name__}-{n}": kind for kind in tasks for n in range(4)}
    ids = shop.add(*(enqueue(task, name) for name, task in names.items()))
    with shop.work("--queue=default=12", "--grace=0.5", "--lease=30") as worker:
        for name in names:
            shop.wait_said(f"started-{name}")
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    assert {(job.status, job.attempt) for job in shop.wait_for(*ids, status=JobStatus.QUEUED)} == {
        (JobStatus.QUEUED, 0)
    }


def test_a_handler_that_blocks_the_event_loop_does_not_hold_the_process(shop: Shop) -> None:
    """The grace time holds even where the loop that would end the worker cannot run."""
    (job_id,) = shop.add(enqueue(app.block, 600))
    with shop.work("--grace=0.5", "--lease=30") as worker:
        shop.wait_said("blocking")
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    job = shop.job(job_id)
    assert (job.status, job.attempt) == (JobStatus.QUEUED, 0)
    assert shop.effects() == []


JOBS: tuple[Callable[[int], Job], ...] = (
    lambda n: enqueue(app.write, str(n)),
    lambda n: enqueue(app.write_async, str(n)),
    lambda n: enqueue(app.nothing, n),
    lambda n: enqueue(app.nap, 0.2),
)


@pytest.mark.parametrize("rounds", [1, *nightly(3)])
def test_a_rolling_restart_under_load_loses_nothing_and_spends_no_attempt(shop: Shop, rounds: int) -> None:
    """Each worker is asked to stop when the next one serves, while jobs go on being enqueued."""
    end, numbers = threading.Event(), count()
    unfinished = select(func.count()).where(Job.status != JobStatus.COMPLETED)

    def produce() -> None:
        with Session(shop.engine) as session:
            while not end.is_set():
                session.add_all(JOBS[n % 4](n) for n in islice(numbers, 20))
                session.commit()
                # Else a slow worker would never be done.
                wait_until(lambda: end.is_set() or session.scalars(unfinished).one() < 100)

    producer = threading.Thread(target=produce)
    options = ("--queue=default=4", "--lease=30", "--grace=30")
    with ExitStack() as stack:
        old = stack.enter_context(shop.work(*options))
        producer.start()
        stack.callback(producer.join)
        stack.callback(end.set)
        for _ in range(rounds):
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
    assert written == sorted(job.id for job in jobs if "nothing" not in job.task)
    assert len({effect.pid for effect in shop.effects()}) == rounds + 1

"""Handlers that take too long, and jobs that are cancelled while they run."""

from __future__ import annotations

from contextlib import ExitStack

import psutil
import pytest

from sa_jobqueue import Job, JobStatus, enqueue
from sa_jobqueue.statements import cancel_jobs
from tests.acceptance import app
from tests.acceptance.conftest import ONE, Shop
from tests.support.nightly import nightly
from tests.support.waiting import wait_until

IMPATIENT = "tests.acceptance.impatient:registry"


def test_a_sync_handler_past_its_timeout_is_given_up_fenced_and_keeps_its_slot(shop: Shop) -> None:
    """The attempt fails on time; what the thread still writes is refused; the slot is free when the thread has ended."""
    (late,) = shop.add(enqueue(app.overtime.options(queue="narrow"), "a"))
    (next_one,) = shop.add(enqueue(app.nothing.options(queue="narrow")))
    with shop.work("--queue=narrow=2") as worker:
        shop.wait_said("started-a")
        (job,) = shop.wait_for(late, status=JobStatus.FAILED)
        shop.wait_for(next_one)
        assert [error["type"] for error in job.errors] == ["sa_jobqueue.errors.HandlerTimeout"]
        shop.add(enqueue(app.held.options(queue="narrow"), "b"))
        (waiting,) = shop.add(enqueue(app.nothing.options(queue="narrow", priority=0)))
        shop.wait_said("started-b")
        shop.wait_for(waiting, status=JobStatus.QUEUED)
        shop.go("a")
        shop.wait_said("ended-a")
        shop.wait_for(waiting)
        shop.go("b")
        shop.wait_for(waiting, next_one)
        assert worker.process.poll() is None
        wait_until(lambda: [effect.note for effect in shop.effects()] == ["b"])
    assert shop.job(late).status == JobStatus.FAILED


def test_an_async_handler_past_its_timeout_is_cancelled(shop: Shop) -> None:
    """Its attempt fails, its writes roll back, and its slot is free."""
    (late,) = shop.add(enqueue(app.overtime_async, "a"))
    with shop.work_here(queues={"default": 1}):
        (job,) = shop.wait_for(late, status=JobStatus.FAILED)
        shop.wait_for(*shop.add(enqueue(app.nothing)))
    assert [error["type"] for error in job.errors] == ["sa_jobqueue.errors.HandlerTimeout"]
    assert shop.effects() == []


def test_a_worker_whose_slots_are_all_stuck_asks_to_be_restarted(shop: Shop) -> None:
    """It ends with 75, upon which a supervisor starts the next one, which does what was left."""
    shop.add(enqueue(app.overtime, "a"), enqueue(app.overtime, "b"))
    (left,) = shop.add(enqueue(app.write, "left"))
    with shop.work("--queue=default=2") as worker:
        shop.wait_said("started-a")
        assert worker.wait() == 75
        assert "slots of queue 'default' are held by handlers that timed out" in worker.output
    assert shop.job(left).status == JobStatus.QUEUED
    with shop.work_here():
        shop.wait_for(left)
    assert [effect.note for effect in shop.effects()] == ["left"]


@pytest.mark.parametrize("supervised", [False, *nightly(True)])
def test_a_worker_whose_event_loop_is_blocked_past_a_timeout_is_restarted(shop: Shop, supervised: bool) -> None:
    """The attempt fails while the handler blocks; some seconds later the process ends with 75, once what runs on threads has.
    Then a supervisor starts the next one, which does what was left.
    """
    (late,) = shop.add(enqueue(app.overtime_blocking, "a"))
    queues = ("--queue=default=1", "--queue=other=2")
    with ExitStack() as stack:
        worker = stack.enter_context(shop.work(*queues, "--lease=30", *(ONE if supervised else ())))
        (pid,) = shop.wait_said("started-a")
        (held,) = shop.add(enqueue(app.held.options(queue="other"), "b"))
        others = shop.add(*(enqueue(app.write_async.options(queue="default"), str(n)) for n in range(3)))
        shop.wait_said("started-b")
        (job,) = shop.wait_for(late, status=JobStatus.FAILED)
        assert [error["type"] for error in job.errors] == ["sa_jobqueue.errors.HandlerTimeout"]
        worker.wait_for("goes on blocking the event loop")
        assert psutil.pid_exists(pid)
        shop.go("b")
        if not supervised:
            assert worker.wait() == 75
            stack.enter_context(shop.work_here())
        done = shop.wait_for(held, *others)
        assert f"job {late} (tests.acceptance.app.overtime_blocking) blocks it" in worker.output
        assert ("is restarted, as it asked" in worker.output) == supervised
    assert [job.rescues for job in done] == [0] * 4
    assert {effect.note: effect.pid == pid for effect in shop.effects()} == {
        "b": True,
        "0": False,
        "1": False,
        "2": False,
    }


def test_a_blocked_worker_whose_handler_comes_back_before_its_end_leaves_in_order(shop: Shop) -> None:
    """It was about to end, and ends as it would have without the block."""
    with shop.work("--queue=default=1", "--queue=other=1", "--lease=30", app=IMPATIENT) as worker:
        (held,) = shop.add(enqueue(app.held.options(queue="other"), "b"))
        shop.wait_said("started-b")
        (late,) = shop.add(enqueue(app.overtime_blocking, "a"))
        shop.wait_said("started-a")
        worker.wait_for("goes on blocking the event loop")
        shop.go("a")
        worker.wait_for("the event loop answers again")
        shop.go("b")
        assert worker.wait() == 75
        assert "has left: 1 completed, 1 failed" in worker.output
    assert shop.job(held).status == JobStatus.COMPLETED
    assert shop.job(late).status == JobStatus.FAILED
    assert [effect.note for effect in shop.effects()] == ["b"]


def test_a_running_job_is_cancelled_long_before_its_lease_is_renewed(shop: Shop) -> None:
    """An async handler is stopped at its next await, a sync one when it looks at `ctx.cancelled`; no write is kept."""
    ids = shop.add(enqueue(app.held_async, "a"), enqueue(app.stops_when_asked, "b"))
    with shop.work("--lease=600"):  # with a renewal it would be heard after 200 s
        shop.wait_said("started-a")
        shop.wait_said("started-b")
        shop.execute(cancel_jobs(Job.id.in_(ids)))
        jobs = shop.wait_for(*ids, status=JobStatus.CANCELLED)
        shop.wait_for(*shop.add(enqueue(app.nothing_async), enqueue(app.nothing)))
    assert [(job.attempt, [error["type"] for error in job.errors]) for job in jobs] == [(1, ["Cancelled"])] * 2
    assert shop.effects() == []

"""Workers that die, sleep, lose their claims or their database: every job is done, and its effect is there once."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from time import monotonic

import psutil
import pytest
from sqlalchemy import text

from sa_jobqueue import Job, JobStatus, enqueue
from sa_jobqueue.statements import release_jobs
from sa_jobqueue.tasks.tasks import AnyTask
from tests.acceptance import app
from tests.acceptance.conftest import Shop
from tests.support.nightly import nightly
from tests.support.waiting import wait_until

NOBODY_SPEAKS = text(
    "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND backend_type = 'client backend' AND state <> 'idle'"
)


def add_held(shop: Shop) -> tuple[int, int]:
    """A job for a thread and one for the event loop, which wait for the test as "a" and "b"."""
    sync_id, async_id = shop.add(enqueue(app.held, "a"), enqueue(app.held_async, "b"))
    return sync_id, async_id


def wait_started(shop: Shop) -> None:
    for name in "ab":
        shop.wait_said(f"started-{name}")


def test_a_job_of_a_killed_worker_is_rescued_and_runs_once_more(shop: Shop) -> None:
    """The crash costs no attempt; it is counted as a rescue and written down. On a thread and on the event loop."""
    ids = add_held(shop)
    with shop.work() as first:
        wait_started(shop)
        first.kill()
        shop.lose(*ids)
        with shop.work_here():
            jobs = shop.wait_for(*ids)
    assert [(job.attempt, job.rescues, job.claims) for job in jobs] == [(1, 1, 2)] * 2
    assert [[error["type"] for error in job.errors] for job in jobs] == [["WorkerLost"]] * 2
    assert [effect.pid for effect in shop.effects()] == [os.getpid()] * 2


def test_a_worker_that_slept_past_its_lease_writes_nothing_any_more(shop: Shop) -> None:
    """SIGSTOP, another worker takes over, SIGCONT: neither the zombie's writes nor its completions count."""
    ids = add_held(shop)
    with shop.work() as zombie:
        wait_started(shop)
        zombie.send(signal.SIGSTOP)
        shop.lose(*ids)
        with shop.work_here():
            done = shop.wait_for(*ids)
            shop.go("a")
            shop.go("b")
            zombie.send(signal.SIGCONT)
            # An async handler may be cancelled before it comes to its end.
            for id, name in zip(ids, "ab", strict=True):
                lost, ended = f"job {id}: its lease is lost", f"ended-{name}"
                wait_until(lambda lost=lost, ended=ended: len(shop.pids(ended)) == 2 or lost in zombie.output)  # type: ignore[misc]
            zombie.send(signal.SIGTERM)
            assert zombie.wait() == 0
        assert [effect.pid for effect in shop.effects()] == [os.getpid()] * 2
        for job, before in zip(map(shop.job, ids), done, strict=True):
            assert (job.status, job.attempt, job.rescues, job.claims) == (JobStatus.COMPLETED, 1, 1, 2)
            assert (job.finished_at, job.worker) == (before.finished_at, before.worker)


def test_a_handler_that_lost_its_claim_leaves_no_writes(shop: Shop) -> None:
    """The claim went to another run while this one was busy; only that one's writes are kept. On a thread and on the event loop."""
    ids = add_held(shop)
    with shop.work() as worker:
        wait_started(shop)
        shop.execute(release_jobs(Job.id.in_(ids)))
        done = shop.wait_for(*ids)
        for id, name in zip(ids, "ab", strict=True):
            shop.go(name)
            worker.wait_for(f"job {id}: its ")
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    assert len(shop.effects()) == 2
    assert [(job.attempt, job.claims) for job in done] == [(1, 2)] * 2
    assert [shop.job(id).finished_at for id in ids] == [job.finished_at for job in done]


def test_a_job_with_one_attempt_that_was_only_buffered_in_a_killed_worker_still_runs(shop: Shop) -> None:
    """A job that a dead worker had claimed ahead has lost no attempt."""
    shop.add(*(enqueue(app.nothing, n) for n in range(400)), enqueue(app.held, "a"))
    ids = shop.add(*(enqueue(app.once) for _ in range(300)))
    claimed_ahead = (Job.id.in_(ids), Job.status == JobStatus.RUNNING)
    with shop.work("--queue=default=1") as first:
        shop.wait_said("started-a")
        wait_until(lambda: shop.jobs(*claimed_ahead))
        first.kill()
        first.wait()
    wait_until(lambda: shop.execute(NOBODY_SPEAKS)[0][0])  # what the dead one has sent is through
    buffered = [job.id for job in shop.jobs(*claimed_ahead)]
    assert buffered
    shop.lose(*(job.id for job in shop.jobs(Job.status == JobStatus.RUNNING)))
    with shop.work_here():
        done = shop.wait_for()
    assert len(shop.effects()) == len(ids) + 1
    assert {job.attempt for job in done} == {1}
    assert {job.rescues for job in done if job.id in buffered} == {1}


def test_a_job_that_kills_its_worker_each_time_ends_failed_and_takes_no_neighbour_with_it(shop: Shop) -> None:
    """Its rescues have a bound; the jobs that died with it by accident are done, and have lost no attempt."""
    before = shop.add(*(enqueue(app.nap, 0.02) for _ in range(6)))
    (killer,) = shop.add(enqueue(app.kill_worker))
    after = shop.add(*(enqueue(app.nap, 0.02) for _ in range(20)))
    for _ in range(2):
        with shop.work("--queue=default=4", "--max-rescues=2") as worker:
            assert worker.wait() == 9
        shop.lose(*(job.id for job in shop.jobs(Job.status == JobStatus.RUNNING)))
    with shop.work_here(max_rescues=2):
        (failed,) = shop.wait_for(killer, status=JobStatus.FAILED)
        neighbours = shop.wait_for(*before, *after)
    assert (failed.rescues, len(shop.pids("killed"))) == (2, 2)
    assert "its worker died or left 2 times" in failed.errors[-1]["message"]
    assert {job.attempt for job in neighbours} == {1}
    assert len(shop.effects()) == len(neighbours)


@pytest.mark.nightly
@pytest.mark.parametrize(("task", "code"), [(app.stop_worker, 0), (app.cancel_all_tasks, 1)])
def test_a_job_that_makes_its_worker_leave_each_time_ends_failed_and_takes_no_neighbour_with_it(
    shop: Shop, task: AnyTask, code: int
) -> None:
    """It counts like a crash, whether it cancels all tasks of the loop or sends SIGTERM and does not end."""
    (killer,) = shop.add(enqueue(task.options(priority=5)))
    neighbours = shop.add(*(enqueue(app.nap_async, 2.0) for _ in range(4)))
    for _ in range(2):
        with shop.work("--grace=0.2", "--queue=default=5", "--max-rescues=2") as worker:
            assert worker.wait() == code
    with shop.work_here(max_rescues=2):
        (failed,) = shop.wait_for(killer, status=JobStatus.FAILED)
        done = shop.wait_for(*neighbours)
    assert (failed.attempt, failed.rescues, len(shop.pids("killed"))) == (1, 2, 2)
    assert {error["type"] for error in failed.errors} == {"Interrupted"}
    assert failed.errors[-1]["message"] == "its worker died or left 2 times; the worker left while it ran"
    assert {job.attempt for job in done} == {1}
    assert sorted(effect.job_id for effect in shop.effects()) == sorted(neighbours)


@pytest.mark.nightly
def test_processes_that_are_killed_again_and_again_rescue_the_jobs_of_each_other(shop: Shop) -> None:
    """The database must be there for a lease and a quarter before a rescue. It counts although no process lives for so long."""
    lease, lives = 6.0, 0
    options = (f"--lease={lease}", "--queue=default=8")
    (lost,) = shop.add(enqueue(app.held_without_session, "lost"))
    with shop.work(*options) as first:
        shop.wait_said("started-lost")
        first.kill()
    began = monotonic()
    with ExitStack() as workers:
        pair = [workers.enter_context(shop.work(*options)) for _ in range(2)]
        while shop.job(lost).status != JobStatus.COMPLETED:
            assert monotonic() < began + 6 * lease, f"{lives} processes were killed"
            shop.add(enqueue(app.kill_worker))
            wait_until(lambda: [worker for worker in pair if worker.process.poll() is not None])
            for n, worker in enumerate(pair):
                if worker.process.poll() is not None:
                    lives += 1
                    pair[n] = workers.enter_context(shop.work(*options))
    assert shop.job(lost).rescues == 1


def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(shop: Shop) -> None:
    """A thread of its own renews leases, so no other worker rescues a job whose handler blocks."""
    (neighbour,) = shop.add(enqueue(app.held_async, "neighbour"))
    with shop.work("--lease=9") as worker, shop.work_here(lease=9.0, queues={"other": 1}):
        shop.wait_said("started-neighbour")
        (id,) = shop.add(enqueue(app.held_blocking, "a"))
        shop.wait_said("started-a")
        before = shop.job(id).lease_expires_at
        assert before is not None
        wait_until(lambda: (now := shop.job(id).lease_expires_at) is not None and now > before)
        shop.go("a")
        shop.go("neighbour")
        done = shop.wait_for(id, neighbour)
    assert {(job.attempt, job.rescues, job.claims) for job in done} == {(1, 0, 1)}
    assert {effect.pid for effect in shop.effects()} == {worker.pid}


def test_a_worker_whose_connections_are_cut_again_and_again_goes_on(shop: Shop) -> None:
    """Nothing is lost and nothing happens twice, however often the server hangs up on all of them."""
    ids = shop.add(
        *(enqueue(app.write.options(queue="sync"), str(n)) for n in range(150)),
        *(enqueue(app.write_async.options(queue="async"), str(n)) for n in range(150)),
        *(enqueue(app.nothing, n) for n in range(400)),
    )
    cut = text(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    done = text("SELECT count(*) FROM sa_jobqueue.job WHERE status = 'completed'")
    # What a broken commit has claimed may have to be rescued.
    with shop.work("--lease=1", "--queue=sync=4", "--queue=async=4", "--queue=default=4") as worker:
        for share in (0.05, 0.2, 0.4, 0.6, 0.8):
            enough = share * len(ids)
            wait_until(lambda enough=enough: shop.execute(done)[0][0] >= enough)  # type: ignore[misc]
            shop.execute(cut)
        finished = shop.wait_for()
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    assert {job.status for job in finished} == {JobStatus.COMPLETED}
    assert {job.rescues for job in finished} <= {0, 1}
    effects = [effect.job_id for effect in shop.effects()]
    assert len(effects) == len(set(effects)) == 300


def test_idle_connections_that_were_cut_cost_no_attempt(shop: Shop) -> None:
    """After a restart of the server the handlers' sessions get new connections, not the dead ones of the pool."""
    cut = text(
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    tasks = [task.options(max_attempts=1) for task in (app.write, app.write_async)]
    with shop.work():
        shop.wait_for(*shop.add(*(enqueue(once, str(n)) for once in tasks for n in range(20))))
        shop.execute(cut)
        done = shop.wait_for(*shop.add(*(enqueue(once, str(n)) for once in tasks for n in range(20))))
    assert {job.attempt for job in done} == {1}


def test_jobs_that_wait_behind_a_blocked_event_loop_go_to_another_worker(shop: Shop) -> None:
    """A claimed job that cannot start is given back after two seconds, whichever handler blocks the loop."""
    shop.add(enqueue(app.block, 600))
    with shop.work("--lease=30"):
        shop.wait_said("blocking")
        behind = shop.add(*(enqueue(app.nothing_async) for _ in range(5)))
        wait_until(lambda: len(shop.jobs(Job.id.in_(behind), Job.status == JobStatus.RUNNING)) == 5)
        with shop.work_here():
            done = shop.wait_for(*behind)
    assert {(job.attempt, job.rescues) for job in done} == {(1, 0)}


@pytest.mark.parametrize("forks", [app.forks, *nightly(app.forks_async)])
def test_a_child_that_outlives_its_killed_worker_keeps_no_lock(shop: Shop, forks: AnyTask) -> None:
    """It has inherited the sockets, but not what they lead to: the server hears at once that the worker is gone."""
    shop.execute(text("CREATE TABLE locked AS SELECT 0 AS n"))
    (job_id,) = shop.add(enqueue(forks, "a"))
    child: int | None = None
    try:
        with shop.work() as first:
            (child,) = shop.wait_said("child-a")
            first.kill()
            assert psutil.pid_exists(child)
            wait_until(lambda: shop.execute(NOBODY_SPEAKS)[0][0])
            shop.lose(job_id)
            with shop.work_here():
                (job,) = shop.wait_for(job_id)
            assert psutil.pid_exists(child)
        assert (job.attempt, job.rescues) == (1, 1)
        assert [effect.pid for effect in shop.effects()] == [os.getpid()]
        assert shop.execute(text("SELECT n FROM locked")) == [(1,)]
    finally:
        if child is not None:
            os.kill(child, signal.SIGKILL)

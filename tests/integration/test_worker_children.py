"""Jobs in child processes: what becomes of them, however their process ends, and of the worker's other jobs."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from _pytest.logging import LogCaptureHandler, catching_logs
from sqlalchemy import Engine, create_engine, select, text, update

from sa_jobqueue import Job, JobStatus, enqueue
from sa_jobqueue.errors import ResultError
from sa_jobqueue.rules.lifecycle import FINISHED
from sa_jobqueue.statements import job_logs
from sa_jobqueue.worker.children import child as child_module
from sa_jobqueue.worker.children.messages import to_line
from sa_jobqueue.worker.children.runner import Children
from tests.support import heavy, pooler
from tests.support.databases import Databases
from tests.support.nightly import nightly_sets
from tests.support.waiting import wait_until
from tests.support.working import add, add_one, cancel, drain, job_of, renew_now, services_of, working

REGISTRY = heavy.registry


@dataclass
class Effects:
    """What handlers have written, and what they say in files."""

    engine: Engine
    folder: Path

    def notes(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.scalars(text("SELECT note FROM effect ORDER BY note")))

    def pids(self) -> set[int]:
        with self.engine.connect() as connection:
            return set(connection.scalars(text("SELECT pid FROM effect")))

    def wait_said(self, name: str) -> list[int]:
        """The processes that have said this."""
        file = self.folder / name

        def said() -> list[int]:
            return [int(pid) for pid in file.read_text(encoding="ascii").split()] if file.exists() else []

        return wait_until(said, message=name)

    def let_go(self, name: str) -> None:
        (self.folder / f"go-{name}").touch()


@pytest.fixture
def effects(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Effects]:
    monkeypatch.setenv("HEAVY_FOLDER", str(tmp_path))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effect (job_id bigint, note text, pid integer)"))
    yield Effects(engine, tmp_path)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE effect"))


def wait_for(engine: Engine, id: int, *statuses: JobStatus) -> Job:
    wanted = statuses or tuple(FINISHED)
    wait_until(lambda: job_of(engine, id).status in wanted, message=f"job {id}: {wanted}")
    return job_of(engine, id)


def wait_rescued(engine: Engine, id: int, times: int = 1) -> None:
    wait_until(lambda: job_of(engine, id).rescues >= times, message=f"job {id} to be rescued")


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "sa-jobqueue child" in command_of(child)]


def command_of(process: psutil.Process) -> str:
    """Its command line; empty if it has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # a zombie, too
        return ""


def is_gone(pid: int) -> bool:
    """No thread of it is left, so its descriptors are closed: a zombie may still have threads that end."""
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
    except psutil.NoSuchProcess:
        return True


# ---- outcomes


@dataclass
class Ran:
    """What has become of jobs of many kinds, all of which one child has run."""

    engine: Engine
    ids: dict[str, list[int]]
    records: list[logging.LogRecord]

    def jobs(self, kind: str) -> list[Job]:
        return [job_of(self.engine, id) for id in self.ids[kind]]

    def wrote(self, kind: str) -> list[tuple[int, str, int]]:
        """The job, the note and the process of each row that a handler has left."""
        with self.engine.connect() as connection:
            rows = connection.execute(text("SELECT job_id, note, pid FROM effect ORDER BY note"))
            return [tuple(row) for row in rows if row.job_id in self.ids[kind]]


ENDS = {
    "retry": (JobStatus.QUEUED, ["Retry"]),
    "snooze": (JobStatus.QUEUED, []),
    "cancel": (JobStatus.CANCELLED, ["Cancel"]),
    "discard": (JobStatus.FAILED, ["Discard"]),
}
WAYS = [(raised, with_session) for raised in (False, True) for with_session in (False, True)]
SCANS = [heavy.scan, heavy.scan_on_loop, heavy.scan_in_child]


@pytest.fixture(scope="module")
def ran(databases: Databases) -> Iterator[Ran]:
    url = pooler.through(databases.create(name := databases.new_name()))
    engine = create_engine(url, **pooler.engine_options(url))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effect (job_id bigint, note text, pid integer)"))
    jobs = {
        "add": [enqueue(heavy.add, number, 1) for number in range(5)],
        "effect": [enqueue(heavy.effect, f"{number:02}") for number in range(20)],
        **{kind: [enqueue(heavy.outcome, kind, *way) for way in WAYS] for kind in ENDS},
        **{scan.name: [enqueue(scan)] for scan in SCANS},
        "fail": [enqueue(heavy.fail)],
        "chat": [enqueue(heavy.chat)],
        "telling": [enqueue(heavy.telling)],
    }
    ids = {kind: add(engine, *made) for kind, made in jobs.items()}
    quiet = logging.getLogger("heavy.quiet")
    quiet.setLevel(logging.ERROR)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.root, "handlers", [])  # pytest-xdist could not report what is no UTF-8
        with catching_logs(LogCaptureHandler(), logging.INFO) as logged:
            drain(url, REGISTRY, queues={"default": 1})
    quiet.setLevel(logging.NOTSET)
    yield Ran(engine, ids, logged.records)
    engine.dispose()
    databases.drop(name)


def test_a_job_runs_in_another_process_and_its_result_comes_back(ran: Ran) -> None:
    """As JSON, decided in the child. The child is used again, and is gone with the worker."""
    jobs = ran.jobs("add")
    assert {job.status for job in jobs} == {JobStatus.COMPLETED}
    results: list[Any] = [job.result for job in jobs]
    assert [result["sum"] for result in results] == [1, 2, 3, 4, 5]
    (pid,) = {result["pid"] for result in results}
    assert pid != os.getpid()
    assert is_gone(pid)


def test_a_session_in_a_child_commits_with_the_completion(ran: Ran) -> None:
    """The job and what its handler wrote are one transaction, by one connection, also for the next job."""
    assert {job.status for job in ran.jobs("effect")} == {JobStatus.COMPLETED}
    _, notes, pids = zip(*ran.wrote("effect"), strict=True)
    assert notes == tuple(f"{number:02}" for number in range(20))
    assert os.getpid() not in pids


@pytest.mark.parametrize("kind", ENDS)
def test_an_outcome_of_the_handlers_is_the_jobs(ran: Ran, kind: str) -> None:
    """With and without a session. Returned it keeps what the handler wrote; raised it does not."""
    jobs = ran.jobs(kind)
    assert [(job.status, [error["type"] for error in job.errors]) for job in jobs] == [ENDS[kind]] * 4
    assert [id for id, _, _ in ran.wrote(kind)] == [jobs[WAYS.index((False, True))].id]


@pytest.mark.parametrize("scan", SCANS, ids=lambda one: one.name)
def test_a_result_that_cannot_be_recorded_ends_the_job_all_the_same(ran: Ran, scan: Any) -> None:
    """At once, in a child as in a thread and on the loop: what it wrote is kept, and the error names the task and the field."""
    (job,) = ran.jobs(scan.name)
    (error,) = job.errors
    assert (job.status, job.result, job.claims) == (JobStatus.COMPLETED, None, 1)
    assert error["type"] == "sa_jobqueue.errors.PayloadError"
    with pytest.raises(ResultError, match=r"it was not stored: task '.*': its result: raw: cannot be stored as JSON"):
        scan.result(job)
    assert error["message"].startswith(f"task '{scan.name}': its result: raw: cannot be stored as JSON: invalid utf-8")
    assert sum(error["message"] in record.getMessage() for record in ran.records) == 1
    assert [note for _, note, _ in ran.wrote(scan.name)] == ["scanned"] * (not scan.is_async)


def test_an_exception_that_cannot_be_pickled_is_recorded(ran: Ran) -> None:
    """With its traceback, which begins in the handler; and it is logged as other failures are."""
    (job,) = ran.jobs("fail")
    (error,) = job.errors
    assert (job.status, error["type"]) == (JobStatus.FAILED, "tests.support.heavy.Unpicklable")
    assert error["message"] == "cannot go anywhere: 7"
    assert 'heavy.py"' in error["traceback"].splitlines()[1]
    name = f"tests.support.heavy.fail[{job.id}]"
    (record,) = [one for one in ran.records if one.levelno == logging.ERROR and name in one.getMessage()]
    assert f"{name} failed in attempt 1 of 10, for good" in record.getMessage()
    assert "Unpicklable" in (record.exc_text or "")


def test_what_a_handler_logs_is_logged_by_the_worker(ran: Ran) -> None:
    """With its fields, at the worker's levels, in the order in which it was said."""
    (id,) = ran.ids["chat"]
    names = {"sa_jobqueue.job", "heavy", "heavy.quiet"}
    said = [one for one in ran.records if getattr(one, "job_id", id) == id and one.name in names]
    assert [record.getMessage() for record in said] == ["hello there", "an error\nof two lines"]
    hello: Any = said[0]
    assert (hello.job_id, hello.order, hello.process != os.getpid()) == (id, 7, True)
    assert (hello.msg, hello.args) == ("hello %s", ("there",))
    assert isinstance(hello.odd, str)
    assert "KeyError: 'HEAVY_NOT_THERE'" in (said[1].exc_text or "")


def test_what_a_handler_says_in_a_child_is_seen(ran: Ran) -> None:
    """Its progress, and the lines that are kept."""
    (id,) = ran.ids["telling"]
    with ran.engine.connect() as connection:
        said = connection.execute(select(Job.progress, Job.progress_message).where(Job.id == id)).one()
        lines = [(line.level, line.message) for line in connection.execute(job_logs(id))]
    assert tuple(said) == (0.5, "half")
    assert lines[0] == ("INFO", "told by a child \ufffd")
    assert lines[1][1].startswith("failed\nTraceback")
    assert lines[1][1].endswith("ValueError: bad")


# ---- death


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("segfault", "was ended by SIGSEGV"),
        pytest.param("exit", "ended with exit code 3", marks=pytest.mark.nightly),
    ],
)
def test_a_child_that_dies_costs_its_job_a_rescue_and_no_other_job_anything(
    engine: Engine, url: str, effects: Effects, how: str, message: str
) -> None:
    """The job runs again in another process, and its effects are there once."""
    with working(url, REGISTRY, queues={"default": 4}) as worker:
        neighbour = add_one(engine, enqueue(heavy.patient, "neighbour"))
        effects.wait_said("started-neighbour")
        id = add_one(engine, enqueue(heavy.crash, how))
        job = wait_for(engine, id)
        effects.let_go("neighbour")
        beside = wait_for(engine, neighbour)
        wait_until(lambda: sum(worker.counts.values()) == 3)
        assert worker.counts == {"rescued": 1, "completed": 2}
    assert (job.status, job.attempt, job.rescues) == (JobStatus.COMPLETED, 1, 1)
    (error,) = job.errors
    assert (error["type"], message in error["message"]) == ("ChildDied", True)
    assert (beside.status, beside.attempt, beside.rescues) == (JobStatus.COMPLETED, 1, 0)
    assert effects.notes() == sorted([how, "neighbour"])


def test_a_job_that_keeps_killing_its_process_fails(engine: Engine, url: str, effects: Effects) -> None:
    """After `max_rescues` deaths; none of them is an attempt."""
    id = add_one(engine, enqueue(heavy.crash, "exit", 99))
    with working(url, REGISTRY, max_rescues=2):
        job = wait_for(engine, id)
    assert (job.status, job.rescues) == (JobStatus.FAILED, 2)
    assert [error["type"] for error in job.errors] == ["ChildDied"] * 2
    assert "2 times; its child process ended with exit code 3" in job.errors[-1]["message"]
    assert effects.notes() == []


def test_a_job_that_may_not_run_twice_fails_with_its_process(engine: Engine, url: str, effects: Effects) -> None:
    """`rescue=False`."""
    id = add_one(engine, enqueue(heavy.crash_once))
    drain(url, REGISTRY)
    job = job_of(engine, id)
    assert (job.status, job.rescues, [error["type"] for error in job.errors]) == (JobStatus.FAILED, 1, ["ChildDied"])
    assert effects.notes() == []


def test_a_child_that_is_killed_from_outside_is_replaced(engine: Engine, url: str, effects: Effects) -> None:
    """By kill -9, with a job and without one: a process that had none costs nothing."""
    with working(url, REGISTRY, queues={"default": 1}) as worker:
        id = add_one(engine, enqueue(heavy.crash, "kill"))
        (pid,) = effects.wait_said("crash-kill")
        os.kill(pid, signal.SIGKILL)
        job = wait_for(engine, id)
        (idle,) = effects.pids()
        os.kill(idle, signal.SIGKILL)
        wait_until(lambda: is_gone(idle))
        last = wait_for(engine, add_one(engine, enqueue(heavy.effect, "last")))
        wait_until(lambda: worker.counts["completed"] == 2)
    assert (job.status, job.rescues) == (JobStatus.COMPLETED, 1)
    assert "SIGKILL" in job.errors[0]["message"]
    assert (last.status, last.rescues) == (JobStatus.COMPLETED, 0)
    assert effects.notes() == ["kill", "last"]


def test_a_job_whose_child_is_killed_before_it_began_costs_nothing(engine: Engine, url: str, effects: Effects) -> None:
    """The job was sent to it, and runs in another child. Stopped, a child takes nothing in."""
    with working(url, REGISTRY, queues={"default": 1}) as worker:
        ((child, known),) = zip(children(), services_of(worker).children._all, strict=True)
        child.suspend()
        id = add_one(engine, enqueue(heavy.effect, "a"))
        wait_until(lambda: known.jobs == 1)
        child.kill()
        job = wait_for(engine, id)
    assert (job.status, job.attempt, job.rescues, job.errors) == (JobStatus.COMPLETED, 1, 0, [])
    assert effects.notes() == ["a"]


def test_a_job_whose_message_kills_each_child_fails(
    engine: Engine, url: str, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first child may have died of something else: the second counts, so the job does not go round for ever."""
    monkeypatch.setattr(child_module, "_CODE", DIES_OF_A_JOB)
    id = add_one(engine, enqueue(heavy.effect))
    with working(url, REGISTRY, queues={"default": 1}, max_rescues=2):
        job = wait_for(engine, id)
    assert (job.status, job.rescues, [error["type"] for error in job.errors]) == (
        JobStatus.FAILED,
        2,
        ["ChildDied"] * 2,
    )
    assert "its child process ended with exit code 9" in job.errors[0]["message"]


READY = to_line({"ready": True})
DIES_OF_A_JOB = f"""\
import os, socket
{{path}}, {{life}}
end = socket.socket(fileno={{end}})
end.recv(1_000_000)
end.sendall({READY!r})
end.recv(1_000_000)
os._exit(9)
"""


@pytest.mark.parametrize(("number", "kills"), [(6, 2), *nightly_sets((40, 12))])
def test_effects_are_there_once_however_often_children_are_killed(
    engine: Engine, url: str, effects: Effects, number: int, kills: int
) -> None:
    """Each job writes a row; meanwhile children are killed at any moment."""
    said = [f"{one:02}" for one in range(number)]
    ids = add(engine, *(enqueue(heavy.dawdle, one) for one in said))
    killed: set[int] = set()

    def kill_one() -> bool:
        alive = [child for child in children() if child.pid not in killed]
        if alive and effects.notes():
            killed.add(alive[0].pid)
            alive[0].kill()
        return len(killed) >= kills or len(effects.notes()) == len(ids)

    with working(url, REGISTRY, queues={"default": 3}, max_rescues=1_000):
        wait_until(kill_one, timeout=120)
        wait_until(lambda: all(job_of(engine, id).status is JobStatus.COMPLETED for id in ids), timeout=120)
    assert len(killed) > kills / 4
    assert effects.notes() == said
    assert {job_of(engine, id).attempt for id in ids} == {1}


def test_a_child_above_its_memory_limit_is_killed(engine: Engine, url: str, effects: Effects) -> None:
    """The job is rescued, and its error says how much memory was in use; one that needs less is done."""
    small, big = add(engine, enqueue(heavy.eat, 20), enqueue(heavy.eat, 100_000))
    with working(url, REGISTRY, queues={"default": 1}, max_rescues=2):
        done, job = wait_for(engine, small), wait_for(engine, big)
    assert done.status is JobStatus.COMPLETED
    assert (job.status, job.rescues) == (JobStatus.FAILED, 2)
    assert {error["type"] for error in job.errors} == {"MemoryLimit"}
    assert "(memory_limit 268,435,456)" in job.errors[0]["message"]
    assert effects.notes() == ["20 MB"]


# ---- being stopped


def test_a_handler_that_computes_past_its_timeout_is_killed(engine: Engine, url: str, effects: Effects) -> None:
    """The attempt has failed, nothing it wrote is kept, and the only slot of the queue is free at once."""
    with working(url, REGISTRY, queues={"default": 1}) as worker:
        (child,) = children()
        job = wait_for(engine, add_one(engine, enqueue(heavy.spin, "a")))
        assert worker.state().queues["default"].stuck == 0
        assert is_gone(child.pid)
        wait_for(engine, add_one(engine, enqueue(heavy.light)))
    assert (job.status, job.attempt, job.rescues) == (JobStatus.FAILED, 1, 0)
    assert [error["type"] for error in job.errors] == ["sa_jobqueue.errors.HandlerTimeout"]
    assert effects.notes() == ["light"]


def test_what_a_handler_has_started_is_killed_with_it(engine: Engine, url: str, effects: Effects) -> None:
    """Else the slow program would go on after the timeout."""
    id = add_one(engine, enqueue(heavy.parent, "a"))
    with working(url, REGISTRY):
        job = wait_for(engine, id)
    assert [error["type"] for error in job.errors] == ["sa_jobqueue.errors.HandlerTimeout"]
    (pid,) = effects.wait_said("child-a")
    wait_until(lambda: is_gone(pid))


def test_a_cancelled_handler_is_asked_first(engine: Engine, url: str, effects: Effects) -> None:
    """It sees `ctx.cancelled` and ends; its process stays, and runs the next job."""
    with working(url, REGISTRY, queues={"default": 1}, child_grace=600) as worker:
        id = add_one(engine, enqueue(heavy.polite, "a"))
        (pid,) = effects.wait_said("started-a")
        cancel(engine, id)
        job = wait_for(engine, id)
        wait_for(engine, add_one(engine, enqueue(heavy.effect, "next")))
        wait_until(lambda: worker.counts["cancelled"] == 1)
    assert (job.status, [error["type"] for error in job.errors]) == (JobStatus.CANCELLED, ["Cancelled"])
    assert effects.pids() == {pid}
    assert effects.notes() == ["next"]


def test_a_cancelled_handler_that_does_not_listen_is_killed(engine: Engine, url: str, effects: Effects) -> None:
    """After `child_grace`."""
    with working(url, REGISTRY, queues={"default": 1}, child_grace=0.1):
        id = add_one(engine, enqueue(heavy.patient, "a"))
        (pid,) = effects.wait_said("started-a")
        cancel(engine, id)
        job = wait_for(engine, id)
        assert is_gone(pid)
    assert (job.status, [error["type"] for error in job.errors]) == (JobStatus.CANCELLED, ["Cancelled"])
    assert effects.notes() == []


def test_a_commit_after_the_lease_was_lost_is_refused(engine: Engine, url: str, effects: Effects) -> None:
    """Another worker has the job: the child's completion fails at the fence, before this worker knows."""
    with working(url, REGISTRY, queues={"default": 1}, lease=600) as worker:
        id = add_one(engine, enqueue(heavy.patient, "a"))
        effects.wait_said("started-a")
        with engine.begin() as connection:
            connection.execute(update(Job).where(Job.id == id).values(claim_token=Job.claim_token + 1))
        effects.let_go("a")
        effects.wait_said("ended-a")
        wait_until(lambda: not len(services_of(worker).runs))
    assert job_of(engine, id).status is JobStatus.RUNNING
    assert effects.notes() == []


def test_a_handler_whose_lease_is_lost_is_stopped(engine: Engine, url: str, effects: Effects) -> None:
    """It is asked, and then killed; the job is left alone."""
    with working(url, REGISTRY, queues={"default": 1}, child_grace=0.1) as worker:
        id = add_one(engine, enqueue(heavy.patient, "a"))
        (pid,) = effects.wait_said("started-a")
        with engine.begin() as connection:
            connection.execute(
                update(Job)
                .where(Job.id == id)
                .values(claim_token=Job.claim_token + 1, lease_expires_at=text("now() + interval '1 hour'"))
            )
        renew_now(worker)
        wait_until(lambda: is_gone(pid))
        wait_until(lambda: not worker.state().queues["default"].running)
        wait_until(lambda: worker.counts == {"lost": 1})
    assert job_of(engine, id).status is JobStatus.RUNNING
    assert effects.notes() == []


# ---- beside others


def test_a_handler_that_computes_holds_up_no_other(engine: Engine, url: str, effects: Effects) -> None:
    """Not those on threads, not those on the event loop, not those in other processes."""
    with working(url, REGISTRY, queues={"default": 4}):
        add_one(engine, enqueue(heavy.held, "a"))
        effects.wait_said("started-a")
        for job in (enqueue(heavy.light), enqueue(heavy.light_async), enqueue(heavy.effect, "c")):
            assert wait_for(engine, add_one(engine, job)).status is JobStatus.COMPLETED
        assert effects.notes() == ["c", "light"]
        effects.let_go("a")
        wait_until(lambda: effects.notes() == ["a", "c", "light"])


def test_a_child_is_replaced_after_as_many_jobs_as_it_may_run(engine: Engine, url: str, effects: Effects) -> None:
    """`max_child_jobs`."""
    ids = add(engine, *(enqueue(heavy.add, number, 0) for number in range(4)))
    drain(url, REGISTRY, queues={"default": 1}, max_child_jobs=3)
    pids = [job_of(engine, id).result["pid"] for id in ids]  # type: ignore[index]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 1]


@pytest.mark.usefixtures("measured")
def test_a_child_that_is_replaced_ends_by_itself(engine: Engine, url: str, effects: Effects) -> None:
    """Whatever its jobs were: with and without a session, logging, failing, forking, and stopped."""
    jobs = [
        enqueue(heavy.effect, "a"),
        enqueue(heavy.outcome, "discard", True, True),
        enqueue(heavy.outcome, "cancel", False, False),
        enqueue(heavy.add, 1, 2),
        enqueue(heavy.chat),
        enqueue(heavy.telling),
        enqueue(heavy.fail),
        enqueue(heavy.fork_and_return, "b", False),
        enqueue(heavy.polite, "c"),
    ]
    with working(url, REGISTRY, queues={"default": 1}, max_child_jobs=len(jobs), child_grace=600) as worker:
        (child,) = services_of(worker).children._all
        *_, last = add(engine, *jobs)
        assert effects.wait_said("started-c") == [child.pid]
        cancel(engine, last)
        wait_for(engine, last)
        wait_until(child.has_ended)
    assert (child.jobs, child._process.returncode) == (len(jobs), 0)


def test_a_worker_that_is_stopped_lets_children_finish(engine: Engine, url: str, effects: Effects) -> None:
    """For its grace time, as handlers on threads."""
    with working(url, REGISTRY, queues={"default": 1}, grace=60) as worker:
        id = add_one(engine, enqueue(heavy.patient, "a"))
        effects.wait_said("started-a")
        worker.stop()
        effects.let_go("a")
    assert job_of(engine, id).status is JobStatus.COMPLETED
    assert effects.notes() == ["a"]
    assert children() == []


def test_a_worker_whose_grace_is_over_kills_its_children(engine: Engine, url: str, effects: Effects) -> None:
    """The job goes back with a rescue, as one on a thread; nothing it wrote is kept."""
    with working(url, REGISTRY, queues={"default": 1}, grace=0.1) as worker:
        id = add_one(engine, enqueue(heavy.patient, "a"))
        (pid,) = effects.wait_said("started-a")
        worker.stop()
    wait_until(lambda: is_gone(pid))
    job = job_of(engine, id)
    assert (job.status, job.rescues, job.attempt) == (JobStatus.QUEUED, 1, 0)
    assert [error["type"] for error in job.errors] == ["Interrupted"]
    assert effects.notes() == []


def test_a_worker_without_such_jobs_has_no_children(engine: Engine, url: str, effects: Effects) -> None:
    """Its queue is not theirs, and none of them comes."""
    with working(url, REGISTRY, queues={"other": 2}):
        wait_for(engine, add_one(engine, enqueue(heavy.light.options(queue="other"))))
        assert children() == []
        wait_for(engine, add_one(engine, enqueue(heavy.effect.options(queue="other"), "x")))
        assert len(children()) == 1


# ---- what handlers leave behind


def test_a_handler_that_comes_back_twice_ends_its_job_once(engine: Engine, url: str, effects: Effects) -> None:
    """It has forked, and the forked process has come back or failed, too: that has no part in the job, nor in the next one."""
    with working(url, REGISTRY, queues={"default": 1}):
        back, failed = enqueue(heavy.fork_and_return, "a", False), enqueue(heavy.fork_and_return, "b", True)
        ids = add(engine, back, failed, enqueue(heavy.effect, "c"), enqueue(heavy.effect, "d"))
        for id in ids:
            assert wait_for(engine, id).status is JobStatus.COMPLETED
        for pid in (*effects.wait_said("forked-a"), *effects.wait_said("forked-b")):
            wait_until(lambda pid=pid: is_gone(pid))
    assert effects.notes() == ["a", "b", "c", "d"]
    assert [job_of(engine, id).errors for id in ids] == [[], [], [], []]


@pytest.mark.parametrize(("how", "told"), [("fork", True), *nightly_sets(("fork", False), ("shell", True))])
def test_the_end_of_a_child_is_seen_though_a_process_that_it_left_lives_on(
    engine: Engine, url: str, effects: Effects, monkeypatch: pytest.MonkeyPatch, how: str, told: bool
) -> None:
    """Which has all that the child had open, and has left its session. `told`: whether the system tells of an end."""
    if not told:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    with working(url, REGISTRY, queues={"default": 1}):
        id = add_one(engine, enqueue(heavy.daemonize, "a", how))
        job = wait_for(engine, id)
        effects.let_go("a")
    assert (job.status, job.rescues) == (JobStatus.COMPLETED, 1)
    assert effects.notes() == ["a"]


def test_what_a_thread_says_that_a_handler_left_is_not_said_of_the_next_job(
    engine: Engine, url: str, effects: Effects
) -> None:
    """The same process runs the next job."""
    with working(url, REGISTRY, queues={"default": 1}):
        wait_for(engine, add_one(engine, enqueue(heavy.leave_a_thread, "a")))
        id = add_one(engine, enqueue(heavy.after_it, "b"))
        effects.wait_said("started-b")
        effects.let_go("a")
        effects.wait_said("ended-a")
        effects.let_go("after-b")
        wait_for(engine, id)
    with engine.connect() as connection:
        said = connection.execute(select(Job.progress, Job.progress_message).where(Job.id == id)).one()
        lines = [line.message for line in connection.execute(job_logs(id))]
    assert tuple(said) == (0.1, "this job")
    assert lines == ["this job"]


def test_a_job_that_is_cancelled_while_its_child_starts_is_not_run(
    engine: Engine, url: str, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application may take seconds to import."""
    start = Children._start

    def start_slowly(self: Children, tasks: Any) -> Any:
        child = start(self, tasks)
        say_started.set()
        cancelled.wait()
        return child

    with working(url, REGISTRY, queues={"other": 1}) as worker:
        say_started, cancelled = threading.Event(), threading.Event()
        monkeypatch.setattr(Children, "_start", start_slowly)
        id = add_one(engine, enqueue(heavy.patient.options(queue="other"), "a"))
        say_started.wait()
        cancel(engine, id)
        (run,) = services_of(worker).runs
        wait_until(lambda: run.stop)
        cancelled.set()
        job = wait_for(engine, id)
        assert (job.status, effects.notes()) == (JobStatus.CANCELLED, [])
        assert not (effects.folder / "started-a").exists()
        monkeypatch.undo()
        wait_for(engine, add_one(engine, enqueue(heavy.effect.options(queue="other"), "next")))


def test_the_deadline_of_a_job_counts_from_its_claim_in_a_child_too(
    engine: Engine, url: str, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from when the child gets the job: a retry in an hour would be after the deadline."""
    start = Children._start

    def start_slowly(self: Children, tasks: Any) -> Any:
        child = start(self, tasks)
        (run,) = services_of(worker).runs
        wait_until(lambda: run.elapsed > 1)
        return child

    with working(url, REGISTRY, queues={"other": 1}) as worker:
        monkeypatch.setattr(Children, "_start", start_slowly)
        late = heavy.outcome.options(queue="other", deadline=3_601)
        job = wait_for(engine, add_one(engine, enqueue(late, "retry", False, False)))
    assert job.status is JobStatus.FAILED
    assert "its deadline is over before it could be tried again" in job.errors[0]["message"]

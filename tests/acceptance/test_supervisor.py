"""Several worker processes under a supervisor: kept alive, drained with it, started again when they ask."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_jobqueue import JobStatus, enqueue
from sa_jobqueue.worker.process.inside import Ending
from sa_jobqueue.worker.process.supervisor import Supervisor, restart_delay
from tests.acceptance import app
from tests.acceptance.conftest import APP, ONE, Shop
from tests.support.commands import CLI, ROOT, Command, alive, environment, run_command
from tests.support.metrics import value
from tests.support.nightly import nightly, nightly_sets
from tests.support.waiting import wait_until
from tests.support.working import lapse, long_healthy, worker_for


def workers(supervisor: Command) -> list[psutil.Process]:
    """The worker processes that run now."""
    return [child for child in supervisor.children() if alive(child)]


def wait_gone(*processes: psutil.Process) -> None:
    wait_until(lambda: not any(map(alive, processes)))


PIN = ("--pin",) if hasattr(os, "sched_getaffinity") else ()


def test_a_killed_worker_process_is_started_again(shop: Shop) -> None:
    """The job that it was running is rescued, and done by a process that lives; on the same core, with `--pin`."""
    (job_id,) = shop.add(enqueue(app.held, "a"))
    long_healthy(shop.engine, 20.0)
    with shop.work(*ONE, *PIN, "--lease=20") as supervisor:  # it looks for lost jobs every 5 s
        (victim,) = shop.wait_said("started-a")
        core = places(psutil.Process(victim)) if PIN else []
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: f"(pid {victim}) was ended by SIGKILL" in supervisor.output)
        lapse(shop.engine, job_id)
        (job,) = shop.wait_for(job_id)
        assert (job.attempt, job.rescues) == (1, 1)
        wait_until(lambda: len(workers(supervisor)) == 1)
        (again,) = workers(supervisor)
        assert again.pid != victim
        assert not PIN or (len(core), places(again)) == (1, core)
        assert f"(pid {victim}) was ended by SIGKILL" in supervisor.output
        supervisor.send(signal.SIGTERM)
        assert supervisor.wait() == 0
    assert len(shop.effects()) == 1


@pytest.mark.nightly
@pytest.mark.skipif(not PIN, reason="this system cannot keep a process on one core")
@pytest.mark.usefixtures("measured")
def test_pinned_processes_stay_on_a_core_each(shop: Shop) -> None:
    """With all their threads; one that is started again is where the one before it was. One alone has the first core."""
    cores = sorted(os.sched_getaffinity(0))
    with shop.work("--processes=2", "--pin") as supervisor:
        supervisor.wait_for("worker process 2 started")  # said when it is on its core
        first, second = workers(supervisor)
        assert sorted([places(first), places(second)]) == sorted([[cores[0]], [cores[1 % len(cores)]]])
        core = places(first)
        first.kill()
        (again,) = wait_until(lambda: [one for one in workers(supervisor) if one not in {first, second}])
        supervisor.wait_for(f"(pid {again.pid})")
        assert places(again) == core
    with shop.work("--pin") as alone:
        assert places(psutil.Process(alone.pid)) == [cores[0]]


def places(process: psutil.Process) -> list[int]:
    """The cores that threads of this process may use."""
    cores: set[int] = set()
    for thread in process.threads():
        with suppress(ProcessLookupError):  # it has ended since
            cores |= os.sched_getaffinity(thread.id)
    return sorted(cores)


@pytest.mark.usefixtures("measured")
def test_ctrl_c_reaches_the_supervisor_alone_which_lets_all_drain_and_a_second_signal_the_workers(shop: Shop) -> None:
    """A terminal signals its whole foreground group; a worker that heard it twice would not wait for its jobs. At the second
    signal they leave at once, and what they ran goes back.
    """
    *ids, endless = shop.add(enqueue(app.held, "a"), enqueue(app.held_async, "b"), enqueue(app.never_ends, "c"))
    with shop.work(*ONE, "--lease=30", "--grace=600") as supervisor:
        for name in "abc":
            shop.wait_said(f"started-{name}")
        supervisor.send_group(signal.SIGINT)
        supervisor.wait_for("SIGTERM: finishing")
        shop.go("a")
        shop.go("b")
        shop.wait_for(*ids)
        supervisor.send(signal.SIGTERM)
        supervisor.wait_for("SIGTERM, the second signal: the workers leave now")
        assert supervisor.wait() == 0
    assert [(shop.job(id).status, shop.job(id).attempt) for id in ids] == [(JobStatus.COMPLETED, 1)] * 2
    assert (shop.job(endless).status, shop.job(endless).attempt) == (JobStatus.QUEUED, 0)


@pytest.mark.nightly
def test_a_second_signal_reaches_workers_that_have_not_heard_the_first(shop: Shop) -> None:
    """As the one above, though they are frozen meanwhile."""
    (job_id,) = shop.add(enqueue(app.never_ends, "a"))
    with shop.work("--processes=2", "--grace=600") as supervisor:
        (worker,) = shop.wait_said("started-a")
        os.kill(worker, signal.SIGSTOP)
        supervisor.send(signal.SIGTERM)
        supervisor.wait_for("SIGTERM: the workers finish")
        supervisor.send(signal.SIGINT)
        supervisor.wait_for("SIGINT, the second signal: the workers leave now")
        os.kill(worker, signal.SIGCONT)
        assert supervisor.wait() == 0
    assert (shop.job(job_id).status, shop.job(job_id).attempt) == (JobStatus.QUEUED, 0)


@pytest.mark.nightly
@pytest.mark.usefixtures("measured")
def test_workers_drain_when_their_supervisor_is_killed(shop: Shop) -> None:
    """No process is left to signal them, but their stdin ends; they say so, where the log can still be read."""
    (job_id,) = shop.add(enqueue(app.held, "a"))
    with shop.work(*ONE, "--lease=30") as supervisor:
        shop.wait_said("started-a")
        family = workers(supervisor)
        supervisor.kill()
        shop.go("a")
        wait_gone(*family)
        assert "the supervisor is gone" in supervisor.output
    job = shop.job(job_id)
    assert (job.status, job.attempt, job.rescues) == (JobStatus.COMPLETED, 1, 0)


def test_workers_drain_when_their_supervisor_is_killed_with_the_readers_of_their_log_and_metrics(shop: Shop) -> None:
    """No process is left to signal them, but their stdin ends. Each line that they log is an error then, and each report of what
    they count: not of the worker.
    """
    (job_id,) = shop.add(enqueue(app.held, "a"))
    command = [
        *CLI,
        "work",
        *ONE,
        "--lease=30",
        "--metrics-port=0",
        f"--app={APP}",
        f"--schema={shop.schema}",
        "--log-level=info",
    ]
    environ = environment(shop.url, {"ACCEPTANCE_FOLDER": str(shop.folder)})
    with subprocess.Popen(
        command, env=environ, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as supervisor:
        family: list[psutil.Process] = []
        try:
            shop.wait_said("started-a")
            family = psutil.Process(supervisor.pid).children()
            assert supervisor.stderr is not None
            supervisor.stderr.close()
            supervisor.kill()
            shop.go("a")
            wait_gone(*family)
        finally:
            for process in family:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            supervisor.kill()
    job = shop.job(job_id)
    assert (job.status, job.attempt, job.rescues) == (JobStatus.COMPLETED, 1, 0)


@pytest.mark.usefixtures("measured")
def test_max_jobs_restarts_a_process(shop: Shop) -> None:
    """Each process drains before it ends: no job is lost, none runs twice."""
    shop.add(*(enqueue(app.write, str(n)) for n in range(40)))
    with shop.work("--max-jobs=20") as supervisor:
        jobs = shop.wait_for()
        assert "20 jobs were claimed (max_jobs 20)" in supervisor.output
    assert {(job.attempt, job.rescues) for job in jobs} == {(1, 0)}
    assert sorted(Counter(effect.pid for effect in shop.effects()).values()) == [20, 20]


@pytest.mark.parametrize("supervised", [False, *nightly(True)])
def test_max_memory_restarts_a_process(shop: Shop, caplog: pytest.LogCaptureFixture, supervised: bool) -> None:
    """It ends as one does that has claimed its `max_jobs`."""
    said = "bytes are resident (max_memory 1,048,576)"
    if supervised:
        with shop.work("--max-memory=1M") as supervisor:
            supervisor.wait_for(said)
            supervisor.wait_for("is restarted")
    else:
        caplog.set_level("INFO")
        worker = worker_for(shop.url, app.registry, max_memory=2**20)
        assert asyncio.run(worker.serve()) == Ending.RECYCLE
        assert said in caplog.text


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (f"--app={APP}x", "the module 'tests.acceptance.app' has no name 'registryx'"),
        *nightly_sets(
            ("--max-memory=lots", "expected a size, as in 500M or 2G"),
            ("--lease=0.1", "lease must be a number from 0.5 to 86400, not 0.1"),
        ),
    ],
)
@pytest.mark.usefixtures("measured")
def test_what_cannot_work_ends_with_exit_code_2(shop: Shop, option: str, reason: str) -> None:
    """The supervisor does not start again a worker that cannot begin."""
    result = run_command("work", "--processes=2", option, url=shop.url)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert reason in line


def test_no_password_is_on_a_command_line_or_in_the_log(shop: Shop) -> None:
    """The children get URLs by the environment. A port for metrics that they inherit with it they do not take, too."""
    secret = f"{shop.url}&password=s3cret" if "?" in shop.url else f"{shop.url}?password=s3cret"
    there = Shop(secret, shop.engine, shop.folder)
    environ = {"SA_JOBQUEUE_METRICS_PORT": "0"}
    with there.work(*ONE, "--log-format=json", f"--listen-url={secret}", env=environ) as supervisor:
        wait_until(lambda: value(supervisor, "sa_jobqueue_processes") == 1)
        assert not [one for child in workers(supervisor) for one in child.cmdline() if "s3cret" in one]
        assert "s3cret" not in supervisor.output
        assert all(line.startswith("{") for line in supervisor.output.splitlines())


@given(st.integers(1, 100), st.floats(0, 1, exclude_max=True))
def test_the_pause_before_a_restart_doubles_from_half_a_second_to_thirty(deaths: int, random: float) -> None:
    """The pause is spread at random by a fifth, so processes do not start all at once."""
    assert 0.8 * min(0.5 * 2 ** (deaths - 1), 30) <= restart_delay(deaths, random=random) <= 36
    assert restart_delay(1, random=random) <= 0.6


def test_the_exit_code_that_asks_for_a_restart_is_75() -> None:
    """As the reference of the commands says: units of systemd may name it."""
    assert Ending.RECYCLE == 75


# ---- without a database: what the supervisor makes of any child


def supervise(child: str, steps: Callable[[Supervisor], None], *, python: str = sys.executable, **options: Any) -> int:
    """Supervise two processes of this script, until these steps, on a thread of their own, are done; the exit code."""
    supervisor = Supervisor([python, "-c", textwrap.dedent(child)], 2, **options)

    def play() -> None:
        try:
            steps(supervisor)
        finally:
            supervisor.stop()

    with ThreadPoolExecutor(1) as thread:
        played = thread.submit(play)
        code = supervisor.run()
        played.result()
    return code


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What the supervisor says."""
    caplog.set_level("INFO")
    return caplog


def test_a_worker_that_dies_at_once_is_started_again_ever_more_slowly(log: pytest.LogCaptureFixture) -> None:
    """The log says each exit code and each pause."""
    said = r"worker process 1 .* exit code 3 .* starting it again in (\S+) s"
    assert supervise("raise SystemExit(3)", lambda _: wait_until(lambda: len(re.findall(said, log.text)) >= 3)) == 0
    delays = [float(delay) for delay in re.findall(said, log.text)]
    assert all(0.8 <= delay / (0.5 * 2**deaths) <= 1.2 for deaths, delay in enumerate(delays)), delays


DEAF = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(f"{folder}/deaf-{{os.environ.get('ROUND')}}-{{os.getpid()}}", "x").close()
    time.sleep(600)  # it is killed long before
"""


def wait_deaf(folder: Path, round_: str | None = None) -> None:
    """Wait until two that do not hear a SIGTERM run."""
    wait_until(lambda: len(list(folder.glob(f"deaf-{round_}-*"))) == 2)


def test_a_worker_that_does_not_drain_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    """After the grace time and a few seconds; the exit code says that not all went well."""
    monkeypatch.setattr("sa_jobqueue.worker.process.supervisor._LAST_CALL", 0.1)
    assert supervise(DEAF.format(folder=tmp_path), lambda _: wait_deaf(tmp_path), grace=0) == 1
    assert log.text.count("did not drain and is killed") == 2


def test_a_restart_takes_up_those_that_could_not_work_and_kills_those_that_do_not_drain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    """With `reloads`: until it comes they wait, and nothing ends. Only a kill at the end is in the exit code."""
    monkeypatch.setattr("sa_jobqueue.worker.process.supervisor._LAST_CALL", 0.1)
    codes: list[int] = []
    child = f"""
        import os
        if not os.path.exists("{tmp_path}/mended"):
            raise SystemExit(2)
    """

    def steps(supervisor: Supervisor) -> None:
        wait_until(lambda: log.text.count("cannot work; it waits for the next change") == 2)
        (tmp_path / "mended").touch()
        for number in ("1", "2"):
            supervisor.restart("a file", grace=0, env={"ROUND": number})
            wait_deaf(tmp_path, number)
        codes.append(supervisor._code)

    codes.append(supervise(textwrap.dedent(child) + textwrap.dedent(DEAF.format(folder=tmp_path)), steps, reloads=True))
    assert codes == [0, 1]
    assert log.text.count("a file: restarting") == 2
    assert log.text.count("did not drain and is killed") == 4
    assert log.text.count("started (pid") == 2


def test_workers_that_have_done_their_work_are_not_started_again(log: pytest.LogCaptureFixture) -> None:
    """With `--drain`, the supervisor ends when its workers have ended."""
    assert Supervisor([sys.executable, "-c", ""], 2, until_idle=True).run() == 0
    assert log.text.count("started (pid") == 2


def test_where_no_worker_can_begin_the_supervisor_ends_too(log: pytest.LogCaptureFixture) -> None:
    """It ends with the workers' exit code for what cannot work."""
    assert Supervisor([sys.executable, "-c", "raise SystemExit(2)"], 2).run() == 2
    assert "no worker process can work; ending" in log.text


def test_a_worker_that_cannot_begin_while_another_works_is_tried_again(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    """The database was away just then: neither has to end for that."""
    child = f"""
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
        try:
            open({str(tmp_path / "first")!r}, "x").close()
        except FileExistsError:
            open(f"{tmp_path}/steady-{{os.getpid()}}", "x").close()
            time.sleep(600)  # the supervisor ends this process long before
        sys.exit(2)
    """
    assert supervise(child, lambda _: wait_until(lambda: len(list(tmp_path.glob("steady-*"))) == 2)) == 0
    assert len(re.findall(r"ended with exit code 2 after .* starting it again in", log.text)) == 1


def test_a_start_that_fails_harms_no_other_worker(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    """A deploy takes the interpreter away for a while: it is tried again, and the others go on and drain in the end."""
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    child = f"""
        import os, signal, sys, time

        def say(what):
            open(f"{tmp_path}/{{what}}-{{os.getpid()}}", "x").close()

        def drain(number, frame):
            say("drained")
            sys.exit(0)

        signal.signal(signal.SIGTERM, drain)
        try:
            open({str(tmp_path / "first")!r}, "x").close()
        except FileExistsError:
            say("steady")
            time.sleep(600)  # the supervisor ends this process long before
        while os.path.lexists({str(python)!r}):
            time.sleep(0.01)
        sys.exit({int(Ending.RECYCLE)})
    """

    def said(what: str) -> int:
        return len(list(tmp_path.glob(f"{what}-*")))

    def steps(_: Supervisor) -> None:
        wait_until(lambda: (tmp_path / "first").exists() and said("steady") == 1)
        python.unlink()
        wait_until(lambda: len(re.findall(r"could not be started: .*; trying again in \S+ s", log.text)) >= 2)
        python.symlink_to(sys.executable)
        wait_until(lambda: said("steady") == 2)

    assert supervise(child, steps, python=str(python)) == 0
    assert said("drained") == 2


def test_a_worker_without_a_thread_to_await_its_end_is_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first of the two runs while no more threads can be started."""
    left, start = iter([True, False]), threading.Thread.start
    before = set(psutil.Process().children())

    def scarce(thread: threading.Thread) -> None:
        if not next(left, True):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    assert Supervisor([sys.executable, "-c", ""], 2, until_idle=True).run() == 0
    assert "worker process 2 could not be started: can't start new thread" in caplog.text
    assert set(psutil.Process().children()) <= before


def test_a_drain_that_was_cut_short_has_an_exit_code_of_its_own() -> None:
    """So `work --drain && report` does not go on with half the work done."""
    assert supervise("import time; time.sleep(600)", lambda _: None, until_idle=True) == Ending.INTERRUPTED == 4


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot keep a process on one core")
def test_a_worker_whose_core_is_gone_runs_on_any(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    """A container may be given other cores while the supervisor runs."""
    seen = tmp_path / "seen"
    child = f"""
        import os, time

        while not os.path.exists({str(seen)!r}):  # one that has ended cannot be kept anywhere
            time.sleep(0.01)
    """

    def steps(_: Supervisor) -> None:
        wait_until(lambda: log.text.count("could not be kept on core 1000") == 2)
        seen.touch()
        wait_until(lambda: log.text.count("found nothing more to do") == 2)

    assert supervise(child, steps, until_idle=True, cores=[1_000]) == 0


def test_where_nothing_can_be_started_the_command_ends(tmp_path: Path) -> None:
    """An error of the operating system is not tried again."""
    with pytest.raises(FileNotFoundError):
        Supervisor([str(tmp_path / "nowhere")], 2).run()

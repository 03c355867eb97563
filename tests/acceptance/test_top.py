"""`sa-jobqueue top` in a real terminal, over workers that work."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from sa_jobqueue import JobStatus, enqueue, every
from sa_jobqueue.models import Schedule
from tests.acceptance import app
from tests.acceptance.conftest import Shop
from tests.support.commands import alive
from tests.support.databases import connect
from tests.support.nightly import nightly, nightly_sets
from tests.support.tmux import PROGRAM, Shell, terminal
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no tmux here (Debian's package tmux)")

SIZES = [(80, 24), *nightly_sets((140, 40))]


@contextmanager
def top(shop: Shop, columns: int = 80, rows: int = 24) -> Iterator[Shell]:
    """The command, running in a terminal of this size."""
    with terminal(shop.folder, shop.url, columns=columns, rows=rows) as shell:
        shell.type("sa-jobqueue top", "Enter")
        shell.wait_for("q quit")
        yield shell


def wait_for_plain(shell: Shell) -> None:
    """Wait until the shell has its screen and its prompt back."""
    wait_until(lambda: shell.is_plain)
    shell.wait_until(lambda lines: [line for line in lines if line][-1].startswith("$"))


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_the_picture_shows_what_workers_do(shop: Shop, columns: int, rows: int) -> None:
    """Queues, tasks, workers and failed jobs, each by its key too; no line is longer than the terminal."""
    shop.add(*(enqueue(app.nothing, n) for n in range(20)), enqueue(app.held, "a"))
    (failed,) = shop.add(enqueue(app.once.options(max_attempts=1)))
    shop.add(enqueue(app.nothing.options(queue="nobody_serves_it"), 1))
    (broken,) = shop.add(enqueue(app.write_and_fail.options(max_attempts=1), "x"))
    with shop.work("--queue=default=4") as worker, top(shop, columns, rows) as shell:
        shop.wait_said("started-a")
        shop.wait_for(broken, status=JobStatus.FAILED)
        lines = shell.wait_for("QUEUES", "TASKS", "WORKERS", "FAILED", "1 due", "1 running", " completed", f":{worker.pid}", "1/4")  # fmt: skip
        shell.wait_until(lambda lines: "0 completed" not in lines[2])
        assert len(lines) == rows
        assert max(map(len, lines)) <= columns
        assert any(line.startswith("nobody_serves_it") and line.endswith(("none", "no worker")) for line in lines)

        shell.type("t")
        shell.wait_until(lambda lines: any(line.startswith(("acceptance", "tests.", "nothing")) for line in lines))
        shell.type("w")
        shell.wait_until(lambda lines: lines[5].startswith("WORKERS") and f":{worker.pid}" in lines[6])
        shell.type("f")
        shell.wait_until(lambda lines: lines[5].startswith("FAILED") and lines[6].startswith(str(broken)))
        shell.type("Enter")
        shell.wait_for(f"job {broken}  ", "attempt 1", "esc back")
        shell.type("Escape", "o")
        shell.wait_until(lambda lines: "f failed jobs" in lines[-1])
        shop.go("a")
        shell.wait_for("0 running")
        shell.type("q")
        wait_for_plain(shell)
    assert shop.job(failed).status is JobStatus.COMPLETED


def test_a_failed_job_is_retried_and_a_schedule_paused_after_a_yes(shop: Shop) -> None:
    """And only then: another key takes it back. A second yes resumes the schedule."""
    (id,) = shop.add(enqueue(app.write_and_fail.options(max_attempts=1), "x"))
    with shop.work_here():
        shop.wait_for(id, status=JobStatus.FAILED)
    shop.add(Schedule(every(3_600), app.nothing, name="hourly"))  # type: ignore[arg-type]
    with top(shop) as shell:
        shell.type("f")
        shell.wait_until(lambda lines: lines[6].startswith(str(id)))
        shell.type("r")
        shell.wait_for(f"Run job {id} again, now? y: yes, any other key: no")
        shell.type("q")
        shell.wait_for("r retry")
        assert shop.job(id).status is JobStatus.FAILED
        shell.type("r", "y")
        shell.wait_for(f"job {id} is queued again", "no failed jobs", "0 failed")
        assert shop.job(id).status is JobStatus.QUEUED

        shell.type("s")
        shell.wait_for("hourly", "p pause or resume")
        shell.type("p", "y")
        shell.wait_for("schedule hourly is paused", "paused by an operator")
        shell.type("p", "y")
        shell.wait_for("schedule hourly goes on")


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_a_queue_is_paused_and_resumed_in_the_overview(shop: Shop, columns: int, rows: int) -> None:
    """The workers start nothing of it meanwhile."""
    with shop.work_here(), top(shop, columns, rows) as shell:
        shell.wait_for("default ", "p pause or resume")
        shell.type("j", "p")
        shell.wait_for("Pause queue default? What runs goes on. y: yes, any other key: no")
        shell.type("y")
        shell.wait_for("queue default is paused", "paused ")
        (id,) = shop.add(enqueue(app.nothing, 1))
        shell.wait_for("1 due")
        assert shop.job(id).status is JobStatus.QUEUED
        shell.type("p", "y")
        lines = shell.wait_for("queue default is resumed", "0 due")
        assert max(map(len, lines)) <= columns
        shop.wait_for(id, status=JobStatus.COMPLETED)


ENDS: dict[str, tuple[Callable[[Shell], None], int]] = {
    "q": (lambda shell: shell.type("q"), 0),
    "Ctrl-C": (lambda shell: shell.type("C-c"), 0),
    "SIGTERM": (lambda shell: shell.process.send_signal(signal.SIGTERM), 143),
    "SIGHUP": (lambda shell: shell.process.send_signal(signal.SIGHUP), 129),
}


@pytest.mark.parametrize("end", ["SIGTERM", *nightly("q", "Ctrl-C", "SIGHUP")])
def test_the_terminal_is_as_it_was_however_it_ends(shop: Shop, end: str) -> None:
    """Its settings, its screen and its cursor."""
    act, code = ENDS[end]
    with terminal(shop.folder, shop.url, columns=80, rows=24) as shell:
        before = shell.run("stty -a")
        shell.type("echo a line of before", "Enter", "sa-jobqueue top", "Enter")
        shell.wait_for("q quit")
        assert not shell.is_plain
        act(shell)
        wait_for_plain(shell)
        shell.wait_for("a line of before")
        assert shell.run("echo $?").strip() == str(code)
        assert shell.run("stty -a") == before


def test_it_stops_on_ctrl_z_and_goes_on(shop: Shop) -> None:
    """The terminal is the shell's meanwhile; afterwards keys are read again. SIGSTOP cannot be caught; SIGCONT can."""
    with top(shop) as shell:
        process = shell.process
        shell.type("C-z")
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
        wait_for_plain(shell)
        shell.wait_for("Stopped")
        assert "-icanon" not in shell.run("stty -a")
        shell.type("fg", "Enter")
        shell.wait_for("q quit")
        assert not shell.is_plain
        shell.type("t")
        shell.wait_for("no tasks")

        process.send_signal(signal.SIGSTOP)
        shell.wait_for("Stopped")
        shell.type("fg", "Enter")
        wait_until(lambda: process.status() != psutil.STATUS_STOPPED and not shell.is_plain)
        shell.type("w")
        shell.wait_for("no workers")
        shell.type("q")
        wait_for_plain(shell)


def test_a_terminal_of_another_size_gets_another_picture_and_without_its_window_it_ends(shop: Shop) -> None:
    """At once: the next look is far away. What a shell has exported of the first size does not count. It does not go on to
    ask the database unseen.
    """
    with terminal(shop.folder, shop.url, columns=80, rows=24) as shell:
        shell.type("export COLUMNS LINES; sa-jobqueue top --every 3600", "Enter")
        shell.wait_for("q quit")
        shell.tmux("resize-window", "-t", "shell", "-x", "50", "-y", "12")
        shell.wait_until(lambda lines: len(lines) == 12 and lines[-1].endswith("…"))
        shell.tmux("resize-window", "-t", "shell", "-x", "140", "-y", "30")
        shell.wait_until(lambda lines: len(lines) == 30 and lines[-1].endswith("q quit"))
        process = shell.process
    wait_until(lambda: not alive(process))


def test_a_database_that_is_away_is_said_and_found_again(shop: Shop) -> None:
    """Keys are answered meanwhile."""
    shop.add(enqueue(app.nothing.options(queue="mail"), 1))
    with top(shop, 140, 40) as shell, connect(shop.url) as connection:
        name = connection.info.dbname
        shell.wait_for("mail")
        with connect(shop.url.replace(f"/{name}", "/postgres")) as admin:
            admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
            try:
                shop.engine.dispose()
                admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
                lines = shell.wait_for("no answer since", "the database refused the connection")
                assert any(line.startswith("mail") for line in lines)
                shell.type("w")
                shell.wait_for("no workers")
            finally:
                admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        shell.wait_until(lambda lines: "a look" in lines[0])
        shell.type("q")
        wait_for_plain(shell)

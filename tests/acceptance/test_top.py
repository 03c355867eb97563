"""`sa-jobqueue top` in a real terminal, over workers that work."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from sa_jobqueue import JobStatus, enqueue
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
        shell.wait_for(" due · ")
        yield shell


def wait_for_plain(shell: Shell) -> None:
    """Wait until the shell has its screen and its prompt back."""
    wait_until(lambda: shell.is_plain)
    shell.wait_until(lambda lines: [line for line in lines if line][-1].startswith("$"))


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_the_picture_shows_what_workers_do(shop: Shop, columns: int, rows: int) -> None:
    """Queues, tasks, workers and failed jobs, and what changes; no line is longer than the terminal."""
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
        assert any(line.startswith(f"{broken} ") for line in lines)
        shop.go("a")
        shell.wait_for("0 running")
        shell.type("C-c")
        wait_for_plain(shell)
    assert shop.job(failed).status is JobStatus.COMPLETED


ENDS: dict[str, tuple[Callable[[Shell], None], int]] = {
    "Ctrl-C": (lambda shell: shell.type("C-c"), 0),
    "SIGTERM": (lambda shell: shell.process.send_signal(signal.SIGTERM), 143),
    "SIGHUP": (lambda shell: shell.process.send_signal(signal.SIGHUP), 129),
}


@pytest.mark.parametrize("end", ["SIGTERM", *nightly("Ctrl-C", "SIGHUP")])
def test_the_terminal_is_as_it_was_however_it_ends(shop: Shop, end: str) -> None:
    """Its settings, its screen and its cursor."""
    act, code = ENDS[end]
    with terminal(shop.folder, shop.url, columns=80, rows=24) as shell:
        before = shell.run("stty -a")
        shell.type("echo a line of before", "Enter", "sa-jobqueue top", "Enter")
        shell.wait_for(" due · ")
        assert not shell.is_plain
        act(shell)
        wait_for_plain(shell)
        shell.wait_for("a line of before")
        assert shell.run("echo $?").strip() == str(code)
        assert shell.run("stty -a") == before


def test_it_stops_on_ctrl_z_and_goes_on(shop: Shop) -> None:
    """The terminal is the shell's meanwhile."""
    with top(shop) as shell:
        process = shell.process
        shell.type("C-z")
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
        wait_for_plain(shell)
        shell.wait_for("Stopped")
        shell.type("fg", "Enter")
        shell.wait_for(" due · ")
        assert not shell.is_plain
        shop.add(enqueue(app.nothing.options(queue="mail"), 1))
        shell.wait_for("mail")
        shell.type("C-c")
        wait_for_plain(shell)


def test_a_terminal_of_another_size_gets_another_picture_and_without_its_window_it_ends(shop: Shop) -> None:
    """At once: the next reading is far away. What a shell has exported of the first size does not count. It does not go on to
    ask the database unseen.
    """
    shop.add(*(enqueue(app.nothing.options(queue=f"queue{n}"), 1) for n in range(30)))
    with terminal(shop.folder, shop.url, columns=80, rows=24) as shell:
        shell.type("export COLUMNS LINES; sa-jobqueue top --every 3600", "Enter")
        shell.wait_until(lambda lines: _queues(lines) == 18)
        shell.tmux("resize-window", "-t", "shell", "-x", "60", "-y", "12")
        shell.wait_until(lambda lines: len(lines) == 12 and _queues(lines) == 6)
        shell.tmux("resize-window", "-t", "shell", "-x", "140", "-y", "30")
        lines = shell.wait_until(lambda lines: len(lines) == 30 and _queues(lines) == 24 and lines)
        assert lines[5].startswith("QUEUES 1-24 of 30 ")
        process = shell.process
    wait_until(lambda: not alive(process))


def _queues(lines: list[str]) -> int:
    return sum(line.startswith("queue") for line in lines)


def test_a_database_that_is_away_is_said_and_found_again(shop: Shop) -> None:
    """The last picture stays meanwhile."""
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
            finally:
                admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        shell.wait_until(lambda lines: "read in" in lines[0])
        shell.type("C-c")
        wait_for_plain(shell)

"""Hooks of real workers: at their start, when they are stopped or killed, and in their child processes."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

from sa_jobqueue import enqueue
from tests.acceptance.conftest import Shop
from tests.support import hooked
from tests.support.commands import run_command
from tests.support.waiting import wait_until

APP = "tests.support.hooked:registry"


def said(file: Path) -> dict[int, list[str]]:
    """The lines of each process."""
    lines: dict[int, list[str]] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        what, _, pid = line.rpartition(" ")
        lines.setdefault(int(pid), []).append(what)
    return lines


def test_a_worker_that_is_stopped_calls_its_hooks_and_so_does_its_child(shop: Shop) -> None:
    """The child has a shared value of its own, made once for its jobs and closed before its stop hook."""
    file = shop.folder / "hooked"
    with shop.work(app=APP, env={"HOOKED": str(file)}) as worker:
        shop.wait_for(*shop.add(enqueue(hooked.computes)))
        shop.wait_for(*shop.add(enqueue(hooked.computes)))
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
        lines = said(file)
        assert lines.pop(worker.pid) == ["start", "stop"]
        ((child, of_child),) = lines.items()
        ran = f"ran by {child} in"
        assert of_child == ["start", "opened", ran, ran, "closed", "stop"]


def test_a_worker_that_is_killed_calls_no_stop_hook(shop: Shop) -> None:
    """Nor does its child, which the system kills with it."""
    file = shop.folder / "hooked"
    with shop.work(app=APP, env={"HOOKED": str(file)}) as worker:
        shop.wait_for(*shop.add(enqueue(hooked.computes)))
        family = worker.children()
        worker.send(signal.SIGKILL)
        worker.wait()
        wait_until(lambda: not any(process.is_running() for process in family))
    assert Counter(line for lines in said(file).values() for line in lines)["stop"] == 0


def test_a_start_hook_that_fails_ends_the_command_with_its_name(shop: Shop) -> None:
    """With one line, and an exit code by which a supervisor knows that the worker cannot work."""
    done = run_command("work", f"--app={APP}", url=shop.url, env={"FAILS": "1"})
    assert done.returncode == 2
    assert "on_worker_start: start failed: OSError: no model" in done.stderr

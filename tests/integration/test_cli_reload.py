"""`sa-jobqueue work --reload`: real files change under a real process."""

from __future__ import annotations

import re
import signal
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Engine

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.cli.supervise import watched_folders
from tests.support.cli import invoke
from tests.support.commands import Command, alive, start_command
from tests.support.waiting import wait_until
from tests.support.working import add_one, job_of

SHOP = """
import time
from pathlib import Path
from sa_jobqueue import task
from shop import prices

@task(record=True, name="version")
def version(gate: str | None = None) -> str:
    if gate is not None:
        Path(f"{gate}-waits").touch()
        while not Path(gate).exists():
            time.sleep(0.01)
    return prices.VERSION
"""


class Editor:
    """Saves the application's files as many editors do: beside the old one, then over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "shop").mkdir()
        self.save("shop/__init__.py", "")
        self.save("shop/tasks.py", SHOP)
        self.version("1")

    def save(self, name: str, text: str) -> None:
        draft = self.folder / f"{name}~"
        draft.write_text(text)
        draft.replace(self.folder / name)

    def version(self, version: str) -> None:
        self.save("shop/prices.py", f"VERSION = {version!r}\n")


def run(engine: Engine) -> object:
    """The result of a job that does not wait."""
    job = ended(engine, add_one(engine, Job(task="version")))
    return job.result


def ended(engine: Engine, id: int) -> Job:
    """The job when it has completed, at its first attempt."""
    job = wait_until(lambda: (found := job_of(engine, id)).status == JobStatus.COMPLETED and found)
    assert (job.attempt, job.rescues, job.errors) == (1, 0, []), job
    return job


def held(engine: Engine, folder: Path, gate: str) -> int:
    """A job that runs until the gate is there."""
    id = add_one(engine, Job(task="version", args={"gate": gate}))
    wait_until((folder / f"{gate}-waits").exists)
    return id


def running(command: Command, *, tried_out: bool) -> list[psutil.Process]:
    """The worker processes below the command, or those that try out a change."""
    found = []
    for one in command.children():
        with suppress(psutil.Error):  # it has ended since
            line = one.cmdline()
            if "--supervised" in line and ("--tried-out" in line) == tried_out:
                found.append(one)
    return found


@pytest.mark.usefixtures("measured")
def test_a_saved_file_restarts_the_worker_and_nothing_is_lost(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    """The running job finishes; a file that does not import, or never ends to, changes nothing; Ctrl-C, also during a restart, ends all once."""
    editor = Editor(tmp_path)
    with start_command("work", "--app=shop.tasks", "--reload", url=database_url, cwd=tmp_path) as work:
        assert run(engine) == "1"

        first = held(engine, tmp_path, "first")
        editor.version("2")
        work.wait_for("shop/prices.py changed: restarting")
        (tmp_path / "first").touch()
        assert ended(engine, first).result == "1"
        assert run(engine) == "2"

        before = running(work, tried_out=False)
        editor.save("shop/prices.py", "VERSION =\n")
        work.wait_for("shop/prices.py changed and cannot be used; the workers go on as before, until the next change")
        assert run(engine) == "2"
        assert running(work, tried_out=False) == before
        for name in ("notes.txt", ".hidden.py"):
            editor.save(name, "changed = True\n")

        editor.save("shop/prices.py", "while True: pass\n")
        (hangs,) = wait_until(lambda: running(work, tried_out=True))
        second = held(engine, tmp_path, "second")
        editor.version("3")
        wait_until(lambda: work.output.count("changed: restarting") == 2)
        assert not alive(hangs)
        work.send_group(signal.SIGINT)  # as a terminal does
        work.wait_for("SIGINT: the workers finish what is running")
        (tmp_path / "second").touch()
        assert work.wait() == 0
        assert ended(engine, second).result == "2"
        place = f"{tmp_path}/shop/prices.py, line 1"
        assert readable(work.output) == [
            f"INFO restarting when a Python file in {tmp_path} changes",
            "INFO serving default=10 in schema sa_jobqueue of ...",
            "INFO worker process 1 started (pid ...)",
            "INFO shop/prices.py changed: restarting",
            f"error: --app shop.tasks: importing it failed: SyntaxError: invalid syntax ({place}; --debug shows the traceback)",
            "WARNING shop/prices.py changed and cannot be used; the workers go on as before, until the next change",
            "INFO shop/prices.py changed: restarting",
            "INFO SIGINT: the workers finish what is running, for at most 30 s",
            "INFO worker process 1 (pid ...) ended with exit code 0",
        ]


def readable(output: str) -> list[str]:
    """The lines that the terminal shows, without what differs from run to run."""
    plain = re.sub(r"^\d\d:\d\d:\d\d (\w+) +", r"\1 ", output, flags=re.MULTILINE)
    return re.sub(r"(pid) \d+|( of )[^\n]*", lambda found: f"{found[1] or found[2].rstrip()} ...", plain).splitlines()


def test_what_reload_needs_is_said(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line: the extra that is missing, the option that does not go with it, a folder that cannot be watched."""
    monkeypatch.chdir(tmp_path)

    def refused(*options: str) -> str:
        result = invoke("work", "--app=shop", "--reload", *options, url=database_url)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
        return result.stderr

    assert "--drain ends when no job is due, and --reload does not end" in refused("--drain")
    monkeypatch.setattr("sa_jobqueue.cli.supervise.watched_folders", lambda names: [tmp_path / "gone"])
    assert f"--reload: {tmp_path / 'gone'} cannot be watched: " in refused()
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    assert 'needs watchfiles: install it with `python -m pip install "sa_jobqueue[reload]"`' in refused()


def test_the_folders_where_the_application_is_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory if it is there, or nowhere yet; else its package, or the folder of its single module."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here / "src" / "near", elsewhere / "far" / "deep"):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("raise AssertionError('nothing is imported')\n")
    (elsewhere / "single.py").touch()
    monkeypatch.chdir(here)
    for folder in (elsewhere, here / "src"):
        monkeypatch.syspath_prepend(folder)

    assert watched_folders(["near.tasks"]) == [here]
    assert watched_folders(["far.deep:worker"]) == [elsewhere / "far"]
    assert watched_folders(["far", "single"]) == [elsewhere]
    assert watched_folders(["near", "far.deep"]) == [elsewhere / "far", here]
    assert watched_folders(["no_such", "not/a.module"]) == watched_folders([]) == [here]

"""Commands as real processes: run to their end, or started in a group of their own and killed.

result = run_command("stats", "--json", url=database_url)
with start_command("work", "--app", "tests.support.apps", url=database_url) as worker:
    worker.wait_for("claiming")
    worker.kill_group()
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import sa_jobqueue
from tests.support import pooler
from tests.support.waiting import PATIENCE, wait_until
from tests.support.warm import PROGRAM, Forked, can_fork

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(next(iter(sa_jobqueue.__path__))).resolve().parent
CLI = (sys.executable, "-c", PROGRAM)


def environment(url: str | None = None, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for a command: none of the caller's settings, `tests` and the package importable."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("SA_JOBQUEUE_", "DATABASE_URL", "PG"))
    }
    kept |= {"PYTHONPATH": os.pathsep.join([str(PACKAGE), str(ROOT)]), "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    kept |= {"NO_COLOR": "1", "TERM": "dumb"}
    if url is not None:
        kept |= {"SA_JOBQUEUE_DATABASE_URL": url, **pooler.command_environment(url)}
    return kept | dict(extra or {})


def run_command(
    *arguments: str,
    url: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 120,
    command: Sequence[str] = CLI,
) -> subprocess.CompletedProcess[str]:
    """Run `sa-jobqueue ARGUMENTS` to its end; the caller looks at `returncode`, `stdout` and `stderr`."""
    if command is CLI and can_fork(env):
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            forked = Forked(arguments, env=environment(url, env), cwd=cwd or ROOT, stdout=out, stderr=err)
            try:
                code = forked.wait(timeout)
            finally:
                forked.kill()
            out.seek(0), err.seek(0)
            return subprocess.CompletedProcess(forked.args, code, out.read(), err.read())
    return subprocess.run(
        [*command, *arguments],
        env=environment(url, env),
        cwd=cwd or ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@dataclass
class Command:
    """A running command, leader of its own process group; `output` holds what it and its children have written."""

    process: subprocess.Popen[bytes] | Forked
    log: Path
    group_was_killed: bool = False
    """From then on its number may be another process's: a server's backend leads a group, too."""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str, timeout: float = PATIENCE) -> None:
        """Wait until the command has written `text`; fail at once when it ends without."""

        def written() -> bool:
            ended = self.process.poll() is not None
            if text in self.output:
                return True
            if ended:
                raise RuntimeError(f"ended with {self.process.returncode} before it wrote {text!r}:\n{self.output}")
            return False

        wait_until(written, timeout, f"{text!r} in the output of {self.process.args!r}")

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for the command's end and return its exit code (negative: the signal that ended it)."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s:\n{self.output}") from None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the command itself."""
        self.process.send_signal(number)

    def send_group(self, number: signal.Signals) -> None:
        """Send a signal to the command and all its children, as a terminal does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """End the command with SIGKILL and wait; its children, if any, go on."""
        self.process.kill()
        self.process.wait()

    def kill_group(self) -> None:
        """End the command and its whole group with SIGKILL, and wait."""
        if not self.group_was_killed:
            self.send_group(signal.SIGKILL)
            self.process.wait()
            self.group_was_killed = True

    def children(self) -> list[psutil.Process]:
        """Return the processes below the command; none if it has ended."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []


def alive(process: psutil.Process) -> bool:
    """Whether it runs: it is neither gone nor a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it went between the two looks
        return False


@contextmanager
def start_command(
    *arguments: str,
    url: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    command: Sequence[str] = CLI,
) -> Generator[Command]:
    """Start `sa-jobqueue ARGUMENTS`; whatever is left of its group is killed at the end of the block."""
    with tempfile.NamedTemporaryFile(prefix="command-", suffix=".log") as log:
        there: dict[str, Any] = {"env": environment(url, env), "cwd": cwd or ROOT, "stdout": log}
        process: subprocess.Popen[bytes] | Forked
        if command is CLI and can_fork(env):
            process = Forked(arguments, stderr=log, session=True, **there)
        else:
            process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **there,
            )
        started = Command(process, Path(log.name))
        try:
            yield started
        finally:
            started.kill_group()


def in_terminal(*arguments: str, url: str, columns: int) -> str:
    """What a command shows in a terminal of this width, without styles; it must fit into the terminal's buffer."""
    screen, terminal = pty.openpty()
    env = environment(url, {"TERM": "xterm", "COLUMNS": str(columns), "NO_COLOR": "1"})
    subprocess.run([*CLI, *arguments], stdin=terminal, stdout=terminal, stderr=subprocess.DEVNULL, env=env, check=True)
    shown = re.sub(r"\x1b\[\d*m", "", os.read(screen, 65_536).decode())
    os.close(screen)
    os.close(terminal)
    assert all(len(line) <= columns for line in shown.splitlines())
    return shown

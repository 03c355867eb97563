"""A terminal for a test: a shell in tmux, of a size that the test chooses, whose screen it can read.

with terminal(folder, url, columns=80, rows=24) as shell:
    shell.type("sa-jobqueue top", "Enter")
    shell.wait_for(" due · ")
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.support.commands import CLI, ROOT, environment
from tests.support.waiting import PATIENCE, wait_until

PROGRAM = shutil.which("tmux")


@dataclass
class Shell:
    """A shell in a terminal; `sa-jobqueue` is a function of it."""

    socket: Path
    folder: Path

    def tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(PROGRAM), "-S", str(self.socket), *arguments], capture_output=True, text=True, check=True, timeout=30
        )
        return done.stdout

    def type(self, *keys: str) -> None:
        """Press keys, by the names that tmux has for them; a text of several letters is typed."""
        for key in keys:
            self.tmux("send-keys", "-t", "shell", key)

    @property
    def lines(self) -> list[str]:
        """The screen."""
        return self.tmux("capture-pane", "-p", "-t", "shell").split("\n")[:-1]

    @property
    def screen(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, *texts: str) -> list[str]:
        """Wait until all of these texts are on the screen at once, and return its lines."""

        def look() -> list[str]:
            lines = self.lines
            shown = "\n".join(lines)
            assert all(text in shown for text in texts), f"{texts} is not on the screen:\n{shown}"
            return lines

        return wait_until(look)

    def wait_until(self, condition: Callable[[list[str]], Any]) -> Any:
        """Wait until this is true of the lines of the screen."""

        def look() -> Any:
            lines = self.lines
            found = condition(lines)
            assert found, "the screen does not show it:\n" + "\n".join(lines)
            return found

        return wait_until(look)

    def run(self, command: str) -> str:
        """Run a command of the shell to its end; what it has written."""
        out, done = self.folder / "out", self.folder / "done"
        done.unlink(missing_ok=True)
        self.type(f"{{ {command}; }} > {shlex.quote(str(out))} 2>&1; touch {shlex.quote(str(done))}", "Enter")
        wait_until(done.exists, PATIENCE, f"the end of {command!r}")
        return out.read_text()

    @property
    def process(self) -> psutil.Process:
        """The command that runs in the foreground."""
        shell = psutil.Process(int(self.tmux("display-message", "-p", "-t", "shell", "#{pane_pid}")))
        (found,) = shell.children()
        return found

    @property
    def is_plain(self) -> bool:
        """Whether the usual screen is shown, with a cursor, and not the one that a program has for itself."""
        said = self.tmux("display-message", "-p", "-t", "shell", "#{alternate_on} #{cursor_flag}")
        return said.split() == ["0", "1"]


@contextmanager
def terminal(folder: Path, url: str, *, columns: int, rows: int) -> Iterator[Shell]:
    """A shell in a terminal of this size; it ends with the block, and what runs in it is told so by SIGHUP."""
    start = folder / "start"
    start.write_text(f"PS1='$ '\nsa-jobqueue() {{ {shlex.join(CLI)} \"$@\"; }}\n")
    shell = Shell(folder / "tmux", folder)
    given = {
        name: value for name, value in environment(url).items() if name not in {"COLUMNS", "LINES", "TERM", "TMUX"}
    }
    size = ["-x", str(columns), "-y", str(rows)]
    subprocess.run(
        [str(PROGRAM), "-S", str(shell.socket), "-f", "/dev/null", "new-session", "-d", "-s", "shell", *size, "bash", "--noprofile", "--rcfile", str(start)],
        env=given, cwd=ROOT, check=True, timeout=30,
    )  # fmt: skip
    try:
        shell.wait_for("$")
        yield shell
    finally:
        shell.tmux("kill-server")

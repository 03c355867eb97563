"""The demo's worker processes: `sa-jobqueue work`, each killed, stopped and replaced from here.

They are started one by one, and not with `--processes`, because the demo kills one of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

import sqlalchemy as sa

from sa_jobqueue.errors import JobQueueError

__all__ = ["WorkerEnded", "Workers"]

#: After a request to stop, how long a worker may take.
_GRACE = 10.0


class WorkerEnded(JobQueueError):
    """A worker process ended that the demo had not stopped."""


@dataclass(eq=False)
class Workers:
    """Processes that run `command`, told of the database by the environment: other users see arguments."""

    command: list[str]
    url: sa.URL
    folder: Path
    """Where their logs go."""
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict[int, "subprocess.Popen[bytes]"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> int:
        """Start one more, and return its process number."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SA_JOBQUEUE_")}
        env = {
            **kept,
            "SA_JOBQUEUE_DATABASE_URL": self.url.render_as_string(hide_password=False),
            "PYTHONWARNINGS": "ignore",  # what the parser thinks of other people's backslashes
        }
        with open(self.folder / f"worker-{len(list(self.folder.iterdir())) + 1}.log", "wb") as log:
            # Its stdin ends with this process, however that ends, and then it drains. Ctrl-C is for this process alone.
            process = subprocess.Popen(
                self.command, env=env, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        self.processes[process.pid] = process
        return process.pid

    def kill(self, pid: int) -> None:
        """End one with SIGKILL: it can do nothing about it."""
        process = self.processes.pop(pid)
        process.kill()
        process.communicate()

    def check(self) -> None:
        """Raise WorkerEnded, with the end of its log, for one that has ended by itself."""
        for pid, process in self.processes.items():
            if (code := process.poll()) is not None:
                raise WorkerEnded(f"worker process {pid} ended with exit code {code}: {self.last_words()}")

    def last_words(self) -> str:
        """The last line of each log."""
        logs = [file.read_text(errors="replace").strip() for file in sorted(self.folder.iterdir())]
        return "; ".join(log.splitlines()[-1] for log in logs if log) or "their logs are empty"

    def stop(self) -> None:
        """Ask all to finish and leave; kill what does not."""
        for process in self.processes.values():
            process.terminate()
        until = monotonic() + _GRACE
        for process in self.processes.values():
            try:
                process.wait(max(until - monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.kill()
            process.communicate()
        self.processes.clear()


def work_command(*, queue: str, slots: int, schema: str, lease: float) -> list[str]:
    """What a user would type, with this Python; `--supervised` makes it drain when its stdin ends."""
    return [
        sys.executable, "-m", "sa_jobqueue", "work", "--supervised", "--app=sa_jobqueue.demo.tasks",
        f"--queue={queue}={slots}", f"--schema={schema}", f"--lease={lease:g}",
    ]  # fmt: skip

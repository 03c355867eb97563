"""Commands as forks of a process that has imported them: the import takes most of the processor time of a short command.

process = Forked(["list", "--json"], env=environment(url), cwd=ROOT, stdout=out, stderr=err)
process.wait()

A fork is a real process with its own id and streams, and ends as any other. What only a new interpreter shows needs `subprocess`: what
an import loads, and what a variable like PYTHONPATH does.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

PROGRAM = "import sys; from sa_jobqueue.cli import main; sys.argv[0] = 'sa-jobqueue'; sys.exit(main())"
_SERVER = f"from tests.support.warm import serve; serve(); {PROGRAM}"
_IMPORTED = ("sa_jobqueue.cli.tree", "sa_jobqueue.cli.work", "sa_jobqueue.cli.jobs", "sa_jobqueue.worker.worker")
_LENGTH = 8
_OF_AN_INTERPRETER = ("PYTHON", "COVERAGE", "LC_", "LANG", "LD_")

_lock = threading.Lock()
_servers: dict[int, tuple[socket.socket, subprocess.Popen[bytes]]] = {}
"""By the process that has started it, which keeps it until its own end."""


class Forked:
    """A command, with as much of `subprocess.Popen` as the tests need."""

    def __init__(
        self, arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdout: IO[Any], stderr: IO[Any], session: bool = False
    ) -> None:  # fmt: skip
        self.args = [sys.executable, "-c", PROGRAM, *arguments]
        self.returncode: int | None = None
        self._status, told = os.pipe()
        what = {"arguments": list(arguments), "env": dict(env), "cwd": str(cwd), "session": session}
        body = json.dumps(what).encode()
        with open(os.devnull, "rb") as stdin, _lock:
            channel = _server()
            streams = [stdin.fileno(), stdout.fileno(), stderr.fileno(), told]
            socket.send_fds(channel, [len(body).to_bytes(_LENGTH, "big")], streams)
            channel.sendall(body)
        os.close(told)
        self.pid = self._told()

    def poll(self) -> int | None:
        return self._end(0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if (code := self._end(timeout)) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _end(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = self._told()
            os.close(self._status)
        return self.returncode

    def _told(self) -> int:
        """A number of the process that waits for the command."""
        return int.from_bytes(os.read(self._status, _LENGTH), "big", signed=True)


def can_fork(extra: Mapping[str, str] | None) -> bool:
    """Whether a fork is what a new interpreter with these variables is."""
    return sys.platform == "linux" and not any(name.startswith(_OF_AN_INTERPRETER) for name in extra or ())


def _server() -> socket.socket:
    if (mine := os.getpid()) not in _servers:
        channel, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen([sys.executable, "-c", _SERVER], stdin=theirs, cwd=Path(__file__).parents[2])
        _servers[mine] = channel, process
    return _servers[mine][0]


def serve() -> None:
    """Fork for each request until the tests end. It returns in each fork, which is to run the command."""
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=os.dup(0)) as channel:
        while True:
            head, streams, _, _ = socket.recv_fds(channel, _LENGTH, 4)
            if not head:
                os._exit(0)
            body = channel.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
            if os.fork() == 0:
                break
            for stream in streams:
                os.close(stream)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    what, told = json.loads(body), streams.pop()
    if (pid := os.fork()) != 0:
        _wait(pid, told)
    os.close(told)
    _become(what, streams)


def _wait(pid: int, told: int) -> None:
    os.write(told, pid.to_bytes(_LENGTH, "big"))
    _, status = os.waitpid(pid, 0)
    os.write(told, os.waitstatus_to_exitcode(status).to_bytes(_LENGTH, "big", signed=True))
    os._exit(0)


def _become(what: dict[str, Any], streams: Sequence[int]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if what["session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for name in list(os.environ):
        if name not in what["env"]:
            del os.environ[name]
    os.environ.update(what["env"])
    time.tzset()
    os.chdir(what["cwd"])
    sys.argv = ["-c", *what["arguments"]]
    sys.stdin = open(0, encoding=sys.stdin.encoding)  # noqa: SIM115
    sys.stdout, sys.stderr = (
        open(number, "w", encoding=old.encoding, errors=old.errors, buffering=1)  # noqa: SIM115
        for number, old in ((1, sys.stdout), (2, sys.stderr))
    )
    gc.unfreeze()

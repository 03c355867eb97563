"""The race: every contestant drains its own full queue, one after the other, round after round.

The clock starts when the first handler runs, and stops when the broker knows of the last completion. The start of the
interpreter does not count. All handlers do the same: they add one to their job's byte in shared memory, which shows that
each job has run exactly once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.peers.environments import RUNNERS
from tests.benchmarks.peers.runners.common import Board, Peer, Way
from tests.benchmarks.peers.servers import Postgres, Redis
from tests.support.commands import ROOT

#: Seconds without a finished job after which a drain is stuck.
STUCK = 60.0
#: How often the driver looks at the board; at its end, how often it asks the broker.
LOOK = 0.005


@dataclass(frozen=True)
class Runner:
    """A peer that is installed: how to start it, and what it says of itself."""

    name: str
    python: str
    peer: Peer
    versions: dict[str, str]

    @classmethod
    def described(cls, name: str, python: str) -> Runner:
        said = json.loads(_run(python, "describe", name))
        versions = said.pop("versions")
        ways = {key: Way(**way) for key, way in said.pop("ways").items()}
        return cls(name, python, Peer(**said | {"ways": ways}), versions)


@dataclass
class Contestant:
    """One row of the result: a way to run a peer, and the number of its worker processes."""

    runner: Runner
    way: str
    processes: int
    jobs: int
    rates: list[float] = field(default_factory=list)
    """Jobs per second of each drain."""
    wal: list[float] = field(default_factory=list)
    """Bytes of write-ahead log per job, for each drain; 0 for a broker without such a log."""
    enqueued: list[float] = field(default_factory=list)
    """Jobs per second of each enqueueing in bulk."""


class Stuck(RuntimeError):
    """A drain did not come to its end, or came to a wrong one."""


def drain(contestant: Contestant, broker: Postgres | Redis) -> None:
    """One full queue, drained; the rates are added to the contestant's."""
    runner, way, jobs = contestant.runner, contestant.way, contestant.jobs
    broker.empty()
    seconds = json.loads(_run(runner.python, "fill", runner.name, way, str(jobs), server=broker.url))["seconds"]
    broker.settle()
    before = broker.wal()
    with _board(jobs) as (path, board), _workers(contestant, broker.url, path) as workers:
        started, ended = _watch(board, lambda: broker.count(runner.peer.unfinished), workers)
        contestant.wal.append((broker.wal() - before) / jobs)
    _check(contestant, board.bytes[:], broker)
    contestant.enqueued.append(jobs / seconds)
    contestant.rates.append(jobs / (ended - started))


def _watch(board: Board, unfinished: Callable[[], int], workers: Workers) -> tuple[float, float]:
    """When the first handler ran, and when the last completion was known to the broker."""
    _wait(lambda: board.bytes.find(b"\1") >= 0, workers, "no job was started", every=0.001)
    started = looked = moved = time.monotonic()
    left = -1
    while board.bytes.find(b"\0") >= 0:
        workers.check()
        time.sleep(LOOK)
        now = time.monotonic()
        if now - looked > 1:
            looked, before, left = now, left, board.bytes[:].count(b"\0")
            moved = now if left != before else moved
            if now - moved > STUCK:
                raise Stuck(f"no job was started for {STUCK:g} s, {left} are left\n{workers.said()}")
    _wait(lambda: unfinished() == 0, workers, "the broker still has jobs", every=LOOK)
    return started, time.monotonic()


def _wait(done: Callable[[], bool], workers: Workers, problem: str, *, every: float) -> None:
    until = time.monotonic() + STUCK
    while not done():
        workers.check()
        if time.monotonic() > until:
            raise Stuck(f"{problem} after {STUCK:g} s\n{workers.said()}")
        time.sleep(every)


def _check(contestant: Contestant, marks: bytes, broker: Postgres | Redis) -> None:
    """Check, after the workers have ended, that each job ran exactly once and that the peer has recorded it."""
    name, peer = contestant.runner.peer.name, contestant.runner.peer
    if once := contestant.jobs - marks.count(b"\1"):
        raise Stuck(f"{name}: {once} of {contestant.jobs} jobs did not run exactly once")
    if left := broker.count(peer.unfinished):
        raise Stuck(f"{name}: {left} jobs are unfinished again")
    if peer.finished is not None and (known := broker.count(peer.finished)) != contestant.jobs:
        raise Stuck(f"{name}: {known} of {contestant.jobs} jobs are on record as finished")


@dataclass
class Workers:
    """The worker processes of one drain."""

    processes: list[subprocess.Popen[str]]
    log: Path

    def check(self) -> None:
        """Raise if one of them is gone."""
        for process in self.processes:
            if (code := process.poll()) is not None:
                raise Stuck(f"a worker ended with {code}\n{self.said()}")

    def said(self) -> str:
        return self.log.read_text()[-4_000:]


@contextmanager
def _board(jobs: int) -> Iterator[tuple[Path, Board]]:
    """A board of zeros, in memory where the system has a folder for that."""
    memory = Path("/dev/shm")
    with tempfile.NamedTemporaryFile(prefix="peers-board-", dir=memory if memory.is_dir() else None) as file:
        file.write(bytes(jobs))
        file.flush()
        yield Path(file.name), Board(Path(file.name))


@contextmanager
def _workers(contestant: Contestant, server: str, board: Path) -> Iterator[Workers]:
    """Start the worker processes, let them all begin at once when all have imported their things, and end them."""
    runner = contestant.runner
    command = [runner.python, str(RUNNERS), "work", runner.name, contestant.way]
    with tempfile.NamedTemporaryFile("w", prefix="peers-log-") as log:
        workers = Workers([], Path(log.name))
        try:
            for _ in range(contestant.processes):
                process = subprocess.Popen(
                    command,
                    env=_environment(runner.python, server, board),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
                workers.processes.append(process)
            for process in workers.processes:
                assert process.stdout is not None
                if process.stdout.readline() != "ready\n":
                    raise Stuck(f"{runner.peer.name} cannot begin\n{workers.said()}")
            for process in workers.processes:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            yield workers
        finally:
            _end(workers.processes)


def _end(processes: Iterable[subprocess.Popen[str]]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            process.terminate()
    for process in processes:
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _run(python: str, *arguments: str, server: str = "") -> str:
    """Run a command of a runner and return its answer."""
    command = [python, str(RUNNERS), *arguments]
    ran = subprocess.run(command, env=_environment(python, server), capture_output=True, text=True, check=False)
    if ran.returncode:
        raise Stuck(f"{' '.join(arguments)} failed\n{ran.stderr[-4_000:]}")
    return ran.stdout.strip().splitlines()[-1]


def _environment(python: str, server: str, board: Path | None = None) -> dict[str, str]:
    """Of a runner. A peer sees what its own environment has and no more; ours may be a working copy."""
    inherited = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    ours = {"PYTHONPATH": str(ROOT)} if python == sys.executable else {}
    return inherited | ours | {"PEERS_SERVER": server, "PEERS_BOARD": str(board or "")}

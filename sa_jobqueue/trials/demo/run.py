"""The demo: prepare, enqueue, work, kill a worker, wait for the rescue, judge.

The job tables and the tables of the demo live in a schema of their own, `sa_jobqueue_demo`, which is created again by
every run: nothing of yours is touched, in any database.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Self

import sqlalchemy as sa
from rich.console import Console
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateSchema

from ... import Job, JobStatus
from ...errors import ConfigurationError, JobQueueError
from ...migrations import upgrade_database
from ...rules.words import jobs_of
from ...sql.readings.depths import list_workers
from .. import drop_scratch, only_one, scratch_engine
from .report import (
    Check,
    Role,
    Screen,
    collect,
    count_plainly,
    disagreements,
    judge,
    show_failures,
    show_figures,
    show_proof,
    show_verdict,
)
from .tasks import Base, Module, add_file, add_file_async

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

    def __exit__(self, *error: object) -> None:
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
        """End a worker with SIGKILL, which it cannot handle."""
        process = self.processes.pop(pid)
        process.kill()
        process.communicate()

    def check(self) -> None:
        """Raise WorkerEnded, with the end of its log, for a worker that has ended by itself."""
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
        sys.executable, "-m", "sa_jobqueue", "work", "--supervised", "--app=sa_jobqueue.trials.demo.tasks",
        f"--queue={queue}={slots}", f"--schema={schema}", f"--lease={lease:g}",
    ]  # fmt: skip


SCHEMA = "sa_jobqueue_demo"
BROKEN = Path(__file__).with_name("broken.py.txt")
"""A file that does not parse, so that a failure is seen wherever the demo runs."""

#: The jobs that a worker process runs at a time. Parsing needs the processor, so few are enough.
_SLOTS = 4
#: Seconds; the default of 60 would be a long wait for the rescue.
_LEASE = 3.0
#: Seconds without any progress after which something must be wrong.
_STALLED = 60.0
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "node_modules", "__pycache__"})


@dataclass(frozen=True, slots=True)
class Plan:
    """What to index, and how."""

    root: Path
    processes: int = 2
    use_async: bool = False
    must_rescue: bool = False
    """It is a failure that no worker was killed with jobs in hand: in a small folder there may be too little to do."""


@dataclass(frozen=True, slots=True)
class Look:
    """The progress, by one statement about the jobs."""

    finished: int
    failed: int
    running: int
    rescues: int


@dataclass(frozen=True, slots=True)
class Kill:
    """A worker that was killed, and the jobs that it held then."""

    worker: str
    jobs: frozenset[int]
    at: float


def standard_library() -> Path:
    """The folder of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def source_files(root: Path) -> list[str]:
    """The `.py` files below `root` in a fixed order, without hidden folders and installed packages.

    Names that are not valid Unicode are left out, because the database cannot hold them; so are pipes, which have no end.
    """
    return sorted(_walk(root))


def _walk(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT and not name.startswith(".")]
        for name in files:
            path = str(Path(folder, name))
            if name.endswith(".py") and _is_unicode(path) and not Path(path).is_fifo():
                yield path


def _is_unicode(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def run_demo(url: sa.URL, plan: Plan, console: Console) -> bool:
    """Run it, show it on `console`, and return whether the proof holds. Raises JobQueueError where it cannot run."""
    root = plan.root.resolve()
    if not root.is_dir():
        raise ConfigurationError(f"--path {plan.root}: there is no such folder")
    paths = [str(BROKEN), *source_files(root)]
    if len(paths) == 1:
        raise ConfigurationError(f"--path {plan.root}: there are no .py files in it")
    engine = scratch_engine(url, SCHEMA)
    try:
        with only_one("demo", url, SCHEMA):
            _prepare(engine)
            return _run(engine, plan, root, paths, console)
    finally:
        engine.dispose()


def _run(engine: sa.Engine, plan: Plan, root: Path, paths: list[str], console: Console) -> bool:
    handlers = "async def" if plan.use_async else "def"
    console.print(f"\n  Indexing {len(paths):,} Python files of {root}", highlight=False, markup=False)
    console.print(f"  with {plan.processes} worker processes and {handlers} handlers\n", highlight=False, style="dim")
    with Screen(console) as screen:
        with tempfile.TemporaryDirectory(prefix="sa_jobqueue_demo-") as logs:
            command = work_command(queue="index", slots=_SLOTS, schema=SCHEMA, lease=_LEASE)
            with Workers(command, engine.url, Path(logs)) as workers:
                performance = _Performance(engine, plan, paths, workers, screen)
                performance.play()
                workers_seen = performance.cast()
        with Session(engine) as session:
            found = collect(session)
        done = iter(range(1, len(paths) + 1))
        plain = count_plainly(paths, lambda: screen.move("checked", next(done), len(paths)))
    rescues = rescue_checks(performance.kill, found.rescued, needed=plan.must_rescue)
    checks = [*judge(found, plain), *rescues]
    wrong = disagreements(found, plain)
    show_figures(console, found, workers_seen)
    show_failures(console, found.failures(), root)
    show_proof(console, checks, wrong)
    proved = not wrong and all(check.holds for check in checks)
    show_verdict(console, proved=proved, rescued=bool(rescues))
    return proved


def rescue_checks(kill: Kill | None, rescued: frozenset[int], *, needed: bool) -> list[Check]:
    """Whether what the killed worker held was rescued; nothing where none was killed at work, unless that is `needed`."""
    if kill is not None and kill.jobs:
        return [Check("rescued jobs of the killed worker", len(kill.jobs & rescued), len(kill.jobs))]
    return [Check("workers killed at work", 0, 1)] if needed else []


# ---- the database


def _prepare(engine: sa.Engine) -> None:
    """Create the schema again, without what an earlier run has left in it."""
    with engine.begin() as connection:
        drop_scratch(connection, SCHEMA)
        connection.execute(CreateSchema(SCHEMA))
    upgrade_database(engine, schema=SCHEMA)
    Base.metadata.create_all(engine)


@contextmanager
def _producer(engine: sa.Engine, use_async: bool) -> Generator[Callable[[str], None]]:
    """A function that adds one file in a transaction of its own, by a Session or by an AsyncSession."""
    if not use_async:

        def add(path: str) -> None:
            with Session(engine) as session, session.begin():
                add_file(session, path)

        yield add
        return
    async_engine = create_async_engine(engine.url, execution_options=engine.get_execution_options())

    async def add_async(path: str) -> None:
        async with AsyncSession(async_engine) as session, session.begin():
            await add_file_async(session, path)

    with asyncio.Runner() as runner:
        yield lambda path: runner.run(add_async(path))
        runner.run(async_engine.dispose())


# ---- the performance


class _Performance:
    """Enqueues jobs, watches them, and kills a worker in the middle."""

    def __init__(self, engine: sa.Engine, plan: Plan, paths: Sequence[str], workers: Workers, screen: Screen) -> None:
        self._engine, self._plan, self._paths = engine, plan, paths
        self._workers, self._screen = workers, screen
        self._enqueued = 0
        # The last quarter is enqueued when the kill is under way: so there is work then, be the code base ever so small.
        self._before_kill = len(paths) - max(len(paths) // 4, 1)
        self._roles: dict[int, str] = {}
        self.kill: Kill | None = None
        self._killing = False
        self._rescue_seen = False

    def play(self) -> None:
        """Return when all jobs are at their end."""
        for _ in range(self._plan.processes):
            self._roles[self._workers.start()] = ""
        with _producer(self._engine, self._plan.use_async) as add, _looking(self._engine) as connection:
            before, changed_at = None, monotonic()
            while True:
                self._enqueue(add, self._before_kill)
                look = self._watch(connection)
                if look.finished == len(self._paths):
                    return
                if not self._killing and look.finished >= len(self._paths) // 2:
                    self._killing = True
                    self._before_kill = len(self._paths)
                    self._kill_one(add, look)
                if before != (look, self._enqueued):
                    before, changed_at = (look, self._enqueued), monotonic()
                elif monotonic() - changed_at > _STALLED:
                    raise JobQueueError(f"nothing has happened for {_STALLED:g} s; {self._workers.last_words()}")
                if self._enqueued == self._before_kill:
                    time.sleep(0.05)

    def cast(self) -> list[Role]:
        """The workers, in the order of their start."""
        with Session(self._engine) as session:
            rows = session.execute(list_workers())
            return [Role(str(row.id), row.pid, self._roles.get(row.pid, "")) for row in rows]

    def _enqueue(self, add: Callable[[str], None], limit: int) -> None:
        """Add files, each in a transaction of its own, for a tenth of a second."""
        until = monotonic() + 0.1
        while self._enqueued < limit and monotonic() < until:
            add(self._paths[self._enqueued])
            self._enqueued += 1

    def _watch(self, connection: sa.Connection) -> Look:
        self._workers.check()
        look = _look(connection)
        self._screen.move("enqueued", self._enqueued, len(self._paths))
        note = f"{look.running} running, {look.failed} failed, {look.rescues} rescued"
        self._screen.move("done", look.finished, len(self._paths), note)
        if self.kill is not None and not self._rescue_seen and not (_held(connection).get(self.kill.worker)):
            self._rescue_seen = True
            self._screen.say(
                f"{jobs_of(len(self.kill.jobs))} rescued, {monotonic() - self.kill.at:.1f} s after the kill", "green"
            )
        return look

    def _kill_one(self, add: Callable[[str], None], look: Look) -> None:
        """Kill a worker while it is at work, and start another in its place.

        A lock keeps handlers from writing their results for a moment, so the worker is certainly at work.
        """
        with self._engine.connect() as lock, lock.begin():
            lock.execute(sa.text(f"LOCK TABLE {SCHEMA}.{Module.__tablename__} IN SHARE MODE"))
            with _looking(self._engine) as connection:
                if (busy := self._find_busy(add, connection)) is None:
                    self._screen.say("no worker was killed: there was too little to do", "yellow")
                    return
                worker, pid = busy
                self._workers.kill(pid)
                time.sleep(0.2)  # for what was under way to the server
                self.kill = Kill(worker, frozenset(_held(connection).get(worker, ())), monotonic())
        new = self._workers.start()
        self._roles[pid], self._roles[new] = f"killed with {len(self.kill.jobs)} in hand", "started in its place"
        self._screen.say(
            f"worker {pid} is killed with SIGKILL, {jobs_of(len(self.kill.jobs))} in hand; worker {new} takes its place",
            "red",
        )

    def _find_busy(self, add: Callable[[str], None], connection: sa.Connection) -> tuple[str, int] | None:
        """The worker with most unfinished jobs, and its process; None if there is none."""
        before: dict[str, set[int]] = {}
        until = monotonic() + 10.0
        while monotonic() < until:
            self._enqueue(add, len(self._paths))
            held = _held(connection)
            pids = {str(row.id): row.pid for row in connection.execute(list_workers())}
            # A worker that has just started may have claimed before its row is written.
            waiting = {worker: len(jobs & before.get(worker, set())) for worker, jobs in held.items() if worker in pids}
            if waiting and max(waiting.values()):
                worker = max(waiting, key=lambda worker: waiting[worker])
                return worker, pids[worker]
            if self._watch(connection).finished == len(self._paths):
                return None
            before = held
            time.sleep(0.1)
        return None


@contextmanager
def _looking(engine: sa.Engine) -> Generator[sa.Connection]:
    """A connection whose every statement sees what is there now."""
    with engine.connect() as connection:
        yield connection.execution_options(isolation_level="AUTOCOMMIT")


def _look(connection: sa.Connection) -> Look:
    row = connection.execute(
        sa.select(
            sa.func.count().filter(Job.is_finished),
            sa.func.count().filter(Job.status == JobStatus.FAILED),
            sa.func.count().filter(Job.status == JobStatus.RUNNING),
            sa.func.coalesce(sa.func.sum(Job.rescues), 0),
        )
    ).one()
    return Look(*row)


def _held(connection: sa.Connection) -> dict[str, set[int]]:
    """The running jobs by worker."""
    held: dict[str, set[int]] = {}
    for worker, job in connection.execute(
        sa.select(Job.worker, Job.id).where(Job.status == JobStatus.RUNNING)
    ).tuples():
        held.setdefault(worker or "", set()).add(job)
    return held

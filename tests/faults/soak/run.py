"""One soak, from an empty server to the verdicts.

    result = Soak(Plan(minutes=30)).run()
    result["verdicts"], result["samples"]

There are worker processes under a supervisor, as users start them; a producer; and an operator, who looks at the failed jobs
and deletes the old ones (else they would stay for 30 days, and the table would grow all that time).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
import time
from array import array
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Self

import psutil
import psycopg
from sqlalchemy import BigInteger, create_engine, func, select

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.migrations import upgrade_database
from sa_jobqueue.statements import prune_jobs
from tests.benchmarks.peers.results import machine
from tests.faults.server import Guard, Server
from tests.faults.soak import tasks
from tests.faults.soak.ledger import miscounts
from tests.faults.soak.producer import Producer, enqueue_some
from tests.faults.soak.verdicts import OLDEST_DUE, Sample, Seen, Verdict, judge
from tests.support.commands import start_command
from tests.support.waiting import wait_until

DATABASE = "shop"
LOAD = 2 / 3
"""The share of the capacity that is enqueued."""

#: As the embedded server has them: what is committed is on the disk.
_SETTINGS = {
    "fsync": "on", "full_page_writes": "on", "shared_buffers": "128MB", "max_wal_size": "2GB", "max_connections": "400"
}  # fmt: skip
_SHOWN = ("shared_buffers", "synchronous_commit", "fsync", "autovacuum_naptime")
_LOOK = 1.0
"""Seconds between two looks at the oldest job."""
_TOP_UP = 0.25
"""The share of the backlog that is enqueued between two looks at what is left of it, while the capacity is measured."""

_DUE = """
    SELECT queue, priority, count(*), extract(epoch FROM max(now() - run_at))::float8
    FROM sa_jobqueue.job WHERE status = 'queued' AND run_at <= now()
    GROUP BY queue, priority ORDER BY 4 DESC
"""
_RUNNING = """
    SELECT count(*), coalesce(extract(epoch FROM max(now() - claimed_at)), 0)::float8
    FROM sa_jobqueue.job WHERE status = 'running'
"""
_LIVE = """
    SELECT (SELECT count(*) FROM sa_jobqueue.job WHERE status = 'queued')
         + (SELECT count(*) FROM sa_jobqueue.job WHERE status = 'running')
"""
_SIZES = """
    SELECT pg_relation_size(c.oid), pg_total_relation_size(c.reltoastrelid), pg_indexes_size(c.oid),
           s.n_live_tup, s.n_dead_tup
    FROM pg_class c JOIN pg_stat_user_tables s ON s.relid = c.oid WHERE c.oid = 'sa_jobqueue.job'::regclass
"""
_ARCHIVE = """
    SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0) FROM pg_inherits WHERE inhparent = 'sa_jobqueue.archived_job'::regclass
"""
_ARCHIVED = "SELECT count(*), count(DISTINCT id), (SELECT count(*) FROM sa_jobqueue.job JOIN sa_jobqueue.archived_job USING (id)) FROM sa_jobqueue.archived_job"
_SNAPSHOT = """
    SELECT coalesce(extract(epoch FROM max(clock_timestamp() - xact_start)), 0)::float8
    FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND backend_type = 'client backend'
"""
_ROWS = """
    SELECT n_tup_ins, n_tup_ins - n_tup_del, (SELECT count(*) FROM sa_jobqueue.job),
           (SELECT count(*) FROM sa_jobqueue.job WHERE rescues > 0)
    FROM pg_stat_user_tables WHERE relid = 'sa_jobqueue.job'::regclass
"""


@dataclass(frozen=True)
class Plan:
    """How long, how much, and with what. Times are in seconds, where the name does not say otherwise."""

    minutes: float = 30.0
    processes: int = 2
    seed: int = 1
    every: float = 60.0
    """Between two samples."""
    measured: float = 75.0
    """How long the capacity is measured, after a warm-up."""
    warm_up: float = 150.0
    """Longer than `retain`: in the end as many jobs are deleted as are enqueued, as they are under the load."""
    backlog: int = 4_000
    """Due jobs that wait all the time meanwhile."""
    retain: float = 120.0
    pace: float = 1.0
    """All times of the handlers are multiplied by it."""
    archive: bool = False
    """Whether finished jobs are moved to the archive, instead of being deleted."""


@dataclass(frozen=True)
class Due:
    """Jobs that are due and not claimed, in one queue with one priority."""

    queue: str
    priority: int
    jobs: int
    oldest: float

    def __str__(self) -> str:
        return f"{self.queue}, priority {self.priority}: {self.jobs} ({self.oldest:.1f} s)"


class Soak:
    """The server, the workers, the producer and the operator. `say` gets each line that is to be read."""

    def __init__(self, plan: Plan, *, say: Callable[[str], None] = lambda line: print(line, flush=True)) -> None:
        self.plan, self._say = plan, say
        # In /tmp itself, and open to the user who runs the server for root.
        self.folder = Path(tempfile.mkdtemp(prefix="sajq_soak-", dir="/tmp"))
        self.folder.chmod(0o755)
        self._stack = ExitStack()
        self._failed: array[int] = array("Q")
        self._miscounts: list[str] = []
        self._complaints: list[str] = []
        self._notes: list[str] = []
        self._read = 0
        self._usual = 0.0
        """What `effort` says of this machine while the capacity is measured."""
        self._next = 0
        """The number of the next job to be."""

    def run(self) -> dict[str, Any]:
        """Run all parts in order. Returns what was seen, as JSON has it."""
        plan = self.plan
        with self:
            capacity = self._measure_capacity()
            rate = capacity * LOAD
            self._say(f"capacity {capacity:,.0f} jobs/s; enqueueing {rate:,.0f} jobs/s for {plan.minutes:g} minutes")
            samples = self._load(rate)
            self._say("draining")
            self._drain()
            seen = Seen(samples, rate, tasks.LONGEST * plan.pace, self._count(), self._complaints)
            settings = {name: self._ask(f"SHOW {name}")[0] for name in _SHOWN}
            version = str(self._ask("SHOW server_version")[0])
        verdicts = judge(seen)
        return {
            "date": datetime.now(UTC).date().isoformat(),
            "plan": asdict(plan),
            "machine": machine(),
            "event_loop": "uvloop" if find_spec("uvloop") else "asyncio",
            "postgresql": version,
            "settings": settings,
            "capacity": capacity,
            "rate": rate,
            "jobs": self._next,
            "samples": [asdict(sample) for sample in samples],
            "notes": self._notes[:100],
            "miscounts": seen.miscounts[:100],
            "complaints": seen.complaints[:100],
            "verdicts": [asdict(verdict) for verdict in verdicts],
        }

    # ---- what there is

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        self._guard = Guard()
        self._stack.callback(self._guard.close)
        server = Server.make(self.folder / "server", self._guard, _SETTINGS)
        self._stack.callback(server.remove)
        server.start()
        server.execute(f"CREATE DATABASE {DATABASE}")
        self.url = server.url(DATABASE)
        upgrade_database(self.url, schema="sa_jobqueue")
        tasks.prepare(self.url)
        self._engine = create_engine(self.url)
        self._stack.callback(self._engine.dispose)
        self._monitor: psycopg.Connection = self._stack.enter_context(server.connect(DATABASE))
        # The looks must cost little, whatever the planner knows of the table.
        self._monitor.execute("SET enable_seqscan = off")
        self._supervisor = self._stack.enter_context(
            start_command(
                "work", "--app=tests.faults.soak.tasks:registry", f"--processes={self.plan.processes}",
                *(f"--queue={name}={slots}" for name, slots in tasks.QUEUES.items()), "--log-format=json",
                url=self.url, env={
                    tasks.FOLDER: str(self.folder), tasks.RETAIN: str(self.plan.retain),
                    tasks.ARCHIVE: "yes" if self.plan.archive else "no",
                },
            )
        )  # fmt: skip
        self._guard.watch(self._supervisor.pid)
        self._stack.callback(self._end_workers)
        enrolled = "SELECT count(*) FROM sa_jobqueue.worker"
        wait_until(lambda: self._ask(enrolled) == (self.plan.processes,), 60, "the workers")

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _workers(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            return psutil.Process(self._supervisor.pid).children()
        return []

    def _end_workers(self) -> None:
        # Each worker is in a session of its own, out of reach of a signal to the supervisor's group.
        left = self._workers()
        with suppress(ProcessLookupError):
            self._supervisor.kill()
        for worker in left:
            with suppress(psutil.Error):
                worker.kill()
        psutil.wait_procs(left, 10)

    def _ask(self, statement: str) -> tuple[Any, ...]:
        row = self._monitor.execute(statement).fetchone()  # type: ignore[call-overload]
        assert row is not None
        return tuple(row)

    # ---- the three parts of the run

    def _measure_capacity(self) -> float:
        """Jobs that come to their end per second when there are always more; each is the mix's next one, and due.

        They are enqueued as the load is, and deleted as it is: the machine does both besides.
        """
        mix = tasks.Mix(self.plan.seed, pace=self.plan.pace, at_once=True)
        chance, efforts = random.Random(self.plan.seed), list[float]()

        def ended_after(seconds: float) -> int:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                efforts.append(effort())
                if sum(slot.jobs for slot in self._due()) >= self.plan.backlog:
                    time.sleep(0.05)
                    continue
                enough = self._next + int(self.plan.backlog * _TOP_UP)
                while self._next < enough:
                    self._next += enqueue_some(self._engine, mix, self._next, enough - self._next, chance)
            return self._ended()

        before = ended_after(self.plan.warm_up)
        begun = time.monotonic()
        after = ended_after(self.plan.measured)
        rate = (after - before) / (time.monotonic() - begun)
        self._usual = median(efforts)
        wait_until(lambda: self._ask(_LIVE) == (0,), 120, "the end of the backlog")
        return rate

    def _ended(self) -> int:
        """How many of the jobs so far have come to an end, and that is durable."""
        (live,) = self._ask(_LIVE)
        return self._next - int(live)

    def _load(self, rate: float) -> list[Sample]:
        """Enqueue at this rate, look every second, and keep a sample every minute."""
        plan, first, samples = self.plan, self._next, list[Sample]()
        mix = tasks.Mix(plan.seed, pace=plan.pace)
        with Producer(self.url, mix, first=first, rate=rate, seed=plan.seed) as producer:
            self._guard.watch(producer.process.pid or 0)
            wait_until(lambda: producer.committed > first)
            begun = time.monotonic()
            self._say(HEAD)
            end, looks = plan.minutes * 60, 0
            most_due, oldest_due, oldest_running, efforts, flushes = 0, 0.0, 0.0, list[float](), list[float]()
            while (passed := time.monotonic() - begun) < end:
                time.sleep(max(min((looks + 1) * _LOOK, end) - passed, 0.0))
                looks += 1
                due = self._due()
                most_due = max(most_due, sum(slot.jobs for slot in due))
                oldest_due = max([oldest_due, *(slot.oldest for slot in due)])
                if any(slot.oldest > OLDEST_DUE for slot in due):
                    self._note(f"at {time.monotonic() - begun:.0f} s due for too long: {'; '.join(map(str, due))}")
                oldest_running = max(oldest_running, self._ask(_RUNNING)[1])
                efforts.append(effort())
                flushes.append(flush(self.folder / "flushed"))
                self._next = producer.committed
                at = time.monotonic() - begun
                if at >= (len(samples) + 1) * plan.every - _LOOK / 2:
                    self._operate()
                    speeds = {"slowness": median(efforts) / self._usual, "flush": max(flushes)}
                    samples.append(self._sample(at, first, most_due, oldest_due, oldest_running, **speeds))
                    most_due, oldest_due, oldest_running, efforts, flushes = 0, 0.0, 0.0, [], []
                    self._say(line(samples[-1]))
        self._guard.forget(producer.process.pid or 0)
        self._next = producer.committed
        return samples

    def _sample(
        self, at: float, first: int, most_due: int, oldest_due: float, oldest_running: float, **speeds: float
    ) -> Sample:
        heap, toast, indexes, rows, dead = self._ask(_SIZES)
        self._heed_log()
        return Sample(
            at=at,
            enqueued=self._next - first,
            finished=self._ended() - first,
            most_due=most_due,
            oldest_due=oldest_due,
            oldest_running=oldest_running,
            rows=rows,
            heap=heap,
            toast=toast,
            indexes=indexes,
            dead=dead,
            oldest_snapshot=self._ask(_SNAPSHOT)[0],
            **speeds,
            memory={worker.pid: worker.memory_info().rss for worker in self._workers()},
            complaints=len(self._complaints),
            archive=int(self._ask(_ARCHIVE)[0]),
        )

    def _due(self) -> list[Due]:
        """What is due just now; the oldest first."""
        return [Due(*row) for row in self._monitor.execute(_DUE)]

    def _note(self, note: str) -> None:
        self._notes.append(note)
        self._say(note)

    def _drain(self) -> None:
        """Let everything come to its end, also what is due in a minute, and let the workers leave."""
        with suppress(AssertionError):
            wait_until(lambda: self._ask(_LIVE) == (0,), tasks.LATEST + 60)
        (live,) = self._ask(_LIVE)
        if live:
            self._miscounts.append(f"{live} jobs came to no end")
        self._operate(everything=True)
        self._supervisor.send(signal.SIGTERM)
        code = self._supervisor.wait(60)
        self._heed_log()
        if code != 0:
            self._complaints.append(f"the supervisor ended with {code}")

    # ---- the operator, the log and the books

    def _operate(self, *, everything: bool = False) -> None:
        """Look at the jobs that are failed for long enough, note which they are, and delete them."""
        old = timedelta(0) if everything else timedelta(seconds=self.plan.retain)
        which = (Job.status == JobStatus.FAILED, Job.finished_at <= func.now() - old)
        with self._engine.begin() as connection:
            number = Job.args["number"].as_string().cast(BigInteger)
            found = connection.execute(select(Job.id, number, Job.attempt).where(*which)).all()
            if not found:
                return
            deleted = connection.scalars(prune_jobs(Job.id.in_([row.id for row in found]), limit=len(found))).all()
        if len(deleted) != len(found):
            self._miscounts.append(f"of {len(found)} failed jobs only {len(deleted)} could be deleted")
        self._failed.extend(row[1] for row in found)
        self._miscounts += [
            f"job {row[1]} failed in attempt {row.attempt}" for row in found if row.attempt != tasks.DOOMED_ATTEMPTS
        ]

    def _heed_log(self) -> None:
        """Read what the workers have written since the last time; what is not a failure on purpose is a complaint."""
        with open(self._supervisor.log, "rb") as log:
            log.seek(self._read)
            came = log.read()
        whole = came[: came.rfind(b"\n") + 1]
        self._read += len(whole)
        self._complaints += [text for text in whole.decode(errors="replace").splitlines() if is_complaint(text)]

    def _count(self) -> list[str]:
        """What does not agree about all jobs there ever were, those of the capacity too."""
        mix = tasks.Mix(self.plan.seed)
        effects = (int(row[0]) for row in self._monitor.execute("SELECT number FROM soak.effect"))
        found = miscounts(mix, self._next, runs=tasks.read_runs(self.folder), effects=effects, failed=self._failed)
        inserted, kept, there, rescued = self._ask(_ROWS)
        # Completed rows were deleted by the workers as time went by: the statistics remember how many.
        if inserted != self._next:
            found.append(f"{inserted} rows were inserted for {self._next} jobs")
        if kept != there:
            found.append(f"{there} rows are there, and {kept} were not deleted")
        if rescued:
            found.append(f"{rescued} jobs were rescued")
        archived, different, twice = self._ask(_ARCHIVED)
        # What an operator has deleted is not archived; what the workers have taken away is.
        moved = inserted - there - len(self._failed) if self.plan.archive else 0
        if not archived == different == moved or twice:
            found.append(
                f"{archived} jobs are archived, {different} different ones, of {moved}; {twice} of them are not moved"
            )
        return [*self._miscounts, *found]


def effort() -> float:
    """Seconds of the processor that a fixed computation takes just now; about a thousandth."""
    begun = time.thread_time()
    sum(number * number for number in range(20_000))
    return time.thread_time() - begun


def flush(path: Path) -> float:
    """Seconds until a page that is written to `path` is on the disk, as a commit waits for one."""
    begun = time.monotonic()
    with path.open("wb") as file:
        file.write(bytes(8192))
        file.flush()
        os.fsync(file.fileno())
    return time.monotonic() - begun


def is_complaint(text: str) -> bool:
    """Whether a line of a worker's log should not be there."""
    try:
        said = json.loads(text)
    except json.JSONDecodeError:
        return True
    message = str(said["message"])
    if " failed in attempt " in message and f": RuntimeError: {tasks.ON_PURPOSE} (" in message:
        return False
    return said["level"] not in {"debug", "info"} or "came too late" in message


# ---- for people

HEAD = (
    "   time   enqueued   finished most due oldest due/running   table (toast)       indexes       rows       dead"
    "  snapshot slowness     flush  workers' memory     complaints"
)


def line(sample: Sample) -> str:
    """A sample in one line, below `HEAD`."""
    minutes, seconds = divmod(round(sample.at), 60)
    memory = " ".join(f"{size / 2**20:.1f}" for size in sample.memory.values())
    return (
        f"{minutes:4}:{seconds:02} {sample.enqueued:10,} {sample.finished:10,} {sample.most_due:8,} "
        f"{sample.oldest_due:8.2f} s {sample.oldest_running:6.2f} s "
        f"{sample.table / 2**20:8.1f} ({sample.toast / 2**20:.1f}) MiB {sample.indexes / 2**20:7.1f} MiB "
        f"{sample.rows:10,} {sample.dead:10,} {sample.oldest_snapshot:7.2f} s {sample.slowness:6.2f} x {sample.flush:7.3f} s  "
        f"{memory} MiB {sample.complaints:5}"
    )


def table(verdicts: list[Verdict]) -> str:
    """The verdicts, one under the other."""
    width = max(len(verdict.promise) for verdict in verdicts)
    return "\n".join(
        f"{'kept  ' if verdict.kept else 'BROKEN'}  {verdict.promise:{width}}  {verdict.seen}" for verdict in verdicts
    )

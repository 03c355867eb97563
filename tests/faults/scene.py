"""The scene of the faults: a server, a proxy before it, three workers under a supervisor, and a producer that never stops.

    with Scene(seed=1) as scene:
        seen = scene.suffer("worker killed", kill_a_worker)
        assert seen.findings == []

Workers reach the server through `proxy`, whose network can be bad; the producer goes through `door`, which is never at
fault, and follows a failover.
"""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import psutil
import psycopg

from sa_jobqueue.migrations import upgrade_database
from tests.faults import workload
from tests.faults.auditor import Finding, audit
from tests.faults.evidence import Evidence, collect
from tests.faults.producer import SHARE, Producer
from tests.faults.proxy import Proxy
from tests.faults.server import Guard, Server
from tests.faults.workload import Fate
from tests.support.commands import Command, start_command
from tests.support.folders import make_server_folder
from tests.support.waiting import wait_until

LEASE = 2.0
"""Seconds: short, so that what has to wait for a lease is quick."""
PROCESSES, SLOTS = 3, 4
RATE = 25.0
"""Jobs enqueued per second: well below what the workers can do, so that a backlog is worked off."""
DATABASE = "shop"

_FINISHED = "('completed', 'failed', 'cancelled')"
_WINDOW = 0.5
"""The throughput is back when half of the usual number of jobs has ended within this number of seconds."""


@dataclass(frozen=True)
class Resumed:
    """A worker process that was there when all was over."""

    pid: int
    after: float | None
    """Seconds from the fault's end until it claimed jobs for the second time; None: it did not."""
    new: bool
    """It was started after the fault had begun."""


@dataclass(frozen=True)
class Observed:
    """What was seen of one fault. Times are in seconds."""

    fault: str
    lasted: float
    committed: int
    """Jobs that were queued or running when the fault began, or whose enqueueing committed from then until all was well."""
    finished: int
    """How many of them came to a final state."""
    back: float | None
    """From the fault's end until jobs that were claimed since then ended at least half as fast as usual; None: they did not."""
    ticking: float | None
    """From the fault's end until no tick of a schedule was late by more than a second; None: some were."""
    gap: float
    """The longest time in which no job ended."""
    rescued: int
    """Jobs that were rescued from a worker."""
    rescued_in: float | None
    """From the fault's end until the last of these whose worker had died was back in the queue."""
    overdue: float
    """The longest time from the end of a job's lease until it was rescued."""
    duplicates: int
    """Effects outside the database, of any job, that happened once more than they had to since the fault began."""
    memory: int
    """The most bytes that a worker process had resident."""
    workers: list[Resumed]
    """What became of each worker."""
    findings: list[str]
    """What the auditor found, over all jobs so far, and had not found before this fault."""

    @property
    def recovered(self) -> float:
        """The share of the jobs that came to a final state."""
        return self.finished / self.committed if self.committed else 1.0


class Scene:
    """All that a fault can happen to. `seed`: of everything that is random here. `pg`: the server's version."""

    def __init__(self, *, seed: int, rate: float = RATE, pg: int | None = None) -> None:
        self.seed, self.random, self._pg = seed, random.Random(seed), pg
        self.rate = rate
        self.folder = make_server_folder("sajq_faults-")
        self.words = self.folder / "words"
        self.words.mkdir()
        self.forgotten: list[tuple[float, float]] = []
        self._stack = ExitStack()
        self._supervisors = 0
        self._commands: list[Command] = []
        self._memory = 0
        self._found: set[str] = set()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self.producer = Producer("", rate=rate, seed=seed)

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        self.guard = Guard()
        self._stack.callback(self.guard.close)
        self.server = Server.make(self.folder / "first", self.guard, pg=self._pg)
        self._stack.callback(lambda: self.server.remove())  # noqa: PLW0108  # by then it may be another
        self.server.start()
        self.server.execute(f"CREATE DATABASE {DATABASE}")
        upgrade_database(self.server.url(DATABASE), schema="sa_jobqueue")
        workload.prepare(self.server.url(DATABASE))
        workload.add_schedules(self.server.url(DATABASE))
        self.proxy = self._stack.enter_context(Proxy(self.server.port))
        self.door = self._stack.enter_context(Proxy(self.server.port))
        self.start_supervisor()
        self._stack.callback(self._end_workers)
        watcher = threading.Thread(target=self._watch_memory, name="memory", daemon=True)
        watcher.start()
        self._stack.callback(watcher.join)
        self._stack.callback(self._ended.set)
        self.producer.url = self.server.url(DATABASE, port=self.door.port)
        self._stack.enter_context(self.producer)

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- workers

    def start_supervisor(self) -> None:
        """Start (again) what keeps the workers alive, as a service manager would."""
        self._supervisors += 1
        self.supervisor = self.start_worker(f"--processes={PROCESSES}")

    def start_worker(self, *options: str, env: dict[str, str] | None = None) -> Command:
        """Start `sa-jobqueue work` on this scene's workload."""
        command = start_command(
            "work", "--app=tests.faults.workload:registry", f"--queue=default={SLOTS}", f"--lease={LEASE}", "--poll=0.2",
            "--grace=5", f"--max-rescues={workload.MAX_RESCUES}", *options,
            url=self.server.url(DATABASE, port=self.proxy.port), env={workload.FOLDER: str(self.words), **(env or {})},
        )  # fmt: skip
        started = self._stack.enter_context(command)
        self.guard.watch(started.pid)
        self._commands.append(started)
        return started

    def workers(self) -> list[psutil.Process]:
        """The worker processes that are alive now."""
        with suppress(psutil.Error):
            return [child for child in psutil.Process(self.supervisor.pid).children() if child.is_running()]
        return []

    def whole(self) -> bool:
        """Whether all workers are there."""
        return len(self.workers()) == PROCESSES

    def claimants(self, since: float) -> dict[int, float]:
        """The worker processes, by pid, that have claimed since then, and when; none if the server is away.

        When they did for the second time: one claim may have been on its way when its worker was stopped.
        """
        claims = f"WHERE now = 'running' AND at > to_timestamp({since!r}) GROUP BY worker, xid"
        statement = f"""
            SELECT pid, extract(epoch FROM (array_agg(at ORDER BY at))[2])::float8
            FROM (SELECT worker, min(at) AS at FROM audit.history {claims}) claim
            JOIN sa_jobqueue.worker ON worker.id::text = claim.worker GROUP BY pid HAVING count(*) > 1
        """
        with suppress(psycopg.Error):
            return {int(str(pid)): float(str(at)) for pid, at in self.ask(statement)}
        return {}

    def all_claim(self, since: float) -> bool:
        """Whether all workers are there, and each has claimed twice since then."""
        return self.whole() and {worker.pid for worker in self.workers()} <= self.claimants(since).keys()

    def a_worker(self) -> psutil.Process:
        """One of them, at random, that has something to do just now."""
        busy = "SELECT DISTINCT worker.pid FROM sa_jobqueue.worker JOIN sa_jobqueue.job ON job.worker = worker.id::text"

        def look() -> list[psutil.Process]:
            pids = {pid for (pid,) in self.ask(f"{busy} WHERE job.status = 'running'")}
            return [worker for worker in self.workers() if worker.pid in pids]

        return self.random.choice(wait_until(look))

    def worker_of(self, port: int) -> psutil.Process:
        """The worker that speaks from this port."""
        for worker in self.workers():
            if any(link.laddr.port == port for link in worker.net_connections(kind="tcp4")):
                return worker
        raise LookupError(port)

    def _end_workers(self) -> None:
        left = self.workers()
        with suppress(ProcessLookupError):
            self.supervisor.kill()
        for worker in left:
            with suppress(psutil.Error):
                worker.kill()
        psutil.wait_procs(left, 10)

    def _watch_memory(self) -> None:
        while not self._ended.wait(0.5):
            for worker in self.workers():
                with suppress(psutil.Error):
                    self._memory = max(self._memory, worker.memory_info().rss)

    # ---- the database

    def ask(self, statement: str) -> list[tuple[object, ...]]:
        """Rows of the application's database, past the proxy."""
        return self.server.execute(statement, database=DATABASE)

    def ended_lately(self, seconds: float = 1.0) -> int:
        """How many jobs ended in the last seconds; 0 too if the server is not there."""
        lately = f"at > clock_timestamp() - interval '{seconds} s'"
        try:
            ended = f"was IS NOT NULL AND now IN {_FINISHED}"  # not duplicates, which no worker ends
            ((number,),) = self.ask(f"SELECT count(*) FROM audit.history WHERE {ended} AND {lately}")
        except psycopg.Error:
            return 0
        return int(str(number))

    @property
    def version(self) -> str:
        """The server's version."""
        ((version,),) = self.ask("SHOW server_version")
        return str(version)

    @property
    def usual(self) -> float:
        """Jobs that end per second when all is well."""
        duplicates = SHARE / 2  # an estimate
        return self.rate * (1 - self.producer.rolled_back) * (1 - duplicates) + workload.TICKS

    def calm(self) -> None:
        """Wait until all workers are there, each has claimed, and jobs end as fast as usual."""
        wait_until(
            lambda: self.all_claim(0.0) and self.ended_lately() > self.usual / 2, timeout=90, message="a calm scene"
        )

    def live(self, keys: Collection[str]) -> set[str]:
        """Those of these keys whose jobs have not ended; and all of a workflow that goes on, with what it is still to call back."""
        # One snapshot: what a workflow calls back comes with its end.
        live = f"SELECT audit.key(job) FROM sa_jobqueue.job WHERE status NOT IN {_FINISHED}"
        flows = "SELECT meta->>'key' FROM sa_jobqueue.workflow WHERE finished_at IS NULL"
        found = {str(key) for (key,) in self.ask(f"{live} UNION ALL {flows}")}
        plans = self.producer.plans.copy()
        return {*found, *(key for one in found & plans.keys() for key in plans[one].keys)} & set(keys)

    def ticks(self) -> set[str]:
        """The keys of the jobs of schedules, so far."""
        return {
            str(key) for (key,) in self.ask("SELECT audit.key(job) FROM sa_jobqueue.job WHERE schedule_id IS NOT NULL")
        }

    def late(self) -> list[str]:
        """The schedules of which a tick is to be enqueued for more than a second; all, if the server is away."""
        late = "next_at IS NULL OR (waiting_since IS NULL AND next_at < clock_timestamp() - interval '1 s')"
        with suppress(psycopg.Error):
            return [
                str(name) for (name,) in self.ask(f"SELECT name FROM sa_jobqueue.schedule WHERE {late} ORDER BY id")
            ]
        return list(workload.SCHEDULES)

    def settled(self, keys: Collection[str]) -> bool:
        """Whether the jobs with these keys have all ended."""
        return not self.live(keys)

    # ---- faults

    def suffer(self, name: str, act: Callable[[], float | None], *, patience: float = 60.0) -> Observed:
        """Let a fault happen, from its beginning to its end, wait for what comes after it, and audit.

        `act` returns when the fault ended (`time.time()`), if that was not just now.
        """
        self.calm()
        before = self.ticks() | set(self.producer.fates.copy())
        met = self.live(before)
        there = {worker.pid for worker in self.workers()}
        self._memory = 0
        begun = time.time()
        over = act() or time.time()
        ticking: float | None = None

        def well() -> bool:
            nonlocal ticking
            if ticking is None and not self.late():
                ticking = time.time() - over
            # A second at least, to have seen something.
            busy = time.time() > over + 1 and self.ended_lately() > self.usual / 2
            return busy and self.all_claim(over) and ticking is not None

        with suppress(AssertionError):
            wait_until(well, patience)
        claimed = self.claimants(over)
        workers = [
            Resumed(pid, claimed[pid] - over if pid in claimed else None, new=pid not in there)
            for pid in sorted(worker.pid for worker in self.workers())
        ]
        after = self.ticks() | set(self.producer.fates.copy())
        hit = met | (after - before)
        with suppress(AssertionError):
            wait_until(lambda: self.settled(hit), timeout=patience)
        seen = self._observe(name, begun, over, hit=hit, known=after, workers=workers)
        return replace(seen, ticking=ticking)

    def fail_over(self, standby: Server) -> None:
        """From now on all clients talk to this server; the one before is gone without a word."""
        self.proxy.target = self.door.target = standby.port
        self.server.remove()
        self.server = standby

    def finish(self) -> list[str]:
        """End the producer, let the workers end everything and leave, and audit all that was ever done."""
        self.producer.stop()
        self.ask("UPDATE sa_jobqueue.schedule SET paused_at = now() RETURNING id")
        keys = {*self.ticks(), *self.producer.fates.copy()}
        with suppress(AssertionError):
            wait_until(lambda: self.settled(keys), timeout=60)
        self.supervisor.send(signal.SIGTERM)
        self.supervisor.wait()
        return [f"{finding.rule}: {finding.about}" for finding in audit(self.evidence())]

    def evidence(self) -> Evidence:
        """All that is there for the auditor."""
        fates = self.producer.fates.copy()
        plans = [plan for plan in self.producer.plans.copy().values() if not fates.keys().isdisjoint(plan.jobs)]
        return collect(
            self.server.url(DATABASE), self.words, fates, forgotten=self.forgotten, plans=plans, mended=self._mended()
        )

    def _mended(self) -> list[str]:
        """What workers have said of ends of members that had not been told."""
        lines = (line for command in self._commands for line in command.output.splitlines())
        return [line for line in lines if "had ended without saying so" in line]

    def _observe(
        self, name: str, begun: float, over: float, *, hit: set[str], known: set[str], workers: list[Resumed]
    ) -> Observed:
        """`hit`: the keys that the fault could do something to; `known`: these, and all whose jobs had ended before."""
        everything = self.evidence()
        given = everything.of(known)
        committed = {
            key for key in hit if given.fates.get(key) is Fate.COMMITTED
        }  # of a tick that was lost there is none
        steps = [step for step in everything.steps if step.at >= begun]
        ends = sorted(step.at for step in everything.ends.values() if step.was is not None and step.at >= begun)
        rescues = [
            step for step in steps if (step.rescues or 0) > (step.rescues_was or 0) and step.error != "Interrupted"
        ]
        alive = self._ids({worker.pid for worker in workers})
        buried = [step.at for step in rescues if step.worker not in alive]
        return Observed(
            fault=name,
            lasted=over - begun,
            committed=len(committed),
            finished=len(given.ends.keys() & committed),
            back=_back(everything.ends_of_claims(since=over), over, max(int(self.usual * _WINDOW / 2), 2)),
            ticking=None,
            gap=max((later - earlier for earlier, later in pairwise([begun, *ends])), default=0.0),
            rescued=len(rescues),
            rescued_in=max(buried) - over if buried else None,
            overdue=max((step.at - step.lease_was for step in rescues if step.lease_was is not None), default=0.0),
            duplicates=everything.duplicates(since=begun),
            memory=self._memory,
            workers=workers,
            findings=self._new(audit(given)),
        )

    def _ids(self, pids: set[int]) -> set[str]:
        """The names under which these worker processes claim."""
        known = self.ask("SELECT id::text, pid FROM sa_jobqueue.worker")
        return {str(id) for id, pid in known if pid in pids}

    def _new(self, findings: Sequence[Finding]) -> list[str]:
        """Those that the auditor had not found before, as lines."""
        found = [f"{finding.rule}: {finding.about}" for finding in findings]
        new = [line for line in found if line not in self._found]
        self._found.update(found)
        return new


def _back(ends: Sequence[float], over: float, number: int) -> float | None:
    """When, counted from `over`, `number` jobs ended within the window."""
    for first, last in zip(ends, ends[number - 1 :], strict=False):
        if last - first <= _WINDOW:
            return first - over
    return None

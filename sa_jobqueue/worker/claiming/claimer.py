"""The service thread: finishes and claims, on a connection of its own.

Where all that has ended says no more than "done", one statement writes it and claims, and is its own transaction; else
several share one. Handlers run elsewhere, so a handler that blocks cannot hold this up. When the database is away,
outcomes are kept, claiming stops, and after it is back what a broken commit may have claimed is given back.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from operator import attrgetter
from time import monotonic
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ... import operations
from ...context import ClaimedJob
from ...lifecycle import Change
from ...log import get_logger
from ...models import Job
from ...operations import Answer, Fault
from ...outcomes import Outcome
from ...settings import WorkerSettings
from ..connections.deadline import CLIENT_MARGIN, Deadline
from ..connections.pool import backoff, drop_idle, hang_up
from ..connections.service import APPLICATION, Connector, service_limit
from ..process.events import AutoResetEvent
from ..process.threads import ServiceThread
from ..running.run import Runs
from ..running.slots import Slots
from ..running.writer import OutcomeWriter
from .careful import CarefulClaims, may_be_a_rows
from .drain import LostJobs
from .fetch import Fetcher
from .isolate import Suspects
from .left_out import LeftOut
from .passed_over import PassedOver
from .polling import PollTimer
from .resume import ResumePoints

__all__ = ["Claimer"]

logger = get_logger(__name__)

#: Changes written in one statement at most.
_BATCH = 1_000
#: Seconds that an outcome waits for others at most.
_GATHER = 0.005
#: Seconds that a request for wake-ups holds: at least, and at most (for so long a worker that was killed has others told
#: for nothing). It is renewed by looks that find nothing to do, so it holds for three of them.
_GATE, _LONGEST_GATE = 5.0, 60.0
#: Seconds between two attempts to reach a database that is away: soon after it is back, so are its workers.
_LONGEST_PAUSE = 2.0
#: When the database has refused so many outcomes, no more jobs are claimed until it takes some.
_MOST_REFUSED = 100
#: Seconds for which claims go apart from the others, to come to the jobs that cannot be claimed and to those behind them.
_APART = 1.0
_QUEUE = attrgetter("queue")


class Claimer:
    """Claims into `lanes` and writes what `writer` holds.

    `take_in` gets the jobs that were claimed, and when; `set_aside` those that are not run, with what comes of them.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        worker: str,
        all_slots: dict[str, Slots],
        writer: OutcomeWriter,
        take_in: Callable[[list[ClaimedJob], float], None],
        set_aside: Callable[[ClaimedJob, Outcome], None],
        runs: Runs,
        settings: WorkerSettings,
        listening: Callable[[], bool],
        idle: Callable[[], None] | None = None,
        max_jobs: int | None = None,
        most_text: int = operations.MOST_TEXT,
        job: type[Job] = Job,
    ) -> None:
        self._connector, self._worker, self._all_slots, self._writer = connector, worker, all_slots, writer
        self._take_in, self._runs, self._settings, self._listening = take_in, runs, settings, listening
        self._idle, self._max_jobs = idle, max_jobs
        self._job = job
        self._lost = LostJobs(connector, all_slots, lease=settings.lease, job=job)
        self._resume = ResumePoints()
        self._timers = {name: PollTimer() for name in all_slots}
        self._wake, self._enough = AutoResetEvent(), AutoResetEvent()
        self._batch = 1
        self._claiming, self._ending = True, False
        self._connection: Connection | None = None
        self._backend: int | None = None
        """The number of its server process, or of the last one's; None behind a pooler."""
        self._gate = min(max(_GATE, 3 * settings.poll), _LONGEST_GATE)
        self._gates: dict[str, float] = {}
        """Until when we have asked to be woken, by queue."""
        self._failures = 0
        self._began = 0.0
        """When the last claim began."""
        self._in_doubt = False
        """Whether jobs may have been claimed that nobody here knows of."""
        self._left_out = LeftOut()
        self._passed_over = PassedOver(connector, self._left_out, job)
        self._apart = False
        """Whether the next round writes and claims one after the other: a change had no answer, or it is to be seen which of
        the two has failed."""
        self._bare = False
        """Whether the next claim brings no arguments and no meta along: the last one failed, perhaps by them."""
        self.thread = ServiceThread("service", self._loop)
        self.deadline = Deadline(service_limit(settings.lease) + CLIENT_MARGIN)
        self._careful = CarefulClaims(connector, self.deadline, self._left_out, worker, settings.lease, job)
        self._suspects = Suspects(connector, runs, writer, self._left_out, settings, job)
        self._fetcher = Fetcher(
            connector, self.deadline, take_in=self._count_in, set_aside=set_aside, lease=settings.lease, most=most_text,
            leaving=lambda: not self._claiming, job=job,
        )  # fmt: skip
        self.claimed = 0
        """Jobs claimed so far, and handed over."""

    def start(self) -> None:
        """Begin."""
        self._lost.begin()
        self.thread.start()

    def wake(self) -> None:
        """There is something to write, or a slot has become free."""
        self._wake.set()

    def ended(self, slots: Slots) -> None:
        """A handler has come back: perhaps its outcome waits to be written, or jobs are wanted for its slot."""
        outcomes = len(self._writer)
        if not self._wake.is_set and (outcomes or slots.hungry):
            self._wake.set()
        if outcomes >= self._batch:
            self._enough.set()

    def look_at(self, queue: str | None) -> None:
        """New jobs are said to be in this queue; None: perhaps in any."""
        for name, timer in self._timers.items():
            if queue is None or name == queue:
                timer.notify()
        self._wake.set()

    def stop_claiming(self) -> None:
        """Claim no more; go on writing."""
        self._claiming = False
        self._wake.set()

    def finish(self, timeout: float) -> bool:
        """Write what is left and end; whether that was done within `timeout` seconds."""
        self._claiming, self._ending = False, True
        self._wake.set()
        self.thread.join(timeout)
        return not self.thread.is_alive() and not len(self._writer)

    def _loop(self) -> None:
        hurried = False
        while True:
            self._wake.clear()
            try:
                busy = self._timed_round()
                failures, self._failures = self._failures, 0
                if failures:
                    with suppress(BaseException):  # as below
                        logger.warning("the database is back")
            except BaseException as error:
                with suppress(BaseException):  # of the application's: a filter of logs
                    self._broken(error)
                busy = False
            if self._ending and not len(self._writer) and not self._in_doubt:
                break
            if self._ending and not hurried:
                hurried = True
                self._writer.hurry()
            if not busy or not len(self._writer):  # where a claim is due at once, there is no pause
                self._wake.wait(self._pause())
            self._gather()
        if self._connection is not None:
            self._connection.close()

    def _gather(self) -> None:
        """Let outcomes come together, as long as the runners have something to do: at most half of what is held."""
        if not (outcomes := len(self._writer)):
            return
        self._batch = min(len(self._runs) // 2, _BATCH // 2)
        if outcomes < self._batch and all(slots.waiting for slots in self._all_slots.values()):
            self._enough.clear()
            self._enough.wait(_GATHER)

    def _pause(self) -> float:
        if self._failures:
            return backoff(self._failures, first=0.1, most=_LONGEST_PAUSE) * random.uniform(0.8, 1.2)
        free = [name for name, slots in self._all_slots.items() if self._may_claim and slots.free() > 0]
        times = [self._timers[name].at for name in free]
        if self._left_out and (at := self._left_out.next_at(free, alone=self._suspects.none_is_held)) is not None:
            times.append(at)
        if (locked := self._writer.next_at()) is not None:
            times.append(locked)
        return max(min(times) - monotonic(), 0.0) if times else 1.0

    def _timed_round(self) -> bool:
        connection = self._connection or self._connect()
        with self.deadline.over(connection):
            return self._round(connection)

    def _round(self, connection: Connection) -> bool:
        """One transaction: write what has ended, claim for what is free. False: there was nothing to do."""
        for slots in self._all_slots.values():
            slots.measure()
        again = bool(self._left_out) and self._claim_left_out(connection)
        changes = self._writer.take(_BATCH)
        wanted = self._wanted()
        if not changes and not wanted:
            return again
        quiet = not len(self._runs)  # asked before the claim: a handler that ends during it may have enqueued
        try:
            answers, jobs = self._write_and_claim(connection, changes, wanted)
        except BaseException as error:
            if isinstance(error, DBAPIError) and operations.fault_of(error) is not Fault.AWAY and changes:
                self._in_doubt = False  # the claim was rolled back, too
                self._apart = True
                self._writer.write_apart(lambda: self._begin_apart(connection), connection, changes)
                return True
            self._writer.put_back(changes)
            if self._bare and not changes and isinstance(error, DBAPIError) and operations.is_too_much(error):
                logger.info("a claim failed (%s); it is tried again without arguments and meta", error.orig)
                self._in_doubt = False
                return True
            if wanted and not changes and may_be_a_rows(error) and self._claim_apart(connection, wanted):
                return True
            raise
        if changes:
            self._settle(changes, answers)
        if wanted:
            jobs = self._suspects.part(connection, jobs)
            self._heed(connection, wanted, jobs, quiet=quiet)
        return True

    def _settle(self, changes: list[Change], answers: dict[int, Answer]) -> None:
        """After the commit. What had no answer is asked about in the next round."""
        self._apart = len(answers) < len(changes)
        if self._apart:
            self._writer.put_back([change for change in changes if change.id not in answers])
            changes = [change for change in changes if change.id in answers]
        self._writer.settle(changes, answers)

    def _write_and_claim(
        self, connection: Connection, changes: list[Change], wanted: dict[str, int]
    ) -> tuple[dict[int, Answer], list[ClaimedJob]]:
        """In one transaction; and nearly always in one statement, which is its own transaction."""
        if not changes or (not self._apart and operations.alike(changes)):
            with self._connector.begin_one(connection):
                return self._claim(connection, wanted, changes)
        with self._connector.begin(connection):
            answers = operations.apply(connection, changes, job=self._job)
            return answers, self._claim(connection, wanted)[1] if wanted else []

    def _claim(
        self, connection: Connection, wanted: dict[str, int], changes: Sequence[Change] = ()
    ) -> tuple[dict[int, Answer], list[ClaimedJob]]:
        """Claim, and write these changes on the way."""
        self._in_doubt = self._in_doubt or bool(wanted)
        after, self._began = self._resume.begin(wanted), monotonic()
        try:
            answers, jobs = operations.exchange(
                connection,
                changes,
                worker=self._worker,
                queues=wanted,
                lease=self._settings.lease,
                after=after,
                but=self._left_out.ids() if self._left_out else (),
                inline=not self._bare,
                job=self._job,
            )
        except DBAPIError as error:
            # A row of `changes` may be to blame, too: then the next round shows which of the two it was.
            by_claim = not changes or not operations.is_data_fault(error)
            self._bare = not self._bare and by_claim and operations.is_too_much(error)
            raise
        self._bare = False
        self._resume.end(jobs, monotonic() - self._began)
        return answers, jobs

    @contextmanager
    def _begin_apart(self, connection: Connection) -> Generator[None]:
        """A transaction that has the whole time of the watch for itself."""
        with self.deadline.over(connection), self._connector.begin(connection):
            yield

    def _claim_apart(self, connection: Connection, wanted: Mapping[str, int]) -> bool:
        """A claim failed, perhaps by some of its rows, or passed over some: leave those out for a while, and claim the others.
        False: there is no room for more that are left out.
        """
        until, left = monotonic() + _APART, dict(wanted)
        while left and monotonic() < until:
            for queue, most in list(left.items()):
                self._in_doubt, began = True, monotonic()
                more, jobs = self._careful.claim(connection, queue, most)
                self._take_over(connection, jobs, began)
                left[queue] -= len(jobs)
                if not more or not left[queue]:
                    del left[queue]
            if self._left_out.full:
                return False
        return True

    def _claim_left_out(self, connection: Connection, *, at_once: bool = False) -> bool:
        """Claim those that were left out and can be claimed by now. Whether there were some."""
        if not self._may_claim:
            return False
        free = {name: slots.free() for name, slots in self._all_slots.items()}
        due = self._left_out.due(free, alone=self._suspects.none_is_held, at_once=at_once)
        if self._max_jobs is not None:
            due = dict(islice(due.items(), self._max_jobs - self.claimed))
        if not due:
            return False
        self._in_doubt, began = True, monotonic()
        jobs = self._careful.claim_again(connection, due)
        self._take_over(connection, jobs, began)
        return bool(jobs)

    def _take_over(self, connection: Connection, jobs: list[ClaimedJob], began: float) -> None:
        self._fetcher.hand_over(connection, self._suspects.part(connection, jobs), claimed_at=began)
        self._in_doubt = False

    @property
    def _may_claim(self) -> bool:
        enough = self._max_jobs is not None and self.claimed >= self._max_jobs
        return self._claiming and not enough and self._writer.refused < _MOST_REFUSED

    def _wanted(self) -> dict[str, int]:
        """How many jobs to claim from each queue now."""
        if not self._may_claim:
            return {}
        now = monotonic()
        left = self._max_jobs - self.claimed if self._max_jobs is not None else None
        wanted: dict[str, int] = {}
        # Who asks to be told when nothing is left has all queues looked at at once.
        together = self._idle is not None and any(timer.at <= now for timer in self._timers.values())
        for name, slots in self._all_slots.items():
            free = slots.free() if left is None else min(slots.free(), left - sum(wanted.values()))
            if free > 0 and (together or self._timers[name].at <= now):
                wanted[name] = free
                if (timer := self._timers[name]).notified:
                    timer.notified = False
                    self._passed_over.jobs_come()
        return wanted

    def _heed(self, connection: Connection, wanted: dict[str, int], jobs: list[ClaimedJob], *, quiet: bool) -> None:
        """After a claim: hand the jobs over, and decide when to look again."""
        if jobs:
            self._passed_over.jobs_come()
            self._fetcher.hand_over(connection, jobs, claimed_at=self._began)
        self._in_doubt = False
        got = Counter(map(_QUEUE, jobs)) if len(wanted) > 1 else dict.fromkeys(wanted, len(jobs))
        short = [name for name, asked in wanted.items() if got[name] < asked and not self._timers[name].notified]
        for name in wanted:
            if name not in short:
                self._timers[name].now()
            elif got[name]:
                self._timers[name].reset()
        if short:
            dry = quiet and not jobs and len(short) == len(self._all_slots)
            self._wait_for_more(connection, {name: wanted[name] - got[name] for name in short}, dry=dry)

    def _wait_for_more(self, connection: Connection, missing: Mapping[str, int], *, dry: bool) -> None:
        """Queues gave so many fewer than were wanted: when to look again. `dry`: and there is nothing else that goes on."""
        if not self._resume.swept:  # there may be something behind the points
            for name in missing:
                self._timers[name].not_before(self._resume.sweep_at(name))
            return
        leaves = dry and self._idle is not None
        some, again = self._passed_over.look(connection, missing, at_once=leaves)
        if again:
            self._claim_apart(connection, missing)
        if some:  # if it has come since, the next claim brings it
            for name in missing:
                self._timers[name].now()
            return
        if self._listening() and self._open_gates(connection, list(missing)):
            return  # to look once more: what was committed before we had asked told nobody
        if leaves and self._left_out and self._claim_left_out(connection, at_once=True):
            return
        if self._idle is not None and dry and not self._lost.awaited(connection):
            self._idle()
        for name in missing:
            self._timers[name].back_off(
                min(self._settings.poll, self._gate / 3) if self._listening() else self._settings.poll
            )

    def _count_in(self, jobs: list[ClaimedJob], claimed_at: float) -> None:
        self._take_in(jobs, claimed_at)
        self.claimed += len(jobs)  # afterwards: whoever sees the last of max_jobs counted may close the lanes

    def _open_gates(self, connection: Connection, short: list[str]) -> bool:
        """Ask to be woken for the queues that have run dry; whether nobody would have been told of one of them.

        Not for those that keep us busy: who enqueues there would tell for nothing, and NOTIFY takes a lock at each commit.
        """
        now = monotonic()
        if all(self._gates.get(name, 0.0) >= now + self._gate / 2 for name in short):
            return False
        dry = {*short, *(name for name, timer in self._timers.items() if timer.at > now)}
        with self._connector.begin_one(connection):
            operations.listen_for(connection, sorted(dry), seconds=self._gate, job=self._job)
        lapsed = any(self._gates.get(name, 0.0) < monotonic() for name in short)
        self._gates |= dict.fromkeys(dry, now + self._gate)
        return lapsed

    def _connect(self) -> Connection:
        connection = self._connector.connect(self.deadline)
        if self._failures or self.claimed:
            try:
                with self.deadline.over(connection):
                    self._recover(connection)
            except BaseException:
                connection.close()
                raise
        self._connection = connection
        raw: Any = connection.connection.dbapi_connection
        self._backend = None if self._connector.pooled else raw.info.backend_pid
        self._gates.clear()  # another server may answer now, which knows of none
        for timer in self._timers.values():
            timer.now()
        return connection

    def _recover(self, connection: Connection) -> None:
        """After a lost connection: a commit may have claimed jobs that we were never told of. Give them back.

        First its server process is ended. It may be busy with our last statement, which would claim after we have looked.
        """
        known = {*self._runs.claims(), *self._writer.claims()}
        if self._backend is not None:
            self._end_backend(connection, self._backend)
        released = []
        try:
            with self._connector.begin(connection):
                released = operations.release_unknown(connection, worker=self._worker, known=known, job=self._job)
        except DBAPIError as error:
            if not may_be_a_rows(error):
                raise
            logger.error(
                "what a broken commit has claimed cannot be given back; its lease will run out: %s", error.orig
            )
        self._in_doubt = False
        if released:
            logger.warning("gave back %d jobs that a broken commit had claimed", len(released))

    def _end_backend(self, connection: Connection, pid: int) -> None:
        limit = service_limit(self._settings.lease) / 2
        try:
            with self._connector.begin_one(connection):
                operations.end_backend(connection, pid, application=APPLICATION, seconds=limit)
        except DBAPIError as error:
            if operations.fault_of(error) is Fault.AWAY:
                raise
            logger.debug("the server process of a broken connection is left to itself: %s", error.orig)

    def _broken(self, error: BaseException) -> None:
        """The round failed: keep what is to be written, and begin anew on a fresh connection, after a while."""
        self._failures += 1
        broken, self._connection = self._connection, None
        if broken is not None:
            hang_up(broken)
        if self._failures == 1:
            drop_idle(self._connector.engine)
        if self._failures == 1 or self._failures % 20 == 0:
            log: Any = logger.warning if isinstance(error, DBAPIError) else logger.exception
            answers = isinstance(error, DBAPIError) and operations.fault_of(error) is not Fault.AWAY
            log(
                "the database %s (%s); %d outcomes are kept; trying again",
                "refuses what is asked of it" if answers else "does not answer",
                getattr(error, "orig", None) or error,
                len(self._writer),
            )

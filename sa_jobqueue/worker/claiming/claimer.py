"""The claimer's thread: it writes outcomes and claims jobs, on a connection of its own.

Each round takes the outcomes that wait, writes them, claims for the free slots, and hands the jobs over. While every outcome says
no more than "done", one statement writes and claims, and is its own transaction. Handlers run on other threads, so a handler that
blocks holds up no round. While the database is away, outcomes are kept and nothing is claimed; when it is back, the jobs that
a broken commit may have claimed are given back.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from operator import attrgetter
from time import monotonic

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ...context import ClaimedJob
from ...lifecycle import Change
from ...log import get_logger
from ...settings import WorkerSettings
from ...store import MOST_TEXT, Answer, ClaimRequest, alike, fault_of, is_too_much
from ..connections.deadline import CLIENT_MARGIN, Deadline
from ..connections.pool import backoff
from ..connections.service import Connector
from ..dispatch import Dispatch
from ..process.events import AutoResetEvent
from ..process.threads import ServiceThread
from ..running.run import Runs
from ..running.slots import Slots
from ..running.writer import OutcomeWriter
from .bisection import BisectingClaims
from .broken_commits import BrokenCommits
from .connection import ClaimerConnection
from .demand import Demand
from .drain import ExpiredJobs
from .fetch import Fetcher
from .gates import Gates
from .isolate import Suspects
from .overlooked import OverlookedJobs
from .recovery import Mode, after_failure
from .resume import ResumePoints
from .skipped import SkippedJobs

__all__ = ["Claimer"]

logger = get_logger(__name__)

#: Outcomes written in one statement at most.
_BATCH = 1_000
#: Seconds that an outcome waits for others at most.
_GATHER = 0.005
#: Seconds between two attempts to reach a database that is away. Workers are back soon after it is.
_LONGEST_PAUSE = 2.0
#: Seconds for which one round claims by bisection.
_BISECTING = 1.0
_QUEUE = attrgetter("queue")


class Claimer:
    """Claims for the free slots of `all_slots`, hands the jobs to `dispatch`, and writes the outcomes that `writer` holds.

    `listening()`: whether announcements of new jobs are heard. `idle()` is called when nothing is due and nothing runs.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        worker: str,
        all_slots: dict[str, Slots],
        writer: OutcomeWriter,
        dispatch: Dispatch,
        runs: Runs,
        settings: WorkerSettings,
        listening: Callable[[], bool],
        idle: Callable[[], None] | None = None,
        max_jobs: int | None = None,
        most_text: int = MOST_TEXT,
    ) -> None:
        self._connector, self._worker, self._all_slots, self._writer = connector, worker, all_slots, writer
        self._runs, self._poll, self._listening = runs, settings.poll, listening
        self._idle = idle

        # Other threads touch these:
        self.thread = ServiceThread("claimer", self._loop)
        self.deadline = Deadline(connector.limit + CLIENT_MARGIN)
        """Over the round that goes on. The watchdog reads it."""
        self._demand = Demand(all_slots, writer, max_jobs=max_jobs, together=idle is not None)
        """Its fields say who writes and reads them."""
        self._wake = AutoResetEvent()
        """Ends the pause between two rounds. Set by any thread."""
        self._enough = AutoResetEvent()
        """Ends the wait for more outcomes. Set by any thread."""
        self._batch = 1
        """How many outcomes make it worth to write. Written by the claimer's thread, read where handlers end."""
        self._ending = False
        """Whether to end when all is written. Written by the thread that stops the worker, read by the claimer's."""

        # The claimer's thread alone writes and reads the rest:
        broken_commits = BrokenCommits(connector, runs, writer, worker)
        self._connection = ClaimerConnection(connector, self.deadline, broken_commits)
        self._mode = Mode.TOGETHER
        """How the next round writes and claims."""
        self._in_doubt = False
        """Whether a commit may have claimed jobs that we do not know of."""
        self._began = 0.0
        """When the last claim began."""
        self._resume = ResumePoints()
        self._gates = Gates(connector, poll=settings.poll)
        self._expired = ExpiredJobs(connector, all_slots)
        self._skipped = SkippedJobs(len(all_slots))
        self._overlooked = OverlookedJobs(connector, self._skipped)
        self._bisecting = BisectingClaims(connector, self.deadline, self._skipped, worker)
        self._suspects = Suspects(connector, runs, writer, self._skipped, settings.max_rescues)
        self._fetcher = Fetcher(connector, self.deadline, dispatch, self._demand, most=most_text)

    # ---- for any thread

    @property
    def claimed(self) -> int:
        """Jobs claimed so far and handed over."""
        return self._demand.claimed

    def start(self) -> None:
        """Begin."""
        self._expired.begin()
        self.thread.start()

    def wake(self) -> None:
        """There is an outcome to write, or a slot has become free."""
        self._wake.set()

    def ended(self, slots: Slots) -> None:
        """A handler has ended: its outcome may wait to be written, and its slot may want jobs."""
        outcomes = len(self._writer.pending)
        if outcomes or slots.hungry:
            self._wake.set()
        if outcomes >= self._batch:
            self._enough.set()

    def notify(self, queue: str | None) -> None:
        """New jobs were announced in this queue; None: perhaps in any."""
        self._demand.notify(queue)
        self._wake.set()

    def stop_claiming(self) -> None:
        """Claim no more; go on writing."""
        self._demand.stop()
        self._wake.set()

    def finish(self, timeout: float) -> bool:
        """Write what is left and end; whether that was done within `timeout` seconds."""
        self._demand.stop()
        self._ending = True
        self._wake.set()
        self.thread.join(timeout)
        return not self.thread.is_alive() and not len(self._writer)

    # ---- the loop

    def _loop(self) -> None:
        hurried = False
        while True:
            self._wake.clear()
            try:
                busy = self._timed_round()
                if self._connection.failures:
                    with suppress(BaseException):  # as below
                        self._connection.works()
            except BaseException as error:
                self._mode = Mode.TOGETHER
                with suppress(BaseException):  # of the application's: a filter of logs
                    self._connection.give_up(error, kept=len(self._writer))
                busy = False
            if self._ending and not len(self._writer) and not self._in_doubt:
                break
            if self._ending and not hurried:
                hurried = True
                self._writer.hurry()
            if not busy or not len(self._writer):  # where a claim is due at once, there is no pause
                self._wake.wait(self._pause())
            self._gather()
        self._connection.close()

    def _gather(self) -> None:
        """Let outcomes come together while the runners have work: at most half of the jobs that are held."""
        if not (outcomes := len(self._writer)):
            return
        self._batch = min(len(self._runs) // 2, _BATCH // 2)
        if outcomes < self._batch and all(slots.waiting for slots in self._all_slots.values()):
            self._enough.clear()
            self._enough.wait(_GATHER)

    def _pause(self) -> float:
        if failures := self._connection.failures:
            return backoff(failures, first=0.1, most=_LONGEST_PAUSE) * random.uniform(0.8, 1.2)
        free = self._demand.free()
        times = [self._demand.timers[name].at for name in free]
        if self._skipped and (at := self._skipped.next_at(free, one_waiting=self._suspects.one_may_run)) is not None:
            times.append(at)
        if (locked := self._writer.next_at()) is not None:
            times.append(locked)
        return max(min(times) - monotonic(), 0.0) if times else 1.0

    # ---- a round

    def _timed_round(self) -> bool:
        connection = self._connection.current or self._connect()
        with self.deadline.over(connection):
            return self._round(connection)

    def _connect(self) -> Connection:
        connection = self._connection.make(any_claimed=self.claimed > 0)
        self._in_doubt = False
        self._gates.forget()
        self._demand.poll_all()
        return connection

    def _round(self, connection: Connection) -> bool:
        """Take outcomes, write them and claim, settle, hand over. False: there was nothing to do."""
        for slots in self._all_slots.values():
            slots.measure()
        again = bool(self._skipped) and self._claim_skipped(connection)
        changes = self._writer.take(_BATCH)
        wanted = self._demand.now()
        if not changes and not wanted:
            return again
        quiet = not len(self._runs)  # asked before the claim: a handler that ends during it may have enqueued
        if self._mode is not Mode.TOGETHER:
            self._recover(connection, changes, wanted, quiet=quiet)
        elif (done := self._write_and_claim(connection, changes, wanted)) is not None:
            answers, jobs = done
            if changes:
                self._settle(changes, answers)
            if wanted:
                self._hand_over(connection, wanted, jobs, quiet=quiet)
        return True

    def _write_and_claim(
        self, connection: Connection, changes: list[Change], wanted: dict[str, int]
    ) -> tuple[dict[int, Answer], list[ClaimedJob]] | None:
        """In one transaction; and nearly always in one statement, which is its own transaction.

        None: that failed. The changes were written alone then, and the next round claims in another mode.
        """
        try:
            if not changes or alike(changes):
                with self._connector.begin_one(connection):
                    return self._claim(connection, wanted, changes)
            with self._connector.begin(connection):
                answers = self._connector.store.apply(connection, changes)
                return answers, self._claim(connection, wanted)[1] if wanted else []
        except BaseException as error:
            mode = self._mode_after(error, wrote=bool(changes))
            if mode is None:
                self._writer.put_back(changes)
                raise
            self._mode, self._in_doubt = mode, False  # the server has answered: the claim was rolled back
            self._write_apart(connection, changes)
            if mode is Mode.WITHOUT_PAYLOAD:
                with suppress(BaseException):  # of a filter of logs
                    reason = getattr(error, "orig", error)
                    logger.info("a claim failed (%s); it is tried again without arguments and meta", reason)
            return None

    def _claim(
        self, connection: Connection, wanted: dict[str, int], changes: Sequence[Change] = ()
    ) -> tuple[dict[int, Answer], list[ClaimedJob]]:
        """Claim, and write these changes in the same statement."""
        self._in_doubt = self._in_doubt or bool(wanted)
        after, self._began = self._resume.begin(wanted), monotonic()
        request = ClaimRequest(
            self._worker,
            wanted,
            self._connector.lease,
            after=after,
            but=self._skipped.ids(),
            inline=self._mode is not Mode.WITHOUT_PAYLOAD,
        )
        answers, jobs = self._connector.store.exchange(connection, changes, request)
        self._resume.end(jobs, monotonic() - self._began)
        return answers, jobs

    def _settle(self, changes: list[Change], answers: dict[int, Answer]) -> None:
        """After the commit. What had no answer is asked about in the next round."""
        if len(answers) < len(changes):
            self._mode = Mode.APART
            self._writer.put_back([change for change in changes if change.id not in answers])
            changes = [change for change in changes if change.id in answers]
        self._writer.settle(changes, answers)

    def _hand_over(
        self, connection: Connection, wanted: dict[str, int], jobs: list[ClaimedJob], *, quiet: bool
    ) -> None:
        """After a claim: hand the jobs over, and decide when each queue is polled again."""
        jobs = self._suspects.part(connection, jobs)
        if jobs:
            self._overlooked.jobs_come()
            self._fetcher.hand_over(connection, jobs, claimed_at=self._began)
        self._in_doubt = False
        got = Counter(map(_QUEUE, jobs)) if len(wanted) > 1 else dict.fromkeys(wanted, len(jobs))
        timers = self._demand.timers
        short = [name for name, asked in wanted.items() if got[name] < asked and not timers[name].notified]
        for name in wanted:
            if name not in short:
                timers[name].now()
            elif got[name]:
                timers[name].reset()
        if short:
            self._poll_later(connection, short, dry=quiet and not jobs and self._are_dry(short))

    def _are_dry(self, short: Collection[str]) -> bool:
        """Whether no queue has a job in reach, where these have none."""
        return all(name in short or timer.is_held for name, timer in self._demand.timers.items())

    # ---- queues that gave fewer jobs than were wanted

    def _poll_later(self, connection: Connection, short: list[str], *, dry: bool) -> None:
        """Decide when these queues are polled again. `dry`: no queue has a due job, and nothing runs."""
        timers = self._demand.timers
        if not self._resume.swept:  # there may be jobs behind the points
            for name in short:
                timers[name].not_before(self._resume.sweep_at(name))
            return
        if self._demand.announced:
            self._demand.announced = False
            self._overlooked.jobs_come()
        leaves = dry and self._idle is not None
        looked = self._overlooked.look(connection, short, at_once=leaves)
        if looked.any_overlooked:
            self._mode = Mode.BISECTING
        if looked.any_due:  # if it has come since, the next claim brings it
            for name in short:
                timers[name].now()
            return
        if self._listening() and self._gates.ask(connection, short, timers):
            return  # poll once more: jobs that were committed before we asked have woken no worker
        if leaves and self._leaves(connection):
            return
        poll = self._poll
        longest = min(poll, self._gates.longest_poll) if self._listening() else poll
        for name in short:
            timers[name].back_off(longest)

    def _leaves(self, connection: Connection) -> bool:
        """No queue has a job in reach, and nothing runs: so the worker is idle, unless one of the skipped jobs could be claimed
        now or a dead worker's are to be rescued. Returns whether one was claimed.
        """
        if self._skipped and self._claim_skipped(connection, at_once=True):
            return True
        if self._idle is not None and not self._expired.awaited(connection):
            self._idle()
        return False

    # ---- jobs that cannot be claimed

    def _claim_skipped(self, connection: Connection, *, at_once: bool = False) -> bool:
        """Claim those of the skipped jobs that can be claimed by now. Returns whether there were some."""
        free = self._demand.free()
        due = self._skipped.due(free, one_waiting=self._suspects.one_may_run, at_once=at_once) if free else {}
        due = dict(islice(due.items(), self._demand.left))
        if not due:
            return False
        self._in_doubt, began = True, monotonic()
        jobs = self._bisecting.claim_skipped(connection, due)
        self._take_over(connection, jobs, began)
        self._in_doubt = False
        if jobs:
            self._demand.release(name for name in self._all_slots if self._skipped.has_room(name))
        return bool(jobs)

    def _claim_by_bisection(self, connection: Connection, wanted: Mapping[str, int], *, quiet: bool) -> None:
        """Skip the jobs that cannot be claimed, claim the others, and hold the queues where neither can be done."""
        self._in_doubt, newly_skipped, any_claimed, short = True, 0, False, set()
        for queue, found in self._bisecting.claim_all(connection, wanted, seconds=_BISECTING):
            self._take_over(connection, found.jobs, found.began)
            newly_skipped += found.newly_skipped
            any_claimed = any_claimed or bool(found.jobs)
            if found.no_room:
                self._demand.timers[queue].hold()
            elif not found.any_due:
                short.add(queue)
        self._in_doubt = False
        self._mode = Mode.BISECTING if newly_skipped else Mode.TOGETHER
        if self._idle is not None and quiet and not any_claimed and self._are_dry(short):
            self._leaves(connection)

    def _take_over(self, connection: Connection, jobs: list[ClaimedJob], began: float) -> None:
        self._fetcher.hand_over(connection, self._suspects.part(connection, jobs), claimed_at=began)

    # ---- failures

    def _recover(self, connection: Connection, changes: list[Change], wanted: dict[str, int], *, quiet: bool) -> None:
        """A round in another mode than TOGETHER: write first, so that no outcome waits for a claim that fails; then claim."""
        self._write_apart(connection, changes)
        if not wanted:
            return
        if self._mode is Mode.BISECTING:
            self._claim_by_bisection(connection, wanted, quiet=quiet)
        elif (done := self._write_and_claim(connection, [], wanted)) is not None:
            self._mode = Mode.TOGETHER
            self._hand_over(connection, wanted, done[1], quiet=quiet)

    def _write_apart(self, connection: Connection, changes: list[Change]) -> None:
        """Write these in transactions without a claim: as few as can be, and a bad outcome alone."""
        if changes:
            self._writer.write_apart(lambda: self._begin_apart(connection), connection, changes)

    @contextmanager
    def _begin_apart(self, connection: Connection) -> Generator[None]:
        """A transaction with a deadline of its own."""
        with self.deadline.over(connection), self._connector.begin(connection):
            yield

    def _mode_after(self, error: BaseException, *, wrote: bool) -> Mode | None:
        """The mode of the next round; None: the connection is to be given up."""
        if not isinstance(error, DBAPIError):
            return None
        fault, too_much = fault_of(error), is_too_much(error)
        return after_failure(self._mode, fault, wrote=wrote, too_much=too_much)

"""The claimer's thread: it writes outcomes and claims jobs, on a connection of its own.

Each round takes the outcomes that wait, writes them, claims for the free slots, and hands the jobs over. While every outcome is a
plain completion, one statement writes and claims, and is its own transaction. Handlers run on other threads, so a handler that
blocks delays no round. While the database is away, outcomes are kept and nothing is claimed; when it is back, the jobs that
a broken commit may have claimed are given back.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...arguments.context import ClaimedJob
from ...rules.lifecycle import Change
from ...rules.retry import backoff
from ...rules.settings import WorkerSettings
from ...sql.apply import Answer, alike, read_exchange
from ...sql.claims import MOST_TEXT, ClaimRequest, fault_of, is_limits_changed, is_too_much
from ...sql.limits.claims import LimitedRequest, QueueAnswer, queue_answers, read_limited
from ...sql.tables import Flight
from ...sql.workers import EVERY_QUEUE
from ...tasks.registry import Registry
from ...util.log import get_logger
from ..connections.pool import CLIENT_MARGIN, Deadline
from ..connections.service import Connector
from ..process.inside import AutoResetEvent, ServiceThread
from ..running.executor import Executor
from ..running.run import Runs
from ..running.slots import Slots
from ..running.writer import OutcomeWriter
from ..tally import Observer
from .connection import BrokenCommits, ClaimerConnection, said_by_database
from .demand import Demand, Gates
from .every import SharedDemand, SharedGates
from .intake import Intake, UnknownTasks
from .limited import LimitedQueues
from .poison.jobs import PoisonJobs
from .poison.skipped import SkippedJobs, Suspects
from .recovery import Mode, after_failure
from .shortage import ExpiredJobs, ResumePoints, Shortage, Surveys
from .workflows import MovingWorkflows

logger = get_logger(__name__)

#: Outcomes written in one statement at most.
_BATCH = 1_000
#: Seconds that an outcome waits for others at most.
_GATHER = 0.005
#: Seconds between two attempts to reach a database that is away. Workers are back soon after it is.
_LONGEST_PAUSE = 2.0
#: Seconds for which operators see that a round was refused: a round without statements may succeed meanwhile.
_LATELY = 60.0
#: Shares of the jobs that are skipped, where any number of queues is served.
_SHARES = 100


@dataclass(slots=True)
class Exchange:
    """Outcomes that are written and jobs that are claimed in one transaction, and what the database answers."""

    changes: list[Change]
    wanted: dict[str, int]
    """The number of jobs to claim from each queue."""
    limited: bool
    """Whether limits hold in these queues."""
    quiet: bool
    """Whether no job ran when it began."""
    began: float = 0.0
    """When the claim began, by `monotonic()`, and how many seconds it took."""
    took: float = 0.0
    answers: dict[int, Answer] = field(default_factory=dict)
    jobs: list[ClaimedJob] = field(default_factory=list)
    states: dict[str, QueueAnswer] = field(default_factory=dict)
    """After a claim under limits: how to go on in each queue."""
    noted: bool = False
    """Whether that was noted before the answer was taken in."""
    swept: bool = True
    """Whether the claim began at the front of the queues."""
    flight: Flight | None = None
    """The statement, where the answer is read later than it was sent."""
    sent: bool = False
    done: bool = False
    """Whether it is on its way to the server, and whether it is committed."""

    @property
    def is_full(self) -> bool:
        """Whether a flight that was sent ahead has brought as many jobs as were wanted."""
        if self.flight is None or not self.flight.ahead:
            return False
        others = bool(self.changes) + (len(self.wanted) if self.limited else 0)
        return len(self.flight.rows) - others >= sum(self.wanted.values())


class Claimer:
    """Claims for the free slots of `all_slots`, gives them the jobs, and writes the outcomes that `writer` holds.

    `listening()`: whether announcements of new jobs are heard. `idle()` is called when nothing is due and nothing runs, after `put_back`. `tell_work` is
    called with what there is for maintenance to do, as `Surveys` does.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        worker: str,
        all_slots: dict[str, Slots],
        writer: OutcomeWriter,
        registry: Registry,
        executor: Executor,
        runs: Runs,
        settings: WorkerSettings,
        listening: Callable[[], bool],
        observer: Observer,
        tell_work: Callable[[Collection[str], float], None],
        put_back: Callable[[sa.Connection], None],
        idle: Callable[[], None] | None = None,
        max_jobs: int | None = None,
        most_text: int = MOST_TEXT,
    ) -> None:
        self._connector, self._worker, self._all_slots, self._writer = connector, worker, all_slots, writer
        self._runs, self._observer = runs, observer

        # Other threads touch these:
        self.thread = ServiceThread("claimer", self._loop)
        self.deadline = Deadline(connector.limit + CLIENT_MARGIN)
        """The deadline of the current round. The watchdog reads it."""
        every = EVERY_QUEUE in all_slots
        make_demand = partial(SharedDemand, connector=connector) if every else Demand
        self._demand = make_demand(all_slots, writer, max_jobs=max_jobs, together=idle is not None)
        """The comments of its fields name the threads that write and read them."""
        self._wake = AutoResetEvent()
        """Ends the pause between two rounds. Set by any thread."""
        self._enough = AutoResetEvent()
        """Ends the wait for more outcomes. Set by any thread."""
        self._batch = 1
        """The number of outcomes that are worth a write. Written by the claimer's thread, read where handlers end."""
        self._ending = False
        """Whether to end when all is written. Written by the thread that stops the worker, read by the claimer's."""
        self._change: Callable[[], None] | None = None
        """Changes the slots, before the next claim. Set by the maintenance thread, reset by the claimer's."""
        self.moves_at = monotonic()
        """When the next round begins at the latest; in a round, when that began. Written by the claimer's thread, read by any."""

        self.skipped = SkippedJobs(_SHARES if every else len(all_slots))
        """Jobs that no claim of several jobs may take. For the claimer's thread; any thread may call `told`."""

        # The claimer's thread alone writes and reads the rest:
        broken_commits = BrokenCommits(connector, runs, writer, worker)
        self._connection = ClaimerConnection(connector, self.deadline, broken_commits)
        self._mode = Mode.TOGETHER
        """How the next round writes and claims."""
        self._kept: Exchange | None = None
        """An exchange that is committed, and whose answer is not taken in."""
        self._resume = ResumePoints()
        self._expired = ExpiredJobs(connector, self._demand.timers)
        self._workflows = MovingWorkflows(connector, runs.touched, self._demand, busy=lambda: len(runs) > 0)
        self._gates = (SharedGates if every else Gates)(connector, poll=settings.poll)
        unknown = UnknownTasks(settings.unknown_delay)
        self._limited = LimitedQueues(
            connector, self._demand.timers, self._demand, self._gates, self.skipped, worker=worker, poll=settings.poll,
            listening=listening, unknown=unknown.names,
        )  # fmt: skip
        self._intake = Intake(
            connector, self.deadline, registry=registry, all_slots=all_slots, runs=runs, executor=executor, writer=writer,
            observer=observer, unknown=unknown, demand=self._demand, limited=self._limited,
            suspects=Suspects(connector, runs, writer, self.skipped, settings.max_rescues), most=most_text,
        )  # fmt: skip
        self._poison = PoisonJobs(
            connector, self.deadline, own=self._connection, demand=self._demand, intake=self._intake, limited=self._limited,
            worker=worker,
        )  # fmt: skip
        self._surveys = Surveys(
            connector, self._demand, gates=self._gates, limited=self._limited, skipped=self.skipped,
            poll=math.inf if every else settings.poll, listening=listening, tell=tell_work,
        )  # fmt: skip
        self._shortage = Shortage(
            self._demand,
            resume=self._resume,
            gates=self._gates,
            limited=self._limited,
            poison=self._poison,
            expired=self._expired,
            poll=settings.poll,
            workflows=self._workflows,
            surveys=self._surveys,
            listening=listening,
            idle=idle,
            put_back=put_back,
        )

    # ---- for any thread

    @property
    def claimed(self) -> int:
        """Jobs claimed so far and handed over."""
        return self._demand.claimed

    @property
    def away(self) -> bool:
        """Whether the database did not answer in the last round."""
        return self._connection.failures > 0

    @property
    def refused(self) -> str | None:
        """The database's message for a round that it refused in the last minute; None if it refused none."""
        refused = self._connection.refused
        return None if refused is None or monotonic() - refused[0] > _LATELY else refused[1]

    def start(self) -> None:
        """Begin."""
        self.moves_at = monotonic()
        self._expired.begin()
        self.thread.start()

    def wake(self) -> None:
        """Begin a round soon: there is an outcome to write, or a slot has become free."""
        self._wake.set()

    def ended(self, slots: Slots, queue: str) -> None:
        """Note that a handler of this queue has ended: its outcome may wait to be written, and its slot may want jobs."""
        outcomes = len(self._writer.pending)
        freed = self._limited.any and self._limited.ended(queue)
        if freed or outcomes or slots.hungry:
            self._wake.set()
        if outcomes >= self._batch:
            self._enough.set()

    def notify(self, queue: str | None) -> None:
        """Note that new jobs were announced in this queue; None: perhaps in any queue."""
        self._demand.notify(queue)
        self._wake.set()

    def due_soon(self) -> None:
        """Note that jobs were announced that are due soon, in any queue."""
        self._surveys.ask()
        self._wake.set()

    def limits_changed(self) -> None:
        """Note that limits were changed, or a permit is free."""
        self._limited.stale = True
        self.notify(None)

    def hold_back(self, share: float) -> None:
        """Claim for this share of the slots: at least one slot of each queue. 1: for all slots, and ahead."""
        self._demand.throttle.share = share
        self._wake.set()

    def change_slots(self, change: Callable[[], None]) -> None:
        """Call `change` before the next claim, and claim for the changed slots. Until then, `changing` is true."""
        self._change = change
        self._wake.set()

    @property
    def changing(self) -> bool:
        """Whether slots are still to be changed."""
        return self._change is not None

    def stop_claiming(self) -> None:
        """Claim no more; go on writing."""
        self._demand.stop()
        self._wake.set()

    def finish(self, timeout: float) -> bool:
        """Write the last outcomes and end. Returns whether that was done within `timeout` seconds."""
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
            self.moves_at = monotonic()
            try:
                busy = self._timed_round()
                if self._connection.failures:
                    with suppress(BaseException):  # as below
                        self._connection.works()
            except BaseException as error:
                self._mode = Mode.TOGETHER
                if self._kept is not None and self._connection.current is not None:
                    # Its jobs are held by this worker: the next connection would give back what is in no run.
                    with suppress(BaseException):
                        self._take_in(self._connection.current)
                with suppress(BaseException):  # of the application's: a filter of logs
                    self._connection.give_up(error, kept=len(self._writer))
                busy = False
            if self._ending and self._kept is None and not len(self._writer) and not self._connection.in_doubt:
                break
            if self._ending and not hurried:
                hurried = True
                self._writer.hurry()
            if self._kept is not None:
                continue
            if not busy or not len(self._writer):  # where a claim is due at once, there is no pause
                pause = self._pause()
                self.moves_at = monotonic() + pause
                self._wake.wait(pause)
            self._gather()
        self._connection.close()

    def _gather(self) -> None:
        """Wait until several outcomes can be written together while the runners have work: at most half of the jobs that are held."""
        if not (outcomes := len(self._writer)):
            return
        self._batch = min(len(self._runs) // 2, _BATCH // 2)
        if outcomes < self._batch and all(slots.waiting or not slots.limit for slots in self._all_slots.values()):
            self._enough.clear()
            self._enough.wait(_GATHER)

    def _pause(self) -> float:
        if failures := self._connection.failures:
            return backoff(failures, first=0.1, most=_LONGEST_PAUSE) * random.uniform(0.8, 1.2)
        free = self._demand.free()
        times = [self._demand.timers[name].at for name in free]
        if (skipped := self._poison.next_at(free)) is not None:
            times.append(skipped)
        if (locked := self._writer.next_at()) is not None:
            times.append(locked)
        if (moves := self._workflows.next_at()) is not None:
            times.append(moves)
        if (survey := self._surveys.next_at()) is not None:
            times.append(survey)
        times += [at for slots in self._all_slots.values() if slots.gathers and (at := slots.next_at) < math.inf]
        return max(min(times) - monotonic(), 0.0) if times else 1.0

    # ---- a round

    def _timed_round(self) -> bool:
        connection = self._connection.current or self._connect()
        with self.deadline.over(connection):
            try:
                busy = self._round(connection)
                self._limited.tell(connection)
                return busy
            except DBAPIError as error:
                if not is_limits_changed(error):
                    raise
                # From a claim by bisection, of skipped jobs, a search for overlooked jobs, or a survey: it was rolled back and wrote no
                # outcomes.
                self._limited.stale, self._connection.in_doubt = True, False
                return True

    def _connect(self) -> sa.Connection:
        connection = self._connection.make(any_claimed=self.claimed > 0)
        self._gates.forget()
        self._limited.begin_again()
        self._surveys.uncover()
        self._demand.poll_all()
        return connection

    def _round(self, connection: sa.Connection) -> bool:
        """Prepare, take outcomes and demand, and make each exchange: send it, settle, hand over. False: there was nothing to do.

        An answer that brought all that was wanted is kept back: the next round sends its exchange first, and takes the answer in while
        the server works. At most one statement is in doubt all the same, because the one before was committed.
        """
        if self._kept is not None and not self._may_overlap:
            self._take_in(connection)
        any_skipped = self._prepare(connection)
        changes = self._writer.take(_BATCH)
        if self._limited.any:
            self._limited.note_ends(self._runs.queues(changes))
            ended = {change.id for change in changes}
            self._limited.end_charges(lambda job_id: job_id not in ended and self._runs.holds(job_id))
        overlaps = self._may_overlap and alike(changes)
        wanted = self._wanted(connection, changes, overlaps=overlaps)
        if not changes and not wanted:
            return any_skipped
        # Before the claim: a handler that ends during it may have enqueued.
        quiet = not len(self._runs) and self._kept is None
        if overlaps and wanted and self._limited.are_alike(wanted):
            limited = self._limited.part(wanted)
            exchange = Exchange(changes, limited or wanted, limited=bool(limited), quiet=quiet)
            self._exchange_ahead(connection, exchange)
            return True
        if self._mode is not Mode.TOGETHER or self._writer.in_doubt:  # no outcome waits for a claim that fails
            self._write_apart(connection, changes)
            changes = []
        if self._mode is Mode.BISECTING:
            if wanted:
                self._claim_by_bisection(connection, wanted, quiet=quiet)
            return True
        for exchange in self._exchanges(changes, wanted, quiet=quiet):
            self._send(connection, exchange)
            if exchange.done:
                self._mode = Mode.TOGETHER
                self._settle(exchange)
                self._hand_over(connection, exchange)
        return True

    def _wanted(self, connection: sa.Connection, changes: list[Change], *, overlaps: bool) -> dict[str, int]:
        """The jobs to claim now. The answer that was kept back is taken in, unless the next exchange `overlaps` it and claims.

        If that fails, the taken `changes` go back to the writer.
        """
        try:
            if not overlaps:
                self._take_in(connection)
            wanted = self._demand.now()
            if self._kept is not None and not (wanted and self._limited.are_alike(wanted)):
                self._take_in(connection)
                wanted = self._demand.now()
        except BaseException:
            self._writer.put_back(changes)
            raise
        return wanted

    def _prepare(self, connection: sa.Connection) -> bool:
        """Do the steps before the outcomes and the claim. Returns whether skipped jobs were claimed."""
        if self._change is not None and self._kept is None:
            self._follow(self._change)
        for slots in self._all_slots.values():
            slots.measure()
            slots.start_gathered(due_by=self.moves_at)
        if self._writer.asked:
            self._writer.look_up(lambda: self._begin_apart(connection), connection)
            self._limited.freed = True
        self._workflows.move(connection)
        if self._demand.renew(connection):
            self._limited.begin_again()
            self._resume.keep(self._demand.timers)
        self._limited.refresh(connection)
        self._surveys.make(connection)
        return self._poison.claim_skipped(connection)

    def _follow(self, change: Callable[[], None]) -> None:
        """Change the slots between two claims, and poll their queues."""
        change()
        self._change = None
        self._demand.follow_slots()
        self._resume.keep(self._demand.timers)
        self._limited.begin_again()
        self._surveys.uncover()
        self._demand.poll_all()

    def _exchanges(self, changes: list[Change], wanted: dict[str, int], *, quiet: bool) -> Iterator[Exchange]:
        """The exchanges of a round: first for the queues with limits. The outcomes go with the first exchange."""
        if limited := self._limited.part(wanted):
            yield Exchange(changes, limited, limited=True, quiet=quiet)
            changes = []
        if wanted or changes:
            yield Exchange(changes, wanted, limited=False, quiet=quiet)

    def _send(self, connection: sa.Connection, exchange: Exchange) -> None:
        """In one transaction; and nearly always in one statement, which is its own transaction.

        Nothing is claimed where one of the changes keeps others waiting. The changes are written alone then, and the next round claims.
        """
        changes = exchange.changes
        in_one = not changes or alike(changes)
        if not in_one and any(change.blocks is not None or change.tells is not None for change in changes):
            self._write_apart(connection, changes)  # see `Outcomes._block`
            return
        with self._apart_after_failure(connection, exchange):
            if in_one:
                with self._connector.begin_one(connection):
                    exchange.answers = self._claim(connection, exchange, changes)
            else:
                with self._connector.begin(connection):
                    exchange.answers = self._connector.store.apply(connection, changes)
                    if exchange.wanted:
                        self._claim(connection, exchange)
            exchange.done = True

    @contextmanager
    def _apart_after_failure(self, connection: sa.Connection, exchange: Exchange) -> Generator[None]:
        """Nothing is claimed after a failure. The changes are written alone, and the next round claims in another mode."""
        changes = exchange.changes
        try:
            yield
        except BaseException as error:
            if is_limits_changed(error):
                self._limited.stale, self._connection.in_doubt = True, False
                self._write_apart(connection, changes)
                return
            mode = self._mode_after(error, wrote=bool(changes))
            if mode is None:
                self._writer.doubt(changes)
                self._writer.put_back(changes)
                raise
            self._mode, self._connection.in_doubt = mode, False  # the server has answered: the claim was rolled back
            self._write_apart(connection, changes)
            if mode is Mode.WITHOUT_PAYLOAD:
                with suppress(BaseException):  # of a filter of logs
                    reason = said_by_database(error)
                    logger.info("a claim failed (%s); it is tried again without arguments and meta", reason)

    def _claim(
        self, connection: sa.Connection, exchange: Exchange, changes: Sequence[Change] = ()
    ) -> dict[int, Answer]:
        """Claim, and write these changes in the same statement. Returns their answers."""
        wanted, store = exchange.wanted, self._connector.store
        self._connection.in_doubt = self._connection.in_doubt or bool(wanted)
        if exchange.limited:
            request = self._limited_request(exchange)
            answers, exchange.jobs, exchange.states = store.claim_limited(connection, changes, request)
        else:
            answers, exchange.jobs = store.exchange(connection, changes, self._request(exchange))
        exchange.took = monotonic() - exchange.began
        self._claimed(exchange)
        return answers

    def _request(self, exchange: Exchange) -> ClaimRequest:
        """What to claim from queues without limits."""
        after = self._resume.begin(exchange.wanted)
        exchange.swept, exchange.began = after is None, monotonic()
        return ClaimRequest(
            self._worker,
            exchange.wanted,
            self._connector.lease,
            after=after,
            but=self.skipped.ids(),
            known=self._limited.known,
            inline=self._mode is not Mode.WITHOUT_PAYLOAD,
        )

    def _limited_request(self, exchange: Exchange) -> LimitedRequest:
        """What to claim from queues with limits."""
        after = self._resume.begin(exchange.wanted)
        exchange.swept, exchange.began = after is None, monotonic()
        inline = self._mode is not Mode.WITHOUT_PAYLOAD
        return self._limited.request(exchange.wanted, after=after, inline=inline)

    def _claimed(self, exchange: Exchange) -> None:
        """After a claim."""
        self._observer.claim_took(exchange.took)
        jobs, states = exchange.jobs, exchange.states
        if any(state.keyed for state in states.values()):  # points are of jobs without a key
            jobs = [job for job in jobs if not states[job.queue].keyed]
        self._resume.end(exchange.wanted, jobs, exchange.took, swept=exchange.swept)

    # ---- an answer is taken in while the server works for the next

    @property
    def _may_overlap(self) -> bool:
        """Whether the next exchange may be sent before the answer to the last is taken in."""
        demand = self._demand
        # Slots that all queues share would be asked for again while jobs are coming for them.
        own_slots = demand.throttle.share >= 1.0 and EVERY_QUEUE not in self._all_slots
        plain = self._mode is Mode.TOGETHER and not self._connector.pooled and own_slots
        stops = self._ending or demand.stopped or self._limited.stale or self.changing
        return plain and not (stops or self._writer.in_doubt or self._writer.asked)

    def _exchange_ahead(self, connection: sa.Connection, exchange: Exchange) -> None:
        """Send this exchange, take in the answer that was kept back, and wait for the answer to this one."""
        with self._apart_after_failure(connection, exchange):
            self._connection.in_doubt = True
            store, changes = self._connector.store, exchange.changes
            if exchange.limited:
                exchange.flight = store.send_limited(connection, changes, self._limited_request(exchange))
            else:
                exchange.flight = store.send_exchange(connection, changes, self._request(exchange))
            exchange.sent = True
        if not exchange.sent:
            return
        try:
            if self._kept is not None:
                self._take_in(connection)
        finally:  # also where that has failed: this exchange may be committed
            self._connection.in_doubt = True
            with self._apart_after_failure(connection, exchange):
                exchange.flight.land()
                exchange.took, exchange.done = monotonic() - exchange.began, True
                self._kept, self._demand.coming = exchange, exchange.wanted
        if not exchange.done:
            return
        if exchange.limited:
            exchange.states = queue_answers(exchange.flight.rows)
        if not (exchange.is_full and self._may_overlap and self._demand.free()):
            self._take_in(connection)
        elif exchange.limited:  # the next claim begins with the keys behind these
            self._limited.after_claim(connection, exchange.wanted, exchange.states, began=exchange.began)
            exchange.noted = True

    def _take_in(self, connection: sa.Connection) -> None:
        """Settle and hand over what the answer says that was kept back."""
        exchange, self._kept, self._demand.coming = self._kept, None, {}
        if exchange is not None and exchange.flight is not None:
            read = read_limited if exchange.limited else read_exchange
            exchange.answers, exchange.jobs = read(exchange.changes, exchange.flight.rows)
            self._claimed(exchange)
            self._settle(exchange)
            self._hand_over(connection, exchange)

    # ---- after an exchange

    def _settle(self, exchange: Exchange) -> None:
        """Settle the written outcomes after the commit. Outcomes without an answer are asked about in the next round."""
        changes, answers = exchange.changes, exchange.answers
        if len(answers) < len(changes):
            self._mode = Mode.APART
            self._writer.put_back([change for change in changes if change.id not in answers])
            changes = [change for change in changes if change.id in answers]
        if changes:
            self._writer.settle(changes, answers)

    def _hand_over(self, connection: sa.Connection, exchange: Exchange) -> None:
        """After a claim: give the jobs to their slots, and decide when each queue is polled again."""
        wanted, quiet = exchange.wanted, exchange.quiet
        if not wanted:
            return
        jobs = self._intake.take(connection, exchange.jobs, claimed_at=exchange.began)
        self._connection.in_doubt = False
        self._start_gathered(exchange, jobs)
        if exchange.limited:
            got = Counter(job.queue for job in jobs)
            overlooks = not exchange.noted and self._limited.after_claim(
                connection, got, exchange.states, began=exchange.began
            )
            self._limited.handed_over()
            if quiet and not jobs:
                self._shortage.leave_if_dry(connection, self._limited.dry)
        else:
            overlooks = self._shortage.after_claim(connection, wanted, jobs, quiet=quiet, swept=exchange.swept)
        if overlooks:
            self._mode = Mode.BISECTING

    def _start_gathered(self, exchange: Exchange, jobs: list[ClaimedJob]) -> None:
        """Start the batches that wait for more jobs in queues without other due jobs."""
        for name, asked in exchange.wanted.items():
            slots = self._all_slots[name]
            if slots.gathers:
                got = sum(job.queue == name for job in jobs)
                if exchange.limited:
                    more_due = got > 0 or (name in exchange.states and exchange.states[name].rate_in is not None)
                else:
                    more_due = got >= asked or self._demand.timers[name].notified
                if not more_due or not self._demand.may_claim:
                    slots.start_gathered(name)

    def _claim_by_bisection(self, connection: sa.Connection, wanted: Mapping[str, int], *, quiet: bool) -> None:
        done = self._poison.claim_by_bisection(connection, wanted)
        self._mode = Mode.BISECTING if done.any_skipped else Mode.TOGETHER
        if quiet and not done.any_claimed:
            self._shortage.leave_if_dry(connection, done.short)

    # ---- failures

    def _write_apart(self, connection: sa.Connection, changes: list[Change]) -> None:
        """Write these changes in as few transactions as possible, without a claim, and a bad outcome alone."""
        if changes:
            self._writer.write_apart(lambda: self._begin_apart(connection), connection, changes)

    @contextmanager
    def _begin_apart(self, connection: sa.Connection) -> Generator[None]:
        """A transaction with a deadline of its own."""
        with self.deadline.over(connection), self._connector.begin(connection):
            yield

    def _mode_after(self, error: BaseException, *, wrote: bool) -> Mode | None:
        """The mode of the next round; None: the connection is to be given up."""
        if not isinstance(error, DBAPIError):
            return None
        fault, too_much = fault_of(error), is_too_much(error)
        return after_failure(self._mode, fault, wrote=wrote, too_much=too_much)

"""The queue as a state machine: the real statements on a real PostgreSQL, and beside them a model in plain Python.

Virtual workers claim, renew, finish in every way, die, come back as zombies, and rescue each other's jobs; producers
enqueue; operators cancel, retry, discard, release and prune; time passes. Each step is a transaction of its own, and
some are rolled back, or their answer is lost. After each step every row must be what the model says.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import Connection, Engine, Text, cast, delete, func, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import TaskName, Unique, enqueue
from sa_jobqueue.models import Job, UniqueKey
from sa_jobqueue.rules.failures import MAX_ERRORS
from sa_jobqueue.rules.lifecycle import FINISHED, Change, Claim, JobStatus, Rules, decide, extra, not_started
from sa_jobqueue.rules.outcomes import NotStarted, Outcome
from sa_jobqueue.sql.apply import Answer
from sa_jobqueue.sql.claims import ClaimRequest
from sa_jobqueue.sql.leases import Expired
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.sql.unique import started_keys
from sa_jobqueue.statements import cancel_jobs, discard_jobs, insert_jobs, prune_jobs, release_jobs, retry_jobs
from tests.support.factory import TABLE, make_job
from tests.support.model import ModelJob
from tests.support.outcomes import all_rules, plain_outcomes, rescues

QUEUES = ("mail", "slow")
WORKERS = ("ada", "bob", "cy")
OPERATORS: dict[str, Callable[..., Any]] = {
    "cancel": cancel_jobs,
    "discard": discard_jobs,
    "release": release_jobs,
    "retry": retry_jobs,
}

#: Moments are the numbers of the transactions. This one is far away.
LATER = 10**9


@dataclass
class Tracked(ModelJob):
    """A job of the model, with what decides about its order, its lease and its end."""

    queue: str = "mail"
    priority: int = 4
    run_at: int = 0
    worker: str | None = None
    lapsed: bool = False
    purge_at: int | None = None
    effects: int = 0
    key: str | None = None
    until_start: bool = False
    """The key is given back when the job has been claimed, not when it ends."""
    holds: bool = False
    """It has the key now."""
    expired: bool = False
    overdue: bool = False
    """Its expiry, or its deadline, is over."""
    expires: bool = False
    has_deadline: bool = False
    """It has one that is still far off."""
    result: str | None = None
    """JSON text."""
    schedule: int | None = None
    tick_at: datetime | None = None
    ticks: int | None = None
    by_hand: bool = False
    """It is of a schedule, but was made beside its ticks."""

    @property
    def is_late(self) -> bool:
        """It waits, and will not be run."""
        expired = self.expired and self.attempt == 0 and self.rescues == 0
        return self.status in (JobStatus.QUEUED, JobStatus.BLOCKED) and (expired or self.overdue)

    def comes(self, at: int) -> None:
        """It is due at this moment."""
        self.run_at, self.due = at, at != LATER


queues = st.sampled_from(QUEUES)
#: The key of a unique job, and its scope.
uniques = st.none() | st.builds(Unique, st.sampled_from(["a", "b"]), scope=st.sampled_from(["started", "queued"]))
workers = st.sampled_from(WORKERS)
#: Which of the jobs, or of the claims: counted back from the newest.
which = st.integers(0, 5)
#: What becomes of a transaction, in most cases all is well.
kept = st.sampled_from([True, True, True, False])


class QueueMachine(RuleBasedStateMachine):
    """Subclassed with an `engine` on an emptied database that has a table `effect (job_id, token)`."""

    engine: ClassVar[Engine]
    steps: ClassVar[int] = 0
    """Steps that were done in all, for the report."""

    def __init__(self) -> None:
        super().__init__()
        self.connection: Connection = self.engine.connect()
        with self.connection.begin():
            self.connection.execute(delete(TABLE))
            self.connection.execute(delete(UniqueKey))
            self.connection.execute(text("DELETE FROM effect"))
        self.now = 0
        self.jobs: dict[int, Tracked] = {}
        #: Every claim that was handed out and whose worker heard of it; some are long lost.
        self.claims: list[tuple[Claim, Rules]] = []
        self.handed: set[tuple[int, int]] = set()
        #: What each worker believes to hold, as job id -> token.
        self.held: dict[str, dict[int, int]] = {name: {} for name in WORKERS}
        #: What a worker found expired, a while ago.
        self.page: list[Expired] = []

    def teardown(self) -> None:
        self.connection.close()

    @contextmanager
    def transaction(self, *, kept: bool = True) -> Iterator[Connection]:
        """A transaction of the database, and of the model."""
        self.now += 1
        before = copy.deepcopy(self.jobs)
        with self.connection.begin() as transaction:
            yield self.connection
            if not kept:
                transaction.rollback()
        if not kept:
            self.jobs = before

    # ---- producers

    @rule(
        queue=queues, priority=st.sampled_from([0, 4, 9]), scheduled=st.booleans(), max_attempts=st.integers(1, 3),
        rules=all_rules, uniques=st.lists(uniques, min_size=1, max_size=3), bulk=st.booleans(), kept=kept,
    )  # fmt: skip
    def enqueue(
        self, queue: str, priority: int, scheduled: bool, max_attempts: int, rules: Rules, uniques: list[Unique | None],
        bulk: bool, kept: bool,
    ) -> None:  # fmt: skip
        delay = 86_400 if scheduled else 0
        task = TaskName("a_task").options(queue=queue, priority=priority, delay=delay, max_attempts=max_attempts)
        tasks = [task.options(unique=unique or False) for unique in uniques]
        with self.transaction(kept=kept) as connection:
            if bulk:
                ids = list(connection.scalars(insert_jobs([one.call() for one in tasks])))
            else:
                jobs = [enqueue(one) for one in tasks]
                with Session(connection) as session:
                    session.add_all(jobs)
                    session.flush()
                    ids = [job.id for job in jobs]
            assert not set(ids) & self.jobs.keys()
            if uniques == [None] * len(ids):
                assert ids == sorted(ids)
            for id, unique in sorted(zip(ids, uniques, strict=True), key=lambda one: one[0]):
                job = self.jobs[id] = Tracked(max_attempts, rules, queue=queue, priority=priority)
                job.comes(LATER if scheduled else self.now)
                self._made(job, unique)

    def _made(self, job: Tracked, unique: Unique | None) -> None:
        """It takes its key, or is a duplicate."""
        if unique is not None:
            job.key, job.until_start = unique.key, unique.scope == "queued"
            self._leave_key(job.key)
            self._take_key(job)
            if not job.holds:
                job.status, job.errors, job.purge_at = JobStatus.CANCELLED, 1, LATER

    def _leave_key(self, key: str) -> None:
        """A new job gets the key of one that was started, also where its worker did not free that key; and of one that is late."""
        for one in self.jobs.values():
            if one.key == key and ((one.until_start and one.status == JobStatus.RUNNING) or one.is_late):
                one.holds = False

    def _take_key(self, job: Tracked) -> None:
        job.holds = not any(one.holds and one.key == job.key for one in self.jobs.values())

    @rule(queue=queues)
    def enqueue_blocked(self, queue: str) -> None:
        with self.transaction() as connection:
            id = make_job(connection, "blocked", queue=queue)
            self.jobs[id] = Tracked(10, status=JobStatus.BLOCKED, queue=queue)
            self.jobs[id].comes(self.now)

    # ---- workers

    @rule(
        worker=workers, free=st.dictionaries(queues, st.integers(1, 3), min_size=1),
        end=st.sampled_from(["known", "known", "known", "answer lost", "rolled back"]),
    )  # fmt: skip
    def claim(self, worker: str, free: dict[str, int], end: str) -> None:
        """The due jobs of each queue, higher priority first, then earlier, then by id."""
        with self.transaction(kept=end != "rolled back") as connection:
            found = default_store.claim(connection, ClaimRequest(worker=worker, queues=free, lease=60))
            wanted = []
            for queue, number in free.items():
                due = [id for id, job in self.jobs.items() if job.queue == queue and job.status == "queued" and job.due]
                wanted += sorted(due, key=self._turn)[:number]
            assert [job.id for job in found] == sorted(wanted, key=self._turn)
            for job in found:
                model = self.jobs[job.id]
                expected = model.claim(job.claim_token)
                assert expected is not None
                assert (job.attempt, job.max_attempts, job.rescues, job.queue) == (
                    expected.attempt, model.max_attempts, expected.rescues, model.queue,
                )  # fmt: skip
                said = None if model.tick_at is None else [model.tick_at.timestamp(), model.ticks]
                assert extra(job).get("tick") == said
                assert (job.extra is not None) == (
                    model.key is not None
                    or model.expired
                    or model.overdue
                    or model.expires
                    or model.has_deadline
                    or said is not None
                )
                late = (
                    NotStarted(model.overdue)
                    if model.overdue or (model.expired and expected.attempt == 1 and not expected.rescues)
                    else None
                )
                assert not_started(job, 0.0) == late
                model.worker, model.lapsed = worker, False
                if model.until_start and end != "answer lost":
                    model.holds = False
            if end != "answer lost":
                default_store.free_started_keys(connection, started_keys(found))
        if end == "rolled back":
            return
        for job in found:
            assert (job.id, job.claim_token) not in self.handed, "this claim was handed out before"
            self.handed.add((job.id, job.claim_token))
            if end == "known":
                seen = Claim(job.id, job.claim_token, job.attempt, job.max_attempts, job.rescues, job.extra)
                self.claims.append((seen, self.jobs[job.id].rules))
                self.held[worker][job.id] = job.claim_token

    def _turn(self, id: int) -> tuple[int, int, int]:
        job = self.jobs[id]
        return -job.priority, job.run_at, id

    @precondition(lambda self: self.claims)
    @rule(ends=st.lists(st.tuples(which, plain_outcomes), min_size=1, max_size=3), kept=kept)
    def finish(self, ends: list[tuple[int, Outcome]], kept: bool) -> None:
        """A batch of outcomes, of claims that are held and of zombies'."""
        changes: dict[int, Change] = {}
        for back, outcome in ends:
            if back < len(self.claims):
                claim, rules = self.claims[-1 - back]
                changes.setdefault(claim.id, decide(claim, outcome, rules, random=0.5))
        with self.transaction(kept=kept) as connection:
            expected = {id: self._apply(change) for id, change in changes.items()}
            assert default_store.apply(connection, list(changes.values())) == expected
        if kept:
            self._forget(changes)

    @precondition(lambda self: self.claims)
    @rule(back=which, outcome=plain_outcomes)
    def finish_with_effects(self, back: int, outcome: Outcome) -> None:
        """What the handler wrote is kept if, and only if, its claim was still valid."""
        if back >= len(self.claims):
            return
        claim, rules = self.claims[-1 - back]
        change = decide(claim, outcome, rules, random=0.5)
        self.now += 1
        answer = self._apply(change)
        with self.connection.begin() as transaction:
            self.connection.execute(text("INSERT INTO effect VALUES (:id, :token)"), {"id": claim.id, "token": claim.claim_token})  # fmt: skip
            assert default_store.apply_one(self.connection, change) is answer
            if answer is Answer.LOST:
                transaction.rollback()
            elif claim.id in self.jobs:
                self.jobs[claim.id].effects += 1
        self._forget({claim.id: change})

    def _apply(self, change: Change) -> Answer:
        job = self.jobs.get(change.id)
        if job is None or (change.expired and not job.lapsed):
            return Answer.LOST
        if (answer := job.apply(change)) is Answer.LOST:
            return answer
        job.lapsed = False
        if job.status in FINISHED:
            job.holds = False
            job.result = change.result
        if job.deleted:
            del self.jobs[change.id]
        elif job.status is JobStatus.QUEUED:
            if change.delay is not None:
                job.comes(LATER if change.delay else self.now)
        else:
            job.purge_at = None if change.retain is None else LATER if change.retain else self.now
        return answer

    def _forget(self, changes: dict[int, Change]) -> None:
        for held in self.held.values():
            for id, change in changes.items():
                if held.get(id) == change.claim_token:
                    del held[id]

    @precondition(lambda self: any(self.held.values()))
    @rule(worker=workers)
    def renew(self, worker: str) -> None:
        held = self.held[worker]
        with self.transaction() as connection:
            found = default_store.renew(connection, held, lease=60)
            valid = {id for id, token in held.items() if self._runs(id, token)}
            assert found.lost == held.keys() - valid
            assert found.cancel_requested == {id for id in valid if self.jobs[id].cancel_requested}
            assert default_store.cancelled_among(connection, held) == found.cancel_requested
            for id in valid:
                self.jobs[id].lapsed = False
        for id in found.lost:
            del held[id]

    def _runs(self, id: int, token: int) -> bool:
        job = self.jobs.get(id)
        return job is not None and job.status is JobStatus.RUNNING and job.claim_token == token

    @precondition(lambda self: any(self.held.values()))
    @rule(worker=workers)
    def crash(self, worker: str) -> None:
        """The worker starts again and knows of nothing. A handler of the old process may still finish."""
        self.held[worker] = {}

    @precondition(lambda self: self.handed)
    @rule(worker=workers)
    def reconcile(self, worker: str) -> None:
        """After a commit whose answer was lost."""
        held = self.held[worker]
        with self.transaction() as connection:
            found = default_store.release_unknown(connection, worker=worker, known=held.items())
            unknown = [id for id, job in self.jobs.items() if job.worker == worker and held.get(id) != job.claim_token]
            self._operated("release", [id for id in unknown if self._operate("release", self.jobs[id])], found)

    # ---- rescue

    @precondition(lambda self: any(job.lapsed for job in self.jobs.values()))
    @rule()
    def look_for_expired(self) -> None:
        with self.transaction() as connection:
            self.page = default_store.expired(connection)
            lapsed = {id for id, job in self.jobs.items() if job.status is JobStatus.RUNNING and job.lapsed}
            assert [found.claim.id for found in self.page] == sorted(lapsed)
            for found in self.page:
                job = self.jobs[found.claim.id]
                said = (found.claim.claim_token, found.claim.rescues, found.worker)
                assert said == (job.claim_token, job.rescues, job.worker)

    @precondition(lambda self: self.page)
    @rule(outcome=rescues)
    def rescue(self, outcome: Outcome) -> None:
        """The jobs that a worker found expired. Some were renewed, ended, or claimed again meanwhile."""
        rules = {id: job.rules for id, job in self.jobs.items()}
        changes = [decide(one.claim, outcome, rules.get(one.claim.id, Rules()), random=0.5) for one in self.page]
        with self.transaction() as connection:
            expected = {change.id: self._apply(change) for change in changes}
            assert default_store.apply(connection, changes) == expected

    # ---- operators

    @precondition(lambda self: self.jobs)
    @rule(
        name=st.sampled_from(sorted(OPERATORS)), chosen=st.sets(which, min_size=1), queue=st.none() | queues, kept=kept
    )
    def operate(self, name: str, chosen: set[int], queue: str | None, kept: bool) -> None:
        """On some jobs, or on all of a queue."""
        newest = sorted(self.jobs, reverse=True)
        ids = {newest[back] for back in chosen if back < len(newest)}
        if queue is not None:
            ids = {id for id, job in self.jobs.items() if job.queue == queue}
        where = Job.id.in_(ids) if queue is None else Job.queue == queue
        with self.transaction(kept=kept) as connection:
            found = connection.scalars(OPERATORS[name](where)).all()
            self._operated(name, [id for id in sorted(ids) if self._operate(name, self.jobs[id])], found)

    def _operate(self, name: str, job: Tracked) -> bool:
        if name == "retry" and (job.status in FINISHED or job.is_late) and job.key is not None and not job.holds:
            self._take_key(job)
            if not job.holds:
                return False
        done: bool = getattr(job, name)()
        if job.status in FINISHED:
            job.holds = False
        return done

    def _operated(self, name: str, wanted: list[int], found: Any) -> None:
        assert sorted(found) == sorted(wanted)
        for id in wanted:
            job = self.jobs[id]
            if name == "retry":
                job.expires, job.has_deadline = job.expires and not job.expired, job.has_deadline and not job.overdue
                job.expired = job.overdue = False
                job.result = None
                job.comes(min(job.run_at, self.now))
            job.purge_at = LATER if job.status in FINISHED else None
            if job.status is not JobStatus.RUNNING:
                job.lapsed = False

    @precondition(lambda self: any(job.purge_at is not None for job in self.jobs.values()))
    @rule(limit=st.integers(1, 3), directly=st.booleans(), kept=kept)
    def prune(self, limit: int, directly: bool, kept: bool) -> None:
        """Those whose time is over, the longest over first; among jobs of one time any may be first."""
        over = {
            id: job.purge_at for id, job in self.jobs.items() if job.purge_at is not None and job.purge_at <= self.now
        }
        with self.transaction(kept=kept) as connection:
            if directly:
                deleted = set(connection.scalars(prune_jobs(limit=limit)))
            else:
                pruned = default_store.prune(connection, limit=limit)
                deleted = self.jobs.keys() - set(connection.scalars(select(TABLE.c.id)))
                assert pruned.jobs == len(deleted)
            assert deleted <= over.keys()
            assert sorted(over[id] for id in deleted) == sorted(over.values())[:limit]
            for id in deleted:
                del self.jobs[id]

    # ---- time

    @precondition(lambda self: any(not job.due for job in self.jobs.values()))
    @rule()
    def time_passes(self) -> None:
        """Scheduled jobs become due."""
        with self.transaction() as connection:
            connection.execute(update(TABLE).where(TABLE.c.run_at > func.now()).values(run_at=func.now()))
            for job in self.jobs.values():
                job.comes(min(job.run_at, self.now))

    @precondition(lambda self: self.jobs)
    @rule(chosen=st.sets(which, min_size=1), deadline=st.booleans())
    def limits_run_out(self, chosen: set[int], deadline: bool) -> None:
        """The expiry, or the deadline, of some jobs is over."""
        newest = sorted(self.jobs, reverse=True)
        ids = [newest[back] for back in chosen if back < len(newest)]
        with self.transaction() as connection:
            column = "deadline_at" if deadline else "expires_at"
            gone = func.now() - timedelta(seconds=1)
            connection.execute(update(TABLE).where(TABLE.c.id.in_(ids)).values({column: gone}))
            for id in ids:
                setattr(self.jobs[id], "overdue" if deadline else "expired", True)

    @precondition(lambda self: any(job.expired or job.overdue for job in self.jobs.values()))
    @rule(kept=kept)
    def end_late(self, kept: bool) -> None:
        """Maintenance ends jobs that still wait after their time."""
        with self.transaction(kept=kept) as connection:
            waits = (JobStatus.QUEUED, JobStatus.BLOCKED)
            waiting = {id: job for id, job in self.jobs.items() if job.status in waits}
            expired = [id for id, job in waiting.items() if job.expired and job.attempt == 0 and not job.rescues]
            overdue = [id for id, job in waiting.items() if job.overdue and id not in expired]
            assert sorted(one.id for one in default_store.end_expired(connection)) == sorted(expired)
            started = [id for id, job in waiting.items() if job.expired and id not in expired]
            assert sorted(default_store.forget_expiry(connection)) == sorted(started)
            for id in started:
                self.jobs[id].expired = self.jobs[id].expires = False
            assert sorted(one.id for one in default_store.end_overdue(connection)) == sorted(overdue)
            for id in [*expired, *overdue]:
                job = self.jobs[id]
                job.status = JobStatus.CANCELLED if id in expired else JobStatus.FAILED
                job.errors = min(job.errors + 1, MAX_ERRORS)
                job.holds, job.purge_at = False, LATER

    @precondition(lambda self: any(job.status is JobStatus.RUNNING and not job.lapsed for job in self.jobs.values()))
    @rule(chosen=st.sets(which, min_size=1))
    def leases_run_out(self, chosen: set[int]) -> None:
        running = sorted((id for id, job in self.jobs.items() if job.status is JobStatus.RUNNING), reverse=True)
        ids = [running[back] for back in chosen if back < len(running)]
        with self.transaction() as connection:
            gone = func.now() - timedelta(seconds=1)
            connection.execute(update(TABLE).where(TABLE.c.id.in_(ids)).values(lease_expires_at=gone))
            for id in ids:
                self.jobs[id].lapsed = True

    @precondition(lambda self: any(job.purge_at == LATER for job in self.jobs.values()))
    @rule()
    def nothing_is_kept_longer(self) -> None:
        with self.transaction() as connection:
            kept = TABLE.c.purge_at > func.now()
            connection.execute(update(TABLE).where(kept).values(purge_at=func.now()))
            for job in self.jobs.values():
                if job.purge_at is not None:
                    job.purge_at = min(job.purge_at, self.now)

    # ---- what must hold

    @invariant()
    def agree(self) -> None:
        """Every row is what the model says, and there is no other."""
        type(self).steps += 1
        with self.connection.begin():
            rows = self.connection.execute(
                select(TABLE, cast(TABLE.c.result, Text).label("kept"), func.now().label("now")).order_by(
                    TABLE.c.run_at, TABLE.c.id
                )
            )
            found = {row.id: row for row in rows}
            effects = dict(self.connection.execute(text("SELECT job_id, count(*) FROM effect GROUP BY 1")).all())
            keys = {row.key: row.job_id for row in self.connection.execute(select(UniqueKey.key, UniqueKey.job_id))}
        assert found.keys() == self.jobs.keys()
        assert keys == {job.key: id for id, job in self.jobs.items() if job.holds}
        for id, row in found.items():
            job = self.jobs[id]
            assert (row.status, row.claims, row.claim_token, row.attempt, row.rescues, row.worker) == (
                job.status, job.claims, job.claim_token, job.attempt, job.rescues, job.worker,
            )  # fmt: skip
            assert len(row.errors) == job.errors
            assert row.kept == job.result
            assert (row.schedule_id, row.tick_at, row.ticks) == (job.schedule, job.tick_at, job.ticks)
            assert (row.cancel_requested_at is not None) == job.cancel_requested
            assert (row.finished_at is not None) == (row.status in FINISHED)
            assert (row.lease_expires_at is not None) == (row.status == JobStatus.RUNNING)
            assert (row.lease_expires_at is not None and row.lease_expires_at <= row.now) == job.lapsed
            assert (row.run_at <= row.now) == job.due
            assert (row.purge_at is not None) == (job.purge_at is not None)
            assert (row.purge_at is not None and row.purge_at <= row.now) == (job.purge_at not in {None, LATER})
            assert (row.expires_at is not None) == (job.expired or job.expires)
            assert (row.deadline_at is not None) == (job.overdue or job.has_deadline)
            assert effects.get(id, 0) == job.effects
        due = [id for id, row in found.items() if row.run_at <= row.now]
        assert due == sorted(due, key=lambda one: (self.jobs[one].run_at, one))

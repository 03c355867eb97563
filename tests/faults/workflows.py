"""Random graphs under kills, row locks and operators, and what must come of them.

    with Stress(url, seed=1) as stress:
        stress.model(seconds=8)      # no operator: the end of each job is known beforehand
        stress.chaos(seconds=8)      # cancels, retries, pauses, discards: what holds however it went

Workers are processes that drive the store as a worker's claimer does, with small pages. A job's arguments say what its handler does:
"ok", "fail", "flaky" (fails at first), "slow" (commits with its transaction), "grow" (adds jobs), "die" (its first worker leaves it).
A trigger notes each change of a status, and whether a member was released although a parent had not ended.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
import time
import uuid
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from sqlalchemy import Engine, create_engine, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import Job, TaskName, Workflow
from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.rules.lifecycle import Change, Rules, decide
from sa_jobqueue.rules.outcomes import Completed, Discard, ErrorEntry, Outcome, Released, Rescued, Retry
from sa_jobqueue.sql.apply import Answer
from sa_jobqueue.sql.claims import ClaimRequest
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import (
    cancel_jobs,
    cancel_workflows,
    discard_jobs,
    pause_workflows,
    resume_workflows,
    retry_jobs,
    retry_workflow,
)
from sa_jobqueue.workflows import Node

__all__ = ["Stress", "expected"]

K = TypeVar("K", bound=Hashable)

LEASE = 1.5
WORKERS = 3
TASK = TaskName("t")
FATES = ["ok", "ok", "ok", "flaky", "slow", "grow", "die"]
#: However often its worker was killed, a job is begun again.
RULES = Rules(max_rescues=1_000)
_OPTIONS = "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_sort=off -c jit=off -c application_name=stress"

_AUDIT = (
    "CREATE SCHEMA audit",
    "CREATE TABLE audit.effect (job_id bigint, claims integer)",
    "CREATE TABLE audit.early (job_id bigint, parent_id bigint, beside boolean)",
    "CREATE TABLE audit.step (id bigserial, job_id bigint, was text, now text)",
    "CREATE INDEX ON audit.step (job_id)",
    """
    CREATE FUNCTION audit.stepped() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO audit.step (job_id, was, now) VALUES (NEW.id, OLD.status, NEW.status);
        IF OLD.status = 'blocked' AND NEW.status IN ('queued', 'completed') THEN
            INSERT INTO audit.early SELECT NEW.id, d.parent_id,
                -- One that needs some of its parents may be released while another of these adds a node before it: where that committed
                -- after the step's transaction had begun, the release counts as the first of the two. (A commit is seen a moment after its time.)
                coalesce(pg_xact_commit_timestamp(d.xmin) > now() - interval '20 ms', false)
                -- So may one whose parent an operator brings back at that moment: it is taken back when that is read.
                OR EXISTS (SELECT FROM audit.step s WHERE s.job_id = p.id AND s.was IN ('failed', 'cancelled', 'completed')
                    AND pg_xact_commit_timestamp(s.xmin) > now() - interval '20 ms')
            FROM sa_jobqueue.workflow_dependency d
            JOIN sa_jobqueue.job p ON p.id = d.parent_id
            WHERE d.child_id = NEW.id AND d.policy <> 'count'
                AND (p.status IN ('queued', 'blocked', 'running') OR d.policy = 'cancel' AND p.status <> 'completed');
        END IF;
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER stepped AFTER UPDATE OF status ON sa_jobqueue.job FOR EACH ROW WHEN (OLD.status IS DISTINCT FROM NEW.status)
    EXECUTE FUNCTION audit.stepped()
    """,
)


# ---- graphs


def random_graph(random: random.Random, *, fates: bool = True) -> Workflow:
    """A workflow of 2 to 30 nodes, with all joins and policies."""
    workflow = Workflow("stress", fail_fast=random.random() < 0.05)
    nodes: list[Node[Any]] = []
    for _ in range(random.choice([2, 3, 5, 8, 13, 30])):
        fate = "fail" if random.random() < 0.12 else random.choice(FATES)
        parents = random.sample(nodes, min(len(nodes), random.choice([0, 1, 1, 2, 3, 8])))
        task = TASK.options(priority=random.randrange(3), max_attempts=2)
        if not parents:
            nodes.append(workflow.add(task, fate=fate))
        elif random.random() < 0.15:
            nodes.append(workflow.gate(*parents))
        else:
            kinds = [workflow.all, workflow.settled, workflow.completed, workflow.any]
            join = random.choice([*kinds, lambda some: workflow.at_least(random.randint(1, len(some)), some)])(parents)
            nodes.append(workflow.after(join, task, fate=fate))
            if random.random() < 0.2:
                with suppress(ValueError):
                    workflow.depend(nodes[-1], random.choice(nodes))
    for on in (workflow.on_success, workflow.on_failure, workflow.on_end):
        on(TASK, fate="ok", callback=on.__name__)
    return workflow


def expected(jobs: Mapping[K, str], edges: Sequence[tuple[K, K, str]], needed: Mapping[K, int]) -> dict[K, str]:
    """How each job must end, by its fate: without operators, and whatever happens to workers."""
    parents: dict[K, list[tuple[K, str]]] = {}
    for child, parent, policy in edges:
        parents.setdefault(child, []).append((parent, policy))
    ends: dict[K, str] = {}

    def end_of(job: K) -> str:
        if job not in ends:
            mine = [(end_of(parent), policy) for parent, policy in parents.get(job, ())]
            broken = any(policy == "cancel" and end != "completed" for end, policy in mine)
            completed = sum(policy == "count" and end == "completed" for end, policy in mine)
            if broken or completed < needed.get(job, 0):
                ends[job] = "cancelled"
            else:
                ends[job] = "failed" if jobs[job] == "fail" else "completed"
        return ends[job]

    for job in jobs:
        end_of(job)
    return ends


# ---- workers


def work(url: str, seed: int) -> None:
    """A worker's rounds, until it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    engine = create_engine(url, connect_args={"options": _OPTIONS})
    worker = _Worker(random.Random(seed))
    while True:
        with suppress(DBAPIError), engine.connect() as connection:
            while True:
                worker.round(connection)


@dataclass
class _Worker:
    random: random.Random
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    changes: list[Change] = field(default_factory=list)
    touched: dict[int, int] = field(default_factory=dict)

    def round(self, connection: Any) -> None:
        random, store = self.random, default_store
        if random.random() < 0.05:
            self.touched |= dict.fromkeys(store.stray_workflows(connection), 0)
            connection.commit()
        if self.touched:
            done = store.advance(connection, self.touched, most=random.choice([1, 3, 50, 1000]))
            connection.commit()
            self.touched = dict.fromkeys(done.again | done.busy, 0)
        self._exchange(connection)
        if random.random() < 0.1:
            expired = store.expired(connection)
            ended = [decide(one.claim, Rescued(ErrorEntry("Lost", "x")), RULES, random=0.5) for one in expired]
            if ended:
                store.apply(connection, ended)
            connection.commit()
            self._touch(ended)
        if not self.changes and not self.touched:
            time.sleep(0.002)

    def _touch(self, changes: list[Change]) -> None:
        if self.random.random() < 0.97:  # else it is killed just now
            self.touched |= {change.workflow: 0 for change in changes if change.workflow is not None}

    def _exchange(self, connection: Any) -> None:
        random, store = self.random, default_store
        plain = [change for change in self.changes if change.plain]
        other = [change for change in self.changes if not change.plain]
        request = ClaimRequest(self.id, {"default": random.choice([1, 5, 40])}, LEASE)
        answers, jobs = store.exchange(connection, plain, request)
        if other:
            answers |= store.apply(connection, other)
        connection.commit()
        self._touch(self.changes)
        self.changes = [one for one in self.changes if answers.get(one.id, Answer.LOCKED) is Answer.LOCKED]
        for job in jobs:
            self._run(connection, job)

    def _run(self, connection: Any, job: ClaimedJob) -> None:
        random = self.random
        fate = json.loads(job.args or "{}").get("fate", "ok")
        outcome: Outcome = Completed()
        if fate == "fail":
            outcome = Discard("no") if random.random() < 0.5 else Retry(0)
        elif fate == "flaky" and job.attempt == 1:
            outcome = Retry(0)
        elif fate == "die" and job.rescues == 0:
            return
        elif random.random() < 0.02:
            outcome = Released(0.01)
        change = decide(job, outcome, RULES, random=0.5)
        if fate not in {"slow", "grow"} or change.event != "complete":
            self.changes.append(change)
            return
        try:
            given = {"id": job.id, "claims": job.claim_token % 1_000_000}
            connection.execute(text("INSERT INTO audit.effect VALUES (:id, :claims)"), given)
            if fate == "grow" and change.workflow is not None:
                self._grow(connection, job, change.workflow)
            call = text("SELECT sa_jobqueue.complete_member(:id, :token, NULL)")
            connection.execute(call, {"id": job.id, "token": job.claim_token})
            connection.commit()
            self._touch([change])
        except DBAPIError as error:
            connection.rollback()
            if error.connection_invalidated:
                raise

    def _grow(self, connection: Any, job: ClaimedJob, workflow: int) -> None:
        from sa_jobqueue.workflows import Addition

        more = Addition(workflow, me=job.id)
        added = [more.add(TASK, fate=self.random.choice(["ok", "fail", "slow"])) for _ in range(2)]
        after = more.after(more.settled(added), TASK, fate="ok")
        if self.random.random() < 0.5:
            more.after([more.me, after], TASK, fate="ok")
        if self.random.random() < 0.5:
            more.before_children(after)
        connection.execute(more.insert())


# ---- the stress


class Stress:
    """Workers on one database, tormented, and what was found wrong."""

    def __init__(self, url: str, *, seed: int, workers: int = WORKERS) -> None:
        self._url, self._random, self._workers = url, random.Random(seed), workers
        self._processes: list[Any] = []
        self._spawn = multiprocessing.get_context("spawn")
        self.findings: list[str] = []
        self.did: Counter[str] = Counter()
        self.jobs = 0

    def __enter__(self) -> Self:
        self._engine: Engine = create_engine(self._url)
        with self._engine.begin() as connection:
            for statement in _AUDIT:
                connection.execute(text(statement))
        for _ in range(self._workers):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._engine.dispose()

    def _start(self) -> None:
        process = self._spawn.Process(target=work, args=(self._url, self._random.randrange(2**30)), daemon=True)
        process.start()
        self._processes.append(process)

    def model(self, seconds: float, *, graphs: int = 40, patience: float = 60.0) -> None:
        """Kills, locks and nothing else; then each job must have ended as its fate says. And again, after retries below single jobs."""
        self._enqueue(graphs)
        self._torment(seconds, operators=False)
        self._drain(patience)
        self._check_model()
        with self._engine.begin() as connection:
            failed = connection.execute(select(Job.id, Job.workflow_id).where(Job.status == "failed")).all()
            for job_id, workflow in self._random.sample(failed, len(failed) // 2):
                healed = text("UPDATE sa_jobqueue.job SET args = jsonb_set(args, '{fate}', '\"ok\"') WHERE id = :id")
                connection.execute(healed, {"id": job_id})
                self.did["retry of a node"] += len(connection.execute(retry_workflow(workflow, from_node=job_id)).all())
        self._torment(seconds / 2, operators=False)
        self._drain(patience)
        self._check_model()
        self._check()

    def chaos(self, seconds: float, *, patience: float = 60.0) -> None:
        """Everything at once; then what holds in any case."""
        self._enqueue(40)
        self._torment(seconds, operators=True)
        with self._engine.begin() as connection:
            paused = connection.scalars(text("SELECT id FROM sa_jobqueue.workflow WHERE paused_at IS NOT NULL")).all()
            connection.execute(resume_workflows(*paused))
        self._drain(patience)
        self._check()

    def _enqueue(self, graphs: int) -> None:
        with Session(self._engine) as session:
            session.add_all([random_graph(self._random) for _ in range(graphs)])
            session.commit()

    # ---- torment

    def _torment(self, seconds: float, *, operators: bool) -> None:
        until = time.monotonic() + seconds
        kill_at = time.monotonic() + 0.7
        while time.monotonic() < until:
            time.sleep(self._random.random() * 0.02)
            if time.monotonic() > kill_at:
                kill_at += 0.7
                self._kill()
            acts = [self._lock, self._end_backend, *([self._operate] * 8 if operators else [])]
            try:
                self._random.choice(acts)()
            except DBAPIError as error:
                self.findings.append(f"an operator's statement failed: {error.orig}")
        if not operators and self._random.random() < 1:
            self.did["rounds"] += 1

    def _kill(self) -> None:
        process = self._processes.pop(0)
        process.kill()
        process.join()
        self._start()
        self.did["kill"] += 1

    def _end_backend(self) -> None:
        if self._random.random() < 0.9:
            return
        with self._engine.begin() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                    "AND application_name = 'stress' ORDER BY random() LIMIT 1"
                )
            )
        self.did["end of a backend"] += 1

    def _lock(self) -> None:
        if self._random.random() < 0.7:
            return
        kind = self._random.choice(["job", "job", "workflow"])
        with self._engine.begin() as connection:
            locked = text(f"SELECT id FROM sa_jobqueue.{kind} WHERE id % 20 = :rest ORDER BY id FOR UPDATE")
            connection.execute(locked, {"rest": self._random.randrange(20)})
            time.sleep(0.03)
        self.did["lock"] += 1

    def _operate(self) -> None:
        random = self._random
        with self._engine.begin() as connection:
            workflow = connection.scalar(text("SELECT id FROM sa_jobqueue.workflow ORDER BY random() LIMIT 1"))
            some = Job.id % 37 == random.randrange(37)
            broken = text(
                "SELECT id, workflow_id FROM sa_jobqueue.job WHERE status = 'failed' AND workflow_id IS NOT NULL ORDER BY random() LIMIT 1"
            )
            match what := random.choice(
                [
                    "cancel",
                    "retry",
                    "retry from",
                    "cancel jobs",
                    "retry jobs",
                    "discard jobs",
                    "pause",
                    "resume",
                    "add",
                    "new",
                ]
            ):
                case "cancel":
                    connection.execute(cancel_workflows(workflow))
                case "retry":
                    connection.execute(retry_workflow(workflow))
                case "retry from":
                    if (found := connection.execute(broken).first()) is not None:
                        connection.execute(retry_workflow(found.workflow_id, from_node=found.id))
                case "cancel jobs":
                    connection.execute(cancel_jobs(some, Job.workflow_id.is_not(None)))
                case "retry jobs":
                    connection.execute(
                        retry_jobs(some, Job.status.in_(["failed", "cancelled"]), Job.workflow_id.is_not(None))
                    )
                case "discard jobs":
                    connection.execute(discard_jobs(some, Job.workflow_id.is_not(None)))
                case "pause":
                    connection.execute(pause_workflows(workflow))
                case "resume":
                    connection.execute(resume_workflows(workflow))
                case "add":
                    more = Workflow.at(workflow)
                    live = text("SELECT id FROM sa_jobqueue.job WHERE workflow_id = :flow ORDER BY random() LIMIT 2")
                    parents = [more.node(one) for one in connection.scalars(live, {"flow": workflow})]
                    more.after(more.settled(parents), TASK, fate="ok")
                    with suppress(DBAPIError), connection.begin_nested():  # it has ended
                        connection.execute(more.insert())
                case "new":
                    session = Session(connection)
                    session.add(random_graph(random))
                    session.flush()
            self.did[what] += 1

    # ---- looking

    def _drain(self, patience: float) -> None:
        until = time.monotonic() + patience
        left = text(
            "SELECT (SELECT count(*) FROM sa_jobqueue.job WHERE status IN ('queued', 'blocked', 'running')) AS jobs, "
            "(SELECT count(*) FROM sa_jobqueue.workflow_event) AS events, "
            "(SELECT count(*) FROM sa_jobqueue.workflow WHERE finished_at IS NULL) AS workflows"
        )
        while True:
            with self._engine.connect() as connection:
                found = connection.execute(left).one()
            if not any(found):
                return
            if time.monotonic() > until:
                self.findings.append(f"not done: {found.jobs} jobs, {found.events} events, {found.workflows} workflows")
                return
            time.sleep(0.05)

    def _rows(self, query: str) -> list[Any]:
        with self._engine.connect() as connection:
            return list(connection.execute(text(query)))

    def _check_model(self) -> None:
        rows = self._rows(
            "SELECT id, coalesce(args ->> 'fate', 'ok'), status, workflow_id FROM sa_jobqueue.job WHERE workflow_id IS NOT NULL"
        )
        fast = {row.id for row in self._rows("SELECT id FROM sa_jobqueue.workflow WHERE fail_fast")}
        edges = [
            tuple(row) for row in self._rows("SELECT child_id, parent_id, policy FROM sa_jobqueue.workflow_dependency")
        ]
        needed = {row.job_id: row.needed for row in self._rows("SELECT job_id, needed FROM sa_jobqueue.workflow_join")}
        ends = expected({row[0]: row[1] for row in rows}, edges, needed)
        for job_id, fate, status, workflow in rows:
            if status != ends[job_id] and workflow not in fast:
                self.findings.append(f"job {job_id} ({fate}) is {status}, and must be {ends[job_id]}")

    def _check(self) -> None:
        self.jobs = self._rows("SELECT count(*) FROM sa_jobqueue.job")[0][0]
        for what, query in {
            "released early": "SELECT * FROM audit.early WHERE NOT beside",
            "a child completed though a parent did not": (
                "SELECT d.* FROM sa_jobqueue.workflow_dependency d JOIN sa_jobqueue.job p ON p.id = d.parent_id "
                "JOIN sa_jobqueue.job k ON k.id = d.child_id "
                "WHERE d.policy = 'cancel' AND p.status <> 'completed' AND k.status = 'completed'"
            ),
            "an effect twice": "SELECT job_id FROM audit.effect GROUP BY job_id HAVING count(*) > 1",
            "a step from nowhere": (
                "SELECT job_id FROM (SELECT job_id, was, lag(now) OVER (PARTITION BY job_id ORDER BY id) AS before FROM audit.step) AS s "
                "WHERE before IS NOT NULL AND before <> was"
            ),
            "a workflow's status": (
                "SELECT w.id, w.status FROM sa_jobqueue.workflow w WHERE w.status <> CASE "
                "WHEN EXISTS (SELECT FROM sa_jobqueue.job WHERE workflow_id = w.id AND status = 'failed') THEN 'failed' "
                "WHEN EXISTS (SELECT FROM sa_jobqueue.job WHERE workflow_id = w.id AND status = 'cancelled') THEN 'cancelled' ELSE 'completed' END"
            ),
            "a callback twice": (
                "SELECT meta ->> 'workflow_id', args ->> 'callback' FROM sa_jobqueue.job WHERE workflow_id IS NULL "
                "AND args ->> 'callback' <> 'on_end' GROUP BY 1, 2 HAVING count(*) > 1"
            ),
            "no end called back": (
                "SELECT w.id FROM sa_jobqueue.workflow w WHERE NOT EXISTS (SELECT FROM sa_jobqueue.job j "
                "WHERE j.meta ->> 'workflow_id' = w.id::text AND j.args ->> 'callback' = 'on_end')"
            ),
            "kept for ever": "SELECT id FROM sa_jobqueue.workflow WHERE purge_at IS NULL",
        }.items():
            found = self._rows(query)
            if found:
                self.findings.append(f"{what}: {len(found)}, as {tuple(found[0])}")

    def __str__(self) -> str:
        return f"{self.jobs} jobs; " + ", ".join(f"{name}: {number}" for name, number in sorted(self.did.items()))

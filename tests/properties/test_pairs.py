"""Two transactions at once, for each pair of operations: neither fails, and it ends as if one had come after the other.

Three meetings are forced, without a clock: the second comes while the first is open, which then commits, or rolls back;
and the second has taken its snapshot, but not yet a lock, when the first comes and commits. To hold a statement at that
point, a row security policy asks a function that waits for an advisory lock before each row.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, delete, func, literal_column, select, text, update
from sqlalchemy.pool import NullPool

from sa_jobqueue import TaskName
from sa_jobqueue.models import Job
from sa_jobqueue.rules.lifecycle import Change, Rules, decide
from sa_jobqueue.rules.outcomes import Completed, ErrorEntry, Outcome, Rescued, Retry, Snooze
from sa_jobqueue.sql.apply import Answer
from sa_jobqueue.sql.claims import ClaimRequest
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import cancel_jobs, discard_jobs, insert_jobs, release_jobs, retry_jobs
from tests.support.factory import TABLE, make_job, seen
from tests.support.nightly import is_nightly, nightly_sets
from tests.support.waiting import wait_until

AGO = timedelta(minutes=-1)
KEPT, DELETED = Rules(retain=60), Rules(retain=0)

#: The state in which two jobs are when the two transactions come.
STATES: dict[str, dict[str, Any]] = {
    "queued": {"status": "queued"},
    "running": {"status": "running"},
    "running, lease over": {"status": "running", "lease_expires_at": AGO},
    "running, asked to cancel": {"status": "running", "cancel_requested_at": AGO},
    "completed, time over": {"status": "completed", "purge_at": AGO},
}

#: Says what it did to the two jobs (0 and 1). None: nothing, and a worker would come again.
Operation = Callable[[Connection, "World"], Any]


@dataclass
class World:
    """Two jobs, and what the claim of each would have seen, if it runs."""

    ids: list[int]
    changes: Callable[[Outcome, Rules], list[Change]]
    held: dict[int, int]
    answers: dict[int, Answer] = field(default_factory=dict)
    """What a batch was told of a part of its jobs, until it has come again for those that were locked."""

    def places(self, ids: Any) -> Any:
        return sorted(self.ids.index(one) for one in ids) or None


def ended(outcome: Outcome, rules: Rules = KEPT) -> Operation:
    """As the worker's batch writes it: past what others have locked, for which it comes again."""

    def run(connection: Connection, world: World) -> Any:
        left = [change for change in world.changes(outcome, rules) if change.id not in world.answers]
        answers = default_store.apply(connection, left)
        if Answer.LOCKED in answers.values():
            world.answers = {one: answer for one, answer in answers.items() if answer is not Answer.LOCKED}
            return None
        answers, world.answers = {**world.answers, **answers}, {}
        return [answers[one] for one in world.ids]

    return run


def ended_in_session(outcome: Outcome) -> Operation:
    """As a handler's own transaction writes it, for the first of the two jobs: it waits for who has locked the row."""
    return lambda connection, world: default_store.apply_one(connection, world.changes(outcome, KEPT)[0])


def claim(connection: Connection, world: World) -> Any:
    return world.places(
        job.id for job in default_store.claim(connection, ClaimRequest(worker="me", queues={"default": 9}, lease=60))
    )


def renew(connection: Connection, world: World) -> Any:
    renewal = default_store.renew(connection, world.held, lease=60)
    return None if renewal.locked else (world.places(renewal.lost), world.places(renewal.cancel_requested))


def prune(connection: Connection, world: World) -> Any:
    return default_store.prune(connection).jobs or None


def enqueue(connection: Connection, world: World) -> Any:
    return len(connection.scalars(insert_jobs([TaskName("new").options(queue="other").call()])).all())


def operate(builder: Callable[..., Any]) -> Operation:
    return lambda connection, world: world.places(connection.scalars(builder(Job.id.in_(world.ids))))


OPERATIONS: dict[str, Operation] = {
    "enqueue": enqueue,
    "claim": claim,
    "complete": ended(Completed()),
    "complete and delete": ended(Completed(), DELETED),
    "complete in session": ended_in_session(Completed()),
    "snooze in session": ended_in_session(Snooze(60)),
    "fail": ended(Retry(0)),
    "snooze": ended(Snooze(60)),
    "renew": renew,
    "rescue": ended(Rescued(ErrorEntry("WorkerLost", "its lease ran out"))),
    "cancel": operate(cancel_jobs),
    "retry": operate(retry_jobs),
    "discard": operate(discard_jobs),
    "release": operate(release_jobs),
    "prune": prune,
}

NAMED = [
    *(("complete", other) for other in ("cancel", "rescue")),
    *(("complete in session", other) for other in ("cancel", "rescue", "complete")),
    ("snooze in session", "cancel"),
    ("complete and delete", "rescue"),
    *(("claim", other) for other in ("cancel", "prune")),
    ("renew", "rescue"),
]
ALSO = [
    *(("complete", other) for other in ("retry", "discard")),
    *(("complete in session", other) for other in ("retry", "renew")),
    ("snooze in session", "rescue"),
    ("complete and delete", "cancel"),
    ("claim", "discard"),
    ("enqueue", "prune"),
    ("renew", "complete"),
]
PAIRS = (
    list(product(OPERATIONS, repeat=2))
    if is_nightly()
    else [*NAMED, *nightly_sets(*ALSO, *((b, a) for a, b in [*NAMED, *ALSO]))]
)


class Stage:
    """Three connections: one for each transaction, one that watches, and the hold on the second."""

    HOLD = 4_711

    def __init__(self, engine: Engine, role: str) -> None:
        self.first, self.second, self.watcher = (engine.connect() for _ in range(3))
        self.threads = ThreadPoolExecutor(1)
        self.pid = self.second.scalar(text("SELECT pg_backend_pid()"))
        for connection in (self.first, self.second):
            connection.exec_driver_sql("SET lock_timeout = '20s'")
            connection.commit()
        self.second.exec_driver_sql(f"SET ROLE {role}")
        self.second.commit()

    def close(self) -> None:
        self.threads.shutdown()
        for connection in (self.first, self.second, self.watcher):
            connection.close()

    def world(self, state: str) -> World:
        """Two jobs in `state`, and no others."""
        with self.watcher.begin():
            self.watcher.execute(delete(TABLE))
            ids = [make_job(self.watcher, **STATES[state]) for _ in range(2)]
            claims = [seen(self.watcher, one) for one in ids]
        return World(
            ids,
            lambda outcome, rules: [decide(one, outcome, rules, random=0.5) for one in claims],
            {one.id: one.claim_token for one in claims},
        )

    def outcome(self, world: World) -> Any:
        """What the two jobs are now, without times; and how many others there are."""
        c = TABLE.c
        due = c.run_at <= func.now()
        kind = func.jsonb_path_query_array(c.errors, literal_column("'$.type'"))
        given = (c.cancel_requested_at, c.finished_at, c.purge_at, c.lease_expires_at)
        columns = (c.status, c.claims, c.attempt, c.rescues, c.worker, due, kind, *(one.is_(None) for one in given))
        over = func.coalesce(c.lease_expires_at <= func.now(), False)
        with self.watcher.begin():
            rows = {row.id: tuple(row)[1:] for row in self.watcher.execute(select(c.id, *columns, over))}
        return [rows.pop(one, "deleted") for one in world.ids], len(rows)

    def alone(self, world: World, connection: Connection, operation: Operation) -> Any:
        with connection.begin():
            return operation(connection, world)

    def start(self, world: World, operation: Operation) -> Future[Any]:
        """Begin the second transaction; come back when it is done, or waits."""
        future = self.threads.submit(operation, self.second, world)
        wait_until(lambda: future.done() or self.waits(), message="the second to wait or to be done")
        return future

    def waits(self) -> bool:
        with self.watcher.begin():
            asked = text("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = :pid")
            return bool(self.watcher.scalar(asked, {"pid": self.pid}))

    def finish(self, world: World, future: Future[Any], operation: Operation) -> Any:
        """The second's answer; where it could do nothing it comes again, as a worker does."""
        answer = future.result(30)
        self.second.commit()
        return self.alone(world, self.second, operation) if answer is None else answer


@pytest.fixture
def stage(database_url: str) -> Iterator[Stage]:
    engine, role = create_engine(database_url, poolclass=NullPool), f"pairs_{secrets.token_hex(6)}"
    with engine.begin() as connection:
        for statement in (
            f"CREATE ROLE {role}",
            f"GRANT USAGE ON SCHEMA sa_jobqueue TO {role}",
            f"GRANT ALL ON ALL TABLES IN SCHEMA sa_jobqueue TO {role}",
            f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA sa_jobqueue TO {role}",
            f"""
            CREATE FUNCTION hold() RETURNS boolean LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_advisory_xact_lock_shared({Stage.HOLD}); RETURN true; END $$
            """,
            "CREATE POLICY hold ON sa_jobqueue.job USING (public.hold())",
            "ALTER TABLE sa_jobqueue.job ENABLE ROW LEVEL SECURITY",
        ):
            connection.exec_driver_sql(statement)
    stage = Stage(engine, role)
    yield stage
    stage.close()
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {role}")
        connection.exec_driver_sql(f"DROP ROLE {role}")


def in_turn(stage: Stage, state: str, *operations: Operation) -> Any:
    """What becomes of one after the other: the answers, and the end."""
    world = stage.world(state)
    answers = [stage.alone(world, stage.first, one) for one in operations]
    return answers, stage.outcome(world)


def second_comes_while_first_is_open(stage: Stage, state: str, first: Operation, second: Operation, *, commits: bool) -> Any:  # fmt: skip
    world = stage.world(state)
    answer = first(stage.first, world)
    future = stage.start(world, second)
    stage.first.commit() if commits else stage.first.rollback()
    return [answer, stage.finish(world, future, second)], stage.outcome(world)


def second_has_its_snapshot_when_first_comes(stage: Stage, state: str, first: Operation, second: Operation) -> Any:
    world = stage.world(state)
    with stage.watcher.begin():
        stage.watcher.execute(select(func.pg_advisory_lock(Stage.HOLD)))
    future = stage.start(world, second)
    answer = stage.alone(world, stage.first, first)
    with stage.watcher.begin():
        stage.watcher.execute(select(func.pg_advisory_unlock(Stage.HOLD)))
    return [answer, stage.finish(world, future, second)], stage.outcome(world)


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_at_once_are_one_after_the_other(stage: Stage, one: str, other: str) -> None:
    """Whichever comes first, and wherever the second waits: no error, no deadlock, and one of the two serial ends."""
    first, second = OPERATIONS[one], OPERATIONS[other]
    for state in STATES:
        serial = in_turn(stage, state, first, second)
        answers, end = in_turn(stage, state, second, first)
        serial_ends = [serial, (answers[::-1], end)]
        alone = in_turn(stage, state, second)

        assert second_comes_while_first_is_open(stage, state, first, second, commits=True) in serial_ends, state
        assert second_has_its_snapshot_when_first_comes(stage, state, first, second) in serial_ends, state
        (_, answer), end = second_comes_while_first_is_open(stage, state, first, second, commits=False)
        assert ([answer], end) == alone, state


def test_looking_and_then_cancelling_is_no_serial_end(stage: Stage) -> None:
    """The same stage with a SELECT and an UPDATE by id in place of the statement: so the test above can fail."""

    def look_then_cancel(connection: Connection, world: World) -> Any:
        waiting = connection.scalars(select(TABLE.c.id).where(TABLE.c.status == "queued")).all()
        connection.execute(update(TABLE).where(TABLE.c.id.in_(waiting)).values(status="cancelled"))
        return world.places(waiting)

    first_claim = in_turn(stage, "queued", claim, look_then_cancel)
    (cancelled, claimed), end = in_turn(stage, "queued", look_then_cancel, claim)

    found = second_has_its_snapshot_when_first_comes(stage, "queued", claim, look_then_cancel)

    assert found not in [first_claim, ([claimed, cancelled], end)]
    assert {row[0] for row in found[1][0]} == {"cancelled"}
    assert {row[1] for row in found[1][0]} == {1}

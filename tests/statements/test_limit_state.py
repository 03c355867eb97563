"""What is kept beside the limits: who has to wait because a job was rate limited, and rows that say nothing any more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, func, insert, select, update

from sa_jobqueue import KeyLimits, Limits, Rate
from sa_jobqueue.models import TASK_GROUP, LimitRow, LimitState
from sa_jobqueue.rules.lifecycle import JobStatus
from sa_jobqueue.rules.outcomes import Completed, RateLimited, Snooze
from sa_jobqueue.sql.apply import Answer
from sa_jobqueue.sql.claims import ClaimRequest
from sa_jobqueue.sql.limits.claims import LimitedRequest
from sa_jobqueue.sql.limits.declared import declare_new_limit
from sa_jobqueue.sql.limits.state import FIRST_STATE, StateKey
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.sql.waking import channel_of
from sa_jobqueue.statements import cancel_jobs, pause, set_limit
from tests.statements.conftest import connected
from tests.support.factory import TABLE, change, completed, make_job, make_jobs, row, statuses, wait_until_blocked_by

STATE, LIMIT = LimitState.__table__, LimitRow.__table__


def blocked(connection: Connection) -> dict[tuple[str, str, str], float]:
    """For which each has to wait: seconds from this transaction's begin, to the next five."""
    seconds = func.extract("epoch", STATE.c.blocked_until - func.now())
    found = connection.execute(select(STATE.c.owner, STATE.c.name, STATE.c.key, seconds))
    return {(owner, name, key): 5 * round(float(left) / 5) for owner, name, key, left in found}


def limits(connection: Connection) -> list[str]:
    return list(connection.scalars(select(LIMIT.c.name).where(LIMIT.c.owner == "queue").order_by(LIMIT.c.name)))


def apply(connection: Connection, *ids: int, seconds: float = 30.0) -> list[Answer]:
    answers = default_store.apply(connection, [change(connection, id, RateLimited(seconds)) for id in ids])
    return [answers[id] for id in ids]


def claim(connection: Connection, *queues: str) -> list[int]:
    """The jobs that a worker gets, which reads the limits before."""
    known = default_store.read_limits(connection, queues)
    limited = {name: 10 for name in queues if name in known.queues or known.tasks}
    plain = {name: 10 for name in queues if name not in limited}
    jobs = []
    if limited:
        request = LimitedRequest("me", limited, 60.0, tasks=known.tasks, known=known.version)
        jobs += default_store.claim_limited(connection, [], request)[1]
    if plain:
        jobs += default_store.claim(connection, ClaimRequest("me", plain, 60.0, known=known.version))
    return [job.id for job in jobs]


@contextmanager
def counted(engine: Engine) -> Iterator[list[str]]:
    """The statements that are executed meanwhile."""
    seen: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


# ---- jobs that were rate limited


@pytest.mark.parametrize("key", ["42", "\x02"])
def test_the_jobs_of_a_key_wait(connection: Connection, key: str) -> None:
    """And no others: the queue has a key that waits, and no limit. The lowest key that can be given is one, too."""
    one = make_job(connection, "running", queue="sync", concurrency_key=key, attempt=3)
    same, other = (make_job(connection, queue="sync", concurrency_key=key) for key in (key, "43"))

    assert apply(connection, one) == [Answer.APPLIED]

    assert blocked(connection) == {("queue", "sync", key): 30}
    assert limits(connection) == []
    job = row(connection, one)
    assert (job.status, job.attempt, job.errors) == (JobStatus.QUEUED, 2, [])
    connection.commit()
    assert claim(connection, "sync") == [other]
    connection.execute(update(STATE).values(blocked_until=func.now()))
    assert claim(connection, "sync") == [same]


@pytest.mark.parametrize("key", [None, f"{TASK_GROUP}a_task"])
def test_without_a_key_the_queue_waits(connection: Connection, key: str | None) -> None:
    """It is claimed from under limits from now on, by a row that limits nothing. The key of a limited task's jobs is none."""
    one = make_job(connection, "running", queue="sync", concurrency_key=key)
    waiting, elsewhere = make_job(connection, queue="sync"), make_job(connection, queue="mail")

    apply(connection, one)

    assert blocked(connection) == {("queue", "sync", ""): 30}
    assert limits(connection) == ["sync"]
    connection.commit()
    assert claim(connection, "sync", "mail") == [elsewhere]
    connection.execute(update(STATE).values(blocked_until=func.now()))
    assert claim(connection, "sync") == [waiting]


def test_an_operator_who_is_making_the_queues_row_holds_up_no_outcome(
    connection: Connection, other: Connection
) -> None:
    """The job is given back at once. If the operator's row does not come, maintenance makes one, and the others wait."""
    one = make_job(connection, "running", queue="sync")
    waiting = make_job(connection, queue="sync")
    connection.commit()
    other.execute(pause("sync"))

    assert apply(connection, one) == [Answer.APPLIED]
    connection.commit()
    other.rollback()
    assert limits(connection) == []
    default_store.forget_states(connection)
    assert limits(connection) == ["sync"]
    assert claim(connection, "sync") == []
    connection.execute(update(STATE).values(blocked_until=func.now()))
    assert claim(connection, "sync") == [waiting]


def test_a_job_waits_as_long_as_its_key(connection: Connection) -> None:
    """By the time at which it is written, not that at which the handler's transaction began."""
    one = make_job(connection, "running", concurrency_key="42")
    connection.commit()
    connection.execute(select(func.pg_sleep(0.1)))

    default_store.apply_one(connection, change(connection, one, RateLimited(30)))

    until = connection.scalar(select(STATE.c.blocked_until))
    assert until is not None
    assert timedelta(0) <= until - row(connection, one).run_at < timedelta(seconds=1)
    assert until - connection.scalar(select(func.now())) > timedelta(seconds=30.09)


def test_a_longer_wait_stays(connection: Connection) -> None:
    """Within a batch, too."""
    first, second, third = make_jobs(connection, 3, "running", concurrency_key="42")
    changes = [change(connection, id, RateLimited(seconds)) for id, seconds in ((first, 50), (second, 90))]

    default_store.apply(connection, changes)
    apply(connection, third, seconds=10)

    assert blocked(connection) == {("queue", "default", "42"): 90}


def test_a_cancel_meanwhile_lets_the_others_wait_all_the_same(connection: Connection) -> None:
    """The other side has said so."""
    one = make_job(connection, "running", concurrency_key="42")
    connection.execute(cancel_jobs(TABLE.c.id == one))

    assert apply(connection, one) == [Answer.CANCELLED]

    assert blocked(connection) == {("queue", "default", "42"): 30}


def test_a_lost_claim_says_nothing(connection: Connection) -> None:
    """Neither in a batch nor in the handler's transaction."""
    one = make_job(connection, "running")
    late = change(connection, one, RateLimited(30))._replace(claim_token=99)

    assert default_store.apply(connection, [late]) == {one: Answer.LOST}
    assert default_store.apply_one(connection, late) is Answer.LOST

    assert blocked(connection) == {}
    assert limits(connection) == []


def test_what_is_not_committed_never_was(connection: Connection, other: Connection) -> None:
    """The job, the wait and the row of the queue are one transaction."""
    one = make_job(connection, "running")
    connection.commit()
    assert default_store.apply_one(connection, change(connection, one, RateLimited(30))) is Answer.APPLIED
    assert blocked(connection) == {("queue", "default", ""): 30}
    assert blocked(other) == {}
    connection.rollback()
    assert blocked(connection) == {}
    assert limits(connection) == []


def test_only_the_first_tells_the_workers_of_a_new_limit(connection: Connection) -> None:
    """Each change of limits makes all of them read the limits again."""
    first, second = make_jobs(connection, 2, "running")
    apply(connection, first)
    version = connection.scalar(select(LIMIT.c.version))
    connection.commit()

    connection.exec_driver_sql(f'LISTEN "{connection.scalar(channel_of(table="job"))}"')
    connection.commit()
    apply(connection, second, seconds=60)
    connection.commit()

    assert connection.scalar(select(LIMIT.c.version)) == version
    raw: Any = connection.connection.dbapi_connection
    assert [one.payload for one in raw.notifies(timeout=0.2)] == []


def test_two_first_ones_at_once_make_one_row(engine: Engine, connection: Connection, other: Connection) -> None:
    """The second waits for the first, and stays longer."""
    first, second = make_jobs(connection, 2, "running")
    connection.commit()
    changes = [change(connection, first, RateLimited(30)), change(connection, second, RateLimited(60))]
    default_store.apply(connection, changes[:1])
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(default_store.apply(other, changes[1:])))
    thread.start()
    wait_until_blocked_by(connection)
    connection.commit()
    thread.join(30)
    other.commit()
    assert answers == [{second: Answer.APPLIED}]
    assert blocked(connection) == {("queue", "default", ""): 60}
    assert limits(connection) == ["default"]


def test_no_other_outcome_costs_a_statement(engine: Engine, connection: Connection) -> None:
    """Neither a plain completion nor a snooze."""
    one, two, three, four = make_jobs(connection, 4, "running")
    outcomes = [change(connection, two, Snooze(30)), change(connection, three, RateLimited(0))]
    assert change(connection, four, Completed()).plain
    assert not change(connection, four, RateLimited(30)).plain
    with counted(engine) as plain:
        default_store.apply(connection, [completed(one)])
    with counted(engine) as general:
        default_store.apply(connection, outcomes)
    with counted(engine) as limited:
        apply(connection, four)
    assert len(plain) == len(general) == 1
    assert len([one for one in limited if "limit" in one]) == 2
    assert set(statuses(connection).values()) == {"completed", "queued"}


# ---- rows that say nothing any more


def make_states(connection: Connection, *states: dict[str, Any]) -> None:
    """A timedelta counts from now."""
    for state in states:
        said = {name: func.now() + value if isinstance(value, timedelta) else value for name, value in state.items()}
        connection.execute(insert(STATE).values({"owner": "queue", "name": "sync", "key": "", **said}))


def keys(connection: Connection) -> list[str]:
    return list(connection.scalars(select(STATE.c.key).order_by(STATE.c.key)))


LONG, JUST, LATER = timedelta(seconds=-61), timedelta(seconds=-59), timedelta(seconds=9)


def test_what_is_over_is_forgotten(connection: Connection) -> None:
    """A rate that is as if nothing had started, and a wait that is over, for a minute; of both kinds."""
    make_states(
        connection,
        {"key": "never"},
        {"key": "rate", "free_at": LONG},
        {"key": "wait", "blocked_until": LONG},
        {"key": "both", "free_at": LONG, "blocked_until": LONG, "owner": "task"},
        {"key": "rate just now", "free_at": JUST, "blocked_until": LONG},
        {"key": "wait just now", "free_at": LONG, "blocked_until": JUST},
        {"key": "waits", "blocked_until": LATER},
    )
    assert default_store.forget_states(connection) == (None, 4)
    assert keys(connection) == ["rate just now", "wait just now", "waits"]


def test_the_next_claim_counts_from_the_start(connection: Connection) -> None:
    """An older job that was set to running by hand is counted from then on; the row goes the next time."""
    connection.execute(set_limit("sync", running=1))
    by_hand = make_job(connection, queue="sync")
    make_job(connection, queue="sync")
    make_states(connection, {"lowest_id": by_hand + 1})
    connection.execute(update(TABLE).where(TABLE.c.id == by_hand).values(status="running", claim_token=5))

    assert default_store.forget_states(connection) == (None, 0)
    assert connection.scalar(select(STATE.c.lowest_id)) is None
    connection.commit()

    assert claim(connection, "sync") == []
    assert default_store.forget_states(connection) == (None, 1)


def test_a_row_in_use_keeps_its_times(connection: Connection) -> None:
    """Only the lowest id is forgotten."""
    make_states(connection, {"free_at": LATER, "blocked_until": LATER, "lowest_id": 7})
    default_store.forget_states(connection)
    (state,) = connection.execute(select(STATE)).all()
    assert (state.lowest_id, state.free_at is None, state.blocked_until is None) == (None, False, False)


def test_it_looks_at_pages(connection: Connection) -> None:
    """Those that stay are not looked at again in the same turn."""
    make_states(connection, *({"key": str(number), "free_at": LATER if number % 2 else LONG} for number in range(5)))
    first = default_store.forget_states(connection, limit=2)
    assert first == (StateKey("queue", "sync", "1"), 1)
    assert first.last is not None
    second = default_store.forget_states(connection, after=first.last, limit=2)
    assert second == (StateKey("queue", "sync", "3"), 1)
    assert second.last is not None
    assert default_store.forget_states(connection, after=second.last, limit=2) == (None, 1)
    assert default_store.forget_states(connection, after=FIRST_STATE, limit=3) == (None, 0)
    assert keys(connection) == ["1", "3"]


def test_a_locked_row_stays(connection: Connection, other: Connection) -> None:
    """No chore waits for a claim."""
    make_states(connection, {"key": "1"}, {"key": "2"})
    connection.commit()
    other.execute(select(STATE).where(STATE.c.key == "1").with_for_update())
    assert default_store.forget_states(connection) == (None, 1)
    assert keys(connection) == ["1"]


def test_the_row_that_limits_nothing_goes_with_the_wait(connection: Connection) -> None:
    """The queue is claimed from as before."""
    one = make_job(connection, "running", queue="sync")
    apply(connection, one)
    assert default_store.forget_states(connection) == (None, 0)
    connection.execute(update(STATE).values(blocked_until=func.now() + LONG))
    assert default_store.forget_states(connection) == (None, 1)
    assert limits(connection) == []


def test_a_row_in_which_somebody_has_said_something_stays(connection: Connection) -> None:
    """An operator, or code; also that there is no limit."""
    connection.execute(set_limit("held", running=None))
    connection.execute(pause("paused"))
    connection.execute(declare_new_limit("queue", "declared", values=Limits().columns(), digest="a"))
    connection.execute(insert(LIMIT).values(owner="queue", name="limited", key_running=1))
    connection.execute(insert(LIMIT).values(owner="queue", name="no wait"))
    connection.execute(insert(LIMIT).values(owner="queue", name="empty"))
    connection.execute(insert(LIMIT).values(owner="task", name="empty"))
    names = ["held", "paused", "declared", "limited", "empty"]
    make_states(connection, *({"name": name, "blocked_until": LONG} for name in names))
    make_states(connection, {"name": "no wait", "free_at": LONG}, {"name": "held", "key": "1", "blocked_until": LONG})
    assert default_store.forget_states(connection).forgotten == 7
    assert limits(connection) == ["declared", "held", "limited", "no wait", "paused"]
    assert connection.scalar(select(LIMIT.c.name).where(LIMIT.c.owner == "task")) == "empty"


def test_ten_thousand_keys_that_once_had_a_rate_leave_an_empty_table(engine: Engine) -> None:
    """As the claims of a queue with a rate per key leave them."""
    number = 10_000
    with connected(engine) as connection:
        connection.execute(set_limit("sync", per_key=KeyLimits(rate=Rate(5))))
        connection.exec_driver_sql(
            "INSERT INTO sa_jobqueue.job (task, queue, concurrency_key) "
            f"SELECT 'a_task', 'sync', 'tenant ' || n FROM generate_series(1, {number}) AS n"
        )
        connection.commit()
        known, cursors, claimed = default_store.read_limits(connection, ["sync"]), {}, 0
        while claimed < number:
            request = LimitedRequest("me", {"sync": 500}, 60.0, known=known.version, cursors=cursors)
            _, jobs, states = default_store.claim_limited(connection, [], request)
            connection.commit()
            cursors, claimed = {"sync": states["sync"].cursor}, claimed + len(jobs)
            assert jobs or states["sync"].again
        assert len(keys(connection)) == number
        connection.execute(update(STATE).values(free_at=STATE.c.free_at - timedelta(minutes=2)))
        connection.commit()
        after, pages = FIRST_STATE, 0
        while after is not None:
            after, _ = default_store.forget_states(connection, after=after)
            connection.commit()
            pages += 1
        assert keys(connection) == []
        assert pages == number // 1_000 + 1

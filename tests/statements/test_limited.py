"""Claims under limits and of keys: what they take, in which order, and never above a limit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, delete, func, select, text, update
from sqlalchemy.exc import DBAPIError

from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.migrations import v01
from sa_jobqueue.models import TASK_GROUP, LimitState
from sa_jobqueue.rules.outcomes import ErrorEntry, Outcome, RateLimited, Released, Rescued, Snooze
from sa_jobqueue.sql.claims import ClaimRequest, is_limits_changed
from sa_jobqueue.sql.limits.claims import KnownLimits
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import pause, resume, set_limit
from sa_jobqueue.util.schema import SqlFiles
from tests.support.factory import TABLE, change, make_job, wait_until_blocked_by
from tests.support.limits import Claimant, end, fill, key, limit, no_limit, rate
from tests.support.nightly import nightly

HOUR = timedelta(hours=1)
ERROR = ErrorEntry("WorkerLost", "its lease had run out")


def ids(jobs: Iterable[ClaimedJob]) -> list[int]:
    return [job.id for job in jobs]


def key_of(connection: Connection, job: ClaimedJob) -> str | None:
    found: str | None = connection.scalar(select(TABLE.c.concurrency_key).where(TABLE.c.id == job.id))
    return found


def running(connection: Connection, *where: object) -> int:
    return len(connection.execute(select(TABLE.c.id).where(TABLE.c.status == "running", *where)).all())  # type: ignore[arg-type]


def serve(claimant: Claimant, free: int, rounds: int) -> list[ClaimedJob]:
    """Claims, one after the other, each job done before the next claim."""
    served = []
    for _ in range(rounds):
        jobs = claimant.claim(free)
        end(claimant.connection, jobs)
        served += jobs
    return served


# ---- order and turns


def test_within_a_key_jobs_come_by_priority_then_time_then_id(connection: Connection) -> None:
    """Whatever was enqueued first."""
    jobs = {
        (priority, hours): make_job(connection, concurrency_key="a", priority=priority, run_at=-HOUR * hours)
        for priority in (0, 9, 4)
        for hours in (1, 3, 2)
    }
    twin = make_job(connection, concurrency_key="a", priority=9, run_at=-HOUR * 3)
    ordered = [jobs[priority, hours] for priority in (9, 4, 0) for hours in (3, 2, 1)]
    ordered.insert(1, twin)
    limit(connection, key_running=1)

    assert ids(serve(Claimant(connection), 10, len(ordered))) == ordered


def test_keys_take_turns_and_no_claim_begins_at_the_front_again(connection: Connection) -> None:
    """One slot, three keys, and jobs without one: each comes every fourth time."""
    for one in ("a", "b", None, "c"):
        fill(connection, 5, one)

    served = serve(Claimant(connection), 1, 20)

    turns = [key_of(connection, job) for job in served]
    assert all(set(turns[n : n + 4]) == {"a", "b", "c", None} for n in range(0, 20, 4))


@pytest.mark.parametrize("free", [3, *nightly(1, 2, 7, 10, 64)])
def test_shares_are_as_the_weights(connection: Connection, free: int) -> None:
    """3 : 1 : 1 within 5 %, for claims of any size, while each key has jobs."""
    for one in ("a", "b", "c"):
        fill(connection, 650, one)
    limit(connection)
    key(connection, "a", weight=3)

    shares = Counter(key_of(connection, job) for job in serve(Claimant(connection), free, 1000 // free))

    total = sum(shares.values())
    assert total == 1000 // free * free
    expected = {"a": 0.6, "b": 0.2, "c": 0.2}
    assert all(abs(shares[one] / total - share) <= 0.05 * share + 1 / total for one, share in expected.items())


def test_what_a_key_leaves_goes_to_the_others(connection: Connection) -> None:
    """One claim fills all free slots, where there are as many jobs."""
    fill(connection, 1, "a")
    fill(connection, 30, "b")
    fill(connection, 2)

    assert Counter(Claimant(connection).keys(20)) == {"a": 1, "b": 17, None: 2}


def test_ten_jobs_behind_a_backlog_come_with_the_next_claim(connection: Connection) -> None:
    """20,000 jobs of one tenant do not delay another's ten."""
    connection.execute(
        text(
            "INSERT INTO sa_jobqueue.job (task, concurrency_key) SELECT 'a_task', 'large' FROM generate_series(1, 20000)"
        )
    )
    claimant = Claimant(connection)
    claimant.claim(20)
    fill(connection, 10, "small")

    assert Counter(claimant.keys(20)) == {"small": 10, "large": 10}


def test_jobs_without_a_key_share_one_turn(connection: Connection) -> None:
    """They do not go last, nor take more than a key's share."""
    fill(connection, 50)
    for number in range(4):
        fill(connection, 50, f"k{number}")

    shares = Counter(key_of(connection, job) for job in serve(Claimant(connection), 3, 50))

    assert all(abs(share - 30) <= 1 for share in shares.values())


@pytest.mark.parametrize("name", ["\x02", " ", "a'b", "%s", "{a,b}", "NULL", "ä😀", "z" * 200, "~"])
def test_a_key_may_be_any_text(connection: Connection, name: str) -> None:
    """A key is data; it gets its turns beside others."""
    fill(connection, 2, name)
    fill(connection, 2, "m")
    limit(connection, key_running=1)

    assert Counter(Claimant(connection).keys()) == {name: 1, "m": 1}


def test_more_keys_than_one_look_finds_all_get_their_turn(connection: Connection) -> None:
    """1,500 keys that are full are passed, over several claims, until those behind them come."""
    full = text(
        "INSERT INTO sa_jobqueue.job (task, concurrency_key) SELECT 'a_task', 'full ' || n FROM generate_series(1, 1500) AS n"
    )
    connection.execute(full)
    limit(connection, key_running=1)
    claimant = Claimant(connection)
    for _ in range(10):
        if not claimant.claim(1000):
            break
    assert running(connection) == 1500
    connection.execute(full)
    (last,) = fill(connection, 1, "open")

    found: list[ClaimedJob] = []
    for _ in range(4):
        found += claimant.claim(10)
        if found or not claimant.state.unseen:
            break

    assert ids(found) == [last]


def test_jobs_for_later_wait_and_those_that_are_due_come(connection: Connection) -> None:
    """A job of a key that is not due does not run, nor does it hold up those behind it; retries come when they are due."""
    make_job(connection, concurrency_key="a", run_at=HOUR, priority=9)
    (now,) = fill(connection, 1, "a")
    late = make_job(connection, concurrency_key="a", run_at=timedelta(0), created_at=-HOUR, attempt=1)
    claimant = Claimant(connection)

    first = claimant.claim()
    assert claimant.state.again
    assert claimant.state.due_in is not None
    assert 3500 < claimant.state.due_in <= 3600
    second = claimant.claim()

    assert ids(first) == [now]
    assert ids(second) == [late]
    assert claimant.claim() == []


# ---- limits of what runs


def test_no_more_run_than_the_queue_may(connection: Connection) -> None:
    """Over several claims and claimants; what ends makes room."""
    fill(connection, 10, "a")
    fill(connection, 10)
    limit(connection, running=3)
    claimant, other = Claimant(connection), Claimant(connection, name="other")

    first = claimant.claim(2)
    assert len(first) == 2
    assert len(other.claim(2)) == 1
    assert claimant.claim(2) == []
    assert claimant.state.permit
    end(connection, first)
    assert len(other.claim(5)) == 2


def test_no_more_run_than_each_key_may(connection: Connection) -> None:
    """`key_running` is each key's, unless its own row says more or less; jobs without a key have no such limit."""
    for one in ("a", "b", "more", None):
        fill(connection, 5, one)
    limit(connection, key_running=1)
    key(connection, "more", running=3)
    claimant = Claimant(connection)

    assert Counter(claimant.keys(100)) == {"a": 1, "b": 1, "more": 3, None: 5}
    assert claimant.claim(100) == []
    assert claimant.state.permit


def test_a_claim_that_opens_its_gate_is_made_again(connection: Connection) -> None:
    """A permit that became free between its count and that is told to nobody. Once the gate is open, each is told."""
    fill(connection, 4)
    limit(connection, running=1)
    one, two = Claimant(connection, name="one"), Claimant(connection, name="two")
    assert len(one.claim_once(1, opener=1)) == 1
    two.claim_once(1, opener=2)
    assert two.state.permit
    assert two.state.again
    two.claim_once(1, opener=2)
    assert two.state.permit
    assert not two.state.again
    third = Claimant(connection, name="three")
    third.claim_once(1, opener=3)
    assert third.state.again  # worker 2 would not tell itself
    third.claim_once(1, opener=3)
    assert not third.state.again


def test_the_limit_of_a_key_counts_within_its_queue(connection: Connection) -> None:
    """What else runs with that key, in another queue, takes none of it."""
    make_job(connection, "running", concurrency_key="a", queue="other")
    fill(connection, 3, "a")
    limit(connection, key_running=2)

    assert len(Claimant(connection).claim()) == 2


def test_a_task_has_its_limit_over_all_queues(connection: Connection) -> None:
    """In one claim, and over several; other tasks of the queues go on."""
    for queue in ("x", "y"):
        for one in ("a", "b", None):
            fill(connection, 5, one, queue=queue, task="few")
            fill(connection, 1, one, queue=queue, task="free")
    limit(connection, "few", owner="task", running=4)
    claimant = Claimant(connection, "x", "y")

    for _ in range(6):
        claimant.claim(50)

    assert running(connection, TABLE.c.task == "few") == 4
    assert running(connection, TABLE.c.task == "free") == 2  # the others wait behind one of their key


@pytest.mark.parametrize(
    "said", [{"running": 1}, {"paused_at": text("now()")}, *nightly(rate(1, 3600.0))], ids=["full", "paused", "rate"]
)
def test_jobs_of_a_task_that_can_start_none_delay_others_by_no_claim(
    connection: Connection, said: dict[str, Any]
) -> None:
    """However many they are. They wait in a group of their own, out of the way, and come from there when there is room."""
    connection.execute(text("INSERT INTO sa_jobqueue.job (task) SELECT 'few' FROM generate_series(1, 2500)"))
    free = fill(connection, 5, task="free")
    limit(connection, "few", owner="task", **said)
    claimant = Claimant(connection)

    assert ids(job for job in claimant.claim_once(6) if job.task == "free") == free
    for _ in range(2):
        assert claimant.claim_once(6) == []
    waiting = select(TABLE.c.concurrency_key).where(TABLE.c.status == "queued").distinct()
    assert connection.scalars(waiting).all() == [f"{TASK_GROUP}few"]


def test_the_strictest_of_several_limits_wins(connection: Connection) -> None:
    """Queue, task, key, and key of the task at once."""
    for one in ("a", "b", "c", "d"):
        fill(connection, 9, one, task="few")
    limit(connection, running=7, key_running=3)
    limit(connection, "few", owner="task", running=6, key_running=2)
    key(connection, "a", running=1)
    claimant = Claimant(connection)

    for _ in range(4):
        claimant.claim(50)

    found = Counter(connection.scalars(select(TABLE.c.concurrency_key).where(TABLE.c.status == "running")))
    assert sum(found.values()) == 6
    assert found["a"] <= 1
    assert max(found.values()) <= 2


def test_a_key_that_others_keep_closed_does_not_keep_the_rest(connection: Connection) -> None:
    """Under a limit of the task each key gets its turn: the first one does not get all."""
    for one in ("a", "b", "c"):
        fill(connection, 6, one, task="few")
    limit(connection, "few", owner="task", running=1)

    shares = Counter(key_of(connection, job) for job in serve(Claimant(connection), 10, 9))

    assert shares == {"a": 3, "b": 3, "c": 3}


# ---- two at once


@pytest.mark.parametrize("owner", ["queue", "task"])
def test_two_claims_at_once_do_not_exceed_a_key_and_do_not_wait(
    connection: Connection, other: Connection, owner: str
) -> None:
    """One has claimed and not committed: the other gets none of its keys, at once, and says that it may look again."""
    for one in ("a", "b"):
        fill(connection, 5, one)
    limit(connection, "default" if owner == "queue" else "a_task", owner=owner, key_running=1)
    connection.commit()

    assert len(Claimant(connection).claim()) == 2
    other.exec_driver_sql("SET lock_timeout = '50ms'")
    second = Claimant(other, name="other")
    assert second.claim_once() == []
    assert second.state.again
    connection.commit()
    assert second.claim() == []
    assert not second.state.again
    assert second.state.permit


def test_two_claims_at_once_take_from_different_keys(connection: Connection, other: Connection) -> None:
    """Keys that the first one has not looked at are there for the second."""
    for number in range(40):
        fill(connection, 1, f"k{number:02}")
    limit(connection, key_running=1)
    connection.commit()

    assert len(Claimant(connection).claim(3)) == 3
    other.exec_driver_sql("SET lock_timeout = '50ms'")
    assert len(Claimant(other, name="other").claim(3)) == 3


@pytest.mark.parametrize("owner", ["queue", "task"])
def test_two_claims_at_once_do_not_exceed_a_queue_or_a_task(engine: Engine, owner: str) -> None:
    """The second waits for the first one's commit, and counts what that has claimed."""
    with engine.begin() as setup:
        fill(setup, 20, "a")
        fill(setup, 20)
        limit(setup, "default" if owner == "queue" else "a_task", owner=owner, running=5)
    with engine.connect() as one, engine.connect() as two, ThreadPoolExecutor(1) as threads:
        assert len(Claimant(one).claim(4)) == 4
        second = threads.submit(lambda: Claimant(two, name="two").claim(4))
        wait_until_blocked_by(one)
        one.commit()
        assert len(second.result(30)) == 1
        two.commit()
        assert running(one) == 5


def test_a_claim_begins_behind_a_resume_point_and_at_the_front_if_too_few_jobs_are_there(
    connection: Connection,
) -> None:
    """Of jobs without a key."""
    limit(connection, running=100)
    front, back = fill(connection, 2), fill(connection, 3)
    at = connection.scalar(select(func.extract("epoch", TABLE.c.run_at)).where(TABLE.c.id == front[-1]))
    after = {("default", 4): (float(at), front[-1])}

    claimant = Claimant(connection)
    assert ids(claimant.claim(2, after=after)) == back[:2]
    assert ids(claimant.claim(3, after=after)) == [*front, back[2]]


def test_a_locked_job_is_passed(connection: Connection, other: Connection) -> None:
    """An operator's lock on the head of a key holds up no claim, and not the jobs behind it."""
    head, then = fill(connection, 2, "a")
    limit(connection, key_running=1)
    connection.commit()
    other.execute(select(TABLE.c.id).where(TABLE.c.id == head).with_for_update())

    connection.exec_driver_sql("SET lock_timeout = '50ms'")
    assert ids(Claimant(connection).claim()) == [then]


# ---- changes


def test_a_plain_claim_fails_where_limits_are_not_known(connection: Connection) -> None:
    """A limit was set, changed, or removed since the worker has read them; or a queue has jobs with keys."""

    def plain(known: int | None) -> list[ClaimedJob]:
        with connection.begin_nested():
            request = ClaimRequest(worker="me", queues={"default": 1}, lease=60.0, known=known)
            return default_store.claim(connection, request)

    def version() -> int | None:
        return default_store.read_limits(connection, ["default"]).version

    def fails(known: int | None) -> None:
        with pytest.raises(DBAPIError) as caught:
            plain(known)
        assert is_limits_changed(caught.value)

    fill(connection, 5)
    assert len(plain(None)) == 1
    limit(connection, "other", running=1)
    fails(None)
    assert len(plain(version())) == 1
    before = version()
    limit(connection, "other", running=2)
    fails(before)
    before = version()
    no_limit(connection, "other")
    fails(before)
    assert version() is None
    assert len(plain(None)) == 1
    fill(connection, 1, "a")
    fails(None)
    connection.execute(update(TABLE).where(TABLE.c.concurrency_key == "a").values(run_at=HOUR))
    assert len(plain(None)) == 1


def test_a_task_is_limited_for_as_long_as_one_of_its_keys_is(connection: Connection) -> None:
    """The row that was made for it stays, and costs nothing; a claim that knows only of that fails where a key is paused again."""

    def known() -> KnownLimits:
        return default_store.read_limits(connection, ["default"])

    connection.execute(pause("mail", owner="task", key="a"))
    assert known().tasks == ("mail",)
    connection.execute(resume("mail", owner="task", key="a"))
    assert known().tasks == ()
    before = known().version
    connection.execute(set_limit("mail", owner="task", key="b", running=1))
    assert known().tasks == ("mail",)
    assert known().version != before


def test_a_limited_claim_fails_where_limits_are_not_known(connection: Connection) -> None:
    """As a plain one."""
    fill(connection, 2, "a")
    limit(connection, running=1)

    with pytest.raises(DBAPIError) as caught, connection.begin_nested():
        Claimant(connection).claim(known=None)

    assert is_limits_changed(caught.value)


def test_a_claim_that_has_waited_for_another_fails_where_limits_have_changed_meanwhile(engine: Engine) -> None:
    """It would not keep those of which it knows nothing."""
    with engine.begin() as setup:
        fill(setup, 5)
        limit(setup, running=5)
    with engine.connect() as one, engine.connect() as two, ThreadPoolExecutor(1) as threads:
        assert len(Claimant(one).claim(1)) == 1
        second = threads.submit(lambda: Claimant(two, name="two").claim(4))
        wait_until_blocked_by(one)
        with engine.begin() as operator:
            limit(operator, "a_task", owner="task", paused_at=text("now()"))
        one.commit()
        with pytest.raises(DBAPIError) as caught:
            second.result(30)
    assert is_limits_changed(caught.value)


def test_lowering_a_limit_stops_nothing_and_raising_it_lets_more_start(connection: Connection) -> None:
    """What runs, runs; nothing starts until it is below the new limit."""
    fill(connection, 10)
    limit(connection, running=4)
    claimant = Claimant(connection)
    jobs = claimant.claim()
    limit(connection, running=2)

    assert claimant.claim() == []
    end(connection, jobs[:2])
    assert claimant.claim() == []
    limit(connection, running=3)
    assert len(claimant.claim()) == 1


# ---- strict, and pauses


@pytest.mark.parametrize("owner", ["queue", "task"])
def test_under_strict_a_key_waits_for_its_head_that_is_tried_again(connection: Connection, owner: str) -> None:
    """Other keys go on; when it is due, it comes before all others of its key. The limits of a queue and of a task say so alike."""
    head = make_job(connection, concurrency_key="a", claims=1, run_at=HOUR)
    fill(connection, 2, "a", priority=9)
    (other,) = fill(connection, 1, "b")
    limit(connection, "a_task" if owner == "task" else "default", owner=owner, key_running=1, strict=True)
    claimant = Claimant(connection)

    assert ids(claimant.claim()) == [other]
    assert claimant.claim() == []
    connection.execute(update(TABLE).where(TABLE.c.id == head).values(run_at=text("now()")))
    assert ids(claimant.claim() or claimant.claim()) == [head]  # the first may only find that it is due


@pytest.mark.parametrize(
    "outcome",
    [
        Rescued(ERROR), RateLimited(60.0),
        *nightly(Released(), Released(started=True), Released(60.0), Snooze(0), Snooze(60.0)),
    ],
    ids=repr,
)  # fmt: skip
def test_under_strict_a_job_that_comes_back_without_an_attempt_goes_first_in_its_key(
    connection: Connection, outcome: Outcome
) -> None:
    """Its worker died or was stopped, it was snoozed, or the other side said 429: nothing of its key passes it, however long it waits."""
    head, _ = fill(connection, 2, "a")
    limit(connection, key_running=1, strict=True)
    claimant = Claimant(connection)
    assert ids(claimant.claim()) == [head]
    connection.execute(update(TABLE).where(TABLE.c.id == head).values(lease_expires_at=text("now()")))

    default_store.apply(connection, [change(connection, head, outcome)])
    fill(connection, 1, "a", priority=9)

    if isinstance(outcome, RateLimited) or getattr(outcome, "seconds", 0):
        assert claimant.claim() == []
        connection.execute(update(TABLE).where(TABLE.c.id == head).values(run_at=text("now()")))
        connection.execute(delete(LimitState))
    assert ids(claimant.claim() or claimant.claim()) == [head]  # the first may only find that it is due


def test_under_strict_a_job_that_became_due_goes_before_those_that_were_enqueued_after(connection: Connection) -> None:
    """It was enqueued for later, and no worker has looked since its time came."""
    head = make_job(connection, concurrency_key="a", created_at=-HOUR * 2, run_at=-HOUR)
    (behind,) = fill(connection, 1, "a")
    limit(connection, key_running=1, strict=True)

    assert ids(serve(Claimant(connection), 10, 3)) == [head, behind]


def test_the_strict_order_of_a_task_holds_over_all_queues(connection: Connection) -> None:
    """A job that was begun and waits in one queue keeps those of its key waiting in another."""
    head = make_job(connection, concurrency_key="a", claims=1, queue="other")
    (behind,) = fill(connection, 1, "a")
    limit(connection, "a_task", owner="task", key_running=1, strict=True)

    assert Claimant(connection).claim() == []
    assert ids(serve(Claimant(connection, "default", "other"), 10, 3)) == [head, behind]


@pytest.mark.parametrize("owner", ["queue", "task"])
def test_strict_is_for_keys_and_not_for_jobs_without_one(connection: Connection, owner: str) -> None:
    """Those of a limited task go on, while one of them waits to be tried again; also where they were put aside."""
    group = f"{TASK_GROUP}few"
    make_job(connection, concurrency_key=group, task="few", claims=1, run_at=HOUR)
    (behind,) = fill(connection, 1, group, task="few")
    limit(connection, "few", owner="task", running=5)
    limit(connection, "few" if owner == "task" else "default", owner=owner, strict=True)

    assert ids(Claimant(connection).claim()) == [behind]


def test_without_strict_a_key_goes_on_while_a_job_waits_to_be_tried_again(connection: Connection) -> None:
    """The next one of the key takes its place."""
    make_job(connection, concurrency_key="a", claims=1, run_at=HOUR)
    (behind,) = fill(connection, 1, "a")
    limit(connection, key_running=1)

    assert ids(Claimant(connection).claim()) == [behind]


def test_nothing_starts_of_a_paused_queue_key_or_task(connection: Connection) -> None:
    """And all of it does when it is resumed."""
    fill(connection, 2, "a")
    fill(connection, 2, "b", task="other")
    fill(connection, 2)
    limit(connection, paused_at=text("now()"))
    claimant = Claimant(connection)
    assert claimant.claim() == []
    assert not claimant.state.again

    limit(connection, paused_at=None)
    key(connection, "a", paused_at=text("now()"))
    limit(connection, "other", owner="task", paused_at=text("now()"))
    for _ in range(3):
        claimant.claim(1)
    assert running(connection) == 2
    assert running(connection, TABLE.c.concurrency_key.is_(None)) == 2

    key(connection, "a", paused_at=None)
    no_limit(connection, "other", owner="task")
    for _ in range(3):
        claimant.claim(10)
    assert running(connection) == 6


def test_a_worker_uses_up_no_rate_for_tasks_that_it_does_not_know(connection: Connection) -> None:
    """Their jobs wait for a worker that does, and so do those behind them in their keys; all others go."""
    limit(connection, **rate(1, 3_600.0, 3))
    new = fill(connection, 3, task="new") + fill(connection, 1, "a", task="new")
    behind = fill(connection, 1, "a")
    old = fill(connection, 1) + fill(connection, 1, "b")

    claimant = Claimant(connection, name="old")
    assert sorted(ids(claimant.claim(9, unknown=["new"]))) == sorted(old)
    assert claimant.claim(9, unknown=["new"]) == []
    assert claimant.state.rate_in is None
    limit(connection, **rate(10, 3_600.0, 10))
    end(connection, old)
    assert sorted(ids(Claimant(connection, name="new").claim(9))) == sorted(new + behind)


def test_each_key_has_its_limit_of_a_task_over_all_queues_also_within_one_claim(connection: Connection) -> None:
    """`per_key` of a task counts within the task: in whatever queue, and whatever other tasks of the key run."""
    for queue in ("x", "y", "z"):
        fill(connection, 3, "a", queue=queue, task="few")
        fill(connection, 3, "b", queue=queue, task="few")
        fill(connection, 1, "c", queue=queue, task="free")
    limit(connection, "few", owner="task", key_running=1)
    claimant = Claimant(connection, "x", "y", "z")

    for _ in range(3):
        claimant.claim(50)

    for one in ("a", "b"):
        assert running(connection, TABLE.c.task == "few", TABLE.c.concurrency_key == one) == 1
    assert running(connection, TABLE.c.task == "free") == 3


def test_the_limit_of_a_task_with_a_rate_counts_jobs_with_lower_ids(connection: Connection) -> None:
    """A job that was enqueued first and starts last counts as any other."""
    late = fill(connection, 3, "a", priority=0, task="few")
    fill(connection, 1, "a", priority=9, task="few")
    limit(connection, "few", owner="task", running=2, rate_count=1000, rate_seconds=1.0, rate_burst=100)
    claimant = Claimant(connection)
    first = claimant.claim(1)
    end(connection, first)
    assert ids(first) > late

    for _ in range(3):
        claimant.claim(10)

    assert running(connection) == 2


@pytest.mark.parametrize("how", ["removed", "null"])
def test_a_limit_that_was_gone_for_a_while_counts_what_started_meanwhile(connection: Connection, how: str) -> None:
    """Also jobs with lower ids than those that ran while it held."""
    old = fill(connection, 3, run_at=HOUR)
    fill(connection, 1)
    limit(connection, running=2)
    claimant = Claimant(connection)
    end(connection, claimant.claim())
    if how == "removed":
        no_limit(connection)
    else:
        limit(connection, running=None)
    connection.execute(update(TABLE).where(TABLE.c.id.in_(old)).values(run_at=text("now()")))
    known = default_store.read_limits(connection, ["default"]).version
    request = ClaimRequest(worker="me", queues={"default": 3}, lease=60.0, known=known)
    assert len(default_store.claim(connection, request)) == 3
    limit(connection, running=4)
    fill(connection, 5)

    claimant.claim()

    assert running(connection) == 4


def test_jobs_without_a_key_keep_their_order_under_the_limit_of_their_task(connection: Connection) -> None:
    """Those that have waited longer come first, also where some were put aside and others were not."""
    first = fill(connection, 30, task="few")
    limit(connection, "few", owner="task", running=1)
    claimant = Claimant(connection)

    served = serve(claimant, 4, 10)
    fill(connection, 10, task="few")
    served += serve(claimant, 4, 60)

    order = [job.id for job in served]
    assert len(order) == 40
    assert order[:30] == first


def test_a_job_that_comes_while_a_claim_waits_for_another_is_claimed_or_left(engine: Engine) -> None:
    """It is never picked in vain: what a claim says that it picked, it has got."""
    with engine.begin() as setup:
        limit(setup, running=5)
        fill(setup, 1)
    with engine.connect() as one, engine.connect() as two, ThreadPoolExecutor(1) as threads:
        assert len(Claimant(one).claim(1)) == 1
        claimant = Claimant(two, name="two")
        second = threads.submit(lambda: claimant.claim(4))
        wait_until_blocked_by(one)
        with engine.begin() as producer:
            fill(producer, 2)
        one.commit()
        got = second.result(30)
        assert claimant.state.picked == len(got)
        two.commit()
        assert len(got) + len(claimant.claim(4)) == 2


def test_the_jobs_of_a_limited_task_are_told_from_keys_whatever_the_collation() -> None:
    """In most languages' collations the characters below the space, by which the two are told apart, count for nothing. Few of the
    servers of these tests have such a collation, so the text is looked at.
    """
    compared = re.findall(r"[<>]=? chr\(2\)(.{0,12})", " ".join(SqlFiles(v01.__file__, "limited")))
    assert len(compared) > 10
    assert all(after.startswith(' COLLATE "C"') for after in compared)


def test_a_key_of_a_task_may_be_paused_where_the_task_has_no_limits(connection: Connection) -> None:
    """Its jobs are not claimed, in whatever queue; those of other keys and tasks are."""
    fill(connection, 1, "a", task="mail", queue="one")
    (other,) = fill(connection, 1, "b", task="mail", queue="one")
    (free,) = fill(connection, 1, "c", queue="one")
    key(connection, "a", "mail", owner="task", paused_at=text("now()"))

    assert sorted(ids(Claimant(connection, "one").claim(9))) == [other, free]

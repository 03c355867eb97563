"""Unique jobs in the database: one job per key is kept, and no INSERT fails because of the others, in each way to enqueue them."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, insert, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, Registry, Unique, enqueue, enqueue_many, task
from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.models import UniqueKey
from sa_jobqueue.rules.outcomes import Outcome, Released, Retry, Snooze
from sa_jobqueue.sql.claims import ClaimRequest
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.sql.unique import started_keys
from sa_jobqueue.statements import cancel_jobs, discard_jobs, release_jobs, retry_jobs
from tests.support.factory import TABLE, change, completed, row
from tests.support.nightly import nightly
from tests.support.waiting import wait_until

LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
QUEUED, CANCELLED = JobStatus.QUEUED, JobStatus.CANCELLED

registry = Registry()


@task(registry=registry)
def sync(tenant: int, note: str = "") -> None: ...


@task(registry=registry)
def plain() -> None: ...


def of(key: str, **rule: Any) -> dict[str, Any]:
    return {"key": key, **rule}


def keys(connection: Connection) -> dict[str, int]:
    """By key the job that has it."""
    return {row.key: row.job_id for row in connection.execute(select(UniqueKey.key, UniqueKey.job_id))}


def claim(connection: Connection, free: int = 5) -> list[ClaimedJob]:
    return default_store.claim(connection, ClaimRequest(worker="me", queues={"default": free}, lease=60.0))


def states(connection: Connection) -> list[tuple[JobStatus, int | None]]:
    return [tuple(one) for one in connection.execute(select(TABLE.c.status, TABLE.c.duplicate_of).order_by(TABLE.c.id))]


def by_rows(connection: Connection, wanted: list[str]) -> None:
    for key in wanted:
        connection.execute(insert(TABLE).values(task="a", uniqueness=of(key)))


def by_select(connection: Connection, wanted: list[str]) -> None:
    connection.execute(
        text(
            "INSERT INTO sa_jobqueue.job (task, uniqueness) "
            "SELECT 'a', jsonb_build_object('key', key) FROM unnest(CAST(:keys AS text[])) AS key"
        ),
        {"keys": wanted},
    )


def by_copy(connection: Connection, wanted: list[str]) -> None:
    raw: Any = connection.connection.driver_connection
    with raw.cursor().copy("COPY sa_jobqueue.job (task, uniqueness) FROM STDIN") as copy:
        for key in wanted:
            copy.write_row(("a", json.dumps(of(key))))


def by_session(connection: Connection, wanted: list[str]) -> None:
    with Session(connection, join_transaction_mode="create_savepoint") as session:
        session.add_all([enqueue(plain.options(unique=Unique(key))) for key in wanted])
        session.commit()


def by_many(connection: Connection, wanted: list[str]) -> None:
    connection.execute(enqueue_many([plain.options(unique=Unique(key)).call() for key in wanted]))


WAYS = [by_rows, by_select, by_copy, by_session, by_many]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("way", WAYS)
def test_a_duplicate_is_written_as_cancelled_and_names_the_holder(
    engine: Engine, way: Callable[[Connection, list[str]], None], level: str
) -> None:
    """In each way to insert, at each level, in the same statement and over committed jobs; what is written beside it stays."""
    with engine.connect().execution_options(isolation_level=level) as connection:
        way(connection, ["a", "a", "b"])
        connection.commit()
        way(connection, ["b", "c"])
        connection.commit()
        first, other, third = keys(connection)["a"], keys(connection)["b"], keys(connection)["c"]
        unseen = level == "SERIALIZABLE"
        assert states(connection) == [
            (QUEUED, None),
            (CANCELLED, 0 if unseen else first),
            (QUEUED, None),
            (CANCELLED, 0 if unseen else other),
            (QUEUED, None),
        ]
        duplicate = connection.execute(select(TABLE).where(TABLE.c.status == CANCELLED)).first()
        assert duplicate is not None
        assert duplicate.errors[0]["type"] == "Duplicate"
        assert None not in (duplicate.finished_at, duplicate.purge_at)
        assert third


@contextmanager
def enqueued_late(late: Connection) -> Iterator[None]:
    """While this lasts, a thread enqueues a job with the key "a", and commits; it has done so at the end."""
    ended = threading.Event()

    def enqueue_late() -> None:
        by_rows(late, ["a"])
        late.commit()
        ended.set()

    thread = threading.Thread(target=enqueue_late, daemon=True)
    thread.start()
    yield
    assert ended.wait(30)
    thread.join()


@pytest.mark.parametrize("level", LEVELS)
def test_a_duplicate_of_a_job_that_is_not_committed_waits_and_ends_well(engine: Engine, level: str) -> None:
    """At a level that may not see the holder, too: the caller's transaction is not aborted, and its other rows are kept."""
    with engine.connect() as holder, engine.connect().execution_options(isolation_level=level) as late:
        late.execute(text("SELECT count(*) FROM sa_jobqueue.job"))  # takes its snapshot before the holder commits
        late.execute(insert(TABLE).values(task="beside"))
        by_rows(holder, ["a"])
        with enqueued_late(late):
            holder.commit()
        found = Counter(one.status for one in late.execute(select(TABLE.c.status)))
        assert found == {QUEUED: 2, CANCELLED: 1}


def test_a_key_whose_holder_rolls_back_goes_to_the_one_that_waited(engine: Engine) -> None:
    """A transaction that rolls back loses no job of another."""
    with engine.connect() as holder, engine.connect() as late:
        by_rows(holder, ["a"])
        with enqueued_late(late):
            holder.rollback()
        assert states(late) == [(QUEUED, None)]


@pytest.mark.parametrize("level", LEVELS)
def test_a_session_knows_after_the_flush_what_is_a_duplicate(engine: Engine, level: str) -> None:
    """Before the commit. `duplicate_of` is None where the holder may not be seen; `is_duplicate` always tells."""
    with Session(engine.execution_options(isolation_level=level)) as session:
        first, again, other = enqueue(sync, 3), enqueue(sync, 3), enqueue(plain)
        for one in (first, again):
            one.uniqueness = of("k")
        session.add_all([first, again, other])
        session.flush()
        holder, duplicate = sorted((first, again), key=lambda one: one.id)
        assert (holder.status, holder.duplicate_of, holder.is_duplicate) == (QUEUED, None, False)
        assert (duplicate.status, duplicate.is_duplicate) == (CANCELLED, True)
        assert (holder.errors, holder.finished_at, holder.purge_at) == ([], None, None)
        assert duplicate.end.error is not None
        assert duplicate.end.error["type"] == "Duplicate"
        assert duplicate.duplicate_of == (None if level == "SERIALIZABLE" else holder.id)
        assert (other.status, other.is_duplicate) == (QUEUED, False)
        session.commit()
        assert session.scalars(select(Job.id).where(Job.is_duplicate)).all() == [duplicate.id]
        assert session.scalars(select(Job.id).where(Job.unique_key == "k").order_by(Job.id)).all() == [
            holder.id,
            duplicate.id,
        ]


def test_jobs_with_and_without_keys_are_one_insert(engine: Engine) -> None:
    """However they are mixed; without keys nothing is added to it."""
    sent: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda _c, _cursor, statement, *_: sent.append(statement))
    with Session(engine) as session:
        jobs = [
            enqueue(sync.options(unique=Unique(by=("tenant",))) if n % 3 else plain, *[n % 7] * (n % 3 > 0))
            for n in range(300)
        ]
        session.add_all(jobs)
        session.flush()
        assert len(sent) == 1
        assert sum(one.is_duplicate for one in jobs) == 193
        sent.clear()
        session.add_all([enqueue(plain) for _ in range(30)])
        session.flush()
        assert len(sent) == 1
        assert "uniqueness" not in sent[0]


def test_many_calls_return_their_ids_in_order_though_keys_are_taken_in_theirs(engine: Engine) -> None:
    """Each id is that of its call."""
    names = ["d", "a", None, "c", "a", "b", None]
    calls = [plain.options(unique=Unique(name) if name else False).call() for name in names]
    with Session(engine) as session:
        ids = list(session.scalars(enqueue_many(calls)))
        found = {job.id: job for job in session.scalars(select(Job))}
        assert [found[id].unique_key for id in ids] == names
        assert [found[id].is_duplicate for id in ids] == [False] * 4 + [True] + [False] * 2


def test_on_request_a_clash_is_an_integrity_error(engine: Engine) -> None:
    """With the key and the holder; a savepoint keeps the rest."""
    with Session(engine) as session:
        session.add(enqueue(plain.options(unique=Unique("k"))))
        session.flush()
        again = enqueue_many([plain.options(unique=Unique("k", on_clash="raise")).call()])
        with pytest.raises(IntegrityError, match="the unique key 'k' is held by job"), session.begin_nested():
            session.execute(again)
        session.commit()
        assert len(session.scalars(select(Job)).all()) == 1


@pytest.mark.parametrize("what", ["args", "run_at", "priority"])
def test_a_replacing_duplicate_gives_the_queued_holder_what_it_names(connection: Connection, what: str) -> None:
    """And nothing else of it."""
    connection.execute(insert(TABLE).values(task="a", args={"n": 1}, priority=1, uniqueness=of("k")))
    before = connection.execute(select(TABLE)).one()
    new = {"args": {"n": 2}, "priority": 9, "run_at": before.run_at + timedelta(hours=1)}
    rule = of("k", on_clash="replace", replace=[what])
    connection.execute(insert(TABLE).values(task="a", uniqueness=rule, **new))
    holder, duplicate = connection.execute(select(TABLE).order_by(TABLE.c.id)).all()
    assert duplicate.duplicate_of == holder.id
    for name, value in new.items():
        assert getattr(holder, name) == (value if name == what else getattr(before, name))


def test_a_holder_of_another_task_is_not_replaced(connection: Connection) -> None:
    """It would not understand the arguments. The duplicate is one all the same."""
    connection.execute(insert(TABLE).values(task="a", args={"n": 1}, priority=1, uniqueness=of("k")))
    rule = of("k", scope="queued", on_clash="replace")
    connection.execute(insert(TABLE).values(task="b", args={"m": 2}, priority=9, uniqueness=rule))
    holder, duplicate = connection.execute(select(TABLE).order_by(TABLE.c.id)).all()
    assert (holder.args, holder.priority, holder.status) == ({"n": 1}, 1, "queued")
    assert (duplicate.status, duplicate.duplicate_of) == ("cancelled", holder.id)


def test_a_holder_that_is_locked_or_runs_is_not_replaced_nor_waited_for(
    connection: Connection, other: Connection
) -> None:
    """The duplicate is one all the same."""
    rule = of("k", on_clash="replace", replace=["args"])
    connection.execute(insert(TABLE).values(task="a", args={"n": 1}, uniqueness=of("k")))
    connection.commit()
    other.execute(select(TABLE.c.id).with_for_update())
    connection.execute(insert(TABLE).values(task="a", args={"n": 2}, uniqueness=rule))
    connection.commit()
    other.rollback()
    assert claim(other, 1)
    other.commit()
    connection.execute(insert(TABLE).values(task="a", args={"n": 3}, uniqueness=rule))
    found = connection.execute(select(TABLE.c.args, TABLE.c.duplicate_of).order_by(TABLE.c.id)).all()
    assert [one.args["n"] for one in found] == [1, 2, 3]
    assert found[1].duplicate_of == found[2].duplicate_of is not None


def test_a_claim_says_which_keys_are_free_from_the_start_of_their_jobs(connection: Connection) -> None:
    """They are freed apart from it; a key of another scope stays, and so does one that another job has taken since."""
    for key in ("q", "q 'ü\\\"", "r"):
        connection.execute(insert(TABLE).values(task="a", uniqueness=of(key, scope="queued")))
    by_rows(connection, ["s"])
    claimed = claim(connection)
    assert [json.loads(job.extra or "") for job in claimed] == [
        {"unique": "q"}, {"unique": "q 'ü\\\""}, {"unique": "r"}, {"unique": True},
    ]  # fmt: skip
    by_rows(connection, ["r"])
    freed = default_store.free_started_keys(connection, started_keys(claimed))
    assert freed == {claimed[0].id, claimed[1].id}
    assert keys(connection).keys() == {"r", "s"}
    by_rows(connection, ["q", "s"])
    assert states(connection)[4:] == [(QUEUED, None), (QUEUED, None), (CANCELLED, claimed[3].id)]


def test_keys_are_freed_at_the_start_without_a_wait_for_the_disk(connection: Connection) -> None:
    """The commit of what claimed their jobs has waited for it, and the next one does again."""
    connection.execute(text("SET synchronous_commit = on"))
    connection.execute(insert(TABLE).values(task="a", uniqueness=of("q", scope="queued")))
    connection.commit()
    claimed = claim(connection)
    connection.commit()
    settings = []
    for act in (lambda: default_store.free_started_keys(connection, started_keys(claimed)), lambda: None):
        act()
        settings.append(connection.scalar(text("SHOW synchronous_commit")))
        connection.commit()
    assert settings == ["off", "on"]


def test_a_listed_claim_says_so_too(connection: Connection) -> None:
    """It is how jobs are claimed one by one."""
    id = connection.scalar(insert(TABLE).values(task="a", uniqueness=of("q", scope="queued")).returning(TABLE.c.id))
    assert id is not None
    assert started_keys(default_store.claim_these(connection, [id], worker="me", lease=60)) == {id: "q"}


ENDS = {
    "completed": lambda job: completed(job, unique=True),
    "deleted": lambda job: completed(job, retain=0.0, unique=True),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("waiting", [False, True])
def test_a_key_is_free_when_the_job_has_ended(connection: Connection, how: str, waiting: bool) -> None:
    """Whichever statement ends it; the key of another job stays."""
    by_rows(connection, ["mine", "its"])
    jobs = claim(connection)
    connection.execute(update(TABLE).values(claim_token=1))
    (mine,) = [job.id for job in jobs if keys(connection)["mine"] == job.id]
    if waiting:
        assert default_store.apply_one(connection, ENDS[how](mine)) == "applied"
    else:
        assert default_store.apply(connection, [ENDS[how](mine)]) == {mine: "applied"}
    assert keys(connection).keys() == {"its"}


def test_a_key_may_be_kept_after_the_end(connection: Connection) -> None:
    """From the end on, not from the enqueueing; then it is free, also before maintenance has seen it."""
    connection.execute(insert(TABLE).values(task="a", uniqueness=of("k", scope="finished", period=3600)))
    assert connection.scalar(select(UniqueKey.expires_at)) is None
    (job,) = claim(connection)
    connection.execute(update(TABLE).values(claim_token=1))
    assert default_store.apply(connection, [completed(job.id, unique=True)]) == {job.id: "applied"}
    left = connection.scalar(text("SELECT expires_at - now() FROM sa_jobqueue.unique_key"))
    assert timedelta(minutes=59) < left < timedelta(minutes=61)
    by_rows(connection, ["k"])
    assert states(connection)[1] == (CANCELLED, job.id)
    connection.execute(update(UniqueKey).values(expires_at=text("clock_timestamp()")))
    by_rows(connection, ["k"])
    assert states(connection)[2] == (QUEUED, None)


@pytest.mark.parametrize("level", LEVELS)
def test_a_window_counts_from_the_holders_enqueueing(engine: Engine, level: str) -> None:
    """Duplicates do not extend it, and the holder's end does not end it; when it is over, the next one is the holder."""
    rule = of("k", scope="window", period=3600)
    with engine.connect().execution_options(isolation_level=level) as connection:
        connection.execute(insert(TABLE).values(task="a", uniqueness=rule))
        until = connection.scalar(select(UniqueKey.expires_at))
        connection.commit()
        (job,) = claim(connection)
        connection.execute(update(TABLE).values(claim_token=1))
        default_store.apply(connection, [completed(job.id, unique=True)])
        connection.commit()
        connection.execute(insert(TABLE).values(task="a", uniqueness=rule))
        assert connection.scalar(select(UniqueKey.expires_at)) == until
        connection.commit()
        connection.execute(update(UniqueKey).values(expires_at=text("clock_timestamp()")))
        connection.commit()
        connection.execute(insert(TABLE).values(task="a", uniqueness=rule))
        connection.commit()
        assert [status for status, _ in states(connection)] == [JobStatus.COMPLETED, CANCELLED, QUEUED]


@pytest.mark.parametrize("act", [cancel_jobs, discard_jobs])
def test_an_operator_who_ends_a_job_frees_its_key(connection: Connection, act: Any) -> None:
    """Those of the jobs that end by it, and no others."""
    by_rows(connection, ["a", "b"])
    first = keys(connection)["a"]
    assert connection.scalars(act(Job.id == first)).all() == [first]
    assert keys(connection).keys() == {"b"}


def test_a_running_job_keeps_its_key_when_it_is_asked_to_cancel_or_goes_back(connection: Connection) -> None:
    """Until it has ended: by the release of one that was asked, for instance."""
    by_rows(connection, ["a"])
    (job,) = claim(connection)
    connection.execute(cancel_jobs(Job.id == job.id))
    assert keys(connection) == {"a": job.id}
    connection.execute(release_jobs(Job.id == job.id))
    assert keys(connection) == {}
    assert row(connection, job.id).status is CANCELLED


@pytest.mark.parametrize("outcome", [Retry(1), Snooze(1), Released()])
def test_a_job_that_is_to_run_again_keeps_its_key(connection: Connection, outcome: Outcome) -> None:
    """Through all retries and snoozes."""
    by_rows(connection, ["a"])
    (job,) = claim(connection)
    connection.execute(update(TABLE).values(claim_token=1))
    assert default_store.apply(connection, [change(connection, job.id, outcome)]) == {job.id: "applied"}
    assert keys(connection) == {"a": job.id}


def test_a_job_that_is_retried_by_hand_takes_its_key_again(connection: Connection) -> None:
    """It is no duplicate any more. While another job has the key, it is left as it is, and is not in the answer."""
    by_rows(connection, ["a", "a", "b"])
    holder, duplicate = keys(connection)["a"], None
    duplicate = connection.scalar(select(TABLE.c.id).where(TABLE.c.duplicate_of == holder))
    assert connection.scalars(retry_jobs(Job.id == duplicate)).all() == []
    connection.execute(cancel_jobs(Job.id == holder))
    assert connection.scalars(retry_jobs(Job.id.in_([holder, duplicate]))).all() == [holder]
    connection.execute(cancel_jobs(Job.id == holder))
    assert connection.scalars(retry_jobs(Job.id == duplicate)).all() == [duplicate]
    assert keys(connection)["a"] == duplicate
    assert row(connection, duplicate or 0).duplicate_of is None


def test_a_retry_by_hand_does_not_wait_for_a_key_that_is_being_taken(connection: Connection, other: Connection) -> None:
    """It holds up no other transaction, and causes no deadlock."""
    by_rows(connection, ["a"])
    holder = keys(connection)["a"]
    connection.execute(cancel_jobs(Job.id == holder))
    connection.commit()
    by_rows(other, ["a"])
    assert connection.scalars(retry_jobs(Job.id == holder)).all() == []


def test_keys_that_changes_by_hand_have_left_are_freed(connection: Connection) -> None:
    """A job that was deleted or ended by plain SQL; a key that is to be kept after the end gets its time. Others stay."""
    by_rows(connection, ["deleted", "ended", "lives"])
    connection.execute(insert(TABLE).values(task="a", uniqueness=of("keeps", scope="finished", period=60)))
    ids = keys(connection)
    connection.execute(TABLE.delete().where(TABLE.c.id == ids["deleted"]))
    over = update(TABLE).where(TABLE.c.id.in_([ids["ended"], ids["keeps"]]))
    connection.execute(over.values(status="completed", finished_at=text("now()")))
    after, freed = "", 0
    while True:
        page = default_store.free_stray_keys(connection, after=after, limit=2)
        freed += page.freed
        if page.last is None:
            break
        after = page.last
    assert freed == 3
    assert keys(connection).keys() == {"lives", "keeps"}
    assert default_store.drop_expired_keys(connection) == 0
    connection.execute(update(UniqueKey).where(UniqueKey.key == "keeps").values(expires_at=text("now()")))
    assert default_store.drop_expired_keys(connection) == 1
    assert keys(connection).keys() == {"lives"}


def test_a_locked_key_holds_up_no_end_of_a_job(connection: Connection, other: Connection) -> None:
    """It is left, and maintenance finds it."""
    by_rows(connection, ["a"])
    (job,) = claim(connection)
    connection.execute(update(TABLE).values(claim_token=1))
    connection.commit()
    other.execute(select(UniqueKey.key).with_for_update())
    assert default_store.apply(connection, [completed(job.id, unique=True)]) == {job.id: "applied"}
    connection.commit()
    other.rollback()
    assert keys(connection) == {"a": job.id}
    assert default_store.free_stray_keys(connection).freed == 1


SEEING = ["READ COMMITTED", "REPEATABLE READ"]
"""The levels at which a duplicate may look at the job that has its key."""


@pytest.mark.parametrize("rule", [{}, {"on_clash": "replace"}], ids=["skip", "replace"])
@pytest.mark.parametrize("level", SEEING)
def test_a_job_is_not_started_before_its_duplicates_are_committed(
    engine: Engine, connection: Connection, level: str, rule: dict[str, Any]
) -> None:
    """With the scope "queued": else it would run without what their transactions wrote, and they would be lost."""
    id = connection.scalar(insert(TABLE).values(task="a", uniqueness=of("q", scope="queued")).returning(TABLE.c.id))
    connection.commit()
    with engine.connect().execution_options(isolation_level=level) as producer:
        producer.execute(insert(TABLE).values(task="a", uniqueness=of("q", scope="queued", **rule)))
        assert claim(connection) == []
        producer.commit()
    assert [job.id for job in claim(connection)] == [id]


@pytest.mark.parametrize("level", SEEING)
def test_a_job_that_is_enqueued_while_another_is_being_started_is_kept(
    engine: Engine, connection: Connection, level: str
) -> None:
    """Also where its transaction began before. At READ COMMITTED, before the key of the one that was started is free."""
    connection.execute(insert(TABLE).values(task="a", uniqueness=of("q", scope="queued")))
    connection.commit()
    with engine.connect().execution_options(isolation_level=level) as producer:
        (claimed,) = claim(connection)
        ended = threading.Event()

        def enqueue_late() -> None:
            producer.execute(insert(TABLE).values(task="a", uniqueness=of("q", scope="queued")))
            producer.commit()
            ended.set()

        thread = threading.Thread(target=enqueue_late, daemon=True)
        thread.start()
        connection.commit()
        if level == "REPEATABLE READ":
            default_store.free_started_keys(connection, started_keys([claimed]))
            connection.commit()
        assert ended.wait(30)
        thread.join()
        assert states(producer) == [(JobStatus.RUNNING, None), (QUEUED, None)]
        assert keys(producer)["q"] != claimed.id


def test_a_duplicate_does_not_wait_for_a_job_that_is_locked_for_long(connection: Connection, other: Connection) -> None:
    """With the scope "queued". Else it could deadlock with an operator, who locks jobs in another order."""
    rule = of("a", scope="queued")
    for key in ("a", "b"):
        connection.execute(insert(TABLE).values(task="a", uniqueness=of(key, scope="queued")))
    connection.commit()
    first, second = keys(connection)["a"], keys(connection)["b"]
    connection.commit()
    connection.execute(insert(TABLE).values(task="a", uniqueness=of("b", scope="queued")))
    other.execute(select(TABLE.c.id).where(TABLE.c.id == first).with_for_update())
    ended = threading.Event()

    def lock_second() -> None:
        other.execute(select(TABLE.c.id).where(TABLE.c.id == second).with_for_update())
        ended.set()

    thread = threading.Thread(target=lock_second, daemon=True)
    thread.start()
    connection.execute(insert(TABLE).values(task="a", uniqueness=rule))
    assert not ended.is_set()
    connection.commit()
    assert ended.wait(30)
    thread.join()
    other.rollback()
    assert states(connection)[2:] == [(CANCELLED, second), (CANCELLED, first)]


@pytest.mark.parametrize("left", ["DELETE FROM sa_jobqueue.job", "UPDATE sa_jobqueue.job SET status = 'failed'"])
@pytest.mark.parametrize("level", SEEING)
def test_a_key_that_a_change_by_hand_has_left_is_free_for_the_next_job(engine: Engine, level: str, left: str) -> None:
    """At once, before maintenance has seen it: that job is not lost as a duplicate of one that never runs again."""
    with engine.connect().execution_options(isolation_level=level) as connection:
        by_rows(connection, ["a"])
        connection.execute(text(left))
        connection.commit()
        by_rows(connection, ["a"])
        (status, id) = connection.execute(select(TABLE.c.status, TABLE.c.id).order_by(TABLE.c.id.desc())).first() or ()
        assert status == QUEUED
        assert keys(connection) == {"a": id}


@pytest.mark.parametrize("limit", ["expires_at", "deadline_at"])
@pytest.mark.parametrize("rule", [{}, {"on_clash": "replace"}, {"scope": "queued"}], ids=str)
@pytest.mark.parametrize("level", SEEING)
def test_a_job_that_waits_past_its_time_loses_its_key_to_the_next_one(
    engine: Engine, level: str, rule: dict[str, Any], limit: str
) -> None:
    """Else that one were lost as a duplicate of a job that is not run: no worker may have been there to end it."""
    over = {limit: text("now() - interval '1 second'")}
    with engine.connect().execution_options(isolation_level=level) as connection:
        late = connection.scalar(insert(TABLE).values(task="a", uniqueness=of("a"), **over).returning(TABLE.c.id))
        connection.commit()
        next_one = insert(TABLE).values(task="a", uniqueness=of("a", **rule)).returning(TABLE.c.id)
        id = connection.scalar(next_one)
        connection.commit()
        assert (row(connection, id).status, keys(connection)) == (QUEUED, {"a": id})
        assert connection.scalars(retry_jobs(Job.id == late)).all() == []
        default_store.end_expired(connection, limit=10)
        default_store.end_overdue(connection, limit=10)
        assert (row(connection, late).finished_at is not None, keys(connection)) == (True, {"a": id})
        connection.commit()


@pytest.mark.parametrize("level", SEEING)
@pytest.mark.parametrize("how", ["claimed just now", "an earlier attempt"])
def test_a_job_that_was_started_keeps_its_key(engine: Engine, connection: Connection, level: str, how: str) -> None:
    """Its expiry says nothing any more. That one being claimed is not started, its worker will say."""
    over = text("now() - interval '1 second'")
    attempt = 0 if how == "claimed just now" else 1
    connection.execute(insert(TABLE).values(task="a", uniqueness=of("a"), expires_at=over, attempt=attempt))
    connection.commit()
    if attempt == 0:
        assert len(claim(connection)) == 1
    with engine.connect().execution_options(isolation_level=level) as producer:
        by_rows(producer, ["a"])
        producer.commit()
    connection.commit()
    assert [status for status, _ in states(connection)][1] == CANCELLED


def test_a_key_left_behind_is_not_taken_from_a_job_that_is_brought_back(
    connection: Connection, other: Connection
) -> None:
    """By an operator, at the same moment: it has ended by plain SQL, and its key was still its own."""
    by_rows(connection, ["a"])
    holder = keys(connection)["a"]
    connection.execute(update(TABLE).values(status="failed", finished_at=text("now()")))
    connection.commit()
    assert connection.scalars(retry_jobs(Job.id == holder)).all() == [holder]
    ended = threading.Event()

    def enqueue_late() -> None:
        by_rows(other, ["a"])
        ended.set()

    thread = threading.Thread(target=enqueue_late, daemon=True)
    thread.start()
    wait_until(lambda: any_waits(connection))
    connection.commit()
    assert ended.wait(30)
    thread.join()
    assert states(other) == [(QUEUED, None), (CANCELLED, holder)]


def any_waits(connection: Connection) -> bool:
    """Whether a connection to this database waits for a lock."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return bool(connection.scalar(text(waiting)))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("scope", ["finished", "window"])
def test_a_duplicate_leaves_no_lock_on_the_key(engine: Engine, connection: Connection, scope: str, level: str) -> None:
    """Until its transaction ends: the holder's end would leave the key behind, and the next job would be lost."""
    rule = of("k", scope=scope, period=60)
    connection.execute(insert(TABLE).values(task="a", uniqueness=rule))
    connection.commit()
    with engine.connect().execution_options(isolation_level=level) as producer:
        producer.execute(insert(TABLE).values(task="a", uniqueness=rule))
        connection.execute(select(UniqueKey.key).with_for_update(nowait=True)).one()


def test_a_retry_in_vain_leaves_no_lock_on_the_key(connection: Connection, other: Connection) -> None:
    """The job that has it can end meanwhile, and its key is free then."""
    by_rows(connection, ["a", "a"])
    holder = keys(connection)["a"]
    connection.commit()
    assert other.scalars(retry_jobs(Job.status == CANCELLED)).all() == []
    assert connection.scalars(cancel_jobs(Job.id == holder)).all() == [holder]
    assert keys(connection) == {}


def test_a_job_that_is_inserted_as_ended_takes_no_key(connection: Connection) -> None:
    """A row that its owner brings back from an archive, say."""
    connection.execute(insert(TABLE).values(task="a", uniqueness=of("k"), status="completed"))
    by_rows(connection, ["k"])
    assert states(connection) == [(JobStatus.COMPLETED, None), (QUEUED, None)]


def test_a_rule_by_sql_replaces_all_three_unless_it_says_which(connection: Connection) -> None:
    """As `Unique` does."""
    by_rows(connection, ["k"])
    new = {"args": {"n": 2}, "priority": 9}
    connection.execute(insert(TABLE).values(task="a", uniqueness=of("k", on_clash="replace"), **new))
    holder = connection.execute(select(TABLE.c.args, TABLE.c.priority).order_by(TABLE.c.id)).first()
    assert holder is not None
    assert holder._asdict() == new


def test_a_flush_and_a_bulk_insert_take_keys_in_the_same_order(engine: Engine, other: Connection) -> None:
    """Whatever characters are in them. Else one of each could deadlock."""
    names = ["a", "a b", 'a"', "a\\", "a\x7f", "é", "z", "Z", "\U0001f600"]
    jobs = [plain.options(unique=Unique(name, scope="queued", on_clash="replace")) for name in names]
    orders = []
    for insertion in ("flush", "many"):
        with Session(engine) as session:
            if insertion == "flush":
                session.add_all([enqueue(one) for one in jobs])
                session.flush()
            else:
                session.execute(enqueue_many([one.call() for one in jobs]))
            orders.append(session.scalars(select(Job.unique_key).order_by(Job.id)).all())
            session.rollback()
    assert orders[0] == orders[1]


def test_a_key_of_a_live_job_that_has_another_key_is_freed(connection: Connection) -> None:
    """After an INSERT of given ids that came to nothing, or a change of the rule by hand."""
    by_rows(connection, ["a", "b"])
    ids = keys(connection)
    connection.execute(update(TABLE).where(TABLE.c.id == ids["a"]).values(uniqueness=of("other")))
    assert default_store.free_stray_keys(connection).freed == 1
    assert keys(connection) == {"b": ids["b"]}


@pytest.mark.parametrize(
    "rule",
    [
        {}, {"key": None}, {"key": 7}, of(""), of("k" * 501), of("".join(map(chr, range(256, 10_256)))), [], "k",
        of("k", scope="ever"), of("k", scope="window"), of("k", period=3), of("k", on_clash="drop"),
        of("k", scope="window", period="day"), of("k", scope="window", period=-1), of("k", scope="finished", period=1e300),
        of("k", on_clash="replace", replace=["queue"]), of("k", on_clash="replace", replace="args"),
        of("k", on_clash="replace", max_wait="1 h"), of("k", on_clash="replace", max_wait=None), of("k", on_clash="replace", max_wait=-1),
        of("k", on_clash="replace", max_wait=1e300),
    ],
)  # fmt: skip
def test_a_rule_that_cannot_be_is_refused_with_the_reason(connection: Connection, rule: dict[str, Any]) -> None:
    """For producers that insert by SQL."""
    with pytest.raises(Exception, match="must have a key of 1 to 500 characters"):
        connection.execute(insert(TABLE).values(task="a", uniqueness=rule))


@pytest.mark.parametrize("level", ["READ COMMITTED", *nightly("REPEATABLE READ", "SERIALIZABLE")])
def test_of_many_transactions_at_once_one_job_per_key_is_kept_and_none_is_aborted(engine: Engine, level: str) -> None:
    """They insert in several ways, some roll back, and others end jobs meanwhile. Each live job has its key, and each key its job."""
    failures: list[BaseException] = []
    clients, rounds = 8, 12

    def client(number: int) -> None:
        chosen = random.Random(f"{level} {number}")
        for _ in range(rounds):
            wanted = sorted(f"k{chosen.randrange(20)}" for _ in range(chosen.choice([1, 1, 3, 10])))
            try:
                with engine.connect().execution_options(isolation_level=level) as connection:
                    connection.execute(text("SELECT pg_current_snapshot()"))
                    chosen.choice(WAYS)(connection, wanted)
                    if chosen.random() < 0.75:
                        connection.commit()
                with engine.begin() as connection:
                    due = (
                        select(TABLE.c.id)
                        .where(TABLE.c.status == QUEUED, TABLE.c.id % 5 == chosen.randrange(5))
                        .limit(10)
                    )
                    connection.execute(cancel_jobs(Job.id.in_(connection.scalars(due).all())))
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with engine.connect() as connection:
        live = select(TABLE.c.id, TABLE.c.uniqueness["key"].astext).where(TABLE.c.status == QUEUED)
        holders = {key: id for id, key in connection.execute(live)}
        assert len(holders) == len(connection.execute(live).all()), "two live jobs have one key"
        assert holders == keys(connection)
        assert len(states(connection)) > clients * rounds / 2


@pytest.mark.parametrize("on_clash", ["skip", "replace"])
def test_each_change_is_seen_by_a_run_that_began_after_its_commit(engine: Engine, on_clash: str) -> None:
    """With the scope "queued", whatever producers and workers do at once: what a transaction wrote beside its job is not missed."""
    rule = of("rebuild", scope="queued", on_clash=on_clash)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE change (n int PRIMARY KEY)"))
    failures: list[BaseException] = []
    seen: set[int] = set()
    runs = 0

    def produce(number: int) -> None:
        try:
            with engine.connect() as connection:
                for n in range(number, 400, 4):
                    connection.execute(text("INSERT INTO change VALUES (:n)"), {"n": n})
                    connection.execute(insert(TABLE).values(task="a", uniqueness=rule))
                    connection.execute(text("SELECT count(*) FROM change"))  # goes on a little before it commits
                    connection.commit()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    try:
        for thread in threads:
            thread.start()
        with engine.connect() as worker:
            while True:
                over = not any(thread.is_alive() for thread in threads)
                jobs = claim(worker)
                worker.commit()
                default_store.free_started_keys(worker, started_keys(jobs))
                worker.commit()
                for job in jobs:
                    runs += 1
                    seen |= set(worker.scalars(text("SELECT n FROM change")))
                    worker.execute(update(TABLE).where(TABLE.c.id == job.id).values(status="completed"))
                    worker.commit()
                if over and not jobs:
                    break
    finally:
        for thread in threads:
            thread.join()
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE change"))
    assert failures == []
    assert seen == set(range(400))
    assert runs > 1

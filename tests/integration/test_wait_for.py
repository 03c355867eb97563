"""Waiting for the end of jobs: each way to end is told, over each driver, and nothing is told while no one waits.

Where a test is about what is told, listeners do not look by themselves (`told_only`).
"""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobContext, JobEnd, JobStatus, Registry, enqueue, task, wait_for
from sa_jobqueue.errors import WaitTimeout
from sa_jobqueue.migrations import upgrade_database
from sa_jobqueue.rules.lifecycle import DEADLINE_OVER
from sa_jobqueue.rules.outcomes import Discard, ErrorEntry, Snooze
from sa_jobqueue.sql.claims import ClaimRequest
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import cancel_jobs, discard_jobs, release_jobs
from sa_jobqueue.waiting import subscription
from tests.support import pooler
from tests.support.awaiting import PATIENCE, TOLD, awaited, backends, running, waiting_over
from tests.support.databases import connect, driver_url
from tests.support.factory import change, completed, make_job, make_jobs
from tests.support.nightly import nightly
from tests.support.waiting import wait_until, wait_until_async
from tests.support.working import add_one, working

pytestmark = pytest.mark.usefixtures("soon_closed")


def by_batch(connection: Connection, id: int) -> None:
    default_store.apply(connection, [completed(id)])


def by_batch_with_result(connection: Connection, id: int) -> None:
    default_store.apply(connection, [completed(id, result='{"a": 1}')])


def by_round(connection: Connection, id: int) -> None:
    default_store.exchange(connection, [completed(id)], ClaimRequest("me", {"default": 1}, 60.0))


def by_round_that_deletes(connection: Connection, id: int) -> None:
    default_store.exchange(connection, [completed(id, retain=0)], ClaimRequest("me", {"default": 1}, 60.0))


def by_deletion(connection: Connection, id: int) -> None:
    default_store.apply(connection, [completed(id, retain=0)])


def by_general_statement(connection: Connection, id: int) -> None:
    default_store.apply(connection, [completed(id, error=ErrorEntry("PayloadError", "too large"))])


def by_failure(connection: Connection, id: int) -> None:
    default_store.apply(connection, [change(connection, id, Discard("no"))])


def by_handler(connection: Connection, id: int) -> None:
    default_store.apply_one(connection, completed(id, result="7"))


def by_function(connection: Connection, id: int) -> None:
    connection.execute(text("SELECT sa_jobqueue.complete_job(:id, 1, 60)"), {"id": id})


def by_function_with_result(connection: Connection, id: int) -> None:
    connection.execute(text("SELECT sa_jobqueue.complete_job(:id, 1, 60, '[1]')"), {"id": id})


def by_release(connection: Connection, id: int) -> None:
    connection.execute(cancel_jobs(Job.id == id))
    assert connection.scalars(release_jobs(Job.id == id)).all() == [id]


def by_cancel(connection: Connection, id: int) -> None:
    connection.execute(release_jobs(Job.id == id, delay=60))
    assert connection.scalars(cancel_jobs(Job.id == id)).all() == [id]


def by_discard(connection: Connection, id: int) -> None:
    connection.execute(release_jobs(Job.id == id, delay=60))
    assert connection.scalars(discard_jobs(Job.id == id, reason="useless")).all() == [id]


def by_cancel_that_skips(connection: Connection, id: int) -> None:
    connection.execute(release_jobs(Job.id == id, delay=60))
    assert connection.execute(cancel_jobs(Job.id == id, locked="skip")).all() == [(id, True)]


def by_expiry(connection: Connection, id: int) -> None:
    connection.execute(release_jobs(Job.id == id))
    connection.execute(text("UPDATE sa_jobqueue.job SET expires_at = now(), attempt = 0 WHERE id = :id"), {"id": id})
    assert [one.id for one in default_store.end_expired(connection)] == [id]


def by_deadline(connection: Connection, id: int) -> None:
    connection.execute(release_jobs(Job.id == id))
    connection.execute(text("UPDATE sa_jobqueue.job SET deadline_at = now() WHERE id = :id"), {"id": id})
    assert [one.id for one in default_store.end_overdue(connection)] == [id]


ENDS: list[tuple[Callable[[Connection, int], None], JobStatus | None, Any]] = [
    (by_batch, JobStatus.COMPLETED, None),
    (by_batch_with_result, JobStatus.COMPLETED, {"a": 1}),
    (by_round, JobStatus.COMPLETED, None),
    (by_round_that_deletes, None, None),
    (by_deletion, None, None),
    (by_general_statement, JobStatus.COMPLETED, None),
    (by_failure, JobStatus.FAILED, None),
    (by_handler, JobStatus.COMPLETED, 7),
    (by_function, JobStatus.COMPLETED, None),
    (by_function_with_result, JobStatus.COMPLETED, [1]),
    (by_release, JobStatus.CANCELLED, None),
    (by_cancel, JobStatus.CANCELLED, None),
    (by_cancel_that_skips, JobStatus.CANCELLED, None),
    (by_discard, JobStatus.FAILED, None),
    (by_expiry, JobStatus.CANCELLED, None),
    (by_deadline, JobStatus.FAILED, None),
]


@pytest.mark.usefixtures("told_only")
@pytest.mark.parametrize(("ends", "status", "result"), ENDS, ids=lambda one: getattr(one, "__name__", None))
def test_each_way_to_end_is_told(
    engine: Engine, threads: ThreadPoolExecutor, ends: Callable[[Connection, int], None], status: Any, result: Any
) -> None:
    """By all that ends jobs, at its commit."""
    id, other = running(engine), running(engine)
    waits = threads.submit(wait_for, engine, id, timeout=PATIENCE)
    wait_until(lambda: awaited(engine) == {id})

    with engine.begin() as connection:
        ends(connection, id)

    end = waits.result()
    assert (end.id, end.status, end.result) == (id, status, result)
    assert end.is_gone == (status is None)
    if status is JobStatus.FAILED:
        assert end.error is not None
        assert end.error["message"] in {"no", "useless", DEADLINE_OVER.message}
    wait_until(lambda: awaited(engine) == set())
    with engine.begin() as connection:
        default_store.apply(connection, [change(connection, other, Snooze(60))])  # the gate is open: that is no end
    assert awaited(engine) == set()


@pytest.mark.parametrize("driver", TOLD)
@pytest.mark.usefixtures("told_only")
def test_each_driver_is_told(engine: Engine, url: str, threads: ThreadPoolExecutor, driver: str) -> None:
    """The result comes to the thread or the coroutine that waits."""
    id = running(engine)
    waits = threads.submit(waiting_over(driver), url, id)
    wait_until(lambda: awaited(engine) == {id})

    with engine.begin() as connection:
        by_batch_with_result(connection, id)

    assert waits.result().result_as(dict[str, int]) == {"a": 1}


def test_another_driver_looks_now_and_then(engine: Engine, url: str, threads: ThreadPoolExecutor) -> None:
    """pg8000 is not told, so it says nowhere that it waits."""
    id = running(engine)
    waits = threads.submit(waiting_over("pg8000"), url, id)
    with pytest.raises(TimeoutError):
        waits.result(0.1)
    assert awaited(engine) == set()

    with engine.begin() as connection:
        by_batch_with_result(connection, id)

    assert waits.result().result == {"a": 1}


@pytest.mark.parametrize("kind", ["plain", "with_session", "coroutine"])
def test_what_a_worker_runs_is_told(
    engine: Engine, url: str, threads: ThreadPoolExecutor, request: pytest.FixtureRequest, kind: str
) -> None:
    """Whether the handler's job is completed in a batch, or with the commit of its session; to several who wait for it."""
    if not pooler.is_pooled(url):
        request.getfixturevalue("told_only")
    registry, may_end = Registry(), threading.Event()

    @task(registry=registry, name="plain", record=True)
    def plain(n: int) -> int:
        may_end.wait(PATIENCE)
        return n + 1

    @task(registry=registry, name="with_session", record=True)
    def with_session(ctx: JobContext, n: int) -> int:
        ctx.session.execute(text("SELECT 1"))
        return plain(n)

    @task(registry=registry, name="coroutine", record=True)
    async def coroutine(n: int) -> int:
        return await asyncio.to_thread(plain, n)

    with working(url, registry):
        id = add_one(engine, enqueue(kind, n=1))
        waits = [threads.submit(wait_for, engine, id, timeout=PATIENCE) for _ in range(3)]
        if not pooler.is_pooled(url):
            wait_until(lambda: awaited(engine) == {id})
        may_end.set()
        assert [one.result().result for one in waits] == [2, 2, 2]


def test_what_has_ended_or_is_not_there_is_an_answer_at_once(engine: Engine) -> None:
    """A job that is gone, or was never committed; also from within the transaction that enqueues it."""
    with engine.begin() as connection:
        done = make_job(connection, "completed", result={"a": 1}, errors=[{"type": "E", "message": "m"}])
    with Session(engine) as session:
        session.add(job := enqueue("a_task"))
        session.flush()
        ends = wait_for(engine, [job.id, done, job.id, 10**12], timeout=PATIENCE)
        assert [(end.id, end.is_gone) for end in ends] == [
            (job.id, True),
            (done, False),
            (job.id, True),
            (10**12, True),
        ]
    assert (ends[1].task, ends[1].result, ends[1].error) == ("a_task", {"a": 1}, {"type": "E", "message": "m"})
    assert wait_for(engine, [], timeout=PATIENCE) == []
    for odd in (["by hand"], [], {}):
        with engine.begin() as connection:
            by_hand = make_job(connection, "failed", errors=odd)
        assert wait_for(engine, by_hand, timeout=PATIENCE).error is None
    assert awaited(engine) == set()


@pytest.mark.nightly
def test_many_jobs_can_be_waited_for(engine: Engine) -> None:
    """In a table that was never analyzed, so that it is scanned sequentially."""
    rows = "INSERT INTO sa_jobqueue.job (task) SELECT 'sum' FROM generate_series(1, 10000) RETURNING id"
    with engine.begin() as connection:
        ids = list(connection.scalars(text(rows)))
        connection.execute(text("UPDATE sa_jobqueue.job SET status = 'completed', finished_at = now()"))
    ends = wait_for(engine, ids, timeout=PATIENCE)
    assert [end.id for end in ends] == ids


def test_who_waits_too_long_gets_a_timeout_error(engine: Engine, async_engine: AsyncEngine) -> None:
    """It says which have not ended, and has the ends of the others."""
    with engine.begin() as connection:
        one, two = make_jobs(connection, 2, "running")
        done = make_job(connection, "completed")

    for wait in (
        lambda: wait_for(engine, [one, done, two], timeout=timedelta(seconds=1)),
        lambda: asyncio.run(_waited(async_engine, [one, done, two], 1.0)),
    ):
        with pytest.raises(TimeoutError, match=f"2 jobs, {one} for one, have not ended within 1 s") as caught:
            wait()
        assert isinstance(caught.value, WaitTimeout)
        assert (caught.value.ids, [end.id for end in caught.value.ended]) == ((one, two), [done])


async def _waited(engine: AsyncEngine, ids: list[int], seconds: float) -> list[JobEnd]:
    try:
        return await wait_for(engine, ids, timeout=seconds)
    finally:
        await engine.dispose()


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("x", 1), TypeError, "an Engine or an AsyncEngine, not 'x'"),
        ((None, "7"), TypeError, "the id of a job, or several, not '7'"),
        ((None, [True]), TypeError, "not True"),
        ((None, None), TypeError, "not None: after a flush it is job.id"),
        ((None, [1, 2**63]), ValueError, f"{2**63} cannot be the id of a job"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(engine: Engine, arguments: Any, error: Any, said: str) -> None:
    """With what was expected."""
    with pytest.raises(error, match=said):
        wait_for(arguments[0] or engine, arguments[1], timeout=1)
    for timeout, wrong in [(0, ValueError), (-1, ValueError), ("1", TypeError)]:
        with pytest.raises(wrong, match="timeout"):
            wait_for(engine, 1, timeout=timeout)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM sa_jobqueue.job",
        "UPDATE sa_jobqueue.job SET status = 'cancelled', finished_at = now(), claim_token = NULL, lease_expires_at = NULL",
    ],
)
def test_what_plain_sql_does_to_a_job_is_seen_though_it_is_not_told(
    engine: Engine, threads: ThreadPoolExecutor, statement: str
) -> None:
    """By a look of the listener's own: a job that is deleted meanwhile is an answer."""
    id = running(engine)
    waits = threads.submit(wait_for, engine, id, timeout=PATIENCE)
    with pytest.raises(TimeoutError):
        waits.result(0.1)

    with engine.begin() as connection:
        connection.execute(text(statement))

    assert waits.result().is_gone is statement.startswith("DELETE")


def test_an_end_that_was_written_before_the_wait_and_committed_during_it_is_seen(
    engine: Engine, threads: ThreadPoolExecutor
) -> None:
    """What ended the job could not know that someone would wait."""
    id = running(engine)
    with engine.begin() as connection:
        by_batch_with_result(connection, id)
        waits = threads.submit(wait_for, engine, id, timeout=PATIENCE)
        with pytest.raises(TimeoutError):
            waits.result(0.2)

    assert waits.result().result == {"a": 1}


@pytest.mark.usefixtures("told_only")
def test_many_waiters_share_one_connection_and_one_look(
    engine: Engine, database_url: str, threads: ThreadPoolExecutor
) -> None:
    """1,000 coroutines and 50 threads, several for each job. Afterwards the connections are closed."""
    with engine.begin() as connection:
        ids = make_jobs(connection, 25, "running")
    own = create_async_engine(driver_url(database_url, "asyncpg"))

    async def scenario() -> list[JobEnd]:
        return await asyncio.gather(*[wait_for(own, id, timeout=PATIENCE) for id in ids * 40])

    with connect(database_url) as watching:
        engine.dispose()
        before = backends(watching)
        coroutines: Future[list[JobEnd]] = threads.submit(lambda: asyncio.run(scenario()))
        waits = [threads.submit(wait_for, engine, id, timeout=PATIENCE) for id in ids * 2]
        count = "SELECT count(*), count(DISTINCT job_id), count(DISTINCT waiter) FROM sa_jobqueue.awaited"
        wait_until(lambda: watching.execute(count).fetchone() == (50, 25, 2))
        assert len(backends(watching) - before) == 2

        with watching.transaction():
            watching.execute("SELECT sa_jobqueue.complete_job(id, 1, 60, to_jsonb(id)) FROM sa_jobqueue.job")

        assert [one.result().result for one in waits] == ids * 2
        assert [one.result for one in coroutines.result()] == ids * 40
        wait_until(lambda: backends(watching) <= before)


@pytest.mark.usefixtures("told_only")
def test_an_engine_with_other_options_at_each_call_shares_the_connection(
    engine: Engine, database_url: str, threads: ThreadPoolExecutor
) -> None:
    """One with the tables in another schema has a connection of its own."""
    if pooler.is_pooled(database_url):
        pytest.skip("its connections are the pooler's")
    options: list[dict[str, Any]] = [{"isolation_level": "SERIALIZABLE"}, {"schema_translate_map": {"other": "x"}}] * 4
    ids = [running(engine) for _ in options]
    with connect(database_url) as watching:
        engine.dispose()
        before = backends(watching)
        waits = [
            threads.submit(wait_for, engine.execution_options(**one), id, timeout=PATIENCE)
            for one, id in zip(options, ids, strict=True)
        ]
        said = "SELECT array_agg(DISTINCT job_id) FROM sa_jobqueue.awaited"
        wait_until(lambda: watching.execute(said).fetchone() == (ids,))
        assert len(backends(watching) - before) == 2
    with engine.begin() as connection:
        default_store.apply(connection, [completed(id) for id in ids])

    assert all(wait.result().is_completed for wait in waits)


def test_a_pool_of_which_nothing_is_left_does_not_matter(url: str, engine: Engine) -> None:
    """The connection is not the pool's: who waits may have the last one in its session."""
    own = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=0.1, **pooler.engine_options(url))
    with Session(own) as session:
        session.add(job := enqueue("a_task"))
        session.flush()
        id = job.id
        session.commit()
        session.execute(text("SELECT 1"))
        with engine.begin() as connection:
            connection.execute(cancel_jobs(Job.id == id))
        assert wait_for(own, id, timeout=PATIENCE).status is JobStatus.CANCELLED
    own.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "async psycopg", "asyncpg"])
def test_tables_in_another_schema_have_a_channel_of_their_own(
    empty_database_url: str, threads: ThreadPoolExecutor, request: pytest.FixtureRequest, driver: str
) -> None:
    """The engine says where they are."""
    request.getfixturevalue("told_only")
    upgrade_database(empty_database_url, schema="other jobs")
    options: Any = {"schema_translate_map": {"sa_jobqueue": "other jobs"}}
    engine = create_engine(empty_database_url, execution_options=options)
    id = running(engine)
    waits = threads.submit(waiting_over(driver, execution_options=options), empty_database_url, id)
    with connect(empty_database_url) as watching:
        wait_until(lambda: watching.execute('SELECT job_id FROM "other jobs".awaited').fetchall() == [(id,)])

    with engine.begin() as connection:
        by_batch_with_result(connection, id)

    assert waits.result().result == {"a": 1}
    engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_a_cancelled_wait_leaves_nothing_behind(engine: Engine, url: str, driver: str) -> None:
    """No row, no task, and soon no connection, although the engine is not disposed of."""
    id = running(engine)
    own = create_async_engine(driver_url(url, driver), **pooler.engine_options(driver_url(url, driver)))

    async def scenario() -> None:
        waits = asyncio.ensure_future(wait_for(own, id, timeout=PATIENCE))
        if not pooler.is_pooled(url):
            await wait_until_async(lambda: awaited(engine) == {id})
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())
    gc.collect()
    wait_until(lambda: awaited(engine) == set())
    wait_until(lambda: not [one for one in threading.enumerate() if one.name == "sa-jobqueue waiting"])


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_one_event_loop_after_another_can_wait(engine: Engine, url: str, driver: str) -> None:
    """By the same engine, and while the connection is open: it belongs to none of them."""
    own = create_async_engine(driver_url(url, driver), **pooler.engine_options(driver_url(url, driver)))

    async def scenario(id: int) -> JobEnd:
        waits = asyncio.ensure_future(wait_for(own, id, timeout=PATIENCE))
        if not pooler.is_pooled(url):
            await wait_until_async(lambda: awaited(engine) == {id})
        await asyncio.to_thread(end, id)
        return await waits

    def end(id: int) -> None:
        with engine.begin() as connection:
            by_batch_with_result(connection, id)

    for _ in range(3):
        assert asyncio.run(scenario(running(engine))).result == {"a": 1}


@pytest.mark.parametrize("driver", ["psycopg", *nightly("asyncpg")])
def test_an_engine_that_was_waited_by_can_be_collected(engine: Engine, url: str, driver: str) -> None:
    """An application that makes an engine for each tenant, say, does not keep them all."""
    with engine.begin() as connection:
        id = make_job(connection, "completed")

    def wait() -> weakref.ref[Engine]:
        if driver == "psycopg":
            own = create_engine(url, **pooler.engine_options(url))
            assert wait_for(own, id, timeout=PATIENCE).is_completed
            return weakref.ref(own)
        own_async = create_async_engine(driver_url(url, driver), **pooler.engine_options(driver_url(url, driver)))
        assert asyncio.run(_waited(own_async, [id], PATIENCE))[0].is_completed
        return weakref.ref(own_async.sync_engine)

    reference = wait()

    def is_collected() -> bool:
        gc.collect()
        return reference() is None

    wait_until(is_collected)


def test_an_engine_that_is_disposed_of_leaves_no_connection(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, database_url: str
) -> None:
    """Otherwise a database could not be dropped for a few seconds after the last wait."""
    if pooler.is_pooled(database_url):
        pytest.skip("its connections are the pooler's")
    monkeypatch.setattr(subscription, "_LINGER", 3_600.0)
    id = running(engine)

    async def scenario() -> None:
        own = create_async_engine(driver_url(database_url, "asyncpg"))
        with pytest.raises(WaitTimeout):
            await wait_for(own, id, timeout=0.1)
        await own.dispose()

    with connect(database_url) as watching:
        engine.dispose()
        before = backends(watching)
        with pytest.raises(WaitTimeout):
            wait_for(engine, id, timeout=0.1)
        wait_until(lambda: backends(watching) - before)  # on a slow machine it opens later than the wait has ended
        engine.dispose()
        asyncio.run(scenario())
        wait_until(lambda: backends(watching) <= before)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_an_engine_that_is_disposed_of_while_its_connection_is_made_leaves_none(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, url: str, driver: str
) -> None:
    """On a slow machine a wait may be over, and the engine disposed of, before the connection is there."""
    monkeypatch.setattr(subscription, "_LINGER", 3_600.0)
    id, disposed = running(engine), threading.Event()
    options = pooler.engine_options(driver_url(url, driver))
    own: Any = (create_engine if driver == "psycopg" else create_async_engine)(driver_url(url, driver), **options)
    sync = own if driver == "psycopg" else own.sync_engine
    event.listen(sync, "do_connect", lambda *_: disposed.wait(PATIENCE) and None)

    with pytest.raises(WaitTimeout):
        _ = wait_for(own, id, timeout=0.01) if own is sync else asyncio.run(_waited(own, [id], 0.01))
    sync.dispose()
    disposed.set()

    wait_until(lambda: not [one for one in threading.enumerate() if one.name == "sa-jobqueue waiting"])


def test_nothing_is_told_of_a_job_that_nobody_waits_for(engine: Engine, database_url: str) -> None:
    """Neither while the gate is closed, nor while another job is awaited."""
    first, second, awaited_one = running(engine), running(engine), running(engine)
    with connect(database_url) as hearing:
        hearing.autocommit = True
        (oid,) = hearing.execute("SELECT 'sa_jobqueue.awaited'::regclass::oid::bigint").fetchone()  # type: ignore[misc]
        hearing.execute(f"LISTEN sa_jobqueue_{oid}".encode())
        with engine.begin() as connection:
            by_batch(connection, first)
        own = create_engine(database_url)
        waiting = threading.Thread(target=lambda: wait_for(own, awaited_one, timeout=PATIENCE))
        waiting.start()
        if not pooler.is_pooled(database_url):
            wait_until(lambda: awaited(engine) == {awaited_one})
        with engine.begin() as connection:
            by_batch(connection, second)
        with engine.begin() as connection:
            by_batch(connection, awaited_one)
        waiting.join(PATIENCE)
        own.dispose()
        if not pooler.is_pooled(database_url):
            heard = [one.payload for one in hearing.notifies(timeout=PATIENCE, stop_after=1)]
            assert heard == [str(awaited_one)]

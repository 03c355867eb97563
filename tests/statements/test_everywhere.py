"""Every statement through Connection, Session and AsyncSession, and in another schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Delete, Engine, Executable, Insert, Update, create_engine, select, text, true
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import statements
from sa_jobqueue.migrations import upgrade_database
from sa_jobqueue.models import Base, Job, Schedule
from sa_jobqueue.sql import claims as claiming
from sa_jobqueue.sql.apply import Answer
from sa_jobqueue.sql.claims import ClaimRequest
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import (
    apply_changes,
    cancel_jobs,
    claim_jobs,
    copy_jobs,
    count_jobs,
    discard_jobs,
    edit_jobs,
    expired_leases,
    insert_jobs,
    prune_jobs,
    release_jobs,
    renew_leases,
    retry_jobs,
)
from sa_jobqueue.tasks.calls import Call
from tests.support.factory import completed, make_job

ELSEWHERE = 'other "schema, 100%s'

CALL = Call("greet", '{"name": "Zoë"}', "default", 4, 10, timedelta(0), "{}")

#: A life with every statement in it: what is executed, and the first column of what it returns (or how many rows).
LIFE: list[tuple[str, Any, object]] = [
    ("insert", lambda: insert_jobs([CALL, CALL, CALL]), [1, 2, 3]),
    ("claim", lambda: claim_jobs(worker="me", queues={"default": 2}, lease=60), [1, 2]),
    ("renew", lambda: renew_leases(ids=[1, 2], tokens=[1, 1], lease=0), [1, 2]),
    ("apply", lambda: apply_changes([completed(1)]), [1]),
    ("cancel", lambda: cancel_jobs(Job.id == 2), [2]),
    ("release", lambda: release_jobs(Job.id == 2), [2]),
    ("discard", lambda: discard_jobs(Job.id == 3), [3]),
    ("retry", lambda: retry_jobs(Job.id == 1), [1]),
    ("edit", lambda: edit_jobs(Job.id == 1, args={"name": "Zoé"}, run_at=timedelta(0)), [1]),
    ("copy", lambda: copy_jobs(Job.id == 3, delay=60), [4]),
    ("claim again", lambda: claim_jobs(worker="me", queues={"default": 9}, lease=0), [1]),
    ("count", count_jobs, ["default"]),
    ("prune", lambda: prune_jobs(Job.id > 1), [2, 3]),
]


@pytest.fixture(autouse=True)
def known_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims whose token `completed` knows."""
    monkeypatch.setattr(claiming, "new_token", lambda: 1)


def check(name: str, found: list[Any], wanted: object) -> None:
    assert sorted(found) == wanted, name


@pytest.fixture
def elsewhere(empty_database_url: str) -> str:
    """A database where our tables are in another schema only."""
    upgrade_database(empty_database_url, schema=ELSEWHERE)
    return empty_database_url


@pytest.fixture
def elsewhere_engine(elsewhere: str) -> Iterator[Engine]:
    engine = create_engine(elsewhere, execution_options={"schema_translate_map": {"sa_jobqueue": ELSEWHERE}})
    yield engine
    engine.dispose()


def live(executing: Connection | Session) -> None:
    for name, build, wanted in LIFE:
        check(name, list(executing.scalars(build())), wanted)
    (expired,) = executing.execute(expired_leases()).mappings()
    assert (expired["id"], expired["worker"]) == (1, "me")


async def live_async(session: AsyncSession) -> None:
    for name, build, wanted in LIFE:
        check(name, list(await session.scalars(build())), wanted)
    assert list(await session.scalars(expired_leases())) == [1]


def test_through_a_connection(engine: Engine) -> None:
    """As the worker does."""
    with engine.begin() as connection:
        live(connection)


def test_through_a_session(session: Session) -> None:
    """As an application does, in its own transaction."""
    live(session)


@pytest.mark.parametrize("build", [count_jobs, expired_leases])
def test_what_only_reads_goes_where_a_session_bound_by_class_sends_it(
    engine: Engine, build: Callable[[], Executable]
) -> None:
    """Without criteria, too: the base class of the models is enough."""
    with Session(binds={Base: engine}) as session:
        assert session.execute(build()).all() == []


async def test_through_an_async_session(async_session: AsyncSession) -> None:
    """The same statements do for both kinds of Session."""
    await live_async(async_session)


def test_a_statement_that_calls_a_function_of_the_schema_is_compiled_once(empty_database_url: str) -> None:
    """For all schemas: which one's function is called is said when the statement is executed."""
    engine = create_engine(empty_database_url)
    cached: dict[str, Any] = {"compiled_cache": {}}
    for schema in ("here", "there"):
        upgrade_database(empty_database_url, schema=schema)
        with engine.begin() as connection:
            connection.execution_options(schema_translate_map={"sa_jobqueue": schema})
            for _ in range(2):
                statement = insert_jobs([CALL._replace(expires=timedelta(hours=1))])
                connection.execute(statement, execution_options=cached)
            assert connection.scalar(text(f"SELECT count(*) FROM {schema}.job WHERE expires_at > now()")) == 2
            connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))  # there is no other that could be called
    engine.dispose()
    assert len(cached["compiled_cache"]) == 1


def test_through_a_connection_elsewhere(elsewhere_engine: Engine) -> None:
    """`schema_translate_map` moves everything; there is no schema of the old name to fall back to."""
    with elsewhere_engine.begin() as connection:
        live(connection)


def test_through_a_session_elsewhere(elsewhere_engine: Engine) -> None:
    """The same."""
    with Session(elsewhere_engine) as session:
        live(session)


async def test_through_an_async_session_elsewhere(elsewhere: str) -> None:
    """The same."""
    engine = create_async_engine(elsewhere, execution_options={"schema_translate_map": {"sa_jobqueue": ELSEWHERE}})
    async with AsyncSession(engine) as session:
        await live_async(session)
    await engine.dispose()


def test_the_operations_elsewhere(elsewhere_engine: Engine) -> None:
    """What is cached per mapped class is right for every schema."""
    with elsewhere_engine.begin() as connection:
        connection.execute(insert_jobs([CALL, CALL]))
        first, second = default_store.claim(connection, ClaimRequest(worker="me", queues={"default": 5}, lease=60))
        texts = default_store.fetch_args(connection, first.id)
        assert texts is not None
        assert texts.args == CALL.args
        assert default_store.renew(connection, {first.id: 1}, lease=0).lost == frozenset()
        assert default_store.cancelled_among(connection, {first.id: 1}) == frozenset()
        assert [found.claim.id for found in default_store.expired(connection)] == [first.id]
        assert default_store.apply(connection, [completed(first.id)]) == {first.id: Answer.APPLIED}
        assert default_store.release_unknown(connection, worker="me", known=[]) == [second.id]
        connection.execute(text(f'UPDATE "{ELSEWHERE.replace(chr(34), chr(34) * 2)}".job SET purge_at = now()'))
        assert default_store.prune(connection).jobs == 1
        default_store.listen_for(connection, ["default"], seconds=5)
        assert default_store.survey(connection, ["default"], seconds=5).due_in["default"] <= 0
        assert default_store.channel(connection).startswith("sa_jobqueue_")


def test_the_same_statement_runs_in_two_schemas(engine: Engine, elsewhere_engine: Engine) -> None:
    """In turn, from one cache."""
    statement = insert_jobs([CALL])
    for _ in range(3):
        for one in (engine, elsewhere_engine):
            with one.begin() as connection:
                connection.execute(statement)

    for one in (engine, elsewhere_engine):
        with one.begin() as connection:
            assert connection.scalar(text("SELECT 1")) == 1
            assert len(connection.execute(select(Job.id)).all()) == 3


# ---- in a session with objects in it


def test_a_statement_sees_what_the_session_has_not_flushed(session: Session) -> None:
    """It joins the caller's transaction, with everything the caller has done."""
    session.add(Job(task="greet", queue="mail"))

    assert len(session.scalars(cancel_jobs(Job.queue == "mail")).all()) == 1


def test_loaded_objects_show_the_change_after_a_refresh(session: Session) -> None:
    """Nothing is expired behind the caller's back: under AsyncSession that would fail on the next access."""
    job = Job(task="greet")
    session.add(job)
    session.flush()
    session.refresh(job)

    session.execute(cancel_jobs(Job.id == job.id))
    before = job.status
    session.refresh(job)

    assert (before, job.status) == ("queued", "cancelled")


async def test_loaded_objects_stay_usable_in_an_async_session(async_session: AsyncSession) -> None:
    """No lazy load, no fetch of ids."""
    job = Job(task="greet")
    async_session.add(job)
    await async_session.flush()
    await async_session.refresh(job)

    for statement in (cancel_jobs(true()), retry_jobs(true()), discard_jobs(true()), prune_jobs(true())):
        assert isinstance(statement, Executable)
        assert list(await async_session.scalars(statement)) == [job.id]
        assert job.status == "queued"


def test_a_statement_rolls_back_with_the_transaction(session: Session, engine: Engine) -> None:
    """Both or neither."""
    with engine.begin() as connection:
        one = make_job(connection)
    session.execute(cancel_jobs(Job.id == one))
    session.rollback()

    assert session.scalars(select(Job.status)).one() == "queued"


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE", "AUTOCOMMIT"])
def test_operators_statements_work_at_every_isolation_level(engine: Engine, level: Any) -> None:
    """They are part of the application's transactions, whatever those are."""
    with engine.connect().execution_options(isolation_level=level) as connection:
        live(connection)
        connection.commit()


def test_the_docs_name_the_selects_that_write() -> None:
    """A session that sends reads to a replica must send these to the primary."""
    given: dict[str, tuple[Any, ...]] = {
        **dict.fromkeys(("cancel_jobs", "copy_jobs", "discard_jobs", "prune_jobs", "release_jobs", "retry_jobs"), (Job.id == 1,)),
        **dict.fromkeys(("pause_schedules", "remove_schedules", "resume_schedules", "run_schedules"), (Schedule.id == 1,)),
        **dict.fromkeys(("cancel_workflows", "pause_workflows", "resume_workflows", "retry_workflow"), (1,)),
        **dict.fromkeys(("pause", "remove_limit", "resume"), ("sync",)),
        "drain_workers": (true(),),
    }  # fmt: skip
    made = {name: getattr(statements, name)(*arguments) for name, arguments in given.items()}
    made["fork_job"] = statements.fork_job(1, from_step="book")
    selects = sorted(name for name, one in made.items() if not isinstance(one, Insert | Update | Delete))
    page = (Path(__file__).parents[2] / "docs/reference/statements.md").read_text()
    assert (
        re.findall(r"`(\w+)`", page.split("These statements are SELECTs, although they write:")[1].split(". A")[0])
        == selects
    )

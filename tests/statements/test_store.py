"""A store is bound to its tables: two of them in one process do not meet."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from typing import Any, cast

import pytest
from sqlalchemy import Connection, Engine, MetaData, func, insert, select
from sqlalchemy.orm import DeclarativeBase

from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.migrations import upgrade_database
from sa_jobqueue.models import Companions, Job
from sa_jobqueue.rules.lifecycle import Change, Rules, decide
from sa_jobqueue.rules.limits import Limits
from sa_jobqueue.rules.outcomes import Completed
from sa_jobqueue.rules.tally import TaskTally
from sa_jobqueue.sql.apply import Answer
from sa_jobqueue.sql.claims import ClaimRequest
from sa_jobqueue.sql.limits.declared import limits_definition
from sa_jobqueue.sql.notes import LogLines, Report
from sa_jobqueue.sql.parts import FIRST_ID
from sa_jobqueue.sql.store import Store, default_store, store_of
from sa_jobqueue.statements import insert_jobs
from sa_jobqueue.worker.connections.pool import psycopg_of
from sa_jobqueue.worker.running import transaction as libpq
from tests.statements.test_everywhere import CALL

SCHEMA = "other_jobs"


class OtherBase(DeclarativeBase):
    metadata = MetaData(schema=SCHEMA)


class OtherJob(OtherBase):
    __table__ = Job.__table__.to_metadata(OtherBase.metadata, schema=SCHEMA)  # type: ignore[attr-defined]
    __tablename__ = "job"


JOB = cast("type[Job]", OtherJob)
OTHER = Store(JOB)
BOTH = [default_store, OTHER]
ME = {"worker": "me", "queues": {"default": 5}}


@pytest.fixture
def both(engine: Engine) -> Iterator[Connection]:
    """A database with two stores, each with three jobs; the ids are the same in both."""
    with engine.begin() as connection:
        upgrade_database(connection, schema=SCHEMA)
    try:
        with engine.connect() as connection:
            for store in BOTH:
                assert connection.scalars(insert_jobs([CALL] * 3, job=store.job)).all() == [1, 2, 3]
            connection.commit()
            yield connection
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")


def all_rows(connection: Connection, store: Store) -> list[Any]:
    """All that is in the tables of a store."""
    job, tables = store.job, store.tables
    return [
        list(connection.execute(select(one.__table__).order_by(*one.__table__.primary_key)))
        for one in (
            job,
            tables.worker,
            tables.uptime,
            tables.progress,
            tables.log,
            tables.stat,
            tables.backlog,
            tables.limit,
            tables.archived_job,
            tables.archived_task,
        )
    ]


def live(connection: Connection, store: Store) -> None:
    """Everything that a worker does to the tables of a store."""
    table = store.job.__table__
    claimed = store.claim(connection, ClaimRequest(**ME, lease=60))
    assert [job.id for job in claimed] == [1, 2, 3]
    held = {job.id: cast(int, job.claim_token) for job in claimed}
    assert store.fetch_args(connection, 1) is not None
    assert store.renew(connection, held, lease=0).lost == frozenset()
    assert store.cancelled_among(connection, held) == frozenset()
    worker = uuid.uuid4()
    store.enrol(connection, worker, host="web-1", pid=47, queues=["default"], concurrency=5, version="1")
    limits = {("queue", "default"): limits_definition(Limits(running=3))}
    assert store.declare_limits(connection, limits, gone=timedelta(minutes=5)).made == ["queue 'default'"]
    assert store.drop_undeclared_limits(connection, after=timedelta(minutes=-1)) == ["queue 'default'"]
    assert store.add_stats(connection, [TaskTally("default", "send", completed=1)], worker=worker, number=1)
    assert store.roll_up_stats(connection, keep=timedelta(days=-1), limit=10) == 1
    assert store.drop_old_stats(connection, keep=timedelta(days=7), limit=10) == 0
    assert store.count_backlog(connection)
    assert store.drop_old_backlog(connection, keep=timedelta(days=7)) == 0
    connection.execute(table.update().values(worker=str(worker)))
    assert {one.place for one in store.expired(connection)} == {"web-1:47"}
    store.attest(connection, lease=60, outage=30)
    assert store.write_progress(connection, [Report(1, held[1], 0.5, "half", False)]) == {(1, held[1])}
    assert store.write_logs(connection, [LogLines(2, held[2], 0, 0, 1, "[]", False)]) == {(2, held[2])}
    assert store.drop_stray_notes(connection) == ((FIRST_ID,) * 4, 0)
    done, again, last = (completion(job) for job in claimed)
    assert store.apply(connection, [done]) == {1: Answer.APPLIED}
    assert store.apply_one(connection, again) is Answer.APPLIED
    answers, _ = store.exchange(connection, [last], ClaimRequest(**ME, lease=60))
    assert answers == {3: Answer.APPLIED}
    connection.execute(table.update().values(purge_at=func.now()))
    assert store.prune(connection, limit=2).jobs == 2
    assert store.prune_first(connection) is True
    assert store.prune_first(connection) is None
    store.declare_archived(connection, ["t", "other"], [])
    store.declare_archived(connection, [], ["other"])
    connection.execute(insert(table).values(id=6, task="t", status="completed", purge_at=func.now(), errors=[]))
    assert store.prune(connection).jobs == 0
    assert store.make_months_ahead(connection) in {0, 2}
    assert store.make_months_of_page(connection, limit=1) == 0
    assert store.prune(connection, archive=True).jobs == 1
    assert store.drop_archive_month(connection, 12) is None
    connection.execute(insert(table).values(id=4, task="t", status="running", worker="me", errors=[]))
    connection.execute(insert(table).values(id=5, task="t", status="queued", errors=[]))
    assert store.release_unknown(connection, worker="me", known=[]) == [4]
    assert set(store.lock_due(connection, {"default": 5})) == {4, 5}
    assert store.lock_these(connection, [4, 5]) == [4, 5]
    assert [job.id for job in store.claim_these(connection, [5], worker="me", lease=60)] == [5]
    assert store.forget_workers(connection, unseen_for=timedelta(0)) == 0
    store.leave(connection, worker)
    store.listen_for(connection, ["default"], seconds=60)


def completion(job: ClaimedJob) -> Change:
    """The completion of a job that was claimed."""
    return decide(job, Completed(), Rules(), random=0.5)


@pytest.mark.parametrize("store", BOTH, ids=["default", "other"])
def test_what_one_store_does_leaves_the_other_as_it_is(both: Connection, store: Store) -> None:
    """Each has a whole life on tables where the ids are those of the other's; the other's rows stay the same."""
    (other,) = (one for one in BOTH if one is not store)
    before, own = all_rows(both, other), all_rows(both, store)
    live(both, store)
    assert all_rows(both, other) == before
    assert all_rows(both, store) != own


def test_a_claim_of_one_store_is_none_of_the_other(both: Connection) -> None:
    """The tokens of one fit no job of the other, though the ids do."""
    ours, theirs = (store.claim(both, ClaimRequest(**ME, lease=60)) for store in BOTH)
    assert [job.id for job in ours] == [job.id for job in theirs]
    completions = [completion(job) for job in ours]
    assert set(OTHER.apply(both, completions).values()) == {Answer.LOST}
    assert set(default_store.apply(both, completions).values()) == {Answer.APPLIED}


@pytest.mark.parametrize("store", BOTH, ids=["default", "other"])
def test_a_handlers_transaction_completes_a_job_of_its_own_store(both: Connection, store: Store) -> None:
    """By one message with its COMMIT, which names the function of the store's own job table."""
    (other,) = (one for one in BOTH if one is not store)
    change, late, _ = (completion(job) for job in store.claim(both, ClaimRequest(**ME, lease=60)))
    assert store.apply_one(both, late) is Answer.APPLIED
    both.commit()
    before, table = all_rows(both, other), store.job.__table__
    raw = psycopg_of(both)
    command = libpq.command(both, raw, change, store=store)
    assert command is not None
    assert command.startswith(f'SELECT "{table.schema}".complete_job({change.id}, ')
    assert libpq.commit(both, raw, command)
    status = select(table.c.status).where(table.c.id == change.id)
    assert both.scalar(status) == "completed"
    again = libpq.command(both, raw, late, store=store)
    assert again is not None
    assert not libpq.commit(both, raw, again), "its claim was over"
    both.rollback()
    assert all_rows(both, other) == before


def test_each_store_has_a_channel_and_gates_of_its_own(both: Connection) -> None:
    """A worker of one is not woken for the jobs of the other."""
    assert default_store.channel(both) != OTHER.channel(both)
    OTHER.listen_for(both, ["default"], seconds=60)
    gates = [
        both.exec_driver_sql(f"SELECT pg_sequence_last_value('{schema}.gate_any')").scalar()
        for schema in ("sa_jobqueue", SCHEMA)
    ]
    assert gates[0] is None
    assert gates[1] > 0


def test_the_tables_of_a_store_are_of_one_schema() -> None:
    """Else its jobs would wake, or count, the workers of another's."""
    tables = [getattr(OTHER.tables, field.name).__table__ for field in fields(Companions)]
    assert {table.schema for table in tables} == {SCHEMA}


def test_the_packages_own_jobs_have_one_store() -> None:
    """Its statements are built once for all workers of a process."""
    assert store_of(Job) is default_store

"""What enqueueing promises, over every driver, in both Sessions and on plain connections."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, Insert, Text, cast, event, func, insert, select, text
from sqlalchemy.orm import Session

from sa_jobqueue.enqueueing.jobs import enqueue, enqueue_many
from sa_jobqueue.errors import OptionError, PayloadError
from sa_jobqueue.migrations import upgrade_database
from sa_jobqueue.models import Base, Job
from sa_jobqueue.rules.lifecycle import JobStatus
from sa_jobqueue.tasks.decorator import task
from sa_jobqueue.tasks.registry import Registry
from tests.conformance.conftest import ISOLATION, SESSIONS, Client, Order, settle

registry = Registry()
HOUR = timedelta(hours=1)
sessions = pytest.mark.parametrize("client", SESSIONS, ids="-".join, indirect=True)


@task(registry=registry)
def send(order_id: int, note: str = "") -> None: ...


@task(registry=registry)
def take(value: Any) -> None: ...


@task(registry=registry)
def measure(number: float, key: uuid.UUID, when: datetime, data: bytes) -> None: ...


def cast_any(value: object) -> Any:
    """For what the type checker would refuse already."""
    return value


def count(engine: Engine) -> tuple[int, int]:
    """How many orders and jobs are committed."""
    with engine.connect() as connection:
        orders, jobs = (connection.scalar(select(func.count()).select_from(table)) for table in (Order, Job))
    return orders or 0, jobs or 0


def jobs_in(engine: Engine) -> list[Job]:
    with Session(engine, expire_on_commit=False) as session:
        return list(session.scalars(select(Job).order_by(Job.id)))


@pytest.mark.parametrize("level", ISOLATION)
async def test_a_job_commits_with_the_business_row(client: Client, application: Engine, level: str) -> None:
    """Neither is seen before the commit, both after it, at every isolation level."""
    async with client.open(isolation_level=level) as unit:
        await settle(unit.execute(insert(Order).values(id=1)))
        await client.put(unit, (send, 1))
        before = count(application)
        await settle(unit.commit())

    assert before == (0, 0)
    assert count(application) == (1, 1)


@pytest.mark.parametrize("level", ISOLATION)
async def test_a_job_rolls_back_with_the_business_row(client: Client, application: Engine, level: str) -> None:
    """At every isolation level, a rollback leaves neither."""
    async with client.open(isolation_level=level) as unit:
        await settle(unit.execute(insert(Order).values(id=1)))
        await client.put(unit, (send, 1))
        await settle(unit.rollback())

    assert count(application) == (0, 0)


async def test_in_autocommit_the_job_is_there_at_once(client: Client, application: Engine) -> None:
    """Without a transaction of the caller's there is nothing to wait for."""
    async with client.open(isolation_level="AUTOCOMMIT") as unit:
        await client.put(unit, (send, 1))

        assert count(application) == (0, 1)


async def test_a_savepoint_takes_back_its_own_jobs_only(client: Client, application: Engine) -> None:
    """Jobs from before and after the savepoint are committed."""
    async with client.open() as unit:
        await client.put(unit, (send, 1))
        savepoint = await settle(unit.begin_nested())
        await client.put(unit, (send, 2))
        await settle(savepoint.rollback())
        await client.put(unit, (send, 3))
        await settle(unit.commit())

    assert [job.args["order_id"] for job in jobs_in(application)] == [1, 3]


async def test_a_refusal_leaves_the_transaction_usable(client: Client, application: Engine) -> None:
    """What was refused was refused in Python; what was there before and comes after commits."""
    refused: list[tuple[type[Exception], Any]] = [
        (PayloadError, lambda: enqueue(send, cast_any("1"))),
        (PayloadError, lambda: enqueue(send, 1, "\x00")),
        (PayloadError, lambda: enqueue(send, 1, "\ud800")),
        (PayloadError, lambda: enqueue(take, float("nan"))),
        (PayloadError, lambda: enqueue("by.name", value=float("inf"))),
        (PayloadError, lambda: enqueue(send, 1, "x" * 1_100_000)),
        (OptionError, lambda: send.options(run_at=datetime(2030, 1, 1))),  # noqa: DTZ001
        (OptionError, lambda: send.options(priority=10)),
        (OptionError, lambda: send.options(max_attempts=0)),
        (OptionError, lambda: enqueue("x" * 201)),
    ]
    async with client.open() as unit:
        await settle(unit.execute(insert(Order).values(id=1)))
        for error, attempt in refused:
            with pytest.raises(error):
                attempt()
        await client.put(unit, (send, 1))
        await settle(unit.commit())

    assert count(application) == (1, 1)


@sessions
async def test_a_thousand_jobs_take_a_handful_of_inserts(client: Client, application: Engine) -> None:
    """Delayed, undelayed and fixed times mixed; each is due when it should, by the database's clock."""
    moment = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    kinds = [send, send.options(delay=HOUR), send.options(run_at=moment), send.options(delay=0.5, priority=9)]
    jobs = [enqueue(kinds[number % 4], number) for number in range(1_000)]
    with client.watched() as sent:
        async with client.open() as unit:
            unit.add_all(jobs)
            await settle(unit.commit())

    inserts = [one for one in sent if one.startswith("INSERT")]
    assert len(inserts) <= 5
    # Only what was said is sent: each further column takes the client 5 µs per row.
    assert not any(name in one for one in inserts for name in ("claimed_at", "finished_at", "worker"))
    found = jobs_in(application)
    assert [job.args["order_id"] for job in found] == list(range(1_000))
    for number, job in enumerate(found):
        expected = [job.created_at, job.created_at + HOUR, moment, job.created_at + timedelta(seconds=0.5)]
        assert job.run_at == expected[number % 4]


@sessions
async def test_a_flushed_job_is_readable_without_a_query(client: Client, application: Engine) -> None:
    """Under AsyncSession a lazy load would fail."""
    moment = datetime(2030, 1, 2, tzinfo=UTC)
    async with client.open() as unit:
        now, later, fixed = [
            enqueue(kind, 1) for kind in (send, send.options(delay=HOUR), send.options(run_at=moment))
        ]  # fmt: skip
        unit.add_all([now, later, fixed])
        await settle(unit.flush())
        with client.watched() as sent:
            assert now.id < later.id < fixed.id
            assert now.run_at == now.created_at
            assert later.run_at == now.created_at + HOUR
            assert fixed.run_at == moment
            assert (now.status, now.attempt, now.queue) == (JobStatus.QUEUED, 0, "default")
            assert later.is_scheduled
            unsaid = (now.claimed_at, now.lease_expires_at, now.finished_at, now.purge_at, now.cancel_requested_at)
            assert (*unsaid, now.worker, now.result, now.errors) == (None,) * 7 + ([],)
        assert sent == []


async def test_many_are_one_statement(client: Client, application: Engine) -> None:
    """100,000 calls: one statement, no ORM objects, the ids in the order of the calls.

    Two clients show that as many as that work. The others take 10,000 of them, more than fit if each had its parameters.
    """
    made = 0

    def note(*_: Any) -> None:
        nonlocal made
        made += 1

    full = {("psycopg", "Session"), ("asyncpg", "AsyncSession")}
    size = 100_000 if (client.engine.driver, client.kind) in full else 10_000
    delayed = send.options(delay=HOUR, queue="later", priority=7)
    calls = ((delayed if number % 2 else send).call(number) for number in range(size))
    event.listen(Job, "init", note)
    try:
        with client.watched() as sent:
            async with client.open() as unit:
                found = await settle(unit.execute(enqueue_many(calls)))
                ids = list(found.scalars())
                await settle(unit.commit())
    finally:
        event.remove(Job, "init", note)

    assert len([one for one in sent if "INSERT" in one]) == 1
    assert made == 0
    assert len(ids) == size
    assert ids == sorted(ids)
    with application.connect() as connection:
        due = Job.run_at - Job.created_at
        kinds = select(Job.queue, Job.priority, due, func.count()).group_by(Job.queue, Job.priority, due)
        rows = connection.execute(kinds.order_by(Job.queue))
        assert [tuple[Any, ...](row) for row in rows] == [
            ("default", 4, timedelta(0), size // 2),
            ("later", 7, HOUR, size // 2),
        ]
        places = select(Job.args["order_id"].as_integer()).order_by(Job.id)
        assert list(connection.scalars(places)) == list(range(size))


async def test_enqueue_many_takes_an_empty_list(client: Client, application: Engine) -> None:
    """An empty list is a statement that inserts nothing."""
    async with client.open() as unit:
        found = await settle(unit.execute(enqueue_many([])))
        assert list(found.scalars()) == []


async def test_many_are_built_once(client: Client, application: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later call brings its values only; to build the statement takes longer than the INSERT."""
    async with client.open() as unit:
        await settle(unit.execute(enqueue_many([send.call(1)])))
        monkeypatch.delattr("sa_jobqueue.sql.insert._source")
        found = await settle(unit.execute(enqueue_many([send.call(2), send.call(3)])))
        ids = list(found.scalars())
        await settle(unit.commit())

    assert [(job.id, job.args["order_id"]) for job in jobs_in(application)][1:] == [(ids[0], 2), (ids[1], 3)]


async def test_many_may_be_a_changed_statement(client: Client, application: Engine) -> None:
    """More columns returned, options, parameters of the caller's: the calls are in it as in any INSERT."""
    whole: Any = enqueue_many([send.call(1), send.call(2)])
    async with client.open() as unit:
        found = await settle(unit.execute(whole.returning(Job.task, Job.priority)))
        assert [tuple(row[1:]) for row in found] == [(send.name, 4)] * 2
        inserted = whole.cte("inserted")
        found = await settle(unit.execute(select(func.count()).select_from(inserted).add_cte(inserted)))
        assert found.scalar() == 2
        found = await settle(unit.execute(whole.execution_options(of_mine=1)))
        assert len(found.all()) == 2
        await settle(unit.commit())

    assert [job.args["order_id"] for job in jobs_in(application)] == [1, 2] * 3


async def test_enqueue_many_takes_every_option(client: Client, application: Engine) -> None:
    """Quotes, braces and NULL in names and arguments arrive as they were given."""
    moment = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    full = send.options(
        queue='qu"eue’s\\{}', priority=0, run_at=moment, max_attempts=32_767, tags=["a", "b"], meta={"trace": None}
    )
    async with client.open() as unit:
        await settle(unit.execute(enqueue_many([full.call(1, 'it\'s "{NULL,\\}"'), send.call(2, "NULL")])))
        await settle(unit.commit())

    job, plain = jobs_in(application)
    assert (job.queue, job.priority, job.run_at, job.max_attempts) == ('qu"eue’s\\{}', 0, moment, 32_767)
    assert job.meta == {"trace": None, "tags": ["a", "b"]}
    assert job.args == {"order_id": 1, "note": 'it\'s "{NULL,\\}"'}
    assert plain.args == {"order_id": 2, "note": "NULL"}
    assert plain.meta == {}


VALUES: list[Any] = [
    None, True, 0, -1, 2**63, -(10**300), 10**4200, 0.1, -0.0, 5e-324, 1e15, -2.5e-10, "", "NULL", "{}", '"\\', "a\nb\t",
    "\u2028😀\x7f\x01\ufffe", [], {}, {"": {"a b": [1, [2.0, {"c": None}]]}}, ["x", 1, None, False],
]  # fmt: skip


async def test_what_was_enqueued_comes_back_equal(client: Client, application: Engine) -> None:
    """Through jsonb and back, whichever driver wrote it."""
    when = datetime(2026, 11, 21, 1, 2, 3, 4, tzinfo=UTC)
    key = uuid.uuid4()
    numbers = [1e300, 1e23, -1.7976931348623157e308, 123456789.125]
    async with client.open() as unit:
        await client.put(unit, *((take, value) for value in VALUES))
        await client.put(unit, *((measure, number, key, when, b"\x00\xff") for number in numbers))
        await settle(unit.commit())

    with application.connect() as connection:
        texts = list(connection.scalars(select(cast(Job.args, Text)).order_by(Job.id)))
    split = len(VALUES)
    assert [take.decode(one)[1]["value"] for one in texts[:split]] == VALUES
    assert [measure.decode(one)[1] for one in texts[split:]] == [
        {"number": number, "key": key, "when": when, "data": b"\x00\xff"} for number in numbers
    ]


NAMES = ["x" * 200, "ö" * 200, "😀" * 200, "it's", 'a"b', "%s %(x)s :x {} \\", "\n", " ", "--", "\u202e"]


async def test_any_name_of_up_to_200_characters_works(client: Client, application: Engine) -> None:
    """For tasks and for queues."""
    tasks = [task(name=name, queue=name, registry=registry)(_nothing) for name in NAMES]
    async with client.open() as unit:
        await client.put(unit, *((one,) for one in tasks))
        await settle(unit.commit())

    assert [(job.task, job.queue) for job in jobs_in(application)] == [(name, name) for name in NAMES]


def _nothing() -> None: ...


async def test_jobs_go_into_the_schema_of_the_translate_map(client: Client, application: Engine) -> None:
    """Ours move, the application's table stays."""
    with application.begin() as connection:
        upgrade_database(connection, schema="other")
    async with client.open(schema_translate_map={"sa_jobqueue": "other"}) as unit:
        await settle(unit.execute(insert(Order).values(id=1)))
        await client.put(unit, (send, 1), (send.options(delay=HOUR), 2))
        await settle(unit.execute(enqueue_many([send.options(delay=HOUR).call(3)])))
        await settle(unit.commit())

    assert count(application) == (1, 0)
    with application.connect() as connection:
        found = connection.execute(text("SELECT run_at - created_at FROM other.job ORDER BY id"))
        assert list(found.scalars()) == [timedelta(0), HOUR, HOUR]


def test_many_are_sent_where_a_session_sends_the_class(application: Engine) -> None:
    """A session that chooses by the mapped class, or by the kind of statement, is asked as for any ORM INSERT."""
    asked: list[Any] = []

    class Routing(Session):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, **_: Any) -> Any:
            asked.append((mapper.class_, isinstance(clause, Insert), clause.table.name))
            return application

    with Routing() as session:
        session.execute(enqueue_many([send.call(1)]))

    assert asked == [(Job, True, "job")]


def test_many_go_where_a_session_that_is_bound_by_class_sends_them(application: Engine) -> None:
    """As other jobs do: the base class of the models is enough."""
    with Session(binds={Base: application}) as session:
        session.add(enqueue(send, 1))
        session.execute(enqueue_many([send.call(2)]))
        session.commit()

    assert [job.args["order_id"] for job in jobs_in(application)] == [1, 2]

"""What `enqueue_select` promises, over every driver, in both Sessions and on plain connections."""

from __future__ import annotations

import enum
import re
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    ARRAY,
    BigInteger,
    DateTime,
    Engine,
    Enum,
    Float,
    Integer,
    Interval,
    LargeBinary,
    Numeric,
    Text,
    Uuid,
    cast,
    func,
    insert,
    literal,
    null,
    select,
    text,
    union_all,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import Unique, enqueue, enqueue_select
from sa_jobqueue.migrations import upgrade_database
from sa_jobqueue.models import Job
from sa_jobqueue.tasks.decorator import task
from sa_jobqueue.tasks.registry import Registry, TaskName
from tests.conformance.conftest import SESSIONS, Client, settle

registry = Registry()
sessions = pytest.mark.parametrize("client", SESSIONS, ids="-".join, indirect=True)


class Base(DeclarativeBase):
    pass


class Order(Base):
    """The application's own table."""

    __tablename__ = "placed_orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    due: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    note: Mapped[str | None]
    priority: Mapped[int | None]
    tenant: Mapped[str] = mapped_column(default="acme")


@task(queue="mail", registry=registry)
def remind(order_id: int, note: str | None = None) -> None: ...


@task(registry=registry)
def ship(order: Order, note: str) -> None: ...


@task(registry=registry)
def maybe(order: Order | None) -> None: ...


@task(registry=registry)
def measure(ratio: float | None = None, at: datetime | None = None) -> None: ...


@pytest.fixture
def application(engine: Engine) -> Engine:
    """The engine that looks at the results, on a database with three orders."""
    Base.metadata.create_all(engine)
    due = datetime(2026, 1, 2, tzinfo=UTC)
    with Session(engine) as session:
        session.execute(text("TRUNCATE placed_orders"))
        session.add_all(
            [
                Order(id=1, due=due, note="a", priority=9, tenant="acme"),
                Order(id=2, due=due + timedelta(days=1), note=None, priority=None, tenant="acme"),
                Order(id=3, due=due + timedelta(days=2), note='it\'s "x"\\', priority=1, tenant="other"),
            ]
        )
        session.commit()
    return engine


def jobs_in(engine: Engine) -> list[Job]:
    with Session(engine, expire_on_commit=False) as session:
        return list(session.scalars(select(Job).order_by(Job.id)))


async def test_a_job_is_enqueued_for_each_row(client: Client, application: Engine) -> None:
    """By one statement, in the caller's transaction, with the options of the task."""
    late = select(Order.id).where(Order.id > 1).order_by(Order.id)
    with client.watched() as sent:
        async with client.open() as unit:
            found = await settle(unit.execute(enqueue_select(remind.options(priority=7, tags=["x"]), late)))
            assert found.rowcount == 2
            assert jobs_in(application) == []
            await settle(unit.commit())

    assert len([one for one in sent if "INSERT" in one]) == 1
    jobs = jobs_in(application)
    assert [job.args for job in jobs] == [{"order_id": 2}, {"order_id": 3}]
    job, plain = jobs[0], enqueue(remind, 2)
    assert (job.task, job.queue, job.priority, job.max_attempts) == (remind.name, "mail", 7, plain.max_attempts)
    assert (job.meta, job.run_at - job.created_at, job.is_duplicate) == ({"tags": ["x"]}, timedelta(0), False)


async def test_ids_come_back_where_they_are_asked_for(client: Client, application: Engine) -> None:
    """By RETURNING, as of any INSERT."""
    async with client.open() as unit:
        statement = enqueue_select(remind, select(Order.id).order_by(Order.id)).returning(Job.id)
        ids = list((await settle(unit.execute(statement))).scalars())
        await settle(unit.commit())

    assert sorted(ids) == [job.id for job in jobs_in(application)]


async def test_columns_are_arguments_by_position_and_by_label(client: Client, application: Engine) -> None:
    """As in a call; NULL is None where the parameter takes it."""
    rows = select(Order.note.label("note"), Order.id).order_by(Order.id)
    async with client.open() as unit:
        await settle(unit.execute(enqueue_select(remind, rows)))
        await settle(unit.execute(enqueue_select(remind, select(literal(7), literal("x").label("note")))))
        await settle(unit.commit())

    assert [job.args for job in jobs_in(application)] == [
        {"order_id": 1, "note": "a"},
        {"order_id": 2, "note": None},
        {"order_id": 3, "note": 'it\'s "x"\\'},
        {"order_id": 7, "note": "x"},
    ]


async def test_options_may_differ_from_row_to_row(client: Client, application: Engine) -> None:
    """They are expressions over the query's tables; where one is NULL, the task's own option holds."""
    statement = enqueue_select(
        remind.options(key="none", units=2),
        select(Order.id).order_by(Order.id),
        queue=Order.tenant,
        priority=Order.priority,
        run_at=Order.due,
        max_attempts=Order.id + 1,
        deadline=literal(90),
        expires_at=Order.due + timedelta(days=1),
        key=func.nullif(Order.tenant, "other", type_=Text()),
        units=Order.priority,
    )
    async with client.open() as unit:
        await settle(unit.execute(statement))
        await settle(unit.commit())

    due = datetime(2026, 1, 2, tzinfo=UTC)
    jobs = jobs_in(application)
    assert [(job.queue, job.priority, job.run_at - due, job.max_attempts) for job in jobs] == [
        ("acme", 9, timedelta(0), 2),
        ("acme", 4, timedelta(days=1), 3),
        ("other", 1, timedelta(days=2), 4),
    ]
    assert [(job.key, job.units) for job in jobs] == [("acme", 9), ("acme", 2), ("none", 1)]
    assert {job.deadline_at - job.created_at for job in jobs if job.deadline_at} == {timedelta(seconds=90)}
    assert [job.expires_at - job.run_at for job in jobs if job.expires_at] == [timedelta(days=1)] * 3


async def test_a_key_is_an_object(client: Client, application: Engine) -> None:
    """Of a handler that takes the mapped class; what it is about is the row, as with `enqueue`."""
    with Session(application) as session:
        orders = session.scalars(select(Order).order_by(Order.id)).all()
        wanted = [(job.args, job.subject) for job in (enqueue(ship, order, "now") for order in orders)]
    rows = select(Order.id, literal("now")).order_by(Order.id)
    async with client.open() as unit:
        for named in (ship, ship.options(subject=False), ship.options(unique=Unique(by=("order",)))):
            await settle(unit.execute(enqueue_select(named, rows)))
        nothing = select(cast(null(), Integer).label("order"))
        await settle(unit.execute(enqueue_select(maybe, nothing)))
        await settle(unit.commit())

    jobs = jobs_in(application)
    assert [(job.args, job.subject) for job in jobs[:3]] == wanted
    assert [(job.args, job.subject) for job in jobs[3:6]] == [(args, None) for args, _ in wanted]
    unique = sorted(jobs[6:9], key=lambda job: job.args["order"])  # they are inserted in the order of their keys
    assert [(job.args, job.subject) for job in unique] == wanted
    by_order = ship.options(unique=Unique(by=("order",)))
    assert [job.unique_key for job in unique] == [enqueue(by_order, order, "x").unique_key for order in orders]
    assert [(job.args, job.subject) for job in jobs[9:]] == [({"order": None}, None)]


async def test_a_delay_counts_from_now(client: Client, application: Engine) -> None:
    """An interval, or seconds."""
    async with client.open() as unit:
        for delay in (cast(literal("1 hour"), Interval), literal(3600), literal(3600.0)):
            await settle(unit.execute(enqueue_select(remind, select(Order.id), delay=delay)))
        await settle(unit.execute(enqueue_select(remind.options(delay=3600), select(Order.id))))
        await settle(unit.commit())

    assert [job.run_at - job.created_at for job in jobs_in(application)] == [timedelta(hours=1)] * 12


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


@task(registry=registry)
def take(
    *,
    number: int = 0, big: int = 0, text: str = "", yes: bool = False, ratio: float = 0.0, price: Decimal = Decimal(0),
    day: date = date(1, 1, 1), at: datetime | None = None, local: datetime | None = None, clock: time | None = None,
    wait: timedelta | None = None, key: uuid.UUID | None = None, data: bytes = b"", colour: Colour | None = None,
    document: dict[str, Any] | None = None, numbers: list[int] | None = None, either: int | str = 0,
) -> None: ...  # fmt: skip


MOMENT = datetime(2026, 3, 4, 5, 6, 7, 80, tzinfo=UTC)
VALUES: list[tuple[str, Any, Any]] = [
    ("number", -7, Integer()),
    ("big", 2**62, BigInteger()),
    ("text", 'ö😀"\\\n\x01 \u2028', Text()),
    ("yes", True, None),
    ("ratio", 0.1, Float(53)),
    ("ratio", 1e300, Float(53)),
    ("price", Decimal("12.50"), Numeric(10, 2)),
    ("day", date(2026, 2, 28), None),
    ("at", MOMENT, DateTime(timezone=True)),
    ("at", MOMENT.replace(microsecond=0), DateTime(timezone=True)),
    ("local", MOMENT.replace(tzinfo=None), DateTime()),
    ("clock", time(1, 2, 3, 4), None),
    ("wait", timedelta(days=3, seconds=4.5), Interval()),
    ("key", uuid.UUID(int=2**100), Uuid()),
    ("data", bytes(range(256)), LargeBinary()),
    ("colour", Colour.RED, Enum(Colour)),
    ("colour", Colour.BLUE, Enum(Colour, native_enum=False)),
    ("document", {"a": [1, {"b": None}]}, JSONB()),
    ("numbers", [3, 1, 2], ARRAY(Integer)),
    ("either", "x", Text()),
]


#: Those of which keys can be made.
KEYED = {"number", "big", "text", "yes", "day", "at", "local", "key", "either"}


async def test_a_handler_gets_what_enqueue_would_have_given(client: Client, application: Engine) -> None:
    """A value of each type, through the server's JSON and back."""
    given: list[tuple[str, Any, str | None]] = []  # of each job: an argument, its value, and the unique key
    async with client.open() as unit:
        await settle(unit.execute(text("SET TIME ZONE 'Asia/Kathmandu'")))
        for name, value, of in VALUES:
            if isinstance(of, Enum):
                of.create(application, checkfirst=True)
            expression = cast(literal(value, of), of) if of is not None else literal(value)
            row = select(expression.label(name))
            await settle(unit.execute(enqueue_select(take, row)))
            given.append((name, value, None))
            if name in KEYED:
                once = take.options(unique=Unique(by=(name,)))
                await settle(unit.execute(enqueue_select(once, row)))
                given.append((name, value, enqueue(once, **{name: value}).unique_key))
        await settle(unit.commit())

    with application.connect() as connection:
        rows = connection.execute(select(cast(Job.args, Text), Job.unique_key).order_by(Job.id)).all()
    found = [(take.decode(args)[1], key) for args, key in rows]
    wanted = [({name: value}, key) for name, value, key in given]
    assert len(found) == len(wanted)
    assert not [pair for pair in zip(found, wanted, strict=True) if pair[0] != pair[1]]


async def test_a_task_that_is_known_by_name_takes_columns_by_name(client: Client, application: Engine) -> None:
    """By the column's own, or by a label."""
    async with client.open() as unit:
        rows = select(Order.id, Order.note.label("text")).where(Order.id == 1)
        await settle(unit.execute(enqueue_select("elsewhere.remind", rows)))
        await settle(unit.execute(enqueue_select(TaskName("elsewhere.remind").options(queue="mail"), rows)))
        await settle(unit.commit())

    assert [(job.queue, job.args) for job in jobs_in(application)] == [
        ("default", {"id": 1, "text": "a"}),
        ("mail", {"id": 1, "text": "a"}),
    ]


async def test_unique_keys_are_those_of_enqueue(client: Client, application: Engine) -> None:
    """So that a job is a duplicate of one that was enqueued in another way, and of one in the same statement."""
    by_all, by_one = remind.options(unique=Unique()), remind.options(unique=Unique(by=("order_id",)))
    with Session(application) as session:
        known = [enqueue(by_all, 1), enqueue(by_one, 2)]
        session.add_all(known)
        session.commit()
        holders = [job.id for job in known]
    async with client.open() as unit:
        await settle(unit.execute(enqueue_select(by_all, select(Order.id).order_by(Order.id))))
        twice = union_all(select(Order.id), select(Order.id))
        await settle(unit.execute(enqueue_select(by_one, twice)))
        await settle(unit.commit())

    fresh = jobs_in(application)[2:]
    assert [job.args["order_id"] for job in fresh[:3] if not job.is_duplicate] == [2, 3] or {
        job.args["order_id"] for job in fresh[:3] if not job.is_duplicate
    } == {2, 3}
    assert next(job for job in fresh if job.args["order_id"] == 1).duplicate_of == holders[0]
    assert sorted(job.args["order_id"] for job in fresh[3:] if not job.is_duplicate) == [1, 3]
    assert {job.duplicate_of for job in fresh[3:] if job.args["order_id"] == 2} == {holders[1]}


async def test_a_debounce_holds_for_each_key(client: Client, application: Engine) -> None:
    """The key is that of the row."""
    waiting = remind.options(debounce=60)
    async with client.open() as unit:
        await settle(unit.execute(enqueue_select(waiting, select(Order.id), key=Order.tenant)))
        await settle(unit.commit())

    jobs = jobs_in(application)
    assert sorted(job.key or "" for job in jobs if not job.is_duplicate) == ["acme", "other"]
    assert {job.run_at - job.created_at for job in jobs if not job.is_duplicate} == {timedelta(minutes=1)}
    with Session(application) as session:
        session.add(again := enqueue(waiting.options(key="other"), 9))
        session.flush()
        assert again.is_duplicate


async def test_a_value_that_cannot_be_an_argument_fails_the_statement(client: Client, application: Engine) -> None:
    """NULL for an int: nothing is enqueued, and the message names the argument and the column."""
    said = "argument order_id: the column .* has a row with NULL, and the parameter takes no None"
    assert await is_refused(client, enqueue_select(remind, select(literal(None, Integer))), said)


def test_a_column_of_another_type_than_the_argument_is_refused() -> None:
    """Before a statement is made."""
    rows = select(cast(literal("x"), Text), cast(literal(1), Integer).label("note"))
    with pytest.raises(ValueError, match="is a str, and the parameter is annotated int"):
        enqueue_select(remind, rows)


async def is_refused(client: Client, statement: Any, reason: str) -> bool:
    """Whether the server refuses the statement for this reason."""
    async with client.open() as unit:
        try:
            await settle(unit.execute(statement))
        except DBAPIError as error:
            return re.search(reason, str(error)) is not None
    return False


async def test_no_number_that_json_lacks_is_enqueued(client: Client, application: Engine) -> None:
    """NaN and infinity."""
    values = ["NaN", "Infinity", "-Infinity"]
    columns = {value: cast(literal(value), Float(53)).label("ratio") for value in values}
    statements = {value: enqueue_select(measure, select(column)) for value, column in columns.items()}
    said = "argument ratio: the column ratio has a row with"
    assert [value for value in values if await is_refused(client, statements[value], said)] == values


async def test_no_time_that_python_lacks_is_enqueued(client: Client, application: Engine) -> None:
    """Infinity, and times outside of the calendar of Python."""
    values = ["infinity", "-infinity", "10000-01-01", "0044-03-15 BC"]
    columns = {value: cast(literal(value), DateTime(timezone=True)).label("at") for value in values}
    statements = {value: enqueue_select(measure, select(column)) for value, column in columns.items()}
    said = "argument at: the column at has a row with"
    assert [value for value in values if await is_refused(client, statements[value], said)] == values


async def test_a_key_of_a_row_is_checked(client: Client, application: Engine) -> None:
    """As the option is."""
    keys = ["", "x" * 201, "\x01mine"]
    statements = {key: enqueue_select(remind, select(Order.id), key=cast(literal(key), Text)) for key in keys}
    assert [key for key in keys if await is_refused(client, statements[key], "the key of a row is")] == keys


@sessions
async def test_what_the_session_holds_is_flushed_before(client: Client, application: Engine) -> None:
    """So that the query sees orders that were added just now."""
    async with client.open() as unit:
        unit.add(Order(id=4, due=datetime.now(UTC)))
        await settle(unit.execute(enqueue_select(remind, select(Order.id).where(Order.id > 3))))
        await settle(unit.commit())

    assert [job.args for job in jobs_in(application)] == [{"order_id": 4}]


async def test_nothing_stays_after_a_rollback(client: Client, application: Engine) -> None:
    """Neither the order nor its job."""
    async with client.open() as unit:
        await settle(unit.execute(insert(Order).values(id=5, due=datetime.now(UTC), tenant="x")))
        await settle(unit.execute(enqueue_select(remind, select(Order.id))))
        await settle(unit.rollback())

    assert jobs_in(application) == []


async def test_jobs_go_into_the_schema_of_the_translate_map(client: Client, application: Engine) -> None:
    """Ours move, the query's tables stay."""
    with application.begin() as connection:
        upgrade_database(connection, schema="other")
    keyed = remind.options(unique=Unique(), deadline=60)
    async with client.open(schema_translate_map={"sa_jobqueue": "other"}) as unit:
        await settle(unit.execute(enqueue_select(keyed, select(Order.id), key=Order.tenant)))
        await settle(unit.commit())

    assert jobs_in(application) == []
    with application.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM other.job")) == 3

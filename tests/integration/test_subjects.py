"""The jobs of a row: what sets the subject of a job, the relationship that leads to it, and the way back."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    CHAR,
    Column,
    Engine,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    event,
    func,
    select,
    text,
)
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    Session,
    WriteOnlyMapped,
    aliased,
    configure_mappers,
    declared_attr,
    mapped_column,
    registry,
    relationship,
    selectinload,
)

from sa_jobqueue import (
    Batch,
    Job,
    Registry,
    Schedule,
    Subject,
    TaskName,
    Unique,
    Workflow,
    enqueue,
    enqueue_many,
    enqueue_select,
    jobs_relationship,
    task,
)
from sa_jobqueue.errors import OptionError, PayloadError, SubjectError
from sa_jobqueue.models.relationship import subject_of_rows
from sa_jobqueue.statements import cancel_jobs, retry_jobs, run_schedules
from sa_jobqueue.testing import assert_enqueued, assert_not_enqueued
from tests.support.working import drain

tasks = Registry()


class Base(DeclarativeBase): ...


class HasJobs:
    @declared_attr
    def jobs(cls) -> Mapped[list[Job]]:
        return jobs_relationship()


class Order(HasJobs, Base):
    __tablename__ = "subject_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str] = mapped_column(default="")


class Customer(Base):
    __tablename__ = "subject_customer"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    jobs: WriteOnlyMapped[Job] = jobs_relationship()


class Stock(Base):
    __tablename__ = "subject_stock"
    place: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    day: Mapped[date] = mapped_column(primary_key=True)
    jobs: Mapped[list[Job]] = jobs_relationship(lazy="selectin")


class Word(Base):
    __tablename__ = "subject_word"
    word: Mapped[str] = mapped_column(String(collation="POSIX"), primary_key=True)
    __subject_type__ = "a.word"
    jobs: Mapped[list[Job]] = jobs_relationship()


class Day(Base):
    __tablename__ = "subject_day"
    day: Mapped[date] = mapped_column(primary_key=True)
    jobs: Mapped[list[Job]] = jobs_relationship()


class Document(Base):
    __tablename__ = "subject_document"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    jobs: Mapped[list[Job]] = jobs_relationship()
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "document"}  # noqa: RUF012


class Invoice(Document):
    __tablename__ = "subject_invoice"
    id: Mapped[int] = mapped_column(ForeignKey(Document.id), primary_key=True)
    __mapper_args__ = {"polymorphic_identity": "invoice"}  # noqa: RUF012


class Country(Base):
    __tablename__ = "subject_country"
    code: Mapped[str] = mapped_column(CHAR(3), primary_key=True)


class Price(Base):
    __tablename__ = "subject_price"
    price: Mapped[Decimal] = mapped_column(primary_key=True)


class Report(Base):
    __tablename__ = "subject_report"
    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int | None] = mapped_column(ForeignKey(Job.id))
    job: Mapped[Job | None] = relationship(Job)


@task(registry=tasks, name="ship")
def ship(order: Order, note: str = "") -> None: ...


@task(registry=tasks, name="pack")
def pack(orders: list[Order], other: Customer | None = None) -> None: ...


@task(registry=tasks, name="read")
def read(document: Document) -> None: ...


@task(registry=tasks, name="build")
def build(report: Report) -> None: ...


@task(registry=tasks, name="plain")
def plain(number: int = 0) -> None: ...


@task(registry=tasks, name="count", record=True)
def count(order: Order) -> int:
    return order.id


@task(registry=tasks, name="tell")
def tell(number: int, order: Order) -> None: ...


@pytest.fixture
def tables(engine: Engine) -> Engine:
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    return engine


@pytest.fixture
def session(tables: Engine) -> Iterator[Session]:
    with Session(tables) as found:
        yield found


def subjects(session: Session) -> list[Subject | None]:
    """Of all jobs, as they are stored."""
    return [
        job.subject for job in session.scalars(select(Job).order_by(Job.id).execution_options(populate_existing=True))
    ]


def add(session: Session, *objects: Any) -> tuple[Any, ...]:
    """The objects, each inserted in its turn."""
    for one in objects:
        session.add(one)
        session.flush()
    return objects


# ---- what sets it


def test_the_first_object_argument_is_the_subject(session: Session) -> None:
    """Of a stored object, and of one that is flushed with the job."""
    (stored,) = add(session, Order())
    new = Order()
    jobs = [enqueue(ship, stored), enqueue(ship, new), enqueue(plain, 1)]
    session.add_all([*jobs, new])
    assert [job.subject for job in jobs] == [Subject("Order", str(stored.id)), None, None]
    session.commit()
    assert set(subjects(session)) == {Subject("Order", str(stored.id)), Subject("Order", str(new.id)), None}
    assert [job.subject for job in jobs] == [Subject.of(stored), Subject.of(new), None]


def test_a_list_is_no_subject_and_an_optional_object_is_one(session: Session) -> None:
    """A job of several rows is about none of them, unless it says so."""
    order, customer = add(session, Order(), Customer())
    session.add_all([enqueue(pack, [order]), enqueue(pack, [order], customer)])
    session.commit()
    assert subjects(session) == [None, Subject("Customer", str(customer.id))]


def test_an_option_says_another_one_or_none(session: Session) -> None:
    """An object, new or stored, a `Subject`, or False."""
    order, customer = add(session, Order(), Customer())
    new = Customer()
    ways = [ship.options(subject=customer), ship.options(subject=False), ship.options(subject=Subject("Thing", "x"))]
    session.add_all([enqueue(way, order) for way in ways])
    session.flush()
    session.add_all([enqueue(plain.options(subject=new), 1), new])
    session.flush()
    session.add(enqueue(TaskName("elsewhere").options(subject=order), order_id=order.id))
    session.commit()
    assert subjects(session) == [
        Subject.of(customer), None, Subject("Thing", "x"), Subject.of(new), Subject.of(order),
    ]  # fmt: skip


def test_a_job_that_its_subject_refers_to(session: Session) -> None:
    """It is inserted first, and gets its subject with its arguments."""
    report = Report()
    report.job = enqueue(build, report)
    session.add(report)
    session.commit()
    assert (report.job.subject, report.job.args) == (Subject("Report", str(report.id)), {"report": report.id})


@pytest.mark.parametrize("is_cycle", [False, True])
def test_a_rollback_takes_the_subject_off(session: Session, *, is_cycle: bool) -> None:
    """So that the job gets that of the next INSERT."""
    add(session, Order())
    report = Report()
    job = enqueue(build, report)
    if is_cycle:
        report.job = job
    session.commit()
    session.add_all([report, job])
    session.flush()
    assert job.subject == Subject("Report", str(report.id))
    session.rollback()
    assert job.subject is None
    for one, name in ((report, "id"), (report, "job_id"), (job, "id")):
        vars(one).pop(name, None)  # SQLAlchemy leaves them
    session.add_all([Report(), report, job])
    session.commit()
    assert subjects(session) == [Subject("Report", str(report.id))]


def test_in_bulk(session: Session) -> None:
    """`enqueue_many` keeps the order, and mixes with jobs that have none."""
    first, second = add(session, Order(), Order())
    calls = [ship.call(second), plain.call(1), ship.call(first), plain.options(subject=first).call(2)]
    ids = session.scalars(enqueue_many(calls)).all()
    session.commit()
    found = {job.id: job.subject for job in session.scalars(select(Job))}
    assert [found[one] for one in ids] == [Subject.of(second), None, Subject.of(first), Subject.of(first)]


def test_of_a_query(session: Session) -> None:
    """Each job is about its row, by whatever key, also of an alias; a row that an outer join does not have is none."""
    session.add_all([Order(), Order(), Customer(), Stock(place='a "b" ü\\', number=2, day=date(2026, 1, 2))])
    session.commit()
    session.execute(enqueue_select(plain, select(Order.id), subject=Order))
    other = aliased(Order)
    session.execute(enqueue_select(plain, select(other.id).where(other.id == 1), subject=other))
    session.execute(enqueue_select(plain, select(func.length(Stock.place, type_=Integer)), subject=Stock))
    missing = select(Order.id).outerjoin(Stock, Stock.number == Order.id).where(Order.id == 1)
    session.execute(enqueue_select(plain, missing, subject=Stock))
    session.execute(enqueue_select(plain.options(subject=Subject("Thing", "7")), missing, subject=Stock))
    by_key = plain.options(unique=Unique(by=("number",)))
    session.execute(enqueue_select(by_key, select(Order.id).where(Order.id == 2), subject=Order))
    session.commit()
    stock = Subject.of(session.scalars(select(Stock)).one())
    one, two = Subject("Order", "1"), Subject("Order", "2")
    assert subjects(session)[2:] == [one, stock, None, Subject("Thing", "7"), two]
    assert set(subjects(session)[:2]) == {one, two}


def test_members_and_callbacks_of_workflows(session: Session, tables: Engine) -> None:
    """A node with an object argument, one whose first parameter is a result, an addition, and what is called back."""
    (order,) = add(session, Order())
    flow = Workflow("w")
    counted = flow.add(count, order)
    flow.add(plain, 1)
    flow.then(counted, tell, order)
    flow.on_end(ship, order)
    session.add(flow)
    session.flush()
    more = Workflow.at(flow.id)
    more.add(plain.options(subject=order), 2)
    session.execute(more.insert())
    batch = Batch()
    batch.on_success(plain, 3)
    session.add(batch)
    session.commit()
    drain(tables, tasks)
    found = session.execute(select(Job.task, Job.subject_id).order_by(Job.id)).all()
    about = str(order.id)
    expected = [("count", about), ("plain", None), ("tell", about), ("plain", about), ("plain", None), ("ship", about)]
    assert sorted(map(str, (tuple(row) for row in found))) == sorted(map(str, expected))


def test_a_later_call_of_a_unique_job_brings_its_subject_with_its_arguments(session: Session) -> None:
    """The job that waits is about what its arguments say."""
    first, second = add(session, Order(), Order())
    way = ship.options(unique=Unique("k", scope="queued", on_clash="replace", replace=("args",)))
    session.add(enqueue(way, first))
    session.commit()
    session.add(enqueue(way, second))
    session.commit()
    waiting, duplicate = session.scalars(select(Job).order_by(Job.id)).all()
    assert (waiting.args, waiting.subject) == ({"order": second.id}, Subject.of(second))
    assert (duplicate.is_duplicate, duplicate.subject) == (True, Subject.of(second))


def test_a_retry_keeps_it(session: Session) -> None:
    order, _ = add(session, Order(), Order())
    session.add(enqueue(ship, order))
    session.commit()
    session.execute(cancel_jobs(Job.subject == Subject.of(order)))
    session.execute(retry_jobs(Job.subject.in_([Subject.of(order)])))
    session.commit()
    assert [(job.status, job.subject) for job in session.scalars(select(Job))] == [("queued", Subject.of(order))]


def test_the_jobs_of_a_schedule_have_none(session: Session, tables: Engine) -> None:
    """Their arguments are the same for all; an explicit subject is refused."""
    (order,) = add(session, Order())
    session.add(Schedule("0 7 * * *", ship.call(order), name="given"))
    session.commit()
    session.execute(run_schedules(Schedule.name == "given"))
    session.commit()
    assert subjects(session) == [None]
    with pytest.raises(OptionError, match="a schedule enqueues 'plain' without a subject"):
        Schedule("0 7 * * *", plain.options(subject=order))


# ---- the relationship


def test_the_jobs_of_an_object_and_the_objects_with_such_jobs(session: Session) -> None:
    """In the order of their ids; by `any`, by `selectinload`, by the statement of a write-only collection."""
    first, second, customer = add(session, Order(), Order(), Customer())
    session.add_all([enqueue(ship, second, "a"), enqueue(plain, 1)])
    session.flush()
    session.add_all([enqueue(ship, first), enqueue(plain.options(subject=customer), 2)])
    session.flush()
    session.add(enqueue(ship, second, "b"))
    session.commit()
    session.execute(cancel_jobs(Job.args["note"].astext == "b"))
    assert [job.args.get("note") for job in second.jobs] == ["a", "b"]
    assert session.scalars(select(Order).where(Order.jobs.any(Job.status == "cancelled"))).all() == [second]
    assert session.scalars(select(Order).where(~Order.jobs.any(Job.status == "cancelled"))).all() == [first]
    assert len(session.execute(select(Order, Job).join(Order.jobs)).all()) == 3
    key = customer.id
    session.expunge_all()
    loaded = session.scalars(select(Order).options(selectinload(Order.jobs)).order_by(Order.id)).all()
    session.close()
    assert [len(order.jobs) for order in loaded] == [1, 2]
    with Session(session.bind) as again:
        found = again.scalars(again.get_one(Customer, key).jobs.select().where(Job.status == "queued"))
        assert [job.args for job in found] == [{"number": 2}]


def test_each_kind_of_key(session: Session) -> None:
    """The database makes the same text of a key as Python, and Python reads it back."""
    day = date(2026, 1, 2)
    objects: list[Any] = [
        Order(),
        Customer(),
        *(Stock(place=place, number=-7, day=day) for place in ("", 'a "b", [c]', "ü\\/\n\t\x01\x7f😀", "null")),
        *(Word(word=word) for word in ("", "7", '["a"]', "ß ", "x:y")),
        Day(day=day),
        Invoice(),
    ]
    session.add_all(objects)
    session.flush()
    session.add_all([enqueue(plain.options(subject=one), place) for place, one in enumerate(objects)])
    session.commit()
    for place, one in enumerate(objects):
        session.refresh(one)
        jobs = session.scalars(one.jobs.select()).all() if isinstance(one, Customer) else one.jobs
        assert [job.args["number"] for job in jobs] == [place], one
        subject: Any = jobs[0].subject
        assert session.get(*subject.identity(Base)) is one
        assert session.get(*subject.identity(type(one))) is one
        assert Subject.parse(str(subject)) == subject
        kind: Any = type(one)
        assert session.scalars(select(kind).where(kind.jobs.any(Job.args["number"].as_integer() == place))).all() == [
            one
        ]


def test_the_text_of_a_date_does_not_depend_on_the_connection(session: Session) -> None:
    """As `date::text` would."""
    add(session, day := Day(day=date(2026, 1, 2)))
    session.execute(text("SET LOCAL datestyle = 'German'"))
    assert session.scalar(select(subject_of_rows(Day)[1])) == Subject.of(day).id == "2026-01-02"


def test_a_subclass_has_the_jobs_of_its_base(session: Session) -> None:
    """The type is the base's name, so that it does not matter as what the row was loaded."""
    invoice, _ = add(session, Invoice(), Order())
    session.add_all([enqueue(read, invoice)])
    session.commit()
    assert subjects(session) == [Subject("Document", str(invoice.id))]
    assert session.scalars(select(Invoice).where(Invoice.jobs.any())).all() == [invoice]
    assert session.scalars(select(Document).where(Document.jobs.any())).all() == [invoice]
    assert len(invoice.jobs) == 1
    assert Subject.of(invoice).identity(Invoice) == (Invoice, invoice.id)
    assert Subject.of(invoice).identity(Base) == (Document, invoice.id)


def test_another_type_by_name(session: Session) -> None:
    """`__subject_type__`, which stays if the class is renamed."""
    (word,) = add(session, Word(word="a"))
    assert Subject.of(word) == Subject("a.word", "a")
    assert Subject.of(word).identity(Base) == (Word, "a")


class Data(MappedAsDataclass, DeclarativeBase):
    """Its classes are dataclasses."""


class Voucher(Data):
    __tablename__ = "subject_voucher"
    id: Mapped[int] = mapped_column(init=False, primary_key=True)
    value: Mapped[int] = mapped_column(default=5)
    jobs: Mapped[list[Job]] = jobs_relationship(init=False)


@task(registry=tasks, name="redeem")
def redeem(voucher: Voucher) -> None: ...


def test_a_dataclass_has_jobs(engine: Engine) -> None:
    """Which are no argument of its `__init__`, and not compared."""
    Data.metadata.create_all(engine)
    with Session(engine) as session:
        voucher = Voucher(7)
        assert voucher == Voucher(7)
        assert repr(voucher).endswith("Voucher(id=None, value=7)")
        session.add_all([voucher, job := enqueue(redeem, voucher)])
        session.commit()
        assert voucher.jobs == [job]
        assert session.scalars(select(Voucher).where(Voucher.jobs.any(Job.status == "queued"))).all() == [voucher]


async def test_an_async_session(tables: Engine, async_engine: AsyncEngine) -> None:
    """`selectinload`, `awaitable_attrs` or a query load the jobs."""
    async with AsyncSession(async_engine, expire_on_commit=False) as session:
        order = Order()
        job = enqueue(ship, order)
        session.add_all([order, job])
        await session.commit()
        assert job.subject == Subject("Order", str(order.id))
        found = (await session.scalars(select(Order).options(selectinload(Order.jobs)))).one()
        assert found.jobs == [job]
        assert await session.get(*job.subject.identity(Base)) is order


def test_an_index_finds_them(session: Session, tables: Engine) -> None:
    """It has no entry for jobs without a subject, and both directions use it."""
    (order,) = add(session, Order())
    session.execute(enqueue_select(plain, select(func.generate_series(1, 5_000, type_=Integer))))
    session.add(enqueue(ship, order))
    session.commit()
    session.execute(text("ANALYZE sa_jobqueue.job"))
    statement = select(Job).where(Job.subject == Subject.of(order))
    by_row = select(Order).where(Order.id == order.id, Order.jobs.any(Job.task == "ship"))
    for one in (statement, by_row):
        compiled = one.compile(tables, compile_kwargs={"literal_binds": True})
        plan = "\n".join(session.scalars(text(f"EXPLAIN {str(compiled).replace(':', chr(92) + ':')}")).all())
        assert "job_subject_idx" in plan, plan
    entries = session.scalar(text("SELECT reltuples FROM pg_class WHERE relname = 'job_subject_idx'"))
    assert entries == 1


# ---- what is refused


class Plain: ...


def test_what_is_no_subject(session: Session) -> None:
    """Before anything is written."""
    gone, going = add(session, Order(), Order())
    session.delete(gone)
    (long,) = add(session, Word(word="x" * 2_001))
    session.delete(going)
    refused = {
        7: "subject must be an object of a mapped class, a Subject or False, not 7",
        Plain: "subject must be an object of a mapped class, a Subject or False, not <class",
        gone: f"subject: Order {gone.id} was deleted",
        going: f"subject: Order {going.id} is about to be deleted",
        Subject("", "7"): "the type of a subject must be a text of 1 to 400 bytes, not ''",
        Subject("Order", "a\0b"): "the id of a subject must be a text of 0 to 2,000 bytes, not 'a\\x00b'",
        Subject("Order", "\ud800"): "the id of a subject has a lone surrogate",
        long: "the id of a subject must be a text of 0 to 2,000 bytes",
    }
    for given, said in refused.items():
        with pytest.raises(OptionError) as caught:
            plain.options(subject=given)
        assert said in str(caught.value)
    for given in (Order(), gone, going, 7):
        with pytest.raises(SubjectError):
            Subject.of(given)
    new = Order()
    job = enqueue(plain.options(subject=new), 1)
    with pytest.raises(PayloadError, match="task 'plain': subject: the Order is not in the database yet: flush first"):
        enqueue_many([plain.options(subject=new).call(1)])
    with pytest.raises(PayloadError, match="subject: the Order is not in the database yet: flush first"):
        enqueue_select(plain.options(subject=new), select(Order.id))
    session.add(job)
    with pytest.raises(PayloadError) as caught_in_flush:
        session.flush()
    assert str(caught_in_flush.value) == (
        "task 'plain': subject: the Order is not in the database yet, and it is in no session: add it, session.add(...), or flush it first"
    )
    session.add(new)
    session.flush()
    assert job.subject == Subject.of(new)


def test_a_detached_object_will_do(session: Session) -> None:
    """Its key is known."""
    (order,) = add(session, Order())
    key = order.id
    session.commit()
    session.expunge(order)
    session.add(enqueue(ship, order))
    session.commit()
    assert subjects(session) == [Subject("Order", str(key))]


def test_classes_whose_jobs_cannot_be_found() -> None:
    """It is said when the relationship is made, or when the mappers are configured."""
    for given in (Plain, Base, Order(), 7):
        with pytest.raises(SubjectError, match="takes a mapped class"):
            jobs_relationship(given)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(SubjectError, match="the jobs of Price cannot be found by its key 'price': it is a Decimal"):
        jobs_relationship(Price)
    with pytest.raises(SubjectError, match="the jobs of Country cannot be found by its key 'code': it is a CHAR"):
        jobs_relationship(Country)
    with pytest.raises(OptionError, match="subject must be a mapped class, or an alias of one"):
        enqueue_select(plain, select(Order.id), subject=Order.id)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    own = registry()
    made = type("Made", (), {})
    own.map_imperatively(
        made,
        Table("made", MetaData(), Column("id", Text, primary_key=True)),
        properties={"jobs": jobs_relationship(Order)},
    )
    try:
        with pytest.raises(SubjectError, match=r"jobs_relationship\(Order\) cannot be a relationship of Made"):
            configure_mappers()
    finally:
        own.dispose()


def test_a_key_of_bytes_has_a_subject_but_no_relationship(session: Session) -> None:
    """Python reads it back."""

    class Other(DeclarativeBase): ...

    class Blob(Other):
        __tablename__ = "subject_blob"
        key: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)

    Other.metadata.create_all(session.connection())
    (blob,) = add(session, Blob(key=b"\xff\0"))
    assert session.get(*Subject.of(blob).identity(Other)) is blob
    with pytest.raises(SubjectError, match="it is bytes"):
        jobs_relationship(Blob)
    Other.registry.dispose()


def test_what_a_subject_does_not_name(session: Session) -> None:
    """No class of the base, more than one, or no key of it."""
    with pytest.raises(SubjectError, match="Base has no class of the type 'Thing': give the class of Thing:7 itself"):
        Subject("Thing", "7").identity(Base)
    with pytest.raises(SubjectError, match="Customer has no class of the type 'Order'"):
        Subject("Order", "7").identity(Customer)
    with pytest.raises(SubjectError, match=r"'x' is no key of Order \(int\)"):
        Subject("Order", "x").identity(Base)
    with pytest.raises(SubjectError, match="is a mapped class, or a declarative base"):
        Subject("Order", "7").identity(Plain)
    for given in ("Order", ":7", ""):
        with pytest.raises(SubjectError, match="is written as a class and a key"):
            Subject.parse(given)


def test_one_statement_inserts_jobs_with_and_without_a_subject(session: Session) -> None:
    """As of all that only few jobs have."""
    (order,) = add(session, Order())
    sent: list[str] = []
    event.listen(session.bind, "before_cursor_execute", lambda *given: sent.append(given[2]))
    session.add_all([enqueue(ship, order) if place % 2 else enqueue(plain, place) for place in range(20)])
    session.flush()
    assert len([one for one in sent if "INSERT" in one]) == 1
    session.add_all([enqueue(plain, place) for place in range(3)])
    session.flush()
    assert "subject" not in sent[-1]


def test_a_row_without_a_subject_is_as_long_as_one_without_the_columns(session: Session) -> None:
    """They are the last ones, and their NULLs have room in the row's header."""
    session.add_all([enqueue(plain, 1), enqueue(plain, 2)])
    session.commit()
    session.execute(text("UPDATE sa_jobqueue.job SET worker = 'me', result = '1', claimed_at = now() WHERE id % 2 = 0"))
    columns = "SELECT attname::text FROM pg_attribute WHERE attrelid = 'sa_jobqueue.job'::regclass AND attnum > 0 ORDER BY attnum"
    *others, first, second, third = session.scalars(text(columns)).all()
    assert [first, second, third] == ["subject_type", "subject_id", "extras"]
    names = ", ".join(others)
    session.execute(text(f"CREATE TEMP TABLE narrow ON COMMIT DROP AS SELECT {names} FROM sa_jobqueue.job ORDER BY id"))
    sizes = "SELECT pg_column_size(r.*) FROM {} AS r ORDER BY r.id"
    narrow = session.scalars(text(sizes.format("narrow"))).all()
    assert session.scalars(text(sizes.format("sa_jobqueue.job"))).all() == narrow


def test_the_testing_kit_compares_it(session: Session) -> None:
    """If it is asked for."""
    order, other = add(session, Order(), Order())
    session.add(enqueue(plain.options(subject=order), 1))
    session.flush()
    assert_enqueued(session, plain, number=1)
    assert_enqueued(session, plain.options(subject=order), number=1)
    assert_not_enqueued(session, plain.options(subject=other), number=1)
    assert_not_enqueued(session, plain.options(subject=False), number=1)
    with pytest.raises(AssertionError, match=f"subject=Order:{order.id}, not Order:{other.id}"):
        assert_enqueued(session, plain.options(subject=other), number=1)

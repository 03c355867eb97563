"""Objects as arguments without a database: what annotations mean, what is stored, and what is refused in which words."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Annotated, Any, TypeAlias

import pytest
from pydantic import BaseModel, ConfigDict, RootModel
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    Session,
    make_transient_to_detached,
    mapped_column,
    registry,
    selectinload,
)
from sqlalchemy.types import UserDefinedType
from sqlmodel import Field as SqlField
from sqlmodel import SQLModel

from sa_jobqueue import Fresh, Job, Load, Registry, Schedule, Unique, enqueue, enqueue_many, task
from sa_jobqueue.arguments.arguments import Arguments
from sa_jobqueue.errors import PayloadError, TaskError
from tests.support.orders import Article, Base, Document, Invoice, Letter, Line, Order, Parcel

KEY = uuid.UUID("1e0c5a0e-6f0f-4f6d-9d8a-2f1d6a1f0c11")
ReadOnly: TypeAlias = Annotated[Order, Load(missing="error")]


@dataclass
class Shipment:
    order: Order
    parcels: list[Parcel] = field(default_factory=list)
    note: str = ""


class Request(BaseModel):
    order: Annotated[Order, Load()]
    copies: int = 1


class Lenient(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    order: Order | None


def arguments(annotation: Any) -> Arguments:
    """The arguments of a handler with one parameter, `value`."""

    def handler(value): ...  # type: ignore[no-untyped-def]

    handler.__annotations__["value"] = annotation
    return Arguments(handler, task="shop.handler")


def stored(one: Any) -> Any:
    """The object, as one that was loaded in a session that is closed."""
    make_transient_to_detached(one)
    return one


ORDER, OTHER, PARCEL, LINE = (
    stored(Order(id=7)),
    stored(Order(id=8)),
    stored(Parcel(id=KEY)),
    stored(Line(order_id=7, place=2)),
)


def decoded(annotation: Any, text: str) -> Any:
    return arguments(annotation).decode(text)[1]["value"]


# ---- what is stored


@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (Order, ORDER, "7"),
        (Parcel, PARCEL, f'"{KEY}"'),
        (Line, LINE, "[7,2]"),
        (Order | None, ORDER, "7"),
        (Order | None, None, "null"),
        (list[Order], [ORDER, OTHER, ORDER], "[7,8,7]"),
        (Sequence[Order], [ORDER], "[7]"),
        (dict[str, Line], {"first": LINE}, '{"first":[7,2]}'),
        (Mapping[str, Order], {"first": ORDER}, '{"first":7}'),
        (tuple[Order, int], (ORDER, 3), "[7,3]"),
        (set[Order], {ORDER}, "[7]"),
        (frozenset[Line], frozenset({LINE}), "[[7,2]]"),
        (Annotated[Order, Load(selectinload(Order.lines), for_update=True), "told to people"], ORDER, "7"),
        (ReadOnly, ORDER, "7"),
        (list[Annotated[Order | None, Load(missing="none")]], [ORDER, None], "[7,null]"),
        (Shipment, Shipment(ORDER, [PARCEL], "now"), f'{{"order":7,"parcels":["{KEY}"],"note":"now"}}'),
        (Request, Request(order=ORDER), '{"order":7,"copies":1}'),
        (list[Request], [Request(order=ORDER)], '[{"order":7,"copies":1}]'),
        (Lenient, Lenient(order=ORDER), '{"order":7}'),
        (Document, stored(Letter(id=3)), "3"),
        (Document, stored(Invoice(id=4)), "4"),
        (Invoice, stored(Invoice(id=5)), "5"),
        (Annotated[Article, Fresh()], stored(Article(id=1, version=3)), '{"key":1,"version":3}'),
    ],
)  # fmt: skip
def test_the_key_is_stored(annotation: Any, value: Any, text: str) -> None:
    """As plain JSON that other programs can write, too; and it is read as it was written."""
    made = arguments(annotation)
    assert made.encode((value,), {}) == f'{{"value":{text}}}'
    assert made.encode((made.decode(f'{{"value":{text}}}')[1]["value"],), {}) == f'{{"value":{text}}}'


class Data(MappedAsDataclass, DeclarativeBase):
    """Its classes are dataclasses, too."""


class Coupon(Data):
    __tablename__ = "coupon"
    code: Mapped[str] = mapped_column(primary_key=True)


class OwnModel(SQLModel, registry=registry()):
    """Of a registry of its own: the pages of the docs map a `Hero`, too."""


class Hero(OwnModel, table=True):
    id: int | None = SqlField(default=None, primary_key=True)
    name: str


@pytest.mark.parametrize(("one", "plain"), [(Coupon("A1"), '"A1"'), (Hero(id=3, name="Ann"), "3")])
def test_classes_that_are_dataclasses_or_models_too(one: Any, plain: str) -> None:
    """That they are mapped decides: their key is stored."""
    assert arguments(type(one)).encode((stored(one),), {}) == f'{{"value":{plain}}}'


def test_a_plain_key_will_do_where_a_version_may_stand() -> None:
    """From SQL and by name; and a version that is not asked for any more does no harm."""
    assert decoded(Annotated[Article, Fresh()], '{"value": 1}').version is None
    assert decoded(Article, '{"value": {"key": 1, "version": 2}}').key == (1,)


def test_a_field_that_was_added_since_has_its_default() -> None:
    """As everywhere in a dataclass."""
    assert set(decoded(Shipment, '{"value": {"order": 7}}').values) == {"order"}


def test_a_set_of_new_objects_has_each_of_them() -> None:
    """Although none has a key yet."""
    made = arguments(set[Order]).encode(({Order(), Order()},), {})
    assert made.count("unflushed") == 2


def test_a_task_says_whether_it_takes_objects() -> None:
    """The others pay for nothing."""
    registry = Registry()

    @task(registry=registry, name="with")
    def with_them(order: Order) -> None: ...

    @task(registry=registry, name="without")
    def without(order: int, more: dict[str, Any], *rest: int) -> None: ...

    assert with_them.takes_objects
    assert not without.takes_objects


def test_a_unique_job_may_be_so_by_an_object() -> None:
    """By its key."""
    registry = Registry()

    @task(registry=registry, name="ship", unique=Unique(by=("order",)))
    def ship(order: Order, note: str = "") -> None: ...

    first, again, other = (enqueue(ship, one, note) for one, note in ((ORDER, "a"), (ORDER, "b"), (OTHER, "a")))
    assert first.unique_key == again.unique_key != other.unique_key


def test_jobs_themselves_may_be_arguments() -> None:
    """A job is a row as any other."""
    registry = Registry()

    @task(registry=registry, name="look")
    def look(job: Job) -> None: ...

    assert enqueue(look, stored(Job(id=9))).args == {"job": 9}


# ---- what is refused


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (Order, 7, "argument value: an object of Order is expected, not 7"),
        (Order, None, "argument value: an object of Order is expected, not None"),
        (Order, PARCEL, f"argument value: an object of Order is expected, not Parcel {KEY}"),
        (Invoice, stored(Letter(id=3)), "argument value: an object of Invoice is expected, not Letter 3"),
        (list[Order], [ORDER, "7"], "argument value[1]: an object of Order is expected, not '7'"),
        (Shipment, {"order": 7}, "argument value: an object of Shipment itself is expected, not one of dict"),
        (
            Annotated[Article, Fresh()], stored(Article(id=1)),
            "argument value: the version of Article 1 is not loaded, and it is in no session that could: refresh it first",
        ),
    ],
)  # fmt: skip
def test_what_is_no_such_object_is_refused(annotation: Any, value: Any, said: str) -> None:
    """When the job is made, and without asking the database for its repr."""
    with pytest.raises(PayloadError) as caught:
        arguments(annotation).encode((value,), {})
    assert str(caught.value) == f"task 'shop.handler': {said}"


def test_a_key_of_another_type_does_not_fit() -> None:
    """As any argument of another type."""
    for annotation, plain in ((Order, '"x"'), (Order, "null"), (Line, "7"), (Line, "[7]"), (Parcel, '"x"')):
        with pytest.raises(PayloadError, match=r"argument value: .* is no key of"):
            decoded(annotation, f'{{"value": {plain}}}')


class Odd(UserDefinedType[Any]):
    """A type without a Python type."""


class Apart(DeclarativeBase):
    pass


class OddKey(Apart):
    __tablename__ = "odd"
    id: Mapped[Any] = mapped_column(Odd(), primary_key=True)


class Plain(Apart):
    __tablename__ = "plain"
    id: Mapped[int] = mapped_column(primary_key=True)


class Concrete(Plain):
    __tablename__ = "concrete"
    id: Mapped[int] = mapped_column(primary_key=True)
    __mapper_args__ = {"concrete": True}  # noqa: RUF012


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    order: Annotated[Order, Load()]


class Orders(RootModel[list[Annotated[Order, Load()]]]):
    """What is in it has no name."""


@dataclass
class Weighed:
    order: Order
    weight: InitVar[int] = 0


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (Base, "Base is not mapped, so it has no primary key: name a class that has a table"),
        (list[Base], "Base is not mapped"),
        (Order | Parcel, "a stored key does not say of which class it is: give each class a parameter of its own"),
        (OddKey, "OddKey cannot be an argument, because its key 'id' is of Odd()"),
        (Annotated[Order, Fresh()], "Fresh() needs a version, and the mapper of Order has no version_id_col"),
        (Annotated[Order, Load(missing="none")], 'missing="none" needs an annotation that allows None: Order | None'),
        (Annotated[Order, Load], "it has the class Load: write Load()"),
        (Annotated[int, Load()], "Load() and Fresh() say how a mapped object is loaded, and there is none in it"),
        (
            Annotated[Shipment, Load(missing="none")],
            'missing="none" needs an annotation that allows None: Order | None',
        ),
        (Open, 'Open has extra="allow", and holds mapped objects: a model cannot do both'),
        (Orders, "Orders is a RootModel, and holds mapped objects: annotate with what is in it"),
        (Weighed, "Weighed has an InitVar, weight, which its objects do not keep, and holds mapped objects"),
        (dict[Order, int], "the keys of a JSON object are texts, so objects can only be values of a dict: take a list"),
    ],
)
def test_an_annotation_that_cannot_work_is_refused(annotation: Any, said: str) -> None:
    """When it is resolved: at the first job, or when a worker starts."""
    with pytest.raises(TaskError) as caught:
        arguments(annotation).resolve()
    assert str(caught.value).startswith(f"task 'shop.handler': the annotation of 'value' cannot be used: {said}")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Load("lines"), "Load takes loader options"),  # type: ignore[arg-type]
        (lambda: Load(for_update="yes"), "for_update must be True, False or a mapping"),  # type: ignore[arg-type]
        (lambda: Load(missing="skip"), "missing must be one of discard, error, none"),  # type: ignore[arg-type]
    ],
)
def test_load_is_checked_where_it_stands(make: Callable[[], Load], said: str) -> None:
    """So a mistake is found when the module is imported."""
    with pytest.raises(TaskError, match=said):
        make()


def test_an_object_with_a_key_of_its_own_is_no_object_of_the_base() -> None:
    """Concrete inheritance: the same number is another row."""
    for one in (stored(Concrete(id=1)), Concrete()):
        with pytest.raises(PayloadError, match="Concrete has keys of its own"):
            arguments(Plain).encode((one,), {})


def test_a_task_that_is_known_by_name_takes_the_key() -> None:
    """As plain JSON; it does not know what an Order is."""
    assert enqueue("shop.ship", order=7).args == {"order": 7}
    with pytest.raises(PayloadError, match=r"task 'shop.ship': argument order: "):
        enqueue("shop.ship", order=ORDER)


# ---- what has no key yet


def ship_task() -> Any:
    @task(registry=Registry(), name="shop.ship")
    def ship(order: Order) -> None: ...

    return ship


def test_before_the_flush_the_key_has_a_placeholder() -> None:
    """Who reads the arguments sees that it is to come."""
    job = enqueue(ship_task(), Order())
    assert set(job.args["order"]) == {"unflushed"}


def test_bulk_refuses_what_has_no_key() -> None:
    """It is executed at once, with no flush in between; but the objects may be flushed before."""
    order = Order()
    call = ship_task().call(order)
    with pytest.raises(PayloadError) as caught:
        enqueue_many([call])
    assert str(caught.value) == (
        "task 'shop.ship': argument order: the Order is not in the database yet: flush first (session.flush())"
    )
    order.id = 7
    make_transient_to_detached(order)
    enqueue_many([call])


def test_a_schedule_keeps_the_key() -> None:
    """And takes no object that has none."""
    assert Schedule("0 7 * * *", ship_task(), ORDER).args == {"order": 7}
    with pytest.raises(PayloadError, match="flush first"):
        Schedule("0 7 * * *", ship_task(), Order())
    with pytest.raises(PayloadError, match="a schedule takes objects with the task"):
        Schedule("0 7 * * *", ship_task().call(Order()))


def test_a_deleted_object_is_refused() -> None:
    """Also one that the next flush deletes."""
    order = stored(Order(id=7))
    with Session() as session:
        session.add(order)
        session.delete(order)
        with pytest.raises(PayloadError, match=r"argument order: Order 7 is about to be deleted"):
            enqueue(ship_task(), order)


def test_of_an_expired_object_the_key_is_known() -> None:
    """The database is not asked: this session has none."""
    order = stored(Order(id=7, note="x"))
    with Session() as session:
        session.add(order)
        session.expire(order)
        assert enqueue(ship_task(), order).args == {"order": 7}

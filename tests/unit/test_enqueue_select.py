"""What `enqueue_select` refuses before anything is sent, and how it says so."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType

import pytest
from pydantic import AwareDatetime, BaseModel, Field
from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    DateTime,
    Enum,
    Integer,
    Interval,
    Numeric,
    Select,
    SmallInteger,
    String,
    Text,
    Time,
    TypeDecorator,
    Uuid,
    case,
    cast,
    column,
    func,
    literal,
    literal_column,
    null,
    select,
    table,
    text,
    true,
    union_all,
)
from sqlalchemy import Date as DateType
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import NullType

from sa_jobqueue import Call, Fresh, Middleware, Unique, add_middleware, enqueue_select, remove_middleware
from sa_jobqueue.arguments.columns import kind_of
from sa_jobqueue.errors import MiddlewareError, OptionError, PayloadError
from sa_jobqueue.tasks.decorator import task
from sa_jobqueue.tasks.registry import Registry, TaskName
from tests.support.orders import Article, Line, Order, Parcel

registry = Registry()
orders = table(
    "orders",
    column("id", Integer),
    column("note", Text),
    column("due", DateTime(timezone=True)),
    column("local", DateTime),
)
c = orders.c


@task(name="shop.remind", registry=registry)
def remind(order_id: int, note: str | None = None, *, copies: int = 1) -> None: ...


@task(name="shop.both", registry=registry)
def both(id: int, note: str) -> None: ...


@task(name="shop.many", registry=registry)
def many(first: int, /, *rest: int, **named: str) -> None: ...


@dataclass
class Held:
    order: Order
    line: Line | None = None


@task(name="shop.of_objects", registry=registry)
def of_objects(
    order: Order,
    line: Line,
    parcel: Parcel | None = None,
    several: list[Order] | None = None,
    held: Held | None = None,
) -> None: ...


@task(name="shop.publish", registry=registry)
def publish(article: Annotated[Article, Fresh()]) -> None: ...


def sql(statement: Any) -> str:
    return str(statement.compile(dialect=postgresql.dialect(), compile_kwargs={"literal_binds": True}))


@pytest.mark.parametrize(
    ("handler", "rows", "said"),
    [
        (remind, select(c.note.label("order_id")), "argument order_id: the column order_id (TEXT) is a str, and the parameter is annotated int"),
        (remind, select(c.id, c.due), "argument note: the column due (TIMESTAMP WITH TIME ZONE) is a datetime with a time zone, and the parameter is annotated str | None"),
        (remind, select(c.due), "argument order_id: the column due (TIMESTAMP WITH TIME ZONE)"),
        (remind, select(), "argument order_id is missing; it takes (order_id, note, copies)"),
        (remind, select(c.note.label("note")), "argument order_id is missing"),
        (remind, select(c.id.label("ordr")), "unknown argument ordr, the label of a column; it takes (order_id, note, copies)"),
        (remind, select(c.id, c.note, c.due), "takes 2 positional arguments, and 3 columns have no label: id, note, due"),
        (remind, select(c.id, c.id.label("order_id")), "argument order_id is given twice: by its position and by a label"),
        (both, select(c.note, c.id), "by its position the column note is the argument id, but there is an argument note, too: say which one is meant by a label"),
        (remind, select(func.foo(c.id)), "argument order_id: the column foo cannot be used: its SQL type is not known"),
        (remind, select(null()), "argument order_id: the column number 1 cannot be used: its SQL type is not known"),
        (many, select(c.id, c.note), "argument rest: the column note (TEXT) is a str"),
        (many, select(c.id, c.id.label("colour")), "argument colour: the column colour (INTEGER) is an int"),
        (many, select(c.id, c.id.label("rest")), "argument rest cannot be given by a label"),
        ("shop.other", select(c.id, func.foo(type_=Integer) + 1), "column 2 has no name: say which argument it is"),
        ("shop.other", select(c.id, c.note.label("id")), "argument id is given twice"),
        ("shop.other", select(c.due), "argument due: the column due is a datetime with a time zone, which is not plain JSON"),
        (of_objects, select(c.note, literal([1, 2], ARRAY(Integer))), "argument order: the column note (TEXT) is a str, and the parameter is annotated Annotated[tests.support.orders.Order, by its key: int]"),
        (of_objects, select(c.id, c.id), "argument line: the column id (INTEGER) is an int, and the parameter is annotated Annotated[tests.support.orders.Line, by its key: int, int]"),
        (of_objects, select(c.id, literal([1, 2], ARRAY(Integer)), c.id), "argument parcel: the column id (INTEGER) is an int"),
        (of_objects, select(c.id, literal([1, 2], ARRAY(Integer)), literal(uuid.UUID(int=1)), c.id), "argument several: the column id (INTEGER) is an int"),
        (of_objects, select(c.id, literal([1, 2], ARRAY(Integer)), literal(uuid.UUID(int=1)), literal([1], ARRAY(Integer)), c.id), "argument held: the column id (INTEGER) is an int"),
        (publish, select(c.id), "argument article is Fresh(), and a statement or a trigger stores the key of a row without its version"),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_are_refused(handler: Any, rows: Select[Any], said: str) -> None:
    """The message names the column, the parameter and both types."""
    name = handler if isinstance(handler, str) else handler.name

    with pytest.raises(PayloadError) as caught:
        enqueue_select(handler, rows)

    assert str(caught.value).startswith(f"task {name!r}: ")
    assert said in str(caught.value)


def test_keys_of_all_kinds_are_objects() -> None:
    """Those of several parts as an array or as JSON."""
    for key in (literal([1, 2], ARRAY(Integer)), func.jsonb_build_array(c.id, 2, type_=JSONB)):
        made = sql(
            enqueue_select(of_objects, select(c.id, key, literal(uuid.UUID(int=1)), literal([1], ARRAY(Integer))))
        )
        assert "subject_type" in made
    held = cast(literal('{"order": 7}'), JSONB).label("held")
    assert "'held'" in sql(enqueue_select(of_objects, select(c.id, literal([1, 2], ARRAY(Integer)), held)))


def test_a_text_in_a_select_is_no_column() -> None:
    """SQLAlchemy leaves it out of the columns of a subquery, so it would be no argument."""
    with pytest.raises(OptionError, match=r"text\(\) has no name and no type in a select\(\): write literal_column"):
        enqueue_select(remind, select(c.id, text("'a note'")))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"priority": 9}, "priority=9 would be the same for all jobs: give it to the task, task.options(priority=...)"),
        ({"priority": c.note}, "priority must be an integer, not a str"),
        ({"queue": c.id}, "queue must be text, not an int"),
        ({"key": c.id}, "key must be text, not an int"),
        ({"run_at": c.local}, "run_at must have a time zone"),
        ({"run_at": c.id}, "run_at must be a time with a time zone, not an int"),
        ({"delay": c.due}, "delay must be an interval or a number of seconds, not a datetime with a time zone"),
        (
            {"deadline": c.note},
            "deadline must be a time with a time zone or an interval or a number of seconds, not a str",
        ),
        ({"run_at": c.due, "delay": c.id}, "run_at and delay exclude each other"),
        ({"expires_at": c.due, "expires_in": c.id}, "expires_at and expires_in exclude each other"),
        ({"units": func.foo()}, "units: its SQL type is not known"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], said: str) -> None:
    """By their types, too."""
    with pytest.raises(OptionError) as caught:
        enqueue_select(remind, select(c.id), **options)

    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("handler", "rows", "said"),
    [
        (remind, text("SELECT 1"), "takes a select()"),
        (remind, orders, "takes a select()"),
        (print, select(c.id), "takes a task or its name"),
        (remind.call(1), select(c.id), "takes a task or its name"),
        (remind.options(unique=Unique(by=("copy",))), select(c.id), "unique: by names 'copy', which is no argument"),
        (remind.options(expires_in=1, delay=2), select(c.id), "the job expires at"),
    ],
)
def test_what_is_no_task_or_no_query_is_refused(handler: Any, rows: Any, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        enqueue_select(handler, rows)

    assert said in str(caught.value)


def test_an_expression_needs_a_select_that_takes_more_columns() -> None:
    """A UNION does not; as a subquery it does."""
    rows = union_all(select(c.id), select(c.id))
    with pytest.raises(OptionError, match="make a subquery of the query"):
        enqueue_select(remind, rows, priority=literal(1))

    inner = rows.subquery()
    assert "coalesce" in sql(enqueue_select(remind, select(inner.c.id), priority=inner.c.id))


def test_a_debounce_says_itself_when_a_job_is_due() -> None:
    with pytest.raises(OptionError, match="debounce says when the job is due"):
        enqueue_select(remind.options(debounce=5), select(c.id), run_at=c.due)


def test_more_columns_are_the_further_arguments_of_a_handler_that_takes_any() -> None:
    """`*rest` is one array, and `**named` stands beside the others."""
    made = sql(enqueue_select(many, select(c.id, c.id, c.id, c.note.label("colour"))))

    assert "jsonb_build_array(" in made
    assert "CAST('colour' AS TEXT)" in made


def test_a_text_query_has_the_types_that_it_is_given() -> None:
    rows = text("SELECT id FROM orders").columns(column("id", Integer))

    assert "SELECT id FROM orders" in sql(enqueue_select(remind, rows))


class Shape(BaseModel):
    sides: int


@dataclass
class Point:
    x: int


class Colour(enum.StrEnum):
    RED = "red"


class Changing(TypeDecorator[str]):
    impl = Text
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return value


class Named(TypeDecorator[str]):
    impl = String
    cache_ok = True


OrderId = NewType("OrderId", int)


@pytest.mark.parametrize(
    ("of", "fitting", "others"),
    [
        (BigInteger(), [int, int | None, OrderId, Annotated[int, Field(gt=5)], Literal[1, 2], float, Any, object, int | str], [str, bool, date, uuid.UUID, Shape, list[int]]),
        (SmallInteger(), [int], [str]),
        (Text(), [str, Annotated[str, Field(pattern="^a+$")], Literal["a"], Colour, Any], [int, bytes, date, uuid.UUID, Shape]),
        (Named(), [str], [int]),
        (true().type, [bool, Any], [int, str]),
        (Numeric(10, 2), [Decimal, Decimal | None], [float, int, str, Any]),
        (Numeric(asdecimal=False), [float], [int, Decimal]),
        (postgresql.DOUBLE_PRECISION(), [float, Any], [int]),
        (DateTime(timezone=True), [datetime, AwareDatetime], [date, str, Any]),
        (DateTime(), [datetime], [AwareDatetime, date]),
        (DateType(), [date], [datetime, str]),
        (Interval(), [timedelta], [int, float]),
        (postgresql.INTERVAL(), [timedelta], [int]),
        (Uuid(), [uuid.UUID], [str]),
        (Uuid(as_uuid=False), [str], [uuid.UUID]),
        (postgresql.UUID(), [uuid.UUID], [str]),
        (JSONB(), [dict, dict[str, Any], list[int], Shape, Point, Any, Shape | None], [int, str, Colour, uuid.UUID]),
        (JSON().with_variant(JSONB(), "postgresql"), [dict[str, int]], [int]),
        (ARRAY(Integer), [list[int], tuple[int, ...], set[int], list, list[int] | None], [list[str], int, dict[str, int]]),
        (postgresql.ARRAY(Text), [list[str]], [list[int]]),
        (Enum(Colour), [Colour], [int]),
        (Enum("a", "b"), [str, Literal["a", "b"]], [int]),
    ],
    ids=lambda one: repr(one)[:40],
)  # fmt: skip
def test_a_column_fits_where_its_values_do(of: Any, fitting: list[Any], others: list[Any]) -> None:
    """Strictly, as with `enqueue`; what an annotation says of single values is the worker's to check."""
    kind = kind_of(of)

    assert [one for one in fitting if not kind.fits(one)] == []
    assert [one for one in others if kind.fits(one)] == []


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (NullType(), "not known"),
        (Changing(), "Changing changes values in Python"),
        (Time(timezone=True), "a time with a time zone"),
        (postgresql.INET(), "has no known form in JSON"),
        (ARRAY(DateTime), "an array of a datetime"),
        (ARRAY(Integer, dimensions=2), "an array of an int"),
    ],
)
def test_a_type_whose_values_are_not_known_is_refused(of: Any, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        kind_of(of)

    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["ratio", "price", "document"])
def test_no_key_is_made_of_what_the_database_writes_otherwise(name: str) -> None:
    """A float has another text in Python; a key would not be that of `enqueue`."""

    @task(registry=Registry())
    def measure(ratio: float, price: Decimal, document: dict[str, Any]) -> None: ...

    rows = select(
        literal_column("1.5", postgresql.DOUBLE_PRECISION()),
        literal_column("1.5", Numeric),
        literal_column("'{}'", JSONB),
    )

    with pytest.raises(OptionError, match=f"unique: the argument {name} is"):
        enqueue_select(measure.options(unique=Unique(by=(name,))), rows)


class Adding(Middleware):
    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def before_enqueue(self, call: Call) -> Call:
        return call.with_meta(tenant="acme")._replace(**self.changes)


@pytest.fixture
def adding(request: pytest.FixtureRequest) -> Iterator[None]:
    add_middleware(middleware := Adding(**request.param))
    yield
    remove_middleware(middleware)


@pytest.mark.parametrize("adding", [{}], indirect=True)
def test_middleware_is_asked_once_for_all_rows(adding: None) -> None:
    """What it puts into `meta` is in that of every job."""
    assert '{"tenant":"acme"}' in sql(enqueue_select(remind, select(c.id)))


@pytest.mark.parametrize("adding", [{"args": '{"order_id":1}'}], indirect=True)
def test_middleware_may_not_give_all_rows_the_same_arguments(adding: None) -> None:
    with pytest.raises(MiddlewareError, match="gave arguments"):
        enqueue_select(remind, select(c.id))


def test_labels_that_sqlalchemy_gives_are_no_keywords() -> None:
    """An expression without a label is positional."""
    assert "AS anon_" in sql(enqueue_select(remind, select(case((c.id > 1, c.id), else_=0))))
    assert "foo" in sql(enqueue_select(TaskName("x"), select(func.foo(type_=Integer))))


def test_a_column_without_a_name_is_called_by_its_place() -> None:
    """Not by the name that SQLAlchemy gives to a bind parameter."""
    with pytest.raises(
        PayloadError, match=r"takes 2 positional arguments, and 3 columns have no label: id, one without a name, one"
    ):
        enqueue_select(remind, select(c.id, literal("a note"), literal(1)))
    with pytest.raises(PayloadError, match=r"argument note: the column number 2 \(INTEGER\) is an int"):
        enqueue_select(remind, select(c.id, literal(1)))
    with pytest.raises(PayloadError, match=r"column 2 has no name: say which argument it is"):
        enqueue_select("shop.other", select(c.id, literal(1)))

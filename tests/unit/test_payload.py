"""Arguments as JSON: what is accepted comes back equal, and what is refused is refused in words."""

from __future__ import annotations

import enum
import re
import sys
import typing
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, PlainSerializer, SecretStr, field_validator
from typing_extensions import TypedDict

from sa_jobqueue.arguments.arguments import Arguments
from sa_jobqueue.arguments.context import JobContext
from sa_jobqueue.arguments.storable import MAX_PAYLOAD, encode_plain, encode_value, load
from sa_jobqueue.errors import PayloadError, TaskError
from tests.support.nightly import examples


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


class Mode(enum.StrEnum):
    FAST = "fast"


@dataclass
class Line:
    item: str
    price: Decimal
    weight: float = 1.0


class Address(BaseModel):
    street: str
    since: datetime
    extra: dict[str, Any] = {}


class Point(NamedTuple):
    x: int
    y: int


class Settings(TypedDict):
    colour: Colour
    size: NotRequired[int]


@dataclass
class Tree:
    value: int
    children: list[Tree] = field(default_factory=list)


@dataclass(eq=False)
class Unequal:
    when: datetime
    names: list[str]


def arguments(annotation: Any) -> Arguments:
    """The arguments of a handler with one parameter, `value`."""

    def handler(value): ...  # type: ignore[no-untyped-def]

    handler.__annotations__["value"] = annotation
    return Arguments(handler, task="shop.handler")


def returned(annotation: Any, value: Any) -> Any:
    one = arguments(annotation)
    return one.decode(one.encode((value,), {}))[1]["value"]


def refused(annotation: Any, value: Any) -> str:
    with pytest.raises(PayloadError) as error:
        arguments(annotation).encode((value,), {})
    message = str(error.value)
    assert message.startswith("task 'shop.handler': ")
    assert len(message) < 600
    message.encode()
    return message.removeprefix("task 'shop.handler': ")


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
floats = st.floats(allow_nan=False, allow_infinity=False)
offsets = st.integers(-24 * 60 + 1, 24 * 60 - 1).map(lambda minutes: timezone(timedelta(minutes=minutes)))
zones: Any = st.none() | st.just(UTC) | offsets
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e15, 1e15) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
lines = st.builds(Line, texts, st.decimals(allow_nan=False, allow_infinity=False), floats)
TYPED: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (bool, st.booleans()),
    (float, floats),
    (str, texts),
    (bytes, st.binary()),
    (uuid.UUID, st.uuids()),
    (date, st.dates()),
    (datetime, st.datetimes(timezones=zones, min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1))),  # noqa: DTZ001
    (time, st.times()),
    (timedelta, st.timedeltas(timedelta(days=-100_000), timedelta(days=100_000))),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (Colour, st.sampled_from(Colour)),
    (Mode, st.sampled_from(Mode)),
    (Literal["a", 1] | None, st.sampled_from(["a", 1, None])),
    (int | None, st.none() | st.integers()),
    (int | str | None, st.none() | st.integers() | texts),
    (int | float, st.integers() | st.floats(-1e15, 1e15)),
    (list[int], st.lists(st.integers())),
    (dict[str, float | None], st.dictionaries(texts, st.none() | floats)),
    (dict[int, str], st.dictionaries(st.integers(), texts)),
    (dict[uuid.UUID, list[date]], st.dictionaries(st.uuids(), st.lists(st.dates()))),
    (tuple[int, str], st.tuples(st.integers(), texts)),
    (tuple[int, ...], st.lists(st.integers()).map(tuple)),
    (set[str], st.sets(texts)),
    (frozenset[int], st.frozensets(st.integers())),
    (Point, st.builds(Point, st.integers(), st.integers())),
    (Line, lines),
    (list[Line | int], st.lists(lines | st.integers())),
    (Address, st.builds(Address, street=texts, since=st.datetimes(timezones=st.just(UTC)), extra=st.dictionaries(texts, plain, max_size=2))),
    (Settings, st.fixed_dictionaries({"colour": st.sampled_from(Colour)}, optional={"size": st.integers()})),
    (Tree, st.recursive(st.builds(Tree, st.integers()), lambda inner: st.builds(Tree, st.integers(), st.lists(inner, max_size=3)), max_leaves=6)),
    (Any, plain),
    (object, plain),
    (dict, st.dictionaries(texts, plain, max_size=3)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("annotation", "values"), TYPED, ids=lambda one: str(one) if not isinstance(one, st.SearchStrategy) else ""
)
def test_what_is_accepted_comes_back_equal(annotation: Any, values: st.SearchStrategy[Any]) -> None:
    """Every value of a supported type survives, or is refused; none changes."""
    one = arguments(annotation)

    @examples(25, nightly=100)
    @given(values)
    def holds(value: Any) -> None:
        found = one.decode(one.encode((value,), {}))[1]["value"]
        assert found == value
        assert isinstance(value, type(found))

    holds()


anything = st.recursive(
    plain | st.floats() | st.text() | st.binary() | st.uuids() | st.datetimes() | st.decimals() | st.sampled_from(Colour)
    | st.sampled_from(Mode) | lines | st.complex_numbers(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.sets(st.integers() | texts, max_size=3)
    | st.dictionaries(st.text() | st.integers() | st.booleans() | st.none() | st.floats(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@examples(25, nightly=100)
@given(anything)
@pytest.mark.parametrize(
    "annotation", [Any, dict[str, Any], list, Line, int | str | uuid.UUID | datetime | dict[Any, Any], str | bytes | set[int]]
)  # fmt: skip
def test_whatever_is_given_is_refused_or_comes_back(annotation: Any, value: Any) -> None:
    """Nothing but PayloadError is raised, and nothing is changed on its way."""
    one = arguments(annotation)
    try:
        text = one.encode((value,), {})
    except PayloadError as error:
        str(error).encode()
        return
    assert one.decode(text)[1]["value"] == value
    text.encode()
    assert "\x00" not in str(load(text))


@given(st.text())
def test_a_text_is_refused_exactly_when_postgresql_cannot_store_it(text: str) -> None:
    """NUL and lone surrogates, and nothing else."""
    bad = "\x00" in text or bool(re.search("[\ud800-\udfff]", text))
    for annotation, value in [(str, text), (Any, [{"k": text}]), (dict[str, int], {text: 1})]:
        if bad:
            assert "cannot store" in refused(annotation, value) or "surrogate" in refused(annotation, value)
        else:
            assert returned(annotation, value) == value


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")], ids=str)
@pytest.mark.parametrize(
    ("annotation", "wrap"),
    [
        (float, lambda bad: bad),
        (float | None, lambda bad: bad),
        (list[float], lambda bad: [1.0, bad]),
        (dict[str, float], lambda bad: {"a": bad}),
        (Any, lambda bad: {"a": [bad]}),
        (Line, lambda bad: Line("x", Decimal(1), bad)),
        (Address, lambda bad: Address(street="x", since=datetime.now(UTC), extra={"a": bad})),
        (Decimal, Decimal),
        (Any, lambda bad: Line("x", Decimal(1), bad)),
    ],
)  # fmt: skip
def test_nan_and_infinities_are_refused_at_any_depth(annotation: Any, wrap: Callable[[float], Any], bad: float) -> None:
    """jsonb cannot hold them."""
    assert "cannot be a number in JSON" in refused(annotation, wrap(bad)) or annotation is Decimal


@pytest.mark.parametrize("annotation", [int, str, uuid.UUID, "int"])
def test_none_for_a_key_says_flush_first(annotation: Any) -> None:
    """`order.id` of a row that is not flushed."""
    assert "argument value: " in refused(annotation, None)
    assert "got None: if this is the key of a row that is not in the database yet, flush first" in refused(
        annotation, None
    )


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (int, "5", "argument value: input should be a valid integer, got '5'"),
        (int, True, "argument value: input should be a valid integer, got True"),
        (int, 5.0, "argument value: input should be a valid integer, got 5.0"),
        (bool, 1, "argument value: input should be a valid boolean, got 1"),
        (str, 5, "argument value: input should be a valid string, got 5"),
        (uuid.UUID, "7d0d2f0e-3b52-4c5b-a7c5-0d0f3c1d2e4f", "pass the Python object, not its text"),
        (datetime, "2026-01-01T00:00:00Z", "pass the Python object, not its text"),
        (Colour, "red", "pass the Python object, not its text"),
        (Line, {"item": "x", "price": "1"}, "argument value: "),
        (list[int], [1, 2, "3"], "argument value[2]: input should be a valid integer, got '3'"),
        (list[int], (1, 2), "argument value: input should be a valid list, got (1, 2)"),
        (Line, Line("x", Decimal(1), "1"), "argument value.weight: input should be a valid number, got '1'"),  # type: ignore[arg-type]
        (Any, (1, 2), "argument value: (1, 2) would come back from JSON as [1, 2]"),
        (Any, {1: 2}, "argument value: "),
        (Any, {"a": {1}}, "would come back from JSON as"),
        (Any, uuid.UUID(int=0), "would come back from JSON as"),
        (Any, 1e23, "would come back from JSON as 100000000000000000000000"),
        (Any, object(), "cannot be stored as JSON"),
        (uuid.UUID | str, str(uuid.UUID(int=0)), "would come back from JSON as UUID"),
        (dict[int | str, int], {1: 1, "1": 2}, "the key 1 is not a string"),
        (int, 10**5_000, "argument value: an integer of more than 4,300 digits cannot be read back from JSON"),
        (dict[str, int], {1: 2}, "argument value: the key 1: input should be a valid string"),
        (dict[str, dict[int, int]], {"a": {"b": 1}}, "argument value.a: the key 'b': input should be a valid integer"),
        (Any, "x" * 50_000 + "\x00", "holds a NUL character"),
        (SecretStr, SecretStr("pw"), "would come back from JSON as something else: its JSON does not hold all of it"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_refusal_says_what_was_found_and_what_was_expected(annotation: Any, value: Any, said: str) -> None:
    """In the words of the person who wrote the call."""
    assert said in refused(annotation, value)


@pytest.mark.parametrize("number", [1e16, -1.8e18, 1e22])
@pytest.mark.parametrize("wrap", [lambda number: number, lambda number: {"a": [number]}], ids=["itself", "inside"])
def test_a_float_that_jsonb_makes_an_equal_integer_is_accepted(wrap: Callable[[float], Any], number: float) -> None:
    """Without an annotation, too; from 1e23 on the integer may be another number, and is refused."""
    value = wrap(number)

    assert returned(Any, value) == value
    assert load(encode_plain({"value": value}, what="by name")) == {"value": value}
    assert isinstance(returned(float, number), float)


@pytest.mark.parametrize("annotation", [Literal["fast", "slow"], Annotated[str, Field(min_length=3)]], ids=str)
def test_a_text_that_breaks_a_rule_is_not_told_to_be_an_object(annotation: Any) -> None:
    """Its kind is right; its value is not."""
    assert "Python object" not in refused(annotation, "x")


Blob = Annotated[Any, PlainSerializer(lambda _: "a blob")]


def several(b: bytes = b"", blob: Blob = None, found: Any = None, n: int = 0) -> None: ...


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "argument found: cannot be stored as JSON: unable to serialize unknown type: <class 'object'>"),
        ({"a": [1, {len}]}, "argument found.a[1][0]: cannot be stored as JSON: unable to serialize unknown type: "),
        ({"a": [10**5_000]}, "argument found.a[0]: an integer of more than 4,300 digits cannot be read back from JSON"),
    ],
)
def test_what_json_does_not_know_is_named(value: object, said: str) -> None:
    """The argument and the path in it, though the arguments beside it are of kinds that only their annotations explain."""
    with pytest.raises(PayloadError) as caught:
        Arguments(several, task="several").encode((b"\xff", object(), value), {})
    assert str(caught.value).removeprefix("task 'several': ").startswith(said)
    with pytest.raises(PayloadError) as caught:
        encode_plain({"first": 1, "found": value}, what="by name")
    assert str(caught.value).removeprefix("by name: ").startswith(said)
    with pytest.raises(PayloadError) as caught:
        encode_value([1, value], what="task 'several': its result")
    assert (
        str(caught.value).removeprefix("task 'several': its result: ").startswith(said.replace("argument found", "[1]"))
    )


@pytest.mark.parametrize("key", [1, 1.5, True, None, uuid.UUID(int=0), (1, 2)], ids=repr)
@pytest.mark.parametrize("annotation", [Any, object, dict, dict[str, Any], Mapping[str, int], int | dict[Any, Any]])
def test_a_key_that_is_no_string_is_refused(annotation: Any, key: object) -> None:
    """Unless the annotation says what it is made into again, as `dict[int, str]` does. The message has the key."""
    assert f"argument value: the key {key!r}" in refused(annotation, {key: 1})
    assert f"argument value.a[0]: the key {key!r} is not a string, and JSON has no other keys" in refused(
        Any, {"a": [{key: 1}]}
    )
    with pytest.raises(PayloadError, match=re.escape(f"argument value: the key {key!r} is not a string")):
        encode_plain({"value": {key: 1}}, what="by name")


def test_depth_is_bounded() -> None:
    """PostgreSQL's parser has a stack, and so has Python's."""
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]

    assert refused(Any, nested)
    loop: list[Any] = []
    loop.append(loop)
    assert refused(Any, loop)


def test_the_size_of_arguments_is_bounded() -> None:
    """By the bytes of their JSON; the limit itself is allowed."""
    one = arguments(str)
    largest = "x" * (MAX_PAYLOAD - len('{"value":""}'))

    assert one.encode((largest,), {})
    with pytest.raises(PayloadError, match="1,048,577 bytes of JSON, more than the 1,048,576"):
        one.encode((largest + "x",), {})
    with pytest.raises(PayloadError, match="more than the 10 that"):
        one.encode(("abc",), {}, limit=10)
    with pytest.raises(PayloadError, match="more than"):  # bytes count, not characters
        one.encode(("ö" * (MAX_PAYLOAD // 2),), {})


def test_times_in_a_repeated_hour_are_accepted() -> None:
    """There == between two zones is false for equal times."""
    moment = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)

    assert returned(datetime, moment).astimezone(UTC) == moment.astimezone(UTC)
    assert returned(Unequal, Unequal(moment, ["a"])).names == ["a"]


def test_an_offset_of_odd_seconds_is_refused() -> None:
    """Its text would lose them."""
    assert "would come back" in refused(datetime, datetime(1890, 1, 1, tzinfo=timezone(timedelta(seconds=3_208))))


class Shouting(BaseModel):
    text: str

    @field_validator("text")
    @classmethod
    def louder(cls, text: str) -> str:
        return text + "!"


class Failing(BaseModel):
    text: str

    @field_validator("text")
    @classmethod
    def fail(cls, text: str) -> str:
        raise KeyError(text)


def test_a_validator_that_changes_a_value_twice_is_noticed() -> None:
    """The handler would get another value than the caller gave."""
    assert "would come back from JSON as Shouting(text='a!!')" in refused(Shouting, Shouting(text="a"))


def test_a_failing_validator_is_a_payload_error() -> None:
    """At the encoding and at the decoding."""
    assert "KeyError" in refused(Failing, Failing.model_construct(text="a"))
    with pytest.raises(PayloadError, match="KeyError"):
        arguments(Failing).decode('{"value": {"text": "a"}}')


# ---- signatures


def full(first: int, /, second: int = 2, *more: int, third: str = "", **rest: uuid.UUID) -> None: ...


def test_every_kind_of_parameter_comes_back_in_its_place() -> None:
    """Positional only, either, variadic, by keyword only, and any others by name."""
    one = Arguments(full, task="full")
    key = uuid.uuid4()

    assert one.encode((1,), {}) == '{"first":1}'
    assert one.decode(one.encode((1,), {})) == ((1,), {})
    assert one.decode(one.encode((1,), {"second": 5})) == ((1,), {"second": 5})
    text = one.encode((1, 2, 3, 4), {"third": "x", "other": key})
    assert load(text) == {"first": 1, "second": 2, "more": [3, 4], "third": "x", "other": str(key)}
    assert one.decode(text) == ((1, 2, 3, 4), {"third": "x", "other": key})


@given(st.lists(st.integers(), min_size=1, max_size=5), st.dictionaries(texts, st.uuids(), max_size=3))
def test_any_accepted_call_comes_back_as_the_same_call(args: list[int], rest: dict[str, uuid.UUID]) -> None:
    """The handler is called with what Python would have bound."""

    def bound(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def inside(first: int, /, second: int = 2, *more: int, third: str = "", **rest: uuid.UUID) -> Any:
            return first, second, more, third, rest

        return inside(*args, **kwargs)

    one = Arguments(full, task="full")
    if rest.keys() & {"first", "second", "more", "third"}:
        return
    assert bound(*one.decode(one.encode(tuple(args), rest))) == bound(tuple(args), rest)


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "argument first is missing; it takes (first, second, more, third)"),
        ((1, 2), {"second": 3}, "argument second is given twice"),
        ((), {"first": 1}, "argument first cannot be given by keyword"),
        ((1,), {"more": [1]}, "argument more cannot be given by keyword"),
        ((1,), {"other": "x"}, "argument rest.other: "),
    ],
)
def test_a_call_that_python_would_refuse_is_refused(args: Any, kwargs: Any, said: str) -> None:
    """When it is enqueued, not when it runs."""
    with pytest.raises(PayloadError, match=re.escape(said)):
        Arguments(full, task="full").encode(args, kwargs)


def with_context(ctx: JobContext, one: int, **rest: str) -> None: ...


def with_context_by_position(ctx: JobContext, /, one: int, **rest: str) -> None: ...


def test_a_keyword_cannot_have_the_name_of_the_context() -> None:
    """Python would be given it twice, at each attempt; where the context has no name, the keyword is free."""
    one = Arguments(with_context, task="one")
    with pytest.raises(PayloadError, match="'one': argument ctx has the name of the context, which the worker gives"):
        one.encode((1,), {"ctx": "red"})
    with pytest.raises(PayloadError, match="'one': the stored arguments: argument ctx has the name of the context"):
        one.decode('{"one": 1, "ctx": "red"}')
    assert one.decode(one.encode((1,), {"colour": "red"})) == ((), {"one": 1, "colour": "red"})
    free = Arguments(with_context_by_position, task="free")
    assert free.decode(free.encode((1,), {"ctx": "red"})) == ((), {"one": 1, "ctx": "red"})


@pytest.mark.parametrize("text", ['{"ids": [5, 6]}', '{"c": 1, "ids": [5]}'])
def test_what_python_could_only_give_by_position_needs_what_comes_before_it(text: str) -> None:
    """A row by SQL, or by name, may leave it out; nothing moves into its place."""

    def handler(urgent: int = 1, *ids: int, c: int = 0) -> None: ...

    def positional(urgent: int = 1, ids: int = 2, /, c: int = 0) -> None: ...

    with pytest.raises(PayloadError, match="argument urgent is missing, and what follows it must be given by position"):
        Arguments(handler, task="handler").decode(text)
    with pytest.raises(PayloadError, match="argument urgent is missing"):
        Arguments(positional, task="positional").decode('{"ids": 6}')
    assert Arguments(positional, task="positional").decode('{"c": 6}') == ((), {"c": 6})


def test_unknown_and_surplus_arguments_are_refused() -> None:
    """The message says what the handler takes."""

    def handler(one: int, *, two: int = 2) -> None: ...

    given_to = Arguments(handler, task="handler").encode
    with pytest.raises(PayloadError, match=re.escape("unknown argument three; it takes (one, two)")):
        given_to((1,), {"three": 3})
    with pytest.raises(
        PayloadError, match=re.escape(": argument one is missing; unknown argument won; it takes (one, two)")
    ):
        given_to((), {"won": 1})
    with pytest.raises(PayloadError, match="takes 1 positional argument, 2 were given"):
        given_to((1, 2), {})


def test_defaults_stay_the_handlers() -> None:
    """What was not given is not stored."""

    def handler(one: int, two: int = 2) -> None: ...

    assert Arguments(handler, task="handler").encode((1,), {}) == '{"one":1}'


@pytest.mark.parametrize(
    "text", ["", "nope", "[]", "null", "{}", '{"value": "5"}', '{"value": 1, "other": 2}', '{"value": null}', '{"value": 1.5}']
)  # fmt: skip
def test_stored_arguments_that_do_not_fit_are_a_payload_error(text: str) -> None:
    """As after a change of the handler, or an INSERT by hand."""
    with pytest.raises(PayloadError, match="the stored arguments do not fit the handler"):
        arguments(int).decode(text)


@given(st.text() | st.binary())
def test_decoding_raises_payload_errors_only(text: str | bytes) -> None:
    """Whatever text is stored."""
    with suppress(PayloadError):
        arguments(dict[str, Any]).decode(text)


# ---- what cannot be resolved


class Opaque:
    pass


def test_an_annotation_that_pydantic_cannot_check_is_a_task_error() -> None:
    """It says what to pass in place of such a value."""
    with pytest.raises(
        TaskError,
        match=r"task 'shop.handler': the annotation of 'value' cannot be checked .*Opaque.*: pass a mapped object",
    ) as error:
        arguments(Opaque).resolve()
    assert "arbitrary_types_allowed" not in str(error.value)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic takes typing's own TypedDict from Python 3.12 on")
def test_a_typed_dict_of_an_old_python_is_told_which_one_to_take() -> None:
    """And no other advice is given."""
    line: Any = typing.TypedDict("line", {"text": str})
    with pytest.raises(TaskError, match=r"'value' cannot be checked: .*typing_extensions.TypedDict.* < 3\.12\.$"):
        arguments(line).resolve()


def test_an_annotation_that_cannot_be_resolved_is_a_task_error() -> None:
    """It says that the import belongs outside of `if TYPE_CHECKING`."""
    with pytest.raises(TaskError, match=r"'value', 'Missing', cannot be resolved .* outside `if TYPE_CHECKING:`"):
        arguments("Missing").encode((1,), {})


# ---- without a handler


@given(st.dictionaries(texts, plain, max_size=4))
def test_plain_arguments_come_back_equal(value: dict[str, Any]) -> None:
    """Any JSON, encoded without a handler's annotations."""
    assert load(encode_plain(value, what="x")) == value


@given(st.dictionaries(st.text(), anything, max_size=3))
def test_plain_arguments_come_back_equal_or_are_refused(value: dict[str, Any]) -> None:
    """Any Python value: nothing is changed in silence."""
    try:
        text = encode_plain(value, what="x")
    except PayloadError:
        return
    assert load(text) == value


@given(anything)
def test_a_result_is_stored_or_refused(value: Any) -> None:
    """Never anything that PostgreSQL would refuse."""
    try:
        text = encode_value(value, what="task 'x': its result")
    except PayloadError:
        return
    text.encode()
    assert not re.search("NaN|Infinity", re.sub(r'"(\\.|[^"\\])*"', "", text))
    assert "\x00" not in str(load(text))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "its result: nan cannot be a number in JSON"),
        ({"a": ["\x00"]}, "its result: a[0]: '\\x00' holds a NUL"),
        ({1: 2}, "its result: the key 1 is not a string"),
        (Line("\ud800", Decimal(1)), "its result: item: '\\ud800' holds a lone surrogate"),
        (object(), "its result: cannot be stored as JSON"),
        ("x" * MAX_PAYLOAD, "its result: 1,048,578 bytes"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_result_that_cannot_be_stored_says_why(value: Any, said: str) -> None:
    """With the part of it that cannot."""
    with pytest.raises(PayloadError, match=re.escape(said)):
        encode_value(value, what="task 'x': its result")

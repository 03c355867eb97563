"""How a failed attempt is described."""

from __future__ import annotations

import json
import time
import types
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_jobqueue.rules.failures import MAX_MESSAGE, MAX_TRACEBACK, clean, describe
from sa_jobqueue.rules.outcomes import ErrorEntry


def caught(raising: object) -> ErrorEntry:
    try:
        raising()  # type: ignore[operator]
    except BaseException as error:
        return storable(describe(error))
    raise AssertionError("nothing was raised")


def storable(entry: ErrorEntry) -> ErrorEntry:
    """What PostgreSQL asks of it."""
    for text in (entry.type, entry.message, entry.traceback):
        assert "\x00" not in text
        text.encode()
        assert "\\u0000" not in json.dumps(text)
    assert len(entry.type) <= 200
    assert len(entry.message) <= MAX_MESSAGE
    assert len(entry.traceback) <= MAX_TRACEBACK
    return entry


def test_an_exception_is_its_type_message_and_traceback() -> None:
    """What a person needs to find the place."""

    def handler() -> None:
        raise ValueError("no such order")

    entry = caught(handler)

    assert (entry.type, entry.message) == ("ValueError", "no such order")
    assert entry.traceback.startswith("Traceback (most recent call last)")
    assert entry.traceback.endswith("ValueError: no such order\n")
    assert "in handler" in entry.traceback


def test_the_type_is_qualified_outside_of_builtins() -> None:
    """Two libraries may both have a `Timeout`."""
    assert describe(json.JSONDecodeError("bad", "doc", 0)).type == "json.decoder.JSONDecodeError"


@given(st.text(st.characters(codec=None), max_size=50).map(lambda text: text + "\x00\ud800\udfff"))
def test_what_cannot_be_stored_is_replaced(message: str) -> None:
    """NUL and lone surrogates become U+FFFD; everything else stays."""
    entry = storable(describe(ValueError(message)))

    assert entry.message == clean(message)
    assert len(entry.message) == len(message)
    kept = [c for c in message if c != "\x00" and not "\ud800" <= c <= "\udfff"]
    assert [c for c in entry.message if c != "\ufffd"] == [c for c in kept if c != "\ufffd"]


def test_a_long_message_keeps_its_beginning_and_a_long_traceback_its_end() -> None:
    """The end of a traceback is where the reason is."""

    def down(depth: int) -> None:
        # Two functions in turn: Python folds only the same line repeated.
        (up(depth - 1) if depth % 2 else down(depth - 1)) if depth else exec("raise ValueError('x' * 3_000 + 'end')")

    def up(depth: int) -> None:
        down(depth - 1) if depth > 0 else down(0)

    entry = caught(lambda: down(60))

    assert entry.message == "x" * (MAX_MESSAGE - 1) + "…"
    assert entry.traceback.startswith("…")
    assert entry.traceback.endswith("xend\n")
    assert len(entry.traceback) == MAX_TRACEBACK


def test_a_huge_message_is_no_trouble() -> None:
    """50 MB of what cannot be stored."""
    assert len(caught(lambda: exec("raise ValueError('\\x00' * 50_000_000)")).message) == MAX_MESSAGE


def test_endless_recursion_is_described() -> None:
    """Its traceback has a thousand frames."""

    def recurse(depth: int) -> int:
        return recurse(depth + 1) + 1

    entry = caught(lambda: recurse(0))

    assert entry.type == "RecursionError"
    assert "recurse" in entry.traceback


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class NotText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307


class Unrepresentable(Exception):
    def __str__(self) -> str:
        raise self

    __repr__ = __str__


@pytest.mark.parametrize("kind", [Silent, NotText, Unrepresentable])
def test_an_exception_without_words_is_described(kind: type[Exception]) -> None:
    """`__str__` is the application's code and may fail."""

    def handler() -> None:
        raise kind

    entry = caught(handler)

    assert entry.type.endswith(kind.__name__)
    assert entry.message.startswith("<str() of the exception failed: ")
    assert "in handler" in entry.traceback


def test_groups_causes_and_notes_are_in_the_traceback() -> None:
    """Whatever Python itself would print."""

    def handler() -> None:
        one = ValueError("one")
        one.add_note("a note\x00")
        try:
            raise KeyError("the cause")
        except KeyError as cause:
            raise ExceptionGroup("many", [one, ExceptionGroup("inner", [TypeError("two")])]) from cause

    entry = caught(handler)

    assert entry.type == "ExceptionGroup"
    assert entry.message == "many (2 sub-exceptions)"
    assert all(part in entry.traceback for part in ("one", "a note", "two", "the cause", "direct cause"))


def test_a_wide_and_deep_group_is_described() -> None:
    """Python cuts it, and so do we."""
    group = ExceptionGroup("wide", [ValueError("x" * 100) for _ in range(5_000)])
    for _ in range(500):
        group = ExceptionGroup("deep", [group])

    assert storable(describe(group)).type == "ExceptionGroup"


def test_a_long_chain_and_a_circle_of_causes_are_described() -> None:
    """Both are seen in libraries that keep their errors."""
    first: Exception = ValueError("first")
    error = first
    for number in range(3_000):
        another = ValueError(f"number {number}")
        another.__cause__ = error
        error = another
    storable(describe(error))
    first.__cause__ = error

    assert storable(describe(error)).message == "number 2999"


def chained(number: int) -> BaseException:
    error = ValueError("the first")
    for n in range(number):
        error, error.__cause__ = ValueError(f"number {n}"), error
    return error


def recursed(depth: int) -> BaseException:
    """What two functions in turn raise; Python folds only the same line repeated. Joined by hand, because a stack has its limits."""
    try:
        raise ValueError("deep")
    except ValueError as error:
        trace = error.__traceback__
        assert trace is not None
        for line in range(depth):
            trace = types.TracebackType(trace, trace.tb_frame, trace.tb_lasti, 1 + line % 100)
        return error.with_traceback(trace)


class Long:
    """Its text takes long to make, and has no length to ask for before."""

    def __str__(self) -> str:
        return "n" * 1_000_000


def noted(*notes: object) -> BaseException:
    error = ValueError("noted")
    error.__notes__ = [*notes]
    return error


@pytest.mark.parametrize(
    ("make", "end"),
    [
        (lambda: chained(50_000), "ValueError: number 49999\n"),
        (lambda: recursed(300_000), "ValueError: deep\n"),
        (lambda: ExceptionGroup("wide", [chained(1) for _ in range(50_000)]), "wide (50000 sub-exceptions)\n"),
        (lambda: ExceptionGroup("deep", [chained(50_000)]), "deep (1 sub-exception)\n"),
        (lambda: noted(*["n"] * 2_000_000), "ValueError: noted\n"),
        (lambda: noted("n\n" * 5_000_000), "ValueError: noted\n"),
        (lambda: noted(*[Long()] * 3_000), "ValueError: noted\n"),
        (lambda: ExceptionGroup("g", [ValueError("\n" * 10_000_000)]), "g (1 sub-exception)\n"),
    ],
    ids=[
        "causes",
        "frames",
        "wide group",
        "causes in a group",
        "notes",
        "long note",
        "notes that are no text",
        "long message",
    ],
)
def test_whatever_an_exception_brings_along_it_is_described_at_once(
    make: Callable[[], BaseException], end: str
) -> None:
    """It is done on the event loop, and everything there waits for it."""
    error = make()
    began = time.thread_time()

    entry = storable(describe(error))

    assert time.thread_time() - began < 0.5
    assert entry.traceback.endswith(end)


def test_what_led_to_an_exception_with_too_much_is_said_as_far_as_it_is_near() -> None:
    """The nearest causes are what a person looks for, each with its own frames and in the order in which they came."""

    def handler() -> None:
        try:
            raise KeyError("nearest") from chained(1_000)
        except KeyError as cause:
            raise ExceptionGroup("many", [ValueError("member")]) from cause

    def outer() -> None:
        try:
            handler()
        except ExceptionGroup:
            raise LookupError("outer")  # noqa: B904

    text = caught(outer).traceback

    assert text.endswith("LookupError: outer\n")
    for part in (
        "ValueError: member",
        "The first of 1 exceptions in the group",
        "another exception occurred",
        "in handler",
    ):
        assert part in text
    cause = caught(lambda: exec("raise KeyError('it') from error", {"error": chained(1_000)})).traceback
    assert "ValueError: number 999\n\nThe above exception was the direct cause" in cause


@pytest.mark.parametrize(
    "error",
    [
        SyntaxError("bad", ("file.py", 3, 2, "x = = 1\x00")),
        SyntaxError("bad", ("file.py", None, None, None)),
        SyntaxError(),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        UnicodeEncodeError("utf-8", "\udfff", 0, 1, "surrogates"),
        OSError(2, "gone", "a\x00b"),
        KeyError("\x00"),
        ValueError(),
        ValueError(b"\x00", object()),
        KeyboardInterrupt(),
        GeneratorExit(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_odd_exceptions_are_described(error: BaseException) -> None:
    """Their messages are made by code of their own."""
    assert storable(describe(error)).type == type(error).__name__


def test_a_syntax_error_with_wrong_attributes_is_described() -> None:
    """Libraries set them to what they like; the traceback module trips over it."""
    error = SyntaxError("bad")
    error.lineno, error.offset, error.text = "three", "two", 7  # type: ignore[assignment]

    assert storable(describe(error)).message.startswith(("bad", "<str() of"))


def test_an_endless_class_name_is_cut() -> None:
    """Classes are made by code, too."""
    kind = type("N", (Exception,), {"__qualname__": "N\x00" * 5_000})

    assert len(storable(describe(kind("x"))).type) == 200


def test_a_class_without_a_module_is_described() -> None:
    """`__module__` is an attribute like any other."""
    kind = type("Lost", (Exception,), {"__module__": None})

    assert storable(describe(kind("x"))).message == "x"

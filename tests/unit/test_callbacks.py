"""Addresses of callbacks are accepted only with a valid signature. Questions check the answers to them."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, BeforeValidator, Field

from sa_jobqueue import Callbacks, Registry
from sa_jobqueue.arguments.questions import Question, as_asked, question_of
from sa_jobqueue.errors import ConfigurationError, OptionError
from sa_jobqueue.rules.callbacks import Ticket

OLD, NEW = "the key of last year", "the key of this year"
TICKET = Ticket("job:17:paid ✓", 1_900_000_000, "n0")


def hooks(*keys: str, url: str = "https://shop.example/hooks/") -> Callbacks:
    return Callbacks(url=url, keys=keys)


def token(address: str) -> str:
    return address.rpartition("/")[2]


def test_an_address_is_accepted_until_its_key_is_withdrawn() -> None:
    """The first key signs. An address that a run made before a new key came stays the same."""
    before = hooks(OLD).sign(TICKET)
    both = hooks(NEW, OLD)
    assert both.read(token(before)) == TICKET
    assert both.sign(TICKET, hooks(OLD).newest) == before
    assert both.sign(TICKET) == hooks(NEW).sign(TICKET) != before
    assert hooks(NEW).read(token(before)) is None
    assert hooks(NEW).sign(TICKET, hooks(OLD).newest) == hooks(NEW).sign(TICKET)


def test_what_was_changed_is_not_accepted() -> None:
    """A changed letter, an address for another URL, and a text that is no address are refused."""
    ours, address = hooks(NEW), hooks(NEW).sign(TICKET)
    assert address.startswith("https://shop.example/hooks/")
    assert address.signal == TICKET.signal
    assert hooks(NEW, url="https://staging.example/hooks").read(token(address)) is None
    good = token(address)
    for place, letter in enumerate(good):
        assert ours.read(f"{good[:place]}{'A' if letter != 'A' else 'B'}{good[place + 1 :]}") is None, place
    for other in ("", ".", "x.y", good + "=", good[:-1], "\ud800.\ud800", f"{good}.{good}"):
        assert ours.read(other) is None


@pytest.mark.parametrize(
    "options",
    [
        {"url": "shop.example/hooks", "keys": [NEW]},
        {"url": "https://shop.example/hooks?a=1", "keys": [NEW]},
        {"url": "https://shop.example", "keys": NEW},
        {"url": "https://shop.example", "keys": []},
        {"url": "https://shop.example", "keys": [NEW, "short"]},
    ],
)
def test_a_place_or_keys_that_cannot_be_used_are_refused(options: Any) -> None:
    """They are refused when `Callbacks` is made."""
    with pytest.raises(ConfigurationError):
        Callbacks(**options)
    with pytest.raises(ConfigurationError):
        Registry(callbacks="https://shop.example")  # type: ignore[arg-type]


class Approval(BaseModel):
    by: str
    items: int = 1


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Inner(BaseModel, extra="forbid"):
    n: int = Field(1, ge=1)
    next: Inner | None = None


class Outer(BaseModel):
    inner: Inner
    how: Literal["a"] = "a"


@pytest.mark.parametrize(
    ("question", "hint", "choices"),
    [
        ("Ship?", bool, [("Yes", True), ("No", False)]),
        ("Which?", Literal["red", "blue"], [("red", "red"), ("blue", "blue")]),
        ("Which?", Size, [("s", "s"), ("l", "l")]),
        ({"question": "Ship?", "choices": {"Ship it": {"by": "us"}}}, Approval, [("Ship it", {"by": "us"})]),
        ({"order": 17}, Approval, []),
        ("Go?", Literal["go"], [("go", "go")]),
        ("Which?", Literal["", "a"], []),
        ("Which?", Literal[1, "1"], []),
    ],
)
def test_buttons_come_from_the_choices_or_the_type(question: object, hint: Any, choices: Any) -> None:
    """They keep the given order."""
    found = question_of(as_asked(question, hint))
    assert found is not None
    assert found.choices == choices


def test_an_answer_that_the_handler_cannot_take_is_told() -> None:
    """The error names the place in the answer. A choice that does not fit is refused when the question is made."""
    found = question_of(as_asked("Who?", Approval))
    assert found is not None
    assert found.example == '{\n  "by": "",\n  "items": 1\n}'
    told = {
        "answer.by is missing": {}, "answer.by must be a string, not 7": {"by": 7}, "answer must be an object, not []": [],
        "answer.items must be an integer, not True": {"by": "ann", "items": True}, "": {"by": "ann", "more": None},
    }  # fmt: skip
    assert {found.misfit(payload): payload for payload in told.values()} == told
    assert Question("").misfit(object()) == ""
    with pytest.raises(OptionError, match="the choice 'Ship it' does not fit"):
        as_asked({"question": "Ship?", "choices": {"Ship it": {"by": 7}}}, Approval)
    for choices in ({"": 1}, {"Yes": 1, " Yes": 2}):
        with pytest.raises(OptionError, match="labels that differ"):
            as_asked({"question": "How many?", "choices": choices}, int)
    for question in ({"choices": {"Yes": 1}}, {"qestion": "How many?", "choices": {"Yes": 1}}):
        with pytest.raises(OptionError, match="has the keys 'question' and 'choices', not"):
            as_asked(question, int)
    odd = Question("", schema={"properties": {"a": True, "b": {"type": ["string", "null"]}}})
    assert (odd.example, odd.misfit({"a": 1})) == ('{\n  "b": null\n}', "")
    assert [
        question_of(stored) for stored in (None, "text", [], {"text": "x"}, {"text": 1, "choices": 3, "schema": {}})
    ] == [None] * 5


def nested(levels: int, last: object) -> Any:
    return {"next": nested(levels - 1, last)} if levels else last


@pytest.mark.parametrize(
    ("hint", "good", "wrong", "told"),
    [
        (Literal["red", "green"], ["red"], "blue", "answer must be 'red' or 'green', not 'blue'"),
        (Literal[1, 2], [1], True, "answer must be 1 or 2, not True"),
        (Size, ["s"], "blue", "answer must be 's' or 'l', not 'blue'"),
        (Outer, [{"inner": {"n": 2}}], {"inner": {"n": "x"}, "how": "a"}, "answer.inner.n must be an integer, not 'x'"),
        (Outer, [{"inner": {}, "more": 1}], {"inner": {"m": 1}}, "answer.inner.m is not a field of the type"),
        (Outer, [{"inner": {}}], {"inner": {}, "how": "b"}, "answer.how must be 'a', not 'b'"),
        (Inner, [nested(900, 7), nested(9, None)], nested(2, {"n": 0}), "answer.next.next.n must be at least 1, not 0"),
        (int | None, [7, None], "s", "answer must be an integer or null, not 's'"),
        (bool | Approval, [True, {"by": "ann"}], "yes", "answer must be true or false or an object, not 'yes'"),
        (bool | Approval, [], {"by": 7}, "answer.by must be a string, not 7"),
        (list[int], [[], [1]], [1, "a"], "answer[1] must be an integer, not 'a'"),
        (tuple[int, str], [[1, "a"]], ["a", "a"], "answer[0] must be an integer, not 'a'"),
        (tuple[int, str], [], [1], "answer must be an array of at least 2, not [1]"),
        (dict[str, int], [{"a": 1}], {"a": 1, "b": None}, "answer.b must be an integer, not None"),
        (Annotated[str, Field(max_length=3)], ["abc"], "abcd", "answer must be at most 3 characters long, not 'abcd'"),
        (Annotated[float, Field(gt=0, lt=9)], [0.5, 1], 9, "answer must be less than 9, not 9"),
    ],
)  # fmt: skip
def test_an_answer_is_checked_as_deep_as_its_type(hint: Any, good: list[Any], wrong: Any, told: str) -> None:
    """It is checked down to 50 levels. The handler checks deeper levels."""
    found = question_of(as_asked("Which?", hint))
    assert found is not None
    assert [found.misfit(payload) for payload in good] == [""] * len(good)
    assert found.misfit(wrong) == told


def test_what_a_button_sends_is_an_answer() -> None:
    """The payload of a button is accepted even if it does not fit the schema, because a validator of the type converts it."""
    length = Annotated[int, BeforeValidator(len)]
    found = question_of(as_asked({"question": "How long?", "choices": {"Short": "abc"}}, length))
    assert found is not None
    assert [found.misfit(payload) for payload in ("abc", "ab")] == ["", "answer must be an integer, not 'ab'"]

"""The rule of a unique job: its key, and what is not as usual."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, Field, RootModel

from sa_jobqueue import Registry, TaskName, Unique, enqueue, task
from sa_jobqueue.errors import OptionError

registry = Registry()


@task(registry=registry, name="shop.send")
def send(order_id: int, kind: str = "receipt", *, copies: int = 1) -> None: ...


def rule(call: Any) -> dict[str, Any]:
    assert call.uniqueness is not None
    found: dict[str, Any] = json.loads(call.uniqueness)
    return found


def key(unique: Unique, *args: Any, **kwargs: Any) -> str:
    return str(rule(send.options(unique=unique).call(*args, **kwargs))["key"])


def test_a_key_of_arguments_is_the_same_for_ever() -> None:
    """In each process, release and language: SHA-256 over JSON with sorted keys and no blanks, 24 digits of it."""
    assert key(Unique(by=("order_id",)), 7) == "shop.send:c95fd7f09ac6e1adb7d729d1"
    assert key(Unique(by=["kind", "order_id"]), 7) == key(Unique(by=("order_id", "kind")), 7)  # type: ignore[arg-type]


def test_a_key_is_made_of_the_arguments_that_are_named() -> None:
    """Two calls have the same key where these are equal, however they are given."""
    by = Unique(by=("order_id",))
    assert key(by, 7) == key(by, order_id=7, copies=3) != key(by, 8)
    of_all = Unique()
    assert key(of_all, 7) != key(of_all, 7, copies=2)
    assert key(Unique(by=()), 7) == key(Unique(by=()), 8) == "shop.send"


def test_a_default_counts_as_the_argument_that_it_is() -> None:
    """A call that leaves it out has the key of one that gives it."""
    assert key(Unique(), 7) == key(Unique(), 7, "receipt", copies=1)
    assert key(Unique(by=("kind",)), 1) == key(Unique(by=("kind",)), 2, kind="receipt")


def test_another_tasks_arguments_make_another_key() -> None:
    """But a key that is given is shared by all tasks."""
    other = TaskName("shop.other")
    assert rule(other.options(unique=Unique()).call(order_id=7))["key"] != key(Unique(by=("order_id",)), 7)
    shared = Unique("tenant 3")
    assert rule(other.options(unique=shared).call())["key"] == key(shared, 7) == "tenant 3"


def test_the_rule_says_what_is_not_as_usual() -> None:
    """Scope, period and what to do on a clash."""
    assert rule(send.options(unique=Unique("k")).call(1)) == {"key": "k"}
    window = Unique("k", scope="window", period=timedelta(minutes=1), on_clash="raise")
    assert rule(send.options(unique=window).call(1)) == {
        "key": "k", "scope": "window", "period": 60.0, "on_clash": "raise",
    }  # fmt: skip
    replace = Unique("k", scope="queued", on_clash="replace", replace=("args",))
    assert rule(send.options(unique=replace).call(1)) == {
        "key": "k", "scope": "queued", "on_clash": "replace", "replace": ["args"],
    }  # fmt: skip


def test_a_task_says_it_for_all_of_its_jobs_and_an_option_for_one() -> None:
    """False: this one is not unique."""

    @task(registry=registry, name="shop.sync", unique=Unique(by=("tenant",)))
    def sync(tenant: int) -> None: ...

    assert str(enqueue(sync, 3).unique_key).startswith("shop.sync:")
    assert sync.options(unique=False).call(3).uniqueness is None
    assert enqueue(sync.options(unique=False), 3).uniqueness is None
    assert enqueue(sync.options(unique=Unique("one")), 3).unique_key == "one"
    assert enqueue(send, 3).unique_key is None


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Unique(""), "key must have 1 to 500 characters, not 0"),
        (lambda: Unique("x" * 501), "key must have 1 to 500 characters, not 501"),
        (lambda: Unique("a\0"), "the key 'a.*"),
        (lambda: Unique(7), "key must be a text, not 7"),  # type: ignore[arg-type]
        (lambda: Unique("k", by=("a",)), "key and by exclude each other"),
        (lambda: Unique(by="order_id"), "by must be a list of names, not 'order_id'"),  # type: ignore[arg-type]
        (lambda: Unique(by=(7,)), "by must be names of arguments, not 7"),  # type: ignore[arg-type]
        (lambda: Unique(scope="ever"), "scope must be one of queued, started, finished, window, not 'ever'"),  # type: ignore[arg-type]
        (lambda: Unique(replace=("args",)), "replace is for on_clash=\"replace\" only, not for 'skip'"),
        (lambda: Unique(on_clash="drop"), "on_clash must be one of skip, replace, raise, not 'drop'"),  # type: ignore[arg-type]
        (lambda: Unique(scope="window"), "the scope 'window' needs a period"),
        (lambda: Unique(period=3), "the scope 'started' takes no period"),
        (lambda: Unique(scope="finished", period=-1), "period"),
        (lambda: Unique(replace=("queue",)), "replace must be some of args, run_at, priority, not 'queue'"),  # type: ignore[arg-type]
        (lambda: send.options(unique="order_id"), r"unique must be a Unique\(...\) or False, not 'order_id'"),  # type: ignore[arg-type]
        (
            lambda: send.options(unique=Unique(by=("order",))).call(7),
            "by names 'order', which is no argument of this job of 'shop.send'; it has kind, copies, order_id",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(made: Any, message: str) -> None:
    """Before any SQL."""
    with pytest.raises(OptionError, match=message):
        made()


def test_equal_numbers_make_one_key() -> None:
    """1.0 is 1, and -0.0 is 0, also deep in an argument and in a default. True is not 1."""

    @task(registry=registry, name="shop.weigh")
    def weigh(weights: dict[str, list[float]], factor: float = 1.0) -> None: ...

    def weighed(weights: list[float], **more: float) -> str:
        return str(rule(weigh.options(unique=Unique()).call({"a": weights}, **more))["key"])

    assert weighed([0.0, 1.0]) == weighed([-0.0, 1], factor=1) == weighed([0, 1.0], factor=1.0)
    assert weighed([0.5]) != weighed([0])
    assert weighed([2.0**60]) != weighed([2.0**61])
    by = TaskName("shop.flag").options(unique=Unique(by=("on",)))
    assert rule(by.call(on=True))["key"] != rule(by.call(on=1))["key"]


# ---- sets


class Basket(BaseModel):
    """A model with a set, under another name in JSON."""

    tags: frozenset[str] = Field(alias="its-tags")
    count: int = 1


@dataclass
class Box:
    """A dataclass with a set, in which there may be another."""

    marks: set[frozenset[str]]


Names = RootModel[set[str]]
WORDS = ("oak", "elm", "ash", "fir", "yew", "box")


@task(registry=registry, name="shop.label")
def label(
    tags: set[str],
    nested: dict[str, list[frozenset[str]]],
    basket: Basket,
    box: Box,
    names: Names,
    default: frozenset[str] = frozenset(WORDS),
    *more: set[str],
    **others: set[str] | None,
) -> None: ...


def labelled() -> str:
    """The key of a call with sets in all places, and its arguments."""
    words = set(WORDS)
    # Those that are left out count as well, by their defaults.
    call = label.options(unique=Unique()).call(
        words,
        {"b": [frozenset(words)], "a": []},
        Basket.model_validate({"its-tags": words}),
        Box({frozenset(WORDS[:3]), frozenset(WORDS[3:]), frozenset()}),
        Names(words),
        frozenset(words),
        words,
        other=words,
    )
    short = sync_tags.options(unique=Unique()).call()
    return f"{call.uniqueness} {call.args} {short.uniqueness}"


@task(registry=registry, name="shop.sync_tags")
def sync_tags(tags: frozenset[str] = frozenset(WORDS)) -> None: ...


def test_a_key_of_a_set_is_the_same_in_every_process() -> None:
    """Each process iterates over a set in an order of its own."""
    code = "import sys; from tests.unit.test_unique import labelled, WORDS; print(labelled()); print(list(set(WORDS)))"
    said: list[str] = []
    orders = set[str]()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        shown = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        found, order = shown.stdout.splitlines()
        said.append(found)
        orders.add(order)
    assert len(orders) > 1
    assert len(set(said)) == 1
    assert labelled() == said[0]


def test_a_set_stands_in_order() -> None:
    """Numbers by their value; and what is not a set stays as it was given."""

    @task(registry=registry, name="shop.order")
    def order(numbers: set[int], parts: list[tuple[int, ...]], mixed: set[int | str | None]) -> None: ...

    made = json.loads(order.call({10, 9, 2}, [(3, 1), (2,)], {"b", None, 10, "a", 9}).args)
    assert made == {"numbers": [2, 9, 10], "parts": [[3, 1], [2]], "mixed": [9, 10, "a", "b", None]}


def test_a_default_that_is_a_set_counts_as_the_argument_that_it_is() -> None:
    unique = sync_tags.options(unique=Unique())
    assert unique.call().uniqueness == unique.call(frozenset(reversed(WORDS))).uniqueness

"""The list of middleware, and what it makes of calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from sa_jobqueue import Call, Middleware, Registry, Schedule, TaskName, add_middleware, enqueue, remove_middleware, task
from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.errors import MiddlewareError, OptionError
from sa_jobqueue.rules.lifecycle import HELD, OUTCOMES, TRANSITIONS
from sa_jobqueue.tasks.middleware import Attempt, installed

registry = Registry()


@task(registry=registry, name="send")
def handler(order_id: int) -> None: ...


send = handler.options(tags=["paper"])


class Stamp(Middleware):
    """Puts its name into the meta of each call."""

    def __init__(self, name: str) -> None:
        self.name = name

    def before_enqueue(self, call: Call) -> Call:
        return call.with_meta(**{self.name: len(installed.all), "last": self.name})


class Around(Middleware):
    def around(self, attempt: Attempt) -> Any:
        return nullcontext()


@pytest.fixture(autouse=True)
def none_is_left() -> Iterator[None]:
    """Each test begins and ends without middleware."""
    assert installed.all == ()
    yield
    for one in installed.all:
        remove_middleware(one)


def job(**values: Any) -> ClaimedJob:
    filled: dict[str, Any] = {
        "id": 7, "claim_token": 1, "queue": "mail", "task": "send", "priority": 4, "run_at": 1_000.0, "attempt": 2, "max_attempts": 5,
        "rescues": 1, "args": "{}", "meta": '{"tenant":"acme"}', "created_at": 1_000.0,
    }  # fmt: skip
    return ClaimedJob(**filled | values)


def test_each_call_goes_through_the_middleware_in_its_order() -> None:
    """Of `enqueue`, `Task.call` and `TaskName.call`; what was in the meta stays."""
    for name in ("one", "two"):
        add_middleware(Stamp(name))
    assert enqueue(send, 1).meta == {"tags": ["paper"], "one": 2, "two": 2, "last": "two"}
    assert send.call(1).meta == '{"tags":["paper"],"one":2,"last":"two","two":2}'
    assert enqueue("other", a=1).meta == {"one": 2, "two": 2, "last": "two"}
    assert TaskName("other").call(a=1).given_meta == "{}"


def test_what_is_added_twice_is_there_once_and_what_is_not_there_can_be_removed() -> None:
    """So a module that is loaded again does no harm."""
    one, two = Stamp("one"), Around()
    for middleware in (one, two, one):
        add_middleware(middleware)
    assert installed.all == (one, two)
    assert (installed.enqueueing, installed.around) == ((one,), (two,))
    for middleware in (one, one, two):
        remove_middleware(middleware)
    assert installed.all == installed.enqueueing == installed.around == ()


@pytest.mark.parametrize(("given", "said"), [(Stamp, r"give it an object, Stamp\(\)"), (print, "derive its class")])
def test_what_is_no_middleware_is_refused(given: Any, said: str) -> None:
    """The message says what to give."""
    with pytest.raises(TypeError, match=said):
        add_middleware(given)


def test_a_call_that_no_middleware_changes_stays_as_it_is() -> None:
    """It does not even differ in what it remembers."""
    before = send.call(1)
    add_middleware(Middleware())
    add_middleware(Around())
    assert send.call(1) == before


def test_what_is_returned_in_place_of_a_call_is_refused() -> None:
    """A `before_enqueue` without a return, most likely."""

    class Forgets(Middleware):
        def before_enqueue(self, call: Call) -> Call:
            return None  # type: ignore[return-value]

    add_middleware(Forgets())
    with pytest.raises(MiddlewareError, match=r"Forgets.before_enqueue\(\) returned None; it must return the call"):
        enqueue(send, 1)


def test_an_exception_before_the_enqueueing_goes_to_the_caller() -> None:
    """A producer may be refused."""

    class Refuses(Middleware):
        def before_enqueue(self, call: Call) -> Call:
            raise PermissionError(call.task)

    add_middleware(Refuses())
    with pytest.raises(PermissionError, match="send"):
        send.call(1)


def test_a_schedule_keeps_nothing_that_middleware_adds() -> None:
    """Neither from a task, whose call no middleware sees, nor from a call that was made for it."""
    add_middleware(Stamp("trace"))
    for given in (Schedule("* * * * *", send, 1), Schedule("* * * * *", send.call(1))):
        assert given.meta == {"tags": ["paper"]}
    by_name = TaskName("other")
    assert Schedule("* * * * *", by_name).meta == {}
    with pytest.raises(OptionError, match="a schedule takes a task or a call"):
        Schedule("* * * * *", print)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("entries", "said"),
    [({"tags": ["x"]}, "to the task"), ({"at": object()}, "meta: at"), ({"text": "\0"}, "meta: text")],
)
def test_meta_that_cannot_be_stored_is_refused(entries: dict[str, Any], said: str) -> None:
    """As `options(meta=...)` refuses it."""
    with pytest.raises(OptionError, match=said):
        send.call(1).with_meta(**entries)


def test_an_attempt_says_what_it_is() -> None:
    """With the names that a context has."""
    attempt = Attempt(job())
    found = (attempt.job_id, attempt.task, attempt.queue, attempt.attempt, attempt.max_attempts, attempt.rescues)
    assert found == (7, "send", "mail", 2, 5, 1)
    assert attempt.meta == {"tenant": "acme"}
    assert attempt.meta is attempt.meta
    assert attempt.enqueued_at.timestamp() == 1_000.0
    assert attempt.fields == {"job_id": 7, "task": "send", "queue": "mail", "attempt": 2}
    assert repr(attempt) == "<Attempt 2 of send[7]>"


@pytest.mark.parametrize("run_at", [float("-inf"), float("inf"), 1e18, float("nan")])
def test_the_time_that_a_job_has_waited_is_a_number_whatever_its_row_says(run_at: float) -> None:
    """Times come from another clock, or by hand."""
    assert 0.0 <= Attempt(job(run_at=run_at)).waited < 1e12
    assert Attempt(job(run_at=run_at, created_at=1e18)).waited == 0.0


def test_each_event_of_a_running_job_has_an_outcome() -> None:
    """The table is complete, and has no other."""
    assert set(OUTCOMES) == {event for status, event in TRANSITIONS if status in HELD}
    assert len(set(OUTCOMES.values())) == len(OUTCOMES)

"""Telling middleware of the end of an attempt: once, whatever comes between."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from sa_jobqueue import Middleware, add_middleware, remove_middleware
from sa_jobqueue.errors import HandlerTimeout, JobStopped
from sa_jobqueue.tasks.middleware import Attempt
from sa_jobqueue.worker.running.attempt_end import AttemptEnd, Telling
from sa_jobqueue.worker.running.call import Call
from sa_jobqueue.worker.running.notes import JobReports
from sa_jobqueue.worker.running.reopening import Sessions
from tests.unit.test_runs import make_executor, nothing, run, written

Told = list[tuple[str, str]]


class Enters(Middleware):
    """Says which attempts it was entered for, and what came of them."""

    def __init__(self) -> None:
        self.entered: list[Attempt] = []
        self.told: Told = []

    def around(self, attempt: Attempt) -> Any:
        self.entered.append(attempt)
        attempt.at_end(lambda outcome, error: self.told.append((outcome, type(error).__name__)))
        return nullcontext()


@pytest.fixture
def middleware() -> Iterator[Enters]:
    made = Enters()
    add_middleware(made)
    yield made
    remove_middleware(made)


def test_a_callback_that_comes_after_the_end_is_called_at_once() -> None:
    """With the outcome, and with an exception that holds nothing alive: one with a traceback would be a cycle."""
    told: Told = []
    raised: BaseException = ValueError("with a traceback")
    try:
        raise raised
    except ValueError:
        pass
    for error in (HandlerTimeout("made up"), raised):
        end = AttemptEnd(run(nothing).job)
        end.tell("failed", error)
        end.tell("completed", None)
        end.at_end(lambda outcome, error: told.append((outcome, type(error).__name__)))
    assert told == [("failed", "HandlerTimeout"), ("failed", "NoneType")]


def test_an_end_is_told_here_where_there_can_be_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Late is better than never."""
    told: Told = []

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    end, telling = AttemptEnd(run(nothing).job), Telling()
    end.at_end(lambda outcome, error: told.append((outcome, threading.current_thread().name)))
    telling.tell(end, "lost", None)
    assert told == [("lost", threading.current_thread().name)]
    telling.finish(0.0)


def test_an_end_that_begins_to_be_told_while_the_worker_leaves_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that has not started yet cannot be waited for, and the worker has more to do than to fail at that."""
    starts, goes_on, told = threading.Event(), threading.Event(), threading.Event()
    start = threading.Thread.start

    def slowly(thread: threading.Thread) -> None:
        if thread.name.endswith("end of an attempt"):
            starts.set()
            assert goes_on.wait(30)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", slowly)
    end, telling = AttemptEnd(run(nothing).job), Telling()
    end.at_end(lambda outcome, error: told.set())
    giving_up = threading.Thread(target=telling.tell, args=(end, "lost", None))
    giving_up.start()
    assert starts.wait(30)
    threading.Timer(0.05, goes_on.set).start()
    telling.finish(10)
    assert told.is_set()
    giving_up.join()


def test_a_worker_that_leaves_waits_for_an_end_that_is_told_where_it_came(
    middleware: Enters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the outcome it may have all that it waits for, while the callback is still to come."""
    reported, goes_on = threading.Event(), threading.Event()
    executor, _ = make_executor()
    report = executor._report

    def slowly(*ended: Any) -> None:
        report(*ended)
        reported.set()
        assert goes_on.wait(30)

    monkeypatch.setattr(executor, "_report", slowly)
    running = threading.Thread(target=executor.run, args=(run(nothing),))
    running.start()
    assert reported.wait(30)
    threading.Timer(0.05, goes_on.set).start()
    executor.telling.finish(10)
    assert middleware.told == [("completed", "NoneType")]
    running.join()


def test_a_run_that_is_given_up_before_its_handler_is_called_enters_nothing(middleware: Enters) -> None:
    """Its middleware would never hear of the end."""
    given_up = run(nothing)
    given_up.settle()
    with pytest.raises(JobStopped, match="given up before its handler was called"):
        Call(given_up, Sessions(), JobReports()).invoke()
    assert middleware.entered == []


def test_code_around_the_handler_that_fails_ends_the_attempt_for_its_middleware(
    middleware: Enters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an exception that another thread sets on this one, after the handler has returned."""
    executor, writer = make_executor()
    broken = run(nothing)
    monkeypatch.setattr(executor, "_conclude", lambda *args, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError) as caught:
        executor.run(broken)
    executor.broke(broken, caught.value)
    executor.broke(broken, caught.value)
    assert [change.event.value for change in written(writer)] == ["retry"]
    assert middleware.told == [("retried", "ZeroDivisionError")]

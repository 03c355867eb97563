"""Middleware around the handlers of a worker: what it sees, what it can do, and what it cannot break."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from sa_jobqueue import (
    AsyncJobContext,
    Attempt,
    Cancel,
    Discard,
    JobContext,
    JobStatus,
    Middleware,
    Registry,
    Retry,
    RetryPolicy,
    Snooze,
    add_middleware,
    enqueue,
    remove_middleware,
    task,
)
from sa_jobqueue.tasks.middleware import installed
from sa_jobqueue.tasks.tasks import AnyTask
from tests.support import surrounded
from tests.support.nightly import nightly
from tests.support.waiting import PATIENCE, wait_until
from tests.support.working import (
    add,
    add_one,
    assert_nothing_leaked,
    cancel,
    drain,
    finished,
    job_of,
    time_out,
    working,
)

NEVER = RetryPolicy(no_retry=(BaseException,))
LATER = RetryPolicy(base=3600, jitter=0)
KINDS = pytest.mark.parametrize("kind", ["sync", "async"])
ONE_KIND = pytest.mark.parametrize("kind", ["sync", *nightly("async")])

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")


@dataclass
class Recorder(Middleware):
    """Writes down what it sees."""

    name: str = "one"
    seen: list[str] = field(default_factory=list)
    ends: list[tuple[str, str | None]] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)

    @contextmanager
    def around(self, attempt: Attempt) -> Generator[None]:
        self.attempts.append(attempt)
        attempt.at_end(self.end)
        self.seen.append(f"{self.name} in")
        try:
            yield
        except BaseException as error:
            self.seen.append(f"{self.name} {type(error).__name__}")
            raise
        finally:
            self.seen.append(f"{self.name} out")

    def end(self, outcome: str, error: BaseException | None) -> None:
        self.ends.append((outcome, None if error is None else type(error).__name__))


@pytest.fixture(autouse=True)
def none_is_left() -> Iterator[None]:
    assert installed.all == ()
    yield
    for one in installed.all:
        remove_middleware(one)


def install(*middleware: Middleware) -> None:
    for one in middleware:
        add_middleware(one)


def recorder(name: str = "one") -> Recorder:
    made = Recorder(name)
    add_middleware(made)
    return made


def declare(registry: Registry, kind: str, work: Callable[[Any], object], **options: Any) -> AnyTask:
    """A task of this kind whose handler does `work` with its context."""

    def sync(ctx: JobContext) -> Any:
        return work(ctx)

    async def asynchronous(ctx: AsyncJobContext) -> Any:
        await asyncio.sleep(0)
        return work(ctx)

    return task(registry=registry, name="handler", **options)(sync if kind == "sync" else asynchronous)


class Around(Middleware):
    """With this function, which yields, as its `around`."""

    def __init__(self, function: Callable[[Attempt], Generator[None]]) -> None:
        self._function = contextmanager(function)

    def around(self, attempt: Attempt) -> Any:
        return self._function(attempt)


@KINDS
def test_each_middleware_is_entered_before_the_handler_and_left_after_it(
    engine: Engine, url: str, registry: Registry, kind: str
) -> None:
    """The first that was added is the outermost, on the thread of the handler; the ends are told from the inside out."""
    seen: list[str] = []
    threads: set[int] = set()

    def layer(name: str) -> Callable[[Attempt], Generator[None]]:
        def around(attempt: Attempt) -> Generator[None]:
            attempt.at_end(lambda outcome, error: seen.append(f"{name} {outcome} {error}"))
            seen.append(f"{name} in, {attempt.task} {attempt.attempt} of {attempt.max_attempts}")
            threads.add(threading.get_ident())
            yield
            threads.add(threading.get_ident())
            seen.append(f"{name} out")

        return around

    def work(ctx: Any) -> None:
        threads.add(threading.get_ident())
        seen.append("handler")

    install(Around(layer("outer")), Around(layer("inner")))
    id = add_one(engine, enqueue(declare(registry, kind, work)))
    drain(url, registry)
    assert seen == [
        "outer in, handler 1 of 10",
        "inner in, handler 1 of 10",
        "handler",
        "inner out",
        "outer out",
        "inner completed None",
        "outer completed None",
    ]
    assert len(threads) == 1
    assert job_of(engine, id).status == "completed"


@KINDS
@pytest.mark.parametrize("way", ["returned", *nightly("raised")])
@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (lambda: Retry(3600), "retried"),
        (lambda: Snooze(timedelta(hours=1)), "snoozed"),
        (lambda: Cancel("not wanted"), "cancelled"),
        (lambda: Discard("hopeless"), "failed"),
        (lambda: ValueError("broken"), "retried"),
    ],
)
def test_the_end_of_an_attempt_is_told_with_its_outcome(
    engine: Engine, url: str, registry: Registry, kind: str, way: str, outcome: Callable[[], Any], told: str
) -> None:
    """Once. An exception of the handler comes through the context manager, too."""
    seen = recorder()

    def work(ctx: Any) -> Any:
        made = outcome()
        if way == "raised" or isinstance(made, ValueError):
            raise made
        return made

    add_one(engine, enqueue(declare(registry, kind, work, retry=LATER)))
    drain(url, registry)
    name = type(outcome()).__name__
    raised = way == "raised" or name == "ValueError"
    assert seen.seen == (["one in", f"one {name}", "one out"] if raised else ["one in", "one out"])
    assert seen.ends == [(told, name if raised else None)]


@KINDS
def test_the_last_attempt_that_fails_has_failed(engine: Engine, url: str, registry: Registry, kind: str) -> None:
    """The one before it is retried."""
    seen = recorder()

    def work(ctx: Any) -> None:
        raise ValueError(ctx.attempt)

    handler = declare(registry, kind, work, retry=RetryPolicy(base=0.0, jitter=0)).options(max_attempts=2)
    id = add_one(engine, enqueue(handler))
    drain(url, registry)
    assert seen.ends == [("retried", "ValueError"), ("failed", "ValueError")]
    assert [attempt.attempt for attempt in seen.attempts] == [1, 2]
    trace = job_of(engine, id).errors[0]["traceback"]
    assert trace.splitlines()[1].endswith(f"in {'sync' if kind == 'sync' else 'asynchronous'}"), trace


@KINDS
def test_the_end_is_told_after_the_commit(engine: Engine, url: str, registry: Registry, kind: str) -> None:
    """A callback sees what the handler wrote, and its job completed."""
    found: list[tuple[str, str]] = []

    def around(attempt: Attempt) -> Generator[None]:
        def end(outcome: str, error: BaseException | None) -> None:
            with engine.connect() as connection:
                note = connection.scalar(text("SELECT said FROM note"))
            found.append((str(note), job_of(engine, attempt.job_id).status))

        attempt.at_end(end)
        yield

    install(Around(around))
    say = text("INSERT INTO note VALUES ('written')")

    @task(registry=registry, name="sync")
    def sync(ctx: JobContext) -> None:
        ctx.session.execute(say)

    @task(registry=registry, name="async")
    async def asynchronous(ctx: AsyncJobContext) -> None:
        await ctx.session.execute(say)

    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE note (said text)"))
    add_one(engine, enqueue(kind))
    drain(url, registry)
    assert found == [("written", JobStatus.COMPLETED)]


@ONE_KIND
@pytest.mark.parametrize("outcome", [Snooze(3600), Retry(3600), Cancel("no"), Discard("no"), ValueError("no")])
def test_a_middleware_may_raise_an_outcome_in_place_of_the_handlers_exception(
    engine: Engine, url: str, registry: Registry, kind: str, outcome: Exception
) -> None:
    """Also one that means to try again later, or not at all."""
    expected = {Snooze: "snoozed", Retry: "retried", Cancel: "cancelled", Discard: "failed", ValueError: "retried"}

    def around(attempt: Attempt) -> Generator[None]:
        try:
            yield
        except ZeroDivisionError:
            raise outcome from None

    outside = recorder()
    install(Around(around))
    add_one(engine, enqueue(declare(registry, kind, lambda ctx: 1 / 0, retry=LATER)))
    drain(url, registry)
    assert outside.ends == [(expected[type(outcome)], type(outcome).__name__)]


@KINDS
def test_a_middleware_may_keep_an_exception_to_itself(engine: Engine, url: str, registry: Registry, kind: str) -> None:
    """Then the job is completed, as if the handler had returned None."""

    def around(attempt: Attempt) -> Generator[None]:
        try:
            yield
        except ZeroDivisionError:
            return

    outside = recorder()
    install(Around(around))
    id = add_one(engine, enqueue(declare(registry, kind, lambda ctx: 1 / 0)))
    drain(url, registry)
    assert outside.ends == [("completed", None)]
    assert (job_of(engine, id).status, job_of(engine, id).errors) == ("completed", [])


class Refuses(Middleware):
    """Raises this when it is entered."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def around(self, attempt: Attempt) -> Any:
        raise self.error


@ONE_KIND
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no tenant"), "retried"),
        (Snooze(3600), "snoozed"),
        (SystemExit(1), "retried"),
        (GeneratorExit(), "retried"),
    ],
)
def test_a_middleware_that_raises_on_entry_keeps_the_handler_from_being_called(
    engine: Engine, url: str, registry: Registry, kind: str, error: BaseException, told: str
) -> None:
    """What it raises counts as the handler's own, and the worker goes on."""
    called: list[Any] = []
    outside = recorder()
    install(Refuses(error))
    ids = add(engine, *[enqueue(declare(registry, kind, called.append, retry=LATER)) for _ in range(3)])
    drain(url, registry)
    assert called == []
    assert outside.ends == 3 * [(told, type(error).__name__)]
    assert {job_of(engine, id).status for id in ids} == {JobStatus.QUEUED}


def never(attempt: Attempt) -> Generator[None]:
    yield from ()


def twice(attempt: Attempt) -> Generator[None]:
    yield
    yield


def goes_on(attempt: Attempt) -> Generator[None]:
    try:
        yield
    except BaseException:
        yield


class NoManager(Middleware):
    def around(self, attempt: Attempt) -> Any:
        yield


@ONE_KIND
@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (
            Around(never),
            "Around.around() must yield once, and end when an exception comes out of its yield: generator didn't yield",
        ),
        (Around(twice), "generator didn't stop"),
        (Around(goes_on), "generator didn't stop after throw()"),
        (NoManager(), "NoManager.around() returned <generator object NoManager.around"),
    ],
    ids=["never", "twice", "after an exception", "no manager"],
)
def test_a_middleware_that_is_written_wrongly_fails_the_attempt_and_says_why(
    engine: Engine, url: str, registry: Registry, kind: str, broken: Middleware, said: str
) -> None:
    """By its name, in the job's errors."""
    install(broken)

    def work(ctx: Any) -> None:
        if said.endswith("throw()"):
            raise ValueError("the handler's own")

    id = add_one(engine, enqueue(declare(registry, kind, work, retry=NEVER)))
    drain(url, registry)
    job = job_of(engine, id)
    assert job.status == "failed"
    assert job.errors[0]["type"] == "sa_jobqueue.errors.MiddlewareError"
    assert said in job.errors[0]["message"]


@KINDS
def test_a_callback_that_fails_is_logged_and_changes_nothing(
    engine: Engine, url: str, registry: Registry, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are called all the same."""
    outside = recorder()

    def around(attempt: Attempt) -> Generator[None]:
        def fail(outcome: str, error: BaseException | None) -> None:
            raise SystemExit(3)

        attempt.at_end(fail)
        yield

    install(Around(around))
    id = add_one(engine, enqueue(declare(registry, kind, lambda ctx: None)))
    drain(url, registry)
    assert job_of(engine, id).status == "completed"
    assert outside.ends == [("completed", None)]
    assert f"job {id}: a callback of its middleware failed at the end of the attempt: SystemExit(3)" in caplog.text


@KINDS
def test_a_context_variable_that_a_middleware_sets_is_the_handlers_alone(
    engine: Engine, url: str, registry: Registry, kind: str
) -> None:
    """It is reset by the same context, so the runner goes on with the next job."""
    found: list[str] = []

    def around(attempt: Attempt) -> Generator[None]:
        token = tenant.set(attempt.meta.get("tenant", "none"))
        try:
            yield
        finally:
            tenant.reset(token)

    install(Around(around))
    handler = declare(registry, kind, lambda ctx: found.append(tenant.get()))
    add(engine, *[enqueue(handler.options(meta={"tenant": name})) for name in ("acme", "zoo")], enqueue(handler))
    drain(url, registry, queues={"default": 1})
    assert found == ["acme", "zoo", "none"]
    assert tenant.get("unset") == "unset"


def test_a_job_whose_arguments_do_not_fit_is_no_attempt_that_middleware_sees(
    engine: Engine, url: str, registry: Registry
) -> None:
    """Its handler is not called either."""
    seen = recorder()

    @task(registry=registry, name="handler")
    def handler(number: int) -> None: ...

    id = add_one(engine, enqueue("handler", wrong=1))
    drain(url, registry)
    assert (job_of(engine, id).status, seen.seen, seen.ends) == ("failed", [], [])


@KINDS
def test_a_cancel_by_an_operator_is_told_as_such(engine: Engine, url: str, registry: Registry, kind: str) -> None:
    """With the exception that stopped the handler."""
    seen = recorder()

    @task(registry=registry, name="sync")
    def sync(ctx: JobContext) -> None:
        while True:
            ctx.raise_if_cancelled()

    @task(registry=registry, name="async")
    async def asynchronous(ctx: AsyncJobContext) -> None:
        await asyncio.Event().wait()

    with working(url, registry):
        id = add_one(engine, enqueue(kind))
        wait_until(lambda: seen.seen)
        cancel(engine, id)
        wait_until(lambda: seen.ends)
    error = {"sync": "JobStopped", "async": "CancelledError"}[kind]
    assert seen.seen == ["one in", f"one {error}", "one out"]
    assert seen.ends == [("cancelled", error)]


@KINDS
def test_a_middleware_cannot_keep_back_what_stops_a_handler(
    engine: Engine, url: str, registry: Registry, kind: str
) -> None:
    """The job would be completed though its handler was broken off."""
    begun = threading.Event()

    def around(attempt: Attempt) -> Generator[None]:
        try:
            yield
        except BaseException:
            return

    outside = recorder()
    install(Around(around))

    @task(registry=registry, name="sync")
    def sync(ctx: JobContext) -> None:
        begun.set()
        while True:
            ctx.raise_if_cancelled()

    @task(registry=registry, name="async")
    async def asynchronous(ctx: AsyncJobContext) -> None:
        begun.set()
        await asyncio.Event().wait()

    with working(url, registry):
        id = add_one(engine, enqueue(kind))
        assert begun.wait(PATIENCE)
        cancel(engine, id)
        wait_until(lambda: outside.ends)
        wait_until(partial(finished, engine, id))
    assert job_of(engine, id).status == "cancelled"


def test_an_async_handler_that_times_out_is_told_by_its_timeout(engine: Engine, url: str, registry: Registry) -> None:
    """Its context manager sees the cancel."""
    seen = recorder()

    @task(registry=registry, name="handler", timeout=0.1, retry=NEVER)
    async def handler() -> None:
        await asyncio.Event().wait()

    add_one(engine, enqueue("handler"))
    drain(url, registry)
    assert seen.seen == ["one in", "one CancelledError", "one out"]
    assert seen.ends == [("failed", "HandlerTimeout")]


def test_an_attempt_that_is_given_up_is_told_while_its_handler_still_runs(
    engine: Engine, url: str, registry: Registry
) -> None:
    """On a thread of its own, so that a callback which hangs does not keep leases from being renewed."""
    begun, release, told = threading.Event(), threading.Event(), threading.Event()
    threads: list[str] = []

    def around(attempt: Attempt) -> Generator[None]:
        def hang(outcome: str, error: BaseException | None) -> None:
            threads.append(threading.current_thread().name)
            told.set()
            release.wait(PATIENCE)

        attempt.at_end(hang)
        yield
        attempt.at_end(lambda outcome, error: threads.append(f"late: {outcome} {type(error).__name__}"))

    @task(registry=registry, name="handler", timeout=60, retry=NEVER)
    def handler() -> None:
        begun.set()
        release.wait(PATIENCE)

    @task(registry=registry, name="other")
    def other() -> None: ...

    seen = recorder()
    install(Around(around))
    with working(url, registry, lease=0.5) as worker:
        id = add_one(engine, enqueue("handler"))
        assert begun.wait(PATIENCE)
        time_out(worker)
        assert told.wait(PATIENCE)
        again = add_one(engine, enqueue("other"))
        wait_until(lambda: job_of(engine, again).status == "completed")
        release.set()
        wait_until(lambda: ("failed", "HandlerTimeout") in seen.ends)
        wait_until(lambda: any(said.startswith("late: failed HandlerTimeout") for said in threads))
        assert_nothing_leaked(engine, worker)
    assert job_of(engine, id).status == "failed"
    assert threads[0] == "sa-jobqueue end of an attempt"
    assert sorted(seen.ends) == [("completed", None), ("failed", "HandlerTimeout")]


@KINDS
def test_an_attempt_whose_worker_leaves_is_released(engine: Engine, url: str, registry: Registry, kind: str) -> None:
    """After the grace time, whether the handler ends or not."""
    seen = recorder()
    gate = threading.Event()

    @task(registry=registry, name="sync")
    def sync() -> None:
        gate.wait(PATIENCE)

    @task(registry=registry, name="async")
    async def asynchronous() -> None:
        await asyncio.Event().wait()

    with working(url, registry, grace=0.1):
        id = add_one(engine, enqueue(kind))
        wait_until(lambda: seen.seen)
    assert [outcome for outcome, _ in seen.ends] == ["released"]
    assert job_of(engine, id).rescues == 1
    gate.set()


@KINDS
def test_an_attempt_whose_job_was_taken_away_is_lost(engine: Engine, url: str, registry: Registry, kind: str) -> None:
    """What it writes is refused by the fence, with and without middleware."""
    seen = recorder()
    go = threading.Event()

    @task(registry=registry, name="sync")
    def sync(ctx: JobContext) -> None:
        ctx.session.execute(text("SELECT 1"))
        go.wait(PATIENCE)

    @task(registry=registry, name="async")
    async def asynchronous(ctx: AsyncJobContext) -> None:
        await ctx.session.execute(text("SELECT 1"))
        await asyncio.to_thread(go.wait, PATIENCE)

    with working(url, registry):
        id = add_one(engine, enqueue(kind))
        wait_until(lambda: seen.seen)
        with engine.begin() as connection:
            connection.execute(text("UPDATE sa_jobqueue.job SET claim_token = claim_token + 1"))
        go.set()
        wait_until(lambda: seen.ends)
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM sa_jobqueue.job WHERE id = :id"), {"id": id})
    assert [outcome for outcome, _ in seen.ends] == ["lost"]


def test_middleware_that_comes_while_a_worker_runs_holds_from_the_next_job_on(
    engine: Engine, url: str, registry: Registry
) -> None:
    """And no longer after it was removed."""
    handler = declare(registry, "sync", lambda ctx: None)
    seen = Recorder()
    with working(url, registry):
        for expected in ([], ["completed"], ["completed"]):
            wait_until(partial(finished, engine, add_one(engine, enqueue(handler))))
            wait_until(lambda expected=expected: [outcome for outcome, _ in seen.ends] == expected)  # type: ignore[misc]
            (remove_middleware if seen in installed.all else add_middleware)(seen)


def test_middleware_that_the_application_installs_is_around_handlers_in_child_processes(
    engine: Engine, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child imports the application's modules, and so their middleware; the commit is made there, and so the end is told there."""
    monkeypatch.setenv("SURROUNDED", str(tmp_path / "seen"))
    monkeypatch.setenv("WORKER", str(os.getpid()))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE note (said text)"))
    first = add_one(engine, enqueue(surrounded.writes.options(meta={"tenant": "acme"})))
    second = add_one(engine, enqueue(surrounded.fails))
    drain(url, surrounded.registry, queues={"default": 1})
    assert (tmp_path / "seen").read_text().splitlines() == [
        f"{first} begins, acme, in the worker: False",
        f"{first} returned",
        f"{first} completed NoneType",
        f"{second} begins, None, in the worker: False",
        f"{second} failed ValueError",
    ]
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT said FROM note")) == "written"
    assert job_of(engine, second).status == "failed"

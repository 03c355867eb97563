"""Injected values in a worker and in the testing kit: they are made, shared and closed, also after failures."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import (
    INJECTED,
    Inject,
    JobContext,
    JobStatus,
    Registry,
    RetryPolicy,
    Snooze,
    Workflow,
    enqueue,
    task,
)
from sa_jobqueue.errors import HookError
from sa_jobqueue.testing import drain as drain_here
from sa_jobqueue.worker.running.trial import try_job
from tests.support.waiting import wait_until, wait_until_async
from tests.support.working import add, add_one, cancel, drain, finished, job_of, time_out, worker_for, working

SOON = RetryPolicy(base=0.01, jitter=0)


class Client:
    """A client of a provider: it logs that it is opened and closed."""

    def __init__(self, log: list[str], name: str = "client") -> None:
        self.log, self.name, self.loop = log, name, None
        log.append(f"{name} opened")

    def close(self) -> None:
        self.log.append(f"{self.name} closed")


@pytest.fixture
def log() -> list[str]:
    """The events of a test, in order."""
    return []


def provider(log: list[str], name: str) -> Callable[[], AsyncIterator[Client]]:
    """An async provider, of a client that is closed in the task and the loop in which it was opened."""

    async def provide() -> AsyncIterator[Client]:
        client, task, loop = Client(log, name), asyncio.current_task(), asyncio.get_running_loop()
        try:
            yield client
        finally:
            await asyncio.sleep(0)
            client.close()
            if (asyncio.current_task(), asyncio.get_running_loop()) != (task, loop):
                log.append("in another task")

    provide.__qualname__ = name
    return provide


def takes(handler: Callable[..., Any], **providers: Inject) -> Callable[..., Any]:
    """A handler whose parameters of these names are injected."""
    handler.__annotations__ |= {name: Annotated[Any, inject] for name, inject in providers.items()}
    return handler


def test_a_shared_client_is_made_once_on_the_loop_of_the_handlers_and_closed_when_the_worker_stops(
    engine: Engine, url: str, registry: Registry, log: list[str]
) -> None:
    """The client that was made last is closed first."""
    get_one = provider(log, "one")

    async def get_two(one: Annotated[Any, Inject(get_one, scope="worker")]) -> AsyncIterator[Client]:
        client = Client(log, f"two over {one.name}")
        yield client
        client.close()

    loops, clients = set[Any](), set[Any]()

    async def send(number: int, one: Any = INJECTED, two: Any = INJECTED) -> None:
        loops.add(asyncio.get_running_loop())
        clients.update([one, two])

    get_two.__annotations__["one"] = Annotated[Any, Inject(get_one, scope="worker")]
    made = takes(send, one=Inject(get_one, scope="worker"), two=Inject(get_two, scope="worker"))
    sends = task(registry=registry, name="send")(made)
    ids = add(engine, *(enqueue(sends, number) for number in range(20)))
    drain(url, registry)

    assert {job_of(engine, id).status for id in ids} == {JobStatus.COMPLETED}
    assert (len(loops), len(clients)) == (1, 2)
    assert log == ["one opened", "two over one opened", "two over one closed", "one closed"]


def test_values_of_an_attempt_are_made_for_each_and_closed_in_reverse_order_when_the_handler_has_ended(
    engine: Engine, url: str, registry: Registry, log: list[str]
) -> None:
    """A handler of either kind; a value that two need is made once, and the exception of the handler comes through the provider."""

    def get_base(ctx: JobContext) -> Iterator[Client]:
        client = Client(log, f"base of {ctx.task}")
        try:
            yield client
        except BaseException as error:
            log.append(f"{type(error).__name__} in {client.name}")
            raise
        finally:
            client.close()

    @contextmanager
    def get_top(base: Annotated[Client, Inject(get_base)]) -> Iterator[str]:
        log.append("top opened")
        yield base.name
        log.append("top closed")

    get_top.__wrapped__.__annotations__["base"] = Annotated[Client, Inject(get_base)]  # type: ignore[attr-defined]

    def build(base: Any = INJECTED, top: Any = INJECTED) -> None:
        log.append(f"{top} and {base.name}")

    def fail(base: Any = INJECTED) -> None:
        raise Snooze(3_600)

    task(registry=registry, name="build")(takes(build, base=Inject(get_base), top=Inject(get_top)))
    task(registry=registry, name="fail")(takes(fail, base=Inject(get_base)))
    drain_one = lambda name: (add_one(engine, enqueue(name)), drain(url, registry))  # noqa: E731
    drain_one("build")
    drain_one("fail")

    assert log == [
        "base of build opened", "top opened", "base of build and base of build", "top closed", "base of build closed",
        "base of fail opened", "Snooze in base of fail", "base of fail closed",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["def", pytest.param("async", marks=pytest.mark.nightly)])
def test_an_error_of_closing_is_logged_and_changes_no_outcome(
    engine: Engine, url: str, registry: Registry, log: list[str], caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """Neither that of an attempt, nor that of a worker; the others are closed all the same."""

    def get(name: str) -> Callable[[], Iterator[str]]:
        def provide() -> Iterator[str]:
            yield name
            log.append(f"{name} closed")
            raise OSError(f"{name} is gone")

        provide.__qualname__ = name
        return provide

    def work(a: Any = INJECTED, b: Any = INJECTED, c: Any = INJECTED) -> None: ...
    async def async_work(a: Any = INJECTED, b: Any = INJECTED, c: Any = INJECTED) -> None: ...

    made = takes(
        work if kind == "def" else async_work,
        a=Inject(get("a")),
        b=Inject(get("b")),
        c=Inject(get("c"), scope="worker"),
    )
    id = add_one(engine, enqueue(task(registry=registry, name="work")(made)))
    drain(url, registry)

    assert job_of(engine, id).status == JobStatus.COMPLETED
    assert log == ["b closed", "a closed", "c closed"]
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert said == [
        f"job {id}: b could not close its value: OSError('b is gone')",
        f"job {id}: a could not close its value: OSError('a is gone')",
        "c could not close its value: OSError('c is gone')",
    ]


def test_a_shared_value_that_exits_when_it_is_closed_keeps_no_other_from_being_closed(
    engine: Engine, url: str, registry: Registry, log: list[str]
) -> None:
    """`sys.exit` in its cleanup is logged, as an error would be; the stop hooks are called."""

    def leaves() -> Iterator[int]:
        yield 1
        log.append("leaves")
        raise SystemExit

    def stays() -> Iterator[int]:
        yield 2
        log.append("closed")

    def work(a: Any = INJECTED, b: Any = INJECTED) -> None: ...

    registry.on_worker_stop(lambda: log.append("stopped"))
    made = takes(work, a=Inject(stays, scope="worker"), b=Inject(leaves, scope="worker"))
    add_one(engine, enqueue(task(registry=registry, name="work")(made)))
    drain(url, registry)
    assert log == ["leaves", "closed", "stopped"]


@pytest.mark.parametrize("scope", ["attempt", "worker"])
def test_a_provider_that_fails_fails_the_attempt_and_is_called_again_for_the_next(
    engine: Engine, url: str, registry: Registry, log: list[str], scope: Any
) -> None:
    """By the retry policy of the task, as an error of its handler."""

    async def get_client() -> Client:
        if not log:
            log.append("failed")
            raise ConnectionError("no such host")
        return Client(log)

    async def send(client: Any = INJECTED) -> None:
        client.close()

    sends = task(registry=registry, name="send", retry=SOON)(takes(send, client=Inject(get_client, scope=scope)))
    id = add_one(engine, enqueue(sends))
    with working(url, registry):
        wait_until(lambda: finished(engine, id))

    job = job_of(engine, id)
    assert (job.status, job.attempt, job.errors[0]["type"]) == (JobStatus.COMPLETED, 2, "ConnectionError")
    assert log == ["failed", "client opened", "client closed"]


@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_cancels_and_timeouts_reach_the_cleanup_of_a_provider(
    engine: Engine, url: str, registry: Registry, log: list[str], how: str
) -> None:
    """The provider closes its client, and may await for that; a shared client lives on."""
    attempt, worker = provider(log, "attempt"), provider(log, "worker")

    async def wait(a: Any = INJECTED, b: Any = INJECTED) -> None:
        log.append("waits")
        await asyncio.Event().wait()

    made = takes(wait, a=Inject(attempt), b=Inject(worker, scope="worker"))
    waits = task(registry=registry, name="wait", max_attempts=1, timeout=600)(made)
    id = add_one(engine, enqueue(waits))
    with working(url, registry) as running:
        wait_until(lambda: "waits" in log)
        if how == "cancel":
            cancel(engine, id)
        else:
            time_out(running)
        wait_until(lambda: finished(engine, id))
        assert log == ["attempt opened", "worker opened", "waits", "attempt closed"]
    assert job_of(engine, id).status == (JobStatus.CANCELLED if how == "cancel" else JobStatus.FAILED)
    assert log[-1] == "worker closed"


def test_def_handlers_on_many_threads_share_one_value_with_async_handlers(
    engine: Engine, url: str, registry: Registry, log: list[str]
) -> None:
    """The first that needs it has it made, once for the worker."""
    clients, all_run = set[Client](), threading.Barrier(8)

    def get_client() -> Iterator[Client]:
        client = Client(log)
        yield client
        client.close()

    def send(client: Any = INJECTED) -> None:
        all_run.wait(30)
        clients.add(client)

    async def send_async(client: Any = INJECTED) -> None:
        clients.add(client)

    inject = Inject(get_client, scope="worker")
    sync = task(registry=registry, name="send")(takes(send, client=inject))
    asynchronous = task(registry=registry, name="send_async")(takes(send_async, client=inject))
    add(engine, *(enqueue(sync) for _ in range(8)), *(enqueue(asynchronous) for _ in range(8)))
    drain(url, registry, queues={"default": 20})

    assert (len(clients), log) == (1, ["client opened", "client closed"])


def test_a_member_of_a_workflow_has_results_and_injected_values(engine: Engine, url: str, registry: Registry) -> None:
    """The results come first."""
    found = list[Any]()

    @task(registry=registry, name="two", record=True)
    def two() -> int:
        return 2

    def add_up(parts: list[int], unit: str, client: Any = INJECTED) -> None:
        found.append((parts, unit, client))

    adds = task(registry=registry, name="add")(takes(add_up, client=Inject(lambda: "client")))
    workflow = Workflow()
    workflow.gather([workflow.add(two), workflow.add(two)], adds, "EUR")
    with Session(engine) as session:
        session.add(workflow)
        session.commit()
    drain(url, registry)

    assert found == [([2, 2], "EUR", "client")]


# ---- hooks


def test_hooks_of_either_kind_are_called_before_the_first_job_and_after_the_last(
    engine: Engine, url: str, registry: Registry, log: list[str]
) -> None:
    """Stop hooks in the reverse order, after the shared values are closed. What a stop hook raises is logged."""

    @registry.on_worker_start
    def first() -> None:
        log.append("first")

    @registry.on_worker_start
    async def second() -> None:
        log.append("second")

    @registry.on_worker_stop
    async def before_last() -> None:
        log.append("before last")

    @registry.on_worker_stop
    def fails() -> None:
        raise OSError("gone")

    async def send(client: Any = INJECTED) -> None:
        log.append("runs")

    add_one(
        engine,
        enqueue(
            task(registry=registry, name="send")(takes(send, client=Inject(provider(log, "client"), scope="worker")))
        ),
    )
    drain(url, registry)

    assert log == ["first", "second", "client opened", "runs", "client closed", "before last"]


def test_a_start_hook_that_fails_ends_the_worker_before_its_first_job(
    engine: Engine, url: str, registry: Registry, log: list[str]
) -> None:
    """With the name of the hook; no other hook is called."""

    @registry.on_worker_start
    def warm_up() -> None:
        raise OSError("no model")

    registry.on_worker_start(lambda: log.append("next"))
    registry.on_worker_stop(lambda: log.append("stop"))
    id = add_one(engine, enqueue(task(registry=registry, name="send")(lambda: None)))
    with pytest.raises(HookError, match=r"on_worker_start: .*warm_up failed: OSError: no model"):
        drain(url, registry)

    assert (job_of(engine, id).status, job_of(engine, id).claims, log) == (JobStatus.QUEUED, 0, [])


def test_a_worker_can_be_stopped_while_a_start_hook_hangs(
    engine: Engine, url: str, registry: Registry, log: list[str]
) -> None:
    """It has claimed nothing, and calls no stop hook."""

    @registry.on_worker_start
    async def hang() -> None:
        log.append("hangs")
        await asyncio.Event().wait()

    registry.on_worker_stop(lambda: log.append("stop"))
    id = add_one(engine, enqueue(task(registry=registry, name="send")(lambda: None)))

    async def main() -> None:
        worker = worker_for(url, registry)
        serving = asyncio.create_task(worker.serve())
        await wait_until_async(lambda: log == ["hangs"])
        worker.stop()
        await serving

    asyncio.run(main())
    assert (job_of(engine, id).status, log) == (JobStatus.QUEUED, ["hangs"])


# ---- the testing kit


def test_a_drain_of_the_testing_kit_is_a_worker_of_its_own(engine: Engine, registry: Registry, log: list[str]) -> None:
    """Shared values live for one drain, hooks are called, and `override` puts fakes in the place of providers that others need, too."""
    registry.on_worker_start(lambda: log.append("start"))
    registry.on_worker_stop(lambda: log.append("stop"))

    def get_client() -> Client:
        return Client(log, "real")

    def get_api(client: Annotated[Client, Inject(get_client, scope="worker")]) -> Iterator[str]:
        yield f"api of {client.name}"
        log.append("api closed")

    get_api.__annotations__["client"] = Annotated[Client, Inject(get_client, scope="worker")]

    def send(api: Any = INJECTED) -> None:
        log.append(api)

    sends = task(registry=registry, name="send")(takes(send, api=Inject(get_api, scope="worker")))
    with Session(engine) as session:
        session.add_all([enqueue(sends), enqueue(sends)])
        with registry.override(get_client, lambda: Client(log, "fake")):
            assert len(drain_here(session, registry=registry)) == 2
        assert log == ["start", "fake opened", "api of fake", "api of fake", "api closed", "stop"]
        log.clear()
        session.add(enqueue(sends))
        drain_here(session, registry=registry)
        assert log == ["start", "real opened", "api of real", "api closed", "stop"]
        session.rollback()


def test_async_handlers_in_the_testing_kit_share_values_for_a_drain_of_an_async_session(
    engine: Engine, async_engine: AsyncEngine, registry: Registry, log: list[str]
) -> None:
    """And with a Session, under which each of them has an event loop of its own, for its job."""

    async def send(client: Any = INJECTED) -> None:
        log.append("sent")

    sends = task(registry=registry, name="send")(takes(send, client=Inject(provider(log, "client"), scope="worker")))

    async def main() -> None:
        async with AsyncSession(async_engine) as session:
            session.add_all([enqueue(sends), enqueue(sends)])
            await drain_here(session, registry=registry)
            await session.rollback()
        await async_engine.dispose()

    asyncio.run(main())
    assert log == ["client opened", "sent", "sent", "client closed"]
    log.clear()
    with Session(engine) as session:
        session.add_all([enqueue(sends), enqueue(sends)])
        drain_here(session, registry=registry)
        session.rollback()
    assert log == ["client opened", "sent", "client closed"] * 2


@pytest.mark.parametrize("asynchronous", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_try_makes_shared_values_of_its_own(
    engine: Engine, async_engine: AsyncEngine, registry: Registry, log: list[str], asynchronous: bool
) -> None:
    """They are closed when it ends: the dashboard's process is no worker. It calls no hook."""
    registry.on_worker_start(lambda: log.append("start"))

    def get_client() -> Iterator[Client]:
        client = Client(log)
        yield client
        client.close()

    def send(client: Any = INJECTED) -> None:
        log.append("sent")

    async def send_async(client: Any = INJECTED, other: Any = INJECTED) -> None:
        log.append("sent")

    sync = task(registry=registry, name="send")(takes(send, client=Inject(get_client, scope="worker")))
    inject = {"client": Inject(get_client, scope="worker"), "other": Inject(provider(log, "other"), scope="worker")}
    asynchron = task(registry=registry, name="send_async")(takes(send_async, **inject))
    on = async_engine if asynchronous else engine
    for tried in (sync, asynchron):
        assert try_job(on, add_one(engine, enqueue(tried)), tried, registry=registry).outcome == "completed"

    assert log == [
        "client opened", "sent", "client closed",
        "client opened", "other opened", "sent", "other closed", "client closed",
    ]  # fmt: skip

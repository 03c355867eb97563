"""Injected parameters: wrong declarations are refused by name. Shared values are made once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Annotated, Any

import pytest

from sa_jobqueue import INJECTED, Inject, JobContext, Registry, enqueue, task
from sa_jobqueue.arguments.injected import Provided
from sa_jobqueue.errors import PayloadError, TaskError
from sa_jobqueue.worker.running.life import Life, at_once, run_now
from tests.support.waiting import wait_until

registry = Registry()


class Client:
    """What is injected."""


class Depends:
    """As FastAPI's."""

    def __init__(self, provider: object) -> None: ...


def get_client() -> Client:
    return Client()


def get_shared() -> Iterator[Client]:
    yield Client()


async def get_async() -> AsyncIterator[Client]:
    yield Client()


def needs_async(client: Annotated[Client, Inject(get_async)]) -> Client:
    return client


def outlives(client: Annotated[Client, Inject(get_client)]) -> Client:
    return client


def takes_context(ctx: JobContext) -> str:
    return ctx.queue


def takes_order(order: int) -> int:
    return order


def third(other: Annotated[Client, Inject(fourth)]) -> Client:
    return other


def fourth(other: Annotated[Client, Inject(third)]) -> Client:
    return other


def in_circle(client: Annotated[Client, Inject(third)]) -> None: ...
def awaits_in_vain(client: Annotated[Client, Inject(get_async)]) -> None: ...
def awaits_below(client: Annotated[Client, Inject(needs_async)]) -> None: ...
def shares_what_is_closed(client: Annotated[Client, Inject(outlives, scope="worker")]) -> None: ...
def shares_a_context(name: Annotated[str, Inject(takes_context, scope="worker")]) -> None: ...
async def has_another_context(name: Annotated[str, Inject(takes_context)]) -> None: ...
def gives_no_argument(order: Annotated[int, Inject(takes_order)]) -> None: ...
def forgets_the_call(client: Annotated[Client, Inject]) -> None: ...
def uses_fastapi(client: Annotated[Client, Depends(get_client)]) -> None: ...
def by_position(client: Annotated[Client, Inject(get_client)], /) -> None: ...
def before_more(client: Annotated[Client, Inject(get_client)], *orders: int) -> None: ...


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (in_circle, "third -> fourth -> third"),
        (awaits_in_vain, "its provider get_async is async, but a `def` handler cannot await"),
        (awaits_below, "its provider get_async is async"),
        (shares_what_is_closed, 'outlives has the scope "worker", but needs get_client, which has the scope "attempt"'),
        (shares_a_context, "its provider takes_context takes the context of a job"),
        (has_another_context, "takes_context takes JobContext, but an `async def` handler has AsyncJobContext"),
        (gives_no_argument, "its provider takes_order needs 'order'"),
        (by_position, "passes 'client' by name"),
    ],
)
def test_what_cannot_work_is_refused_at_the_declaration(handler: Callable[..., Any], said: str) -> None:
    """With the names of the task, the parameter and the provider."""
    with pytest.raises(TaskError, match=f"task 'wrong': .*{said}"):
        task(registry=Registry(), name="wrong")(handler)


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (before_more, "passes 'client' by name: write the parameter after"),
        (uses_fastapi, r"'client' has .*Depends.*: write Inject\(provider\)"),
        (forgets_the_call, r"'client' has <class .*Inject'>.*: write Inject\(provider\)"),
        (lambda client=INJECTED: None, r"'client' has the default INJECTED, but its annotation has no Inject"),
    ],
)
def test_the_rest_is_refused_when_the_task_is_resolved(handler: Callable[..., Any], said: str) -> None:
    """At the first job, or when a worker starts."""
    with pytest.raises(TaskError, match=said):
        task(registry=Registry(), name="wrong")(handler).resolve()


def test_inject_itself_refuses_what_is_no_provider_and_unknown_scopes() -> None:
    """Where it is written."""
    wrong: Any = "request"
    with pytest.raises(TaskError, match=r'Inject\(get_client\): scope must be "attempt" or "worker", not \'request\''):
        Inject(get_client, scope=wrong)
    wrong = Client()
    with pytest.raises(TaskError, match="takes a provider, a function that returns the value, not <"):
        Inject(wrong)


def test_an_injected_parameter_is_no_argument() -> None:
    """It is neither needed nor accepted, by keyword, by position, or among any keywords; and no schedule or form has it."""

    @task(registry=registry, name="sends")
    def sends(order: int, client: Annotated[Client, Inject(get_client)] = INJECTED, *, note: str = "") -> None: ...

    @task(registry=registry, name="sends anything")
    def sends_anything(*, client: Annotated[Client, Inject(get_client)] = INJECTED, **rest: int) -> None: ...

    assert enqueue(sends, 7).args == {"order": 7}
    assert (sends.parameters.names, dict(sends.defaults)) == (("order", "note"), {"note": ""})
    with pytest.raises(PayloadError, match="argument client is injected: the worker provides the value"):
        enqueue(sends, 7, client=Client())
    with pytest.raises(PayloadError, match="takes 1 positional argument, 2 were given"):
        enqueue(sends, 7, Client())
    with pytest.raises(PayloadError, match="argument client is injected: the worker provides the value"):
        sends.decode('{"order": 7, "client": 8}')
    for refused in (partial(enqueue, sends_anything, client=8), partial(sends_anything.decode, '{"client": 8}')):
        with pytest.raises(PayloadError, match="argument client is injected"):
            refused()


def test_a_provider_may_be_declared_further_down() -> None:
    """Its name is looked up at the first job."""

    @task(registry=registry, name="early")
    def early(client: Annotated[Client, Inject(get_later)]) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(TaskError, match="name 'get_later' is not defined"):
        early.resolve()


def test_a_direct_call_without_the_value_says_what_to_do() -> None:
    """As a unit test of a handler makes it."""
    assert repr(INJECTED) == "INJECTED"
    with pytest.raises(
        AttributeError, match=r"attribute \.post\): in a direct call of the handler, pass the value by name"
    ):
        INJECTED.post(7)


def test_hooks_and_overrides_refuse_what_they_cannot_call() -> None:
    """Where they are written."""
    wrong: Any = Client()
    with pytest.raises(TaskError, match=r"a function that returns the value, not .*: lambda: fake"):
        registry.override(get_client, wrong).__enter__()
    with pytest.raises(TaskError, match="on_worker_start takes a function without parameters"):
        registry.on_worker_start(takes_order)  # type: ignore[type-var]
    with pytest.raises(TaskError, match="on_worker_stop: get_shared is a generator"):
        registry.on_worker_stop(get_shared)


# ---- values of the scope "worker"


def shared(provider: Callable[..., Any], is_async: bool = False) -> Provided:
    """The value of this provider."""

    def handler(value: Any) -> None: ...

    async def async_handler(value: Any) -> None: ...

    made: Any = async_handler if is_async else handler
    made.__annotations__["value"] = Annotated[Any, Inject(provider, scope="worker")]
    injected = task(registry=Registry(), name="takes")(made).injected
    assert injected is not None
    return injected.values[0][1]


def of_thread(life: Life, value: Provided) -> Any:
    """The value, for a `def` handler on this thread."""
    return run_now(life.shared(value, is_async=False))


def test_fifty_threads_that_ask_at_once_get_one_value() -> None:
    """Made by the first of them, while the others wait."""
    life, made, all_ask = Life(), list[Client](), threading.Barrier(50)

    def make() -> Client:
        made.append(Client())
        return made[-1]

    def ask() -> Any:
        all_ask.wait()
        return of_thread(life, value)

    value = shared(make)
    with ThreadPoolExecutor(50) as threads:
        asked = [threads.submit(ask) for _ in range(50)]
        assert {id(one.result()) for one in asked} == {id(made[0])}
    assert len(made) == 1


def test_fifty_tasks_that_ask_at_once_get_one_value_even_if_the_first_is_cancelled() -> None:
    """The making is a task of its own, which sees none of the context variables of the job that asks first."""
    tenant = ContextVar("tenant", default="none")
    seen = list[str]()

    async def main() -> None:
        life, go = Life(), asyncio.Event()

        async def make() -> AsyncIterator[Client]:
            seen.append(tenant.get())
            await go.wait()
            yield Client()
            seen.append("closed")

        async def ask() -> Any:
            tenant.set("acme")
            return await life.shared(value, is_async=True)

        value = shared(make, is_async=True)
        asking = [asyncio.create_task(ask()) for _ in range(50)]
        while not seen:
            await asyncio.sleep(0)
        asking[0].cancel()
        go.set()
        first, *others = await asyncio.gather(*asking, return_exceptions=True)
        assert isinstance(first, asyncio.CancelledError)
        assert len({id(one) for one in others}) == 1
        await life.end(at_once)

    asyncio.run(main())
    assert seen == ["none", "closed"]


def test_a_value_that_could_not_be_made_is_made_for_the_next_job() -> None:
    """The failure is not kept."""
    life, tries = Life(), list[int]()

    def make() -> Client:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no such host")
        return Client()

    value = shared(make)
    with pytest.raises(OSError, match="no such host"):
        of_thread(life, value)
    assert of_thread(life, value) is of_thread(life, value)
    assert len(tries) == 2


def test_a_thread_that_waits_makes_the_value_itself_if_the_maker_is_stopped() -> None:
    """The stop of a job is no failure of another job."""
    life, tries, waits = Life(), list[int](), threading.Event()

    def make() -> Client:
        tries.append(1)
        if len(tries) == 1:
            waits.wait(30)
            raise KeyboardInterrupt
        return Client()

    value = shared(make)
    with ThreadPoolExecutor(2) as threads:
        stopped = threads.submit(of_thread, life, value)
        wait_until(lambda: tries)
        waiting = threads.submit(of_thread, life, value)
        waits.set()
        assert isinstance(stopped.exception(), KeyboardInterrupt)
        assert isinstance(waiting.result(), Client)


def test_what_is_made_while_the_worker_leaves_is_closed_again() -> None:
    """No other code would close it."""
    life, closed = Life(), list[str]()

    @contextmanager
    def make() -> Iterator[Client]:
        asyncio.run(life.end(at_once))
        yield Client()
        closed.append("closed")

    with pytest.raises(BaseException, match=r"the worker leaves, and calls .*make no more"):
        of_thread(life, shared(make))
    assert closed == ["closed"]

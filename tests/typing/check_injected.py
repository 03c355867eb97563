"""What type checkers make of injected parameters: read by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, assert_type

from sa_jobqueue import INJECTED, AsyncJobContext, Inject, Job, JobContext, Registry, enqueue, task

registry = Registry()


class Client:
    async def post(self, order: int) -> None: ...


async def get_client() -> AsyncIterator[Client]:
    yield Client()


def get_name(ctx: JobContext) -> Iterator[str]:
    yield ctx.task


SharedClient = Annotated[Client, Inject(get_client, scope="worker")]


@task(registry=registry)
async def send(order: int, client: Annotated[Client, Inject(get_client)] = INJECTED) -> None:
    assert_type(client, Client)
    await client.post(order)


@task(registry=registry)
async def send_shared(ctx: AsyncJobContext, order: int, *, client: SharedClient = INJECTED) -> None:
    assert_type(client, Client)


@task(registry=registry)
def plain(order: int, name: Annotated[str, Inject(get_name)] = INJECTED) -> None: ...


def enqueue_takes_no_injected_argument() -> None:
    assert_type(enqueue(send, 7), Job)
    assert_type(enqueue(send_shared, order=7), Job)
    assert_type(enqueue(plain, 7), Job)

    enqueue(send, "7")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    enqueue(send)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    Inject(get_client, scope="request")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Inject(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def a_direct_call_passes_it() -> None:
    await send(7, client=Client())
    await send(7, Client())

    await send(7, client="no client")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@registry.on_worker_start
async def warm_up() -> None: ...


@registry.on_worker_stop
def say_goodbye() -> None: ...


def hooks_keep_their_types() -> None:
    say_goodbye()
    with registry.override(get_client, Client) as nothing:
        assert_type(nothing, None)

    @registry.on_worker_start  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUntypedFunctionDecorator]
    def takes_something(order: int) -> None: ...

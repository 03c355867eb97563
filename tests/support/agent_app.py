"""Jobs with agents, for `test_pydantic_ai`, which imports this when a test needs it: Pydantic AI takes 0.7 s (November 2026)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent, CallDeferred, FunctionToolset, RunContext
from pydantic_ai.agent import AgentRunResult
from pydantic_ai.capabilities import Instrumentation, WrapRunHandler
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.models.test import TestModel

from sa_jobqueue import AsyncJobContext, JobContext, Registry, RetryPolicy, task
from sa_jobqueue.pydantic_ai import SaJobqueueDurability
from tests.support.killed import die, note
from tests.support.waiting import wait_until_async

AGAIN = RetryPolicy(base=0, jitter=0)

registry = Registry()
#: The requests and tool calls of this process.
done: list[str] = []

Calls = list[tuple[str, dict[str, Any], str]]


def scripted(*responses: Calls | str) -> FunctionModel:
    """A model that gives these responses in turn: tool calls (tool, arguments, id), or a text."""

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        number = sum(isinstance(message, ModelResponse) for message in messages)
        done.append(f"request {number + 1}")
        given = responses[number]
        if isinstance(given, str):
            return ModelResponse(parts=[TextPart(given)])
        return ModelResponse(parts=[ToolCallPart(tool, args, tool_call_id=call) for tool, args, call in given])

    return FunctionModel(respond)


def returned(messages: list[ModelMessage]) -> list[Any]:
    """The results that the tools have returned to the model."""
    return [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


# ---- an approval

clerk = Agent(
    scripted([("look_up", {"order": 1}, "call_1"), ("look_up", {"order": 2}, "call_2")], [("refund", {"order": 2}, "call_3")], "refunded"),
    name="clerk",
    deps_type=AsyncJobContext,
)  # fmt: skip


@clerk.tool
async def look_up(run: RunContext[AsyncJobContext], order: int) -> dict[str, int]:
    if order == 1:  # the second order's call ends first
        await wait_until_async(lambda: any("call_2" in call for call in done))
    done.append(run.deps.idempotency_key)
    return {"paid": order * 10}


@clerk.tool_plain(requires_approval=True)
def refund(order: int) -> str:
    done.append(f"refund {order}")
    return "done"


@task(registry=registry, record=True)
async def answer(ctx: AsyncJobContext) -> list[Any]:
    result = await clerk.run("Refund?", deps=ctx, capabilities=[SaJobqueueDurability(ctx)])
    return [result.output, result.run_id, *returned(result.all_messages())]


# ---- a `def` handler

seer = Agent(scripted([("look", {}, "call_1")], "found"), name="seer", deps_type=JobContext)


@seer.tool(metadata={"sa_jobqueue": False})
def look(run: RunContext[JobContext]) -> str:
    return run.deps.step("look", done.append, "look") or "seen"


@task(registry=registry, retry=AGAIN, record=True)
def see(ctx: JobContext) -> list[str]:
    with asyncio.Runner() as runner:  # closes the event loop, which run_sync leaves to its thread
        asyncio.set_event_loop(runner.get_loop())
        found = [seer.run_sync(q, deps=ctx, capabilities=[SaJobqueueDurability(ctx)]).output for q in "ab"]
    if ctx.attempt == 1:
        raise RuntimeError("on purpose")
    return found


# ---- a tool that waits while another runs

watcher = Agent(
    scripted([("watch", {}, "call_1"), ("wait", {}, "call_2")], "over"), name="watcher", deps_type=JobContext
)
is_watching, has_unwound = threading.Event(), threading.Event()


class ObservedDurability(SaJobqueueDurability[JobContext]):
    """Tells when the run has raised."""

    async def wrap_run(self, ctx: RunContext[JobContext], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        async def observed() -> AgentRunResult[Any]:
            try:
                return await handler()
            finally:
                has_unwound.set()

        return await super().wrap_run(ctx, handler=observed)


@watcher.tool_plain
async def watch() -> str:
    is_watching.set()
    await wait_until_async(has_unwound.is_set)
    done.append("watched")
    return "watched"


@watcher.tool(metadata={"sa_jobqueue": False})
def wait(run: RunContext[JobContext]) -> str:
    is_watching.wait()
    return str(run.deps.wait_signal("over", str))


@task(registry=registry, record=True)
def watches(ctx: JobContext) -> list[Any]:
    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        return returned(watcher.run_sync("?", deps=ctx, capabilities=[ObservedDurability(ctx)]).all_messages())


# ---- answers

asker = Agent(
    scripted(
        [("order", {"n": 1}, "no"), ("order", {"n": 2}, "other"), ("ask", {}, "outside")],
        [("order", {"n": 3}, "late")],
        "bye",
    ),
    name="asker",
)


@asker.tool_plain
def ask() -> str:
    raise CallDeferred


@asker.tool_plain(requires_approval=True)
def order(n: int) -> str:
    return f"ordered {n}"


@task(registry=registry, record=True)
async def asks(ctx: AsyncJobContext) -> list[Any]:
    result = await asker.run("?", capabilities=[SaJobqueueDurability(ctx, answer_timeout=1)])
    return returned(result.all_messages())


# ---- a toolset that is refused; an agent that a tool runs, and a model that the run brings itself

inner = Agent("test", name="inner")
outer = Agent("test", name="outer", deps_type=AsyncJobContext)


@outer.tool
async def delegate(run: RunContext[AsyncJobContext]) -> str:
    return (await inner.run("?", capabilities=[SaJobqueueDurability(run.deps)])).output


@task(registry=registry, retry=AGAIN, record=True)
async def delegates(ctx: AsyncJobContext) -> list[str]:
    with pytest.raises(UserError) as caught:
        await outer.run(
            "?", deps=ctx, capabilities=[SaJobqueueDurability(ctx)], toolsets=[FunctionToolset([len], id="own")]
        )
    runs = [outer.run(q, deps=ctx, model=TestModel(), capabilities=[SaJobqueueDurability(ctx, name="o")]) for q in "ab"]
    found = [result.output for result in await asyncio.gather(*runs)]
    await inner.run("?", capabilities=[SaJobqueueDurability(ctx)])
    if ctx.attempt == 1:
        both = Agent("test", name="both", capabilities=[SaJobqueueDurability(ctx)])
        _, second = await asyncio.gather(both.run("a"), both.run("b"), return_exceptions=True)
        done.extend(map(str, (caught.value, second)))
        raise RuntimeError("on purpose")
    return found


# ---- traces

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
traced = Agent(
    "test", name="traced", capabilities=[Instrumentation(settings=InstrumentationSettings(tracer_provider=provider))]
)


@task(registry=registry, retry=AGAIN)
async def trace(ctx: AsyncJobContext) -> None:
    await traced.run("?", capabilities=[SaJobqueueDurability(ctx)])
    if ctx.attempt == 1:
        raise RuntimeError("on purpose")


# ---- a worker that is killed; each call leaves a line outside of the database

#: Before the second tool call, and after the approval of the third.
POINTS = ("before request 2", "before request 4")


def selling(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    number = 1 + sum(isinstance(message, ModelResponse) for message in messages)
    if (point := f"before request {number}") in POINTS:
        die(point)
    note(f"request {number}")
    if number == 4:
        return ModelResponse(parts=[TextPart("sold")])
    return ModelResponse(parts=[ToolCallPart(("find", "pack", "sell")[number - 1], {}, tool_call_id=f"call_{number}")])


seller = Agent(FunctionModel(selling), name="seller")


@seller.tool_plain
def find() -> str:
    return note("find")


@seller.tool_plain
async def pack() -> str:
    return note("pack")


@seller.tool_plain(requires_approval=True)
def sell() -> str:
    return note("sell")


@task(registry=registry, record=True)
async def sells(ctx: AsyncJobContext) -> str:
    """Every point kills its worker once."""
    return (await seller.run("Sell it.", capabilities=[SaJobqueueDurability(ctx)])).output

"""Pydantic AI: agents in jobs. The model requests and tool calls of an agent are steps of the job.

    from pydantic_ai import Agent
    from sa_jobqueue.pydantic_ai import SaJobqueueDurability

    clerk = Agent("anthropic:claude-sonnet-4-5", name="clerk")

    @task(max_attempts=5)
    async def answer(ctx: AsyncJobContext, question: str) -> None:
        result = await clerk.run(question, capabilities=[SaJobqueueDurability(ctx)])

The extra `pydantic-ai` installs Pydantic AI.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal
from weakref import WeakKeyDictionary

try:
    from pydantic_ai.durable_exec import (
        JSON_CODEC,
        BaseDurabilityCapability,
        CallableOperationBackend,
        DurabilityEngineSpec,
        DurableOperationId,
        JournalOperationNamer,
        RoleBasedOperationConfig,
        conversation_id_from_run_id,
        record_durable_unit,
        replay_scope,
    )
except ImportError as error:
    raise ImportError("this needs pydantic-ai-slim, 2.68 or newer: pip install 'sa_jobqueue[pydantic-ai]'") from error

from pydantic_ai import DeferredToolRequests, DeferredToolResults, RunContext, ToolDenied
from pydantic_ai.agent import AgentRunResult, EventStreamHandler
from pydantic_ai.capabilities import WrapRunHandler
from pydantic_ai.exceptions import ToolFailed, UserError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.tools import AgentDepsT, DeferredToolApprovalResult

from .arguments.context import AsyncJobContext, JobContext, StepCall, StepRuntime, current_step
from .errors import JobSuspended, SignalTimeout
from .models.steps import MAX_NAME
from .rules.retry import Duration, RetryPolicy

__all__ = ["SaJobqueueDurability"]

_KEY = "sa_jobqueue"
_APPROVAL: Any = bool | DeferredToolApprovalResult
#: How many runs of each agent a run of a job has begun, by the agent's name.
_runs: WeakKeyDictionary[StepRuntime, Counter[str]] = WeakKeyDictionary()


class SaJobqueueDurability(BaseDurabilityCapability[AgentDepsT]):
    """Makes each model request and each tool call of an agent's run a step of the job. Later runs of the job do not repeat recorded steps.

    Give a new object to each run: `agent.run(..., capabilities=[SaJobqueueDurability(ctx)])`, and `agent.run_sync(...)` in a `def` handler. A
    tool that needs approval, or whose result comes from outside, waits for the signal "AGENT:JOB:TOOL CALL ID", with the call as its question.

    `name`: the first part of the names of the steps; by default the agent's name. `models`: other models that the run may switch to, by id.
    `event_stream_handler`: gets the model's events as they come, but not those of recorded requests. `retry`: try a failed
    request or call again in the same attempt, as `ctx.step(retry=...)` does. `answer_timeout`: seconds or timedelta after which a tool call
    without an answer is denied; by default the job waits without a limit.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="sa_jobqueue",
        durable_unit_noun="step",
        durable_container_noun="job",
        codec=JSON_CODEC,
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key=_KEY,
    )

    def __init__(
        self,
        ctx: JobContext | AsyncJobContext,
        *,
        name: str | None = None,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        retry: RetryPolicy | None = None,
        answer_timeout: Duration | None = None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._job_id, self._steps = ctx.job_id, ctx._open_steps()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        self._retry, self._answer_timeout = retry, answer_timeout
        self._run_name, self._is_running = "", False
        self._backend: _Backend | None = None

    @property
    def in_durable_context(self) -> bool:
        """False inside a step, because steps do not nest: an agent that a tool runs is part of the tool's step."""
        inside = current_step.get()
        return inside is None or inside[0] != self._job_id

    def get_durable_operation_backend(self) -> CallableOperationBackend[RetryPolicy | None]:
        """The backend that records the operations of the run. It is made when the run begins, in the copy that is bound to the agent."""
        if self._backend is None:
            self._run_name = self.name
            if self.in_durable_context:
                # A gather begins its runs in a fixed order, but their requests come in any order. So each run has step names of its own.
                begun = _runs.setdefault(self._steps, Counter())
                begun[self.name] += 1
                if (number := begun[self.name]) > 1:
                    self._run_name += f".{number}"
            self._backend = _Backend(self._steps, self._run_name, self.default_model_id, self._retry)
        return self._backend

    def get_default_run_id(self) -> str | None:
        """The same id whenever the job runs."""
        return f"{self._job_id}:{self._run_name}" if self.in_durable_context else None

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """The same id whenever the job runs."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    def _find_model_id(self, model: Model[Any]) -> str | None:
        """An id also for a model object that only this run has, by `model=` or `override`."""
        try:
            return super()._find_model_id(model)
        except UserError:
            self._models_by_id[found := f"run:{model.model_id}"] = model
            return found

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Run the agent, with recorded requests left out of traces and metrics. Before a wait, steps that still run end and are recorded."""
        if self._is_running and self.in_durable_context:
            raise UserError(
                "runs that go on at once need a SaJobqueueDurability each: give it to run(), and not to the agent"
            )
        self._is_running = True
        try:
            with replay_scope():
                return await super().wrap_run(ctx, handler=handler)
        except JobSuspended:
            await self._steps.idle()  # a `def` handler does not do this: its event loop stops when the run raises
            raise
        finally:
            self._is_running = False

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Wait for the signals that answer these tool calls, one signal after the other."""
        if not self.in_durable_context:
            return None
        choices, late = {"Approve": True, "Deny": False}, "No answer came in time."
        approvals: dict[str, bool | DeferredToolApprovalResult] = {}
        for call in requests.approvals:
            question = {"question": f"May {self._run_name} call {_shown(call)}?", "choices": choices}
            approvals[call.tool_call_id] = await self._answer(call, question, _APPROVAL, ToolDenied(late))
        calls: dict[str, Any] = {}
        for call in requests.calls:
            what = f"{self._run_name} waits for the result of {_shown(call)}"
            calls[call.tool_call_id] = await self._answer(call, what, Any, ToolFailed(late))
        return requests.build_results(approvals=approvals, calls=calls)

    async def _answer(self, call: ToolCallPart, question: object, hint: Any, late: object) -> Any:
        name = _fitting(f"{self._run_name}:{self._job_id}:{call.tool_call_id}")
        try:
            return await self._steps.soon(self._steps.wait_signal(name, hint, self._answer_timeout, question))
        except SignalTimeout:
            return late


def _shown(call: ToolCallPart) -> str:
    return f"{call.tool_name}({call.args_as_json_str()})"


class _Backend(CallableOperationBackend[RetryPolicy | None]):
    def __init__(self, steps: StepRuntime, name: str, model: str | None, retry: RetryPolicy | None) -> None:
        def of_tool(_: DurableOperationId, tool: Any, name: str) -> RetryPolicy | Literal[False] | None:
            given = None if tool is None else (tool.tool_def.metadata or {}).get(_KEY)
            return False if given is False else retry

        config = RoleBasedOperationConfig(model=retry, event=retry, capability=retry, tool=retry, resolve_tool=of_tool)
        super().__init__(namer=JournalOperationNamer(name, default_model_id=model or "default"), config=config)
        self._steps = steps

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: RetryPolicy | None,
    ) -> object:
        """Run a model request or a tool call as a step, or return what was recorded."""
        # Calls of a tool run concurrently, in any order. The model's id of the call tells them apart.
        for part in cache_key:
            if isinstance(part, RunContext) and part.tool_call_id:
                name = f"{name}:{part.tool_call_id}"
        begun: list[bool] = []
        result = await self._steps.arun(StepCall(_fitting(name), _perform, (body, begun), {}, config, 1))
        record_durable_unit(executed=bool(begun))
        return result


async def _perform(body: Callable[[], Awaitable[object]], begun: list[bool]) -> Any:
    """The function of each step. `body` is a new function for each call, so it must not get into the cache of functions and their results."""
    begun.append(True)
    return await body()


def _fitting(name: str) -> str:
    """A name, shortened if it is too long for a step or a signal."""
    return name if len(name) <= MAX_NAME else f"{name[:120]}:{hashlib.sha256(name.encode()).hexdigest()[:32]}"

"""What one run may leave behind for the next: nothing."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from datetime import UTC, datetime
from time import monotonic
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import AsyncJobContext, JobContext, Registry, task
from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.errors import SessionUnavailable
from sa_jobqueue.rules.lifecycle import Change, Event
from sa_jobqueue.rules.outcomes import NotStarted, Released
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.tasks.tasks import AnyTask
from sa_jobqueue.worker.running.attempt_end import Telling
from sa_jobqueue.worker.running.call import Call
from sa_jobqueue.worker.running.executor import Executor
from sa_jobqueue.worker.running.notes import JobReports
from sa_jobqueue.worker.running.reopening import Reports, Sessions
from sa_jobqueue.worker.running.run import Run, Runs, Stop
from sa_jobqueue.worker.running.runners import Runners
from sa_jobqueue.worker.running.slots import Slots
from sa_jobqueue.worker.running.timeouts import timeout_of
from sa_jobqueue.worker.running.verdict import unstarted
from sa_jobqueue.worker.running.writer import OutcomeWriter
from sa_jobqueue.worker.tally import Observer, Tally
from tests.support.waiting import wait_until_async

registry = Registry()


@task(registry=registry)
async def swallow() -> None:
    """Does not let itself be cancelled, and returns."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return


@task(registry=registry)
async def await_what_is_cancelled() -> None:
    """Fails with a CancelledError of its own making."""
    other = asyncio.create_task(asyncio.sleep(600))
    other.cancel()
    await other


@task(registry=registry)
def nothing() -> None:
    """Does nothing."""


def run(task: AnyTask, number: int = 1) -> Run:
    now = datetime.now(UTC)
    values: dict[str, Any] = {
        "id": number, "claim_token": 1, "queue": "default", "task": task.name, "priority": 4, "run_at": now.timestamp(), "attempt": 1,
        "max_attempts": 10, "rescues": 0, "args": "{}", "meta": "{}", "created_at": now.timestamp(),
    }  # fmt: skip
    return Run(ClaimedJob(**values), task, monotonic(), monotonic(), set())


def make_executor() -> tuple[Executor, OutcomeWriter]:
    """An executor, and the writer that gets its changes."""
    runs = Runs(Mock(), Observer(Tally(), {}))
    writer = OutcomeWriter(runs.end, store=default_store)
    executor = Executor(
        Sessions(),
        report=Reports(runs, writer, lambda: None).report,
        pause=Mock(),
        leaving=lambda: False,
        max_rescues=5,
        log_jobs=False,
        notes=runs.notes,
        telling=Telling(),
    )
    return executor, writer


def written(writer: OutcomeWriter) -> list[Change]:
    """The changes that are to be written, in their order."""
    return list(writer.pending)


async def test_a_swallowed_cancel_does_not_reach_the_next_job() -> None:
    """Its slot goes on, and must not take the next handler's failure for the end of the event loop."""
    executor, writer = make_executor()
    first, second = run(swallow), run(await_what_is_cancelled, 2)

    async def slot() -> None:
        runner = asyncio.current_task()
        assert runner is not None
        await executor.run_async(first, runner)
        await executor.run_async(second, runner)

    running = asyncio.create_task(slot())
    while first.runner is None:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.ask_to_stop(Stop.CANCEL)
    await running
    completed, failed = written(writer)
    assert completed.event is Event.COMPLETE
    assert failed.event is Event.RETRY
    assert failed.error is not None
    assert failed.error.type == "asyncio.exceptions.CancelledError"


@pytest.mark.parametrize(
    ("why", "event"), [(Stop.CANCEL, Event.CANCEL), (Stop.SHUTDOWN, Event.RELEASE), (Stop.LOST, None)]
)
@pytest.mark.parametrize("handler", [nothing, swallow])
async def test_a_run_that_was_stopped_before_it_began_does_not_begin(
    why: Stop, event: Event | None, handler: AnyTask
) -> None:
    """What it is told only while it runs, it would not hear any more."""
    executor, writer = make_executor()
    early = run(handler)
    early.ask_to_stop(why)
    if handler.is_async:
        runner = asyncio.current_task()
        assert runner is not None
        await asyncio.wait_for(executor.run_async(early, runner), 5)
    else:
        executor.run(early)
    assert early.started is None
    assert early.settled
    assert early.ended is not None
    assert [change.event for change in written(writer)] == ([] if event is None else [event])


def test_a_run_that_ends_because_of_its_timeout_says_so_itself() -> None:
    """The handler and the part that gives it up write the same, whichever settles first."""
    executor, writer = make_executor()

    @task(registry=Registry(), timeout=60)
    def look(ctx: JobContext) -> None:
        late.ask_to_stop(Stop.TIMEOUT)
        assert ctx.cancelled

    late = run(look)
    executor.run(late)
    (change,) = written(writer)
    assert change.error is not None
    assert change.error.type == "sa_jobqueue.errors.HandlerTimeout"


def test_of_threads_that_settle_a_run_at_once_one_is_first() -> None:
    """Its outcome is written, and no other."""
    threads, rounds = 8, 300
    first: list[int] = []
    together = threading.Barrier(threads)
    runs = [run(nothing, number) for number in range(rounds)]

    def settle_all() -> None:
        for one in runs:
            together.wait()
            if one.settle():
                first.append(one.job.id)

    racing = [threading.Thread(target=settle_all) for _ in range(threads)]
    for thread in racing:
        thread.start()
    for thread in racing:
        thread.join()
    assert sorted(first) == list(range(rounds))
    assert all(one.settled for one in runs)


def test_a_handler_that_ends_just_when_it_is_given_up_frees_its_slot_once() -> None:
    """Otherwise a worker whose slots are all stuck would never be seen to be."""
    slots = Slots("default", 2, buffer=0, call=lambda slots, kind: None)
    late = run(nothing)
    slots.abandon(late)
    assert slots.stuck == 1
    slots.keep(late)
    slots.next(None, ended=late)
    assert slots.stuck == 0
    lost = run(nothing, 2)
    slots.abandon(lost)
    slots.next(None, ended=lost)
    assert slots.stuck == 0


@task(registry=registry)
def uses_session(ctx: JobContext) -> None:
    """Opens its session."""
    _ = ctx.session


@task(registry=registry)
async def uses_async_session(ctx: AsyncJobContext) -> None:
    """The same with an AsyncSession."""
    _ = ctx.session


class Incomparable:
    """Its == has no truth value, as that of an array."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


weights: ContextVar[Incomparable] = ContextVar("weights")


@task(registry=registry)
async def weigh() -> None:
    """Leaves another value behind, as an `async def` handler."""
    weights.set(Incomparable())


@task(registry=registry)
def weigh_on_thread() -> None:
    """The same on a thread."""
    weights.set(Incomparable())


@pytest.mark.parametrize("handler", [weigh, weigh_on_thread])
async def test_a_context_variable_that_cannot_be_compared_costs_no_slot(handler: AnyTask) -> None:
    """Its runner cannot tell what the handler left behind, and ends; another comes for the next job."""
    weights.set(Incomparable())
    executor, writer = make_executor()
    runners = Runners(asyncio.get_running_loop(), executor, Mock(), lambda slots, queue: None, Mock())
    slots = Slots("default", 1, buffer=0, call=runners.call)
    slots.feed([run(handler, number) for number in range(3)])
    await wait_until_async(lambda: len(writer) == 3 and slots.running == 0, 10)
    runners.finish()


async def invoked(call: Call) -> None:
    """The whole of a handler, of either kind."""
    if (running := call.invoke()) is not None:
        await running


@pytest.mark.parametrize("handler", [uses_session, uses_async_session])
def test_a_session_that_is_opened_just_when_its_job_ends_is_closed_again(handler: AnyTask) -> None:
    """The second to come, the end or the opening, sees the other."""
    opened: list[Session | AsyncSession] = []

    def ending(session: Any) -> Any:
        opened.append(session)
        call.close()
        return session

    makers: dict[str, Any] = {"maker": lambda: ending(Session()), "async_maker": lambda: ending(AsyncSession())}
    call = Call(run(handler), Sessions(**makers), JobReports())
    with pytest.raises(SessionUnavailable):
        asyncio.run(invoked(call))
    (session,) = opened
    with pytest.raises(SessionUnavailable):
        (session if isinstance(session, Session) else session.sync_session).connection()


def test_the_limits_of_a_job_count_from_its_claim() -> None:
    """Which may be older than its coming here: its answer was on its way for long, or its long arguments were fetched."""
    job = run(nothing).job._replace(extra='{"expires": 5, "deadline": 9}')
    now = monotonic()
    late, in_time, perhaps = (
        Run(job, nothing, arrived, claimed, set())
        for arrived, claimed in ((now - 6, now - 6), (now - 4, now - 4), (now, now - 6))
    )
    assert unstarted(late) == NotStarted(failed=False)
    assert unstarted(in_time) is None
    assert unstarted(perhaps) == Released()  # only the database knows
    assert timeout_of(late, now) == now + 3

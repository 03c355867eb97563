"""Which runners slots call, and when they want jobs."""

from __future__ import annotations

import asyncio
import re
import threading
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.worker.connections.pool import most_of, widen
from sa_jobqueue.worker.running import slots as slots_module
from sa_jobqueue.worker.running.run import Kind, Run
from sa_jobqueue.worker.running.runners import Runners
from sa_jobqueue.worker.running.slots import AllSlots, Slots
from tests.support.waiting import PATIENCE, wait_until_async
from tests.unit.test_runs import nothing, run, swallow

SAID = ContextVar("SAID", default="")


def slots(limit: int = 2, buffer: int = 0) -> tuple[Slots, list[Kind]]:
    called: list[Kind] = []
    return Slots("default", limit, buffer=buffer, call=lambda slots, kind: called.append(kind)), called


def test_one_runner_is_called_at_a_time_and_the_next_when_it_has_come() -> None:
    """As many as there are slots, one after the other."""
    one, called = slots(limit=2)
    jobs = [run(nothing, number) for number in range(4)]

    one.feed(jobs)
    assert called == [Kind.THREAD]
    assert one.next(Kind.THREAD) is jobs[0]
    assert called == [Kind.THREAD] * 2
    assert one.next(Kind.THREAD) is jobs[1]
    assert called == [Kind.THREAD] * 2, "both slots are taken"
    assert one.next(Kind.THREAD, ended=jobs[0]) is jobs[2]
    assert one.running == 2


def test_a_runner_without_work_leaves_and_another_is_called_later() -> None:
    """No job waits for a runner that has gone."""
    one, called = slots()
    first, second = run(nothing), run(nothing, 2)
    one.feed([first])
    assert one.next(Kind.THREAD) is first
    assert one.next(Kind.THREAD, ended=first) is None
    assert one.running == 0

    one.feed([second])

    assert called == [Kind.THREAD] * 2
    assert one.next(Kind.THREAD) is second


def test_jobs_start_in_their_order_whichever_kind_they_are() -> None:
    """A runner leaves a job of the other kind to a runner of that kind."""
    one, called = slots(limit=1)
    jobs: list[Run] = [run(nothing), run(swallow, 2), run(nothing, 3)]
    one.feed(jobs)

    assert one.next(Kind.THREAD) is jobs[0]
    assert one.next(Kind.THREAD, ended=jobs[0]) is None
    assert called == [Kind.THREAD, Kind.ASYNC]
    assert one.next(Kind.ASYNC) is jobs[1]
    assert one.next(Kind.ASYNC, ended=jobs[1]) is None
    assert called == [Kind.THREAD, Kind.ASYNC, Kind.THREAD]
    assert one.next(Kind.THREAD) is jobs[2]


def test_slots_whose_runner_does_not_come_want_no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler blocks the event loop: what is claimed now would only be given back."""
    one, _ = slots(limit=2)
    assert one.free() == 2
    one.feed([run(swallow)])
    assert one.free() == 0, "one waits, and none is wanted ahead"
    now = slots_module.monotonic()
    monkeypatch.setattr(slots_module, "monotonic", lambda: now + 5)
    (stale,) = one.stale(2)

    assert one.free() == 0
    assert one.next(Kind.ASYNC) is None
    assert one.free() == 2
    assert stale.task is swallow


def feed_and_end(one: Slots, fed: int, ended: int) -> Run | None:
    """Feed `fed` jobs to one runner, which ends `ended` of them. Returns the one that runs then."""
    one.feed([run(nothing, number) for number in range(fed)])
    running = one.next(Kind.THREAD)
    for _ in range(ended):
        running = one.next(Kind.THREAD, ended=running)
    return running


def test_what_goes_back_is_not_claimed_ahead_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The room was made for jobs that ended faster; it grows again as soon as they do."""
    one, _ = slots(limit=1, buffer=1_000)
    now = slots_module.monotonic()
    feed_and_end(one, 600, 500)
    monkeypatch.setattr(slots_module, "monotonic", lambda: now + 1)
    one.measure()
    assert one.free() == 0, "more than half of the room is filled"
    monkeypatch.setattr(slots_module, "monotonic", lambda: now + 5)

    assert len(one.stale(2)) == 99
    assert one.free() == 0, "its one slot is taken"


def test_jobs_are_wanted_when_those_that_wait_may_soon_not_be_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one for each that ends: a claim of a few costs as much as one of many."""
    one, _ = slots(limit=1, buffer=10)
    now = slots_module.monotonic()
    monkeypatch.setattr(slots_module, "monotonic", lambda: now + 1)
    done = feed_and_end(one, 200, 190)
    monkeypatch.setattr(slots_module, "monotonic", lambda: now + 8)
    one.measure()

    free = [one.free()]
    for _ in range(8):
        done = one.next(Kind.THREAD, ended=done)
        free.append(one.free())

    assert free[:6] == [0] * 6, "nine wait, and four or five end in a fifth of a second"
    assert free[-1] == 3


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_a_thread_that_cannot_be_started_lets_another_be_called(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """The host allows no more threads just now. Neither the slot nor the job is lost."""
    ran: SimpleQueue[Run] = SimpleQueue()
    runners = Runners(Mock(), executor=Mock(run=ran.put), batches=Mock(), ended=Mock(), in_child=Mock())
    runners._loop.is_closed.return_value = False  # type: ignore[attr-defined]
    one = Slots("default", 2, buffer=0, call=runners.call)
    jobs = [run(nothing), run(nothing, 2)]
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=error))
        assert one.feed(jobs[:1]) == []
    assert (one.running, one.waiting) == (0, 1)
    assert "no job of queue 'default' can be started just now" in caplog.text

    one.feed(jobs[1:])

    assert [ran.get(timeout=PATIENCE) for _ in jobs] == jobs


@pytest.mark.parametrize("of_the_loop", [True, False], ids=["on its thread", "on another"])
def test_a_loop_that_is_closed_leaves_nothing_called(of_the_loop: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker has ended, and something is fed late: its sender gets no error."""
    loop = asyncio.new_event_loop()
    runners = Runners(loop, executor=Mock(), batches=Mock(), ended=Mock(), in_child=Mock())
    if not of_the_loop:
        monkeypatch.setattr(runners, "_loop_thread", None)
    one = Slots("default", 2, buffer=0, call=runners.call)
    loop.close()

    assert one.feed([run(swallow)]) == []

    assert one._called is None
    assert one.waiting == 1


def without_context(loop: asyncio.AbstractEventLoop, coroutine: Any) -> asyncio.Task[Any]:
    """A task factory as they were before Python 3.11."""
    return asyncio.Task(coroutine, loop=loop)


async def test_a_task_factory_that_takes_no_context_costs_no_queue_its_runners() -> None:
    """The application has set it; runners begin with the context variables of the worker's start all the same."""
    ran: list[tuple[Run, str]] = []

    async def record(run: Run, _: object) -> None:
        ran.append((run, SAID.get()))

    SAID.set("the worker's start")
    runners = Runners(
        asyncio.get_running_loop(), executor=Mock(run_async=record), batches=Mock(), ended=Mock(), in_child=Mock()
    )
    SAID.set("later")
    asyncio.get_running_loop().set_task_factory(without_context)
    one, job = Slots("default", 2, buffer=0, call=runners.call), run(swallow)

    one.feed([job])
    await wait_until_async(lambda: ran)

    assert ran == [(job, "the worker's start")]


def refuses(loop: asyncio.AbstractEventLoop, coroutine: Any, **_: Any) -> Any:
    raise RuntimeError("no task")


def cancels(loop: asyncio.AbstractEventLoop, coroutine: Any, **_: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(coroutine, loop=loop)
    task.cancel()
    return task


@pytest.mark.parametrize("factory", [refuses, cancels])
async def test_a_runner_that_does_not_come_lets_another_be_called(
    factory: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A task factory fails, or a task is cancelled before it begins: the job waits for the next runner, and jobs are wanted."""
    ran: list[Run] = []

    async def record(run: Run, _: object) -> None:
        ran.append(run)

    loop = asyncio.get_running_loop()
    runners = Runners(loop, executor=Mock(run_async=record), batches=Mock(), ended=Mock(), in_child=Mock())
    one, jobs = Slots("default", 3, buffer=0, call=runners.call), [run(swallow), run(swallow, 2)]

    loop.set_task_factory(factory)
    one.feed(jobs[:1])
    await wait_until_async(lambda: one._called is None)
    loop.set_task_factory(None)
    one.feed(jobs[1:])
    await wait_until_async(lambda: len(ran) == 2)

    assert ran == jobs
    assert ("no job of queue 'default' can be started just now" in caplog.text) is (factory is refuses)


def test_closed_slots_take_and_give_nothing() -> None:
    """The worker leaves."""
    one, called = slots()
    waiting, late = run(nothing), run(nothing, 2)
    one.feed([waiting])

    assert list(one.close()) == [waiting]
    assert one.feed([late]) == [late]
    assert one.free() == 0
    assert one.next(Kind.THREAD) is None
    assert called == [Kind.THREAD]


def test_paused_slots_start_and_want_nothing_until_they_are_resumed() -> None:
    """What runs goes on, and what waits keeps its place."""
    one, called = slots()
    running, waiting = run(nothing), run(nothing, 2)
    one.feed([running])
    assert one.next(Kind.THREAD) is running

    one.pause()
    one.feed([waiting])
    assert one.next(Kind.THREAD, ended=running) is None
    assert (one.free(), one.waiting, called) == (0, 1, [Kind.THREAD])

    one.resume()
    assert called == [Kind.THREAD] * 2
    assert one.next(Kind.THREAD) is waiting
    assert one.free() == 1


def test_lowered_slots_give_back_the_newest_of_the_jobs_that_wait() -> None:
    """Jobs for which slots are left stay; a job that runs goes on; without slots no job is taken in."""
    one, _ = slots(limit=3)
    jobs = [run(nothing, number) for number in range(4)]
    one.feed(jobs)
    assert one.next(Kind.THREAD) is jobs[0]

    assert one.resize(2) == [jobs[3], jobs[2]]
    assert one.resize(0) == [jobs[1]]
    assert (one.running, one.waiting, one.free()) == (1, 0, 0)
    assert one.feed(jobs[1:]) == jobs[1:]


def test_slots_that_are_paused_stay_paused_when_they_are_changed() -> None:
    one, _ = slots(limit=1)
    one.pause()
    one.resize(3)
    assert (one.paused, one.free()) == (True, 0)
    one.resume()
    assert (one.paused, one.free()) == (False, 3)


@pytest.mark.parametrize(
    ("before", "wanted", "said"),
    [
        ({"mail": 1}, {"mail": 0}, "no queue would be left"),
        ({"mail": 1}, {"*": 5}, "cannot add or remove"),
        ({"*": 1}, {"mail": 5}, "cannot add or remove other queues"),
        ({"*": 1, "mail": 1}, {"mail": 0}, "cannot add or remove other queues"),
        ({"mail": 1}, {"mail": 10_001}, "'mail' needs 0 to 10,000 slots, not 10001"),
        ({"mail": 1}, {"mail": True}, "'mail' needs 0 to 10,000 slots, not True"),
        ({"mail": 1}, ["mail"], "queues are names with their slots"),
    ],
)
def test_slots_that_no_running_worker_can_have_are_refused(before: dict[str, int], wanted: Any, said: str) -> None:
    """A row may have them by a request or by plain SQL."""
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        AllSlots(before, buffer=0, call=Mock()).changed(wanted)


def test_a_pool_that_grows_gives_as_many_connections(url: str) -> None:
    """To threads, and on the event loop, also where it was used before."""
    engine = create_engine(url, pool_size=1, max_overflow=0)
    engine.connect().close()
    widen(engine.pool, 3)
    for each in [engine.connect() for _ in range(3)]:
        each.close()
    assert (engine.pool.checkedin(), most_of(engine.pool)) == (3, 3)  # type: ignore[attr-defined]
    engine.dispose()

    async def on_loop() -> int:
        engine = create_async_engine(url, pool_size=1, max_overflow=0)
        await (await engine.connect()).close()
        widen(engine.pool, 3)
        for each in [await engine.connect() for _ in range(3)]:
            await each.close()
        kept: int = engine.pool.checkedin()  # type: ignore[attr-defined]
        await engine.dispose()
        return kept

    assert asyncio.run(on_loop()) == 3

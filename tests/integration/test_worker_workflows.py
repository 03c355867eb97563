"""Workflows through workers: results handed on, jobs added as they run, and workers that die or pause on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import (
    AsyncJobContext,
    Batch,
    Discard,
    Failed,
    Job,
    JobContext,
    JobStatus,
    KeyLimits,
    Registry,
    RetryPolicy,
    TaskName,
    Worker,
    Workflow,
    task,
)
from sa_jobqueue.errors import WorkflowError
from sa_jobqueue.models import WorkflowRow
from sa_jobqueue.statements import cancel_workflows, retry_workflow, set_limit
from tests.support.nightly import crossed
from tests.support.waiting import wait_until
from tests.support.working import drain, finished, job_of, statuses, working

TAKEN: list[Any] = []
SOON = RetryPolicy(base=0.02, jitter=0)


@pytest.fixture(autouse=True)
def nothing_taken() -> None:
    TAKEN.clear()


@pytest.fixture
def tasks(registry: Registry) -> dict[str, Any]:
    """Tasks that hand results on."""

    @task(registry=registry, name="number", record=True)
    def number(n: int) -> int:
        if n < 0:
            raise Discard(f"{n} is below zero")
        return n

    @task(registry=registry, name="double", record=True)
    async def double(n: int, times: int = 2) -> int:
        return n * times

    @task(registry=registry, name="total", record=True)
    def total(parts: Sequence[int]) -> int:
        TAKEN.append(list(parts))
        return sum(parts)

    @task(registry=registry, name="partial")
    def partial(parts: Sequence[int | Failed], label: str) -> None:
        TAKEN.append([label, *parts])

    @task(registry=registry, name="pair")
    async def pair(ctx: AsyncJobContext, one: int, two: int, *, label: str) -> None:
        TAKEN.append((one, two, label, ctx.workflow_id))

    @task(registry=registry, name="streamed")
    def streamed(parts: Iterator[int]) -> None:
        TAKEN.append(sum(parts))

    @task(registry=registry, name="streamed_async")
    async def streamed_async(parts: AsyncIterator[int]) -> None:
        TAKEN.append(sum([one async for one in parts]))

    @task(registry=registry, name="note")
    def note(what: str) -> None:
        TAKEN.append(what)

    return {name: one for name, one in locals().items() if name != "registry"}


def begin(engine: Engine, workflow: Workflow | Batch) -> int:
    with Session(engine) as session:
        session.add(workflow)
        session.flush()
        made = workflow.id
        session.commit()
        return made


def state(engine: Engine, id: int) -> tuple[str, bool]:
    with Session(engine) as session:
        found = session.get_one(WorkflowRow, id)
        return found.status, found.finished_at is not None


def test_results_are_handed_on(engine: Engine, url: str, registry: Registry, tasks: dict[str, Any]) -> None:
    """From any kind of handler to any kind."""
    w = Workflow()
    numbers = [w.add(tasks["number"], n) for n in (1, 2, 3)]
    doubled = [w.then(one, tasks["double"], times=10) for one in numbers]
    total = w.gather(doubled, tasks["total"])
    w.join(total, numbers[0], tasks["pair"], label="x")
    w.on_success(tasks["note"], "success")
    id = begin(engine, w)

    drain(url, registry)
    assert [[10, 20, 30], (60, 1, "x", id), "success"] == TAKEN
    assert state(engine, id) == ("completed", True)


def test_what_failed_is_said_or_left_out_or_cancels(
    engine: Engine, url: str, registry: Registry, tasks: dict[str, Any]
) -> None:
    """As each child wants it; the siblings go on."""
    w = Workflow()
    numbers = [w.add(tasks["number"], n) for n in (1, -1, 3)]
    cancelled = w.gather(numbers, tasks["total"])
    w.gather_partial(numbers, tasks["partial"], "partial")
    w.gather(w.completed(numbers), tasks["total"])
    w.on_failure(tasks["note"], "failure")
    id = begin(engine, w)

    drain(url, registry)
    failed = Failed(numbers[1].job_id, JobStatus.FAILED, "Discard", "-1 is below zero")
    assert sorted(TAKEN, key=str) == sorted([["partial", 1, failed, 3], [1, 3], "failure"], key=str)
    assert job_of(engine, cancelled.job_id).status is JobStatus.CANCELLED
    assert state(engine, id) == ("failed", True)


@pytest.mark.parametrize(("kind", "number"), crossed(["total", "streamed", "streamed_async"], [3, 1_500]))
def test_many_results_are_read_page_by_page(
    engine: Engine, url: str, registry: Registry, tasks: dict[str, Any], kind: str, number: int
) -> None:
    """As a list, or one by one."""
    w = Workflow()
    w.gather([w.add(tasks["number"], n) for n in range(number)], tasks[kind])
    begin(engine, w)

    drain(url, registry, queues={"default": 50})
    expected: Any = list(range(number)) if kind == "total" else sum(range(number))
    assert [expected] == TAKEN


def test_a_result_that_does_not_fit_fails_the_child(
    engine: Engine, url: str, registry: Registry, tasks: dict[str, Any]
) -> None:
    """By name, nothing checks it before."""

    @task(registry=registry, name="text", record=True)
    def text_(n: int) -> str:
        return str(n)

    w = Workflow()
    child = w.then(w.add("text", n=3), TaskName("double"))
    id = begin(engine, w)
    drain(url, registry)
    assert job_of(engine, child.job_id).errors[-1]["message"].startswith("task 'double': the result of job")
    assert state(engine, id) == ("failed", True)


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_handler_adds_jobs_to_its_workflow(engine: Engine, url: str, registry: Registry, kind: str) -> None:
    """Together with its completion: an attempt that fails adds nothing. What waited for it waits for these, too."""

    def graph(ctx: JobContext | AsyncJobContext) -> Any:
        more = Workflow.of(ctx)
        parts = [more.add(part, n) for n in range(3)]
        gathered = more.gather(parts, total)
        more.then(more.me, one)
        more.before_children(gathered)
        return more.insert()

    @task(registry=registry, name="grow", record=True, retry=SOON)
    def grow(ctx: JobContext) -> int:
        ctx.session.execute(graph(ctx))
        if ctx.attempt == 1:
            raise RuntimeError("once more")
        return 7

    @task(registry=registry, name="grow_async", record=True, retry=SOON)
    async def grow_async(ctx: AsyncJobContext) -> int:
        await ctx.session.execute(graph(ctx))
        if ctx.attempt == 1:
            raise RuntimeError("once more")
        return 7

    @task(registry=registry, name="part", record=True)
    def part(n: int) -> int:
        return n

    @task(registry=registry, name="total", record=True)
    def total(parts: Sequence[int]) -> int:
        TAKEN.append(sum(parts))
        return sum(parts)

    @task(registry=registry, name="one")
    def one(n: int) -> None:
        TAKEN.append(n)

    @task(registry=registry, name="last")
    def last() -> None:
        TAKEN.append("last")

    w = Workflow()
    first: Any = w.add(grow if kind == "def" else grow_async)
    w.after(first, last)
    id = begin(engine, w)
    with engine.begin() as connection:
        connection.execute(text("UPDATE sa_jobqueue.job SET max_attempts = 2"))
    with working(url, registry):
        wait_until(lambda: state(engine, id)[1])
    assert sorted(TAKEN, key=str) == [3, 7, "last"]
    assert TAKEN.index(3) < TAKEN.index("last")
    assert state(engine, id) == ("completed", True)


async def test_an_async_session_brings_a_workflow(
    async_engine: AsyncEngine, engine: Engine, url: str, registry: Registry, tasks: dict[str, Any]
) -> None:
    """As any row."""
    w = Workflow("async", deadline=60)
    node = w.then(w.add(tasks["number"], 1), tasks["double"])
    async with AsyncSession(async_engine, expire_on_commit=False) as session:
        session.add(w)
        await session.commit()
    found = job_of(engine, node.job_id)
    assert (found.status, found.workflow_id) == (JobStatus.BLOCKED, w.id)


def test_one_that_was_selected_takes_no_jobs_by_itself(engine: Engine, tasks: dict[str, Any]) -> None:
    """They would be lost."""
    with Session(engine) as session:
        session.add(Workflow("empty"))
        session.commit()
        session.expunge_all()
        found = session.scalars(select(Workflow)).one()
        for refused in (found.add, found.on_end):
            with pytest.raises(WorkflowError, match="in the database already"):
                refused(tasks["number"], 1)


def test_a_nested_workflow_is_not_added_by_itself(engine: Engine, tasks: dict[str, Any]) -> None:
    """Its jobs would run twice."""
    inner, outer = Workflow("inner"), Workflow("outer")
    inner.add(tasks["number"], 1)
    outer.nest(inner)
    with Session(engine) as session:
        session.add(inner)
        with pytest.raises(WorkflowError, match="'inner' is nested in another one"):
            session.flush()


def test_a_rolled_back_workflow_was_never_there(engine: Engine, tasks: dict[str, Any]) -> None:
    """All of it, or nothing."""
    w = Workflow()
    w.then(w.add(tasks["number"], 1), tasks["double"])
    with Session(engine) as session:
        session.add(w)
        session.flush()
        session.rollback()
    assert statuses(engine) == []


def test_a_large_workflow_is_one_statement_for_its_jobs(engine: Engine, tasks: dict[str, Any]) -> None:
    """Whatever its size; no object is made for a job."""
    said: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: said.append(args[2]))
    w = Workflow()
    w.gather([w.add(tasks["number"], n) for n in range(2_000)], tasks["total"])
    begin(engine, w)
    assert [one.split()[0] for one in said] == ["INSERT", "SELECT"]
    assert len(statuses(engine)) == 2_001


def test_an_event_that_nobody_knows_of_is_found(
    engine: Engine, url: str, registry: Registry, tasks: dict[str, Any]
) -> None:
    """A worker was killed just after a commit: another finds what it left, also one that leaves when idle."""
    w = Workflow()
    first = w.add(tasks["number"], 1)
    w.then(first, tasks["double"])
    id = begin(engine, w)
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE sa_jobqueue.job SET status = 'completed', result = '1' WHERE id = :id"), {"id": first.job_id}
        )
        connection.execute(
            text("INSERT INTO sa_jobqueue.workflow_event (workflow_id, job_id, completed) VALUES (:flow, :id, true)"),
            {"flow": id, "id": first.job_id},
        )
    drain(url, registry)
    assert state(engine, id) == ("completed", True)


def test_a_cancel_and_a_retry_are_heard_at_once(engine: Engine, url: str, registry: Registry) -> None:
    """Workers that listen are told."""

    @task(registry=registry, name="wait")
    async def wait(ctx: AsyncJobContext) -> None:
        import asyncio

        if not TAKEN:
            await asyncio.sleep(60)

    w = Workflow()
    w.after(w.add(wait), wait)
    id = begin(engine, w)
    with working(url, registry):
        wait_until(lambda: JobStatus.RUNNING in statuses(engine))
        with engine.begin() as connection:
            connection.execute(cancel_workflows(id)).all()
        wait_until(lambda: state(engine, id) == ("cancelled", True))
        TAKEN.append("go")
        with engine.begin() as connection:
            connection.execute(retry_workflow(id)).all()
        wait_until(lambda: state(engine, id) == ("completed", True))


def test_a_release_wakes_workers_of_other_queues(
    engine: Engine, url: str, registry: Registry, tasks: dict[str, Any]
) -> None:
    """A worker that does not serve the child's queue releases it, and one that sleeps is told."""
    w = Workflow()
    w.then(w.add(tasks["number"].options(queue="one"), 1), tasks["double"].options(queue="two"))
    with working(url, registry, queues={"two": 1}, poll=60.0) as second, working(url, registry, queues={"one": 1}):
        wait_until(lambda: second.state().listening)
        id = begin(engine, w)
        wait_until(lambda: state(engine, id)[1])


def test_a_member_that_limits_drop_is_told(engine: Engine, url: str, registry: Registry, tasks: dict[str, Any]) -> None:
    """Its children are cancelled."""
    with engine.begin() as connection:
        connection.execute(set_limit("default", per_key=KeyLimits(running=1), when_full="drop_newest", max_waiting=0))
    w = Workflow()
    keyed = tasks["number"].options(key="k")
    for n in range(3):
        w.then(w.add(keyed, n), tasks["double"])
    id = begin(engine, w)
    with working(url, registry):
        wait_until(lambda: state(engine, id)[1])
    assert state(engine, id)[0] == "cancelled"
    assert JobStatus.BLOCKED not in statuses(engine)


def test_a_worker_that_knows_nothing_of_workflows_sends_no_more(engine: Engine, url: str, registry: Registry) -> None:
    """Plain jobs are written by the statements that know of none."""

    @task(registry=registry, name="plain")
    def plain() -> None: ...

    from sa_jobqueue import enqueue

    with Session(engine) as session:
        session.add_all([enqueue(plain) for _ in range(20)])
        session.commit()
    worker: Worker = drain(url, registry)
    assert finished(engine, *range(1, 21))
    assert worker is not None
    with engine.connect() as connection:
        assert connection.scalar(select(Job.workflow_id).limit(1)) is None

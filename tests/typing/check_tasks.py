"""What type checkers make of tasks: read by mypy and pyright (`test_typing.py`), never run.

A line that must be an error carries an ignore comment for each checker; both report an ignore that is not needed
(pyright by the configuration beside this file).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, assert_type

from sqlalchemy import Engine, Executable
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue.arguments.context import AsyncJobContext, JobContext
from sa_jobqueue.arguments.ends import JobEnd
from sa_jobqueue.arguments.secrets import Secret
from sa_jobqueue.enqueueing.jobs import enqueue, enqueue_many
from sa_jobqueue.errors import WaitTimeout
from sa_jobqueue.models import Job
from sa_jobqueue.rules.outcomes import Retry, Snooze
from sa_jobqueue.statements import cancel_jobs, count_jobs, discard_jobs, prune_jobs, release_jobs, retry_jobs
from sa_jobqueue.tasks.calls import Call
from sa_jobqueue.tasks.decorator import task
from sa_jobqueue.tasks.registry import Registry, TaskName
from sa_jobqueue.tasks.tasks import AnyTask
from sa_jobqueue.waiting import wait_for
from sa_jobqueue.worker import Worker


@task
def plain(order_id: int, *, note: str = "") -> bool:
    return note == str(order_id)


@task(queue="mail", max_attempts=5, timeout=timedelta(minutes=1))
def with_context(ctx: JobContext, order_id: int, *, note: str = "") -> Snooze | Retry | None:
    assert_type(ctx.session, Session)
    assert_type(ctx.job_id, int)
    return Snooze(5)


@task
async def awaited(order_id: int) -> str:
    return str(order_id)


@task(record=True)
async def awaited_with_context(ctx: AsyncJobContext, order_id: int) -> str:
    assert_type(ctx.session, AsyncSession)
    return str(order_id)


@task(registry=Registry())
def nothing() -> None: ...


async def calls_are_typed(ctx: JobContext, async_ctx: AsyncJobContext) -> None:
    """The task is called as the function."""
    assert_type(plain(1, note="x"), bool)
    assert_type(with_context(ctx, 1), Snooze | Retry | None)
    assert_type(await awaited(1), str)
    assert_type(await awaited_with_context(async_ctx, 1), str)

    plain("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    plain()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    with_context(1)  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    await awaited_with_context(ctx, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def jobs_are_typed() -> None:
    """Without the context, and checked."""
    assert_type(enqueue(plain, 1, note="x"), Job)
    assert_type(enqueue(with_context, 1, note="x"), Job)
    assert_type(enqueue(awaited, order_id=1), Job)
    assert_type(enqueue(awaited_with_context, 1), Job)
    assert_type(enqueue(nothing), Job)
    assert_type(enqueue("shop.mail", order_id=1, anything=["x"]), Job)
    assert_type(enqueue(TaskName("shop.mail").options(queue="mail"), order_id=1), Job)

    enqueue(plain, "1")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    enqueue(plain)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    enqueue(plain, 1, 2)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    enqueue(plain, 1, other=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    enqueue(with_context, None)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    enqueue(awaited_with_context, "1")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    enqueue(nothing, 1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    enqueue("shop.mail", 1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    enqueue(len, "x")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


def results_are_typed(job: Job, end: JobEnd) -> None:
    """By what the handler returns, and what its coroutine does."""
    assert_type(plain.result(job), bool)
    assert_type(awaited_with_context.result(end), str)
    assert_type(job.result_as(int), int)
    assert_type(end.result_as(list[str]), list[str])

    plain.result(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def waits_are_typed(engine: Engine, async_engine: AsyncEngine) -> None:
    """One id gives one end; an AsyncEngine gives an awaitable."""
    assert_type(wait_for(engine, 1, timeout=10), JobEnd)
    assert_type(wait_for(engine, [1, 2], timeout=timedelta(seconds=10)), list[JobEnd])
    assert_type(await wait_for(async_engine, 1, timeout=None), JobEnd)
    assert_type(await wait_for(async_engine, {1, 2}, timeout=10), list[JobEnd])

    assert_type(WaitTimeout([1], 1.0).ended, tuple[JobEnd, ...])

    wait_for(engine, 1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


def options_keep_the_types() -> None:
    later = with_context.options(delay=timedelta(hours=1), priority=9)
    assert_type(enqueue(later, 1), Job)

    enqueue(later, "1")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    with_context.options(priority="high")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with_context.options(order_id=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def bulk_is_typed() -> None:
    assert_type(with_context.call(1, note="x"), Call)
    assert_type(enqueue_many(plain.call(number) for number in range(3)), Executable)

    with_context.call("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    plain.call(1, other=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert_type(with_context.edit(7, 1, note="x"), Executable)
    with_context.edit(7, "1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    enqueue_many([enqueue(plain, 1)])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


def tasks_fit_where_any_task_is_wanted(registry: Registry) -> None:
    every: list[AnyTask] = [plain, with_context, awaited, awaited_with_context, nothing]
    for one in every:
        registry.add(one)
    assert_type(registry.get("x"), AnyTask | None)
    assert_type(plain.is_async, bool)
    assert_type(plain.timeout, float | None)


def any_criterion_of_a_select_is_one_of_a_statement(session: Session) -> None:
    assert_type(cancel_jobs(Job.queue == "mail", Job.is_scheduled), Executable)
    session.execute(retry_jobs(Job.is_finished))
    session.execute(discard_jobs(Job.is_live, Job.id.in_([1])))
    session.execute(release_jobs(Job.is_live))
    session.execute(prune_jobs(Job.is_finished, limit=1_000))
    session.execute(count_jobs(Job.is_retrying))

    cancel_jobs("mail")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@task
def with_rest(ctx: JobContext, /, order_id: int, **rest: str) -> None: ...


def a_context_beside_keywords_of_any_name_has_none_itself() -> None:
    assert_type(enqueue(with_rest, 1, colour="red", ctx="free"), Job)

    enqueue(with_rest, "1")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


class TheirSession(Session):
    """A session class of the application's."""


def a_sessionmaker_of_any_session_will_do(maker: sessionmaker[TheirSession]) -> None:
    Registry(sessionmaker=maker)
    Worker("postgresql://", {}, sessionmaker=maker)

    Registry(async_sessionmaker=maker)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@task
def tell_support(job_id: int, task: str, error: str) -> None: ...


@task(on_failure=tell_support, on_success=tell_support)
def followed(order_id: int) -> int:
    return order_id


def a_task_may_be_followed_by_a_task_and_have_versions() -> None:
    assert_type(enqueue(followed.options(on_failure=tell_support, on_success=False), 1), Job)

    task(on_failure="tell_support")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


@task(version=2)
def versioned(order_id: int) -> None: ...


@versioned.upcast(1)
def versioned_1(args: dict[str, Any]) -> dict[str, Any]:
    return {"order_id": args["order"]}


@versioned.upcast(1)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUntypedFunctionDecorator]
def no_upcaster(order_id: int) -> int:
    return order_id


def a_job_may_wait_for_a_job(job: Job) -> None:
    assert_type(enqueue(versioned.options(after=job), 1), Job)

    versioned.options(after=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@task
def sync(n: int, token: Annotated[str | None, Secret()] = None) -> None: ...


def secrets_are_of_their_own_type() -> None:
    enqueue(sync, 1, "token")
    enqueue(sync, 1, token=2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

"""What type checkers make of batch handlers: read by mypy and pyright (`test_typing.py`), never run."""

from __future__ import annotations

from typing import assert_type

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import (
    AsyncBatchContext,
    BatchContext,
    Batching,
    BatchJob,
    Job,
    JobContext,
    enqueue,
    enqueue_many,
    task,
)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "order"
    id: Mapped[int] = mapped_column(primary_key=True)


@task(batch=Batching(500, wait=2.0, by="tenant_id"))
def index(ctx: BatchContext, orders: list[Order]) -> None:
    assert_type(ctx.session, Session)
    assert_type(ctx.jobs, tuple[BatchJob, ...])
    for job, order in zip(ctx.jobs, orders, strict=True):
        assert_type(job.job_id, int)
        assert_type(order, Order)
        ctx.fail(job, ValueError("no address"))
        ctx.retry(job, 30, reason="later")
    ctx.step("name", len, "x")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    ctx.fail(7, ValueError())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@task(batch=Batching(500), record=True, queue="mail")
async def count(ctx: AsyncBatchContext, orders: list[Order], names: list[str]) -> list[int]:
    assert_type(ctx.session, AsyncSession)
    return [len(name) for name in names]


@task(batch=Batching(500), record=True)
def measure(ctx: BatchContext, orders: list[Order], names: list[str], limits: list[int | None]) -> list[str]:
    return names


@task(batch=Batching(500))
def refresh(ctx: BatchContext) -> None: ...


def jobs_are_typed(order: Order) -> None:
    """One item of each list is enqueued."""
    assert_type(enqueue(index, order), Job)
    assert_type(enqueue(index.options(delay=30), order), Job)
    assert_type(enqueue(count, order, "x"), Job)
    assert_type(enqueue(measure, order, "x", None), Job)
    assert_type(enqueue(refresh), Job)
    enqueue_many([index.call(order)])

    enqueue(index, [order])  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    enqueue(index, 7)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    enqueue(index)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    enqueue(count, order, 7)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    # Type checkers take the arguments by position only, though keywords work.
    enqueue(index, orders=order)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


async def calls_and_results_are_typed(ctx: BatchContext, async_ctx: AsyncBatchContext, order: Order, job: Job) -> None:
    """The task is called as the function, with lists; a job's result is one item."""
    assert_type(index(ctx, [order]), None)
    assert_type(await count(async_ctx, [order], ["x"]), list[int])
    assert_type(count.result(job), int)
    assert_type(measure.result(job), str)


@task(batch=Batching(500))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType, reportUntypedFunctionDecorator]
def no_list(ctx: BatchContext, order: Order) -> None: ...


@task(batch=Batching(500))  # type: ignore[type-var, arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType, reportUntypedFunctionDecorator]
def of_one(ctx: JobContext, orders: list[Order]) -> None: ...

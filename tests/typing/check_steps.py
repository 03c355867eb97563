"""The types of steps: checked by mypy and pyright, never run."""

from __future__ import annotations

from typing import assert_type

from sa_jobqueue import AsyncJobContext, CallbackUrl, JobContext, RetryPolicy


def label(order_id: int, size: str = "A6") -> bytes:
    return f"{order_id} {size}".encode()


async def book(order_id: int) -> list[str]:
    return [str(order_id)]


def in_a_def_handler(ctx: JobContext) -> None:
    """A step has the type of its function, and checks its arguments."""
    assert_type(ctx.step("label", label, 17, size="A5"), bytes)
    assert_type(ctx.step("label", label, 17, retry=RetryPolicy(base=1)), bytes)
    assert_type(ctx.step("label", label, 17, revision=2), bytes)
    assert_type(ctx.callback_url("paid"), CallbackUrl)
    ctx.step("label", label, "17")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


async def in_an_async_handler(ctx: AsyncJobContext) -> None:
    """The result of an `async def` function is awaited."""
    assert_type(await ctx.step("label", label, 17), bytes)
    assert_type(await ctx.step("book", book, 17), list[str])
    assert_type(await ctx.step("book", book, 17, retry=RetryPolicy(base=1)), list[str])
    assert_type(await ctx.step("book", book, 17, revision=2), list[str])
    assert_type(await ctx.callback_url("paid"), CallbackUrl)
    await ctx.step("book", book, "17")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]

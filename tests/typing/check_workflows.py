"""What type checkers make of workflows: read by mypy and pyright (`test_typing.py`), never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from typing import Any, assert_type

from sqlalchemy import Executable
from sqlalchemy.orm import Session

from sa_jobqueue import Batch, Failed, JobContext, TaskName, Workflow, task
from sa_jobqueue.statements import cancel_workflows, pause_workflows, resume_workflows, retry_workflow
from sa_jobqueue.workflows import Addition, Join, Node


@task(record=True)
def fetch(url: str) -> bytes:
    return url.encode()


@task(record=True)
async def count(data: bytes, unit: str = "words") -> int:
    return len(data) + len(unit)


@task
def add_up(parts: Sequence[int]) -> int:
    return sum(parts)


@task
def with_list(ctx: JobContext, parts: list[int], label: str) -> str:
    return label


@task
def streamed(parts: Iterator[int]) -> None: ...


@task
async def streamed_async(parts: AsyncIterator[int]) -> None: ...


@task
def tolerant(parts: Sequence[int | Failed], label: str) -> str:
    return label


@task
def one_or_none(data: bytes | Failed) -> None: ...


@task
def pair(number: int, data: bytes, label: str = "") -> None: ...


@task
def notify(order: int) -> None: ...


def graphs_are_typed(session: Session, ctx: JobContext) -> None:
    w = Workflow("report", deadline=timedelta(hours=1))
    pages = [w.add(fetch, url) for url in ("a", "b")]
    assert_type(pages, list[Node[bytes]])
    counts = [w.then(page, count, unit="lines") for page in pages]
    assert_type(counts, list[Node[int]])
    total = w.gather(counts, add_up)
    assert_type(total, Node[int])
    assert_type(w.gather(counts, with_list, "x"), Node[str])
    assert_type(w.gather(counts, streamed), Node[None])
    assert_type(w.gather(counts, streamed_async), Node[None])
    assert_type(w.gather_partial(counts, tolerant, "x"), Node[str])
    assert_type(w.settled(counts), Join[int | Failed])
    w.gather(w.settled(counts), tolerant, label="x")
    w.gather(w.any(counts), add_up)
    w.gather(w.at_least(2, counts), add_up)
    w.gather(w.completed(counts), add_up)
    w.then(pages[0].settled, one_or_none)
    w.join(total, pages[0], pair, label="x")
    w.after([total, *pages], notify, 7)
    w.depend(total, w.gate(*pages))
    assert_type(w.add("shop.fetch", page=1), Node[Any])
    w.on_failure(notify, 7)
    w.on_end(TaskName("shop.end"), order=7)
    session.add(w)
    more = Workflow.of(ctx)
    assert_type(more, Addition)
    more.then(more.me, add_up)
    more.before_children(more.add(fetch, "c"))
    assert_type(more.insert(), Executable)
    b = Batch("mails")
    b.add(notify, 7)
    b.on_success(notify, 8)
    session.add(b)


def statements_are_executables(session: Session) -> None:
    for statement in (
        cancel_workflows(7, reason="no"),
        retry_workflow(7, from_node=8),
        pause_workflows(7),
        resume_workflows(7),
    ):
        assert_type(statement, Executable)


def what_does_not_fit_is_an_error(w: Workflow, b: Batch) -> None:
    page = w.add(fetch, "a")
    number = w.then(page, count)
    w.then(number, count)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    w.gather([page], add_up)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    w.gather([number], tolerant)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    w.gather_partial([number], add_up)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    w.gather(w.settled([number]), add_up)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    w.then(page.settled, count)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    w.then(page, count, unit=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    w.join(page, number, pair)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    w.add(fetch)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    w.on_end(notify, "7")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    b.then(page, count)  # type: ignore[attr-defined]  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]

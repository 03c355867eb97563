"""What a handler takes of other jobs: by its annotations, strictly."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from sa_jobqueue import Failed, JobContext, JobStatus
from sa_jobqueue.arguments.ends import Typed
from sa_jobqueue.arguments.inputs import Inputs, Part
from sa_jobqueue.errors import PayloadError


@dataclass
class Page:
    url: str
    lines: int


def part(value: Any, of: Any = Any, *, job_id: int = 1) -> Part:
    return Part(job_id, "completed", Typed[Any](of).to_json(value).decode(), None)


BAD = Part(9, "failed", None, '{"type": "KeyError", "message": "no such order"}')
GONE = Part(8, None, None, None)
FAILED = Failed(9, JobStatus.FAILED, "KeyError", "no such order")


def each(handler: Any, *parts: Part) -> list[Any]:
    return Inputs(handler, task="t", count=len(parts)).each(parts)


def of_list(handler: Any, *parts: Part) -> list[Any]:
    return Inputs(handler, task="t", count=0).of_list(parts)


def test_a_result_comes_as_the_type_of_the_parameter() -> None:
    """Behind the context, before what was given."""

    def takes(ctx: JobContext, page: Page, data: bytes, label: str) -> None: ...

    page = Page("a", 3)
    assert each(takes, part(page, Page), part(b"\xfe", bytes)) == [page, b"\xfe"]


@pytest.mark.parametrize("of", [Sequence[int], list[int], tuple[int, ...], Iterator[int]])
def test_a_list_of_results_comes_by_the_type_of_its_elements(of: Any) -> None:
    """Whatever holds them."""

    def takes(parts: Any) -> None: ...

    takes.__annotations__["parts"] = of
    assert of_list(takes, part(1), part(2)) == [1, 2]


def test_a_failed_part_is_said_where_the_handler_takes_it() -> None:
    """Also where results are dicts, as it would be in JSON itself."""

    def takes(parts: Sequence[dict[str, Any] | Failed]) -> None: ...

    assert of_list(takes, part({"job_id": 3}), BAD, GONE) == [{"job_id": 3}, FAILED, Failed(8, None, "", "")]
    assert str(FAILED) == "job 9 is failed (KeyError: no such order)"


def test_a_failed_part_is_refused_where_it_does_not() -> None:
    """The job fails, and says why."""

    def takes(parts: Sequence[int]) -> None: ...

    with pytest.raises(PayloadError, match="the result of job 9, which is failed"):
        of_list(takes, part(1), BAD)


def test_a_result_that_does_not_fit_is_refused() -> None:
    """Strictly: text is no number."""

    def takes(number: int) -> None: ...

    with pytest.raises(PayloadError, match="the result of job 1 does not fit it"):
        each(takes, part("3"))


def test_without_annotations_a_result_is_plain_json() -> None:
    """As the handler has said nothing."""

    def takes(parts): ...  # type: ignore[no-untyped-def]

    assert of_list(takes, part({"a": [1]}), BAD) == [{"a": [1]}, FAILED]


def test_an_iterator_is_asked_for_by_the_annotation() -> None:
    """False: for a `def` handler; True: for an `async def`; None: a list."""

    def sync(parts: Iterator[int]) -> None: ...
    async def asynchronous(parts: AsyncIterator[int]) -> None: ...
    def whole(parts: list[int]) -> None: ...

    assert [Inputs(one, task="t", count=0).stream for one in (sync, asynchronous, whole)] == [False, True, None]

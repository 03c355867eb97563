"""What a member of a workflow takes of others: read with the claims of many, or, where that is too much, page by page as it runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from typing import Any, NamedTuple

from ...context import ClaimedJob
from ...lifecycle import JobStatus, extra
from ...payload import Inputs, Part
from ...store import Input

__all__ = ["Taken", "taken_by", "values_of", "with_inputs"]

#: Results of others read at once, where a member has many.
_PAGE = 1_000

#: Reads a page: (the job, behind which position, how many).
Read = Callable[[int, int, int], list[Input]]


class Taken(NamedTuple):
    """What one member takes. `parts`: None where they are still to be read."""

    args: str
    number: int
    parts: list[Part] | None


def with_inputs(job: ClaimedJob, inputs: Sequence[Input] | None) -> ClaimedJob:
    """The job with what it takes, in place of its arguments alone. None: it is to be read as the job runs."""
    parts = None if inputs is None else list(parts_of(inputs))
    return job._replace(args=json.dumps({"args": job.args, "parts": parts}))


def taken_by(job: ClaimedJob) -> Taken | None:
    """What the job takes of others; None for nearly all jobs."""
    count = extra(job).get("inputs")
    if count is None:
        return None
    said = json.loads(job.args or "")
    parts = said["parts"]
    return Taken(said["args"], count, None if parts is None else [Part(*part) for part in parts])


def parts_of(inputs: Sequence[Input]) -> Generator[Part]:
    """The parts that the handler gets: all that completed, and where it runs without the others, a `Failed` for these."""
    for one in inputs:
        if one.status == JobStatus.COMPLETED or one.policy in {"run", "cancel"}:
            yield Part(one.parent_id, one.status, one.result, one.error)


class Reader:
    """Reads what one member takes, page by page."""

    def __init__(self, job: ClaimedJob, inputs: Inputs, read: Read) -> None:
        self._id, self._inputs, self._read = job.id, inputs, read
        self._after = -1

    def _page(self) -> list[Any] | None:
        page = self._read(self._id, self._after, _PAGE)
        if not page:
            return None
        self._after = page[-1].position or 0
        return self._inputs.of_list(parts_of(page))

    def all(self) -> list[Any]:
        """All of them. It waits for the database."""
        return list(self.stream())

    def stream(self) -> Generator[Any]:
        """One after the other; a page of them is in memory."""
        while (page := self._page()) is not None:
            yield from page

    async def astream(self) -> AsyncGenerator[Any]:
        """The same for an `async def` handler."""
        while (page := await asyncio.to_thread(self._page)) is not None:
            for one in page:
                yield one


def values_of(job: ClaimedJob, taken: Taken, inputs: Inputs, read: Read) -> list[Any] | Callable[[], list[Any]]:
    """What fills the first parameters of the handler; or, where it is to be read first, what does so."""
    if taken.parts is None:
        reader = Reader(job, inputs, read)
        if inputs.stream is not None:
            return [reader.astream() if inputs.stream else reader.stream()]
        return lambda: [reader.all()] if not inputs.count else inputs.each(parts_of(read(job.id, -1, inputs.count)))
    if inputs.count:
        return inputs.each(taken.parts)
    values = inputs.of_list(taken.parts)
    if inputs.stream is None:
        return [values]
    return [_as_async(values) if inputs.stream else iter(values)]


async def _as_async(values: list[Any]) -> AsyncGenerator[Any]:
    for one in values:
        yield one

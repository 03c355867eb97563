"""The results of other jobs that a handler takes as its first parameters.

>>> def add_up(parts: list[int], unit: str) -> int: ...
>>> inputs = Inputs(add_up, task="shop.add_up", count=0)
>>> inputs.of_list([Part(1, "completed", "3", None), Part(2, "completed", "4", None)])
[3, 4]
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from types import UnionType
from typing import Any, NamedTuple

from pydantic import ValidationError

from ..errors import PayloadError, TaskError
from ..rules.failures import error_text
from ..rules.lifecycle import JobStatus
from .ends import Typed, typed
from .signature import STREAMS, plan_of


@dataclass(frozen=True, slots=True)
class Failed:
    """What a handler that runs all the same gets in place of the result of a job that did not complete."""

    job_id: int
    """`Job.id`."""
    status: JobStatus | None
    """Failed or cancelled; None: the job is gone."""
    type: str
    """Of the error that ended it."""
    message: str
    """Its message."""

    def __str__(self) -> str:
        return f"job {self.job_id} is {self.status or 'gone'} ({error_text(self.type, self.message)})"


class Part(NamedTuple):
    """The end of a job whose result is taken; the result and the error as JSON text."""

    job_id: int
    status: str | None
    result: str | None
    error: str | None


class Inputs:
    """A handler's first `count` parameters, each the result of a job; 0: its first parameter, a list of results."""

    def __init__(self, handler: Callable[..., Any], *, task: str, count: int) -> None:
        self._handler, self._what, self.count = handler, f"task {task!r}", count

    @cached_property
    def _hints(self) -> tuple[Any, ...]:
        return plan_of(self._handler, self._what, given=self.count or 1).given

    @cached_property
    def stream(self) -> bool | None:
        """False: the handler takes an iterator. True: an async iterator. None: a list."""
        return None if self.count else STREAMS.get(typing.get_origin(self._hints[0]) or self._hints[0])

    @cached_property
    def _types(self) -> list[tuple[Typed[Any], bool]]:
        """Of each parameter, or of each element of the list: its type, and whether it may be a `Failed`."""
        return [self._type(hint) for hint in (self._hints if self.count else (_element(self._hints[0]),))]

    def _type(self, hint: Any) -> tuple[Typed[Any], bool]:
        kept, takes_failed = hint, hint is Any
        if typing.get_origin(hint) in (typing.Union, UnionType):
            parts = typing.get_args(hint)
            takes_failed = Failed in parts
            others = tuple(part for part in parts if part is not Failed)
            kept = typing.Union[others]  # noqa: UP007  # of parts that are known only here
        elif hint is Failed:
            kept, takes_failed = Any, True
        try:
            return typed(kept), takes_failed
        except TypeError as error:
            raise TaskError(
                f"{self._what}: what it takes from other jobs, {hint!r}, cannot be checked ({error})"
            ) from error

    def resolve(self) -> None:
        """Resolve the annotations now. Raises TaskError if the results of other jobs cannot be checked against them."""
        _ = self._types, self.stream

    def each(self, parts: Iterable[Part]) -> list[Any]:
        """A value for each parameter. Raises PayloadError for a value that does not fit."""
        return [self._value(part, *of) for part, of in zip(parts, self._types, strict=True)]

    def of_list(self, parts: Iterable[Part]) -> list[Any]:
        """The values of the list. Raises PayloadError for a value that does not fit."""
        ((of, takes_failed),) = self._types
        return [self._value(part, of, takes_failed) for part in parts]

    def _value(self, part: Part, of: Typed[Any], takes_failed: bool) -> Any:
        if part.status != JobStatus.COMPLETED:
            if not takes_failed:
                raise PayloadError(
                    f"{self._what}: it takes the result of job {part.job_id}, which is {part.status or 'gone'}"
                )
            return _failed(part)
        try:
            return of.from_json("null" if part.result is None else part.result)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            raise PayloadError(
                f"{self._what}: the result of job {part.job_id} does not fit it: {first['msg']}"
            ) from error


def _element(hint: Any) -> Any:
    """The type of the elements of a list, a sequence, or an iterator."""
    args = typing.get_args(hint)
    return args[0] if args else Any


def _failed(part: Part) -> Failed:
    error: Any = None if part.error is None else json.loads(part.error)
    entry = error if isinstance(error, dict) else {}
    status = None if part.status is None else JobStatus(part.status)
    return Failed(part.job_id, status, str(entry.get("type", "")), str(entry.get("message", "")))

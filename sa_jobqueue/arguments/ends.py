"""The end of a job: its status, the result that its handler returned, the error that ended it.

>>> end = JobEnd(7, "shop.count_lines", JobStatus.COMPLETED, {"lines": 3}, None)
>>> end.is_completed, end.result_as(dict[str, int])
(True, {'lines': 3})
>>> JobEnd(8, "shop.count_lines", JobStatus.FAILED, None, {"type": "KeyError", "message": "no such order"}).result_as(
...     int
... )
Traceback (most recent call last):
...
sa_jobqueue.errors.ResultError: job 8 has no result: it is failed (KeyError: no such order)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast, overload

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import SchemaError, SchemaSerializer, to_json
from pydantic_core.core_schema import CoreConfig
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from ..errors import PayloadError, ResultError, TaskError
from ..rules.failures import error_text, name_of
from ..rules.lifecycle import JobStatus
from .storable import same

T = TypeVar("T")

#: How JSON is checked against annotations: strictly.
STRICT = ConfigDict(strict=True, val_json_bytes="base64")
#: For the serializer as a whole, which ignores the configuration of a TypedDict.
TO_JSON = CoreConfig(ser_json_inf_nan="constants", ser_json_bytes="base64")

_BEFORE, _AFTER = b'{"value":', b"}"


#: What pydantic raises for a type that it cannot check.
NOT_CHECKABLE = (PydanticUserError, SchemaError, TypeError, NameError)


def strict_adapter(fields: Mapping[str, Any], **config: Any) -> TypeAdapter[Any]:
    """An adapter for a dict of these fields, name to type, that checks strictly. Raises one of `NOT_CHECKABLE`."""
    make: Any = TypedDict  # type checkers want the fields written down
    shape = make("fields", dict(fields))
    shape.__pydantic_config__ = STRICT | config
    return TypeAdapter(shape)


def reason_of(error: Exception) -> str:
    """The message of pydantic about a type that it cannot check, without its advice for models."""
    return str(error).splitlines()[0].partition(". Set ")[0]


class Typed(Generic[T]):
    """Converts a value of an annotated type to JSON and back, strictly. Raises TypeError for a type that pydantic cannot check."""

    def __init__(self, hint: Any) -> None:
        try:
            # Inside of a dict, because a type may have a configuration of its own, and then an adapter takes no other.
            adapter = strict_adapter({"value": hint})
        except (*NOT_CHECKABLE, TaskError) as error:
            raise TypeError(reason_of(error)) from error
        self._validate_python = adapter.validator.validate_python
        self._validate_json = adapter.validator.validate_json
        self._serialize = SchemaSerializer(adapter.core_schema, TO_JSON).to_json

    def to_json(self, value: object) -> bytes:
        """The value as JSON. Raises ValidationError if it is not of the type."""
        valid = self._validate_python({"value": value}, strict=True)
        return self._serialize(valid, by_alias=True, warnings=False)[len(_BEFORE) : -len(_AFTER)]

    def to_equal_json(self, value: object) -> bytes:
        """The value as JSON. Raises ValidationError if it is not of the type, ValueError if it would come back changed."""
        valid = self._validate_python({"value": value}, strict=True)
        data = self._serialize(valid, by_alias=True, warnings=False)
        if not same(valid["value"], self._validate_json(data, strict=True)["value"]):
            raise ValueError("it would come back from JSON changed")
        return data[len(_BEFORE) : -len(_AFTER)]

    def from_json(self, text: str) -> T:
        """Restore the value from JSON text. Raises ValidationError if it does not fit."""
        found = self._validate_json(_BEFORE + text.encode() + _AFTER, strict=True)
        return cast(T, found["value"])

    def from_plain(self, value: object) -> T:
        """Restore the value from JSON that Python has loaded. Raises ValidationError if it does not fit."""
        found = self._validate_json(_BEFORE + to_json(_with_numbers(value)) + _AFTER, strict=True)
        return cast(T, found["value"])


def _with_numbers(value: Any) -> Any:
    """Plain JSON whose numbers an application reads as Decimal: with numbers again, because a Decimal itself is stored as a text."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and "." not in str(value) else float(value)
    if isinstance(value, dict):
        return {name: _with_numbers(item) for name, item in value.items()}
    return [_with_numbers(item) for item in value] if isinstance(value, list) else value


@overload
def typed(hint: type[T]) -> Typed[T]: ...
@overload
def typed(hint: Any) -> Typed[Any]: ...
def typed(hint: Any) -> Typed[Any]:
    """A `Typed` of this type, made once. Raises TypeError for a type that pydantic cannot check."""
    try:
        hash(hint)
    except TypeError:  # an Annotated with a list, say
        return Typed(hint)
    return _made(hint)


@lru_cache(maxsize=256)
def _made(hint: Any) -> Typed[Any]:
    return Typed(hint)


def result_as(of: JobEnd, hint: Any) -> Any:
    """The result as a value of the type `hint`. Raises ResultError if there is none, or it does not fit."""
    if not of.is_completed:
        raise ResultError(f"job {of.id} has no result: {_state(of)}")
    try:
        return typed(hint).from_plain(of.result)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = "".join(f"[{part!r}]" for part in first["loc"][1:])
        at = f" (at {path})" if path else ""
        raise ResultError(
            f"job {of.id}: its result is no {type_name(hint)}: {first['msg']}{at}{_why_none(of)}"
        ) from error


def _state(of: JobEnd) -> str:
    if of.is_gone:
        return "it is not there, because it was deleted, never committed, or is in a transaction that has not committed yet"
    because = "" if of.error is None else f" ({error_text(of.error.get('type'), of.error.get('message'))})"
    return f"it is {of.status}{because}"


def _why_none(of: JobEnd) -> str:
    if of.result is not None:
        return ""
    if of.error is not None and of.error.get("type") == name_of(PayloadError):
        return f"; it was not stored: {of.error.get('message')}"
    return "; a result is stored only if the task says record=True"


def type_name(hint: Any) -> str:
    """The name of a type as in code: Approval, Literal['red', 'green'], int | None."""
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The end of a job."""

    id: int
    """`Job.id`."""
    task: str | None
    """The name under which it was enqueued; None if the job is gone."""
    status: JobStatus | None
    """Completed, failed or cancelled. None: the job is gone."""
    result: Any | None
    """What the handler returned, as plain JSON, if its task says `record=True`."""
    error: Mapping[str, Any] | None
    """The last entry of `Job.errors`: at, attempt, type, message, traceback. A job that completed has an error, too, if an earlier
    attempt failed."""

    @property
    def is_completed(self) -> bool:
        """Whether the handler did its work."""
        return self.status is JobStatus.COMPLETED

    @property
    def is_gone(self) -> bool:
        """Whether there is no such job: it was deleted (by `retain=0`, or by pruning), or was never committed, or is in a
        transaction that has not committed yet.
        """
        return self.status is None

    def result_as(self, type: type[T]) -> T:
        """The result as a value of this type, checked as strictly as arguments are.

        Raises ResultError if the job did not complete, or the result does not fit.
        """
        return cast(T, result_as(self, type))

"""The result of a handler as JSON, checked against its return annotation.

>>> def count(order_id: int) -> list[int]: ...
>>> results = Results(count, task="shop.count")
>>> results.encode([1, 2])
'[1,2]'
>>> results.encode("two")
Traceback (most recent call last):
...
sa_jobqueue.errors.PayloadError: task 'shop.count': its result: input should be a valid list, got 'two'
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from types import UnionType
from typing import Any

from pydantic import ValidationError

from ..errors import PayloadError, TaskError
from ..rules.outcomes import Cancel, Discard, RateLimited, Retry, Snooze
from .ends import Typed, typed
from .resolving import return_hint
from .storable import MAX_PAYLOAD, checked_json, encode_value, refusal, shown, unstorable

#: Compared by ==, because an annotation need not be hashable.
_SIGNALS = (Cancel, Discard, RateLimited, Retry, Snooze)
_SAYS_NOTHING = (*_SIGNALS, typing.NoReturn, typing.Never, object)


class Results:
    """A handler's results. The annotation is resolved at the first use, when all modules have been imported.

    A handler without a return annotation, or with `Any`, may return anything that pydantic can turn into JSON. `batch`: the handler returns a
    list with one result per job.
    """

    __slots__ = ("_batch", "_handler", "_hint", "_resolved", "_task", "_typed")

    def __init__(self, handler: Callable[..., Any], *, task: str, batch: bool = False) -> None:
        self._handler, self._task, self._batch = handler, task, batch
        self._resolved = False
        self._hint: Any = Any
        self._typed: Typed[Any] | None = None

    def resolve(self) -> None:
        """Resolve the annotation now. Raises TaskError if that cannot be done, or results cannot be checked against it."""
        if self._resolved:
            return
        hint = _without_signals(return_hint(self._handler, f"task {self._task!r}"))
        if self._batch and hint not in (Any, None, type(None)):
            hint = self._item_of(hint)
        if hint is not Any:
            try:
                self._typed = typed(hint)
            except TypeError as error:
                raise TaskError(
                    f"task {self._task!r}: its results (record=True) cannot be checked against its return annotation ({error}): "
                    "return plain JSON, a dataclass or a pydantic model, or do not annotate what it returns"
                ) from error
        self._hint, self._resolved = hint, True

    def _item_of(self, hint: Any) -> Any:
        """The type of one job's result, for the annotation of a batch handler."""
        parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else (hint,)
        lists = [part for part in parts if part not in (None, type(None))]
        if len(lists) != 1 or (lists[0] is not list and typing.get_origin(lists[0]) is not list):
            raise TaskError(
                f"task {self._task!r}: a batch handler with record=True returns a list, with one result for each job; it is annotated to "
                f"return {hint!r}"
            )
        return _without_signals(next(iter(typing.get_args(lists[0])), Any))

    @property
    def hint(self) -> Any:
        """The type of the results; `Any` where the handler does not say it."""
        self.resolve()
        return self._hint

    def encode(self, value: object, *, limit: int = MAX_PAYLOAD, of: str | None = None) -> str:
        """The returned value as JSON text. Raises PayloadError if the value does not fit the annotation or cannot be stored.

        `of`: the task, or the step of a task, that the message names.
        """
        what = f"{of or f'task {self._task!r}'}: its result"
        if not self._resolved:
            self.resolve()
        if self._typed is None:
            return encode_value(value, what=what, limit=limit)
        try:
            data = self._typed.to_json(value)
        except ValidationError as error:
            if next(unstorable(value), None):
                raise refusal(error, value, what=what, item="") from error
            raise _misfit(error, what) from error
        except Exception as error:  # from the serializer, or from a validator of the application
            raise refusal(error, value, what=what, item="") from error
        return checked_json(data, value, what=what, item="", limit=limit)


def _misfit(error: ValidationError, what: str) -> PayloadError:
    first = error.errors(include_url=False, include_context=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"][1:]).removeprefix(".")
    message = first["msg"][:1].lower() + first["msg"][1:]
    return PayloadError(f"{what}: {f'{path}: ' if path else ''}{message}, got {shown(first['input'])}")


def _without_signals(hint: Any) -> Any:
    """The annotation without the outcomes, which are no results: `int` for `int | Snooze`."""
    if hint in _SAYS_NOTHING:
        return Any
    if typing.get_origin(hint) not in (typing.Union, UnionType):
        return hint
    kept = tuple(part for part in typing.get_args(hint) if part not in _SIGNALS)
    return typing.Union[kept] if kept else Any  # noqa: UP007  # of parts that are known only here

"""A handler's signature, resolved once, with a validator and a serializer for its arguments."""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial
from types import GenericAlias, NoneType, UnionType
from typing import Any, NotRequired, Unpack
from uuid import UUID

from pydantic import TypeAdapter
from pydantic_core import SchemaSerializer, to_json

from ..errors import TaskError
from .columns import has_sets
from .context import AsyncJobContext, JobContext
from .ends import NOT_CHECKABLE, TO_JSON, reason_of, strict_adapter
from .injected import Injected, injected_by
from .loading import with_objects
from .references import ObjectArgument
from .resolving import hints_of, signature

#: Types whose values are sure to come back from JSON as they were.
_EXACT = frozenset({int, str, bool, float, NoneType, UUID, date})

#: Iterators by which a handler may take results; the value: whether it is for an `async def`.
STREAMS: Mapping[Any, bool] = {Iterator: False, Iterable: False, AsyncIterator: True, AsyncIterable: True}

_Parameter = inspect.Parameter
_POSITIONAL = (_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (_Parameter.VAR_POSITIONAL, _Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class _Rest:
    """A handler's `**name`."""

    name: str
    adapter: TypeAdapter[Any]

    def validate_python(self, values: dict[str, Any]) -> dict[str, Any]:
        valid: dict[str, Any] = self.adapter.validator.validate_python({self.name: values}, strict=True)[self.name]
        return valid

    def validate_json(self, values: dict[str, Any]) -> dict[str, Any]:
        data = to_json({self.name: values})
        valid: dict[str, Any] = self.adapter.validator.validate_json(data, strict=True)[self.name]
        return valid


@dataclass(frozen=True, slots=True)
class Plan:
    """The resolved signature of a handler."""

    context: type[JobContext | AsyncJobContext] | None
    taken: frozenset[str]
    """The names of what the worker gives, where a keyword of `**kwargs` could have them: the context, and injected values."""
    positional: tuple[str, ...]
    positional_only: frozenset[str]
    variable: str | None
    rest: _Rest | None
    validate_python: Callable[..., dict[str, Any]]
    validate_json: Callable[..., dict[str, Any]]
    to_json: Callable[..., bytes]
    exact: bool
    as_keywords: bool
    names: tuple[str, ...]
    objects: bool
    """Whether an argument is a mapped object, or holds some."""
    hints: Mapping[str, Any]
    """The annotation of each parameter, `Any` where there is none; of `*args` and `**kwargs` that of a single value."""
    required: frozenset[str]
    """The parameters without a default."""
    sets: bool
    """Whether an argument may be or contain a set."""
    injected: Injected | None
    """The values that the worker injects; None: none."""
    given: tuple[Any, ...] = ()
    """The types of the parameters that results of other jobs fill."""

    def hint_of(self, name: str) -> Any:
        """The annotation of the argument `name`, or of `**kwargs`."""
        if name in self.hints or self.rest is None:
            return self.hints[name]
        hint = self.hints[self.rest.name]
        if typing.get_origin(hint) is Unpack:
            return typing.get_type_hints(typing.get_args(hint)[0]).get(name, Any)
        return hint


def plan_of(handler: Callable[..., Any], what: str, *, given: int = 0) -> Plan:
    """Resolve the handler's annotations. Raises TaskError, whose message begins with `what`, if one cannot be resolved.

    `given`: how many of the first parameters, behind the context, are no arguments, because results of other jobs fill them.
    """
    parameters = list(signature(handler).parameters.values())
    hints = hints_of(handler, parameters, what)
    context = hints.get(parameters[0].name) if parameters else None
    taken = set[str]()
    if context in (JobContext, AsyncJobContext):
        first = parameters.pop(0)
        _check_context(handler, context, first, what)
        taken |= {first.name} if first.kind is _Parameter.POSITIONAL_OR_KEYWORD else set()
    else:
        context = None
        if any(item.name == "ctx" and item.annotation is item.default is _Parameter.empty for item in parameters[:1]):
            needed = (AsyncJobContext if inspect.iscoroutinefunction(handler) else JobContext).__name__
            raise TaskError(
                f"{what}: the worker gives the context to a parameter that is annotated: annotate 'ctx' with {needed}"
            )
    injected, every = injected_by(handler, parameters, hints, what), parameters
    if injected is not None:
        taken |= injected.names
        parameters = [parameter for parameter in every if parameter.name not in taken]
    firsts = parameters[:given]
    if firsts != every[:given]:
        raise TaskError(f"{what}: it is to take {_results(given)} first: write its injected parameters behind them")
    if len(firsts) < given or any(item.kind not in _POSITIONAL for item in firsts):
        raise TaskError(f"{what}: it is to take {_results(given)}, and its handler has too few parameters for that")
    parameters = parameters[given:]
    fields: dict[str, Any] = {}
    variable: str | None = None
    rest: _Rest | None = None
    objects = False
    for parameter in parameters:
        hint: Any = hints.get(parameter.name, Any)
        if typing.get_origin(hint) in STREAMS:
            hint = Any  # it is for the results of others, and checked with them
        if hint in (JobContext, AsyncJobContext):
            raise TaskError(f"{what}: the context must be the first parameter, not {parameter.name!r}")
        plain, hint = hint, _with_objects(hint, parameter.name, what)
        objects = objects or hint is not plain
        hints[parameter.name] = hint
        if parameter.kind is _Parameter.VAR_KEYWORD:
            of = hint.__args__[0] if typing.get_origin(hint) is Unpack else GenericAlias(dict, (str, hint))
            rest = _Rest(parameter.name, _adapter(what, {parameter.name: of}))
        elif parameter.kind is _Parameter.VAR_POSITIONAL:
            variable = parameter.name
            fields[variable] = NotRequired[tuple[hint, ...]]
        else:
            fields[parameter.name] = hint if parameter.default is _Parameter.empty else NotRequired[hint]
    adapter = _adapter(what, fields, extra="forbid" if rest is None else "allow")
    names = tuple(fields)
    only = frozenset(item.name for item in parameters if item.kind is _Parameter.POSITIONAL_ONLY)
    return Plan(
        context=context,
        taken=frozenset(taken),
        positional=tuple(item.name for item in parameters if item.kind in _POSITIONAL),
        positional_only=only,
        variable=variable,
        rest=rest,
        validate_python=adapter.validator.validate_python,
        validate_json=adapter.validator.validate_json,
        to_json=partial(SchemaSerializer(adapter.core_schema, TO_JSON).to_json, by_alias=True, warnings=False),
        exact=rest is None and all(_exact(hints.get(name, Any)) for name in names if name != variable) and not variable,
        as_keywords=not only and variable is None and rest is None,
        names=names,
        objects=objects,
        hints={item.name: hints.get(item.name, Any) for item in parameters},
        required=frozenset(
            item.name for item in parameters if item.default is item.empty and item.kind not in _VARIABLE
        ),
        sets=has_sets(adapter.core_schema) or (rest is not None and has_sets(rest.adapter.core_schema)),
        injected=injected,
        given=tuple(hints.get(item.name, Any) for item in firsts),
    )


def _with_objects(hint: Any, name: str, what: str) -> Any:
    try:
        return with_objects(hint, name)
    except (TypeError, TaskError) as error:
        raise TaskError(f"{what}: the annotation of {name!r} cannot be used: {error}") from error


def _check_context(handler: Callable[..., Any], context: Any, parameter: inspect.Parameter, what: str) -> None:
    if parameter.kind not in _POSITIONAL:
        raise TaskError(f"{what}: the context {parameter.name!r} is given by position, before any `*`")
    if inspect.iscoroutinefunction(handler) != (context is AsyncJobContext):
        if inspect.iscoroutinefunction(inspect.unwrap(handler)) == (context is AsyncJobContext):
            raise TaskError(
                f"{what}: a decorator turns an `async def` into a `def`, or a `def` into an `async def`: make both the same"
            )
        is_async = context is JobContext
        gets = "an `async def` handler gets an AsyncJobContext" if is_async else "a `def` handler gets a JobContext"
        needed = "AsyncJobContext" if is_async else "JobContext"
        raise TaskError(f"{what}: {gets}: annotate {parameter.name!r} with {needed}")


def _adapter(
    what: str, fields: dict[str, Any], *, extra: typing.Literal["forbid", "allow"] = "forbid"
) -> TypeAdapter[Any]:
    try:
        return strict_adapter(fields, extra=extra)
    except NOT_CHECKABLE as error:
        raise TaskError(f"{what}: {_culprit(fields) or error}") from error


def _culprit(fields: dict[str, Any]) -> str | None:
    """The parameter that pydantic cannot validate, with pydantic's message."""
    for name, hint in fields.items():
        try:
            TypeAdapter(hint.__args__[0] if typing.get_origin(hint) is NotRequired else hint)
        except Exception as error:  # any error is reported
            if typing.get_args(hint) and not {JobContext, AsyncJobContext}.isdisjoint(typing.get_args(hint)):
                return f"annotate {name!r} with the context's class alone: the worker always gives it"
            reason = reason_of(error)
            if "typing_extensions" in reason:  # pydantic's word for a TypedDict before Python 3.12
                return f"the annotation of {name!r} cannot be checked: {reason}"
            return (
                f"the annotation of {name!r} cannot be checked ({reason}): "
                "pass a mapped object, plain JSON, a dataclass or a pydantic model"
            )
    return None


def _exact(hint: Any) -> bool:
    """Whether all values of this annotation are sure to come back equal."""
    if hint in _EXACT:
        return True
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return isinstance(inner[1], ObjectArgument)
    if origin is list:
        return _exact(inner[0])
    if origin is dict:
        return inner[0] is str and _exact(inner[1])
    if origin is typing.Union or origin is UnionType:
        return len(inner) == 2 and NoneType in inner and all(_exact(part) for part in inner)
    return False


def _results(number: int) -> str:
    return "the result of another job" if number == 1 else f"the results of {number} other jobs"

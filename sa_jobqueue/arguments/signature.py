"""A handler's signature, resolved once, with a validator and a serializer for its arguments."""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial
from types import GenericAlias, NoneType, UnionType
from typing import Any, NotRequired, TypeAlias, Unpack
from uuid import UUID

from pydantic import TypeAdapter
from pydantic_core import SchemaSerializer, SchemaValidator, to_json
from pydantic_core.core_schema import CoreConfig

from ..errors import TaskError
from ..util.urls import SECRET
from .batches import AsyncBatchContext, BatchContext
from .columns import has_sets
from .context import AsyncJobContext, JobContext
from .ends import NOT_CHECKABLE, TO_JSON, reason_of, strict_adapter
from .injected import Injected, injected_by, takes_context
from .loading import with_objects
from .references import ObjectArgument
from .resolving import hints_of, signature
from .secrets import Sealing, SecretArgument, secret_in, with_secret

#: Types whose values are sure to come back from JSON as they were.
_EXACT = frozenset({int, str, bool, float, NoneType, UUID, date})

#: Iterators by which a handler may take results; the value: whether it is for an `async def`.
STREAMS: Mapping[Any, bool] = {Iterator: False, Iterable: False, AsyncIterator: True, AsyncIterable: True}

_HIDING = CoreConfig(hide_input_in_errors=True)

_Parameter = inspect.Parameter
_POSITIONAL = (_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (_Parameter.VAR_POSITIONAL, _Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class _Rest:
    """A handler's `**name`."""

    name: str
    adapter: TypeAdapter[Any]
    validator: SchemaValidator

    def validate_python(self, values: dict[str, Any]) -> dict[str, Any]:
        valid: dict[str, Any] = self.validator.validate_python({self.name: values}, strict=True)[self.name]
        return valid

    def validate_json(self, values: dict[str, Any]) -> dict[str, Any]:
        data = to_json({self.name: values})
        valid: dict[str, Any] = self.validator.validate_json(data, strict=True)[self.name]
        return valid


#: The class of a handler's context, by whether the handler takes a batch and whether it is an `async def`.
Context: TypeAlias = type[JobContext | AsyncJobContext | BatchContext | AsyncBatchContext]
_CONTEXTS: Mapping[tuple[bool, bool], Context] = {
    (False, False): JobContext,
    (False, True): AsyncJobContext,
    (True, False): BatchContext,
    (True, True): AsyncBatchContext,
}
_ALL_CONTEXTS = tuple(_CONTEXTS.values())


@dataclass(frozen=True, slots=True)
class Plan:
    """The resolved signature of a handler."""

    context: Context | None
    taken: frozenset[str]
    """The names of the context and of injected values, which a keyword of `**kwargs` must not have."""
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
    secrets: frozenset[str]
    """The parameters with `Secret()` or `Sensitive()`."""
    given: tuple[Any, ...] = ()
    """The types of the parameters that results of other jobs fill."""

    @property
    def encrypted(self) -> frozenset[str]:
        """The parameters with `Secret()`."""
        marks = {name: secret_in(self.hints[name]) for name in self.secrets}
        return frozenset(name for name, found in marks.items() if found is not None and found.mark == SECRET)

    def hint_of(self, name: str) -> Any:
        """The annotation of the argument `name`, or of `**kwargs`."""
        if name in self.hints or self.rest is None:
            return self.hints[name]
        hint = self.hints[self.rest.name]
        if typing.get_origin(hint) is Unpack:
            return typing.get_type_hints(typing.get_args(hint)[0]).get(name, Any)
        return hint


#: For a task that has no keys.
UNSEALED = Sealing((), lambda: None)


def plan_of(
    handler: Callable[..., Any], what: str, *, given: int = 0, batch: bool = False, sealing: Sealing = UNSEALED
) -> Plan:
    """Resolve the handler's annotations. Raises TaskError, whose message begins with `what`, for an annotation that cannot be resolved.

    `given`: the number of first parameters, after the context, that results of other jobs fill. `batch`: each parameter of the
    handler is a list with one item per job; the plan describes the arguments of one job. `sealing`: for secret arguments.
    """
    parameters = list(signature(handler).parameters.values())
    hints = hints_of(handler, parameters, what)
    context, taken = _context_of(handler, parameters, hints, what, batch=batch)
    injected, every = injected_by(handler, parameters, hints, what), parameters
    if injected is not None:
        taken |= injected.names
        parameters = [parameter for parameter in every if parameter.name not in taken]
        if batch:
            _refuse_context(injected, what)
    firsts = parameters[:given]
    if firsts != every[:given]:
        raise TaskError(f"{what}: it takes {_results(given)} first: write its injected parameters after them")
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
        if batch:
            hint = _item_of(hint, parameter, what)
        if hint in _ALL_CONTEXTS:
            raise TaskError(f"{what}: the context must be the first parameter, not {parameter.name!r}")
        plain, hint = hint, _with_markers(hint, parameter, what, sealing)
        objects = objects or (hint is not plain and secret_in(hint) is None)
        hints[parameter.name] = hint
        if parameter.kind is _Parameter.VAR_KEYWORD:
            of = hint.__args__[0] if typing.get_origin(hint) is Unpack else GenericAlias(dict, (str, hint))
            of_rest = _adapter(what, {parameter.name: of})
            rest = _Rest(parameter.name, of_rest, SchemaValidator(of_rest.core_schema, _HIDING))
        elif parameter.kind is _Parameter.VAR_POSITIONAL:
            variable = parameter.name
            fields[variable] = NotRequired[tuple[hint, ...]]
        else:
            fields[parameter.name] = hint if parameter.default is _Parameter.empty else NotRequired[hint]
    adapter = _adapter(what, fields, extra="forbid" if rest is None else "allow")
    secrets = frozenset(name for name in fields if secret_in(hints.get(name)) is not None)
    # Otherwise the text of a ValidationError contains the values.
    validator = SchemaValidator(adapter.core_schema, _HIDING) if secrets else adapter.validator
    names = tuple(fields)
    only = frozenset(item.name for item in parameters if item.kind is _Parameter.POSITIONAL_ONLY)
    return Plan(
        context=context,
        taken=frozenset(taken),
        positional=tuple(item.name for item in parameters if item.kind in _POSITIONAL),
        positional_only=only,
        variable=variable,
        rest=rest,
        validate_python=validator.validate_python,
        validate_json=validator.validate_json,
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
        secrets=secrets,
        given=tuple(hints.get(item.name, Any) for item in firsts),
    )


def _with_markers(hint: Any, parameter: inspect.Parameter, what: str, sealing: Sealing) -> Any:
    """The annotation for pydantic, with secrets and mapped objects in their stored form."""
    name = parameter.name
    try:
        with_references = with_objects(hint, name)
        found = with_references if parameter.kind in _VARIABLE else with_secret(with_references, name, sealing)
        if found is not with_references is not hint:
            raise TypeError("a mapped object is stored as its key, which is no secret")
    except (TypeError, TaskError) as error:
        raise TaskError(f"{what}: the annotation of {name!r} cannot be used: {error}") from error
    return found


def _context_of(
    handler: Callable[..., Any],
    parameters: list[inspect.Parameter],
    hints: Mapping[str, Any],
    what: str,
    *,
    batch: bool,
) -> tuple[Context | None, set[str]]:
    """Remove the context from `parameters` and return it, with its name if a keyword could have this name."""
    context = hints.get(parameters[0].name) if parameters else None
    is_async = inspect.iscoroutinefunction(handler)
    if context in _ALL_CONTEXTS:
        first = parameters.pop(0)
        _check_context(handler, context, first, what, batch=batch)
        return context, {first.name} if first.kind is _Parameter.POSITIONAL_OR_KEYWORD else set()
    if batch:
        needed = _CONTEXTS[True, is_async].__name__
        raise TaskError(f"{what}: a batch handler takes a context first: write ctx: {needed} as its first parameter")
    if any(item.name == "ctx" and item.annotation is item.default is _Parameter.empty for item in parameters[:1]):
        needed = _CONTEXTS[False, is_async].__name__
        raise TaskError(
            f"{what}: the worker passes the context only to an annotated parameter: annotate 'ctx' with {needed}"
        )
    return None, set()


def _refuse_context(injected: Injected, what: str) -> None:
    if any(takes_context(value) for _, value in injected.values):
        raise TaskError(
            f"{what}: a provider takes the context of a job, and a batch has many jobs: inject a value without it"
        )


_MARKS = ", and marks are of an item, as in list[Annotated[str, Secret()]]"


def _item_of(hint: Any, parameter: inspect.Parameter, what: str) -> Any:
    """The type of the list items of a batch handler's parameter: the type of one job's argument."""
    if parameter.kind in _VARIABLE or parameter.default is not parameter.empty:
        raise TaskError(
            f"{what}: the parameter {parameter} of a batch handler must be a list without a default, as orders: list[Order]: each job "
            "has an item in it"
        )
    if hint in (Any, list):
        return Any
    if typing.get_origin(hint) is not list:
        raise TaskError(
            f"{what}: the parameter {parameter.name!r} of a batch handler must be annotated as a list, list[Order] say, not {hint!r}: "
            f"each job has an item in it{_MARKS if typing.get_origin(hint) is typing.Annotated else ''}"
        )
    return typing.get_args(hint)[0]


def _check_context(
    handler: Callable[..., Any], context: Any, parameter: inspect.Parameter, what: str, *, batch: bool
) -> None:
    if parameter.kind not in _POSITIONAL:
        raise TaskError(f"{what}: the context {parameter.name!r} is given by position, before any `*`")
    of_batch = context in (BatchContext, AsyncBatchContext)
    if batch != of_batch:
        needed = _CONTEXTS[batch, inspect.iscoroutinefunction(handler)].__name__
        mend = f"annotate {parameter.name!r} with {needed}"
        raise TaskError(
            f"{what}: its handler takes many jobs: {mend}"
            if batch
            else f"{what}: a {context.__name__} is for @task(batch=Batching(...)): give that, or {mend}"
        )
    if inspect.iscoroutinefunction(handler) != (context in (AsyncJobContext, AsyncBatchContext)):
        if inspect.iscoroutinefunction(inspect.unwrap(handler)) == (context in (AsyncJobContext, AsyncBatchContext)):
            raise TaskError(
                f"{what}: a decorator turns an `async def` into a `def`, or a `def` into an `async def`: make both the same"
            )
        is_async = inspect.iscoroutinefunction(handler)
        needed = _CONTEXTS[batch, is_async].__name__
        gets = f"an `async def` handler gets an {needed}" if is_async else f"a `def` handler gets a {needed}"
        raise TaskError(f"{what}: {gets}: annotate {parameter.name!r} with {needed}")


def _adapter(
    what: str, fields: dict[str, Any], *, extra: typing.Literal["forbid", "allow"] = "forbid"
) -> TypeAdapter[Any]:
    try:
        return strict_adapter(fields, extra=extra)
    except TaskError as error:
        raise TaskError(f"{what}: {error}") from error
    except NOT_CHECKABLE as error:
        raise TaskError(f"{what}: {_culprit(fields) or error}") from error


def _culprit(fields: dict[str, Any]) -> str | None:
    """The parameter that pydantic cannot validate, with pydantic's message."""
    for name, hint in fields.items():
        try:
            TypeAdapter(hint.__args__[0] if typing.get_origin(hint) is NotRequired else hint)
        except Exception as error:  # any error is reported
            if typing.get_args(hint) and not set(_ALL_CONTEXTS).isdisjoint(typing.get_args(hint)):
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
        return isinstance(inner[1], (ObjectArgument, SecretArgument))
    if origin is list:
        return _exact(inner[0])
    if origin is dict:
        return inner[0] is str and _exact(inner[1])
    if origin is typing.Union or origin is UnionType:
        return len(inner) == 2 and NoneType in inner and all(_exact(part) for part in inner)
    return False


def _results(number: int) -> str:
    return "the result of another job" if number == 1 else f"the results of {number} other jobs"

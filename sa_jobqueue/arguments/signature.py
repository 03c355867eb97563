"""A handler's signature, resolved once, with a validator and a serializer for its arguments."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial
from types import GenericAlias, NoneType, SimpleNamespace, UnionType
from typing import Any, NotRequired, Unpack
from uuid import UUID

from pydantic import TypeAdapter
from pydantic_core import SchemaSerializer, SchemaValidator, to_json
from pydantic_core.core_schema import CoreConfig

from ..errors import TaskError
from ..util.urls import SECRET
from .columns import has_sets
from .context import AsyncJobContext, JobContext
from .ends import NOT_CHECKABLE, TO_JSON, reason_of, strict_adapter
from .loading import with_objects
from .references import ObjectArgument
from .secrets import Sealing, SecretArgument, secret_in, with_secret

#: Types whose values are sure to come back from JSON as they were.
_EXACT = frozenset({int, str, bool, float, NoneType, UUID, date})

#: Iterators by which a handler may take results; the value: whether it is for an `async def`.
STREAMS: Mapping[Any, bool] = {Iterator: False, Iterable: False, AsyncIterator: True, AsyncIterable: True}

_HIDING = CoreConfig(hide_input_in_errors=True)

_Parameter = inspect.Parameter
_POSITIONAL = (_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (_Parameter.VAR_POSITIONAL, _Parameter.VAR_KEYWORD)


def signature(handler: Callable[..., Any]) -> inspect.Signature:
    """The handler's signature, with its annotations left unresolved."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(handler, annotation_format=Format.FORWARDREF)
    return inspect.signature(handler)


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
    taken: str | None
    """The name of the context, where a keyword of `**kwargs` could have it."""
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
        return (
            typing.get_type_hints(typing.get_args(hint)[0]).get(name, Any)
            if typing.get_origin(hint) is Unpack
            else hint
        )


#: For a task that has no keys.
UNSEALED = Sealing((), lambda: None)


def plan_of(handler: Callable[..., Any], what: str, *, given: int = 0, sealing: Sealing = UNSEALED) -> Plan:
    """Resolve the handler's annotations. Raises TaskError, whose message begins with `what`, if one cannot be resolved.

    `given`: how many of the first parameters, behind the context, are no arguments, because results of other jobs fill them. `sealing`: for secret
    arguments.
    """
    parameters = list(signature(handler).parameters.values())
    hints = _hints(handler, parameters, what)
    context = hints.get(parameters[0].name) if parameters else None
    taken: str | None = None
    if context in (JobContext, AsyncJobContext):
        first = parameters.pop(0)
        _check_context(handler, context, first, what)
        taken = first.name if first.kind is _Parameter.POSITIONAL_OR_KEYWORD else None
    else:
        context = None
        if any(item.name == "ctx" and item.annotation is item.default is _Parameter.empty for item in parameters[:1]):
            needed = (AsyncJobContext if inspect.iscoroutinefunction(handler) else JobContext).__name__
            raise TaskError(
                f"{what}: the worker gives the context to a parameter that is annotated: annotate 'ctx' with {needed}"
            )
    firsts = parameters[:given]
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
        plain, hint = hint, _with_markers(hint, parameter, what, sealing)
        objects = objects or (hint is not plain and secret_in(hint) is None)
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
    secrets = frozenset(name for name in fields if secret_in(hints.get(name)) is not None)
    # Else the text of a ValidationError has the given values.
    validator = SchemaValidator(adapter.core_schema, _HIDING) if secrets else adapter.validator
    names = tuple(fields)
    only = frozenset(item.name for item in parameters if item.kind is _Parameter.POSITIONAL_ONLY)
    return Plan(
        context=context,
        taken=taken,
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
        secrets=secrets,
        given=tuple(hints.get(item.name, Any) for item in firsts),
    )


def _with_markers(hint: Any, parameter: inspect.Parameter, what: str, sealing: Sealing) -> Any:
    """The annotation as pydantic is to check it: secrets and mapped objects are stored as something else."""
    name = parameter.name
    try:
        with_references = with_objects(hint, name)
        found = with_references if parameter.kind in _VARIABLE else with_secret(with_references, name, sealing)
        if found is not with_references is not hint:
            raise TypeError("a mapped object is stored as its key, which is no secret")
    except (TypeError, TaskError) as error:
        raise TaskError(f"{what}: the annotation of {name!r} cannot be used: {error}") from error
    return found


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


def return_hint(handler: Callable[..., Any], what: str) -> Any:
    """What the handler is annotated to return, resolved; `Any` if it does not say. Raises TaskError if it cannot be resolved."""
    annotation = signature(handler).return_annotation
    if annotation is inspect.Signature.empty:
        return Any
    try:
        return _resolved(handler, "return", annotation)
    except Exception as error:
        raise TaskError(
            f"{what}: its return annotation, {annotation!r}, cannot be resolved ({type(error).__name__}: {error}): its "
            "results (record=True) are checked against it, so import it at the top of the handler's module, outside "
            "`if TYPE_CHECKING:`"
        ) from error


def _resolved(handler: Callable[..., Any], name: str, annotation: Any) -> Any:
    """The annotation of the parameter `name`, or of the result."""
    known = getattr(inspect.unwrap(handler), "__globals__", {})
    # The contexts are known even if the module imports them for the type checker only.
    spare = {"JobContext": JobContext, "AsyncJobContext": AsyncJobContext, "sa_jobqueue": sys.modules["sa_jobqueue"]}
    holder: Any = SimpleNamespace(__annotations__={name: annotation})
    return typing.get_type_hints(holder, spare, known, include_extras=True)[name]


def _hints(handler: Callable[..., Any], parameters: list[inspect.Parameter], what: str) -> dict[str, Any]:
    """The parameters' annotations, resolved without the return type."""
    hints: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.annotation is _Parameter.empty:
            continue
        try:
            hints[parameter.name] = _resolved(handler, parameter.name, parameter.annotation)
        except Exception as error:
            raise TaskError(
                f"{what}: the annotation of {parameter.name!r}, {parameter.annotation!r}, cannot be resolved "
                f"({type(error).__name__}: {error}): a job's arguments are checked against it, so import it at the "
                "top of the handler's module, outside `if TYPE_CHECKING:`"
            ) from error
    return hints


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

"""Arguments as JSON: checked against the handler's annotations when a job is made, and again when it runs.

>>> def send(order_id: int, *, copies: int = 1) -> None: ...
>>> arguments = Arguments(send, task="shop.send")
>>> arguments.encode((7,), {"copies": 2})
'{"order_id":7,"copies":2}'
>>> arguments.decode('{"order_id": 7}')
((), {'order_id': 7})
>>> arguments.encode(("7",), {})
Traceback (most recent call last):
...
sa_jobqueue.errors.PayloadError: task 'shop.send': argument order_id: input should be a valid integer, got '7'

What is stored is one JSON object, `{parameter: value}`, of what the caller gave: a default stays the handler's, as it
is when the job runs. `*args` is a list under its own name; the names in `**kwargs` stand beside the parameters'.

Validation is pydantic's strict mode: no `"5"` for an integer, no integer for a bool. What is accepted comes back equal:
whatever is not sure to (a union, a model, an `Any`) is decoded at once and compared, so `(1, 2)` for an un-annotated
parameter is refused, for it would come back as a list. Four things JSON and jsonb do not keep: the order of a dict's
keys, the sign of -0.0, whether a number from 1e16 on was a float (for a parameter annotated `float` it is one again), and
the name of a time zone (its offset at that moment stays).
"""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial
from types import GenericAlias, NoneType, SimpleNamespace, UnionType
from typing import Any, NotRequired, Unpack
from uuid import UUID

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import SchemaError, SchemaSerializer, from_json, to_json
from pydantic_core.core_schema import CoreConfig
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from .context import AsyncJobContext, JobContext
from .errors import PayloadError, TaskError
from .storable import MAX_PAYLOAD, as_jsonb, checked_json, refusal, same, shown, unstorable

__all__ = ["Arguments", "encode_plain", "encode_result", "load", "signature"]

#: Types that come back as they were, without a look.
_EXACT = frozenset({int, str, bool, float, NoneType, UUID, date})

#: A number written with a positive exponent, or a text that looks like one.
_EXPONENT = re.compile(r"\de\+?\d")

_CONFIG = ConfigDict(strict=True, val_json_bytes="base64")
#: For the serializer as a whole: it does not look into a TypedDict's own configuration.
_OUT = CoreConfig(ser_json_inf_nan="constants", ser_json_bytes="base64")

#: The beginnings of pydantic's kinds of error where a text was given for what is an object in Python.
_OBJECTS = (
    "is_instance_of",
    "uuid",
    "date",
    "time",
    "decimal",
    "bytes",
    "enum",
    "dataclass",
    "model",
    "dict",
    "list",
    "tuple",
    "set",
    "frozen_set",
)

_Parameter = inspect.Parameter
_POSITIONAL = (_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD)


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
        valid: dict[str, Any] = self.adapter.validator.validate_json(to_json({self.name: values}), strict=True)[
            self.name
        ]
        return valid


@dataclass(frozen=True, slots=True)
class _Plan:
    """What `Arguments` knows once the annotations are resolved."""

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


class Arguments:
    """The arguments of one handler. The annotations are resolved at the first use, when all modules are there."""

    __slots__ = ("_plan", "handler", "task")

    def __init__(self, handler: Callable[..., Any], *, task: str) -> None:
        self.handler = handler
        self.task = task
        self._plan: _Plan | None = None

    @property
    def context(self) -> type[JobContext | AsyncJobContext] | None:
        """The class of the context that the handler's first parameter wants, if it does."""
        return self.resolve().context

    def resolve(self) -> _Plan:
        """Resolve the annotations now. Raises TaskError where that cannot be done."""
        plan = self._plan
        if plan is None:
            plan = self._plan = _plan(self.handler, self.task)
        return plan

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, limit: int = MAX_PAYLOAD) -> str:
        """The arguments of one call as JSON text; PayloadError where they do not fit or cannot be stored."""
        plan = self._plan or self.resolve()
        given, rest = self._bind(plan, args, kwargs)
        try:
            valid = plan.validate_python(given, strict=True)
            if plan.rest is not None:
                valid |= plan.rest.validate_python(rest)
            data = plan.to_json(valid)
        except ValidationError as error:
            raise self._misfit(error, given | rest) from error
        except Exception as error:  # the serializer's, or of a validator of the user's
            raise refusal(
                error, given | rest, what=f"task {self.task!r}", item="argument ", write=plan.to_json
            ) from error
        text = checked_json(data, valid, what=f"task {self.task!r}", item="argument ", limit=limit)
        if not plan.exact:
            self._check_return(plan, text, valid)
        return text

    def decode(
        self, text: str | bytes, *, what: str = "the stored arguments"
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the handler is called with, beside its context; PayloadError where the JSON, called `what`, does not fit."""
        plan = self._plan or self.resolve()
        try:
            found = plan.validate_json(text, strict=True)
            if plan.as_keywords:
                return (), found
            return _spread(plan, found, f"task {self.task!r}: {what}")
        except PayloadError:
            raise
        except ValidationError as error:
            raise self._misfit(error, None, what) from error
        except Exception as error:  # a validator of the user's
            raise PayloadError(f"task {self.task!r}: {what} cannot be read: {type(error).__name__}: {error}") from error

    def _bind(
        self, plan: _Plan, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The call as {parameter: value}, and apart from it what goes into `**kwargs`."""
        rest: dict[str, Any] = {}
        given = dict(zip(plan.positional, args, strict=False))
        if len(args) > len(plan.positional):
            if plan.variable is None:
                few, were = len(plan.positional), "was" if len(args) == 1 else "were"
                raise PayloadError(
                    f"task {self.task!r}: takes {few} positional argument{'' if few == 1 else 's'}, {len(args)} {were} given"
                )
            given[plan.variable] = args[len(plan.positional) :]
        for name, value in kwargs.items():
            if name in given:
                raise PayloadError(f"task {self.task!r}: argument {name} is given twice")
            if name in plan.positional_only or name == plan.variable:
                raise PayloadError(f"task {self.task!r}: argument {name} cannot be given by keyword")
            if plan.rest is not None and name not in plan.names:
                _refuse_taken(plan, name, f"task {self.task!r}")
                rest[name] = value
            else:
                given[name] = value
        return given, rest

    def _check_return(self, plan: _Plan, text: str, valid: dict[str, Any]) -> None:
        """Refuse what would come back changed."""
        stored = text
        if _EXPONENT.search(text):  # jsonb keeps 1e+23 as 100000000000000000000000
            stored = to_json(as_jsonb(load(text))).decode()
        try:
            back = plan.validate_json(stored, strict=True)
            if plan.rest is not None:
                back = _with_rest(plan, back, f"task {self.task!r}")
        except ValidationError as error:
            if found := next(unstorable(valid), None):
                raise PayloadError(f"task {self.task!r}: argument {found}") from error
            raise self._misfit(error, valid) from error
        except Exception as error:
            raise refusal(error, valid, what=f"task {self.task!r}", item="argument ") from error
        for name, value in valid.items():
            if not (name in back and same(value, back[name])):
                if found := next(unstorable(value, name), None):
                    raise PayloadError(f"task {self.task!r}: argument {found}")
                again = shown(back.get(name))
                if again == shown(value):
                    again = "something else: its JSON does not hold all of it"
                raise PayloadError(
                    f"task {self.task!r}: argument {name}: {shown(value)} would come back from JSON as {again}: "
                    "annotate the parameter with the type that is meant, or pass plain JSON"
                )

    def _misfit(self, error: ValidationError, given: Mapping[str, Any] | None, what: str = "") -> PayloadError:
        """The error in the user's words. `given`: the call's arguments; None for JSON, called `what`."""
        found = error.errors(include_url=False, include_context=False)
        said = [self._sentence(one, enqueueing=given is not None) for one in found[:3]]
        if len(found) > 3:
            said.append(f"and {len(found) - 3} more")
        where = "" if given is not None else f"{what} do not fit the handler: "
        return PayloadError(f"task {self.task!r}: {where}{'; '.join(said)}")

    def _sentence(self, one: Any, *, enqueueing: bool) -> str:
        kind, loc, value = one["type"], one["loc"], one["input"]
        of_key = len(loc) > 2 and loc[-1] == "[key]"  # pydantic's word for it; before it comes the key
        path = _path(loc[:-2] if of_key else loc)
        takes = f"it takes ({', '.join(self.resolve().names)})"
        if len(loc) == 1 and kind == "missing":
            return f"argument {path} is missing; {takes}"
        if len(loc) == 1 and kind == "extra_forbidden":
            return f"unknown argument {path}; {takes}"
        said = one["msg"][:1].lower() + one["msg"][1:]
        if of_key:
            return f"argument {path}: the key {shown(value)}: {said}"
        sentence = f"argument {path}: {said}, got {shown(value)}" if path else f"{said}, got {shown(value)}"
        if not enqueueing:
            return sentence
        if value is None:
            return f"{sentence}: if this is the key of a row that is not in the database yet, flush first (session.flush())"
        if isinstance(value, str) and kind.startswith(_OBJECTS):
            return f"{sentence}: pass the Python object, not its text"
        return sentence


def encode_plain(value: Mapping[str, Any], *, what: str, item: str = "argument ", limit: int | None = None) -> str:
    """A mapping of plain JSON values as JSON text, for jobs named by a string and for `meta`; comes back equal.

    `what` begins the message of the PayloadError for anything else; `item` stands before the name of a value. `limit`:
    the registry's, in bytes; None where there is none.
    """
    try:
        data = to_json(value, inf_nan_mode="constants")
        text = checked_json(data, value, what=what, item=item, limit=limit)
        back = as_jsonb(load(text)) if _EXPONENT.search(text) else load(text)
    except PayloadError:
        raise
    except Exception as error:
        raise refusal(error, value, what=what, item=item) from error
    for name, one in value.items():
        if not (name in back and same(one, back[name])):
            if found := next(unstorable({name: one}), None):
                raise PayloadError(f"{what}: {item}{found}")
            raise PayloadError(
                f"{what}: {item}{name}: {shown(one)} is not plain JSON: pass None, bool, int, float, str, "
                "list or dict with string keys"
            )
    return text


def encode_result(value: object, *, task: str, limit: int = MAX_PAYLOAD) -> str:
    """What a handler returned as JSON text; PayloadError for what cannot be stored.

    Dataclasses, models, dates and the like become JSON as pydantic does it; they are not made into such again.
    """
    what = f"task {task!r}: its result"
    try:
        data = to_json(value, inf_nan_mode="constants", bytes_mode="base64")
    except Exception as error:
        raise refusal(error, value, what=what, item="") from error
    text = checked_json(data, value, what=what, item="", limit=limit)
    if found := next(unstorable(value), None):
        raise PayloadError(f"{what}: {found}")
    return text


def load(text: str | bytes) -> Any:
    """JSON text as plain Python objects, for the attribute of the row."""
    return from_json(text)


# ---- resolving a handler


def _plan(handler: Callable[..., Any], task: str) -> _Plan:
    parameters = list(signature(handler).parameters.values())
    hints = _hints(handler, parameters, task)
    context = hints.get(parameters[0].name) if parameters else None
    taken: str | None = None
    if context in (JobContext, AsyncJobContext):
        first = parameters.pop(0)
        _check_context(handler, context, first, task)
        taken = first.name if first.kind is _Parameter.POSITIONAL_OR_KEYWORD else None
    else:
        context = None
        if any(one.name == "ctx" and one.annotation is one.default is _Parameter.empty for one in parameters[:1]):
            needed = (AsyncJobContext if inspect.iscoroutinefunction(handler) else JobContext).__name__
            raise TaskError(
                f"task {task!r}: the worker gives the context to a parameter that is annotated: annotate 'ctx' with {needed}"
            )
    fields: dict[str, Any] = {}
    variable: str | None = None
    rest: _Rest | None = None
    for parameter in parameters:
        hint: Any = hints.get(parameter.name, Any)
        if hint in (JobContext, AsyncJobContext):
            raise TaskError(f"task {task!r}: the context must be the first parameter, not {parameter.name!r}")
        if parameter.kind is _Parameter.VAR_KEYWORD:
            of = hint.__args__[0] if typing.get_origin(hint) is Unpack else GenericAlias(dict, (str, hint))
            rest = _Rest(parameter.name, _adapter(task, {parameter.name: of}))
        elif parameter.kind is _Parameter.VAR_POSITIONAL:
            variable = parameter.name
            fields[variable] = NotRequired[tuple[hint, ...]]
        else:
            fields[parameter.name] = hint if parameter.default is _Parameter.empty else NotRequired[hint]
    adapter = _adapter(task, fields, extra="forbid" if rest is None else "allow")
    names = tuple(fields)
    only = frozenset(one.name for one in parameters if one.kind is _Parameter.POSITIONAL_ONLY)
    return _Plan(
        context=context,
        taken=taken,
        positional=tuple(one.name for one in parameters if one.kind in _POSITIONAL),
        positional_only=only,
        variable=variable,
        rest=rest,
        validate_python=adapter.validator.validate_python,
        validate_json=adapter.validator.validate_json,
        to_json=partial(SchemaSerializer(adapter.core_schema, _OUT).to_json, by_alias=True, warnings=False),
        exact=rest is None and all(_exact(hints.get(name, Any)) for name in names if name != variable) and not variable,
        as_keywords=not only and variable is None and rest is None,
        names=names,
    )


def _check_context(handler: Callable[..., Any], context: Any, parameter: inspect.Parameter, task: str) -> None:
    if parameter.kind not in _POSITIONAL:
        raise TaskError(f"task {task!r}: the context {parameter.name!r} is given by position, before any `*`")
    if inspect.iscoroutinefunction(handler) != (context is AsyncJobContext):
        if inspect.iscoroutinefunction(inspect.unwrap(handler)) == (context is AsyncJobContext):
            raise TaskError(
                f"task {task!r}: a decorator turns an `async def` into a `def`, or a `def` into an `async def`: make both the same"
            )
        is_async = context is JobContext
        gets = "an `async def` handler gets an AsyncJobContext" if is_async else "a `def` handler gets a JobContext"
        needed = "AsyncJobContext" if is_async else "JobContext"
        raise TaskError(f"task {task!r}: {gets}: annotate {parameter.name!r} with {needed}")


def _hints(handler: Callable[..., Any], parameters: list[inspect.Parameter], task: str) -> dict[str, Any]:
    """The parameters' annotations, resolved one by one: what the handler returns is nobody's business here."""
    known = getattr(inspect.unwrap(handler), "__globals__", {})
    # The contexts are known even where they were imported for the type checker only.
    spare = {"JobContext": JobContext, "AsyncJobContext": AsyncJobContext, "sa_jobqueue": sys.modules["sa_jobqueue"]}
    hints: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.annotation is _Parameter.empty:
            continue
        holder: Any = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
        try:
            hints |= typing.get_type_hints(holder, spare, known, include_extras=True)
        except Exception as error:
            raise TaskError(
                f"task {task!r}: the annotation of {parameter.name!r}, {parameter.annotation!r}, cannot be resolved "
                f"({type(error).__name__}: {error}): a job's arguments are checked against it, so import it at the "
                "top of the handler's module, outside `if TYPE_CHECKING:`"
            ) from error
    return hints


def _adapter(
    task: str, fields: dict[str, Any], *, extra: typing.Literal["forbid", "allow"] = "forbid"
) -> TypeAdapter[Any]:
    make: Any = TypedDict  # type checkers want the fields written down
    shape = make("arguments", fields)
    shape.__pydantic_config__ = _CONFIG | {"extra": extra}
    try:
        return TypeAdapter(shape)
    except (PydanticUserError, SchemaError, TypeError, NameError) as error:
        raise TaskError(f"task {task!r}: {_culprit(fields) or error}") from error


def _culprit(fields: dict[str, Any]) -> str | None:
    """Which of the parameters pydantic has no way to validate, and what it says of it."""
    for name, hint in fields.items():
        try:
            TypeAdapter(hint.__args__[0] if typing.get_origin(hint) is NotRequired else hint)
        except Exception as error:  # whatever it is, it is reported
            if typing.get_args(hint) and not {JobContext, AsyncJobContext}.isdisjoint(typing.get_args(hint)):
                return f"annotate {name!r} with the context's class alone: the worker always gives it"
            said = str(error).splitlines()[0].partition(". Set ")[0]  # what would be done about it in a model
            if "typing_extensions" in said:  # pydantic's word for a TypedDict before Python 3.12
                return f"the annotation of {name!r} cannot be checked: {said}"
            return (
                f"the annotation of {name!r} cannot be checked ({said}): "
                "pass a row's key, plain JSON, a dataclass or a pydantic model"
            )
    return None


def _exact(hint: Any) -> bool:
    """Whether values of this annotation are sure to come back equal."""
    if hint in _EXACT:
        return True
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        return _exact(inner[0])
    if origin is dict:
        return inner[0] is str and _exact(inner[1])
    if origin is typing.Union or origin is UnionType:
        return len(inner) == 2 and NoneType in inner and all(_exact(one) for one in inner)
    return False


# ---- calling a handler


def _spread(plan: _Plan, found: dict[str, Any], what: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments in the form that this signature wants; PayloadError, which begins with `what`, if there is none."""
    if plan.rest is not None:
        found = _with_rest(plan, found, what)
    more = found.pop(plan.variable, ()) if plan.variable is not None else ()
    args: list[Any] = []
    for name in plan.positional:
        if name not in found or not (more or name in plan.positional_only):
            break
        args.append(found.pop(name))
    missing = plan.positional[len(args) : len(args) + 1]
    if missing and (more or not plan.positional_only.isdisjoint(found)):
        raise PayloadError(f"{what}: argument {missing[0]} is missing, and what follows it must be given by position")
    return (*args, *more), found


def _with_rest(plan: _Plan, found: dict[str, Any], what: str) -> dict[str, Any]:
    """`found` with what is for `**kwargs` validated, too; PayloadError, which begins with `what`, if it cannot be."""
    assert plan.rest is not None
    rest = {name: value for name, value in found.items() if name not in plan.names}
    for name in rest:
        _refuse_taken(plan, name, what)
    known = {name: value for name, value in found.items() if name in plan.names}
    return known | plan.rest.validate_json(rest)


def _refuse_taken(plan: _Plan, name: str, what: str) -> None:
    if name == plan.taken:
        raise PayloadError(
            f"{what}: argument {name} has the name of the context, which the worker gives: "
            f"call it something else, or make the context positional-only, `({name}, /, ...)`"
        )


# ---- speaking


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path

"""A handler's arguments, encoded when a job is made and decoded when it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import to_json, to_jsonable_python

from ..errors import PayloadError
from ..util.urls import SECRET
from .columns import in_order, plain_in_order
from .objects import ObjectText
from .references import REFUSED
from .resolving import signature
from .secrets import Sealing
from .signature import UNSEALED, Context, Plan, plan_of
from .storable import EXPONENT, MAX_PAYLOAD, as_jsonb, checked_json, load, refusal, same, shown, unstorable

_AS_ARGUMENT: Any = {"fallback": repr, "inf_nan_mode": "constants", "bytes_mode": "base64"}

#: pydantic's kinds of error for an argument that is missing, or not a parameter of the handler; and what we say.
_NAMES = {"missing": "argument {} is missing", "extra_forbidden": "unknown argument {}"}
#: The message for an argument that is injected.
_GIVEN = "argument {} is injected: the worker provides the value, so leave the argument out"
#: How pydantic's kinds of error begin where a string was given for what is an object in Python.
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


class Arguments:
    """A handler's arguments. Annotations are resolved at the first use, when all modules have been imported.

    `given`: the number of first parameters that results of other jobs fill. `batch`: see `plan_of`.
    `sealing`: for secret arguments.
    """

    __slots__ = ("_batch", "_defaults", "_given", "_plan", "_sealing", "_what", "handler")

    def __init__(
        self,
        handler: Callable[..., Any],
        *,
        task: str,
        given: int = 0,
        batch: bool = False,
        sealing: Sealing = UNSEALED,
    ) -> None:
        self.handler, self._given, self._batch, self._sealing = handler, given, batch, sealing
        self._what = f"task {task!r}"
        self._plan: Plan | None = None
        self._defaults: dict[str, Any] | None = None

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The defaults of the handler's parameters as plain JSON, or as their repr. Defaults of secret parameters are left out."""
        if self._defaults is None:
            taken, secrets = self.resolve().taken, self.resolve().secrets
            self._defaults = {
                name: {SECRET: []}
                if name in secrets
                else plain_in_order(to_jsonable_python(parameter.default, **_AS_ARGUMENT), parameter.default)
                for name, parameter in signature(self.handler).parameters.items()
                if parameter.default is not parameter.empty and name not in taken
            }
        return self._defaults

    @property
    def context(self) -> Context | None:
        """The class of the context that the handler takes first; None if it takes none."""
        return self.resolve().context

    def resolve(self) -> Plan:
        """Resolve the annotations now. Raises TaskError for an annotation that cannot be resolved."""
        plan = self._plan
        if plan is None:
            plan = self._plan = plan_of(
                self.handler, self._what, given=self._given, batch=self._batch, sealing=self._sealing
            )
        return plan

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, limit: int = MAX_PAYLOAD) -> str:
        """A call's arguments as JSON text. Raises PayloadError if they do not fit or cannot be stored.

        An `ObjectText` if there may be objects in them, whose keys are perhaps not known before the next flush.
        """
        plan = self._plan or self.resolve()
        given, rest = self._bind(plan, args, kwargs)
        try:
            valid = plan.validate_python(given, strict=True)
            if plan.rest is not None:
                valid |= plan.rest.validate_python(rest)
            data = plan.to_json(valid)
            if plan.sets:
                data = in_order(data, valid)
        except ValidationError as error:
            raise self._misfit(error, given | rest) from error
        except Exception as error:  # from the serializer, or from a validator of the application
            public = {name: value for name, value in (given | rest).items() if name not in plan.secrets}
            raise refusal(error, public, what=self._what, item="argument ", write=plan.to_json) from error
        text = checked_json(data, valid, what=self._what, item="argument ", limit=limit)
        if not plan.exact:
            self._check_return(plan, text, valid)
        return ObjectText.of(text, valid) if plan.objects else text

    def decode(
        self, text: str | bytes, *, what: str = "the stored arguments"
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the handler is called with after its context; with references, where `Plan.objects` says that there are some.

        Raises PayloadError if the JSON, called `what`, does not fit.
        """
        plan = self._plan or self.resolve()
        try:
            found = plan.validate_json(text, strict=True)
            if plan.as_keywords:
                return (), found
            return _spread(plan, found, f"{self._what}: {what}")
        except PayloadError:
            raise
        except ValidationError as error:
            raise self._misfit(error, None, what) from error
        except Exception as error:  # from a validator of the application
            raise PayloadError(f"{self._what}: {what} cannot be read: {type(error).__name__}: {error}") from error

    def _bind(
        self, plan: Plan, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The call as {parameter: value}, and separately what goes into `**kwargs`."""
        rest: dict[str, Any] = {}
        given = dict(zip(plan.positional, args, strict=False))
        if len(args) > len(plan.positional):
            if plan.variable is None:
                few, were = len(plan.positional), "was" if len(args) == 1 else "were"
                raise PayloadError(
                    f"{self._what}: takes {few} positional argument{'' if few == 1 else 's'}, {len(args)} {were} given"
                )
            given[plan.variable] = args[len(plan.positional) :]
        for name, value in kwargs.items():
            if name in given:
                raise PayloadError(f"{self._what}: argument {name} is given twice")
            if name in plan.positional_only or name == plan.variable:
                raise PayloadError(f"{self._what}: argument {name} cannot be given by keyword")
            if plan.rest is not None and name not in plan.names:
                _refuse_taken(plan, name, self._what)
                rest[name] = value
            else:
                given[name] = value
        return given, rest

    def _check_return(self, plan: Plan, text: str, valid: dict[str, Any]) -> None:
        """Refuse arguments that would come back changed."""
        stored = text
        if EXPONENT.search(text):  # jsonb keeps 1e+23 as 100000000000000000000000
            stored = to_json(as_jsonb(load(text))).decode()
        try:
            back = plan.validate_json(stored, strict=True)
            if plan.rest is not None:
                back = _with_rest(plan, back, self._what)
        except ValidationError as error:
            if found := next(unstorable(valid), None):
                raise PayloadError(f"{self._what}: argument {found}") from error
            raise self._misfit(error, valid) from error
        except Exception as error:
            raise refusal(error, valid, what=self._what, item="argument ") from error
        for name, value in valid.items():
            if name in plan.secrets:
                continue  # it was checked before it was encrypted
            if not (name in back and same(value, back[name])):
                if found := next(unstorable(value, name), None):
                    raise PayloadError(f"{self._what}: argument {found}")
                again = self._shown(back.get(name))
                if again == self._shown(value):
                    again = "something else: its JSON does not hold all of it"
                raise PayloadError(
                    f"{self._what}: argument {name}: {self._shown(value)} would come back from JSON as {again}: "
                    "annotate the parameter with the type that is meant, or pass plain JSON"
                )

    def _misfit(self, error: ValidationError, given: Mapping[str, Any] | None, what: str = "") -> PayloadError:
        """The error in the words of the caller. `given`: the call's arguments; None for stored JSON, called `what`."""
        found = error.errors(include_url=False, include_context=False)
        parts = [self._sentence(detail, enqueueing=given is not None) for detail in found[:3]]
        if len(found) > 3:
            parts.append(f"and {len(found) - 3} more")
        if any(len(detail["loc"]) == 1 and detail["type"] in _NAMES for detail in found[:3]):
            parts.append(f"it takes ({', '.join(self.resolve().names)})")
        if given is not None:
            parts += self._hints(detail["loc"][0] for detail in found if detail["type"] == "extra_forbidden")
        where = "" if given is not None else f"{what} do not fit the handler: "
        return PayloadError(f"{self._what}: {where}{'; '.join(parts)}")

    def _hints(self, unknown: Iterable[Any]) -> list[str]:
        """What to write for arguments that are options, here or in another queue."""
        from ..rules.hints import hint

        hints = (hint(word, self.handler.__name__) for word in unknown)
        return [fromkey for fromkey in dict.fromkeys(hints) if fromkey]

    def _sentence(self, detail: Any, *, enqueueing: bool) -> str:
        kind, loc, value = detail["type"], detail["loc"], detail["input"]
        of_key = len(loc) > 2 and loc[-1] == "[key]"  # pydantic's word for it; before it comes the key
        path = _path(loc[:-2] if of_key else loc)
        if len(loc) == 1 and kind in _NAMES:
            injected = self.resolve().injected
            is_given = injected is not None and path in injected.names
            return (_GIVEN if is_given else _NAMES[kind]).format(path)
        if kind == REFUSED:
            return f"argument {path}: {detail['msg']}"
        message = detail["msg"][:1].lower() + detail["msg"][1:]
        if of_key:
            return f"argument {path}: the key {self._shown(value)}: {message}"
        got = f"{message}, got {self._shown(value)}"
        sentence = f"argument {path}: {got}" if path else got
        if not enqueueing:
            return sentence
        if value is None:
            return f"{sentence}: if this is the key of a row that is not in the database yet, flush first (session.flush())"
        if isinstance(value, str) and kind.startswith(_OBJECTS):
            return f"{sentence}: pass the Python object, not its text"
        return sentence

    def _shown(self, value: object) -> str:
        """A wrong value for a message. If the caller has swapped arguments, the value may be a secret."""
        return f"a {type(value).__name__}, which is not shown" if self.resolve().secrets else shown(value)


def _spread(plan: Plan, found: dict[str, Any], what: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments by position and by keyword, as this signature takes them. Raises PayloadError, which begins with `what`."""
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


def _with_rest(plan: Plan, found: dict[str, Any], what: str) -> dict[str, Any]:
    """`found`, with the values for `**kwargs` validated too. Raises PayloadError, which begins with `what`."""
    assert plan.rest is not None
    rest = {name: value for name, value in found.items() if name not in plan.names}
    for name in rest:
        _refuse_taken(plan, name, what)
    known = {name: value for name, value in found.items() if name in plan.names}
    return known | plan.rest.validate_json(rest)


def _refuse_taken(plan: Plan, name: str, what: str) -> None:
    if plan.injected is not None and name in plan.injected.names:
        raise PayloadError(f"{what}: {_GIVEN.format(name)}")
    if name in plan.taken:
        raise PayloadError(
            f"{what}: argument {name} has the name of the context, which the worker gives: "
            f"call it something else, or make the context positional-only, `({name}, /, ...)`"
        )


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


# ---- Which column of a query is which argument of a handler: as in a call, by position or by name.


class Selected(NamedTuple):
    """A column of a query."""

    name: str
    label: str | None
    """The name that it was given by `.label(...)`, which makes it a keyword."""


def bound(plan: Plan, columns: Sequence[Selected], *, what: str) -> list[str]:
    """The parameter of each column. Raises PayloadError, which begins with `what`, where the columns do not fit the handler."""
    takes = f"it takes ({', '.join(plan.names)})"
    places, names = iter(plan.positional), list[str]()
    for column in columns:
        if column.label is not None:
            if plan.rest is None and column.label not in plan.names:
                raise PayloadError(f"{what}: unknown argument {column.label}, the label of a column; {takes}")
            if column.label == plan.variable or column.label in plan.taken:
                raise PayloadError(f"{what}: argument {column.label} cannot be given by a label")
            names.append(column.label)
            continue
        place = next(places, plan.variable)
        if place is None:
            raise _too_many(plan, columns, what)
        if column.name != place and column.name in plan.names:
            raise PayloadError(
                f"{what}: by its position the column {column.name} is the argument {place}, but there is an argument "
                f"{column.name}, too: say which one is meant by a label, .label({column.name!r}) or .label({place!r})"
            )
        names.append(place)
    for name, times in Counter(names).items():
        if times > 1 and name != plan.variable:
            raise PayloadError(f"{what}: argument {name} is given twice: by its position and by a label")
    if missing := [name for name in plan.names if name in plan.required and name not in names]:
        raise PayloadError(f"{what}: argument {missing[0]} is missing; {takes}")
    return names


def bound_by_name(columns: Sequence[Selected], *, what: str) -> list[str]:
    """Bind the columns for a task that is known by name only: all are keywords."""
    names = [column.label or column.name for column in columns]
    if unnamed := [place for place, name in enumerate(names, 1) if not name]:
        raise PayloadError(f"{what}: column {unnamed[0]} has no name: say which argument it is, .label(...)")
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise PayloadError(f"{what}: argument {twice[0]} is given twice")
    return names


def _too_many(plan: Plan, columns: Sequence[Selected], what: str) -> PayloadError:
    few, loose = (
        len(plan.positional),
        [column.name or "one without a name" for column in columns if column.label is None],
    )
    return PayloadError(
        f"{what}: takes {few} positional argument{'' if few == 1 else 's'}, and {len(loose)} columns have no label: "
        f"{', '.join(loose)}"
    )

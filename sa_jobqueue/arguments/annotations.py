"""Annotations of object arguments: how the object is loaded, and where in the annotation its mapped class stands.

>>> from typing import Annotated
>>> from sqlalchemy.orm import selectinload
>>> def ship(order: Annotated[Order, Load(selectinload(Order.lines), for_update=True), Fresh()]) -> None: ...
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

import sqlalchemy as sa
from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema
from sqlalchemy.orm import Mapper, registry
from sqlalchemy.orm.interfaces import ORMOption
from typing_extensions import TypeAliasType

from ..errors import TaskError

Missing: TypeAlias = Literal["discard", "error", "none"]

_CONTAINERS: tuple[Any, ...] = (list, tuple, dict, set, frozenset, Sequence, Mapping)


class _OfObjects:
    """An instruction next to a mapped class in an `Annotated`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Let a pydantic model of the application's have such a field: it takes the objects as they are."""
        return handler.generate_schema(replaced(source, lambda cls, _: Annotated[cls, _AsItIs()]))


class _AsItIs:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.is_instance_schema(source)


class Load(_OfObjects):
    """How a worker loads an object argument: `Annotated[Order, Load(selectinload(Order.lines), for_update=True)]`.

    `options`: loader options, as `Session.get` takes them. `for_update`: True locks the row until the job ends; a mapping says how,
    as for `Session.get(with_for_update=...)`. `missing`, what to do if the row is not there: "discard" ends the job as failed, with
    the reason; "error" fails the attempt by `ObjectMissing`; "none" calls the handler with None, which its annotation must allow.

    Raises TaskError for anything else.
    """

    def __init__(
        self, *options: ORMOption, for_update: bool | Mapping[str, Any] = False, missing: Missing = "discard"
    ) -> None:
        for option in options:
            if not isinstance(option, ORMOption):
                raise TaskError(f"Load takes loader options, as selectinload(Order.lines), not {option!r}")
        if not isinstance(for_update, (bool, Mapping)):
            raise TaskError(f"Load: for_update must be True, False or a mapping, not {for_update!r}")
        if missing not in get_args(Missing):
            raise TaskError(f"Load: missing must be one of {', '.join(get_args(Missing))}, not {missing!r}")
        self.options = options
        self.for_update: Mapping[str, Any] | None = (
            dict(for_update) if isinstance(for_update, Mapping) else {} if for_update else None
        )
        """The arguments of `with_for_update`; None: no lock."""
        self.missing: Missing = missing


class Fresh(_OfObjects):
    """An object argument whose job is only for the version that it was enqueued with: `Annotated[Order, Fresh()]`.

    The version is that of the mapper's `version_id_col` after the flush that writes the job. If the row has another version when the job
    runs, the job is discarded as "superseded", and the handler is not called.
    """


@dataclass(frozen=True, slots=True)
class ArgumentSpec:
    """A mapped class in an annotation, with the instructions next to it."""

    load: Load
    fresh: bool = False
    nullable: bool = False
    """Whether None may stand in its place."""


def is_mapped(hint: object) -> bool:
    """Whether `hint` is a mapped class."""
    return isinstance(hint, type) and isinstance(sa.inspect(hint, raiseerr=False), Mapper)


def replaced(
    hint: Any,
    make: Callable[[Any, ArgumentSpec], Any],
    *,
    of_other: Callable[[Any, ArgumentSpec], Any] = lambda cls, _: cls,
    spec: ArgumentSpec | None = None,
) -> Any:
    """`hint` with what `make` returns for each mapped class in it, and `of_other` for each other class. `hint` itself if nothing changes.

    Raises TypeError for an annotation that cannot work.
    """
    spec = spec or ArgumentSpec(Load())
    if isinstance(hint, TypeAliasType):
        changed = replaced(hint.__value__, make, of_other=of_other, spec=spec)
        return hint if changed is hint.__value__ else changed
    origin: Any = get_origin(hint)
    inner: tuple[Any, ...] = get_args(hint)
    again = partial(replaced, make=make, of_other=of_other)
    if origin is None:
        if not isinstance(hint, type):
            return hint
        if is_mapped(hint):
            return make(hint, spec)
        _refuse_unmapped(hint)
        return of_other(hint, spec)
    if origin is Annotated:
        of, *instructions = inner
        changed = again(of, spec=_spec_from(instructions, spec))
        rest = tuple(instruction for instruction in instructions if not isinstance(instruction, _OfObjects))
        if changed is of and len(rest) < len(instructions):
            raise TypeError("Load() and Fresh() say how a mapped object is loaded, and there is none in it")
        return hint if changed is of else Annotated[(changed, *rest)] if rest else changed
    is_union = origin in (typing.Union, UnionType)
    if is_union:
        spec = ArgumentSpec(spec.load, spec.fresh, spec.nullable or type(None) in inner)
    elif origin not in _CONTAINERS:
        return hint
    parts = tuple(again(part, spec=spec) for part in inner)
    number = sum(part is not before for part, before in zip(parts, inner, strict=True))
    if origin in (dict, Mapping) and parts and parts[0] is not inner[0]:
        raise TypeError("the keys of a JSON object are texts, so objects can only be values of a dict: take a list")
    if number > 1 and is_union:
        raise TypeError("a stored key does not say of which class it is: give each class a parameter of its own")
    if number == 0:
        return hint
    made: Any = typing.Union if is_union else origin
    return made[parts]


def _spec_from(instructions: Sequence[Any], spec: ArgumentSpec) -> ArgumentSpec:
    """Read the instructions next to a class in an `Annotated`."""
    load, fresh = spec.load, spec.fresh
    for instruction in instructions:
        if instruction is Load or instruction is Fresh:
            raise TypeError(f"it has the class {instruction.__name__}: write {instruction.__name__}()")
        load = instruction if isinstance(instruction, Load) else load
        fresh = fresh or isinstance(instruction, Fresh)
    return ArgumentSpec(load, fresh, spec.nullable)


def _refuse_unmapped(hint: type) -> None:
    """Refuse a declarative base, a mixin of it, or an abstract class: no row is of it."""
    if isinstance(getattr(hint, "registry", None), registry):
        raise TypeError(f"{hint.__name__} is not mapped, so it has no primary key: name a class that has a table")

"""Dataclasses and pydantic models that hold mapped objects in their fields, one level deep."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, NotRequired

from pydantic import BaseModel, GetCoreSchemaHandler, RootModel
from pydantic_core import core_schema
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from .annotations import Said, replaced
from .references import Held, ObjectArgument, refused

__all__ = ["HolderArgument", "with_objects"]


def with_objects(hint: Any, name: str) -> Any:
    """`hint` as pydantic is to check it, with references in place of mapped objects. `hint` itself if there are none in it.

    `name`: the parameter's, for messages. Raises TypeError for an annotation that cannot work.
    """
    return replaced(hint, _of(name), of_other=partial(_holder, name=name))


def _of(name: str) -> Callable[[Any, Said], Any]:
    return lambda cls, said: Annotated[cls, ObjectArgument(cls, said, name)]


def _holder(cls: type[Any], said: Said, *, name: str) -> Any:
    hints = _fields(cls)
    changed = {field: replaced(hint, _of(f"{name}.{field}"), said=said) for field, (hint, _) in hints.items()}
    if all(changed[field] is hint for field, (hint, _) in hints.items()):
        return cls
    _refuse_unmakable(cls)
    shape = {field: hint if hints[field][1] else NotRequired[hint] for field, hint in changed.items()}
    return Annotated[cls, HolderArgument(cls, shape, name)]


def _refuse_unmakable(cls: type[Any]) -> None:
    """Refuse a class whose objects cannot be made again of their fields alone."""
    if not issubclass(cls, BaseModel):
        hints = typing.get_type_hints(cls, include_extras=True)
        if name := next((name for name, hint in hints.items() if isinstance(hint, dataclasses.InitVar)), None):
            raise TypeError(
                f"{cls.__name__} has an InitVar, {name}, which its objects do not keep, and holds mapped objects"
            )
    elif issubclass(cls, RootModel):
        raise TypeError(f"{cls.__name__} is a RootModel, and holds mapped objects: annotate with what is in it")
    elif cls.model_config.get("extra") == "allow":
        raise TypeError(f'{cls.__name__} has extra="allow", and holds mapped objects: a model cannot do both')


def _fields(cls: type[Any]) -> dict[str, tuple[Any, bool]]:
    """The fields by which an object is made: the annotation of each, and whether it must be given."""
    if issubclass(cls, BaseModel):
        return {
            name: (Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation, field.is_required())
            for name, field in cls.model_fields.items()
        }  # fmt: skip
    if not dataclasses.is_dataclass(cls):
        return {}
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError:  # pydantic may know the name, or says it better
        return {}
    missing = dataclasses.MISSING
    return {
        one.name: (hints[one.name], one.default is missing and one.default_factory is missing)
        for one in dataclasses.fields(cls) if one.init
    }  # fmt: skip


class HolderArgument:
    """A dataclass or model in an annotation, as pydantic sees it: its fields, with references in them."""

    def __init__(self, cls: type[Any], fields: dict[str, Any], name: str) -> None:
        self.cls, self.name = cls, name
        make: Any = TypedDict  # type checkers want the fields written down
        self._shape = make(cls.__name__, fields)
        self._shape.__pydantic_config__ = {"strict": True, "extra": "forbid", "val_json_bytes": "base64"}
        self._names = tuple(fields)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        fields = handler.generate_schema(self._shape)
        held = core_schema.no_info_after_validator_function(lambda values: Held(self.cls, values), fields)
        taken = core_schema.no_info_plain_validator_function(self._take_apart)
        return core_schema.json_or_python_schema(
            json_schema=held,
            python_schema=core_schema.chain_schema([taken, held]),
            serialization=core_schema.plain_serializer_function_ser_schema(attrgetter("values"), return_schema=fields),
        )

    def _take_apart(self, given: Any) -> dict[str, Any]:
        if isinstance(given, Held) and given.cls is self.cls:
            return given.values
        if type(given) is not self.cls:
            raise refused(f"an object of {self.cls.__name__} itself is expected, not one of {type(given).__name__}")
        return {name: getattr(given, name) for name in self._names}

"""Loading what references name, in the session of the handler."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, NotRequired, cast

import sqlalchemy as sa
from pydantic import BaseModel, GetCoreSchemaHandler, RootModel, ValidationError
from pydantic_core import core_schema
from sqlalchemy.orm import Session
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from ..errors import JobQueueError, ObjectMissing, PayloadError
from ..rules.outcomes import Discard
from ..util.log import get_logger
from .annotations import ArgumentSpec, replaced
from .references import Held, ObjectArgument, Reference, references, refused

logger = get_logger(__name__)

#: Keys in one statement: a protocol of PostgreSQL's drivers takes 65,535 parameters, and a key has several.
_PAGE = 5_000


def load(
    session: Session, wanted: Sequence[Reference], refused: Callable[[Reference, Exception], None] | None = None
) -> None:
    """Load the object of each reference, with one statement per argument. `refused`: collects the exception of each reference instead of raising it.

    Raises Discard or ObjectMissing, as the annotation says, if an object is missing; Discard if it has another version;
    PayloadError for a reference without a key.
    """
    of_each: dict[ObjectArgument, list[Reference]] = {}
    for reference in wanted:
        of_each.setdefault(reference.of, []).append(reference)
    for of, ones in of_each.items():
        found = _found(
            session, of, list(dict.fromkeys(reference.key for reference in ones if reference.key is not None))
        )
        for reference in ones:
            try:
                if reference.key is None:
                    raise reference.error(f"the {of.cls.__name__} had no key yet when the job was written")
                reference.object = _checked(found.get(reference.key), reference)
            except (Discard, JobQueueError) as error:
                if refused is None:
                    raise
                refused(reference, error)


def _found(session: Session, of: ObjectArgument, keys: list[tuple[Any, ...]]) -> dict[tuple[Any, ...] | None, Any]:
    """The objects that exist, by key."""
    load = of.spec.load
    if len(keys) == 1 and not load.options and load.for_update is None:
        return {keys[0]: session.get(of.cls, keys[0])}
    # The options also hold for an object that another argument has loaded: `Session.get` would return it as it is.
    found: dict[tuple[Any, ...] | None, Any] = {}
    for first in range(0, len(keys), _PAGE):
        page = session.scalars(_query(of, keys[first : first + _PAGE])).unique()
        found |= {tuple(sa.inspect(found_object).identity): found_object for found_object in page}
    # The database may take another key for equal, as CHAR does with blanks behind it.
    return {key: found[key] if key in found else session.get(of.cls, key) for key in keys}


def _query(of: ObjectArgument, keys: list[tuple[Any, ...]]) -> sa.Select[Any]:
    load = of.spec.load
    columns = [of.mapper.get_property_by_column(column).class_attribute for column in of.keys.columns]
    where = sa.tuple_(*columns).in_(keys) if len(columns) > 1 else columns[0].in_([key[0] for key in keys])
    query = sa.select(of.cls).where(where).options(*load.options)
    if load.for_update is None:
        return query
    # In the order of their keys, so that two jobs with the same objects cannot deadlock.
    return query.order_by(*columns).with_for_update(**load.for_update).execution_options(populate_existing=True)


def _checked(found: Any, wanted: Reference) -> Any:
    of = wanted.of
    if found is None:
        reason = f"argument {of.name}: {wanted} is not there: it was deleted, or never committed"
        match of.spec.load.missing:
            case "discard":
                raise Discard(reason)
            case "error":
                raise ObjectMissing(reason)
            case "none":
                return None
    if of.spec.fresh and wanted.version is not None:
        version = of.version_of(found)
        if version != wanted.version:
            logger.info("argument %s: %s has version %s, not %s", of.name, wanted, version, wanted.version)
            raise Discard("superseded")
    return found


def filled(value: Any) -> Any:
    """`value` with the loaded objects in place of the references, and itself if it has none.

    Raises PayloadError where a model refuses them.
    """
    if isinstance(value, Reference):
        return value.object
    if next(references(value), None) is None:
        return value
    if isinstance(value, Held):
        return _made(value.cls, filled(value.values))
    if isinstance(value, dict):
        return {key: filled(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        kind: Any = type(cast(Any, value))
        parts = [filled(item) for item in cast(Sequence[Any], value)]
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    return value


def is_same(value: Any, other: Any) -> bool:
    """Whether `other` is what a handler would get for `value`, an argument with references in it."""
    if isinstance(value, Reference):
        return value.is_to(other)
    if isinstance(value, Held):
        return type(other) is value.cls and all(
            is_same(item, getattr(other, name)) for name, item in value.values.items()
        )
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(is_same(item, other[key]) for key, item in value.items())
    if isinstance(value, (list, tuple)) and type(value) is type(other):
        return len(value) == len(other) and all(is_same(*pair) for pair in zip(value, other, strict=True))
    if isinstance(value, (set, frozenset)) and isinstance(other, (set, frozenset)):
        return len(value) == len(other) and all(any(is_same(item, mine) for mine in other) for item in value)
    return bool(value == other)


def _made(cls: type[Any], values: dict[str, Any]) -> Any:
    if not issubclass(cls, BaseModel):
        return cls(**values)
    try:
        return cls.model_validate(values, strict=True, by_name=True)
    except ValidationError as error:
        raise PayloadError(f"a {cls.__name__} cannot be made of the stored arguments: {error}") from error


# ---- Dataclasses and pydantic models that hold mapped objects in their own fields.


def with_objects(hint: Any, name: str) -> Any:
    """`hint` as pydantic is to check it, with references in place of mapped objects. `hint` itself if there are none in it.

    `name`: the parameter's, for messages. Raises TypeError for an annotation that cannot work.
    """
    return replaced(hint, _of(name), of_other=partial(_holder, name=name))


def _of(name: str) -> Callable[[Any, ArgumentSpec], Any]:
    return lambda cls, spec: Annotated[cls, ObjectArgument(cls, spec, name)]


def _holder(cls: type[Any], spec: ArgumentSpec, *, name: str) -> Any:
    hints = _fields(cls)
    changed = {field: replaced(hint, _of(f"{name}.{field}"), spec=spec) for field, (hint, _) in hints.items()}
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
        item.name: (hints[item.name], item.default is missing and item.default_factory is missing)
        for item in dataclasses.fields(cls) if item.init
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

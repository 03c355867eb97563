"""An object as an argument: the key that is stored, and the object that a worker loads."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from types import UnionType
from typing import Annotated, Any, ClassVar, Union, cast, get_args, get_origin

import sqlalchemy as sa
from pydantic import GetCoreSchemaHandler
from pydantic_core import PydanticCustomError, SchemaSerializer, core_schema, to_json, to_jsonable_python
from sqlalchemy.orm import InstanceState, Mapper
from sqlalchemy.orm.attributes import instance_state

from ..errors import PayloadError, SubjectError
from .annotations import ArgumentSpec, Load
from .subjects import Keys, Subject, deleted, identity_class, named, named_anything, named_object, subject_of_key

#: pydantic's kind of an error that is ours, in our words.
REFUSED = "object_argument"
#: The only name in the JSON object that stands for a key that is not known yet.
_UNFLUSHED = "unflushed"


def refused(reason: str) -> PydanticCustomError:
    """The error to raise where pydantic asks."""
    return PydanticCustomError(REFUSED, "{said}", {"said": reason})


class ObjectArgument:
    """A mapped class in the annotation of the parameter, or of the field, `name`, as pydantic sees it: an object of the class becomes a
    `Reference`, and that JSON. Raises TypeError for a class that cannot be an argument.
    """

    def __init__(self, cls: type[Any], spec: ArgumentSpec, name: str) -> None:
        self.cls, self.spec, self.name = cls, spec, name
        self.title = f"argument {name}"
        """What it is called in messages."""
        self.keys = Keys(cls)
        self.mapper: Mapper[Any] = sa.inspect(cls)
        self.identity = identity_class(self.mapper)
        """The class in the identities of its objects."""
        version = self.mapper.version_id_col
        self.version = None if version is None else self.mapper.get_property_by_column(version).key
        """The attribute with the version of a row, if the mapper says it."""
        if spec.fresh and version is None:
            raise TypeError(f"Fresh() needs a version, and the mapper of {cls.__name__} has no version_id_col")
        if spec.load.missing == "none" and not spec.nullable:
            raise TypeError(f'missing="none" needs an annotation that allows None: {cls.__name__} | None')

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.json_or_python_schema(
            json_schema=core_schema.no_info_plain_validator_function(self._read),
            python_schema=core_schema.no_info_plain_validator_function(self._refer),
        )

    def __deepcopy__(self, memo: object) -> ObjectArgument:
        return self  # pydantic copies some annotations

    def __repr__(self) -> str:
        return f"by its key: {self.keys.type}"

    def _read(self, plain: Any) -> Reference:
        version = None
        if isinstance(plain, dict):
            found = cast(dict[str, Any], plain)
            if _UNFLUSHED in found:
                return Reference(self, None, token=found[_UNFLUSHED])
            version, plain = found.get("version"), found.get("key")
        try:
            return Reference(self, self.keys.read(plain), version)
        except ValueError as error:
            reason = str(error)[:1].lower() + str(error)[1:]
            raise refused(f"{plain!r:.80} is no key of {self.cls.__name__} ({self.keys.type}): {reason}") from error

    def _refer(self, given: Any) -> Reference:
        if isinstance(given, Reference) and given.of.cls is self.cls:
            return Reference(self, given.key, given.version, given.object, given.token)
        if not isinstance(given, self.cls):
            raise refused(f"an object of {self.cls.__name__} is expected, not {named_anything(given)}")
        state: InstanceState[Any] = instance_state(given)
        if reason := deleted(state):
            raise refused(reason)
        if type(given) is not self.cls and identity_class(state.mapper) is not self.identity:
            raise refused(
                f"{type(given).__name__} has keys of its own (concrete inheritance), so it is no {self.cls.__name__} by its key: "
                f"annotate a parameter with {type(given).__name__}"
            )
        if state.key is None or (self.spec.fresh and state.session is not None):
            return Reference(self, None, None, given, secrets.token_hex(8))
        made = Reference(self, tuple(state.key[1]))
        try:
            self.keys.write(tuple(state.key[1]))
            if self.spec.fresh:
                made.version = self.version_of(given, load=False)
        except PayloadError as error:
            raise refused(str(error)) from error
        except ValueError as error:
            raise refused(f"the key of {made} cannot be stored: {error}") from error
        return made

    def version_of(self, given: object, *, load: bool = True) -> Any:
        """The version of an object, as plain JSON. `load`: by a statement, if it is not loaded; else PayloadError is raised."""
        assert self.version is not None
        if not load and self.version not in vars(given):
            raise PayloadError(
                f"the version of {named_object(sa.inspect(given))} is not loaded, and it is in no session that could: refresh it first"
            )
        if (version := getattr(given, self.version)) is None:
            raise PayloadError(
                f"the version of {named_object(sa.inspect(given))} is not known: its mapper needs eager_defaults=True"
            )
        return to_jsonable_python(version)


class SubjectOption(ObjectArgument):
    """The class of an object that is a job's subject by an option, and no argument."""

    def __init__(self, cls: type[Any]) -> None:
        super().__init__(cls, ArgumentSpec(Load()), "subject")
        self.title = "subject"

    @staticmethod
    def refer(given: object) -> Reference:
        """A reference to an object. Raises SubjectError if it cannot be a subject."""
        state = sa.inspect(given, raiseerr=False)
        if not isinstance(state, InstanceState):
            raise SubjectError(
                f"subject must be an object of a mapped class, a Subject or False, not {named_anything(given)}"
            )
        try:
            return _option_of(state.mapper)._refer(given)  # noqa: SLF001  # its own class
        except (PydanticCustomError, TypeError) as error:
            raise SubjectError(f"subject: {error}") from error


@lru_cache(maxsize=512)
def _option_of(mapper: Mapper[Any]) -> SubjectOption:
    return SubjectOption(mapper.class_)


def _written(by: Callable[[Any], Any]) -> SchemaSerializer:
    return SchemaSerializer(core_schema.any_schema(serialization=core_schema.plain_serializer_function_ser_schema(by)))


@dataclass(slots=True, repr=False)
class Reference:
    """Which object: by its key, or, while it has none, the object itself. A worker puts the loaded object there."""

    # pydantic uses it to serialize such a value.
    __pydantic_serializer__: ClassVar[Any] = _written(lambda reference: reference.plain())

    of: ObjectArgument = field(compare=False)
    key: tuple[Any, ...] | None
    """None: it is not known before a flush, or there is none."""
    version: Any = None
    """As plain JSON; None: any version."""
    object: Any = field(default=None, compare=False)
    token: str = ""
    """What the JSON has in the place of an unknown key."""

    def __hash__(self) -> int:
        return hash((self.key, self.token))  # for a set of objects

    @property
    def placeholder(self) -> str:
        """The JSON that stands for the unknown key."""
        return to_json({_UNFLUSHED: self.token}).decode()

    def plain(self) -> Any:
        """As plain JSON."""
        if self.key is None:
            return {_UNFLUSHED: self.token}
        key = self.of.keys.write(self.key)
        return key if self.version is None else {"key": key, "version": self.version}

    def now(self, *, versioned: bool = True) -> Reference:
        """The reference with the key, and the version, that the object has by now. Raises PayloadError if it has no key."""
        state: InstanceState[Any] = instance_state(self.object)
        if reason := deleted(state):
            raise self.error(reason)
        key = tuple(state.mapper.primary_key_from_instance(self.object)) if state.key is None else tuple(state.key[1])
        if None in key:
            raise self.error(f"{self} is not in the database yet: flush first (session.flush())")
        version = self.of.version_of(self.object) if self.of.spec.fresh and versioned else None
        return Reference(self.of, key, version)

    def is_to(self, other: object) -> bool:
        """Whether `other` is the object of this reference, or its key as plain JSON."""
        state: object = sa.inspect(other, raiseerr=False)
        if not isinstance(state, InstanceState):
            return self.key is not None and bool(self.of.keys.write(self.key) == other)
        return state.key is not None and state.key[0] is self.of.identity and tuple(state.key[1]) == self.key

    def error(self, reason: str) -> PayloadError:
        """What to raise because of this argument."""
        return PayloadError(f"{self.of.title}: {reason}")

    def subject(self) -> Subject:
        """What a job is about that is about this object. Raises PayloadError if its key is not known yet."""
        found = self if self.key is not None else self.now(versioned=False)
        assert found.key is not None
        try:
            return subject_of_key(self.of.mapper, found.key)
        except SubjectError as error:
            raise self.error(f"{error}; subject=False is an option for jobs without a subject") from error

    def __str__(self) -> str:
        """Order 7; or the class alone."""
        if self.key is None:
            return named_object(sa.inspect(self.object)) if self.object is not None else f"the {self.of.cls.__name__}"
        return named(self.of.cls, self.key)

    __repr__ = __str__


@dataclass(slots=True)
class Held:
    """A dataclass or a model with references in it, as its fields."""

    __pydantic_serializer__: ClassVar[Any] = _written(attrgetter("values"))

    cls: type[Any]
    values: dict[str, Any]


def object_in(hint: Any) -> ObjectArgument | None:
    """The mapped class that an annotation is of, as `with_objects` has made it: itself, or itself or None."""
    inner = get_args(hint)
    if get_origin(hint) is Annotated:
        return next((part for part in inner[1:] if isinstance(part, ObjectArgument)), None)
    if get_origin(hint) in (Union, UnionType):
        return next((found for part in inner if (found := object_in(part)) is not None), None)
    return None


def references(value: Any) -> Iterator[Reference]:
    """All references in arguments that were validated."""
    if isinstance(value, Reference):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from references(item)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in cast(list[Any], value):
            yield from references(item)
    elif isinstance(value, Held):
        yield from references(value.values)

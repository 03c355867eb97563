"""What a job is about: a row of the application's, by its class and its key as text.

>>> subject = Subject("Order", "7")
>>> str(subject)
'Order:7'
>>> Subject.parse("Line:[7,2]")
Subject(type='Line', id='[7, 2]')

The text of a key is the key itself, or a JSON list of its parts where there are several, as PostgreSQL writes it. So a statement can make
the same text of a row's columns.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar, cast

import sqlalchemy as sa
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json
from sqlalchemy.orm import InstanceState, Mapper, registry

from ..errors import SubjectError


def named(cls: type[Any], key: tuple[Any, ...]) -> str:
    """Order 7."""
    return f"{cls.__name__} {', '.join(map(str, key))}"


def named_object(state: InstanceState[Any]) -> str:
    """A label for an object; "the Order" if it has no key yet."""
    return f"the {state.class_.__name__}" if state.key is None else named(state.class_, tuple(state.key[1]))


def named_anything(value: object) -> str:
    """An object, or any other value by its repr, cut."""
    state: object = sa.inspect(value, raiseerr=False)
    if isinstance(state, InstanceState):
        return named_object(state)
    try:
        return f"{value!r:.80}"
    except Exception:  # from the application's __repr__
        return f"a {type(value).__name__}"


def deleted(state: InstanceState[Any]) -> str | None:
    """The error for an object that was deleted or is about to be."""
    if state.deleted or state.was_deleted:
        return f"{named_object(state)} was deleted"
    if state.session is not None and state.obj() in state.session.deleted:
        return f"{named_object(state)} is about to be deleted"
    return None


# ---- The primary keys of a mapped class as JSON: the key itself, or a list of its parts where there are several.

_BYTES = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class Keys:
    """The primary keys of a mapped class. Raises TypeError for a class whose keys have no type that JSON could be read as."""

    def __init__(self, cls: type[Any]) -> None:
        mapper: Mapper[Any] = sa.inspect(cls)
        self.columns = mapper.primary_key
        types = tuple(_type_of(column, cls) for column in self.columns)
        self._as_it_is = types if set(types) <= {int, str} else None
        """The types of keys that JSON has as they are: nearly all. They need no adapter."""
        self.type = ", ".join(kind.__name__ for kind in types)
        made: Any = tuple[types]  # type: ignore[valid-type]
        self.hint: Any = types[0] if len(types) == 1 else made
        """The type of a key as it is stored."""
        self._adapter: TypeAdapter[Any] = TypeAdapter(made, config=_BYTES)

    def write(self, key: tuple[Any, ...]) -> Any:
        """A key as plain JSON. Raises ValueError if the type of its column does not hold it."""
        if self._as_it_is == tuple(map(type, key)):
            return key[0] if len(key) == 1 else list(key)
        try:
            valid = self._adapter.validate_python(tuple(key), strict=True)
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"]) from error
        plain = self._adapter.dump_python(valid, mode="json")
        return plain[0] if len(plain) == 1 else list(plain)

    def read(self, plain: Any) -> tuple[Any, ...]:
        """The key that was written as `plain`. Raises ValueError if it is none."""
        parts = [plain] if len(self.columns) == 1 else plain
        if self._as_it_is is not None and isinstance(parts, list) and self._as_it_is == tuple(map(type, parts)):
            return tuple(parts)
        try:
            key: tuple[Any, ...] = self._adapter.validate_json(to_json(parts), strict=True)
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"]) from error
        return key


def _type_of(column: sa.ColumnElement[Any], cls: type[Any]) -> type[Any]:
    try:
        found: type[Any] = column.type.python_type
        if found is object:  # SQLAlchemy 2.1 says so where 2.0 raises NotImplementedError
            raise NotImplementedError
        TypeAdapter(found)
    except (NotImplementedError, PydanticUserError) as error:
        raise TypeError(
            f"{cls.__name__} cannot be an argument, because its key {getattr(column, 'key', None)!r} is of {column.type!r}, which has no Python "
            "type that JSON can be read as"
        ) from error
    return found


T = TypeVar("T")
_Class: TypeAlias = type[T]

#: Bytes. Both together are an entry of an index, which has room for 2,704.
_MOST_OF_TYPE, _MOST_OF_ID = 400, 2_000
#: The attribute by which a class has another name here.
_NAME = "__subject_type__"


class Subject(NamedTuple):
    """What a job is about: `Job.subject`. Two are equal if they name the same row.

    `type`: the name of the mapped class, or its `__subject_type__`; of a class in an inheritance that of the base. `id`: its primary key
    as text: `7`, or `[7, 2]` for a key with two parts.

    `session.get(*job.subject.identity(Base))` loads the row, in both kinds of session.
    """

    type: str
    id: str

    @classmethod
    def of(cls, instance: object) -> Self:
        """The subject that an object of a mapped class is, if it is in the database: `select(Job).where(Job.subject == Subject.of(order))`.

        Raises SubjectError for any other.
        """
        state = sa.inspect(instance, raiseerr=False)
        if not isinstance(state, InstanceState):
            raise SubjectError(f"a subject is an object of a mapped class, not {named_anything(instance)}")
        if reason := deleted(state):
            raise SubjectError(reason)
        if state.key is None:
            raise SubjectError(f"{named_object(state)} is not in the database yet: flush first (session.flush())")
        return cls(*subject_of_key(state.mapper, tuple(state.key[1])))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The subject that is written as `Order:7`. Raises SubjectError for any other text."""
        name, colon, key = text.partition(":")
        if not (name and colon):
            raise SubjectError(f"a subject is written as a class and a key, as Order:7, and not {text[:80]!r}")
        if key.startswith("["):
            try:
                parts = from_json(key, allow_inf_nan=False)
            except ValueError:
                pass  # it is a key of one part, and begins so
            else:
                key = _text(parts)
        return cls(name, key)

    def identity(self, of: _Class[T]) -> tuple[_Class[T], Any]:
        """The class and the primary key of the row, for `session.get(*subject.identity(Base))`.

        `of`: the declarative base that knows the class; or the class itself. Raises SubjectError if it is not of this type.
        """
        found = _classes(of).get(self.type, [])
        if len(found) != 1:
            known = "no class" if not found else f"{len(found)} classes"
            raise SubjectError(f"{of.__name__} has {known} of the type {self.type!r}: give the class of {self} itself")
        return cast("_Class[T]", found[0]), _key(found[0], self.id)

    def __str__(self) -> str:
        return f"{self.type}:{self.id}"


def subject_of_key(mapper: Mapper[Any], key: tuple[Any, ...]) -> Subject:
    """The subject that an object with this key is. Raises SubjectError for a key that a subject cannot have."""
    try:
        text = _text(_keys(mapper).write(key))
    except (TypeError, ValueError) as error:
        raise SubjectError(f"the key of {mapper.class_.__name__} cannot be a subject's: {error}") from error
    return checked_subject(Subject(subject_type(mapper), text))


def checked_subject(subject: Subject) -> Subject:
    """`subject`, if a job can have it. Raises SubjectError for any other."""
    for what, text, least, most in (("type", subject.type, 1, _MOST_OF_TYPE), ("id", subject.id, 0, _MOST_OF_ID)):
        if not isinstance(text, str) or "\0" in text or not least <= len(text.encode(errors="replace")) <= most:
            raise SubjectError(f"the {what} of a subject must be a text of {least} to {most:,} bytes, not {text!r:.80}")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SubjectError(f"the {what} of a subject has a lone surrogate: {text!r:.80}") from None
    return subject


def subject_type(mapper: Mapper[Any]) -> str:
    """The type of the subjects that the objects of a mapped class are."""
    cls = identity_class(mapper)
    name: object = vars(cls).get(_NAME, cls.__name__)
    return str(name)


def identity_class(mapper: Mapper[Any]) -> type[Any]:
    """The class in the identities of its objects."""
    return mapper.identity_key_from_primary_key((None,) * len(mapper.primary_key))[0]


@lru_cache(maxsize=512)
def _keys(mapper: Mapper[Any]) -> Keys:
    return Keys(mapper.class_)


def _text(plain: Any) -> str:
    """A key as text, of what it is as plain JSON. A list as jsonb writes it."""
    return str(plain) if isinstance(plain, str) or type(plain) is int else json.dumps(plain, ensure_ascii=False)


def _key(cls: type[Any], text: str) -> Any:
    """The key that `text` is, as `session.get` takes it."""
    keys = _keys(sa.inspect(cls))
    for plain in (lambda: text, lambda: from_json(text)):
        try:
            key = keys.read(plain())
        except (TypeError, ValueError):
            continue
        return key[0] if len(key) == 1 else key
    raise SubjectError(f"{text!r:.80} is no key of {cls.__name__} ({keys.type})")


def _classes(of: type[Any]) -> dict[str, list[type[Any]]]:
    """The mapped classes by their types: those that a base knows; or a class, which is mapped itself."""
    mapper = sa.inspect(of, raiseerr=False)
    if isinstance(mapper, Mapper):
        return {subject_type(mapper): [of]}
    known = getattr(of, "registry", None)
    if not isinstance(known, registry):
        raise SubjectError(f"the class of a subject is a mapped class, or a declarative base, not {of!r:.80}")
    found: dict[str, list[type[Any]]] = {}
    for known_mapper in known.mappers:
        if identity_class(known_mapper) is known_mapper.class_:
            found.setdefault(subject_type(known_mapper), []).append(known_mapper.class_)
    return found

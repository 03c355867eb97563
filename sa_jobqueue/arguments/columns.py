"""Columns as arguments: whether the values of a SQL type fit a parameter, and the JSON that a statement makes of them.

>>> from sqlalchemy import DateTime, Integer
>>> kind_of(Integer()).fits(int), kind_of(Integer()).fits(str)
(True, False)
>>> kind_of(DateTime()).phrase
'a datetime without a time zone'

A column fits where a value of it would: strictly, as what SQLAlchemy makes of it in Python. A type says nothing of single values,
so what an annotation demands of them (`Literal`, `Field(gt=0)`) is left to the worker, which checks the arguments of each job.
"""

from __future__ import annotations

import collections.abc
import json
import typing
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, cast

import sqlalchemy as sa
from pydantic import ValidationError
from pydantic_core import from_json, to_json
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeEngine

from .ends import NOT_CHECKABLE, strict_adapter
from .references import Held, ObjectArgument
from .storable import fields_of

_Value: TypeAlias = sa.ColumnElement[Any]

_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
#: What JSON columns do not fit: the JSON of such a parameter is no object and no array.
_SCALARS = (bool, int, float, Decimal, str, bytes, uuid.UUID, date, datetime, time, timedelta, NoneType)
_LISTS = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable)
#: The times that Python can hold. Infinity is outside.
_FIRST, _LAST = "'0001-01-01'", "'9999-12-31 23:59:59.999999'"


@dataclass(frozen=True, slots=True)
class Kind:
    """What the values of a SQL type are in Python, and in JSON."""

    phrase: str
    """For a message: "an int"."""
    samples: tuple[Any, ...]
    """Some values in Python."""
    as_json: Callable[[_Value], _Value]
    """What `jsonb_build_object` makes the JSON of that `enqueue` would store."""
    is_plain: bool = False
    """Whether JSON has such values, so that they come back as they were without an annotation."""
    is_spoiled: Callable[[_Value], sa.ColumnElement[bool]] | None = None
    """Which values cannot be arguments, as NaN; None: there are none."""
    in_keys: bool = False
    """Whether its JSON is the same text in the database as in Python, to the letter."""
    items: Kind | None = None
    """Of an array."""
    is_json: bool = False

    def fits(self, hint: Any) -> bool:
        """Whether a parameter of this annotation takes such values."""
        return any(self._fits(alternative) for alternative in _alternatives(hint))

    def _fits(self, hint: Any) -> bool:
        if hint in (Any, object):
            return self.is_plain
        if self.is_json:
            return hint not in _SCALARS and not (isinstance(hint, type) and issubclass(hint, Enum))
        if self.items is not None:
            inner = typing.get_args(hint)
            return (typing.get_origin(hint) or hint) in _LISTS and self.items.fits(inner[0] if inner else Any)
        # Not if it would make another type of it, as a float of a Decimal: its JSON would be another, too.
        return any(_accepts(hint, sample, unchanged=type(sample) is not int) for sample in self.samples)


def kind_of(of: TypeEngine[Any]) -> Kind:
    """The kind of a column's type. Raises TypeError, with the reason, for a type whose values are not known here."""
    if isinstance(of, sa.TypeDecorator) and not isinstance(of, sa.Interval):
        if _changes_values(of):
            raise TypeError(
                f"{type(of).__name__} changes values in Python: cast() it to the type that the database has for it, if the stored "
                "value is meant"
            )
        return kind_of(of.impl_instance)
    if isinstance(of, sa.ARRAY):
        return _array(of)
    for known, kind in _KINDS:
        if isinstance(of, known):
            return kind(of)
    if str(of) == "NULL":
        raise TypeError("its SQL type is not known: cast() or type_coerce() it, or give the function a type_=")
    raise TypeError(f"its type {of!r} has no known form in JSON: cast() it to one that has")


def takes_none(hint: Any) -> bool:
    """Whether a parameter of this annotation takes None."""
    return _accepts(hint, None)


def _changes_values(of: sa.TypeDecorator[Any]) -> bool:
    methods = ("process_result_value", "result_processor")
    return any(getattr(type(of), name) is not getattr(sa.TypeDecorator, name) for name in methods)


# ---- annotations


def _alternatives(hint: Any) -> Iterator[Any]:
    """The types behind an annotation, without what it demands of single values."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        argument = next((part for part in inner[1:] if isinstance(part, ObjectArgument)), None)
        yield from _alternatives(inner[0] if argument is None else argument.keys.hint)
    elif origin in (typing.Union, UnionType):
        for part in inner:
            yield from _alternatives(part)
    elif origin is Literal:
        yield from {type(part) for part in inner}
    elif hasattr(hint, "__supertype__"):  # NewType
        yield from _alternatives(hint.__supertype__)
    elif hasattr(hint, "__value__"):  # `type Name = ...`
        yield from _alternatives(hint.__value__)
    else:
        yield hint
        if isinstance(hint, type) and issubclass(hint, Enum):
            yield from {type(part.value) for part in hint}


def _accepts(hint: Any, value: Any, *, unchanged: bool = False) -> bool:
    try:
        validate = _validator(hint)
    except TypeError:  # not hashable
        validate = _validator.__wrapped__(hint)
    except NOT_CHECKABLE:  # a class that holds mapped objects, which is no single value
        return False
    try:
        found = validate({"value": value}, strict=True)["value"]
    except ValidationError:
        return False
    return not unchanged or type(found) is type(value)


@lru_cache(maxsize=1_000)
def _validator(hint: Any) -> Callable[..., dict[str, Any]]:
    return strict_adapter({"value": hint}).validator.validate_python


# ---- SQL types


def _as_it_is(value: _Value) -> _Value:
    return value


def _as_text(value: _Value) -> _Value:
    return sa.cast(value, sa.Text)


def _as_json(value: _Value) -> _Value:
    return sa.func.to_jsonb(value, type_=JSONB)


def _not_finite(value: _Value) -> sa.ColumnElement[bool]:
    return value.in_([sa.literal_column(f"'{text}'") for text in ("NaN", "Infinity", "-Infinity")])


def _not_in_calendar(value: _Value) -> sa.ColumnElement[bool]:
    return sa.not_(value.between(sa.literal_column(_FIRST), sa.literal_column(_LAST)))


def _moment(value: _Value) -> _Value:
    """A timestamp as Python writes it: with six digits of a second's fraction, or none."""
    whole = sa.func.to_char(value, sa.literal_column("'YYYY-MM-DD\"T\"HH24:MI:SS'"), type_=sa.Text())
    fraction = sa.func.to_char(value, sa.literal_column("'.US'"), type_=sa.Text())
    has_none = sa.func.date_trunc(sa.literal_column("'second'"), value) == value
    return whole + sa.case((has_none, sa.literal_column("''", sa.Text)), else_=fraction)


def _moment_in_utc(value: _Value) -> _Value:
    return _moment(sa.func.timezone(sa.literal_column("'UTC'"), value)) + sa.literal_column("'Z'", sa.Text)


def _duration(value: _Value) -> _Value:
    """As ISO 8601 writes it. A month is 30 days, as psycopg reads it."""
    seconds = sa.cast(sa.extract("epoch", value), sa.Text)
    return sa.literal_column("'PT'", sa.Text) + seconds + sa.literal_column("'S'", sa.Text)


def _base64(value: _Value) -> _Value:
    text = sa.func.encode(value, sa.literal_column("'base64'"), type_=sa.Text())
    return sa.func.translate(text, sa.literal_column("E'+/\\n'"), sa.literal_column("'-_'"), type_=sa.Text())


_BOOL = Kind("a bool", (True,), _as_it_is, is_plain=True, in_keys=True)
_INT = Kind("an int", (1,), _as_it_is, is_plain=True, in_keys=True)
_FLOAT = Kind("a float", (1.5,), _as_it_is, is_plain=True, is_spoiled=_not_finite)
_DECIMAL = Kind("a Decimal", (Decimal("1.5"),), _as_text, is_spoiled=_not_finite)
_STR = Kind("a str", ("a",), _as_text, is_plain=True, in_keys=True)
_UUID = Kind("a UUID", (uuid.UUID(int=1),), lambda value: sa.cast(value, postgresql.UUID(as_uuid=True)), in_keys=True)
_BYTES = Kind("bytes", (b"a",), _base64)
_DATE = Kind("a date", (date(2026, 1, 2),), _as_it_is, is_spoiled=_not_in_calendar, in_keys=True)
_TIME = Kind("a time", (time(1, 2, 3),), _as_it_is)
_AWARE = Kind(
    "a datetime with a time zone",
    (datetime(2026, 1, 2, tzinfo=UTC),),
    _moment_in_utc,
    is_spoiled=_not_in_calendar,
    in_keys=True,
)
_NAIVE = Kind(
    "a datetime without a time zone",
    (datetime(2026, 1, 2),),  # noqa: DTZ001
    _moment,
    is_spoiled=_not_in_calendar,
    in_keys=True,
)
_INTERVAL = Kind("a timedelta", (timedelta(hours=1),), _duration)
_JSON = Kind("JSON", (), _as_it_is, is_plain=True, is_json=True)


def _number(of: Any) -> Kind:
    return _DECIMAL if of.asdecimal else _FLOAT


def _time(of: Any) -> Kind:
    if of.timezone:
        raise TypeError("a time with a time zone has no known form in JSON: cast() it to Time")
    return _TIME


def _enum(of: sa.Enum) -> Kind:
    """An `Enum` type: of a class, whose members are stored by name and sent by value; or of texts."""
    labels = [str(label) for label in of.enums]
    if of.enum_class is None:
        return Kind("a str", tuple(labels), _as_text, is_plain=True, in_keys=True)
    type_: Any = of
    member_of = type_.result_processor(_DIALECT, None)
    members = {label: member_of(label) for label in labels}

    def as_json(value: _Value) -> _Value:
        stored = sa.cast(value, sa.Text)
        sent = {label: to_json(member.value).decode() for label, member in members.items()}
        return sa.case(*((stored == label, sa.cast(sa.literal(text, sa.Text), JSONB)) for label, text in sent.items()))

    return Kind(f"a member of {of.enum_class.__name__}", tuple(members.values()), as_json)


def _array(of: sa.ARRAY[Any]) -> Kind:
    items = kind_of(of.item_type)
    if of.dimensions not in (None, 1) or items.items is not None or items.as_json not in (_as_it_is, _as_text):
        raise TypeError(
            f"an array of {items.phrase} has no known form in JSON: make JSON of it, as with func.to_jsonb()"
        )
    return Kind(f"a list of {items.phrase}", (), _as_json, is_plain=items.is_plain, items=items)


def _uuid(of: Any) -> Kind:
    return _UUID if of.as_uuid else _STR


#: In this order: an `Enum` is a `String`, too.
_KINDS: tuple[tuple[Any, Callable[[Any], Kind]], ...] = (
    (sa.Boolean, lambda _: _BOOL),
    (sa.Integer, lambda _: _INT),
    ((sa.Numeric, sa.Float), _number),  # Float is a Numeric in SQLAlchemy 2.0 only
    (sa.Enum, _enum),
    (sa.String, lambda _: _STR),
    (sa.Uuid, _uuid),
    (sa.Date, lambda _: _DATE),
    (sa.DateTime, lambda of: _AWARE if of.timezone else _NAIVE),
    (sa.Time, _time),
    ((sa.Interval, postgresql.INTERVAL), lambda _: _INTERVAL),
    (sa.LargeBinary, lambda _: _BYTES),
    (postgresql.BYTEA, lambda _: _BYTES),
    (sa.JSON, lambda _: _JSON),
)

# ---- Sets as JSON lists that are the same in every process: Python iterates over a set in an order of its own in each.

_SETS = ("set", "frozenset")


def has_sets(schema: Any) -> bool:
    """Whether a value of this pydantic-core schema may be or contain a set."""
    if isinstance(schema, Mapping):
        parts = cast(Mapping[str, Any], schema)
        return parts.get("type") in _SETS or any(has_sets(part) for part in parts.values())
    return isinstance(schema, (list, tuple)) and any(has_sets(part) for part in cast(list[Any], schema))


def in_order(data: bytes, value: object) -> bytes:
    """The JSON that was made of `value`, with what stands for a set in order."""
    return to_json(plain_in_order(from_json(data), value))


def plain_in_order(plain: Any, value: Any) -> Any:
    """Like `in_order`, for JSON that is plain Python objects."""
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        parts = cast(Iterable[Any], value)
        if not isinstance(plain, list) or len(plain) != len(value):
            return plain  # by a serializer of the application
        found = [plain_in_order(item, part) for item, part in zip(plain, parts, strict=True)]
        return sorted(found, key=_place) if isinstance(value, (set, frozenset)) else found
    if isinstance(value, Mapping):
        if not isinstance(plain, dict) or len(plain) != len(value):
            return plain
        pairs = zip(cast(dict[str, Any], plain).items(), value.values(), strict=True)
        return {name: plain_in_order(item, part) for (name, item), part in pairs}
    if isinstance(value, Held):
        return plain_in_order(plain, value.values)
    return _of_fields(plain, value)


def _of_fields(plain: Any, value: Any) -> Any:
    """Of a dataclass or a model."""
    fields = fields_of(value)
    if not isinstance(plain, dict):
        return plain_in_order(plain, fields["root"]) if set(fields) == {"root"} else plain
    declared = getattr(type(value), "__pydantic_fields__", {})
    changed: dict[str, Any] = {}
    for name, part in fields.items():
        alias = getattr(declared.get(name), "serialization_alias", None) or name
        if alias in plain:
            changed[alias] = plain_in_order(plain[alias], part)
    return {**plain, **changed}


def _place(value: Any) -> tuple[float, str]:
    """Numbers by their value, so that 1.0 stands where 1 does; all else by its JSON."""
    if isinstance(value, (int, float)):
        return value, ""
    return float("inf"), json.dumps(value, sort_keys=True)

"""Arguments and meta: jsonb in the table, JSON text on the way there, a dict for the reader.

`enqueue` has checked and encoded the arguments already. To decode them for the attribute and encode them again for the
INSERT took a sixth of the client's time for a job (November 2026).
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from pydantic_core import from_json
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.types import TypeEngine

from ..errors import PayloadError

__all__ = ["UNFINISHED", "JsonObject", "JsonText", "UnfinishedJson", "decode_on_read"]


class JsonText(str):
    """JSON text that is ready to be stored. A job carries it from `enqueue` to the INSERT, unless it is read before."""

    __slots__ = ()


class UnfinishedJson(JsonText):
    """The same, before it is complete: it must not be stored yet."""

    __slots__ = ()


class UnfinishedObject(dict[str, Any]):
    """What was read of an `UnfinishedJson`."""


#: Arguments that are not complete, as they are set and as they are read.
UNFINISHED = (UnfinishedJson, UnfinishedObject)


class JsonObject(sa.TypeDecorator[dict[str, Any]]):
    """A jsonb object. A `JsonText` goes to the driver as it is."""

    impl = JSONB
    cache_ok = True

    def bind_processor(self, dialect: sa.Dialect) -> Any:
        encode: Any = super().bind_processor(dialect)
        encoded = encode({})
        # Most drivers take text. Psycopg takes an object, which encodes what it holds when it is sent.
        wrapper = None if isinstance(encoded, (str, bytes)) else type(encoded)

        def process(value: Any) -> Any:
            if type(value) is not JsonText:
                if isinstance(value, UNFINISHED):
                    raise PayloadError(
                        "a job whose arguments are new objects is written by a flush, session.add(job): or flush the objects "
                        "before it is made"
                    )
                return encode(value)
            text = str.__str__(value)
            return text if wrapper is None else wrapper(text, dumps=str)

        return process

    def coerce_compared_value(self, op: Any, value: Any) -> TypeEngine[Any]:
        return self.impl_instance.coerce_compared_value(op, value)


# A mapped attribute that decodes its `JsonText` when it is read.
class _DecodedOnRead(InstrumentedAttribute[Any]):  # pyright: ignore[reportIncompatibleVariableOverride]
    __slots__ = ()
    inherit_cache = True

    def __get__(self, instance: object | None, owner: Any) -> Any:
        value = super().__get__(instance, owner)
        if isinstance(value, JsonText):
            plain = from_json(value)
            # Not a change of the row: the INSERT stays the same.
            value = vars(instance)[self.key] = UnfinishedObject(plain) if type(value) is UnfinishedJson else plain
        return value


def decode_on_read(_class: type, _key: str, attribute: InstrumentedAttribute[Any]) -> None:
    """Make each mapped attribute of this type decode when it is read, in subclasses too."""
    columns = getattr(attribute.property, "columns", ())
    if columns and isinstance(columns[0].type, JsonObject):
        attribute.__class__ = _DecodedOnRead

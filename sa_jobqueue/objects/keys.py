"""The primary keys of a mapped class as JSON: the key itself, or a list of its parts where there are several."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import to_json
from sqlalchemy.orm import Mapper

__all__ = ["Keys"]

_BYTES = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class Keys:
    """The primary keys of one mapped class. Raises TypeError for a class whose keys have no type that JSON could be read as."""

    def __init__(self, cls: type[Any]) -> None:
        mapper: Mapper[Any] = sa.inspect(cls)
        self.columns = mapper.primary_key
        types = tuple(_type_of(column, cls) for column in self.columns)
        self._as_it_is = types if set(types) <= {int, str} else None
        """The types of keys that JSON has as they are: nearly all. They need no adapter."""
        self.type = ", ".join(one.__name__ for one in types)
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

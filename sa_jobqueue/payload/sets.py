"""Sets as JSON lists that are the same in every process: Python iterates over a set in an order of its own in each.

>>> tags = {"b", "a", "c"}
>>> in_order(to_json({"tags": tags}), {"tags": tags})
b'{"tags":["a","b","c"]}'
>>> schema = {"type": "dict", "values_schema": {"type": "frozenset"}}
>>> has_sets(schema), has_sets({"type": "list"})
(True, False)
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, cast

from pydantic_core import from_json, to_json

from ..objects import Held
from .storable import fields_of

__all__ = ["has_sets", "in_order", "plain_in_order"]

_SETS = ("set", "frozenset")


def has_sets(schema: Any) -> bool:
    """Whether a value that fits this schema of pydantic's core may be a set, or hold one."""
    if isinstance(schema, Mapping):
        parts = cast(Mapping[str, Any], schema)
        return parts.get("type") in _SETS or any(has_sets(one) for one in parts.values())
    return isinstance(schema, (list, tuple)) and any(has_sets(one) for one in cast(list[Any], schema))


def in_order(data: bytes, value: object) -> bytes:
    """The JSON that was made of `value`, with what stands for a set in order."""
    return to_json(plain_in_order(from_json(data), value))


def plain_in_order(plain: Any, value: Any) -> Any:
    """The same for JSON that is plain Python objects."""
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        parts = cast(Iterable[Any], value)
        if not isinstance(plain, list) or len(plain) != len(value):
            return plain  # by a serializer of the application
        found = [plain_in_order(one, part) for one, part in zip(plain, parts, strict=True)]
        return sorted(found, key=_place) if isinstance(value, (set, frozenset)) else found
    if isinstance(value, Mapping):
        if not isinstance(plain, dict) or len(plain) != len(value):
            return plain
        pairs = zip(cast(dict[str, Any], plain).items(), value.values(), strict=True)
        return {name: plain_in_order(one, part) for (name, one), part in pairs}
    if isinstance(value, Held):
        return plain_in_order(plain, value.values)
    return _of_fields(plain, value)


def _of_fields(plain: Any, value: Any) -> Any:
    """Of a dataclass or a model."""
    fields = fields_of(value)
    if not isinstance(plain, dict):
        return plain_in_order(plain, fields["root"]) if set(fields) == {"root"} else plain
    said = getattr(type(value), "__pydantic_fields__", {})
    changed: dict[str, Any] = {}
    for name, part in fields.items():
        alias = getattr(said.get(name), "serialization_alias", None) or name
        if alias in plain:
            changed[alias] = plain_in_order(plain[alias], part)
    return {**plain, **changed}


def _place(one: Any) -> tuple[float, str]:
    """Numbers by their value, so that 1.0 stands where 1 does; all else by its JSON."""
    if isinstance(one, (int, float)):
        return one, ""
    return float("inf"), json.dumps(one, sort_keys=True)

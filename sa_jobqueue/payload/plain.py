"""Plain JSON: arguments of a task known by name, meta, results."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json, to_json

from ..errors import PayloadError
from .storable import MAX_DIGITS, MAX_PAYLOAD, as_jsonb, checked_json, refusal, same, shown, unstorable

__all__ = ["EXPONENT", "encode_plain", "encode_result", "load", "load_any"]

#: A number written with a positive exponent, or a text that looks like one.
EXPONENT = re.compile(r"\de\+?\d")


def encode_plain(value: Mapping[str, Any], *, what: str, item: str = "argument ", limit: int | None = None) -> str:
    """A mapping of plain JSON values as JSON text that comes back equal: the arguments of a task known by name, or `meta`.

    Raises PayloadError for any other value. `what` begins the message, and `item` stands before the name of a value.
    `limit`: the registry's, in bytes; None if there is none.
    """
    try:
        data = to_json(value, inf_nan_mode="constants")
        text = checked_json(data, value, what=what, item=item, limit=limit)
        back = as_jsonb(load(text)) if EXPONENT.search(text) else load(text)
    except PayloadError:
        raise
    except Exception as error:
        raise refusal(error, value, what=what, item=item) from error
    for name, one in value.items():
        if not (name in back and same(one, back[name])):
            if found := next(unstorable({name: one}), None):
                raise PayloadError(f"{what}: {item}{found}")
            raise PayloadError(
                f"{what}: {item}{name}: {shown(one)} is not plain JSON: pass None, bool, int, float, str, "
                "list or dict with string keys"
            )
    return text


def encode_result(value: object, *, task: str, limit: int = MAX_PAYLOAD) -> str:
    """What a handler returned, as JSON text. Raises PayloadError if it cannot be stored.

    Dataclasses, models, dates and the like become JSON by pydantic's rules, and stay plain JSON when they are read.
    """
    what = f"task {task!r}: its result"
    try:
        data = to_json(value, inf_nan_mode="constants", bytes_mode="base64")
    except Exception as error:
        raise refusal(error, value, what=what, item="") from error
    text = checked_json(data, value, what=what, item="", limit=limit)
    if found := next(unstorable(value), None):
        raise PayloadError(f"{what}: {found}")
    return text


def load(text: str | bytes) -> Any:
    """JSON text as plain Python objects."""
    return from_json(text)


def load_any(text: str) -> Any:
    """JSON of a row that anything may have written; an integer that has more digits than Python reads stays text."""
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= MAX_DIGITS else digits)

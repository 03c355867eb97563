"""Plain JSON: arguments of a task known by name, meta, results."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeGuard, cast

from pydantic_core import PydanticSerializationError, from_json, to_json

from ..errors import PayloadError

#: Bytes of encoded arguments that are accepted: 1 MiB. Rows are read in batches, so larger data belong elsewhere.
MAX_PAYLOAD = 1_048_576

#: Integers up to this many digits can be read back: Python's own limit for text.
MAX_DIGITS = 4_300
_TOO_LONG = 10**MAX_DIGITS

#: How pydantic begins to say that bytes are no text.
_NOT_TEXT = "invalid utf-8 sequence"

#: Levels of nesting that are searched for what cannot be stored. The JSON reader itself stops at 200.
MAX_DEPTH = 100
#: Characters shown of the path to what is nested too deep.
_SHOWN_PATH = 40


def unstorable_text(text: str) -> str | None:
    """Why PostgreSQL cannot store `text`, if it cannot."""
    if "\x00" in text:
        return "holds a NUL character, which PostgreSQL cannot store"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds a lone surrogate, which is no Unicode text"
    return None


def unstorable(value: Any, path: str = "", depth: int = 0) -> Iterator[str]:
    """What in `value` cannot be stored, each as "path: the reason"."""
    at = f"{path}: " if path else ""
    if isinstance(value, str):
        if reason := unstorable_text(value):
            yield f"{at}{shown(value)} {reason}"
    elif isinstance(value, (float, Decimal)):
        if not (value.is_finite() if isinstance(value, Decimal) else math.isfinite(value)):
            yield f"{at}{value!r} cannot be a number in JSON: pass None, or a string"
    elif isinstance(value, int):
        if abs(value) >= _TOO_LONG:
            yield f"{at}an integer of more than {MAX_DIGITS:,} digits cannot be read back from JSON"
    elif depth > MAX_DEPTH:
        start = path if len(path) <= _SHOWN_PATH else f"{path[:_SHOWN_PATH]}…"
        yield f"{start}: nested more than {MAX_DEPTH} levels deep, or part of itself"
    else:
        yield from _unstorable_keys(value, at)
        for step, part in _parts(value):
            yield from unstorable(part, f"{path}{step}" if path else step.removeprefix("."), depth + 1)


def _is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)


def _unstorable_keys(value: Any, at: str) -> Iterator[str]:
    if _is_mapping(value):
        for key in value:
            if not isinstance(key, str):
                yield f"{at}the key {shown(key)} is not a string, and JSON has no other keys"
            elif reason := unstorable_text(key):
                yield f"{at}the key {shown(key)} {reason}"


def _parts(value: Any) -> list[tuple[str, Any]]:
    """The parts of `value`, each with the step of the path that leads to it."""
    if _is_mapping(value):
        return [(f".{key}", part) for key, part in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"[{index}]", part) for index, part in enumerate(cast(Collection[Any], value))]
    return [(f".{name}", part) for name, part in fields_of(value).items()]


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass or of a pydantic model. A mapped object might load them."""
    if hasattr(cast(Any, type(value)), "__mapper__"):
        return {}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if hasattr(cast(Any, type(value)), "__pydantic_validator__"):
        return dict(vars(value))
    return {}


def same(given: Any, back: Any) -> bool:
    """Whether what came back is what was given: equal, and of its type or of a base of it.

    A float may come back as the integer that it equals, because jsonb makes no difference from 1e16 on.
    """
    try:
        if given == back:
            return isinstance(given, type(back)) or (isinstance(given, float) and type(back) is int)
    except Exception:  # an __eq__ whose answer is no bool, as that of arrays
        return False
    if isinstance(given, datetime) and isinstance(back, datetime):
        # In an hour that the clocks repeat, == between two zones is false for equal times (PEP 495).
        aware = given.tzinfo is not None and back.tzinfo is not None
        return aware and given.astimezone(UTC) == back.astimezone(UTC)
    if not isinstance(given, type(back)):
        return False
    # Its parts may differ by == and still be the same.
    mine, other = _by_key(given), _by_key(back)
    return bool(mine) and mine.keys() == other.keys() and all(same(part, other[key]) for key, part in mine.items())


def _by_key(value: Any) -> dict[Any, Any]:
    if _is_mapping(value):
        return dict(value)
    if isinstance(value, (list, tuple)):
        return dict(enumerate(cast(Sequence[Any], value)))
    return fields_of(value)


def as_jsonb(value: Any) -> Any:
    """`value`, plain JSON, as jsonb gives it back: 1e+23 is then the integer 100000000000000000000000."""
    if isinstance(value, float) and abs(value) >= 1e16:
        return int(Decimal(repr(value)))
    if isinstance(value, list):
        return [as_jsonb(item) for item in cast(Sequence[Any], value)]
    if _is_mapping(value):
        return {key: as_jsonb(item) for key, item in value.items()}
    return value


def checked_json(data: bytes, value: object, *, what: str, item: str, limit: int | None) -> str:
    """The JSON that was made of `value`, as text. Raises PayloadError if it is larger than `limit` bytes or cannot be stored.

    `what` begins the message, and `item` stands before the name of a value in it. `limit`: the registry's; None: the
    default, which cannot be changed.
    """
    most = MAX_PAYLOAD if limit is None else limit
    if len(data) > most:
        raise PayloadError(
            f"{what}: {len(data):,} bytes of JSON, more than the {most:,} that are accepted: "
            "store the data elsewhere and pass its key"
            + ("" if limit is None else ", or raise max_payload of the registry (default_registry, or the task's own)")
        )
    text = data.decode()
    # Values that JSON text must not hold contain one of these texts. An ordinary string may contain them too, so the value is tested.
    suspect = "NaN" in text or "Infinity" in text or "\\u0000" in text
    if suspect or len(text) > MAX_DIGITS:
        try:
            plain = from_json(text)
        except ValueError as error:
            raise refusal(error, value, what=what, item=item) from error
        if suspect and (found := next(unstorable(plain), None)):
            raise PayloadError(f"{what}: {item}{found}")
    return text


def refusal(
    error: Exception, value: object, *, what: str, item: str, write: Callable[[Mapping[Any, Any]], object] | None = None
) -> PayloadError:
    """The PayloadError for `error`, which was raised while `value` was made into JSON.

    `write`: the serializer of a handler's arguments, which alone knows the handler's types.
    """
    if found := next(unstorable(value), None):
        return PayloadError(f"{what}: {item}{found}")
    reason = str(error).removeprefix("Error serializing to JSON: ")
    if isinstance(error, PydanticSerializationError):
        reason = reason[:1].lower() + reason[1:]
        if reason.startswith(_NOT_TEXT):
            reason += (
                ": the bytes of a dataclass or a model must be UTF-8, unless its pydantic configuration says "
                'ser_json_bytes="base64" and val_json_bytes="base64"'
            )
    else:
        reason = f"{type(error).__name__}: {reason}"
    path = _culprit(value, write or _as_json)
    at = f"{item}{path}: " if path else ""
    return PayloadError(f"{what}: {at}cannot be stored as JSON: {reason}")


def _culprit(value: object, write: Callable[[Mapping[Any, Any]], object]) -> str:
    """The path to the part of `value` that cannot be made into JSON; "" if it is no single part."""
    if _is_mapping(value):
        for name, part in value.items():
            if _fails(write, {name: part}):
                return f"{name}{_way(part)}"
    return _way(value).removeprefix(".")


def _way(value: object) -> str:
    for write in (_as_json, _as_text):
        for step, part in _parts(value):
            if _fails(write, part):
                return f"{step}{_way(part)}"
    return ""


def _as_json(value: object) -> bytes:
    return to_json(value, inf_nan_mode="constants", bytes_mode="base64")


def _as_text(value: object) -> bytes:
    # As the bytes of a dataclass or a model are written that does not say otherwise.
    return to_json(value, inf_nan_mode="constants", bytes_mode="utf8")


def _fails(write: Callable[[Any], object], value: object) -> bool:
    try:
        write(value)
    except Exception:  # from a serializer of the application, too
        return True
    return False


def shown(value: object) -> str:
    """`value` for a message: its repr, cut."""
    try:
        text = repr(value)
    except Exception:  # from the application's __repr__
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:60]}… ({type(value).__name__})"


#: A number written with a positive exponent, or a similar text.
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
    for name, entry in value.items():
        if not (name in back and same(entry, back[name])):
            if found := next(unstorable({name: entry}), None):
                raise PayloadError(f"{what}: {item}{found}")
            raise PayloadError(
                f"{what}: {item}{name}: {shown(entry)} is not plain JSON: pass None, bool, int, float, str, "
                "list or dict with string keys"
            )
    return text


def encode_value(value: object, *, what: str, limit: int = MAX_PAYLOAD) -> str:
    """A value as JSON text. Raises PayloadError if it cannot be stored. `what` begins the message.

    Dataclasses, models, dates and the like become JSON by pydantic's rules, and stay plain JSON when they are read.
    """
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

"""Questions to people, for whose answers handlers wait: the text, the buttons, and the check of an answer.

>>> question_of(as_asked("Ship order 17?", bool)).choices
[('Yes', True), ('No', False)]
"""

from __future__ import annotations

import json
import operator
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from pydantic import TypeAdapter, ValidationError

from ..errors import OptionError
from .ends import typed
from .storable import encode_value, load

#: By the type in a JSON schema: the Python types, the initial value in a form, and the name in errors.
_KINDS: Mapping[str, tuple[type | tuple[type, ...], Any, str]] = {
    "string": (str, "", "a string"), "integer": (int, 0, "an integer"), "number": ((int, float), 0, "a number"),
    "boolean": (bool, False, "true or false"), "array": (list, [], "an array"), "object": (dict, {}, "an object"),
    "null": (type(None), None, "null"),
}  # fmt: skip
#: By the keyword in a JSON schema: the Python types that it bounds, the comparison, and the text in errors.
_BOUNDS: Mapping[str, tuple[type | tuple[type, ...], Callable[[Any, Any], bool], str]] = {
    "minimum": ((int, float), operator.ge, "at least {}"), "exclusiveMinimum": ((int, float), operator.gt, "more than {}"),
    "maximum": ((int, float), operator.le, "at most {}"), "exclusiveMaximum": ((int, float), operator.lt, "less than {}"),
    "minLength": (str, operator.ge, "at least {} characters long"), "maxLength": (str, operator.le, "at most {} characters long"),
    "minItems": (list, operator.ge, "an array of at least {}"), "maxItems": (list, operator.le, "an array of at most {}"),
}  # fmt: skip
#: The depth to which an answer is checked, and the number of checked values. The handler checks the rest.
_MOST_DEEP, _MOST_CHECKED = 50, 10_000


@dataclass(frozen=True, slots=True)
class Question:
    """A question, as shown in a form."""

    text: str
    choices: Sequence[tuple[str, Any]] = ()
    """The labels of buttons, and the payloads that they send."""
    schema: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON schema of the payload; empty: anything."""

    @property
    def example(self) -> str:
        """Initial JSON for the form: an object with the fields of the schema."""
        fields: Mapping[str, Any] = self.schema.get("properties", {})
        first = {
            name: part.get("default", _KINDS.get(str(part.get("type")), (object, None))[1])
            for name, part in fields.items()
            if isinstance(part, dict)
        }
        return json.dumps(first, indent=2, ensure_ascii=False) if first else ""

    def from_form(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """An answer from the fields of a form, which are texts. A text that does not fit its field is read as JSON if the result fits: 7, true."""
        check, parts = _Check(self.schema), self.schema.get("properties", {})

        def read(name: str, text: Any) -> Any:
            with suppress(ValueError, TypeError, RecursionError):
                if check.misfit(parts.get(name), text) and not check.misfit(parts[name], found := json.loads(text)):
                    return found
            return text

        return {name: read(name, text) for name, text in fields.items()}

    def misfit(self, payload: object) -> str:
        """Why the schema refuses this payload; "": the schema allows it."""
        if any(_same(payload, known) for _, known in self.choices):
            return ""
        found = _Check(self.schema).misfit(self.schema, payload)
        return "" if found is None else str(found)


def as_asked(question: object, hint: Any) -> dict[str, Any]:
    """The stored form of a question, whose answer has the type `hint`.

    `question`: a text, or a mapping {"question": text, "choices": {label: payload}}. Without choices, a bool gets the choices Yes and No, and a
    Literal or an Enum its values. Raises OptionError for choices that do not fit the type.
    """
    given: Any = load(encode_value(question, what="wait_signal(question=...)"))
    choices: Any = None
    if isinstance(given, dict) and "choices" in (parts := cast("dict[str, Any]", given)):
        if set(parts) != {"question", "choices"}:
            raise OptionError(
                f"wait_signal(question=...): a question with choices has the keys 'question' and 'choices', not {list(parts)!r:.80}"
            )
        given, choices = parts["question"], parts["choices"]
        if not isinstance(choices, dict) or not choices:
            raise OptionError(
                f"wait_signal(question=...): choices must be a mapping of labels to payloads, not {choices!r:.80}"
            )
    try:
        schema = {} if hint is Any else TypeAdapter(hint).json_schema()
    except Exception:  # a type of the application that has no schema
        schema = {}
    if choices is None:
        # A Literal of a single value is a "const".
        listed = schema.get("enum", [schema["const"]] if "const" in schema else [])
        values = [True, False] if schema.get("type") == "boolean" and not listed else listed
        pairs = [
            ({True: "Yes", False: "No"}[value] if isinstance(value, bool) else str(value), value) for value in values
        ]
        choices = dict(pairs) if _differ([label for label, _ in pairs]) else {}
    elif not _differ(choices):
        raise OptionError(f"wait_signal(question=...): choices must have labels that differ, not {list(choices)!r:.80}")
    for label, payload in choices.items():
        try:
            _ = hint is Any or typed(hint).from_plain(payload)
        except ValidationError as error:
            reason = error.errors(include_url=False, include_context=False)[0]["msg"]
            raise OptionError(
                f"wait_signal(question=...): the choice {label!r} does not fit {hint!r}: {reason}"
            ) from error
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    # Pairs, because jsonb has an order of its own for keys.
    return {"text": text, "choices": list(choices.items()), "schema": schema}


def question_of(stored: Any) -> Question | None:
    """The question from its stored form; None if there is no question, or an invalid one."""
    try:
        return Question(
            str(stored["text"]), [(str(label), payload) for label, payload in stored["choices"]], dict(stored["schema"])
        )
    except (TypeError, ValueError, KeyError):
        return None


def _differ(labels: Collection[str]) -> bool:
    """Whether the labels of the buttons differ. Forms send the label without spaces at its ends."""
    sent = {label.strip() for label in labels}
    return "" not in sent and len(sent) == len(labels)


def _same(value: Any, known: Any) -> bool:
    return value == known and isinstance(value, bool) == isinstance(known, bool)


class _Misfit(NamedTuple):
    """A value that the schema refuses: its place, the expected value, and the value found."""

    at: tuple[str, ...]
    expected: str
    found: str

    def __str__(self) -> str:
        place = f"answer{''.join(self.at)}"
        return f"{place} must be {self.expected}, not {self.found}" if self.expected else f"{place} is {self.found}"


class _Check:
    """Checks values against a JSON schema from pydantic. Keywords that it does not know, such as `pattern` and `format`, are ignored."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._defined: Mapping[str, Any] = root.get("$defs", {})
        self._left = _MOST_CHECKED

    def misfit(self, schema: Any, value: Any, at: tuple[str, ...] = (), depth: int = 0) -> _Misfit | None:
        """The first value that the schema refuses."""
        self._left -= 1
        if not isinstance(schema, dict) or depth > _MOST_DEEP or self._left < 0:  # true: anything
            return None
        rules = cast("dict[str, Any]", schema)
        if expected := _expected(rules, value):
            return _Misfit(at, expected, reprlib.repr(value))
        for place, part, entry in self._parts(rules, value):
            if part is False:
                return _Misfit((*at, place), "", "not a field of the type")
            if found := self.misfit(part, entry, (*at, place) if place else at, depth + 1):
                return found
        if "required" in rules and isinstance(value, dict):
            for name in rules["required"]:
                if name not in value:
                    return _Misfit((*at, f".{name}"), "", "missing")
        if any_of := rules.get("anyOf", rules.get("oneOf")):
            misfits = [self.misfit(part, value, at, depth + 1) for part in any_of]
            wrong = [found for found in misfits if found is not None]
            if len(wrong) == len(misfits):
                deepest = max(wrong, key=lambda found: len(found.at))
                if deepest.at != at:
                    return deepest
                return deepest._replace(expected=" or ".join(dict.fromkeys(found.expected for found in wrong)))
        return None

    def _parts(self, rules: Mapping[str, Any], value: Any) -> Iterator[tuple[str, Any, Any]]:
        """The parts of the value: place, schema and value. The place "" is the value itself."""
        if "$ref" in rules:
            yield "", self._defined.get(str(rules["$ref"]).removeprefix("#/$defs/")), value
        if isinstance(value, dict):
            known, others = rules.get("properties", {}), rules.get("additionalProperties")
            for name, entry in cast("dict[str, Any]", value).items():
                yield f".{name}", known.get(name, None if "patternProperties" in rules else others), entry
        elif isinstance(value, list):
            first = rules.get("prefixItems", ())
            for number, entry in enumerate(value):
                yield f"[{number}]", first[number] if number < len(first) else rules.get("items"), entry


def _expected(rules: Mapping[str, Any], value: Any) -> str:
    """The values that the schema expects, in words; "" if it allows this value."""
    listed = rules.get("enum", [rules["const"]] if "const" in rules else None)
    if listed is not None and not any(_same(value, known) for known in listed):
        return f"{' or '.join(map(repr, listed)):.200}"
    kind = str(rules.get("type"))
    if kind in _KINDS and (not isinstance(value, _KINDS[kind][0]) or (isinstance(value, bool) and kind != "boolean")):
        return _KINDS[kind][2]
    measure: Any = len(value) if isinstance(value, (str, list)) else value
    for keyword, (kinds, holds, words) in _BOUNDS.items():
        if keyword in rules and isinstance(value, kinds) and not holds(measure, rules[keyword]):
            return words.format(rules[keyword])
    return ""

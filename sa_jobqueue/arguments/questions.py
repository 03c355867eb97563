"""Questions to a person whose answer a handler waits for: the text, buttons for the answers, and what an answer must look like.

>>> question_of(as_asked("Ship order 17?", bool)).choices
[('Yes', True), ('No', False)]
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from ..errors import OptionError
from .ends import typed
from .storable import encode_value, load

#: By the type of a JSON schema: what Python reads, and what a form begins with.
_KINDS: Mapping[str, tuple[type | tuple[type, ...], Any]] = {
    "string": (str, ""), "integer": (int, 0), "number": ((int, float), 0), "boolean": (bool, False), "array": (list, []), "object": (dict, {}),
    "null": (type(None), None),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """A question as forms show it."""

    text: str
    choices: Sequence[tuple[str, Any]] = ()
    """Labels of buttons, and the payload that each sends."""
    schema: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON schema of the payload; empty: anything."""

    @property
    def example(self) -> str:
        """JSON to begin with: an object with the fields of the schema."""
        fields: Mapping[str, Any] = self.schema.get("properties", {})
        first = {
            name: part.get("default", _KINDS.get(str(part.get("type")), (object, None))[1])
            for name, part in fields.items()
            if isinstance(part, dict)
        }
        return json.dumps(first, indent=2, ensure_ascii=False) if first else ""

    def misfit(self, payload: object) -> str:
        """Why the handler cannot take this payload, as far as the types of fields tell; "": it can."""
        return _misfit(self.schema, payload)


def as_asked(question: object, hint: Any) -> dict[str, Any]:
    """A question as it is stored, for an answer of type `hint`.

    `question`: a text, or a mapping {"question": text, "choices": {label: payload}}. Without choices a bool is answered by Yes or No, and a
    Literal or an Enum by its values. Raises OptionError for choices that are not of this type.
    """
    given: Any = load(encode_value(question, what="wait_signal(question=...)"))
    choices: Any = None
    if isinstance(given, dict) and set(parts := cast("dict[str, Any]", given)) == {"question", "choices"}:
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
    """The question of a wait's row; None: it has none that can be shown."""
    try:
        return Question(
            str(stored["text"]), [(str(label), payload) for label, payload in stored["choices"]], dict(stored["schema"])
        )
    except (TypeError, ValueError, KeyError):
        return None


def _differ(labels: Collection[str]) -> bool:
    """Whether each button can be told from the others, as forms send its label."""
    sent = {label.strip() for label in labels}
    return "" not in sent and len(sent) == len(labels)


def _misfit(schema: Any, value: Any) -> str:
    if not isinstance(schema, dict):  # true: anything
        return ""
    kind = str(schema.get("type"))
    if kind in _KINDS and (not isinstance(value, _KINDS[kind][0]) or (isinstance(value, bool) and kind != "boolean")):
        return f"a value of type {kind} is expected"
    if not isinstance(value, dict):
        return ""
    found = cast("dict[str, Any]", value)
    if missing := [name for name in schema.get("required", ()) if name not in found]:
        return f"{missing[0]} is missing"
    parts = schema.get("properties", {})
    return next((f"{name}: {reason}" for name in found if (reason := _misfit(parts.get(name, {}), found[name]))), "")

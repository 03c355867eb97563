"""What code declares, and which definition is in use while releases roll.

A row keeps the digests of all that code has declared so far. A definition that was replaced does not come back while a living worker
declares the one that replaced it: so an older release, which starts again while a deployment rolls, changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["SAY_AGAIN", "Declaring", "Definition", "definition", "digests_with", "to_change"]

#: A worker says again what it declares when it has not said so for this number of seconds.
SAY_AGAIN = 30.0
#: Digests that are kept of a row's former definitions.
_FORMER = 100


class Definition(NamedTuple):
    """What code declares, by column; and the digest of that."""

    values: Mapping[str, Any]
    digest: str


@dataclass(slots=True)
class Declaring:
    """What became of what code declares, by name."""

    made: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    """An operator's values are in use; what the code declares now is written beside them."""
    superseded: list[str] = field(default_factory=list)
    """Another definition is in use, of a newer release or of another application."""
    taken: list[str] = field(default_factory=list)
    """The name belongs to a row that was made at run time."""
    locked: list[str] = field(default_factory=list)
    """Another transaction has locked it just now."""


def definition(values: Mapping[str, Any]) -> Definition:
    """The definition that says these values."""
    # Not what it leaves open: so the digests that rows have do not change when a later release adds a column.
    said = {name: value for name, value in values.items() if value is not None}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return Definition(values, hashlib.sha256(text.encode()).hexdigest()[:24])


def digests_with(digest: str, known: Sequence[str] | None, *, gone: bool) -> list[str] | None:
    """The digests of a row with that of its new definition at the end. None: it was replaced, and stays so; unless no living worker
    declares the one in use, which is `gone`.
    """
    before = list(known or ())
    if digest in before and not gone:
        return None
    return [*[one for one in before if one != digest][-_FORMER:], digest]


def to_change(row: Any, before: object, values: Mapping[str, Any], columns: Iterable[str]) -> dict[str, Any]:
    """The columns of a row that a new definition changes. One that differs from what code said `before` was edited, and stays."""
    said: Mapping[str, Any] = before if isinstance(before, dict) else {}  # by hand it may be any JSON
    return {name: values[name] for name in columns if getattr(row, name) == said.get(name) != values[name]}

"""Lets docstrings be plain text, as they are written: examples indented, arguments below `Args:`.

Napoleon would do the second, but takes what stands before a colon in an attribute's docstring for its type.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

_FIELDS = {"Args:": "param", "Raises:": "raises"}
_ITEM = re.compile(r"    (\w+): (.*)")


def as_rst(lines: list[str]) -> list[str]:
    """Make fields of what is below `Args:` and `Raises:`, and a literal block of what else is indented."""
    made: list[str] = []
    field = ""
    literal = False
    for line in lines:
        if line in _FIELDS:
            field = _FIELDS[line]
        elif line and not line.startswith("    "):
            field, literal = "", False
            made.append(line)
        elif field and (item := _ITEM.fullmatch(line)) is not None:
            made.append(f":{field} {item[1]}: {item[2]}")
        elif line and not field and not literal and made and not made[-1]:
            literal = True
            made += ["::", "", line]
        else:
            made.append(line)
    return made


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:  # noqa: PLR0917
    lines[:] = as_rst(lines)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True}

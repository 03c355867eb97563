"""Lets docstrings be plain text, as they are written: examples indented, arguments below `Args:` or as "`name`: what it is".

Napoleon would do the second, but takes what stands before a colon in an attribute's docstring for its type. Signatures show
no private names: what one stands for is shown in its place. Nor do they show modules (`~sa_jobqueue.tasks.Task`), which Sphinx
leaves in what it cannot parse.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

_FIELDS = {"Args:": "param", "Raises:": "raises"}
_ITEM = re.compile(r"    (\w+): (.*)")
#: Where a paragraph names a parameter, or several, and then says what it is.
_NAMED = re.compile(r"(?:^|(?<=[.;)] ))(?=`[\w=]+`(?:, `[\w=]+`)*: )")
#: What a signature shows in place of a private name.
_SHOWN = {
    "_DEFAULT_RETAIN": "timedelta(days=7)",
    "_PATIENCE": "timedelta(seconds=5)",
    "_Decorator": "Callable",
    "_BatchDecorator": "Callable",
    "_RelationshipDeclared": "Mapped",
    "_Class": "type",
}
#: What a type variable stands for, by the signature that shows it.
_BOUND = {"sa_jobqueue.JobContext.session": "Session", "sa_jobqueue.AsyncJobContext.session": "AsyncSession"}
_MODULE = re.compile(r"~(?:\w+\.)*~?")
_PRIVATE = re.compile(r"(?<![\w.])_[A-Za-z]\w*")


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


def as_lists(lines: list[str]) -> list[str]:
    """Make a list of a paragraph that begins with a parameter's name: an item for each name, or names, that it explains."""
    made: list[str] = []
    for paragraph in "\n".join(lines).split("\n\n"):
        if re.match(r"`[\w=]+`(?:, `[\w=]+`)*: ", paragraph) and "\n    " not in paragraph:
            items = filter(None, _NAMED.split(" ".join(paragraph.split())))
            made += [f"* {item.strip()}" for item in items]
        else:
            made += paragraph.split("\n")
        made.append("")
    return made[:-1]


def _show_plain_names(app: Sphinx, doctree: nodes.document) -> None:
    for signature in doctree.findall(addnodes.desc_signature):
        for text in list(signature.findall(nodes.Text)):
            shown = _PRIVATE.sub(lambda found: _SHOWN.get(found[0], found[0]), _MODULE.sub("", str(text)))
            if shown == "S":
                shown = _BOUND.get("".join(signature["ids"]), shown)
            if _PRIVATE.search(shown):
                logger.warning("a signature shows a private name: %s", text, location=signature)
            if shown != str(text):
                text.parent.replace(text, nodes.Text(shown))


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:  # noqa: PLR0917
    if lines and lines[0].startswith("Alias for field number"):  # what NamedTuple says of a field
        lines.clear()
    lines[:] = as_rst(as_lists(lines))


def _signature(  # noqa: PLR0917
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """A default that a dataclass makes is `...`: Sphinx cannot parse what Python shows for it."""
    return signature and signature.replace("=<factory>", " = ...").replace("= <factory>", "= ..."), returned


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", _process)
    app.connect("autodoc-process-signature", _signature)
    app.connect("doctree-read", _show_plain_names)
    return {"parallel_read_safe": True}

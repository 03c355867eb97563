"""Tables that a phone can show: each cell names its column in `data-label`, and the style sheet stacks the cells.

Only tables of three columns or more are marked (`stacked`); two columns fit next to each other.
"""

from __future__ import annotations

from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

#: The fewest columns of a table that is stacked.
_COLUMNS = 3


def _mark(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    for table in doctree.findall(nodes.table):
        heads = [entry.astext() for head in table.findall(nodes.thead) for entry in head.findall(nodes.entry)]
        if len(heads) < _COLUMNS:
            continue
        table["classes"].append("stacked")
        for row in (row for body in table.findall(nodes.tbody) for row in body.findall(nodes.row)):
            for entry, head in zip(row.findall(nodes.entry), heads, strict=True):
                entry["column"] = head
                if not entry.astext().strip():
                    entry["classes"].append("empty")


def _visit_entry(self: HTML5Translator, node: nodes.entry) -> None:
    before = len(self.body)
    HTML5Translator.visit_entry(self, node)
    if label := node.get("column"):
        self.body[before] = self.body[before].replace("<td", f'<td data-label="{escape(label)}"', 1)


def _depart_entry(self: HTML5Translator, node: nodes.entry) -> None:
    HTML5Translator.depart_entry(self, node)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-resolved", _mark)
    app.add_node(nodes.entry, override=True, html=(_visit_entry, _depart_entry))
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""The directive `lifecycle-diagram`: puts the diagram of `lifecycle_svg` where it stands."""

from __future__ import annotations

from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive
from lifecycle_svg import svg
from sphinx.application import Sphinx


class LifecycleDiagram(Directive):
    """Draws the diagram; where there is no HTML, the table below it says the same."""

    has_content = False
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        return [nodes.raw("", f'<div class="lifecycle">{svg()}</div>', format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("lifecycle-diagram", LifecycleDiagram)
    return {"parallel_read_safe": True}

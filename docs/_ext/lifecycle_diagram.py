"""The directive `lifecycle-diagram`: puts the diagram of `lifecycle_svg` where it stands; `small` takes the small one."""

from __future__ import annotations

from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive
from lifecycle_svg import small_svg, svg
from sphinx.application import Sphinx


class LifecycleDiagram(Directive):
    """Draws the diagram, which a phone replaces by the small one; the table below it says the same."""

    has_content = False
    optional_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        html = f'<div class="lifecycle small">{small_svg()}</div>'
        if self.arguments != ["small"]:
            html = f'<div class="lifecycle wide">{svg()}</div>' + html.replace("small", "small narrow", 1)
        return [nodes.raw("", html, format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("lifecycle-diagram", LifecycleDiagram)
    return {"parallel_read_safe": True}

"""The directive `sequence`: draws who calls whom, from lines of text.

    ```{sequence} The road of a job's arguments
    Application: your code
    Task: tasks/
    Application -> Task: send_receipt(7)
    Task --> Application: the checked arguments
    Task: binds and checks
    ```

The first lines, up to the first arrow, name the participants and where each is. Then `A -> B: text` is a call, `A --> B: text`
an answer, and `A: text` something that A does by itself. A phone is too narrow for the picture: there the style sheet shows
the steps as a numbered list in its place.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any, ClassVar, NamedTuple

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

#: Pixels: a column, the box on top of it, a step, and an average letter of a label.
_COLUMN, _BOX, _TOP, _STEP, _LETTER = 148, 140, 74, 38, 6.3
_ARROW = re.compile(r"(?P<start>[\w ]+?) (?P<kind>-->|->) (?P<end>[\w ]+?): (?P<text>.+)")
_ALONE = re.compile(r"(?P<start>[\w ]+?): (?P<text>.+)")


class Step(NamedTuple):
    """One line of the diagram; where `end` is `start`, no other participant takes part."""

    start: str
    end: str
    text: str
    is_answer: bool = False


def parse(lines: list[str]) -> tuple[dict[str, str], list[Step]]:
    """The participants, each with its place, and the steps. ValueError for a line that is neither."""
    places: dict[str, str] = {}
    steps: list[Step] = []
    for line in filter(None, map(str.strip, lines)):
        if (found := _ARROW.fullmatch(line)) is not None:
            steps.append(Step(found["start"], found["end"], found["text"], found["kind"] == "-->"))
        elif (found := _ALONE.fullmatch(line)) is None:
            raise ValueError(f"neither a participant nor a step: {line!r}")
        elif steps:
            steps.append(Step(found["start"], found["start"], found["text"]))
        else:
            places[found["start"]] = found["text"]
    if unknown := {name for step in steps for name in (step.start, step.end)} - places.keys():
        raise ValueError(f"no participants: {sorted(unknown)}")
    return places, steps


def svg(title: str, lines: list[str]) -> str:
    """The diagram."""
    places, steps = parse(lines)
    middle = {name: _COLUMN // 2 + _COLUMN * number for number, name in enumerate(places)}
    width, height = _COLUMN * len(places) + 8, _TOP + _STEP * len(steps) + 16
    drawn = [
        f'<line class="life" x1="{x}" x2="{x}" y1="{_TOP - 18}" y2="{height - 6}"/>' for x in middle.values()
    ]  # fmt: skip
    drawn += [_participant(name, place, middle[name]) for name, place in places.items()]
    drawn += [_step(step, middle, _TOP + _STEP * number, width) for number, step in enumerate(steps)]
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" style="max-width: {width}px" role="img" aria-label="{escape(title)}">'
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M 0 0 L 8 4 L 0 8 z"/></marker></defs>' + "".join(drawn) + "</svg>"
    )


def steps(lines: list[str]) -> str:
    """The same as a numbered list."""
    places, found = parse(lines)
    who = "".join(f"<li><b>{escape(name)}</b>: <code>{escape(place)}</code></li>" for name, place in places.items())
    what = "".join(f"<li>{_sentence(step)}</li>" for step in found)
    return f"<ul>{who}</ul><ol>{what}</ol>"


def _sentence(step: Step) -> str:
    start, end, text = map(escape, (step.start, step.end, step.text))
    if start == end:
        return f"<b>{start}</b>: {text}"
    return f"<b>{start}</b> {'⇢' if step.is_answer else '→'} <b>{end}</b>: {text}"


def _participant(name: str, place: str, x: int) -> str:
    narrow = f' textLength="{_BOX - 8}" lengthAdjust="spacingAndGlyphs"' if len(place) > 26 else ""
    return (
        f'<g class="who"><rect x="{x - _BOX // 2}" y="6" width="{_BOX}" height="46" rx="8"/>'
        f'<text x="{x}" y="25" text-anchor="middle">{escape(name)}</text>'
        f'<text class="where" x="{x}" y="42" text-anchor="middle"{narrow}>{escape(place)}</text></g>'
    )


def _step(step: Step, middle: dict[str, int], top: int, width: int) -> str:
    start, end, y = middle[step.start], middle[step.end], top + 22
    kind = "arrow back" if step.is_answer else "arrow"
    if start == end:
        line = f"M {start} {y - 12} h 16 v 14 h -12"
        return f'<path class="arrow" d="{line}" marker-end="url(#head)"/>' + _label(
            step.text, start + 22, y, "start", width
        )
    line = f"M {start} {y} H {end + (4 if end < start else -4)}"
    return f'<path class="{kind}" d="{line}" marker-end="url(#head)"/>' + _label(
        step.text, (start + end) / 2, y - 6, "middle", width
    )


def _label(text: str, x: float, y: int, anchor: str, width: int) -> str:
    """Kept inside of the picture: a long text at an edge is moved away from it."""
    length = _LETTER * len(text)
    if anchor == "start":
        if x + length > width:
            x, anchor = x - 34, "end"
    else:
        x = min(max(x, length / 2 + 4), width - length / 2 - 4)
    return f'<text class="label" x="{x:.0f}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


class SequenceDiagram(Directive):
    """Draws its content; where there is no HTML, the content itself is shown."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        try:
            drawn, listed = svg(self.arguments[0], list(self.content)), steps(list(self.content))
        except ValueError as error:
            raise self.error(str(error)) from error
        html = f'<div class="sequence wide">{drawn}</div><div class="sequence-steps narrow">{listed}</div>'
        return [nodes.raw("", html, format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("sequence", SequenceDiagram)
    return {"parallel_read_safe": True}

"""The state machine as an SVG, drawn from `lifecycle.TRANSITIONS`.

The places are set by hand, what is drawn is not: an arrow between two states bears every event of the table that leads
from one to the other, and a pair of states without a place is an error. The small diagram shows the main road alone: what
workers do, and not what operators do.
"""

from __future__ import annotations

from collections import defaultdict
from html import escape

from sa_jobqueue.rules.lifecycle import FINISHED, TRANSITIONS, JobStatus

Places = dict[JobStatus, tuple[int, int]]
#: (from, to) -> the arrow's path, and where its label stands (x, y, anchor).
Arrows = dict[tuple[JobStatus, JobStatus], tuple[str, tuple[int, int, str]]]

BOX_WIDTH, BOX_HEIGHT = 120, 44

#: The box in which all is drawn: left, top, width, height.
VIEW = (-40, -24, 930, 424)
#: The middle of each state.
STATES: Places = {
    JobStatus.BLOCKED: (90, 60),
    JobStatus.QUEUED: (90, 200),
    JobStatus.RUNNING: (430, 200),
    JobStatus.COMPLETED: (770, 60),
    JobStatus.FAILED: (770, 200),
    JobStatus.CANCELLED: (770, 340),
}

ARROWS: Arrows = {
    (JobStatus.BLOCKED, JobStatus.QUEUED): ("M 60 82 V 176", (66, 134, "start")),
    (JobStatus.BLOCKED, JobStatus.CANCELLED): ("M 30 60 H -26 V 386 H 800 V 362", (420, 381, "middle")),
    (JobStatus.BLOCKED, JobStatus.COMPLETED): ("M 150 66 H 706", (430, 62, "middle")),
    (JobStatus.QUEUED, JobStatus.BLOCKED): ("M 84 178 V 84", (88, 160, "start")),
    (JobStatus.COMPLETED, JobStatus.BLOCKED): ("M 740 38 C 700 22 300 20 154 44", (560, 26, "middle")),
    (JobStatus.FAILED, JobStatus.BLOCKED): ("M 830 208 H 856 V 0 H 110 V 34", (470, -3, "middle")),
    (JobStatus.CANCELLED, JobStatus.BLOCKED): ("M 830 340 H 868 V -12 H 80 V 34", (470, -15, "middle")),
    (JobStatus.BLOCKED, JobStatus.FAILED): ("M 150 50 H 590 C 640 50 650 180 710 186", (560, 44, "end")),
    (JobStatus.QUEUED, JobStatus.RUNNING): ("M 150 208 H 370", (260, 203, "middle")),
    (JobStatus.QUEUED, JobStatus.CANCELLED): ("M 80 222 V 352 H 710", (360, 347, "middle")),
    (JobStatus.QUEUED, JobStatus.FAILED): ("M 110 222 C 150 330 560 300 712 218", (330, 288, "middle")),
    (JobStatus.QUEUED, JobStatus.QUEUED): ("M 30 208 C -8 224 -8 176 28 192", (-20, 234, "start")),
    (JobStatus.RUNNING, JobStatus.QUEUED): ("M 430 178 C 400 108 240 108 150 192", (282, 117, "middle")),
    (JobStatus.RUNNING, JobStatus.BLOCKED): ("M 440 178 C 430 92 300 78 154 74", (330, 90, "middle")),
    (JobStatus.RUNNING, JobStatus.COMPLETED): ("M 490 190 L 712 78", (598, 118, "middle")),
    (JobStatus.RUNNING, JobStatus.FAILED): ("M 490 200 H 710", (600, 195, "middle")),
    (JobStatus.RUNNING, JobStatus.CANCELLED): ("M 490 210 L 712 326", (606, 286, "middle")),
    (JobStatus.COMPLETED, JobStatus.QUEUED): ("M 770 38 C 770 -14 190 6 120 176", (330, 40, "middle")),
    (JobStatus.FAILED, JobStatus.QUEUED): ("M 830 200 H 846 V 12 H 232 C 170 14 190 110 98 176", (670, 9, "middle")),
    (JobStatus.CANCELLED, JobStatus.QUEUED): ("M 710 334 H 180 C 120 330 100 260 98 222", (560, 329, "middle")),
}


SMALL_VIEW = (0, 0, 510, 230)
SMALL_STATES: Places = {
    JobStatus.BLOCKED: (248, 28),
    JobStatus.QUEUED: (62, 115),
    JobStatus.RUNNING: (248, 115),
    JobStatus.COMPLETED: (444, 28),
    JobStatus.FAILED: (444, 115),
    JobStatus.CANCELLED: (444, 202),
}
SMALL_ARROWS: Arrows = {
    (JobStatus.QUEUED, JobStatus.RUNNING): ("M 122 115 H 186", (154, 107, "middle")),
    (JobStatus.RUNNING, JobStatus.QUEUED): ("M 248 137 C 232 196 78 196 62 140", (155, 206, "middle")),
    (JobStatus.RUNNING, JobStatus.BLOCKED): ("M 248 93 V 54", (254, 76, "start")),
    (JobStatus.BLOCKED, JobStatus.QUEUED): ("M 188 28 H 62 V 89", (120, 20, "middle")),
    (JobStatus.RUNNING, JobStatus.COMPLETED): ("M 308 105 L 382 36", (354, 80, "start")),
    (JobStatus.RUNNING, JobStatus.FAILED): ("M 308 115 H 382", (345, 107, "middle")),
    (JobStatus.RUNNING, JobStatus.CANCELLED): ("M 308 125 L 382 194", (336, 182, "end")),
}


def svg() -> str:
    """The diagram. Each event's label names its transition in `data-transition`."""
    if missing := _events().keys() - ARROWS.keys():
        raise ValueError(f"no place in the diagram for {sorted(missing)}: docs/_ext/lifecycle_svg.py, ARROWS")
    return _drawn(STATES, ARROWS, VIEW, "The life cycle of a job")


def small_svg() -> str:
    """The main road alone, for a landing page and for a phone."""
    return _drawn(SMALL_STATES, SMALL_ARROWS, SMALL_VIEW, "The main road of a job")


def _events() -> dict[tuple[JobStatus, JobStatus], list[str]]:
    events: dict[tuple[JobStatus, JobStatus], list[str]] = defaultdict(list)
    for (before, event), after in TRANSITIONS.items():
        events[before, after].append(event.value)
    return events


def _drawn(states: Places, arrows: Arrows, view: tuple[int, int, int, int], title: str) -> str:
    tip = f"tip-{view[2]}"
    drawn = [
        _arrow(before, after, names, arrows[before, after], tip)
        for (before, after), names in _events().items()
        if (before, after) in arrows
    ]
    drawn += [_state(state, *states[state]) for state in JobStatus if state in states]
    return (
        f'<svg viewBox="{" ".join(map(str, view))}" role="img" aria-label="{title}">'
        f'<defs><marker id="{tip}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M 0 0 L 8 4 L 0 8 z"/></marker></defs>' + "".join(drawn) + "</svg>"
    )


def _state(state: JobStatus, x: int, y: int) -> str:
    kind = "state final" if state in FINISHED else "state"
    return (
        f'<g class="{kind}" data-state="{state.value}">'
        f'<rect x="{x - BOX_WIDTH // 2}" y="{y - BOX_HEIGHT // 2}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="9"/>'
        f'<text x="{x}" y="{y + 5}" text-anchor="middle">{escape(state.value)}</text></g>'
    )


def _arrow(
    before: JobStatus, after: JobStatus, names: list[str], place: tuple[str, tuple[int, int, str]], tip: str
) -> str:
    path, (x, y, anchor) = place
    labels = ", ".join(
        f'<tspan data-transition="{before.value} {name} {after.value}">{escape(name)}</tspan>' for name in names
    )
    return (
        f'<path d="{path}" marker-end="url(#{tip})"/><text class="event" x="{x}" y="{y}" text-anchor="{anchor}">'
        f"{labels}</text>"
    )

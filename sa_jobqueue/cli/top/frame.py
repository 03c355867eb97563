"""The picture as it is drawn: as many lines as the terminal has, none of them longer than it is wide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import chop_cells
from rich.console import Group, RenderableType
from rich.text import Text

from ...health.read import QUANTILES, Figures, named
from ...health.work import WorkflowCounts
from ...rules.words import duration, estimated
from ...sql.readings.depths import capped, capped_sum
from ..output import rate
from .job import job_lines
from .read import Picture
from .reader import Seen
from .tables import TABLES, drawn
from .views import KEYS, Stand, View, rows_of

#: The sections of the overview.
_SECTIONS = ("queues", View.TASKS, View.WORKERS, View.FAILED)
#: Lines of the header without workflows, and of the footer with the empty line above it.
_HEADER, _FOOTER = 5, 2
#: Lines of a terminal that has place for a line about workflows.
_ROOMY = 12


def body_lines(height: int, header: int = _HEADER) -> int:
    """How many lines there are between the header and the footer, at most."""
    return max(height - header - _FOOTER, 2)


def frame(seen: Seen, stand: Stand, *, name: str, width: int, height: int | None = None) -> RenderableType:
    """What is on the screen. `name`: of the database. `height` None: all there is, without keys."""
    header = _header(seen, name, height)
    space = None if height is None else body_lines(height, len(header))
    if stand.view is View.OVERVIEW:
        body, lines = _overview(seen.picture, stand, width, space)
    elif stand.view is View.JOB:
        body, lines = _job(seen, stand, width, space or 0)
    else:
        body, lines = _table(seen.picture, stand, width, space or 0)
    if space is None:
        return Group(*header, *body)
    footer = _footer(seen, stand, width)
    empty = [Text()] * (space - lines + _FOOTER - len(footer))
    return Group(*header, *body, *empty, *footer)


def shares(needs: Sequence[int], space: int) -> list[int]:
    """Divide lines among sections, each of which wants a number of them: each gets as many as the others, and no more than it wants."""
    found = [0] * len(needs)
    while space > 0 and found != list(needs):
        for number, need in enumerate(needs):
            if found[number] < need and space > 0:
                found[number] += 1
                space -= 1
    return found


def _line(*parts: str | tuple[str, str]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _header(seen: Seen, name: str, height: int | None) -> list[Text]:
    """`_HEADER` lines, and one more where there are workflows and it has place."""
    picture = seen.picture
    at = f"{picture.now.astimezone():%H:%M:%S}"
    if seen.problem is None:
        look = f" · {duration(seen.took)} a look, every {duration(seen.pause)}" if seen.took else ""
        first = _line((f"{at}  ", "bold"), name, (look, "dim"))
    else:
        since = "" if seen.since is None else f" since {seen.since:%H:%M:%S}"
        first = _line((f"no answer{since}; this is the picture of {at}", "bold red"))
    due, queued = (capped_sum([getattr(one, what) for one in picture.queues]) for what in ("due", "queued"))
    stale = sum(one.stale for one in picture.workers)
    live = len(picture.workers) - stale
    workers = f"{live} live worker{'' if live == 1 else 's'}{f', {stale} stale' if stale else ''}"
    lately = picture.lately
    outcomes = " · ".join(f"{rate(lately.per_minute(one))} {one}" for one in named([lately]))
    return [
        first,
        _line(
            f"{due} due · {queued} queued · {capped(picture.running)} running · ",
            (f"{capped(picture.failed)} failed", "red" if picture.failed else ""),
            " · ",
            (workers, "" if live else "red"),
        ),
        _line("/min of the last 5: ", outcomes),
        _line(f"waited {_quantiles(lately, 'wait')}   ran {_quantiles(lately, 'run')}"),
        *(_workflows(picture.workflows) if height is None or height >= _ROOMY else ()),
        _line((seen.problem or "", "red")),
    ]


def _workflows(counts: WorkflowCounts | None) -> Iterator[Text]:
    if counts is None:
        return
    overdue = f" · {capped(counts.overdue)} past their deadline" if counts.overdue else ""
    yield _line(
        f"workflows: {capped(counts.running)} running · {capped(counts.paused)} paused · ",
        (f"{capped(counts.failed)} failed", "red" if counts.failed else ""),
        (overdue, "red"),
    )


def _quantiles(lately: Figures, what: str) -> str:
    found = {name: lately.run(name) if what == "run" else lately.wait(name) for name in QUANTILES}
    return " ".join(f"{name} {'-' if seconds is None else estimated(seconds)}" for name, seconds in found.items())


def _overview(picture: Picture, stand: Stand, width: int, space: int | None) -> tuple[list[RenderableType], int]:
    """The sections one below the other, each with its title and an empty line, and how many lines that is."""
    sections = [(TABLES[section], len(TABLES[section].of(picture)), section == "queues") for section in _SECTIONS]
    found = [one for one in sections if one[1]]
    if space is not None:
        found = found[: max((space + 1) // 3, 1)]  # those of which a row has place
    if not found:
        return [_line(("no jobs and no workers yet", "dim"))], 1
    needs = [number for _, number, _ in found]
    given = needs if space is None else shares(needs, space - 2 * len(found) + 1)
    body: list[RenderableType] = []
    queues = rows_of(View.OVERVIEW, picture)
    marked = stand.place(queues) if stand.selected is not None else None
    for (rows, total, is_queues), number in zip(found, given, strict=True):
        selected = marked if is_queues else None
        first = 0 if selected is None else _first_line(selected, number, total)
        body += [drawn(rows, picture, width, first=first, number=number, selected=selected), Text()]
    return body[:-1], sum(given) + 2 * len(found) - 1


def _table(picture: Picture, stand: Stand, width: int, space: int) -> tuple[list[RenderableType], int]:
    """One table over the whole screen, scrolled so that the selected row is to be seen."""
    rows = rows_of(stand.view, picture)
    if not rows:
        return [_line((f"no {stand.view.value}", "dim"))], 1
    selected, number = stand.place(rows), space - 1
    first = _first_line(selected, number, len(rows))
    table = drawn(TABLES[stand.view], picture, width, first=first, number=number, selected=selected)
    return [table], min(number, len(rows) - first) + 1


def _first_line(selected: int, number: int, total: int) -> int:
    """Of which row a page of this number begins, so that the selected one is to be seen."""
    return max(0, min(selected - number // 2, total - number))


def _job(seen: Seen, stand: Stand, width: int, space: int) -> tuple[list[RenderableType], int]:
    if seen.job is None or seen.job.job.id != stand.job:
        return [_line((f"job {stand.job}: not read yet, or it is not there any more", "dim"))], 1
    lines = job_lines(seen.job, width)
    first = max(0, min(stand.position, len(lines) - space + 1))
    shown = lines
    if len(lines) > space:
        shown = lines[first : first + space - 1]
        shown.append(_line((f"lines {first + 1}-{first + len(shown)} of {len(lines)}; arrows scroll", "dim")))
    return [*shown], len(shown)


def _footer(seen: Seen, stand: Stand, width: int) -> list[Text]:
    """At most `_FOOTER` lines: what an action came to may need them, the rest is one."""
    if stand.question is not None:
        return [_line((f"{stand.question.text} y: yes, any other key: no", "bold yellow"))]
    if seen.done > stand.heard:
        return [_line((part, "bold")) for part in chop_cells(seen.said, width)[:_FOOTER]]
    views = (
        []
        if stand.view is View.JOB
        else [f"{key} {view.value}" for key, view in KEYS.items() if view is not stand.view]
    )
    own = {
        View.FAILED: ["enter show", "r retry"],
        View.SCHEDULES: ["p pause or resume"],
        View.OVERVIEW: ["p pause or resume"] if seen.picture.queues else [],
        View.JOB: ["esc back", "r retry", "c cancel"],
    }
    return [_line((" · ".join([*own.get(stand.view, []), *views, "q quit"]), "dim"))]

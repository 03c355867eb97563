"""`top` without a terminal and without a database: what is drawn."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from sa_jobqueue.cli.top import Picture, Seen, frame, shares
from sa_jobqueue.health.read import Figures
from sa_jobqueue.health.work import QueueSeen, WorkerSeen, WorkflowCounts, Working
from sa_jobqueue.rules.lifecycle import COUNTED
from sa_jobqueue.rules.tally import BUCKETS
from sa_jobqueue.sql.readings.depths import CAP

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
#: A name that would clear the screen, and that means something to Rich.
HOSTILE = "q\x1b[2J\r\n[bold red]\u202e"


def figures(**counts: int) -> Figures:
    runs = [0] * BUCKETS
    runs[4] = sum(counts.values())
    return Figures(dict.fromkeys(COUNTED, 0) | counts, 300.0, 5.0, 5.0, runs, runs)


def failure(id: int, *, queue: str = "mail", error: str = "no\nanswer") -> Any:
    return SimpleNamespace(
        id=id, reading="failed", status="failed", queue=queue, task="shop.tasks.send", attempt=3, max_attempts=3,
        created_at=NOW, run_at=NOW, claimed_at=NOW, finished_at=NOW, cancel_requested_at=None, now=NOW,
        error_type="shop.errors.Gone", error_message=error,
    )  # fmt: skip


def picture(name: str = "mail", *, many: int = 1, workflows: WorkflowCounts | None = None, **working: Any) -> Picture:
    found = Working(
        now=NOW,
        queues=[QueueSeen(f"{name}{n}", CAP, 1_204, 123.0, 7, n % 2, figures(completed=50)) for n in range(many)],
        tasks=[(f"shop.{name}{n}", figures(completed=50, failed=1)) for n in range(many)],
        workers=[
            WorkerSeen(f"web-{n}.example.org:47", [name], 3, 10, 85_000_000, 0.002, 130.0, n == 0, "old snapshot" if n else None)
            for n in range(many)
        ],
        lately=figures(completed=3_000, retried=6, failed=3),
        running=7,
        failed=many,
    )  # fmt: skip
    failures = [failure(n, queue=name, error=name) for n in range(many, 0, -1)]
    return Picture(replace(found, **working), failures, workflows)


def drawn(seen: Seen, *, width: int = 80, height: int | None = 24) -> list[str]:
    """The lines of a frame."""
    console = Console(width=width, height=height, highlight=False, color_system=None, force_terminal=True)
    with console.capture() as capture:
        console.print(frame(seen, name="shop on db", width=width, height=height))
    return capture.get().split("\n")[:-1]


@pytest.mark.parametrize("many", [0, 1, 60])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 40), (40, 10)])
def test_a_picture_fits_the_terminal(many: int, width: int, height: int) -> None:
    """It fills the terminal where there is much to show, and no line is longer than the terminal is wide, whatever the names are;
    nothing in them moves the cursor.
    """
    for name in ("mail", HOSTILE, "語" * 60):
        lines = drawn(Seen(picture(name, many=many)), width=width, height=height)
        assert len(lines) <= height, "\n".join(lines)
        assert many != 60 or len(lines) == height
        assert max(map(cell_len, lines)) <= width
        assert all(line.isprintable() for line in lines)


def test_the_overview_has_the_totals_and_a_part_of_each_section() -> None:
    """Each section says which rows it shows; what is cut ends with an ellipsis."""
    lines = drawn(Seen(picture(many=60), took=0.012, pause=1.0))
    assert lines[0].endswith("shop on db · read in 12 ms, every 1 s · Ctrl-C ends")
    assert lines[1] == "72,240 due · 600,000+ queued · 7 running · 60 failed · 59 live workers, 1 stale"
    assert lines[2] == "/min of the last 5: 600 completed · 1.2 retried · 0.6 failed"
    assert lines[3].startswith("waited p50 75 ms p95 98 ms p99 0.1 s   ran p50")
    titles = {line.split()[0]: line.split()[1:4] for line in lines if line[:3].isupper()}
    assert titles == {name: ["1-3", "of", "60"] for name in ("QUEUES", "TASKS", "WORKERS", "FAILED")}


def test_workflows_have_a_line_where_there_are_any() -> None:
    """With as many lines as before; not in a terminal of few lines."""
    shown = picture(many=60, workflows=WorkflowCounts(3, 1, CAP, 0, 0, 5.0))
    for height in (24, 12):
        lines = drawn(Seen(shown, problem="no answer"), height=height)
        assert lines[4:6] == ["workflows: 3 running · 1 paused · 10,000+ failed", "no answer"]
        assert len(lines) == height
    lines = drawn(Seen(shown), height=11)
    assert len(lines) == 11
    assert not any("workflows" in line for line in (*lines, *drawn(Seen(picture()))))
    late = picture(many=60, workflows=WorkflowCounts(3, 0, 0, 2, 0, 5.0))
    assert drawn(Seen(late), height=None)[4] == "workflows: 3 running · 0 paused · 0 failed · 2 past their deadline"


def test_a_wide_terminal_shows_what_a_narrow_one_leaves_out() -> None:
    """The whole name of a task, and more quantiles."""
    narrow, wide = (drawn(Seen(picture("x" * 20, many=2)), width=width) for width in (68, 140))
    (title, row), (wide_title, wide_row) = (
        lines[number : number + 2] for lines in (narrow, wide) for number in [_line_of("TASKS", lines)]
    )
    assert "run p99" not in title
    assert row.startswith("xxxxxxxxxxxxxxxxxxxx0 ")
    assert "run p99" in wide_title
    assert wide_row.startswith("shop.xxxxxxxxxxxxxxxxxxxx0 ")


def _line_of(title: str, lines: list[str]) -> int:
    """The number of the line of a section's title."""
    return next(number for number, line in enumerate(lines) if line.startswith(title))


def test_a_database_that_does_not_answer_is_said_above_the_last_picture() -> None:
    """With the reason, and since when."""
    seen = Seen(picture(), problem="the database ended the connection", since=NOW)
    lines = drawn(seen, width=140)
    assert lines[0].startswith("no answer since 03:04:05; this is the picture of ")
    assert lines[4] == "the database ended the connection"
    assert "1,204 due" in lines[1]


def test_one_picture_for_a_script_has_all_rows() -> None:
    """It is as long as it must be."""
    lines = drawn(Seen(picture(many=60)), height=None)
    assert len([line for line in lines if line.startswith(("mail", "web-"))]) == 2 * 60


def test_lines_are_divided_evenly_and_none_is_left_unused() -> None:
    """A section that needs less leaves its lines to the others."""
    assert shares([10, 10, 10], 12) == [4, 4, 4]
    assert shares([1, 10, 2], 10) == [1, 7, 2]
    assert shares([1, 1], 10) == [1, 1]
    assert shares([5, 5], -3) == [0, 0]


@pytest.mark.parametrize("width", [80, 140])
def test_a_queue_shows_its_limit_and_that_it_is_paused(width: int) -> None:
    """In a narrow terminal, too, where others are left out."""
    shown = picture("default", many=2)
    limited, other = shown.working.queues
    limited = replace(limited, limit=50, paused=7_300.0, served=12)
    lines = drawn(Seen(picture("default", many=2, queues=[limited, other])), width=width)
    (first,), (second,) = ([line for line in lines if line.startswith(name)] for name in ("default0 ", "default1 "))
    assert " 7/50 " in first
    assert first.rstrip().endswith("paused 2h")
    assert " 7 " in second
    assert "paused" not in second

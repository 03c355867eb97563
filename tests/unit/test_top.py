"""`top` without a terminal and without a database: what is drawn, and what keys do."""

from __future__ import annotations

import os
import pty
import re
import signal
import termios
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from sa_jobqueue.cli.top.controls import press
from sa_jobqueue.cli.top.frame import frame, shares
from sa_jobqueue.cli.top.read import Picture
from sa_jobqueue.cli.top.reader import Seen
from sa_jobqueue.cli.top.terminal import Terminal, keys_in
from sa_jobqueue.cli.top.views import Stand, View
from sa_jobqueue.health.one_job import JobSeen
from sa_jobqueue.health.read import Figures
from sa_jobqueue.health.work import QueueSeen, WorkerSeen, WorkflowCounts
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


def schedule(name: str, *, paused: bool = False) -> dict[str, Any]:
    empty = dict.fromkeys(
        ("error", "pause_reason", "waiting_since", "next_at", "job_id", "job_status", "job_created_at", "job_finished_at", "paused_by")
    )  # fmt: skip
    return empty | {"name": name, "expression": "every 300", "timezone": "UTC", "paused_at": NOW if paused else None, "now": NOW, "counts_from": NOW}  # fmt: skip


def picture(name: str = "mail", *, many: int = 1) -> Picture:
    return Picture(
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
        failures=[failure(n, queue=name, error=name) for n in range(many, 0, -1)],
        schedules=[schedule(f"{name}{n}", paused=n == 1) for n in range(many)],
    )  # fmt: skip


def job(**columns: Any) -> JobSeen:
    given = {
        "id": 17, "task": HOSTILE, "queue": "mail", "priority": 4, "attempt": 1, "max_attempts": 3, "rescues": 0, "worker": None,
        "created_at": NOW - timedelta(hours=2), "run_at": NOW + timedelta(minutes=5), "claimed_at": None, "lease_expires_at": None,
        "cancel_requested_at": None, "finished_at": None, "purge_at": None, "args": {"order": HOSTILE * 20}, "meta": {}, "result": None,
        "errors": [{"at": "x", "attempt": 1, "type": "E", "message": "postgresql://me:secret@db", "traceback": "a\n\tb\x1b"}, 7],
    }  # fmt: skip
    return JobSeen(SimpleNamespace(**given | columns), "retrying", NOW)


def drawn(seen: Seen, stand: Stand = Stand(), *, width: int = 80, height: int | None = 24) -> list[str]:  # noqa: B008
    """The lines of a frame."""
    console = Console(width=width, height=height, highlight=False, color_system=None, force_terminal=True)
    with console.capture() as capture:
        console.print(frame(seen, stand, name="shop on db", width=width, height=height))
    return capture.get().split("\n")[:-1]


@pytest.mark.parametrize("view", View)
@pytest.mark.parametrize("many", [0, 1, 60])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 40), (40, 10)])
def test_each_view_has_as_many_lines_as_the_terminal(view: View, many: int, width: int, height: int) -> None:
    """And none is longer than the terminal is wide, whatever the names are; nothing in them moves the cursor."""
    for name in ("mail", HOSTILE, "語" * 60):
        seen = Seen(picture(name, many=many), job=job() if many else None)
        lines = drawn(seen, Stand(view, job=17), width=width, height=height)
        assert len(lines) == max(height, 9), "\n".join(lines)
        assert max(map(cell_len, lines)) <= width
        assert all(line.isprintable() for line in lines)


def test_the_overview_has_the_totals_and_a_part_of_each_section() -> None:
    """Each section says which rows it shows; what is cut ends with an ellipsis."""
    lines = drawn(Seen(picture(many=60), took=0.012, pause=1.0))
    assert lines[0].endswith("shop on db · 12 ms a look, every 1 s")
    assert lines[1] == "72,240 due · 600,000+ queued · 7 running · 60 failed · 59 live workers, 1 stale"
    assert lines[2] == "/min of the last 5: 600 completed · 1.2 retried · 0.6 failed"
    assert lines[3].startswith("waited p50 75 ms p95 98 ms p99 0.1 s   ran p50")
    titles = {line.split()[0]: line.split()[1:4] for line in lines if line[:3].isupper()}
    assert titles == {name: ["1-2", "of", "60"] if name in {"WORKERS", "FAILED"} else ["1-3", "of", "60"] for name in ("QUEUES", "TASKS", "WORKERS", "FAILED")}  # fmt: skip
    assert lines[-1] == "p pause or resume · f failed jobs · w workers · t tasks · s schedules · q quit"


def test_workflows_have_a_line_where_there_are_any() -> None:
    """In every view, with as many lines as before; not in a terminal of few lines."""
    shown = replace(picture(many=60), workflows=WorkflowCounts(3, 1, CAP, 0, 0, 5.0))
    for view, height in ((View.OVERVIEW, 24), (View.FAILED, 24), (View.OVERVIEW, 12), (View.JOB, 12)):
        lines = drawn(Seen(shown, job=job(), problem="no answer"), Stand(view, job=17), height=height)
        assert lines[4:6] == ["workflows: 3 running · 1 paused · 10,000+ failed", "no answer"]
        assert len(lines) == height
    lines = drawn(Seen(shown), height=11)
    assert len(lines) == 11
    assert not any("workflows" in line for line in (*lines, *drawn(Seen(picture()))))
    late = replace(shown, workflows=WorkflowCounts(3, 0, 0, 2, 0, 5.0))
    assert drawn(Seen(late), height=None)[4] == "workflows: 3 running · 0 paused · 0 failed · 2 past their deadline"


def test_a_wide_terminal_shows_what_a_narrow_one_leaves_out() -> None:
    """The whole name of a task, and more quantiles."""
    narrow, wide = (drawn(Seen(picture("x" * 20, many=2)), Stand(View.TASKS), width=width) for width in (68, 140))
    assert "run p99" not in narrow[5]
    assert narrow[6].startswith("xxxxxxxxxxxxxxxxxxxx0 ")
    assert "run p99" in wide[5]
    assert wide[6].startswith("shop.xxxxxxxxxxxxxxxxxxxx0 ")


def test_a_database_that_does_not_answer_is_said_above_the_last_picture() -> None:
    """With the reason, and since when."""
    seen = Seen(picture(), problem="the database ended the connection", since=NOW)
    lines = drawn(seen, width=140)
    assert lines[0].startswith("no answer since 03:04:05; this is the picture of ")
    assert lines[4] == "the database ended the connection"
    assert "1,204 due" in lines[1]


def test_a_refusal_that_is_long_is_shown_in_two_lines() -> None:
    """Its end says what to do. The screen is not longer for it."""
    said = "not done: the database refused: permission denied for table job: sa-jobqueue grants --help says how"
    lines = drawn(Seen(picture(), said=said, done=1), Stand(View.FAILED))
    assert "".join(lines[-2:]) == said
    assert len(lines) == 24


def test_the_last_error_of_a_job_comes_before_its_arguments() -> None:
    """These may fill the screen, whose last line says that there is more."""
    errors = [
        {"at": "2026-01-02T03:04:05+00:00", "attempt": n, "type": "E", "message": f"no {n}", "traceback": None}
        for n in (1, 2)
    ]
    seen = Seen(picture(), job=job(args={"n": list(range(50))}, errors=errors))
    lines = drawn(seen, Stand(View.JOB, job=17))
    assert any(line.startswith("attempt 2  2026-01-0") for line in lines)
    assert lines.index("E: no 2") < lines.index("arguments")
    assert re.fullmatch(r"lines 1-16 of \d+; arrows scroll", lines[-3])
    end = drawn(seen, Stand(View.JOB, job=17, position=10_000))
    assert any(line.startswith("E: no 1") for line in end)


def test_one_picture_for_a_script_has_all_rows_and_no_keys() -> None:
    """It is as long as it must be."""
    lines = drawn(Seen(picture(many=60)), height=None)
    assert len([line for line in lines if line.startswith(("mail", "web-"))]) == 2 * 60
    assert not any("q quit" in line for line in lines)


def test_a_job_is_shown_with_its_errors_and_without_passwords() -> None:
    """Long lines go on in the next one; a value that is too long is left to `show`."""
    text = "\n".join(drawn(Seen(picture(), job=job()), Stand(View.JOB, job=17), height=60))
    assert "job 17  q\\x1b[2J\\r\\n[bold red]\\u202e  retrying" in text
    assert (
        "due           2026-01-02 03:09:05" in text.replace(NOW.astimezone().strftime("%H:%M"), "03:04")
        or "in 5m" in text
    )
    assert "E: postgresql://me:***@db" in text
    assert "\narguments\n" in text
    assert "secret" not in text
    assert "      b\\x1b" in text
    long = "\n".join(drawn(Seen(picture(), job=job(args=None)), Stand(View.JOB, job=17)))
    assert "too long for this view: sa-jobqueue show 17" in long


def test_lines_are_divided_evenly_and_none_is_left_unused() -> None:
    """A section that needs less leaves its lines to the others."""
    assert shares([10, 10, 10], 12) == [4, 4, 4]
    assert shares([1, 10, 2], 10) == [1, 7, 2]
    assert shares([1, 1], 10) == [1, 1]
    assert shares([5, 5], -3) == [0, 0]


def test_an_error_leaves_the_terminal_as_it_was() -> None:
    """With its settings, and what the process does about signals."""
    controller, terminal = pty.openpty()
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
    before = termios.tcgetattr(terminal), [signal.getsignal(number) for number in numbers]
    read = Terminal(terminal, suspended=lambda: None, resumed=lambda: None)
    with pytest.raises(ZeroDivisionError), read:  # noqa: PT012
        assert not termios.tcgetattr(terminal)[3] & (termios.ECHO | termios.ICANON)
        os.write(controller, b"j\x1b[A")
        assert read.pressed() == ["j", "up"]
        read.wake()
        assert read.pressed() == []
        raise ZeroDivisionError
    assert (termios.tcgetattr(terminal), [signal.getsignal(number) for number in numbers]) == before
    read.wake()  # too late, and harmless
    for end in (controller, terminal):
        os.close(end)


def test_a_terminal_that_is_gone_quits() -> None:
    """Its window was closed, or the connection to it was lost."""
    controller, terminal = pty.openpty()
    with Terminal(terminal, suspended=lambda: None, resumed=lambda: None) as read:
        os.close(controller)
        assert read.pressed() == ["q"]
        controller = os.open(os.devnull, os.O_RDONLY)
    os.close(controller)
    os.close(terminal)


def test_keys_are_told_apart() -> None:
    """Several may come at once; what is no key of ours is left out."""
    assert keys_in("fj\x1b[A\x1bOB\r\x1b[1;5C\x1b[6~q\x1b") == ["f", "j", "up", "down", "enter", "page down", "q", "escape"]  # fmt: skip


def pressed(keys: str, stand: Stand, seen: Seen) -> tuple[Stand, Any]:
    action = None
    for key in keys.split():
        stand, action = press(key, stand, seen)
    return stand, action


def test_what_is_selected_stays_so_when_rows_come_and_go() -> None:
    """A job is known by its id; where it is gone, the row in its place is selected."""
    stand, _ = pressed("f j j k j", Stand(), Seen(picture(many=5)))
    assert stand.selected == 3
    later = replace(picture(), failures=[failure(n) for n in (9, 8, 5, 3, 1)])
    assert stand.place([row.id for row in later.failures]) == 3
    assert stand.place([9, 8]) == 1
    assert pressed("end", stand, Seen(later))[0].selected == 1
    assert pressed("home", stand, Seen(later))[0].selected == 9


@pytest.mark.parametrize("answer", ["n", "q", "enter", "escape", "f"])
def test_nothing_is_done_without_a_yes(answer: str) -> None:
    """Any other key takes the question back, and does nothing else."""
    seen = Seen(picture(many=3))
    stand, action = pressed("f j r", Stand(), seen)
    assert action is None
    assert stand.question is not None
    assert stand.question.text == "Run job 2 again, now?"
    assert "Run job 2 again, now? y: yes, any other key: no" in drawn(seen, stand)[-1]
    stand, action = press(answer, stand, seen)
    assert (stand.view, stand.question, action) == (View.FAILED, None, None)


def test_a_yes_does_what_was_asked() -> None:
    """Retry of a failed job, and its cancel; pause of a schedule or a queue, or its end."""
    shown = picture(many=3)
    paused = replace(shown.queues[2], paused=60.0)
    seen = Seen(replace(shown, queues=[*shown.queues[:2], paused]), job=job())
    for keys, text in {
        "p": "Pause queue mail0? What runs goes on.",
        "j j p": "Pause queue mail1? What runs goes on.",
        "end p": "Pause queue mail0? What runs goes on.",
        "j end p": "Resume queue mail2?",
        "f r": "Run job 3 again, now?",
        "f enter c": "Cancel job 3?",
        "s p": "Pause the schedule mail0?",
        "s j p": "Let the schedule mail1 go on, from now?",
    }.items():
        stand, _ = pressed(keys, Stand(), seen)
        assert stand.question is not None
        assert stand.question.text == text
        assert pressed("y", stand, seen)[1] is stand.question.action


@pytest.mark.parametrize(
    "keys", ["r", "enter", "f p", "w r", "t p", "w p", "t enter", "s r", "s enter", "z", "f enter p"]
)
def test_a_key_that_means_nothing_here_changes_nothing(keys: str) -> None:
    """It asks nothing, and opens nothing."""
    stand, action = pressed(keys, Stand(), Seen(picture()))
    assert stand.question is None
    assert action is None


def test_a_queue_is_marked_in_the_overview_from_the_first_key_on() -> None:
    """It stays in sight, also where not all have place; without a key none is marked."""
    seen = Seen(picture(many=60))
    assert not any(styled(seen, Stand()))
    stand, _ = pressed("j", Stand(), seen)
    assert stand.selected == "mail0"
    for _ in range(2):
        stand, _ = press("page down", stand, seen)
    assert stand.selected == "mail20"
    lines = drawn(seen, stand)
    assert any(line.startswith("QUEUES 20-22 of 60") for line in lines)
    assert [line for line in styled(seen, stand) if line.startswith("mail20 ")]


def styled(seen: Seen, stand: Stand) -> list[str]:
    """The lines that are marked."""
    console = Console(width=140, height=40, highlight=False, force_terminal=True, color_system="standard")
    with console.capture() as capture:
        console.print(frame(seen, stand, name="shop on db", width=140, height=40))
    marked = [line for line in capture.get().split("\n") if re.search(r"\x1b\[(?:\d+;)*7(?:;\d+)*m", line)]
    return [re.sub(r"\x1b\[[\d;]*m", "", line) for line in marked]


@pytest.mark.parametrize("width", [80, 140])
def test_a_queue_shows_its_limit_and_that_it_is_paused(width: int) -> None:
    """In a narrow terminal, too, where others are left out."""
    shown = picture("default", many=2)
    mail = replace(shown.queues[0], limit=50, paused=7_300.0, served=12)
    lines = drawn(Seen(replace(shown, queues=[mail, shown.queues[1]])), width=width)
    (first,), (second,) = ([line for line in lines if line.startswith(name)] for name in ("default0 ", "default1 "))
    assert " 7/50 " in first
    assert first.rstrip().endswith("paused 2h")
    assert " 7 " in second
    assert "paused" not in second


def test_escape_goes_back() -> None:
    """From a job to the failed jobs, where it is selected, and from there to the overview."""
    seen = Seen(picture(many=3))
    stand, _ = pressed("f j enter", Stand(), seen)
    assert (stand.view, stand.job) == (View.JOB, 2)
    stand, _ = press("escape", stand, seen)
    assert (stand.view, stand.selected) == (View.FAILED, 2)
    assert press("escape", stand, seen)[0].view is View.OVERVIEW


def test_what_an_action_came_to_is_said_until_the_next_key() -> None:
    """Below the picture."""
    seen = Seen(picture(), said="job 3 is queued again", done=1)
    assert drawn(seen)[-1] == "job 3 is queued again"
    assert drawn(seen, Stand(heard=1))[-1].endswith("q quit")

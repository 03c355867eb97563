"""The demo's counting, and its proof: what it accepts and what it does not."""

from __future__ import annotations

import io
import os
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sa_jobqueue import JobStatus
from sa_jobqueue.trials.demo.report import (
    Check,
    Collected,
    Counts,
    FileResult,
    Plain,
    count_plainly,
    disagreements,
    judge,
    show_verdict,
)
from sa_jobqueue.trials.demo.run import BROKEN, Kill, rescue_checks, source_files
from sa_jobqueue.trials.demo.tasks import Name, examine

DONE, FAILED = JobStatus.COMPLETED, JobStatus.FAILED


@pytest.fixture
def module(tmp_path: Path) -> str:
    file = tmp_path / "module.py"
    file.write_text(
        textwrap.dedent(
            '''\
            """A module."""
            import os, sys as system
            from . import sibling
            from ..uncle import cousin as c, other
            from pathlib import *

            class Outer(Base):
                class Inner: ...
                def method(self):
                    async def inside(): ...
                    return lambda: None
            '''
        )
    )
    return str(file)


def test_a_file_is_told_by_its_functions_classes_imports_and_lines(module: str) -> None:
    """Nested ones count, lambdas do not; each imported name is an import of its own."""
    found = examine(module)

    assert found.lines == 11
    assert {
        kind: [name.name for name in found.names if name.kind == kind] for kind in ("function", "class", "import")
    } == {
        "function": ["method", "inside"],
        "class": ["Outer", "Inner"],
        "import": ["os", "sys", ".sibling", "..uncle.cousin", "..uncle.other", "pathlib.*"],
    }
    assert Name("class", "Inner", 8) in found.names


def test_lines_are_counted_as_python_counts_them(tmp_path: Path) -> None:
    """By any line end, the last one with or without; a form feed or a separator of Unicode's ends no line."""
    file = tmp_path / "lines.py"
    file.write_bytes("a = 1\r\nb = '\u2028'\r# \x0c\n\nc = 2".encode())

    assert examine(str(file)).lines == 5


def test_the_plain_loop_counts_what_parses_and_keeps_the_reasons_of_the_rest(module: str, tmp_path: Path) -> None:
    """Errors of reading and of parsing; nothing stops the loop."""
    gone = str(tmp_path / "gone.py")
    seen: list[int] = []

    plain = count_plainly([module, str(BROKEN), gone], lambda: seen.append(1))

    assert plain.counts == {module: Counts(lines=11, functions=2, classes=2, imports=6)}
    assert plain.errors[str(BROKEN)].startswith("SyntaxError: ")
    assert plain.errors[gone].startswith("FileNotFoundError: ")
    assert len(seen) == 3


def test_no_tool_takes_the_broken_file_for_a_module() -> None:
    """It ships in the package, where compilers, linters and formatters look for `.py`."""
    assert BROKEN.exists()
    assert BROKEN.suffix == ".txt"


def test_the_walk_leaves_out_hidden_installed_and_unstorable_files(tmp_path: Path) -> None:
    """The other files come in a fixed order. Special files that have no end are left out; a broken link is a file that cannot be read."""
    for name in ("b.py", "a/c.py", ".git/x.py", "lib/site-packages/y.py", "a/__pycache__/z.py", "a/d.txt", "ä .py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/latin-\xe9.py")).touch()
    (tmp_path / "loose.py").symlink_to(tmp_path / "nowhere.py")
    os.mkfifo(tmp_path / "pipe.py")

    assert [Path(path).relative_to(tmp_path).as_posix() for path in source_files(tmp_path)] == [
        "a/c.py",
        "b.py",
        "loose.py",
        "ä .py",
    ]


GOOD = FileResult("good.py", Counts(10, 2, 1, 3), modules=1, jobs=[DONE])
BAD = FileResult("bad.py", Counts(), modules=0, jobs=[FAILED], error="SyntaxError: no")
PLAIN = Plain({"good.py": Counts(10, 2, 1, 3)}, {"bad.py": "SyntaxError: no"})


def collected(*files: FileResult) -> Collected:
    return Collected(
        files, retries={}, rescues=0, rescued=frozenset(), by_worker={}, seconds=1.0, seconds_until_only_rescued=1.0
    )


def failing(*files: FileResult) -> list[str]:
    found = collected(*files)
    named = [check.what for check in judge(found, PLAIN) if not check.holds]
    assert bool(named) == bool(disagreements(found, PLAIN))
    return named


def test_the_proof_holds_where_both_say_the_same() -> None:
    """Totals, and each file."""
    assert failing(GOOD, BAD) == []
    assert judge(collected(GOOD, BAD), PLAIN)[:3] == [
        Check("files", 2, 2),
        Check("lines", 10, 10),
        Check("functions", 2, 2),
    ]


@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        pytest.param([replace(GOOD, counts=Counts(11, 2, 1, 3)), BAD], "lines", id="a line too many"),
        pytest.param([replace(GOOD, modules=2, counts=Counts(20, 4, 2, 6)), BAD], "files with exactly one result", id="done twice"),
        pytest.param([replace(GOOD, modules=0, counts=Counts()), BAD], "files with exactly one result", id="writes lost"),
        pytest.param([replace(GOOD, jobs=[DONE, DONE]), BAD], "files with exactly one result", id="two jobs"),
        pytest.param([replace(GOOD, jobs=[JobStatus.RUNNING]), BAD], "files with exactly one result", id="not at its end"),
        pytest.param([replace(GOOD, jobs=[]), BAD], "files with exactly one result", id="no job"),
        pytest.param([GOOD], "files", id="a file lost"),
        pytest.param([GOOD, BAD, GOOD], "files", id="a file twice"),
        pytest.param([GOOD, replace(BAD, modules=1)], "files with exactly one result", id="a failure that left rows"),
        pytest.param([GOOD, replace(BAD, jobs=[DONE], modules=1)], "files that fail", id="a failure that vanished"),
    ],
)  # fmt: skip
def test_the_proof_fails_where_something_is_lost_or_done_twice(files: list[FileResult], wrong: str) -> None:
    """Whatever it is, a check says so and a line names the file."""
    assert wrong in failing(*files)


def test_totals_that_agree_by_chance_do_not_deceive_it() -> None:
    """Two files with each other's counts."""
    plain = Plain({"a.py": Counts(1), "b.py": Counts(2)}, {})
    swapped = collected(
        FileResult("a.py", Counts(2), modules=1, jobs=[DONE]), FileResult("b.py", Counts(1), modules=1, jobs=[DONE])
    )

    assert [check.what for check in judge(swapped, plain) if not check.holds] == ["files with the same result"]


@pytest.mark.parametrize(
    "kill", [None, Kill("w", frozenset(), 0.0)], ids=["none killed", "killed with nothing in hand"]
)
def test_a_rescue_that_was_not_seen_is_no_proof(kill: Kill | None) -> None:
    """Where there must be one it is a failure; where there was too little to do, there is nothing to compare."""
    (check,) = rescue_checks(kill, frozenset(), needed=True)
    assert (check, check.holds) == (Check("workers killed at work", 0, 1), False)
    assert rescue_checks(kill, frozenset(), needed=False) == []


@pytest.mark.parametrize("needed", [True, False])
def test_every_job_of_the_killed_worker_must_be_rescued(needed: bool) -> None:
    """One that is missing fails the check; more than these do not."""
    kill = Kill("w", frozenset({1, 2}), 0.0)
    assert [check.holds for check in rescue_checks(kill, frozenset({1, 2, 3}), needed=needed)] == [True]
    assert [check.holds for check in rescue_checks(kill, frozenset({2, 3}), needed=needed)] == [False]


@pytest.mark.parametrize(
    ("proved", "rescued", "said"),
    [
        (True, True, ["Nothing was lost, and nothing was done twice."]),
        (
            True,
            False,
            [
                "Nothing was lost, and nothing was done twice.",
                "But no worker was killed at work: there was too little to do. That a rescue loses nothing is not shown.",
            ],
        ),
        (False, False, ["The proof fails: the database does not say what it should."]),
    ],
)
def test_the_verdict_says_what_was_shown_and_what_was_not(proved: bool, rescued: bool, said: list[str]) -> None:
    """In a terminal of 80 columns."""
    console = Console(file=io.StringIO(), width=80)
    show_verdict(console, proved=proved, rescued=rescued)
    assert isinstance(console.file, io.StringIO)
    assert [line.strip() for line in console.file.getvalue().splitlines() if line] == said

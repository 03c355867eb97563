"""The `check_*.py` files beside this one, read by both type checkers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
FILES = sorted(FOLDER.glob("check_*.py"))
ROOT = Path(__file__).resolve().parents[2]
WRONG = """
from sa_jobqueue.enqueueing.jobs import enqueue
from sa_jobqueue import task

@task
def send(order_id: int) -> None: ...

enqueue(send, "7")
"""


def run(checker: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip(checker)
    return subprocess.run(
        [sys.executable, "-m", checker, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checker", "arguments"), [("mypy", list(map(str, FILES))), ("pyright", ["--project", str(FOLDER)])]
)
def test_types_are_what_the_files_say(checker: str, arguments: list[str]) -> None:
    """Every `assert_type` holds, and every line that must be an error is one."""
    done = run(checker, *arguments)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("checker", "said"), [("mypy", 'No overload variant of "enqueue"'), ("pyright", '"int"')])
def test_a_wrong_argument_is_an_error(checker: str, said: str, tmp_path: Path) -> None:
    """The checkers look at all: a bare mistake fails."""
    file = tmp_path / "wrong.py"
    file.write_text(WRONG)
    done = run(checker, str(file))

    assert done.returncode == 1
    assert said in done.stdout

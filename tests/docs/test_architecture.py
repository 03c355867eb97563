"""The pages for contributors name modules that exist, and draw what their text says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

import sa_jobqueue
from tests.support.commands import ROOT

PAGES = [ROOT / "docs" / "explanation" / name for name in ("architecture.md", "threads.md")]
PACKAGE = Path(sa_jobqueue.__file__).parent
TOP = {"docs", "tests", "alembic", "sa_jobqueue"}

pytestmark = pytest.mark.skipif(not PAGES[0].exists(), reason="the wheel is tested without docs/")


def drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sequence_diagram", ROOT / "docs" / "_ext" / "sequence_diagram.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def named(text: str) -> set[str]:
    """Every path of the page: `models.py`, `worker/claiming/`, `tests/unit/`; in the pictures, too."""
    return set(
        re.findall(r"(?<![\w/.(-])(?:[a-z_]\w*/)*(?:[a-z_]\w*\.(?:py|md)|[a-z_]\w*/)(?=[`,\s]|$)", text, re.MULTILINE)
    )


def diagrams(text: str) -> list[tuple[str, list[str]]]:
    """The title and the lines of each picture."""
    found = re.findall(r"^```\{sequence\} (.+)\n([\s\S]+?)\n```$", text, re.MULTILINE)
    return [(title, lines.splitlines()) for title, lines in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_path_that_is_named_exists(page: Path) -> None:
    """Below the package, or below the project where the path begins with a folder of it."""
    paths = named(page.read_text())
    assert len(paths) > 8
    places = {path: (ROOT if path.split("/")[0] in TOP else PACKAGE) / path for path in paths}
    assert [path for path, place in places.items() if not place.exists()] == []


def test_a_path_that_does_not_exist_would_be_found() -> None:
    """In a sentence, in a table, and as the place of a participant in a picture."""
    text = "in `worker/nowhere/`, and\n| `gone.py`, `cli/` |\nClaimer: worker/lost.py\n[a page](threads.md)\n"
    assert named(text) == {"worker/nowhere/", "gone.py", "cli/", "worker/lost.py"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_picture_has_all_that_its_text_says(page: Path) -> None:
    """Each participant is a box, each step an arrow with its label, all inside of the picture."""
    pictures = diagrams(page.read_text())
    assert pictures
    for title, lines in pictures:
        places, steps = drawing().parse(lines)
        drawn = ET.fromstring(drawing().svg(title, lines))
        said = ["".join(one.itertext()) for one in drawn.iter("text")]
        assert said == [word for pair in places.items() for word in pair] + [step.text for step in steps]
        assert len(steps) >= 5
        assert {step.start for step in steps} | {step.end for step in steps} == set(places)


def test_a_line_that_is_no_step_is_refused() -> None:
    """A misspelled participant would be drawn nowhere."""
    with pytest.raises(ValueError, match="no participants"):
        drawing().parse(["A: a.py", "A -> B: asks"])
    with pytest.raises(ValueError, match="neither"):
        drawing().parse(["A: a.py", "A asks B"])

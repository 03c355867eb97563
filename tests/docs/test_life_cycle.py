"""The page of the life cycle says what the code does: its diagram and its table."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

from sa_jobqueue.rules.lifecycle import FINISHED, LIVE, TRANSITIONS, JobStatus
from tests.support.commands import ROOT

PAGE = ROOT / "docs" / "explanation" / "life-cycle.md"
TABLE = [(before.value, event.value, after.value) for (before, event), after in TRANSITIONS.items()]

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the wheel is tested without docs/")


def diagram() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lifecycle_svg", ROOT / "docs" / "_ext" / "lifecycle_svg.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_that_of_the_code() -> None:
    """Each transition is a row of the page's table, once, and no row is more."""
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `(\w+)` \| \S.* \|$", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(TABLE)


def test_the_diagram_is_that_of_the_code() -> None:
    """Each transition is a label at an arrow of the diagram, once; each state is a box."""
    drawn = ET.fromstring(diagram().svg())
    labels = [one.attrib["data-transition"].split() for one in drawn.iter() if "data-transition" in one.attrib]
    assert sorted(map(tuple, labels)) == sorted(TABLE)
    assert [one.attrib["data-state"] for one in drawn.iter() if "data-state" in one.attrib] == list(JobStatus)
    assert "```{lifecycle-diagram}" in PAGE.read_text()


def test_the_small_diagram_has_what_workers_do() -> None:
    """The small picture has each transition out of `running`, the claim, and the end of a wait. The large picture also has the actions of operators."""
    drawn = ET.fromstring(diagram().small_svg())
    labels = [one.attrib["data-transition"].split() for one in drawn.iter() if "data-transition" in one.attrib]
    assert sorted(map(tuple, labels)) == sorted(
        one for one in TABLE if one[0] == "running" or one[1] in {"claim", "unblock"}
    )


def test_the_groups_of_states_are_those_of_the_code() -> None:
    """The first paragraph names the live and the final states."""
    text = " ".join(PAGE.read_text().split())
    live = re.search(r"of them are live: ([^.]*)\.", text)
    final = re.search(r"Three are final: ([^.]*)\.", text)
    assert live is not None
    assert final is not None
    assert set(re.findall(r"`(\w+)`", live[1])) == LIVE
    assert set(re.findall(r"`(\w+)`", final[1])) == FINISHED

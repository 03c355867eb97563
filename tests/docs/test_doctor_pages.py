"""The pages about the doctor have all of its checks, and each item of the checklist."""

from __future__ import annotations

import re

import pytest

from sa_jobqueue.doctor import BEFORE_DEPLOY, CHECKS
from sa_jobqueue.doctor.examine import ITEMS
from tests.support.commands import ROOT

CHECKLIST = ROOT / "docs" / "howto" / "production-checklist.md"
REFERENCE = ROOT / "docs" / "reference" / "doctor.md"

pytestmark = pytest.mark.skipif(not CHECKLIST.exists(), reason="the wheel is tested without docs/")


def test_the_reference_has_each_check() -> None:
    """In the order in which they are made, with the same words."""
    rows = re.findall(r"^\| `([\w-]+)` \| (.+) \|$", REFERENCE.read_text(), re.MULTILINE)
    assert rows == [(check.name, check.about) for check in (*CHECKS, *BEFORE_DEPLOY)]


def test_the_page_has_each_item_of_the_checklist() -> None:
    """With its title, and the checks that look at it."""
    sections = re.findall(r"^## (.+)\n\nChecks: (.+)$", CHECKLIST.read_text(), re.MULTILINE)
    listed = [(title, tuple(re.findall(r"`([\w-]+)`", checks))) for title, checks in sections]
    assert listed == [(item.title, item.checks) for item in ITEMS]


def test_each_check_is_on_the_checklist_or_says_how_things_are() -> None:
    """A new check finds its item."""
    on_the_list = {name for item in ITEMS for name in item.checks}
    assert {check.name for check in CHECKS} - on_the_list == {
        "database", "clock", "schema", "sequences", "unique", "schedules", "workflows", "signals", "replication",
    }  # fmt: skip

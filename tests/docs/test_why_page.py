"""The page "Why is it not running?" has each reason, in the order in which they decide."""

from __future__ import annotations

import re

import pytest

from sa_jobqueue.rules.reasons import KINDS
from tests.support.commands import ROOT

PAGE = ROOT / "docs" / "howto" / "why.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the wheel is tested without docs/")


def test_the_page_has_each_reason() -> None:
    """A new one finds its row."""
    assert re.findall(r"^\| `([a-z]+)` \|", PAGE.read_text(), re.MULTILINE) == list(KINDS)

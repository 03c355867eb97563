"""The promises in the docs are tied to tests that are there, and their figures to a run."""

from __future__ import annotations

import re

import pytest

from tests.support.commands import ROOT

PAGE = ROOT / "docs/explanation/faults.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the wheel is tested without docs/")


def test_each_test_that_is_named_exists() -> None:
    """A promise that names a test names one that can be run."""
    named = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", PAGE.read_text())
    assert len(named) >= 5
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
    ]
    assert missing == []


def test_each_promise_names_a_test() -> None:
    """All five of them."""
    promises = re.split(
        r"^\*\*\d\. ", PAGE.read_text().split("## Five promises ")[1].split("\n## ")[0], flags=re.MULTILINE
    )[1:]
    assert [len(re.findall(r"::test_", promise)) > 0 for promise in promises] == [True] * 5


def test_the_table_of_faults_has_all_of_them() -> None:
    """One row for each fault, and one for each mix."""
    from tests.faults.__main__ import MIXES
    from tests.faults.faults import FAULTS

    table = PAGE.read_text().split("| fault |")[1].split("\n\n")[0]
    named = re.findall(r"^\| (.+?) \|", table.split("\n", 2)[2], re.MULTILINE)
    assert set(named) == {*FAULTS, *MIXES}

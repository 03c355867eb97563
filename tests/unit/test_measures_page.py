"""The measures' tables in the docs say what was measured, and which targets were missed."""

from __future__ import annotations

import json
from pathlib import Path

from tests.benchmarks.page import BEGIN, END, section
from tests.benchmarks.report import compared, write_json


def test_a_missed_target_stands_out(tmp_path: Path) -> None:
    """A measure without a target is never bold."""
    figures = [
        compared("drain", [(90.0, 100.0), (80.0, 100.0), (70.0, 100.0)], "jobs/s", "raw", at_least=0.8),
        compared("wait", [(4.0, 1.0)], "ms", "bare", at_most=1.5),
        compared("wait", [(4.0, 1.0)], "ms", "nothing"),
    ]
    file = tmp_path / "figures.json"
    write_json(figures, file, {"date": "2026-11-21", "postgresql": "18.4", "fsync": "on"})

    text = section([json.loads(file.read_text())])

    assert text.splitlines()[0] == "**PostgreSQL 18.4**, measured on 2026-11-21: fsync on."
    assert text.splitlines()[-3:] == [
        "| drain | 80.00 jobs/s | 100 (raw) | 0.80 | ≥ 0.8 | yes |",
        "| wait | 4.00 ms | 1.00 (bare) | 4.00 | ≤ 1.5 | **no** |",
        "| wait | 4.00 ms | 1.00 (nothing) | 4.00 |  |  |",
    ]


def test_the_page_has_a_place_for_the_measures() -> None:
    """Between two marks, which must be in order."""
    page = Path("docs/explanation/measurements.md").read_text()
    assert page.index(BEGIN) < page.index(END)

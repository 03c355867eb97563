"""The pictures of the page of measurements: what comes out of a small JSON, and what the page says below them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.benchmarks.pictures import BEGIN, END, PAGE, draw, section, write

CURVES: dict[str, Any] = {
    "date": "2026-11-21",
    "small": False,
    "machine": {"cores": "2", "system": "Linux", "python": "3.11.7"},
    "event_loop": "uvloop",
    "postgresql": "18.4",
    "settings": {"synchronous_commit": "on"},
    "throughput": [
        {"processes": n, "jobs": n, "jobs_per_second": 10 * n, "lowest": 9 * n, "highest": 11 * n,
         "raw_jobs_per_second": 12 * n}
        for n in (1, 2)
    ],
    "latency": [{"rate": r, "jobs": r, "jobs_per_second": r, "p50": 1.0, "p99": 2.0} for r in (100, 2_000)],
    "claim": [{"queued": n, "claims": 9, "batch": 100, "p50": 1.0, "p90": 1.5} for n in (1_000, 1_000_000)],
}  # fmt: skip


def test_each_curve_becomes_a_picture_with_units_on_its_axes(tmp_path: Path) -> None:
    """Three SVG files that can be read as such; they name what was measured, in what."""
    pytest.importorskip("matplotlib")
    made = draw(CURVES, tmp_path)
    texts = {path.name: " ".join(ET.parse(path).getroot().itertext()) for path in made}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(texts)
    for name, said in {
        "throughput.svg": ("processes", "jobs per second", "worker, async no-op", "bare SQL loop"),
        "latency.svg": ("load: jobs per second", "enqueue to start, ms", "p99"),
        "claim.svg": ("jobs queued", "claim of 100 jobs, ms", "1,000,000"),
    }.items():
        assert [one for one in said if one not in texts[name]] == []


def test_the_same_curves_make_the_same_files(tmp_path: Path) -> None:
    """Byte for byte: a picture changes in the repository when a figure did."""
    pytest.importorskip("matplotlib")
    first, second = (draw(CURVES, tmp_path / one) for one in ("first", "second"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_curve_without_points_has_no_picture(tmp_path: Path) -> None:
    """And the page does not refer to one."""
    pytest.importorskip("matplotlib")
    without = {**CURVES, "latency": []}
    assert [path.name for path in draw(without, tmp_path)] == ["throughput.svg", "claim.svg"]
    assert "latency.svg" not in section(without)


def test_the_caption_says_when_and_on_what() -> None:
    """Figures without them would mean nothing; those of a small run mean nothing anyway, and are said to."""
    said = section(CURVES)
    for one in ("2026-11-21", "2 cores", "PostgreSQL 18.4", "Python 3.11.7 with uvloop", "`synchronous_commit` on"):
        assert one in said
    assert "mean nothing" not in said
    assert "mean nothing" in section({**CURVES, "small": True})


def test_only_what_is_between_the_markers_is_written(tmp_path: Path) -> None:
    """A page without them is refused."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write(page, CURVES)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    page.write_text("nothing")
    with pytest.raises(SystemExit, match="needs one line"):
        write(page, CURVES)


@pytest.mark.skipif(not PAGE.exists(), reason="the wheel is tested without docs/")
def test_the_page_has_the_markers() -> None:
    """Each once, so that the pictures have their place."""
    assert [PAGE.read_text().count(marker) for marker in (BEGIN, END)] == [1, 1]

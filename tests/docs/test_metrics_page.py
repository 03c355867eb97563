"""The page of the metrics says what is exposed and shipped."""

from __future__ import annotations

import re

import pytest

from sa_jobqueue.metrics.names import METRICS
from sa_jobqueue.rules.tally import BOUNDS
from tests.support.commands import ROOT
from tests.support.expressions import alerts
from tests.support.metrics_page import PAGE, text

HOWTO = ROOT / "docs" / "howto" / "metrics.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the wheel is tested without docs/")


def test_the_tables_are_as_their_source_makes_them() -> None:
    """`python -m tests.support.metrics_page` writes them again."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == text()
    for name in (*(metric.name for metric in METRICS), *alerts()):
        assert f"| `{name}` |" in page


def test_the_page_names_the_buckets_of_the_histograms() -> None:
    """In seconds and minutes."""
    seconds = "0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30 and 60 seconds"
    minutes = "2, 5, 10, 30 and 60 minutes"
    assert seconds in (page := " ".join(PAGE.read_text(encoding="utf-8").split()))
    assert minutes in page
    said = [float(number) for number in re.findall(r"[\d.]+", seconds)]
    said += [60.0 * float(number) for number in re.findall(r"[\d.]+", minutes)]
    assert tuple(said) == BOUNDS


@pytest.mark.parametrize("page", [PAGE, HOWTO], ids=lambda page: page.parent.name)
def test_every_metric_and_alert_that_a_page_names_is_there(page: object) -> None:
    """In sentences, too."""
    said = page.read_text(encoding="utf-8")  # type: ignore[attr-defined]
    series = {name for metric in METRICS for name in (metric.name, *metric.series)}
    named = set(re.findall(r"`(sa_jobqueue_[a-z_]+)(?:\{[^`]*)?`", said))
    assert named - series == set()
    assert set(re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", said)) - {
        "QueueCollector",
        "WorkerCollector",
        "AsyncEngine",
    } <= set(alerts())

"""The table of metrics, the alerts and the Grafana board agree."""

from __future__ import annotations

import json
import re

import pytest

from sa_jobqueue.metrics import names
from sa_jobqueue.metrics.names import METRICS
from tests.support.expressions import SERIES, alerts, labels_of, named
from tests.support.grafana_board import FILE, ROWS, expressions, text

ALERTS = {name: rule["expr"] for name, rule in alerts().items()}
#: Labels that Prometheus itself gives, and that histograms have.
GIVEN = {"job", "instance", "le"}


def test_every_metric_is_in_the_table_once() -> None:
    """A metric that is defined is listed, under a name of its own."""
    defined = [one for one in vars(names).values() if isinstance(one, names.Metric)]
    assert len(defined) == len({one.name for one in METRICS}) == len(METRICS)


def test_names_follow_the_habits_of_prometheus() -> None:
    """Counters end in _total, and nothing else does."""
    for metric in METRICS:
        assert re.fullmatch(r"sa_jobqueue_[a-z_]+", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total")


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_asks_for_metrics_and_labels_that_are_there(name: str) -> None:
    """And says what was found and what to do."""
    rule = alerts()[name]
    assert named(rule["expr"])
    assert named(rule["expr"]) <= set(SERIES)
    assert all(label in {*SERIES[series].labels, *GIVEN} for series, label in labels_of(rule["expr"]))
    assert set(rule["annotations"]) == {"summary", "description"}
    assert rule["labels"]["severity"] in {"page", "ticket"}


def test_the_board_shows_every_metric_and_asks_for_no_other() -> None:
    """So it is complete, and no chart is empty because of a name."""
    shown = {series for expression in expressions() for series in named(expression)}
    assert shown <= set(SERIES)
    assert {SERIES[series] for series in shown} == set(METRICS)
    for expression in expressions():
        assert all(label in {*SERIES[series].labels, *GIVEN} for series, label in labels_of(expression))


def test_the_board_is_as_its_source_makes_it() -> None:
    """`python -m tests.support.grafana_board` writes it again."""
    assert FILE.read_text(encoding="utf-8") == text()


def test_the_board_has_each_chart_with_an_id_of_its_own() -> None:
    """And its expressions are those that the tests send to Prometheus."""
    panels = json.loads(FILE.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == list(ROWS)
    assert [target["expr"] for panel in panels for target in panel.get("targets", [])] == list(expressions())

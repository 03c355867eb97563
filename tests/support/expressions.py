"""The expressions of our alerts, and the metrics that an expression names."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import yaml

from sa_jobqueue.metrics.names import METRICS

RULES = files("sa_jobqueue") / "metrics" / "rules.yaml"
SERIES = {series: metric for metric in METRICS for series in metric.series}


def alerts() -> dict[str, dict[str, Any]]:
    """The alerts by name."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def named(expression: str) -> set[str]:
    """The series of ours in an expression."""
    return set(re.findall(r"\bsa_jobqueue_\w+", expression))


def labels_of(expression: str) -> set[tuple[str, str]]:
    """Pairs of a series and a label that it is asked for by."""
    found = re.findall(r"\b(sa_jobqueue_\w+)\{([^}]*)\}", expression)
    return {(series, label) for series, said in found for label in re.findall(r"(\w+)\s*(?:=~|!=|=)", said)}

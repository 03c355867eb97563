"""Values of our metrics as the families that prometheus_client exposes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family

from .names import LES, Metric

__all__ = ["Families"]

_KINDS: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class Families:
    """Collects values. A metric without a value is not exposed."""

    def __init__(self) -> None:
        self._made: dict[Metric, Any] = {}

    def add(self, metric: Metric, value: float | None, *labels: str) -> None:
        """A value; None: it is not known."""
        if value is not None:
            self._family(metric).add_metric(labels, value)

    def add_counts(self, metric: Metric, counts: Sequence[int], seconds: float, *labels: str) -> None:
        """Durations, counted in the buckets of `sa_jobqueue.histogram`, and their sum."""
        buckets = list(zip(LES, accumulate(counts), strict=True))
        self._family(metric).add_metric(labels, buckets=buckets, sum_value=seconds)

    def __iter__(self) -> Iterator[Family]:
        return iter(self._made.values())

    def _family(self, metric: Metric) -> Any:
        found = self._made.get(metric)
        if found is None:
            found = self._made[metric] = _KINDS[metric.kind](metric.name, metric.help, labels=metric.labels)
        return found

"""Metrics as observable instruments over what the workers of this process have counted.

To call an instrument for each job would cost several times as much as the job's own bookkeeping. OpenTelemetry has no observable
histogram, so durations are sums, and counters by bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from ..histogram import BOUNDS
from ..lifecycle import COUNTED
from ..tally import TaskTally
from ..worker.totals import totals
from . import semconv

__all__ = ["Metrics"]

_BOUNDS = (*(f"{bound:g}" for bound in BOUNDS), "+Inf")

_Observe = Callable[[TaskTally, dict[str, str]], Iterator[Observation]]


class Metrics:
    """The instruments of one meter. They observe nothing while `active` is false, because none can be taken back."""

    def __init__(self, meter: Meter) -> None:
        self.active = True

        def counter(name: str, unit: str, description: str, observe: _Observe) -> None:
            def callback(options: CallbackOptions) -> Iterable[Observation]:
                return list(self._observations(observe))

            meter.create_observable_counter(name, [callback], unit, description)

        counter(semconv.CONSUMED, "{message}", "Attempts that ended in this process.", _consumed)
        counter(semconv.JOBS, "{job}", "Attempts by what came of them.", _by_outcome)
        counter(semconv.RUN_TIME, "s", "How long handlers ran, all together.", _run_time)
        counter(semconv.WAIT_TIME, "s", "How long jobs were due before they started, all together.", _wait_time)
        counter(semconv.RUNS, "{job}", "Jobs by the time that their handlers ran, at most `le` seconds.", _runs)
        counter(semconv.WAITS, "{job}", "Jobs by the time that they were due before, at most `le` seconds.", _waits)

    def _observations(self, observe: _Observe) -> Iterator[Observation]:
        for one in totals() if self.active else ():
            yield from observe(one, {semconv.DESTINATION: one.queue, semconv.TASK: one.task})


def _consumed(tally: TaskTally, labels: dict[str, str]) -> Iterator[Observation]:
    names = {semconv.SYSTEM: semconv.SYSTEM_NAME, semconv.OPERATION_NAME: semconv.PROCESS}
    yield Observation(tally.jobs, labels | names)


def _by_outcome(tally: TaskTally, labels: dict[str, str]) -> Iterator[Observation]:
    for outcome in COUNTED:
        if number := getattr(tally, outcome):
            yield Observation(number, labels | {semconv.OUTCOME: outcome})


def _run_time(tally: TaskTally, labels: dict[str, str]) -> Iterator[Observation]:
    yield Observation(tally.run_seconds, labels)


def _wait_time(tally: TaskTally, labels: dict[str, str]) -> Iterator[Observation]:
    yield Observation(tally.wait_seconds, labels)


def _runs(tally: TaskTally, labels: dict[str, str]) -> Iterator[Observation]:
    return _cumulative(tally.runs, labels)


def _waits(tally: TaskTally, labels: dict[str, str]) -> Iterator[Observation]:
    return _cumulative(tally.waits, labels)


def _cumulative(counts: Sequence[int], labels: dict[str, str]) -> Iterator[Observation]:
    """Each bucket with all below it."""
    total = 0
    for bound, count in zip(_BOUNDS, counts, strict=True):
        total += count
        yield Observation(total, labels | {semconv.BUCKET: bound})

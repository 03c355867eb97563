"""The metrics of worker processes, made from plain numbers when Prometheus asks. A job costs nothing here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from ..lifecycle import COUNTED, OUTCOMES, Event
from ..worker.worker import Worker
from . import names
from .families import Families
from .snapshot import read_snapshot
from .sums import Totals

__all__ = ["TotalsCollector", "WorkerCollector"]

#: What attempts came to: a rescue is no end of an attempt here, and has a metric of its own.
_OUTCOMES = tuple(name for name in COUNTED if name != OUTCOMES[Event.RESCUE])


class TotalsCollector(Collector):
    """Exposes what `read` returns at each scrape."""

    def __init__(self, read: Callable[[], Totals]) -> None:
        self._read = read

    def collect(self) -> Iterator[Family]:
        """The families, with the values of now."""
        totals, families = self._read(), Families()
        _add_counters(families, totals)
        _add_gauges(families, totals)
        return iter(families)

    def describe(self) -> Iterator[Family]:
        """Nothing: to be registered needs no values."""
        return iter(())


class WorkerCollector(TotalsCollector):
    """The metrics of a worker that runs in this process: `registry.register(WorkerCollector(worker))`."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(lambda: Totals.of_one(read_snapshot(worker)))


def _add_counters(families: Families, totals: Totals) -> None:
    counters = totals.counters
    for (queue, task), one in sorted(counters.tallies.items()):
        for outcome in _OUTCOMES:
            families.add(names.JOBS, getattr(one, outcome), queue, task, outcome)
        families.add(names.RESCUED, one.rescued, queue, task)
        if any(one.runs):
            families.add_counts(names.RUN_SECONDS, one.runs, one.run_seconds, queue, task)
            families.add_counts(names.WAIT_SECONDS, one.waits, one.wait_seconds, queue, task)
    families.add(names.CLAIMED, counters.claimed)
    families.add_counts(names.CLAIM_SECONDS, counters.claims, counters.claim_seconds)


def _add_gauges(families: Families, totals: Totals) -> None:
    live = {number: state for number, state in totals.live.items() if state.serving}
    states = live.values()
    for queue in sorted({queue for state in states for queue in state.queues}):
        of_each = [state.queues[queue] for state in states if queue in state.queues]
        families.add(names.SLOTS, sum(one.slots for one in of_each), queue)
        families.add(names.SLOTS_BUSY, sum(one.running for one in of_each), queue)
        families.add(names.SLOTS_STUCK, sum(one.stuck for one in of_each), queue)
        families.add(names.BUFFERED, sum(one.waiting for one in of_each), queue)
    families.add(names.PROCESSES, len(states))
    families.add(names.LISTENING, sum(state.listening for state in states))
    families.add(names.UNWRITTEN, sum(state.unwritten for state in states))
    for number, state in live.items():
        families.add(names.MEMORY, state.memory, str(number))
        families.add(names.LOOP_LAG, state.loop_lag, str(number))
        families.add(names.CLAIM_SHARE, state.share, str(number))

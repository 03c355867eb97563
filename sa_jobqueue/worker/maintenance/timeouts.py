"""Giving up what takes too long: handlers past their timeout that do not end by themselves, and jobs that get no slot."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

from ...failures import describe
from ...outcomes import Failed, Released
from ..claiming.claimer import Claimer
from ..running.executor import Executor
from ..running.run import Run, Runs, Stop
from ..running.slots import Slots
from ..running.timeouts import is_late, timed_out
from ..watchdog import Watchdog

__all__ = ["Timeouts"]


class Timeouts:
    """Ends late attempts, whatever their handlers still do. The rules are in `running.timeouts`."""

    def __init__(
        self,
        runs: Runs,
        all_slots: Mapping[str, Slots],
        *,
        executor: Executor,
        watchdog: Watchdog,
        claimer: Claimer,
        hoard: float,
    ) -> None:
        self._runs, self._all_slots, self._executor = runs, all_slots, executor
        self._watchdog, self._claimer, self._hoard = watchdog, claimer, hoard

    @property
    def are_awaited(self) -> bool:
        """Whether a run has a timeout that may pass soon."""
        return any(run.timeout_at is not None for run in self._runs.all())

    def end_late(self) -> None:
        """Give up the attempts whose handlers are late: what they write afterwards is refused."""
        now, blocked = monotonic(), self._watchdog.blocked
        for run in self._runs.all():
            if is_late(run, now, blocked=blocked):
                run.timeout_at = None
                if not run.settled:
                    self._give_up(run, blocked=blocked)

    def give_back_stale(self) -> None:
        """Give back what was claimed and gets no slot, or waits for a blocked event loop."""
        for slots in self._all_slots.values():
            for run in slots.stale(self._hoard):
                self._executor.give_up(run, Released())
                self._claimer.gave_up(run.job.queue)

    def _give_up(self, run: Run, *, blocked: bool) -> None:
        slots, error = self._all_slots[run.job.queue], timed_out(run)
        slots.abandon(run)
        blocks = run.task.is_async and blocked
        if blocks:
            why = "the event loop it runs on is blocked"
        elif run.task.is_async:
            why = "it was cancelled, and does not come to its end"
        else:
            why = "its thread may still run"
        if not self._executor.give_up(run, Failed(error, describe(error)), f"; {why}"):
            slots.keep(run)
            return
        # Only now: a handler that is told to stop may come back at once, and its end would be the one that counts.
        if blocks:
            # No cancel: should the loop answer again, asyncio's own timeout does that.
            run.stop = run.stop or Stop.TIMEOUT
        else:
            self._runs.stop(run, Stop.TIMEOUT)  # an async one is cancelled once more, in its cleanup perhaps
        self._claimer.gave_up(run.job.queue)

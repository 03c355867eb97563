"""A worker without threads of its own: the test makes each round of its service, while no handler runs.

In a worker that runs by itself, how many outcomes a round finds depends on time. Here each finds all there are, so what
it asks of the server is the same each time, and can be counted.

step = Step(worker)
step.round()                                          # claim
await step.run()                                      # run what was claimed
await step.drain()                                    # so on, until there is nothing to do
step.close()
"""

from __future__ import annotations

from types import SimpleNamespace

from sa_jobqueue import Worker
from sa_jobqueue.worker.services import Services
from sa_jobqueue.worker.tally import Tally
from tests.support.waiting import wait_until_async


class Step:
    """The parts of `worker`, of which none is started. Made on the event loop that runs async handlers.

    `listening`: whether it is as if a listener could hear of new jobs.
    """

    def __init__(self, worker: Worker, *, listening: bool = False) -> None:
        self._services = Services(
            worker._spec, Tally(), leaving=lambda: False, idle=None, drain=lambda: None, hopeless=lambda: None
        )
        self._services.listener = SimpleNamespace(listening=listening)  # type: ignore[assignment]

    def connect(self) -> None:
        """Make the service's connection, which the first round would make."""
        self._services.claimer._connect()

    def tell(self) -> None:
        """New jobs are said to be there."""
        self._services.claimer.notify(None)

    def round(self) -> bool:
        """Write what has ended and claim for the free slots. Returns whether there was something to do.

        Handlers on the event loop do not run meanwhile, because this call blocks it. Those on threads may.
        """
        return self._services.claimer._timed_round()

    async def run(self) -> None:
        """Let all that was claimed come to its end."""
        await wait_until_async(self._is_over, message="the handlers to end")

    async def drain(self) -> None:
        """Rounds and runs, until a round finds nothing to do."""
        while self.round():
            await self.run()

    def close(self) -> None:
        """End the threads of handlers, and the service's connection."""
        self._services.runners.finish()
        if (connection := self._services.claimer._connection.current) is not None:
            connection.close()

    def _is_over(self) -> bool:
        all_slots = self._services.all_slots.values()
        return not self._services.running() and not any(
            slots.running or slots.waiting or slots._called for slots in all_slots
        )

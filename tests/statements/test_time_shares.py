"""Keys that share the time of a queue: claims start jobs of the key whose jobs have had slots for the least time.

The clock is the test's own: a job takes as long as the test says, and nothing waits.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

import pytest
from sqlalchemy import Connection

from sa_jobqueue.worker.claiming.shares import TimeShares, charges_said
from tests.support.limits import Claimant, end, fill, key, limit
from tests.support.nightly import nightly

QUEUE = "default"


def jain(shares: Mapping[str, float]) -> float:
    """Jain's index: 1 where all shares are equal, 1/n where a single key has everything."""
    return sum(shares.values()) ** 2 / (len(shares) * sum(share**2 for share in shares.values()))


class Slots:
    """A worker of some slots, with a clock of its own."""

    def __init__(self, connection: Connection, slots: int, seconds: Mapping[str, float]) -> None:
        self.claimant, self.slots, self.seconds = Claimant(connection), slots, seconds
        self.shares, self.now = TimeShares(), 0.0
        self.running: list[tuple[float, int, str]] = []
        self.used = dict.fromkeys(seconds, 0.0)

    def serve(self, until: float) -> dict[str, float]:
        """Run jobs until then. Returns the seconds of slots that each key has used since the last call."""
        self.used = dict.fromkeys(self.seconds, 0.0)
        while self.now < until:
            charges = charges_said({QUEUE: self.shares}, self.now)
            self.claimant.claim(self.slots - len(self.running), charges=charges)
            started = self.claimant.state.started or ()
            self.shares.start(started, self.now)
            self.shares.handed_over()
            for job_id, name, _ in started:
                heapq.heappush(self.running, (self.now + self.seconds[name], job_id, name))
            ended = self._end(min(self.running[0][0], until))
            end(self.claimant.connection, ended)
        return self.used

    def _end(self, at: float) -> list[int]:
        for _, _, name in self.running:
            self.used[name] += at - self.now
        self.now = at
        ended = [job_id for done, job_id, _ in self.running if done <= at]
        self.running = [run for run in self.running if run[0] > at]
        heapq.heapify(self.running)
        self.shares.end(lambda job_id: job_id not in ended, at)
        return ended


@pytest.mark.parametrize("slots", [4, *nightly(1, 2, 16, 64)])
def test_keys_have_equal_time_however_long_their_jobs_are(connection: Connection, slots: int) -> None:
    """Jobs of 0.5 s and of 0.05 s: Jain's index of the time is above 0.99. By starts it would be 0.6."""
    fill(connection, 10 * slots, "long")
    fill(connection, 80 * slots, "short")
    limit(connection, share="time")

    used = Slots(connection, slots, {"long": 0.5, "short": 0.05}).serve(5.0)

    assert jain(used) > 0.99
    assert sum(used.values()) == pytest.approx(5.0 * slots)


def test_a_weight_is_a_share_of_the_time(connection: Connection) -> None:
    """3 : 1, where the key of the weight 3 has the long jobs."""
    fill(connection, 60, "long")
    fill(connection, 400, "short")
    limit(connection, share="time")
    key(connection, "long", weight=3)

    used = Slots(connection, 4, {"long": 0.5, "short": 0.1}).serve(8.0)

    assert used["long"] / used["short"] == pytest.approx(3.0, rel=0.15)


def test_a_key_that_comes_later_shares_from_then_on(connection: Connection) -> None:
    """It neither catches up the time before, nor waits for it."""
    fill(connection, 200, "early")
    fill(connection, 4, "late")  # so that the queue has said that it shares time
    limit(connection, share="time")
    worker = Slots(connection, 4, {"early": 0.2, "late": 0.1})
    worker.serve(5.0)
    fill(connection, 200, "late")

    used = worker.serve(8.0)

    assert jain(used) > 0.98


def test_many_keys_have_equal_time(connection: Connection) -> None:
    """More keys than a claim reads at once, half of them with jobs that take ten times as long."""
    names = {f"{number:03}": (0.2 if number % 2 else 0.02) for number in range(80)}
    for name in names:
        fill(connection, 20, name)
    limit(connection, share="time")

    used = Slots(connection, 4, names).serve(6.0)

    assert jain(used) > 0.9


def test_what_a_key_leaves_goes_to_the_others_at_once(connection: Connection) -> None:
    """One claim fills all slots, also with jobs of a key that is charged much more."""
    fill(connection, 30, "much")
    fill(connection, 1, "less")
    limit(connection, share="time")
    charges = f'{{"{QUEUE}": [0.1, {{"much": [100.0, 5.0]}}]}}'

    claimant = Claimant(connection)
    claimant.claim(8, charges=charges)

    assert [name for _, name, _ in claimant.state.started or ()] == ["less", *["much"] * 7]


def test_memory_is_bounded() -> None:
    """Of many keys, those that are charged most are remembered."""
    shares = TimeShares()
    for number in range(4_000):
        shares.start([(number, f"{number}", 1)], float(number))
        shares.handed_over()
        shares.end(lambda job_id, last=number: job_id == last - 1, number + 0.5 + number / 100_000)

    _, charged = shares.charges(4_000.0)

    assert 0 < len(charged) <= 1_000
    assert len(shares._keys) <= 2_001

"""Adding up what worker processes count: nothing goes back when they die, restart or say nothing more."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sa_jobqueue.metrics.sums import Counters, Snapshot, Sums, Totals
from sa_jobqueue.rules.tally import BUCKETS, TaskTally
from sa_jobqueue.worker.tally import QueueState, WorkerState
from tests.support.nightly import examples

PROCESSES, TASKS = 3, ("send", "index")


def snapshot(*tallies: TaskTally, claimed: int = 0, slots: int = 10) -> Snapshot:
    """What a process says."""
    queues = {"mail": QueueState(slots, running=0, waiting=0, stuck=0, paused=False)}
    state = WorkerState(
        True, queues, {}, claimed=claimed, claims=(claimed, *(0,) * (BUCKETS - 1)), claim_seconds=claimed / 8
    )
    return Snapshot(tallies, state, lease=60.0)


def completed(totals: Totals) -> dict[str, int]:
    """Completed jobs by task."""
    return {task: one.completed for (_, task), one in totals.counters.tallies.items()}


def test_what_a_killed_process_has_counted_stays_in_the_sums() -> None:
    """Its counters stay, its gauges go, and its successor's are added."""
    sums = Sums()
    sums.hear((1, 1), snapshot(TaskTally("mail", "send", completed=5), claimed=7))
    sums.end((1, 1))
    assert completed(sums.totals()) == {"send": 5}
    assert not sums.totals().live
    sums.close((1, 1))
    sums.hear((1, 2), snapshot(TaskTally("mail", "send", completed=2), claimed=2))
    totals = sums.totals()
    assert completed(totals) == {"send": 7}
    assert totals.counters.claimed == 9
    assert list(totals.live) == [1]


def test_the_last_line_of_an_ended_process_counts_when_it_comes_late() -> None:
    """The end of a process may be known before its pipe was read to the end."""
    sums = Sums()
    sums.hear((1, 1), snapshot(TaskTally("mail", "send", completed=5)))
    sums.end((1, 1))
    sums.hear((1, 1), snapshot(TaskTally("mail", "send", completed=6)))
    sums.close((1, 1))
    assert completed(sums.totals()) == {"send": 6}
    assert not sums.live()


def test_an_end_that_is_heard_of_after_the_pipe_was_closed_is_forgotten() -> None:
    """Nothing is kept of it."""
    sums = Sums()
    sums.close((1, 1))
    sums.end((1, 1))
    assert not sums._ended
    assert not sums.live()


@examples(30, nightly=100)
@given(st.integers(0, 2**40), st.floats(0, 1e9), st.text(max_size=20), st.booleans())
def test_a_snapshot_comes_out_of_its_line_as_it_went_in(number: int, seconds: float, name: str, flag: bool) -> None:
    """Whatever queues and tasks are called; the line has no line break in it."""
    tally = TaskTally(name, name, failed=number, run_seconds=seconds, runs=(number, *(0,) * (BUCKETS - 1)))
    state = replace(snapshot().state, leaving=flag, late=seconds, pressure=name, memory=number)
    made = Snapshot((tally,), state, lease=seconds)
    line = made.to_line()
    assert line.count(b"\n") == 1
    assert Snapshot.from_line(line) == made


class Supervised(RuleBasedStateMachine):
    """Processes count, report, die with or without a last word, and start again, in any order."""

    @initialize()
    def begin(self) -> None:
        self.sums = Sums()
        self.starts = dict.fromkeys(range(PROCESSES), 1)
        self.counted: dict[tuple[int, int], dict[str, int]] = {}
        """What each process has reported."""
        self.now: dict[int, dict[str, int]] = {number: {} for number in range(PROCESSES)}
        self.ended: list[tuple[int, int]] = []
        """Those that died and whose pipes are open."""
        self.before = Counters()

    @rule(number=st.integers(0, PROCESSES - 1), task=st.sampled_from(TASKS), jobs=st.integers(1, 50))
    def count(self, number: int, task: str, jobs: int) -> None:
        self.now[number][task] = self.now[number].get(task, 0) + jobs

    @rule(number=st.integers(0, PROCESSES - 1))
    def report(self, number: int) -> None:
        process = number, self.starts[number]
        self.counted[process] = dict(self.now[number])
        self.sums.hear(process, self._said(self.now[number]))

    @rule(number=st.integers(0, PROCESSES - 1))
    def die(self, number: int) -> None:
        process = number, self.starts[number]
        self.sums.end(process)
        self.ended.append(process)
        self.starts[number] += 1
        self.now[number] = {}

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from(self.ended))
        self.ended.remove(process)
        self.sums.close(process)

    @staticmethod
    def _said(counted: dict[str, int]) -> Snapshot:
        tallies = [
            TaskTally("mail", task, completed=jobs, run_seconds=jobs / 4, runs=(jobs, *(0,) * (BUCKETS - 1)))
            for task, jobs in counted.items()
        ]
        return snapshot(*tallies, claimed=sum(counted.values()))

    @invariant()
    def no_counter_goes_back(self) -> None:
        now, before = self.sums.totals().counters, self.before
        assert now.claimed >= before.claimed
        assert now.claim_seconds >= before.claim_seconds
        for key, one in before.tallies.items():
            since = now.tallies[key].minus(one)
            assert since.completed >= 0
            assert since.run_seconds >= 0
            assert min(since.runs) >= 0
        self.before = now

    @invariant()
    def the_sums_are_what_was_reported(self) -> None:
        expected: dict[str, int] = {}
        for counted in self.counted.values():
            for task, jobs in counted.items():
                expected[task] = expected.get(task, 0) + jobs
        assert completed(self.sums.totals()) == expected

    @invariant()
    def gauges_are_those_of_the_living(self) -> None:
        living = {process for process in self.starts.items() if process in self.counted}
        assert set(self.sums.totals().live) == {number for number, _ in living}


Supervised.TestCase.settings = examples(30, nightly=100)
TestSupervised = Supervised.TestCase

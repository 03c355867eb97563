"""What workers tell their supervisor over a pipe, also when the other end does not read, or is gone."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from sa_jobqueue.metrics.endpoint import SupervisorProbes
from sa_jobqueue.metrics.sums import Receiver, Sender, Snapshot
from sa_jobqueue.rules.tally import TaskTally
from sa_jobqueue.worker.tally import WorkerState
from tests.support.waiting import wait_until


def snapshot(completed: int, task: str = "send", **state: object) -> Snapshot:
    """What a process says."""
    return Snapshot((TaskTally("mail", task, completed=completed),), WorkerState(True, {}, {}, **state), 60.0)  # type: ignore[arg-type]


@pytest.fixture
def receiver() -> Receiver:
    """A supervisor's."""
    return Receiver()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe from whose reading end nothing is read."""
    reading, writing = os.pipe()
    yield reading, writing
    with suppress(OSError):
        os.close(reading)


def completed(receiver: Receiver) -> int:
    """All of the jobs."""
    return sum(one.completed for one in receiver.sums.totals().counters.tallies.values())


def test_a_worker_tells_its_last_counts_when_it_ends(receiver: Receiver) -> None:
    """What came since the line before is not lost."""
    numbers = [3]
    sender = Sender(receiver.open(1), lambda: snapshot(numbers[0]))
    sender.start()
    wait_until(lambda: completed(receiver) == 3)
    numbers[0] = 5
    sender.finish()
    wait_until(lambda: completed(receiver) == 5)
    receiver.ended(1, 4711)
    assert not receiver.sums.live()


def test_a_supervisor_that_does_not_read_holds_up_only_the_sender(pipe: tuple[int, int]) -> None:
    """The pipe is full: the thread that writes waits, and the end of the worker waits for a second at most."""
    said = threading.Event()

    def read() -> Snapshot:
        said.set()
        return snapshot(1, "x" * 1_000_000)

    sender = Sender(pipe[1], read)
    sender.start()
    assert said.wait(30)
    sender.finish()
    assert sender._thread.is_alive()
    os.close(pipe[0])
    wait_until(lambda: not sender._thread.is_alive())


def test_a_supervisor_that_is_gone_ends_the_sender_and_nothing_else(pipe: tuple[int, int]) -> None:
    """No error, and no signal."""
    os.close(pipe[0])
    sender = Sender(pipe[1], lambda: snapshot(1))
    sender.start()
    sender.finish()
    wait_until(lambda: not sender._thread.is_alive())


def test_half_a_line_of_a_killed_process_is_not_counted(receiver: Receiver) -> None:
    """What it had said before stays."""
    writing = receiver.open(1)
    os.write(writing, snapshot(3).to_line() + snapshot(9).to_line()[:-20])
    os.close(writing)
    wait_until(lambda: completed(receiver) == 3 and not receiver.sums.live())


def test_a_line_that_cannot_be_read_ends_the_hearing_and_is_said(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """The supervisor goes on."""
    writing = receiver.open(1)
    os.write(writing, snapshot(3).to_line() + b"nonsense\n")
    wait_until(lambda: "says nothing more" in caplog.text)
    os.close(writing)
    assert completed(receiver) == 3


def test_the_pipe_is_not_inherited_by_programs_that_handlers_start(receiver: Receiver) -> None:
    """Else the supervisor would take a dead worker's numbers for those of a living one."""
    writing = receiver.open(1)
    os.set_inheritable(writing, True)  # as pass_fds does
    sender = Sender(writing, lambda: snapshot(1))
    assert not os.get_inheritable(writing)
    sender.start()
    sender.finish()


def test_a_supervisor_lives_while_the_threads_of_all_processes_move(receiver: Receiver) -> None:
    """One process that stands still fails the probe, and is named."""
    probes = SupervisorProbes(receiver)
    assert probes.live().well
    receiver.sums.hear((1, 1), snapshot(1))
    receiver.sums.hear((2, 1), snapshot(1, late=90.0))
    answer = probes.live()
    assert not answer.well
    assert answer.said.startswith("process 2: its threads have not moved for 90")
    receiver.sums.end((2, 1))
    assert probes.live().well


def test_a_process_that_says_nothing_for_long_does_not_move(receiver: Receiver) -> None:
    """It was stopped: by SIGSTOP for example."""
    receiver.sums.hear((1, 1), snapshot(1), at=-1e6)
    assert not SupervisorProbes(receiver).live().well


@pytest.mark.parametrize(
    ("state", "why"),
    [({"away": True}, "does not answer"), ({"leaving": True}, "it is leaving")],
)
def test_a_supervisor_is_ready_while_one_process_is(receiver: Receiver, state: dict[str, bool], why: str) -> None:
    """Not before the first has begun, and not while all lack something."""
    probes = SupervisorProbes(receiver)
    assert probes.ready().said == "no process has begun"
    receiver.sums.hear((1, 1), snapshot(1, **state))
    assert not probes.ready().well
    assert why in probes.ready().said
    receiver.sums.hear((2, 1), snapshot(1))
    assert probes.ready().well
    receiver.leaving()
    assert probes.ready().said == "it is leaving"

"""Bad days on purpose, under load: three workers, and a producer that never stops. `nox -s faults` has the long ones.

How soon all is well again depends on the machine too, so these are for nights; `test_counters.py` has three of the faults each day.

The faults share a scene, one after the other, each from a calm beginning; a scene that was left broken is built again.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.__main__ import promises_broken
from tests.faults.faults import FAULTS, Fault
from tests.faults.scene import LEASE, Observed, Scene

SEED = 20_261_121

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


class Stage:
    """The scene that is shared, made when it is first asked for."""

    def __init__(self) -> None:
        self._scene: Scene | None = None

    def scene(self) -> Scene:
        if self._scene is None:
            self._scene = Scene(seed=SEED).__enter__()
        return self._scene

    def clear(self) -> None:
        if self._scene is not None:
            self._scene.__exit__()
            self._scene = None

    def finish(self) -> list[str]:
        """Let all jobs end and audit everything, if there was a scene that was not left broken."""
        return self._scene.finish() if self._scene is not None else []


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    # Not a test of its own: pytest-xdist may play in two processes, each on a stage of its own.
    try:
        assert stage.finish() == [], "over all that was done on this stage"
    finally:
        stage.clear()


IN_CI = [fault for fault in FAULTS.values() if fault.ci]


@pytest.mark.parametrize("fault", IN_CI, ids=[fault.name for fault in IN_CI])
def test_nothing_is_lost_and_nothing_is_run_by_two_when(stage: Stage, fault: Fault) -> None:
    """The auditor finds nothing and every job ends. Within 5 s jobs end at least half as fast as usual, and every worker claims twice.

    A worker that had to be started again has 2 s more to claim; and memory is bounded.
    """
    if missing := fault.needs():
        pytest.skip(missing)
    assert suffer(stage, fault).committed > 0


def suffer(stage: Stage, fault: Fault) -> Observed:
    """Let a fault happen for as long as in CI, and see that it breaks no promise."""
    try:
        scene = stage.scene()
        seen = scene.suffer(fault.name, lambda: fault.act(scene, fault.short))
        assert promises_broken(seen) == []
    except BaseException:
        stage.clear()
        raise
    return seen


def test_jobs_of_a_killed_worker_are_back_within_a_lease_a_look_and_a_second(stage: Stage) -> None:
    """Counted from the kill: its lease, the quarter of one after which others look again, and a second for a busy host.

    So `RESCUE`, by which `promises_broken` judges; and all of the test above.
    """
    kill = FAULTS["a worker is killed"]
    assert kill.rescued_within == LEASE * 1.25 + 1
    for _ in range(5):  # it may have had no job just then
        if suffer(stage, kill).rescued_in is not None:
            return
    pytest.fail("no worker that was killed had a job")

"""Bad days on purpose, under load: three workers, and a producer that never stops. `nox -s faults` has the long ones.

The faults share a scene, one after the other, each from a calm beginning; a scene that was left broken is built anew.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.__main__ import promises_broken
from tests.faults.faults import FAULTS, Fault
from tests.faults.scene import LEASE, Scene

SEED = 20_261_121

pytestmark = pytest.mark.slow


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
    """The auditor is content, every job ends, jobs end as fast as before within 5 s, and memory is bounded."""
    if missing := fault.needs():
        pytest.skip(missing)
    try:
        scene = stage.scene()
        seen = scene.suffer(fault.name, lambda: fault.act(scene, fault.short))
        assert promises_broken(seen) == []
        assert seen.committed > 0
    except BaseException:
        stage.clear()
        raise


def test_jobs_of_a_killed_worker_are_back_within_a_lease(stage: Stage) -> None:
    """Counted from the kill: a lease, and the quarter of it in which others look for such jobs; once more for a busy host."""
    scene = stage.scene()
    kill = FAULTS["a worker is killed"]
    for _ in range(5):  # it may have had no job just then
        seen = scene.suffer(kill.name, lambda: kill.act(scene, 0.0))
        assert promises_broken(seen) == []
        if seen.rescued_in is not None:
            assert seen.rescued_in < LEASE * 1.25 * 2
            return
    pytest.fail("no worker that was killed had a job")

"""The scene sees what a fault does: to jobs that were there before it, and to each single worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.__main__ import promises_broken
from tests.faults.scene import Scene

pytestmark = pytest.mark.slow


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Scene(seed=3) as scene:
        yield scene


def test_what_happens_to_jobs_that_were_there_before_a_fault_is_seen(scene: Scene) -> None:
    """Jobs vanish that were queued or running when it began, and others that had ended have their effects twice."""
    seen = scene.suffer("jobs in flight vanish", lambda: vanish(scene))
    rules = {finding.split(":")[0] for finding in promises_broken(seen)}
    assert {"committed_jobs_end", "session_effects_happen_once"} <= rules
    assert seen.finished < seen.committed
    assert set(seen.findings) <= set(scene.finish())


def vanish(scene: Scene) -> None:
    """A loss that no queue could make good."""
    gone = scene.ask("DELETE FROM sa_jobqueue.job WHERE status IN ('queued', 'running') RETURNING id")
    doubled = scene.ask(
        "INSERT INTO audit.effect (job_id, claims, key, pid, xid) SELECT job_id, claims, key, pid, xid FROM audit.effect "
        "WHERE job_id IN (SELECT id FROM sa_jobqueue.job WHERE status = 'completed') RETURNING id"
    )
    assert gone
    assert doubled

"""Nothing is lost, nothing is run by two, and what workers count is what happened, although connections break, networks fail and the server dies under them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.faults.faults import FAULTS
from tests.faults.scene import PROCESSES, Scene

pytestmark = pytest.mark.slow

#: In none of them a worker is killed: what such a one counted since it last wrote, 10 s before at most, dies with it.
SUFFERED = [
    "connections are terminated at random",
    "the network goes silent and comes back",
    "the postmaster is killed",
]
#: For nights.
ALSO = [
    "a worker sleeps past its lease and wakes",
    "connections are terminated in mid-transaction",
    "the network resets connections",
]
COUNTED = ("completed", "retried", "failed", "cancelled", "rescued")

#: What the observer saw of each claim that ended. A retry keeps the attempt that its claim has counted; what was snoozed or given back
#: does not.
_HAPPENED = """
    SELECT CASE
        WHEN step.now IS NULL THEN 'completed'
        WHEN step.now <> 'queued' THEN step.now
        WHEN step.rescues > step.rescues_was AND step.error = 'WorkerLost' THEN 'rescued'
        WHEN step.rescues > step.rescues_was THEN 'released'
        WHEN step.attempt = claim.attempt THEN 'retried'
        ELSE 'snoozed or released' END AS what
    FROM audit.history AS step JOIN audit.history AS claim
    ON claim.job_id = step.job_id AND claim.token = step.token AND claim.now = 'running' AND claim.was = 'queued'
    WHERE step.was = 'running' AND (step.now IS NULL OR step.now <> 'running')
    UNION ALL
    SELECT now FROM audit.history WHERE was = 'queued' AND now IN ('cancelled', 'failed') AND error IN ('Expired', 'DeadlineOver')
"""


@pytest.mark.nightly
def test_every_outcome_is_counted_once_whatever_breaks() -> None:
    """The sums of `stat` are those of the observer, which is in each transaction that changes a job. All jobs end, the auditor
    finds nothing, and every worker claims again.
    """
    with Scene(seed=7) as scene:
        for name in [*ALSO, *SUFFERED]:
            fault = FAULTS[name]
            if missing := fault.needs():
                pytest.skip(missing)
            seen = scene.suffer(name, lambda fault=fault: fault.act(scene, fault.short))  # type: ignore[misc]
            assert (seen.findings, seen.finished, len(seen.workers)) == ([], seen.committed, PROCESSES), name
            assert all(worker.after is not None for worker in seen.workers), name
        assert scene.finish() == []
        happened = Counter(str(what) for (what,) in scene.ask(_HAPPENED))
        sums = ", ".join(f"sum({name})::bigint" for name in (*COUNTED, "lost"))
        ((*counted, lost),) = scene.ask(f"SELECT {sums} FROM sa_jobqueue.stat")
    missing = {name: happened[name] - number for name, number in zip(COUNTED, counted, strict=True)}
    # A retry whose commit was not answered is counted as lost if another worker has the job before this one can ask.
    assert (min(missing.values()), missing | {"retried": 0}) == (0, dict.fromkeys(COUNTED, 0)), missing
    assert missing["retried"] <= lost
    assert all(happened[name] for name in ("completed", "retried", "failed"))

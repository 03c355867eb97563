"""The scene sees what a fault does to jobs that were there before it, and to each worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import create_engine

from tests.faults.__main__ import BEGIN, END, main, promises_broken
from tests.faults.faults import PROMISE
from tests.faults.scene import DATABASE, Observed, Resumed, Scene
from tests.faults.workflow_mutants import mutate
from tests.support.waiting import wait_until


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Scene(seed=3) as scene:
        yield scene


@pytest.mark.nightly
def test_what_happens_to_jobs_that_were_there_before_a_fault_is_seen(scene: Scene) -> None:
    """Jobs vanish that were queued or running when it began, and others that had ended have their effects twice."""
    seen = scene.suffer("jobs in flight vanish", lambda: vanish(scene))
    rules = {finding.split(":")[0] for finding in promises_broken(seen)}
    assert {"committed_jobs_end", "session_effects_happen_once", "workflows_are_there_as_a_whole"} <= rules
    assert seen.finished < seen.committed
    assert set(seen.findings) <= set(scene.finish())


def vanish(scene: Scene) -> None:
    """A loss that no queue can repair: of jobs, and of workflows, whose members that have ended stay."""
    lose = """
        WITH flows AS (DELETE FROM sa_jobqueue.workflow WHERE finished_at IS NULL RETURNING id),
        events AS (DELETE FROM sa_jobqueue.workflow_event WHERE workflow_id IN (SELECT id FROM flows)),
        gone AS (DELETE FROM sa_jobqueue.job WHERE status IN ('queued', 'blocked', 'running') RETURNING id)
        SELECT (SELECT count(*) FROM flows), (SELECT count(*) FROM gone)
    """
    wait_until(lambda: all(scene.ask(lose)[0]), message="a workflow that goes on, to be lost")
    # Their keys go with them: a key left behind is a finding only until another job takes it.
    scene.ask(
        "DELETE FROM sa_jobqueue.unique_key AS k WHERE NOT EXISTS "
        "(SELECT FROM sa_jobqueue.job AS j WHERE j.id = k.job_id) RETURNING k.job_id"
    )
    doubled = scene.ask(
        "INSERT INTO audit.effect (job_id, token, key, pid, xid) SELECT job_id, token, key, pid, xid FROM audit.effect "
        "WHERE job_id IN (SELECT id FROM sa_jobqueue.job WHERE status = 'completed') RETURNING id"
    )
    assert doubled


@pytest.mark.nightly
def test_an_end_that_was_not_told_is_found_although_workers_have_mended_it(scene: Scene) -> None:
    """In the rows all is well then: workers say what they have mended, and the auditor reads that."""
    engine = create_engine(scene.server.url(DATABASE))
    with engine.begin() as connection:
        mutate(connection, "says nothing of a handler's commit")
    engine.dispose()
    wait_until(lambda: scene.evidence().mended, timeout=90)
    assert "no_end_is_told_late" in {line.split(":")[0] for line in scene.finish()}


@pytest.mark.nightly
def test_workers_that_do_not_come_back_break_a_promise(scene: Scene) -> None:
    """Two of three stay frozen. All three processes are there, and the third one does the work of all."""
    frozen: list[psutil.Process] = []

    def freeze() -> None:
        frozen.extend(scene.workers()[:2])
        for worker in frozen:
            worker.suspend()

    seen = scene.suffer("two workers never wake", freeze, patience=PROMISE + 0.5)
    silent = [what for what in promises_broken(seen) if what.startswith("silent")]
    first, second = sorted(worker.pid for worker in frozen)
    assert [what.split(":")[0] for what in silent] == [f"silent worker {first}", f"silent worker {second}"]


WELL = Observed(
    fault="a worker is killed", lasted=0.1, committed=20, finished=20, back=0.5, ticking=1.1, gap=0.3, rescued=2, rescued_in=2.4, overdue=0.4, duplicates=1,
    memory=80 * 2**20, workers=[Resumed(1, 0.2, new=False), Resumed(2, 4.9, new=False), Resumed(3, 6.9, new=True)], findings=[],
)  # fmt: skip


def test_what_went_well_breaks_no_promise() -> None:
    """All came to an end, all workers claim again, and a dead worker's jobs are back in time."""
    assert promises_broken(WELL) == []


@pytest.mark.parametrize(
    ("said", "change"),
    [
        ("came to no end", {"finished": 19}),
        ("the throughput was back after None s", {"back": None}),
        ("the throughput was back after 5.1 s", {"back": 5.1}),
        ("ticks of schedules were late for 5.1 s", {"ticking": 5.1}),
        ("ticks of schedules were late for None s", {"ticking": None}),
        ("not whole", {"workers": WELL.workers[:2]}),
        ("silent worker 3", {"workers": [*WELL.workers[:2], Resumed(3, None, new=True)]}),
        ("silent worker 3", {"workers": [*WELL.workers[:2], Resumed(3, 7.1, new=True)]}),
        ("silent worker 3", {"workers": [*WELL.workers[:2], Resumed(3, 5.1, new=False)]}),
        ("jobs of a dead worker were back after 3.6 s", {"rescued_in": 3.6}),
        ("a job was rescued 1.6 s after its lease had run out", {"fault": "idle sessions are ended", "overdue": 1.6}),
        ("bytes resident", {"memory": 2**30}),
        ("a rule", {"findings": ["a rule: that was broken"]}),
    ],
)
def test_each_promise_can_be_broken(said: str, change: dict[str, Any]) -> None:
    """One thing differs from a good run; that promise is named, and no other."""
    (broken,) = promises_broken(replace(WELL, **change))
    assert said in broken


@pytest.mark.parametrize("broken", [[], ["a worker is killed: not whole"]])
def test_what_was_seen_is_written_into_a_page(tmp_path: Path, broken: list[str]) -> None:
    """The table and what was not as promised, between the markers; the rest of the page stays."""
    page, source = tmp_path / "page.md", tmp_path / "seen.json"
    page.write_text(f"before\n\n{BEGIN}\n\nold\n\n{END}\n\nafter\n")
    seen = {
        "date": "2026-11-21",
        "server": "18.4",
        "seed": 7,
        "seconds": 60.0,
        "seen": [asdict(WELL)],
        "broken": broken,
    }
    source.write_text(json.dumps(seen))
    assert main(["--from", str(source), "--write", str(page)]) == len(broken)
    written = page.read_text()
    assert "`--seed 7 --faults-seconds 60`" in written
    assert "| a worker is killed | 0.1 s | 20 of 20 | 0.5 s | 0.3 s | 2 | 1 |\n" in written
    assert ("no promise was broken" in written) == (not broken)
    assert all(f"- {what}\n" in written for what in broken)
    assert "old" not in written
    assert written.startswith("before\n")
    assert written.endswith("\nafter\n")

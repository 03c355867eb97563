"""The auditor finds defects of durable steps and signals, in evidence made by hand and in workers that are broken on purpose."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from tests.faults import audited_steps as rules
from tests.faults import evidence, mutants, workload
from tests.faults.auditor import audit
from tests.faults.evidence import Evidence, Recorded, Row, Said, Signalled, Step
from tests.faults.test_auditor import rules_broken, work
from tests.faults.workload import SENT, SHIP, Fate
from tests.support.nightly import nightly_sets
from tests.support.waiting import wait_until

# ---- by hand: a job that waits for the signal of another


def changes(key: str, *lived: tuple[int, str, str | None, str, int, int]) -> list[Step]:
    """Changes of a job: (n, xid, was, now, claims, token)."""
    return [
        Step(key, n, 100.0 + n, xid, was, None, None, None, now, claims, 0, token=token)
        for n, xid, was, now, claims, token in lived
    ]


STEPS = [
    *changes("k", (1, "1", None, "queued", 0, 0), (3, "2", "queued", "running", 1, 1), (6, "5", "running", "blocked", 1, 1),
             (10, "8", "blocked", "queued", 1, 1), (11, "9", "queued", "running", 2, 2), (14, "12", "running", "completed", 2, 2)),
    *changes("k" + SENT, (2, "1", None, "queued", 0, 0), (7, "6", "queued", "running", 1, 3), (9, "7", "running", "completed", 1, 3)),
]  # fmt: skip
RECORDED = [
    Recorded("k", 4, "3", "outside", "step", 1),
    Recorded("k", 5, "4", "inside", "step", 1),
    Recorded("k", 12, "10", "signal:go:k", "signal", 2),
    Recorded("k", 13, "11", "sleep", "sleep", 2),
]
SIGNALS = [Signalled(1, 8, "7", "go:k", True), Signalled(1, 12, "10", "go:k", False)]
ROW = Row("k", 1, SHIP, "completed", 2, 1, 20, 0, False)
STEPPED = Said("k", "stepped", 1, 7, 103.5)
WELL = Evidence(
    {"k": Fate.COMMITTED}, [ROW], STEPS, said=[STEPPED], recorded=RECORDED, step_effects=[("k", "4")], signals=SIGNALS
)


def found(given: Evidence) -> set[str]:
    """The broken rules of steps."""
    return {finding.rule for finding in audit(given)} & rules.RULES.keys()


def with_record(place: int, **changed: object) -> Evidence:
    """The good evidence, with another record at this place."""
    records = [step._replace(**changed) if at == place else step for at, step in enumerate(RECORDED)]
    return replace(WELL, recorded=records)


CASES: list[tuple[Callable[..., object], Evidence]] = [
    (rules.steps_are_recorded_once, replace(WELL, recorded=[*RECORDED, RECORDED[0]])),
    (rules.steps_are_recorded_once, replace(WELL, recorded=RECORDED[:3])),
    (rules.steps_are_recorded_by_valid_claims, with_record(0, token=2)),
    (rules.steps_are_recorded_by_valid_claims, with_record(3, n=15)),
    (rules.steps_are_recorded_by_valid_claims, with_record(1, n=6.5)),
    (rules.recorded_steps_are_not_run_again, replace(WELL, said=[STEPPED, STEPPED._replace(token=2)])),
    (rules.recorded_steps_are_not_run_again, replace(WELL, said=[])),
    (rules.blocks_commit_with_their_steps, replace(WELL, step_effects=[("k", "4"), ("k", "9")])),
    (rules.blocks_commit_with_their_steps, replace(WELL, step_effects=[])),
    (rules.blocks_commit_with_their_steps, replace(WELL, step_effects=[("k", "5")])),
    (rules.signals_come_with_their_sender, replace(WELL, signals=[SIGNALS[0]._replace(xid="6"), SIGNALS[1]])),
    (rules.signals_come_with_their_sender, replace(WELL, signals=[*SIGNALS, SIGNALS[0]._replace(id=2)])),
    (rules.signals_are_taken_once, replace(WELL, signals=[SIGNALS[0]._replace(n=13), SIGNALS[1]])),
    (rules.signals_are_taken_once, replace(WELL, signals=[*SIGNALS, SIGNALS[1]])),
    (rules.signals_are_taken_once, replace(WELL, signals=SIGNALS[:1])),
    (rules.signals_are_taken_once, with_record(2, xid="11")),
]


@pytest.mark.parametrize(("rule", "given"), CASES)
def test_each_rule_finds_what_breaks_it(rule: Callable[..., object], given: Evidence) -> None:
    """It finds nothing in good evidence."""
    assert found(WELL) == set()
    assert rule.__name__ in found(given)


def test_no_rule_is_without_an_example() -> None:
    """Each has a case above."""
    assert {rule.__name__ for rule, _ in CASES} == set(rules.RULES)


# ---- workers that were broken on purpose


@pytest.fixture
def engine(database_url: str) -> Engine:
    """An engine on a database with the audit's tables."""
    workload.prepare(database_url)
    return create_engine(database_url)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "broken"),
    [
        *nightly_sets((None, set()), (mutants.take_signals_early.__name__, {"signals_are_taken_once"})),
        *nightly_sets((mutants.commit_blocks_first.__name__, {"blocks_commit_with_their_steps"})),
        *nightly_sets((mutants.record_without_the_fence.__name__, {"steps_are_recorded_by_valid_claims"})),
    ],
)
def test_what_is_broken_on_purpose_is_caught(
    engine: Engine, database_url: str, tmp_path: Path, mutant: str | None, broken: set[str]
) -> None:
    """A worker freezes inside blocks of steps, another worker takes its jobs, and the first worker wakes. Then the signals are sent."""
    keys = [f"k{n}" for n in range(4)]
    fates = dict.fromkeys((name for key in keys for name in (key, key + SENT)), Fate.COMMITTED)
    with Session(engine) as session:
        session.add_all(workload.job(workload.ship, key, 2.0) for key in keys)
        session.commit()
    with ExitStack() as stack:
        (zombie,) = work(stack, database_url, tmp_path, mutant, 1)
        wait_until(lambda: sum(line.what == "stepped" for line in evidence.read_words(tmp_path)) == 4)
        zombie.send(signal.SIGSTOP)
        work(stack, database_url, tmp_path, mutant, 1)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            again = text("SELECT count(*) FROM sa_jobqueue.job WHERE claims > 1")
            wait_until(lambda: connection.scalar(again) == 4)
            zombie.send(signal.SIGCONT)
            blocked = text("SELECT count(*) FROM sa_jobqueue.job WHERE status = 'blocked'")
            wait_until(lambda: connection.scalar(blocked) == 4)
        with Session(engine) as session:
            session.add_all(workload.job(workload.send, key + SENT, 0.1) for key in keys)
            session.commit()
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            live = text("SELECT count(*) FROM sa_jobqueue.job WHERE status IN ('queued', 'blocked', 'running')")
            # A stale record deletes the wait of the job's next run. Then the job is never put back.
            wait_until(lambda: connection.scalar(live) == 0 or broken & rules_broken(engine, tmp_path, fates), 60)
        found = rules_broken(engine, tmp_path, fates)
    assert broken <= found
    assert bool(found) == bool(broken)

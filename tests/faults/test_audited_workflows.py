"""The auditor sees what goes wrong with workflows: in rows made by hand, and in what is broken on purpose."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from sa_jobqueue.rules import lifecycle
from tests.faults import audited_workflows as rules
from tests.faults import mutants, workflow_mutants, workload
from tests.faults.auditor import audit
from tests.faults.evidence import Evidence, Flow, Row, Step, collect
from tests.faults.planned import Plan, draw
from tests.faults.workload import Fate
from tests.support import pooler
from tests.support.nightly import nightly_sets
from tests.support.waiting import wait_until
from tests.support.working import working

# ---- by hand

# The third waits for the first two and runs although the second fails, the fourth is cancelled for that; the fifth needs one of two.
PLAN = Plan(
    "w",
    {"w/0": "ok", "w/1": "fail", "w/2": "ok", "w/3": "ok", "w/4": "ok"},
    [
        ("w/2", "w/0", "cancel"),
        ("w/2", "w/1", "run"),
        ("w/3", "w/1", "cancel"),
        ("w/4", "w/0", "count"),
        ("w/4", "w/1", "count"),
    ],
    {"w/4": 1},
)
SIZES = (5, 1, 3)


def steps(*lived: str) -> list[Step]:
    """Steps in this order, each as "key: was now"; "-" is for a job that is not there."""
    found = []
    for n, line in enumerate(lived, 1):
        key, was, now = line.replace(":", "").split()
        found.append(Step(key, n, 100.0 + n, str(n), None if was == "-" else was, 0, 0, None, now, 0, 0))
    return found


LIVED = (
    "w/0: - queued", "w/1: - queued", "w/2: - blocked", "w/3: - blocked", "w/4: - blocked",
    "w/0: queued running", "w/0: running completed", "w/4: blocked queued", "w/4: queued running", "w/4: running completed",
    "w/1: queued running", "w/1: running failed", "w/failure: - queued", "w/2: blocked queued", "w/3: blocked cancelled",
    "w/2: queued running", "w/2: running completed", "w/end: - queued",
)  # fmt: skip
ENDS = {"w/0": "completed", "w/1": "failed", "w/2": "completed", "w/3": "cancelled", "w/4": "completed"}
ROWS = [Row(key, n, "t", end, 1, 1, 20, 0, False) for n, (key, end) in enumerate(ENDS.items(), 1)]
FLOW = Flow("w", 1, "failed", True, 0, SIZES)
WELL = Evidence(dict.fromkeys(PLAN.keys, Fate.COMMITTED), ROWS, steps(*LIVED), plans=[PLAN], workflows=[FLOW])
UNKNOWN, ROLLED_BACK = (dict.fromkeys(PLAN.keys, fate) for fate in (Fate.UNKNOWN, Fate.ROLLED_BACK))
NOTHING = replace(WELL, fates=UNKNOWN, rows=[], steps=[], workflows=[])


def relived(*, without: str = "", **after: str) -> Evidence:
    """The same, but for one step; or with steps that come after others: each is given by the place of the one before it, `_7`."""
    lived = [(float(place), line) for place, line in enumerate(LIVED, 1) if line != without]
    lived += [(float(place.strip("_")) + 0.5, line) for place, line in after.items()]
    return replace(WELL, steps=steps(*(line for _, line in sorted(lived))))


def found(given: Evidence) -> set[str]:
    """The rules of workflows that are broken."""
    return {finding.rule for finding in audit(given)} & rules.RULES.keys()


def test_a_workflow_that_went_well_gives_no_finding() -> None:
    """Nor does one that was lost as a whole, or is there although its producer does not know it."""
    assert PLAN.ends == ENDS
    assert set(PLAN.keys) == {*ENDS, "w/failure", "w/end"}
    for given in (WELL, replace(WELL, fates=UNKNOWN), NOTHING, replace(NOTHING, fates=ROLLED_BACK)):
        assert found(given) == set()


@pytest.mark.parametrize(
    ("rule", "given"),
    [
        (rules.members_end_as_planned, replace(WELL, rows=[*ROWS[:4], ROWS[4]._replace(status="cancelled")])),
        (rules.members_end_as_planned, replace(WELL, rows=[ROWS[0]._replace(status="running"), *ROWS[1:]])),
        (rules.workflows_are_there_as_a_whole, replace(NOTHING, fates=WELL.fates)),
        (rules.workflows_are_there_as_a_whole, replace(WELL, fates=ROLLED_BACK)),
        (rules.workflows_are_there_as_a_whole, replace(WELL, fates=UNKNOWN, rows=ROWS[1:])),
        (rules.workflows_are_there_as_a_whole, replace(NOTHING, workflows=[FLOW])),
        (rules.workflows_are_there_as_a_whole, replace(NOTHING, steps=steps("w/end: - queued"))),
        (rules.workflows_are_there_as_a_whole, replace(WELL, workflows=[FLOW, FLOW._replace(id=2)])),
        (rules.workflows_are_there_as_a_whole, replace(WELL, workflows=[FLOW._replace(sizes=(4, 1, 3))])),
        # Before one parent has ended, though another has; before any; before one that could still suffice has ended; without a reason.
        (
            rules.members_wait_for_what_they_depend_on,
            relived(without="w/2: blocked queued", _11="w/2: blocked queued"),
        ),
        (rules.members_wait_for_what_they_depend_on, relived(without="w/2: blocked queued", _5="w/2: blocked queued")),
        (rules.members_wait_for_what_they_depend_on, relived(without="w/4: blocked queued", _5="w/4: blocked queued")),
        (
            rules.members_wait_for_what_they_depend_on,
            relived(without="w/3: blocked cancelled", _14="w/3: blocked queued"),
        ),
        (
            rules.members_wait_for_what_they_depend_on,
            relived(without="w/3: blocked cancelled", _10="w/3: blocked cancelled"),
        ),
        (
            rules.members_wait_for_what_they_depend_on,
            relived(without="w/4: blocked queued", _6="w/4: blocked cancelled"),
        ),
        (rules.members_wait_for_what_they_depend_on, relived(without="w/2: - blocked", _3="w/2: - queued")),
        (rules.members_wait_for_what_they_depend_on, relived(without="w/0: - queued", _0="w/0: - blocked")),
        (rules.callbacks_come_once, relived(_18="w/end: - queued")),
        (rules.callbacks_come_once, relived(_18="w/success: - queued")),
        (rules.callbacks_come_once, relived(without="w/failure: - queued")),
        (rules.callbacks_come_once, relived(without="w/failure: - queued", _11="w/failure: - queued")),
        (rules.callbacks_come_once, relived(without="w/end: - queued", _16="w/end: - queued")),
        (rules.workflows_come_to_rest, replace(WELL, workflows=[FLOW._replace(finished=False, status="running")])),
        (rules.workflows_come_to_rest, replace(WELL, workflows=[FLOW._replace(status="completed")])),
        (rules.workflows_come_to_rest, replace(WELL, workflows=[FLOW._replace(events=1)])),
        (rules.workflows_come_to_rest, replace(WELL, rows=[*ROWS[:3], ROWS[3]._replace(status="blocked"), ROWS[4]])),
        (rules.no_end_is_told_late, replace(WELL, mended=["jobs of workflows had ended without saying so: 1"])),
    ],
)
def test_each_rule_finds_what_breaks_it(rule: Callable[..., object], given: Evidence) -> None:
    """One thing is changed in the evidence of a workflow that went well, and the rule finds it."""
    assert rule.__name__ in found(given)


def test_no_rule_is_without_an_example() -> None:
    """Each rule has a case above."""
    (cases,) = (mark for mark in test_each_rule_finds_what_breaks_it.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
    assert {rule.__name__ for rule, _ in cases.args[1]} == set(rules.RULES)


def test_a_part_of_the_evidence_has_whole_workflows() -> None:
    """With the key of a member comes its plan, and what the workflow calls back, whether that was to come or not."""
    twice = relived(_18="w/success: - queued")
    assert found(twice.of(PLAN.keys)) == {rules.callbacks_come_once.__name__}
    assert twice.of(["k"]).plans == []


# ---- broken on purpose


@pytest.fixture
def engine(database_url: str) -> Engine:
    """An engine on a database with the audit's tables; past the pooler, if the worker is behind one."""
    url = pooler.direct(database_url)
    workload.prepare(url)
    return create_engine(url)


def rules_broken(engine: Engine, worker_url: str, folder: Path, *, seed: int, number: int) -> set[str]:
    """Enqueue this many workflows, wait until nothing is due and no event is unread, and say which rules the auditor found broken."""
    chosen = random.Random(seed)
    drawn = [draw(chosen, f"w{n}") for n in range(number)]
    with Session(engine) as session:
        session.add_all([workflow for _, workflow in drawn])
        session.commit()
    # A job's end and its event come together, and so do the end of an event and what it releases: when this is so, it stays so.
    rests = (
        "SELECT NOT EXISTS (SELECT FROM sa_jobqueue.job WHERE status IN ('queued', 'running')) "
        "AND NOT EXISTS (SELECT FROM sa_jobqueue.workflow_event)"
    )
    # What was lost is mended after a while; not here.
    with (
        working(worker_url, workload.registry, queues={"default": 8}, prune_every=86_400.0),
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
    ):
        wait_until(lambda: connection.exec_driver_sql(rests).scalar(), timeout=60, message="rest")
    plans = [plan for plan, _ in drawn]
    fates = {key: Fate.COMMITTED for plan in plans for key in plan.keys}
    findings = audit(collect(engine.url.render_as_string(False), folder, fates, plans=plans))
    engine.dispose()
    print(*findings[:5], sep="\n")
    return {finding.rule for finding in findings}


NUMBER = 12
"""Of workflows: with these, a release that looks at nothing gives a dozen findings, as it did in November 2026."""


@pytest.mark.parametrize(
    ("mutant", "broken"),
    [
        ("calls back twice", {"callbacks_come_once"}),
        *nightly_sets(
            (None, set()),
            (
                mutants.forget_the_workflow.__name__,
                {"workflows_come_to_rest", "members_end_as_planned", "callbacks_come_once"},
            ),
            ("releases without a look at the other parents", {"members_wait_for_what_they_depend_on"}),
        ),
    ],
)
def test_what_is_broken_on_purpose_is_caught(
    engine: Engine,
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mutant: str | None,
    broken: set[str],
) -> None:
    """A worker of this process, with the workload's own tasks; what is not broken gives no finding."""
    monkeypatch.setenv(workload.FOLDER, str(tmp_path))
    if mutant in mutants.MUTATIONS:
        monkeypatch.setattr(lifecycle, "extra", lifecycle.extra)  # as it is now, again at the end
        mutants.MUTATIONS[mutant]()
    elif mutant is not None:
        with engine.begin() as connection:
            workflow_mutants.mutate(connection, mutant)
    found = rules_broken(engine, database_url, tmp_path, seed=5, number=NUMBER)
    assert broken <= found
    assert bool(found) == bool(broken)

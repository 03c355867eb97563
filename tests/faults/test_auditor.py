"""The auditor sees what it is for: in rows made by hand, and in what workers do whose code was broken on purpose."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import Unique
from tests.faults import audited_steps, audited_workflows, auditor, evidence, mutants, workload
from tests.faults.auditor import Finding, audit
from tests.faults.evidence import Evidence, Held, Row, Said, Step, Tick, Ticking, Written, collect
from tests.faults.workload import Fate
from tests.support.commands import Command, start_command
from tests.support.nightly import nightly_sets
from tests.support.waiting import wait_until
from tests.support.working import long_healthy

# ---- by hand

MADE = Step("k", 1, 100.0, "1", None, None, None, None, "queued", 0, 0, 0)
TAKEN = Step("k", 2, 101.0, "2", "queued", 0, 0, None, "running", 1, 0, 1, token=1)
ENDED = Step("k", 3, 102.0, "3", "running", 1, 0, 103.0, "completed", 1, 0, 1, token=1)
RESCUED = Step("k", 3, 104.0, "3", "running", 1, 0, 103.0, "queued", 1, 1, 0, token=1)
AGAIN = Step("k", 4, 105.0, "4", "queued", 1, 1, None, "running", 2, 1, 1, token=2)
ROW = Row("k", 1, "tests.faults.workload.write", "completed", 1, 1, 20, 0, False)
EFFECT = Written("k", 1, "3")
BEGAN, DID = Said("k", "began", 1, 7, 101.1), Said("k", "did", 1, 7, 101.9)
WELL = Evidence({"k": Fate.COMMITTED}, [ROW], [MADE, TAKEN, ENDED], [EFFECT], [BEGAN, DID])


# A unique job, its duplicate, and the next job with the key.
UNIQUE = {"unique": "u", "scope": "started", "created_at": 100.0}
HOLDER = ROW._replace(finished_at=102.0, **UNIQUE)
DUPLICATE = ROW._replace(
    key="d", id=2, status="cancelled", claims=0, attempt=0, duplicate_of=1, finished_at=101.5, **UNIQUE
)
NEXT = ROW._replace(key="l", id=3, status="queued", claims=0, attempt=0, **UNIQUE)
MADE_DUPLICATE = Step("d", 10, 101.5, "4", None, None, None, None, "cancelled", 0, 0, 0)
MADE_NEXT = MADE._replace(key="l", n=11, at=103.0)
KEYED = replace(
    WELL,
    fates=dict.fromkeys("kd", Fate.COMMITTED) | {"l": Fate.UNKNOWN},
    rows=[HOLDER, DUPLICATE],
    steps=[MADE, TAKEN._replace(n=20), ENDED._replace(n=30), MADE_DUPLICATE],
    said=[BEGAN._replace(at=101.6), DID],
)
HELD = Held("u", 3, False)


# A schedule with a tick a second, from 100 on, and the jobs of the first three.
TICKING = Ticking("s", 1.0, 100.0, 103.0, "allow", None, 0)
TICKS = [Tick("s", f"s@{n}", 100.0 + n, 1, 100.0 + n) for n in range(3)]
TICKED = Evidence({}, schedules=[TICKING], ticks=TICKS)


def ticked(ticks: list[Tick], **changes: Any) -> Evidence:
    """These jobs, of a schedule that is as above but for some things."""
    return replace(TICKED, schedules=[TICKING._replace(**changes)], ticks=ticks)


def lived(given: Evidence, *until: float) -> Evidence:
    """The jobs of the ticks were made in time, and ended at these times."""
    keys = [tick.key for tick in given.ticks]
    order = sorted(
        [(at, 1, key) for key, at in zip(keys, until, strict=True)]
        + [(tick.made_at, 0, tick.key) for tick in given.ticks]
    )
    steps = [
        (ENDED if ended else MADE)._replace(key=key, n=n, at=at) for n, (at, ended, key) in enumerate(order)
    ]  # fmt: skip
    return replace(given, steps=steps)


SKIPPED = lived(ticked([TICKS[0], TICKS[2]], overlap="skip", left_out=1), 101.5, 102.5)


def test_ticks_that_went_well_give_no_finding() -> None:
    """Each has a job; or one stands for several; or they are left out for a reason."""
    rules = {rule.__name__ for rule in TICK_RULES}
    for given in (
        TICKED,
        ticked([TICKS[2]._replace(number=3)]),
        ticked([TICKS[0], TICKS[2]._replace(made_at=104.5)], catch_up=3.0, left_out=1),
        SKIPPED,
        lived(ticked(TICKS, overlap="queue_one"), 100.5, 101.5, 102.5),
    ):
        assert [finding for finding in audit(given) if finding.rule in rules] == []


TICK_RULES = (auditor.each_tick_has_one_job, auditor.no_tick_is_lost, auditor.jobs_of_a_schedule_do_not_overlap)


def test_late_jobs_that_went_well_give_no_finding() -> None:
    """They began in time, or were begun once; or were not begun, and ended as they should."""
    assert audit(replace(WELL, rows=[ROW._replace(expires_at=101.2, deadline_at=101.2)])) == []
    expired = ROW._replace(status="cancelled", error="Expired", expires_at=101.0, finished_at=102.0, attempt=0)
    assert audit(Evidence(WELL.fates, [expired], [MADE])) == []
    overdue = expired._replace(status="failed", error="DeadlineOver", expires_at=None, deadline_at=101.0)
    assert audit(Evidence(WELL.fates, [overdue], [MADE])) == []


def rescoped(given: Evidence, scope: str, period: float | None = None) -> Evidence:
    """The same with another rule in all unique jobs."""
    return replace(given, rows=[row._replace(scope=scope, period=period) for row in given.rows])


def followed(given: Evidence, made: Step) -> Evidence:
    """And then another job got the key, and ended."""
    steps = [
        made,
        TAKEN._replace(key="l", n=40, at=110.0, token=5),
        ENDED._replace(key="l", n=41, at=111.0, token=5, xid="9"),
    ]
    row = NEXT._replace(status="completed", claims=1, attempt=1, created_at=made.at, finished_at=111.0)
    return replace(
        given,
        rows=[*given.rows, row],
        steps=[*given.steps, *steps],
        effects=[*given.effects, Written("l", 5, "9")],
        said=[*given.said, Said("l", "began", 5, 7, 110.1), Said("l", "did", 5, 7, 110.2)],
    )


def test_unique_jobs_that_went_well_give_no_finding() -> None:
    """A duplicate while the key is taken, and another holder when it is free again: of each scope."""
    assert audit(KEYED) == []
    assert audit(followed(KEYED, MADE_NEXT._replace(n=31))) == []
    assert audit(rescoped(followed(KEYED, MADE_NEXT._replace(n=21, at=101.7)), "queued")) == []
    assert audit(rescoped(followed(KEYED, MADE_NEXT._replace(n=31, at=107.0)), "finished", 5.0)) == []
    assert audit(rescoped(followed(KEYED, MADE_NEXT._replace(n=25, at=101.7)), "window", 1.7)) == []


def test_a_job_that_went_well_gives_no_finding() -> None:
    """Nor does one that was rescued and run once more, with its effect outside the database done twice."""
    assert audit(WELL) == []
    end = ENDED._replace(n=5, at=106.0, claims_was=2, rescues_was=1, claims=2, rescues=1, lease_was=107.0, token=2)
    twice = replace(
        WELL,
        rows=[ROW._replace(claims=2, rescues=1)],
        steps=[MADE, TAKEN, RESCUED, AGAIN, end],
        effects=[EFFECT._replace(token=2)],
        said=[BEGAN, DID, BEGAN._replace(token=2, at=105.1), DID._replace(token=2, at=105.9)],
    )
    assert audit(twice) == []
    interrupted = RESCUED._replace(at=102.0, error="Interrupted")  # its own worker left
    assert audit(replace(twice, steps=[MADE, TAKEN, interrupted, AGAIN, end])) == []
    assert [twice.duplicates(since) for since in (0.0, 105.9, 106.0)] == [1, 1, 0]


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        (auditor.committed_jobs_end, lambda w: replace(w, rows=[ROW._replace(status="queued")])),
        (auditor.committed_jobs_end, lambda w: replace(w, rows=[ROW._replace(status="failed")])),
        (auditor.committed_jobs_end, lambda w: Evidence(w.fates)),
        (auditor.rolled_back_jobs_never_run, lambda w: replace(w, fates={"k": Fate.ROLLED_BACK})),
        (auditor.rolled_back_jobs_never_run, lambda w: Evidence({"k": Fate.ROLLED_BACK}, said=[BEGAN])),
        (auditor.one_claim_is_valid, lambda w: replace(w, steps=[MADE, TAKEN, AGAIN._replace(was="running"), ENDED])),
        (auditor.one_claim_is_valid, lambda w: replace(w, steps=[MADE, TAKEN._replace(claims=0), ENDED])),
        (auditor.one_claim_is_valid, lambda w: replace(w, steps=[MADE, ENDED])),
        (auditor.one_claim_is_valid, lambda w: replace(w, steps=[*w.steps, AGAIN._replace(was="completed")])),
        (auditor.live_claims_are_not_rescued, lambda w: replace(w, steps=[MADE, TAKEN, RESCUED._replace(at=102.0)])),
        (auditor.session_effects_happen_once, lambda w: replace(w, effects=[])),
        (auditor.session_effects_happen_once, lambda w: replace(w, effects=[EFFECT, EFFECT])),
        (auditor.session_effects_happen_once, lambda w: replace(w, effects=[EFFECT._replace(xid="4")])),
        (auditor.session_effects_happen_once, lambda w: replace(w, effects=[EFFECT._replace(token=2)])),
        (auditor.handlers_end_before_completions, lambda w: replace(w, said=[BEGAN])),
        (auditor.handlers_end_before_completions, lambda w: replace(w, said=[BEGAN, DID._replace(token=2)])),
        (auditor.handlers_end_before_completions, lambda w: replace(w, said=[BEGAN, DID._replace(at=102.1)])),
        (auditor.effects_outside_follow_claims, lambda w: replace(w, said=[BEGAN, BEGAN, DID])),
        (auditor.effects_outside_follow_claims, lambda w: replace(w, said=[BEGAN, DID, DID._replace(token=2)])),
        (auditor.counters_stay_in_bounds, lambda w: replace(w, rows=[ROW._replace(attempt=21, claims=21)])),
        (auditor.counters_stay_in_bounds, lambda w: replace(w, rows=[ROW._replace(rescues=13, claims=14)])),
        (auditor.counters_stay_in_bounds, lambda w: replace(w, rows=[ROW._replace(attempt=2)])),
        (auditor.no_job_runs_without_a_lease, lambda w: replace(w, rows=[ROW._replace(status="running")])),
        (auditor.one_job_has_a_key, lambda _: followed(KEYED, MADE_NEXT._replace(n=29))),
        (auditor.one_job_has_a_key, lambda _: rescoped(followed(KEYED, MADE_NEXT._replace(n=19)), "queued")),
        (auditor.one_job_has_a_key, lambda _: rescoped(followed(KEYED, MADE_NEXT._replace(n=31)), "finished", 5.0)),
        (auditor.one_job_has_a_key, lambda _: rescoped(followed(KEYED, MADE_NEXT._replace(n=31)), "window", 5.0)),
        (auditor.keys_are_held_by_jobs, lambda _: replace(KEYED, held=[Held("u", 1, False)])),
        (auditor.keys_are_held_by_jobs, lambda _: replace(KEYED, held=[HELD])),
        (auditor.keys_are_held_by_jobs, lambda w: replace(w, rows=[NEXT], held=[HELD._replace(unique="v")])),
        (auditor.keys_are_held_by_jobs, lambda w: replace(w, rows=[NEXT._replace(scope="queued")])),
        (auditor.duplicates_name_their_holder, lambda _: replace(KEYED, rows=[HOLDER, DUPLICATE._replace(claims=1)])),
        (
            auditor.duplicates_name_their_holder,
            lambda _: replace(KEYED, rows=[HOLDER, DUPLICATE._replace(duplicate_of=0)]),
        ),
        (auditor.duplicates_name_their_holder, lambda _: replace(KEYED, rows=[HOLDER._replace(unique="v"), DUPLICATE])),
        (auditor.changes_are_seen_by_a_later_run, lambda _: rescoped(replace(KEYED, said=[BEGAN, DID]), "queued")),
        (auditor.committed_jobs_end, lambda w: replace(w, rows=[ROW._replace(status="cancelled", error="Expired")])),
        (auditor.committed_jobs_end, lambda w: replace(w, rows=[ROW._replace(status="cancelled", overlap="skip")])),
        (auditor.jobs_are_not_started_after_their_expiry, lambda w: replace(w, rows=[ROW._replace(expires_at=100.05)])),
        (
            auditor.jobs_are_not_started_after_their_expiry,
            lambda w: replace(
                w, rows=[ROW._replace(status="cancelled", error="Expired", expires_at=101.0, finished_at=100.9)]
            ),
        ),
        (auditor.no_attempt_begins_after_its_deadline, lambda w: replace(w, rows=[ROW._replace(deadline_at=100.05)])),
        (auditor.each_tick_has_one_job, lambda _: ticked([*TICKS, TICKS[1]])),
        (auditor.each_tick_has_one_job, lambda _: ticked([*TICKS[:2], TICKS[2]._replace(number=2)])),
        (auditor.each_tick_has_one_job, lambda _: ticked(TICKS, next_at=102.0)),
        (auditor.no_tick_is_lost, lambda _: ticked([TICKS[0], TICKS[2]], left_out=1)),
        (auditor.no_tick_is_lost, lambda _: ticked(TICKS[:2], left_out=1)),
        (auditor.no_tick_is_lost, lambda _: ticked(TICKS, left_out=1)),
        (auditor.no_tick_is_lost, lambda _: ticked([TICKS[0], TICKS[2]], catch_up=3.0, left_out=1)),
        (auditor.no_tick_is_lost, lambda _: replace(SKIPPED, schedules=[TICKING._replace(overlap="skip")])),
        (
            auditor.no_tick_is_lost,
            lambda _: lived(
                ticked([TICKS[0], Tick("s", "s@9", 109.0, 1, 109.0)], overlap="skip", next_at=110.0, left_out=8),
                100.5,
                109.5,
            ),
        ),
        (
            auditor.jobs_of_a_schedule_do_not_overlap,
            lambda _: lived(ticked(TICKS, overlap="skip"), 100.5, 102.5, 102.7),
        ),
        (
            auditor.jobs_of_a_schedule_do_not_overlap,
            lambda _: lived(ticked(TICKS, overlap="queue_one"), 101.5, 101.7, 102.7),
        ),
    ],
)
def test_each_rule_finds_what_breaks_it(rule: Callable[..., object], change: Callable[[Evidence], Evidence]) -> None:
    """One thing is changed in the evidence of a job that went well, and the rule finds it."""
    assert rule.__name__ in {finding.rule for finding in audit(change(WELL))}


def test_no_rule_is_without_an_example() -> None:
    """Each rule has a case above, or where the rules of workflows and of steps are tested."""
    (cases,) = (mark for mark in test_each_rule_finds_what_breaks_it.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
    assert {rule.__name__ for rule, _ in cases.args[1]} == set(auditor.RULES) - set(audited_workflows.RULES) - set(
        audited_steps.RULES
    )


# ---- workers that were broken on purpose


@pytest.fixture
def engine(database_url: str) -> Engine:
    """An engine on a database with the audit's tables."""
    workload.prepare(database_url)
    return create_engine(database_url)


def enqueue(engine: Engine, kinds: list[workload.AnyTask], number: int, seconds: float) -> dict[str, Fate]:
    """Enqueue `number` jobs of each kind. Returns their keys and fates."""
    with Session(engine) as session:
        jobs = {
            f"{kind.name}-{n}": workload.job(kind, f"{kind.name}-{n}", seconds) for n in range(number) for kind in kinds
        }
        session.add_all(jobs.values())
        session.commit()
    return dict.fromkeys(jobs, Fate.COMMITTED)


def work(
    stack: ExitStack, url: str, folder: Path, mutant: str | None, processes: int, *, lease: int = 1
) -> list[Command]:
    """Start workers, broken or not, and wait until they serve."""
    env = {workload.FOLDER: str(folder)} | ({mutants.MUTANT: mutant} if mutant else {})
    options = ["--app=tests.faults.mutants:registry", f"--lease={lease}", "--poll=0.1", "--queue=default=4"]
    workers = [stack.enter_context(start_command("work", *options, url=url, env=env)) for _ in range(processes)]
    for worker in workers:
        worker.wait_for(" serves ")
    return workers


def rules_broken(engine: Engine, folder: Path, fates: dict[str, Fate]) -> set[str]:
    """Wait until all jobs have ended (or will not), and say which rules the auditor found broken."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        live = "SELECT count(*) FROM sa_jobqueue.job WHERE status IN ('queued', 'running')"
        wait_until(lambda: connection.exec_driver_sql(live).scalar() == 0, timeout=60)
    findings: list[Finding] = audit(collect(engine.url.render_as_string(False), folder, fates))
    engine.dispose()
    return {finding.rule for finding in findings}


def in_session(line: Said) -> bool:
    """Whether that job writes through `ctx.session`."""
    return line.key.rpartition("-")[0] not in workload.WITHOUT_SESSION


ALL = [workload.plain, workload.write, workload.write_async]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "broken"),
    [*nightly_sets((None, set())), (mutants.remove_the_fence.__name__, {"session_effects_happen_once"})],
)
def test_a_worker_without_the_fence_is_caught(
    engine: Engine, database_url: str, tmp_path: Path, mutant: str | None, broken: set[str]
) -> None:
    """A worker sleeps past its lease and then completes what another holds by now; one with the fence does no harm."""
    fates = enqueue(engine, ALL, 4, 1.0)
    with ExitStack() as stack:
        (zombie,) = work(stack, database_url, tmp_path, mutant, 1)
        wait_until(lambda: len(evidence.read_words(tmp_path)) >= 4)
        zombie.send(signal.SIGSTOP)
        work(stack, database_url, tmp_path, mutant, 1)
        # Not just any job: what is only back in the queue, the zombie completes without harm.
        wait_until(lambda: any(run > 1 and in_session(line) for line, run in runs(tmp_path)))
        zombie.send(signal.SIGCONT)
        found = rules_broken(engine, tmp_path, fates)
        if broken:  # the zombie may be later than the end of the jobs
            wait_until(lambda: broken <= rules_broken(engine, tmp_path, fates), message="the zombie's harm")
    assert bool(found) <= bool(broken)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mutant", "broken"),
    [(None, set()), (mutants.remove_the_fence_of_batches.__name__, {"handlers_end_before_completions"})],
)
def test_a_worker_without_the_fence_is_caught_at_a_job_without_a_session(
    engine: Engine, database_url: str, tmp_path: Path, mutant: str | None, broken: set[str]
) -> None:
    """It wakes and completes a job that another worker is still running; only the handlers' files show it."""
    fates = enqueue(engine, [workload.held], 1, 0.0)
    with ExitStack() as stack:
        (zombie,) = work(stack, database_url, tmp_path, mutant, 1)
        wait_until(lambda: ("began", 1) in said(tmp_path))
        zombie.send(signal.SIGSTOP)
        # Else it could lose the job itself, on a busy machine, and a third run would wait for ever.
        execute(engine, "UPDATE sa_jobqueue.job SET lease_expires_at = now() - interval '1 hour'")
        long_healthy(engine)
        work(stack, database_url, tmp_path, mutant, 1, lease=60)
        wait_until(lambda: ("began", 2) in said(tmp_path))
        workload.let_go(tmp_path, 1)
        zombie.send(signal.SIGCONT)
        wait_until(lambda: ("did", 1) in said(tmp_path))
        if mutant is None:
            refused = ("came too late", "nothing it writes is kept")  # whichever it hears of first
            wait_until(lambda: any(words in zombie.output for words in refused))
            workload.let_go(tmp_path, 2)
        # Broken: the handler of the other one still waits when the job has ended.
        assert rules_broken(engine, tmp_path, fates) == broken


def said(folder: Path) -> set[tuple[str, int]]:
    """What handlers have said so far, and in which run of their job."""
    return {(line.what, run) for line, run in runs(folder)}


def runs(folder: Path) -> list[tuple[evidence.Said, int]]:
    """What handlers have said, each line with the number of its run: 1 for the run of the job that began first."""
    lines = sorted(evidence.read_words(folder), key=lambda line: line.at)
    begun: dict[str, list[int]] = defaultdict(list)
    for line in lines:
        if line.token not in begun[line.key]:
            begun[line.key].append(line.token)
    return [(line, begun[line.key].index(line.token) + 1) for line in lines]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mutant", "broken"), [(None, set()), (mutants.split_the_claim.__name__, {"one_claim_is_valid"})]
)
def test_a_claim_in_two_statements_is_caught(
    engine: Engine, database_url: str, tmp_path: Path, mutant: str | None, broken: set[str]
) -> None:
    """Three workers at one queue take each other's jobs if they first look and then take."""
    with ExitStack() as stack:
        work(stack, database_url, tmp_path, mutant, 3)
        fates = enqueue(engine, ALL, 60, 0.01)
        found = rules_broken(engine, tmp_path, fates)
    assert broken <= found
    assert bool(found) == bool(broken)


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", [mutants.complete_first.__name__, mutants.complete_and_die.__name__])
def test_a_completion_before_the_handlers_commit_is_caught(
    engine: Engine, database_url: str, tmp_path: Path, mutant: str
) -> None:
    """Whether or not the worker happens to die between the two."""
    fates = enqueue(engine, [workload.write, workload.write_async], 20, 0.0)
    with ExitStack() as stack:
        work(stack, database_url, tmp_path, mutant, 3)
        if mutant == mutants.complete_and_die.__name__:
            wait_until(lambda: len(evidence.read_words(tmp_path)) > 0)
        with start_command(
            "work",
            "--app=tests.faults.workload:registry",
            "--lease=1",
            url=database_url,
            env={workload.FOLDER: str(tmp_path)},
        ):  # so that one of them is left
            assert rules_broken(engine, tmp_path, fates) == {"session_effects_happen_once"}


ONCE = Unique("once")


def enqueue_once(engine: Engine, key: str) -> dict[str, Fate]:
    """Enqueue a job that takes as long as the test wants, with the same unique key as all of these."""
    with Session(engine) as session:
        session.add(workload.job(workload.held, key, unique=ONCE))
        session.commit()
    return {key: Fate.COMMITTED}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mutant", "broken"),
    [
        (None, set()),
        (mutants.keep_the_keys.__name__, {"keys_are_held_by_jobs"}),
        (mutants.free_keys_at_the_start.__name__, {"one_job_has_a_key"}),
    ],
)
def test_a_key_that_is_given_back_too_early_or_not_at_all_is_caught(
    engine: Engine, database_url: str, tmp_path: Path, mutant: str | None, broken: set[str]
) -> None:
    """Another job with the key is enqueued while the first one runs."""
    fates = enqueue_once(engine, "first")
    with ExitStack() as stack:
        work(stack, database_url, tmp_path, mutant, 1)
        wait_until(lambda: ("began", 1) in said(tmp_path))
        fates |= enqueue_once(engine, "second")
        workload.let_go(tmp_path, 1)
        assert rules_broken(engine, tmp_path, fates) == broken


def execute(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)


def scalar(engine: Engine, statement: str) -> Any:
    with engine.connect() as connection:
        return connection.exec_driver_sql(statement).scalar()


#: The ticks of some seconds are late when the workers come.
LATE = "UPDATE sa_jobqueue.schedule SET counts_from = counts_from - interval '3.7 s'"
PAUSE = "UPDATE sa_jobqueue.schedule SET paused_at = now()"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mutant", "names", "broken"),
    [
        (None, list(workload.SCHEDULES), set()),
        (mutants.look_without_a_lock.__name__, ["each", "once"], {"each_tick_has_one_job"}),
        (mutants.forget_missed_ticks.__name__, ["each"], {"no_tick_is_lost"}),
        (mutants.catch_up_nothing.__name__, ["fresh"], {"no_tick_is_lost"}),
    ],
)
def test_ticks_that_have_no_job_or_two_are_caught(
    engine: Engine, database_url: str, tmp_path: Path, mutant: str | None, names: list[str], broken: set[str]
) -> None:
    """Several workers look at schedules. No worker has dealt with some of their ticks yet."""
    workload.add_schedules(database_url, {name: workload.SCHEDULES[name] for name in names})
    execute(engine, LATE)
    with ExitStack() as stack:
        work(stack, database_url, tmp_path, mutant, 3)
        later = scalar(engine, "SELECT now() + interval '1 s'")
        came = f"SELECT bool_and(coalesce(last_tick_at > '{later}', false)) FROM sa_jobqueue.schedule"
        wait_until(lambda: scalar(engine, came), message="a tick of each that all workers were there for")
        execute(engine, PAUSE)
        assert broken <= (found := rules_broken(engine, tmp_path, {}))
        assert bool(found) == bool(broken)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mutant", "broken"),
    [(None, set()), (mutants.tick_past_live_jobs.__name__, {"jobs_of_a_schedule_do_not_overlap"})],
)
def test_a_tick_that_does_not_look_at_the_job_before_is_caught(
    engine: Engine, database_url: str, tmp_path: Path, mutant: str | None, broken: set[str]
) -> None:
    """A job takes longer than until the next tick."""
    workload.add_schedules(database_url, {"held": (1.0, workload.held, {"overlap": "skip"})})
    with ExitStack() as stack:
        work(stack, database_url, tmp_path, mutant, 1)
        wait_until(lambda: ("began", 1) in said(tmp_path))
        before = scalar(engine, "SELECT next_at FROM sa_jobqueue.schedule")
        wait_until(lambda: scalar(engine, "SELECT next_at FROM sa_jobqueue.schedule") > before, message="the next tick")
        execute(engine, PAUSE)
        workload.let_go(tmp_path, 1)
        assert rules_broken(engine, tmp_path, {}) == broken


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mutant", "broken"),
    [
        (None, set()),
        (
            mutants.start_what_is_late.__name__,
            {"jobs_are_not_started_after_their_expiry", "no_attempt_begins_after_its_deadline"},
        ),
    ],
)
def test_a_job_that_is_started_too_late_is_caught(
    engine: Engine, database_url: str, tmp_path: Path, mutant: str | None, broken: set[str]
) -> None:
    """Its expiry, or its deadline, is over when a worker comes."""
    with Session(engine) as session:
        session.add_all(
            [
                workload.job(workload.plain, "expires", expires=60.0),
                workload.job(workload.plain, "deadline", deadline=60.0),
            ]
        )
        session.commit()
    execute(
        engine,
        "UPDATE sa_jobqueue.job SET expires_at = expires_at - interval '90 s', deadline_at = deadline_at - interval '90 s'",
    )
    with ExitStack() as stack:
        work(stack, database_url, tmp_path, mutant, 1)
        fates = dict.fromkeys(("expires", "deadline"), Fate.COMMITTED)
        found = rules_broken(engine, tmp_path, fates)
    assert broken <= found
    assert bool(found) == bool(broken)

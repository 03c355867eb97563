"""Many workers, operators and accidents in any order: the rows go the way the model goes, and a broken statement shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy import Engine, event, text

from sa_jobqueue import Unique
from sa_jobqueue.rules.lifecycle import Rules
from sa_jobqueue.rules.outcomes import Completed, Discard, Outcome, Rescued, Retry, Snooze
from sa_jobqueue.rules.schedules import due_ticks
from sa_jobqueue.sql.schedules import due as schedules
from tests.properties.schedules import ScheduleMachine
from tests.support.nightly import is_nightly, nightly
from tests.support.outcomes import ENTRY


@pytest.fixture
def machine(engine: Engine) -> type[ScheduleMachine]:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effect (job_id bigint, token bigint)"))

    class Machine(ScheduleMachine):
        pass

    Machine.engine = engine
    return Machine


def test_jobs_live_as_their_models(machine: type[ScheduleMachine]) -> None:
    """Enqueue, claim, renew, finish, crash, rescue, cancel, retry, discard, release, prune, tick: each step does what it says."""
    if is_nightly():
        run_state_machine_as_test(machine)
        assert machine.steps > 2_000
    else:
        brief = settings(max_examples=6, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
        run_state_machine_as_test(machine, settings=brief)
        assert machine.steps > 100
    print(f"{machine.steps:,} steps")


Step = tuple[str, dict[str, Any]]

JOB: Step = (
    "enqueue",
    {
        "queue": "mail",
        "priority": 4,
        "scheduled": False,
        "max_attempts": 3,
        "rules": Rules(),
        "uniques": [None] * 1,
        "bulk": True,
        "kept": True,
    },
)
UNIQUE: Step = ("enqueue", {**JOB[1], "uniques": [Unique("a")]})
STARTS: Step = ("enqueue", {**JOB[1], "uniques": [Unique("a", scope="queued")]})
LATER: Step = ("enqueue", {**JOB[1], "scheduled": True})
CLAIM: Step = ("claim", {"worker": "ada", "free": {"mail": 1}, "end": "known"})


def schedule(**given: Any) -> Step:
    """One each hour."""
    usual: dict[str, Any] = {
        "hours": 1,
        "missed": "once",
        "overlap": "allow",
        "catch_up": None,
        "pause_after": None,
        "jitter": timedelta(0),
    }
    usual |= {"queue": "mail", "rules": Rules(), "unique": None, "expires": False, "has_deadline": False, "kept": True}
    return "add_schedule", {**usual, **given}


def tick(*hours: float) -> Step:
    """For each number: that many hours pass, and a worker looks."""
    return "tick", {"turns": [({0}, one) for one in hours], "limit": 9, "kept": True}


def on_schedules(name: str) -> Step:
    return "operate_schedules", {"chosen": {0}, "name": name, "kept": True}


def finish(outcome: Outcome, back: int = 0) -> Step:
    return "finish", {"ends": [(back, outcome)], "kept": True}


def operate(name: str) -> Step:
    return "operate", {"name": name, "chosen": {0}, "queue": None, "kept": True}


@dataclass(frozen=True)
class Mutation:
    """In statements that have the text `only`, what matches `pattern` is replaced; `story` is where that shows."""

    only: str
    pattern: str
    by: str
    story: tuple[Step, ...]


MUTATIONS = {
    "an outcome is not fenced by its claim": Mutation(
        "change_ids", r"[\w.]+\.claim_token IS NOT DISTINCT FROM change\.claim_token", "true",
        (JOB, CLAIM, operate("release"), CLAIM, finish(Snooze(0), back=1)),
    ),
    "an outcome is written whatever the status": Mutation(
        "change_ids", r"[\w.]*job\.status = 'running'", "true", (JOB, CLAIM, finish(Completed()), finish(Snooze(0)))
    ),
    "a plain completion is not fenced by its claim": Mutation(
        "done_ids", r"[\w.]+\.claim_token = done\.token", "true",
        (JOB, CLAIM, operate("release"), CLAIM, finish(Completed(), back=1)),
    ),
    "a plain completion is written whatever the status": Mutation(
        "done_ids", r"[\w.]*job\.status = 'running'", "true", (JOB, CLAIM, operate("release"), finish(Completed()))
    ),
    "a completion with its handler's writes is not fenced by its claim": Mutation(
        "(done_id)", r"[\w.]+\.claim_token = %\(done_token\)s::BIGINT", "%(done_token)s::BIGINT IS NOT NULL",
        (JOB, CLAIM, operate("release"), CLAIM, ("finish_with_effects", {"back": 1, "outcome": Completed()})),
    ),
    "a rescue does not look at the lease again": Mutation(
        "change_ids", r"[\w.]+\.lease_expires_at <= now\(\)", "true",
        (
            JOB, CLAIM, ("leases_run_out", {"chosen": {0}}), ("look_for_expired", {}), ("renew", {"worker": "ada"}),
            ("rescue", {"outcome": Rescued(ENTRY)}),
        ),
    ),
    "an outcome does not look for a cancel": Mutation(
        "change_ids", r"[\w.]+\.cancel_requested_at IS NULL", "true", (JOB, CLAIM, operate("cancel"), finish(Snooze(0)))
    ),
    "a renewal goes by the id alone": Mutation(
        "lease_ids", r"[\w.]+\.claim_token = held\.token", "true",
        (JOB, CLAIM, operate("release"), ("claim", {**CLAIM[1], "worker": "bob"}), ("renew", {"worker": "ada"})),
    ),
    "a claim takes what is not due": Mutation("by_worker", r"[\w.]+\.run_at <= now\(\)", "true", (LATER, CLAIM)),
    "a claim takes whatever the status": Mutation("by_worker", r"[\w.]*job\.status = 'queued'", "true", (JOB, CLAIM, CLAIM)),
    "a claim does not count": Mutation("by_worker", r"least\([\w.]+\.claims, 2147483646\) \+ 1", "0", (JOB, CLAIM)),
    "a claim keeps the token of the last": Mutation(
        "by_worker", r"claim_token=%\(by_token\)s::BIGINT", "claim_token=coalesce(job.claim_token, %(by_token)s::BIGINT)",
        (JOB, CLAIM, operate("release"), CLAIM),
    ),
    "a claim does not say which key is free from the start": Mutation(
        "by_worker", r"= 'queued'\)(?= THEN [\w.]*uniqueness)", "= 'never')", (STARTS, CLAIM)
    ),
    "the key of a job that was started is not freed": Mutation("started_keys", r"FROM mine\)", "FROM mine WHERE false)", (STARTS, CLAIM)),
    "the end of a job keeps its key": Mutation("change_ids", r"[\w.]+\.keep IS NULL", "false", (UNIQUE, CLAIM, finish(Completed()))),
    "a cancel keeps the key": Mutation(
        "cancel_requested_at=coalesce", r"[\w.]+\.keep IS NULL", "false", (UNIQUE, operate("cancel"))
    ),
    "a retry takes no key": Mutation(
        "rescues=0", r"[\w.\"]*take_key\(locked\.id, locked\.uniqueness\)", "true", (UNIQUE, operate("cancel"), operate("retry"))
    ),
    "an expiry cancels what has been tried": Mutation(
        "error_type", r"[\w.]+\.attempt > 0", "false",
        (JOB, CLAIM, finish(Retry(0)), ("limits_run_out", {"chosen": {0}, "deadline": False}), ("end_late", {"kept": True})),
    ),
    "a claim does not say that a deadline is over": Mutation(
        "by_worker", r"'deadline', to_jsonb", "'dead', to_jsonb",
        (JOB, ("limits_run_out", {"chosen": {0}, "deadline": True}), CLAIM),
    ),
    "a retry takes a running job": Mutation(
        "rescues=0", r"IN \('queued', 'completed', 'failed', 'cancelled'\)", "IS NOT NULL", (JOB, CLAIM, operate("retry"))
    ),
    "a cancel ends a running job": Mutation(
        "cancel_requested_at=coalesce", r"[\w.]*job\.status != 'running'", "true", (JOB, CLAIM, operate("cancel"))
    ),
    "a prune takes what is still kept": Mutation(
        "DELETE FROM", r"[\w.]+\.purge_at <= now\(\)", "true",
        (JOB, CLAIM, finish(Completed()), ("prune", {"limit": 3, "directly": True, "kept": True})),
    ),
    "a completion keeps no result": Mutation(
        "done_results", r"CAST\(done\.result AS JSONB\)", "NULL", (JOB, CLAIM, finish(Completed("[1]")))
    ),
    "a completion with its handler's writes keeps no result": Mutation(
        "done_result", r"CAST\(%\(done_result\)s::VARCHAR AS JSONB\)", "NULL",
        (JOB, CLAIM, ("finish_with_effects", {"back": 0, "outcome": Completed("null")})),
    ),
    "the end of a unique job keeps no result": Mutation(
        "change_ids", r"CAST\([\w.]+\.result AS JSONB\)", "NULL", (UNIQUE, CLAIM, finish(Completed("[1]")))
    ),
    "a retry by hand leaves the result": Mutation(
        "rescues=0", r"result=NULL", "result=job.result", (JOB, CLAIM, finish(Completed("[1]")), operate("retry"))
    ),
    "a look takes schedules that are not due": Mutation(
        "schedule.catch_up", r"[\w.]+\.due_at <= now\(\)", "true", (schedule(), tick(0.5, 0))
    ),
    "a look takes paused schedules": Mutation(
        "schedule.catch_up", r"[\w.]+\.paused_at IS NULL", "true", (schedule(), on_schedules("pause"), tick(1))
    ),
    "a look does not say that a tick waits": Mutation(
        "schedule.catch_up", r"date_part\('epoch', [\w.]+\.waiting_since\)", "NULL::float",
        (schedule(overlap="queue_one", missed="skip"), tick(1, 1), CLAIM, finish(Completed()), tick(1.5)),
    ),
    "a look counts from its beginning again": Mutation(
        "schedule.catch_up", r"date_part\('epoch', [\w.]+\.next_at\)", "NULL::float", (schedule(), tick(1, 1))
    ),
    "a schedule is not moved on": Mutation("move_id", r"next_at=to_timestamp\(move\.next_at\)", "next_at=schedule.next_at", (schedule(), tick(1))),
    "the last tick is forgotten where there is none": Mutation(
        "move_id", r"coalesce\(to_timestamp\(move\.last_tick_at\), [\w.]+\)", "to_timestamp(move.last_tick_at)",
        (schedule(overlap="skip"), tick(1, 1)),
    ),
    "ticks that are left out are not counted": Mutation(
        "move_id", r"\+ move\.left_out", "+ 0", (schedule(catch_up=timedelta(hours=1.5)), tick(3))
    ),
    "a job that is not finished is not seen": Mutation(
        "FROM unnest(CAST(%(schedule_ids)s", r"finished_at IS NULL", "finished_at IS NOT NULL", (schedule(overlap="skip"), tick(1, 1))
    ),
    "failures are counted from before the pause": Mutation(
        "pause_after", r"[\w.]+\.finished_at >= [\w.]+\.counts_from", "true",
        (schedule(pause_after=1), tick(1), CLAIM, finish(Discard()), tick(1), on_schedules("resume"), tick(1)),
    ),
    "failures are counted though the last job was well": Mutation(
        "pause_after", r"LIMIT [\w.]+\.pause_after", "LIMIT 9",
        (schedule(pause_after=1), tick(1, 1), CLAIM, finish(Discard()), CLAIM, finish(Completed()), tick(1)),
    ),
    "a schedule whose jobs fail goes on": Mutation(
        "pause_reason=concat", r"paused_at=now\(\)", "paused_at=NULL", (schedule(pause_after=1), tick(1), CLAIM, finish(Discard()), tick(1))
    ),
    "a resumed schedule stays paused": Mutation(
        "SET paused_at=NULL", r"SET paused_at=NULL", "SET paused_at=now()", (schedule(), on_schedules("pause"), on_schedules("resume"))
    ),
    "a resume takes schedules that are not paused": Mutation(
        "SET paused_at=NULL", r"[\w.]+\.paused_at IS NOT NULL", "true", (schedule(), on_schedules("resume"))
    ),
    "a job by hand stands for more than one tick": Mutation(
        "enqueue_ticks(array_agg", r"CAST\(1 AS INTEGER\)", "CAST(2 AS INTEGER)", (schedule(), on_schedules("run"))
    ),
    "a claim does not say for which tick it is": Mutation("by_worker", r"'tick', ", "'tock', ", (schedule(), tick(1), CLAIM)),
    "the job that runs into the next tick is not the one that is cancelled": Mutation(
        "cancel_requested_at=coalesce", r"job\.schedule_id IN", "job.id NOT IN", (schedule(overlap="cancel_running"), JOB, tick(1, 1))
    ),
}  # fmt: skip


@contextmanager
def mutated(engine: Engine, mutation: Mutation) -> Iterator[list[str]]:
    """Statements are changed on their way to the server; the list has those that were."""
    changed: list[str] = []

    def rewrite(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, executemany: bool) -> Any:
        mutant = re.sub(mutation.pattern, mutation.by, statement) if mutation.only in statement else statement
        if mutant != statement:
            changed.append(mutant)
        return mutant, parameters

    event.listen(engine, "before_cursor_execute", rewrite, retval=True)
    yield changed
    event.remove(engine, "before_cursor_execute", rewrite)


def play(machine: type[ScheduleMachine], story: tuple[Step, ...]) -> None:
    played = machine()
    try:
        for name, given in story:
            getattr(played, name)(**given)
            played.agree()
    finally:
        played.teardown()


@pytest.mark.parametrize("broken", [next(iter(MUTATIONS)), *nightly(*list(MUTATIONS)[1:])])
def test_a_broken_statement_is_noticed(machine: type[ScheduleMachine], broken: str) -> None:
    """The same steps go well, and without one guard in one statement come to a row that is not as the model says."""
    mutation = MUTATIONS[broken]
    play(machine, mutation.story)
    with mutated(machine.engine, mutation) as changed, pytest.raises(AssertionError):
        play(machine, mutation.story)
    assert changed, "the statement's text has changed, and the mutation no longer finds what it breaks"


def ticks_by(**changed: Any) -> dict[str, Any]:
    """Ticks are worked out by other options than the row's."""

    def broken(*given: Any, **options: Any) -> Any:
        return due_ticks(*given, **{**options, **changed})

    return {"sa_jobqueue.sql.schedules.due.due_ticks": broken}


def steps_by(**changed: Any) -> dict[str, Any]:
    def broken(look: Any, **options: Any) -> Any:
        return step(look, **{**options, **changed})

    step = schedules._step
    return {"sa_jobqueue.sql.schedules.due._step": broken}


#: What is replaced, and where that shows.
BROKEN: dict[str, tuple[dict[str, Any], tuple[Step, ...]]] = {
    "ticks that are too old are caught up": (ticks_by(catch_up=None), (schedule(catch_up=timedelta(hours=1.5)), tick(3))),
    "each missed tick has a job": (ticks_by(missed="all"), (schedule(), tick(3))),
    "missed ticks have one job": (ticks_by(missed="once"), (schedule(missed="all"), tick(3))),
    "a missed tick has a job": ({"sa_jobqueue.rules.schedules.ON_TIME": timedelta(days=1)}, (schedule(missed="skip"), tick(1.5))),
    **{
        f"overlap={overlap!r} does not look at the job before": (
            steps_by(live=False), (schedule(overlap=overlap), tick(1, 1))
        ) for overlap in ("skip", "queue_one", "cancel_running")
    },
    "jobs are due at their ticks in spite of a jitter": (
        steps_by(random=lambda: 0.0), (schedule(jitter=timedelta(hours=2)), tick(1))
    ),
}  # fmt: skip


@pytest.mark.parametrize("broken", [next(iter(BROKEN)), *nightly(*list(BROKEN)[1:])])
def test_broken_code_is_noticed(machine: type[ScheduleMachine], monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """As above, for what Python decides about ticks."""
    replaced, story = BROKEN[broken]
    play(machine, story)
    for name, by in replaced.items():
        monkeypatch.setattr(name, by)
    with pytest.raises(AssertionError):
        play(machine, story)


def test_the_first_tick_that_waits_is_the_first_that_came(machine: type[ScheduleMachine]) -> None:
    """Also where no worker has looked before."""
    play(machine, (schedule(overlap="queue_one"), on_schedules("run"), tick(3), CLAIM, finish(Completed()), tick(1)))

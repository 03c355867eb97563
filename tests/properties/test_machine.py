"""Many workers, operators and accidents in any order: the rows go the way the model goes, and a broken statement shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy import Engine, event, text

from sa_jobqueue import Unique
from sa_jobqueue.lifecycle import Rules
from sa_jobqueue.outcomes import Completed, Outcome, Rescued, Retry, Snooze
from tests.properties.conftest import is_nightly
from tests.properties.machine import QueueMachine
from tests.support.outcomes import ENTRY


@pytest.fixture
def machine(engine: Engine) -> type[QueueMachine]:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effect (job_id bigint, token bigint)"))

    class Machine(QueueMachine):
        pass

    Machine.engine = engine
    return Machine


def test_jobs_live_as_their_models(machine: type[QueueMachine]) -> None:
    """Enqueue, claim, renew, finish, crash, rescue, cancel, retry, discard, release, prune: each step does what it says."""
    if is_nightly():
        run_state_machine_as_test(machine)
        assert machine.steps > 2_000
    else:
        brief = settings(
            max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        )
        run_state_machine_as_test(machine, settings=brief)
        assert machine.steps > 200
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
        "error_type", r"[\w.]+\.attempt = 0", "true",
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


def play(machine: type[QueueMachine], story: tuple[Step, ...]) -> None:
    played = machine()
    try:
        for name, given in story:
            getattr(played, name)(**given)
            played.agree()
    finally:
        played.teardown()


@pytest.mark.parametrize("broken", MUTATIONS)
def test_a_broken_statement_is_noticed(machine: type[QueueMachine], broken: str) -> None:
    """The same steps go well, and without one guard in one statement come to a row that is not as the model says."""
    mutation = MUTATIONS[broken]
    play(machine, mutation.story)
    with mutated(machine.engine, mutation) as changed, pytest.raises(AssertionError):
        play(machine, mutation.story)
    assert changed, "the statement's text has changed, and the mutation no longer finds what it breaks"

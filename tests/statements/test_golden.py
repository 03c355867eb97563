"""The SQL of every builder, as text; `golden_cases` writes the files."""

from __future__ import annotations

import re
from difflib import unified_diff
from functools import cache
from typing import cast

import pytest
import sqlalchemy
from sqlalchemy import ClauseElement

from sa_jobqueue import statements
from sa_jobqueue.rules.lifecycle import JobStatus
from tests.statements.golden_cases import BATCHES, FOLDER, all_cases, compiled, laid_out

CASES = dict(all_cases())
#: What runs with `enable_seqscan = off`: see `worker.connections.service`.
ON_SERVICE_CONNECTIONS = {
    "apply_changes",
    "apply_changes_of_members",
    "apply_changes_waiting",
    "block",
    "cancel_requests",
    "claim_jobs",
    "claim_jobs_but",
    "claim_listed",
    "complete_jobs",
    "complete_jobs_and_claim",
    "complete_members",
    "declared_schedules",
    "delete_completed",
    "delete_completed_and_claim",
    "drop_old_logs",
    "due_jobs",
    "failing_schedules",
    "forget_workflows",
    "lock_listed",
    "note_unused",
    "pause_failing",
    "places_of",
    "record_results",
    "record_results_and_claim",
    "renew_leases",
    "resume_declared",
    "say_declared",
    "survey",
    "write_logs",
    "write_progress",
}


@cache
def text_of(name: str) -> str:
    return compiled(CASES[name])


def can_be_cached(statement: object) -> bool:
    """Whether SQLAlchemy itself has a cache key for such a statement."""
    return not (sqlalchemy.__version__.startswith("2.0.") and "ON CONFLICT" in compiled(statement))


def test_the_statements_are_those_on_file() -> None:
    """A change of SQL is seen in review. `python -m tests.statements.golden_cases` writes the files again."""
    changed = [
        difference
        for name in CASES
        for difference in unified_diff(
            (FOLDER / f"{name}.sql").read_text().splitlines(), laid_out(text_of(name)).splitlines(),
            f"{name}.sql", name, lineterm="",
        )
    ]  # fmt: skip
    assert not changed, "\n".join(changed)


def test_every_builder_is_on_file_and_nothing_else() -> None:
    """A new builder comes with its text."""
    assert {path.stem for path in FOLDER.glob("*.sql")} == set(CASES)
    assert set(statements.__all__) - {"criteria_of"} <= set(CASES)  # that is what others are given


def test_only_the_workers_own_connections_compare_with_an_array() -> None:
    """In a sequential scan `= ANY` reads the array's text again for each row: 10,000 jobs took 20 s. An application's connection may
    scan so; those of the worker may not.
    """
    comparing = {name for name in CASES if re.search(r"any\(CAST\(%\(\w+\)s::VARCHAR AS", text_of(name))}
    assert comparing == ON_SERVICE_CONNECTIONS


@pytest.mark.parametrize("name", BATCHES)
def test_the_text_and_the_cache_key_do_not_grow_with_the_batch(name: str) -> None:
    """One prepared statement and one entry in SQLAlchemy's cache for all sizes, none among them."""
    built = [BATCHES[name](size) for size in (0, 1, 2, 500)]
    assert len({compiled(one) for one in built}) == 1
    if not can_be_cached(built[0]):
        pytest.skip("SQLAlchemy 2.0 caches no INSERT with ON CONFLICT")

    keys = [one._generate_cache_key() for one in built if isinstance(one, ClauseElement)]
    assert len(keys) == 4
    assert all(key is not None for key in keys)
    assert len({key.key for key in keys if key is not None}) == 1


def test_each_statement_has_a_cache_key() -> None:
    """Without one, Core would compile it at each execution."""
    without = [
        name
        for name, statement in CASES.items()
        if can_be_cached(statement) and cast(ClauseElement, statement)._generate_cache_key() is None
    ]
    assert not without


def test_statuses_are_literals() -> None:
    """A parameter cannot be proved to imply the predicate of a partial index; arrays of changes are data."""
    wrong = []
    for name, statement in CASES.items():
        parameters = cast(ClauseElement, statement).compile().params
        text = " ".join(text_of(name).split())
        wrong += [
            (name, key) for key, value in parameters.items() if isinstance(value, str) and value in set(JobStatus)
        ]
        wrong += [(name, one) for one in re.findall(r"job\.status (?:=|!=|<>|IN|= ANY) ?\(?%\(|status=%\(", text)]
    assert not wrong


def test_the_files_hold_the_whole_statement() -> None:
    """The layout moves white space, nothing else."""

    def without_space(text: str) -> str:
        return re.sub(r"\s+", "", text)

    assert not [
        name for name in CASES if without_space((FOLDER / f"{name}.sql").read_text()) != without_space(text_of(name))
    ]

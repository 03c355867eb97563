"""Workflows end as they must, whatever happens to workers. `nox -s slow` has the long runs."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine

from tests.faults.workflow_mutants import MUTANTS, mutate
from tests.faults.workflows import Stress, expected
from tests.support import pooler


def suffer(url: str, seconds: float, *, seed: int, model: bool = True, chaos: bool = True) -> None:
    if pooler.is_pooled(url):
        pytest.skip("what is said of workflows is the same behind a pooler")
    with Stress(url, seed=seed) as stress:
        if model:
            stress.model(seconds)
        if chaos:
            stress.chaos(seconds)
    print(stress, *stress.findings, sep="\n")
    assert stress.findings == []
    assert stress.did["kill"] >= seconds
    if model:
        assert stress.did["retry of a node"] > seconds / 10


@pytest.mark.nightly
@pytest.mark.slow
def test_each_job_of_a_workflow_ends_as_it_must(database_url: str) -> None:
    """Random graphs under kills and locks end as a model says."""
    suffer(database_url, 3.0, seed=20_261_126, chaos=False)


@pytest.mark.nightly
def test_no_job_of_a_workflow_runs_too_early_under_operators(database_url: str) -> None:
    """Random graphs under kills, locks, cancels, retries, pauses and discards keep their order."""
    suffer(database_url, 3.0, seed=20_261_126, model=False)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_job_of_a_workflow_ends_as_it_must_for_long(database_url: str, seed: int) -> None:
    """The same for minutes."""
    suffer(database_url, 90.0, seed=seed)


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_stress_sees_what_is_broken_on_purpose(database_url: str, mutant: str) -> None:
    """One of several runs does."""
    engine = create_engine(database_url)
    with engine.begin() as connection:
        mutate(connection, mutant)
    engine.dispose()
    with Stress(database_url, seed=7) as stress:
        for _ in range(4):
            stress.model(8.0, patience=15)
            if not stress.findings:
                stress.chaos(8.0, patience=15)
            if stress.findings:
                break
    print(stress, *stress.findings[:3], sep="\n")
    assert stress.findings


def test_the_model_knows_the_ends() -> None:
    """By fates, policies and how many are needed."""
    jobs = {1: "ok", 2: "fail", 3: "ok", 4: "ok", 5: "ok", 6: "ok", 7: "fail"}
    edges = [
        (3, 2, "cancel"),
        (4, 2, "run"),
        (5, 1, "count"),
        (5, 2, "count"),
        (6, 3, "skip"),
        (6, 4, "cancel"),
        (7, 5, "cancel"),
    ]
    assert expected(jobs, edges, {5: 1}) == {
        1: "completed", 2: "failed", 3: "cancelled", 4: "completed", 5: "completed", 6: "completed", 7: "failed",
    }  # fmt: skip
    assert expected(jobs, edges, {5: 2})[5] == "cancelled"

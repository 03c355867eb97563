"""The function that picks jobs, broken on purpose in a database of a test, to show that this is seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

__all__ = ["MUTANTS", "mutate"]

_RUNS = "job.status = 'running' AND job.queue = this"
_RUNS_OF_TASK = "job.status = 'running' AND job.task = ANY (limited_tasks)"
_RUNS_OF_KEY = "job.concurrency_key <= c.key"

#: What is replaced in the function, by what; each occurs at least once.
MUTANTS: Mapping[str, Sequence[tuple[str, str]]] = {
    "without the locks": [
        ("PERFORM pg_advisory_xact_lock(owner_space, o.place)", "PERFORM 1"),
        ("pg_try_advisory_xact_lock(key_space, hashtext(s.key) & 1023)", "true"),
    ],
    "without the locks of keys": [
        ("pg_try_advisory_xact_lock(key_space, hashtext(s.key) & 1023)", "true"),
        # Only who holds a key's lock notes where its running jobs begin: two would wait for each other here.
        ("IF (slow OR has_states) AND rule.key_running IS NOT NULL THEN", "IF false THEN"),
    ],
    # The snapshot of the statement is older than the lock.
    "locks and counts in one statement": [
        ("PERFORM pg_advisory_xact_lock(owner_space, o.place)", "PERFORM 1"),
        (
            'SELECT count(*), min(job.id) INTO total, lowest FROM "sa_jobqueue".job',
            "SELECT count(job.id), min(job.id) INTO total, lowest FROM (SELECT pg_advisory_xact_lock(owner_space, 1)) AS lock CROSS JOIN sa_jobqueue.job",
        ),
    ],
    # By the first character of its id a worker's rows are ignored, or not.
    "does not count the rows of some workers": [
        (_RUNS, f"{_RUNS} AND job.worker < '8'"),
        (_RUNS_OF_TASK, f"{_RUNS_OF_TASK} AND job.worker < '8'"),
        (_RUNS_OF_KEY, f"{_RUNS_OF_KEY} AND job.worker < '8'"),
    ],
}


def mutate(connection: Connection, mutant: str) -> None:
    """Break it in this way."""
    definition = str(
        connection.exec_driver_sql(
            "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = 'pick_limited' AND pronamespace = 'sa_jobqueue'::regnamespace"
        ).scalar_one()
    )
    for old, new in MUTANTS[mutant]:
        if old not in definition:
            raise LookupError(f"{mutant}: {old} is not in the function")
        definition = definition.replace(old, new)
    connection.exec_driver_sql(definition.replace("%", "%%"))

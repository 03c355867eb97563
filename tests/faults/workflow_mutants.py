"""What moves workflows on, broken on purpose in a database of a test, to show that this is seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

__all__ = ["MUTANTS", "mutate"]

#: By name: the function, and what is replaced in it, by what; each occurs at least once.
MUTANTS: Mapping[str, tuple[str, Sequence[tuple[str, str]]]] = {
    # Two at once read the same state, and each moves a child on from where the other has.
    "without the lock": ("advance", [("FOR NO KEY UPDATE OF w SKIP LOCKED", "")]),
    # A child that one parent has passed is released at once, as with a counter that nobody guards.
    "releases without a look at the other parents": (
        "advance",
        [
            (
                "d.child_id = c.id AND d.parent_id >= c.point AND d.policy <> 'count'",
                "d.child_id = c.id AND d.parent_id >= c.point AND false",
            )
        ],
    ),
    "loses events": (
        "advance",
        [
            (
                "array_agg(gone.job_id) FILTER (WHERE gone.completed IS NOT NULL)",
                "array_agg(gone.job_id) FILTER (WHERE gone.completed IS NOT NULL AND gone.id % 50 <> 0)",
            )
        ],
    ),
    "keeps nothing of what was locked": ("advance", [("IF hit >= most OR stuck THEN", "IF hit >= most THEN")]),
    "reads one page of children": ("advance", [("IF hit >= most OR stuck THEN", "IF stuck THEN")]),
    "retries a job without those below it": (
        "retry_workflow",
        [("job.errors -> -1 ->> 'failed_id' IS NOT NULL", "job.errors IS NULL")],
    ),
    "ends before all is read": (
        "advance",
        [
            (
                'AND NOT EXISTS (SELECT FROM "sa_jobqueue".workflow_event AS event WHERE event.workflow_id = w.id)',
                "",
            )
        ],
    ),
    "calls back twice": (
        "fire_callbacks",
        [("FROM fired AS f ORDER BY", "FROM fired AS f CROSS JOIN generate_series(1, 2) ORDER BY")],
    ),
    "says nothing of a handler's commit": ("complete_member", [("IF flow IS NOT NULL THEN", "IF flow < 0 THEN")]),
}


def mutate(connection: Connection, mutant: str) -> None:
    """Break it in this way."""
    function, changes = MUTANTS[mutant]
    found = connection.exec_driver_sql(
        f"SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = '{function}' AND pronamespace = 'sa_jobqueue'::regnamespace"
    )
    for definition in found.scalars().all():
        broken = str(definition)
        for old, new in changes:
            if old not in broken:
                raise LookupError(f"{mutant}: {old} is not in the function")
            broken = broken.replace(old, new)
        connection.exec_driver_sql(broken.replace("%", "%%"))

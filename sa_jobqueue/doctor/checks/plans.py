"""The plans of the claim and of the completion: by index, or by walking over the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.exc import DBAPIError

from ...models import JobMixin, LimitRow
from ...statements.claim import claim_jobs, due_jobs
from ...statements.complete import complete_jobs, delete_completed
from ...words import listed
from ..examination import Examination
from ..finding import Finding, Level, found
from ..plans import Reading, planned_as_worker, readings

__all__ = ["check_plans"]

_NOT_ALLOWED = "42501"
#: What a claim probes once, to see that its queues have no jobs with keys.
_KEYS = {"job_key_ready_idx", "job_key_later_idx"}
_CLAIM = {"job_claim_idx", "job_pkey", "unique_key_pkey", *_KEYS}
_COMPLETION = {"job_running_idx", "job_pkey", "unique_key_pkey"}
_MEND = (
    "see what `indexes` says, then `ANALYZE {table}`; restart the workers, which keep their plans; if it stays so, "
    "report it with this output"
)


def check_plans(examination: Examination) -> Finding:
    """How the server plans them now, with a worker's settings. Nothing is executed."""
    good: list[str] = []
    ill: list[tuple[Level, str, str]] = []
    hidden: list[str] = []
    with planned_as_worker(examination.connection):
        for name, statement, first, allowed in _statements(examination.store.tables.job):
            said, bad = _judged(examination, name, statement, first, allowed)
            if bad == "notice":
                hidden.append(name)
            elif bad:
                table = examination.table(examination.store.tables.job.__tablename__)
                ill.append((bad, said, _MEND.format(table=table)))
            elif said:
                good.append(said)
    if hidden:
        ill.append(("notice", "; ".join([*good, f"this role cannot see the plans of {listed(hidden)}"]), _ROLE))
    return found("plans", "; ".join(good), *ill, problems=sum(one[0] == "problem" for one in ill))


_ROLE = "run doctor with a role that can work, as the workers have"


def _statements(job: type[JobMixin]) -> list[tuple[str, Any, str, set[str]]]:
    """What is explained, the index that it must read, and all that it may read."""
    claim = claim_jobs(worker="doctor", queues={"default": 1}, lease=60.0, job=job)
    complete = complete_jobs(ids=[1], tokens=[1], retain=[60.0], job=job)
    both = complete_jobs(ids=[1], tokens=[1], retain=[60.0], claim=claim, job=job)
    gone = delete_completed(ids=[1], tokens=[1], job=job)
    return [
        ("the claim", claim, "job_claim_idx", _CLAIM),
        ("the completion", complete, "job_running_idx", _COMPLETION),
        ("a completion with a claim", both, "job_claim_idx", _CLAIM | _COMPLETION),
        ("the deletion at the end", gone, "job_running_idx", _COMPLETION),
    ]


def _judged(
    examination: Examination, name: str, statement: Any, first: str, allowed: set[str]
) -> tuple[str, Level | None]:
    """What is to be said about the plan, and how bad it is; a notice where this role may not see it."""
    try:
        nodes = readings(examination.connection, statement)
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != _NOT_ALLOWED:
            raise
        if name != "the claim":
            return "", "notice"
        # What it reads can be planned without the right to lock.
        reading = due_jobs(queues={"default": 1}, job=examination.store.tables.job)
        nodes = readings(examination.connection, reading, locks=False)
    return _words(name, nodes, first, allowed)


def _words(name: str, nodes: Sequence[Reading], first: str, allowed: set[str]) -> tuple[str, Level | None]:
    nodes = [one for one in nodes if one.table != LimitRow.__tablename__]  # a claim reads all of its few rows
    walks = [one for one in nodes if not one.narrowed or one.index is None]
    if walks:
        how = listed(
            [
                f"walks over all of {one.index}" if one.index else f"{one.node.lower()} of the whole table {one.table}"
                for one in walks
            ]
        )
        return f"{name}: {how}", "problem"
    # In the order of reading, but for the probes, which come last.
    names = sorted(dict.fromkeys(one.index for one in nodes if one.index), key=_KEYS.__contains__)
    if first not in names or not set(names) <= allowed:
        return f"{name} reads {listed(names)} instead of {first}", "problem"
    return f"{name} reads {' and '.join(names)}", None

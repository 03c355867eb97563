"""The jobs: how long they wait, leases, unique keys, and those that should be deleted by now."""

from __future__ import annotations

from ...payload import shown
from ...statements.depths import CAP
from ...statements.overview import count_expired
from ...statements.unique import find_stray_keys
from ...words import age, jobs_of
from ..examination import Examination
from ..finding import Finding

__all__ = ["check_cleanup", "check_leases", "check_unique", "check_waiting"]

#: Unique keys that are named.
_NAMED = 3


def check_waiting(examination: Examination) -> Finding:
    """Due jobs, and how long the first of them has waited."""
    due = sum(one.due for one in examination.depths)
    oldest = max((one.oldest_due_age or 0.0 for one in examination.depths), default=0.0)
    more = "at least " if any(one.due >= CAP for one in examination.depths) else ""
    said = f"{more}{jobs_of(due)} due" + (f", the oldest for {age(oldest)}" if due else "")
    numbers = {"due": float(due), "seconds": oldest}
    limit = examination.thresholds.max_wait
    if limit is not None and oldest > limit:
        return Finding(
            "waiting",
            "problem",
            f"{said}; more than {age(limit)} is too long",
            "start more workers, or give the queue more slots: `sa-jobqueue work --queue NAME=SLOTS`",
            numbers,
        )
    return Finding("waiting", "ok", said, numbers=numbers)


def check_leases(examination: Examination) -> Finding:
    """Running jobs whose worker has not renewed their lease."""
    expired = examination.connection.scalar(count_expired(job=examination.store.tables.job)) or 0
    if expired:
        return Finding(
            "leases",
            "problem",
            f"{jobs_of(expired)} running with an expired lease: the worker died or is cut off",
            "any worker rescues them within seconds: start one, or see the log of those that run",
            {"expired": float(expired)},
        )
    return Finding("leases", "ok", "no running job has an expired lease", numbers={"expired": 0.0})


def check_unique(examination: Examination) -> Finding:
    """Ends and deletes by SQL of the user's own leave keys behind; nothing else does."""
    tables = examination.store.tables
    statement = find_stray_keys(limit=_NAMED, job=tables.job, keys=tables.unique_key)
    stray = examination.connection.execute(statement).all()
    if not stray:
        return Finding("unique", "ok", "no unique key is held by a job that has ended or is gone")
    named = ", ".join(f"{shown(one.key)} of job {one.job_id}" for one in stray)
    more = ", …" if stray[0].total > len(stray) else ""
    return Finding(
        "unique",
        "problem",
        f"{stray[0].total:,} unique keys of jobs that have ended or are gone, as after a DELETE by hand: {named}{more}",
        "a worker frees them within a minute: start one, or see its log",
        {"keys": float(stray[0].total)},
    )


def check_cleanup(examination: Examination) -> Finding:
    """Finished jobs that should be deleted by now."""
    overdue, limits = examination.overdue, examination.thresholds
    number = f"{CAP - 1:,} jobs or more" if overdue.rows >= CAP else jobs_of(overdue.rows)
    numbers = {"rows": float(overdue.rows), "seconds": overdue.seconds}
    if not overdue.rows:
        return Finding("cleanup", "ok", "no finished job is kept for longer than it should be", numbers=numbers)
    said = f"{number} should be deleted by now, the first for {age(overdue.seconds)}"
    if overdue.seconds < limits.overdue[0]:
        return Finding("cleanup", "ok", said, numbers=numbers)
    advice = "workers delete them: start one, or see its log for jobs that a foreign key of yours keeps"
    late = overdue.seconds >= limits.overdue[1] and overdue.rows >= limits.overdue_rows
    return Finding("cleanup", "problem" if late else "notice", said, advice, numbers)

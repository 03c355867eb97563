"""The jobs: how long they wait, leases, unique keys, and those that should be deleted by now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...arguments.storable import shown
from ...migrations import CURRENT
from ...rules.reasons import CLAIMS_FAIL
from ...rules.words import age, jobs_of, listed
from ...sql.readings.depths import CAP, capped, count_expired
from ...sql.unique import find_stray_keys
from ...sql.workers import serves
from ...util.log import escaped
from ..examination import Examination
from ..finding import Finding, Level, found

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
    expired = examination.connection.scalar(count_expired(job=examination.store.job)) or 0
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
    statement = find_stray_keys(limit=_NAMED, job=examination.store.job)
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


# ---- The workers, and whether they serve the queues and know the tasks that have jobs.


def check_workers(examination: Examination) -> Finding:
    """How many live and listen, and whether they are all of one release."""
    live = examination.live_workers
    stale = len(examination.workers) - len(live)
    places = ", ".join(f"{escaped(worker.host)}:{worker.pid}" for worker in live[:5]) + (", …" if len(live) > 5 else "")
    listening = sum(worker.listening for worker in live)
    said = f" ({places}), {listening} listening" if live else ""
    well = f"{len(live)} live{said}{f', {stale} stale' if stale else ''}"
    remarks = list(_remarks(examination))
    numbers = {"live": float(len(live)), "stale": float(stale), "listening": float(listening)}
    ill: list[tuple[Level, str, str]] = [(level, f"{well}; {said}", advice) for level, said, advice in remarks[:1]]
    return found("workers", well, *ill, *remarks[1:], **numbers)


def _remarks(examination: Examination) -> Iterator[tuple[Level, str, str]]:
    """What is unusual, and what to do about it; the worst first."""
    said = sorted({worker.pressure for worker in examination.abilities if worker.pressure})
    failing = [reason.removeprefix(CLAIMS_FAIL) for reason in said if reason.startswith(CLAIMS_FAIL)]
    if failing:
        yield (
            "problem",
            f"within the last minute the database refused claims: {escaped(listed(failing, 3))}",
            "see the workers' log, and what `limits`, `plans` and `indexes` say",
        )
    refused = {job: why for worker in examination.abilities for job, why in (worker.skipped or {}).items() if why}
    if refused:
        job, why = next(iter(refused.items()))
        yield (
            "problem",
            f"the database refused to let {jobs_of(len(refused))} be claimed, job {job} by: {escaped(why)}",
            f"`sa-jobqueue why {job}`; workers try such jobs again within 30 s",
        )
    versions = Counter(worker.version for worker in examination.live_workers)
    if len(versions) > 1:
        of_each = ", ".join(f"{number} of {escaped(version)}" for version, number in sorted(versions.items()))
        yield (
            "notice",
            f"of several releases: {of_each}",
            "right during a deployment; afterwards restart the older ones",
        )
    others = sorted({worker.schema_version for worker in examination.abilities} - {None, CURRENT})
    if others:
        yield (
            "notice",
            f"some are made for version {listed([str(one) for one in others])} of the schema",
            f"this release is made for version {CURRENT}: run one release everywhere after the deployment",
        )
    if held := [reason for reason in said if not reason.startswith(CLAIMS_FAIL)]:
        yield (
            "notice",
            f"some hold back: {escaped(listed(held, 3))}",
            "see what else the database does: locks, snapshot, connections",
        )


def check_queues(examination: Examination) -> Finding:
    """Queues with due jobs that no live worker serves."""
    served = {name for worker in examination.live_workers for name in worker.queues}
    alone = [one for one in examination.depths if one.due and not serves(served, one.queue)]
    if not alone:
        return Finding("queues", "ok", "every queue with due jobs is served", numbers={"unserved": 0.0})
    names = listed([f"{escaped(one.queue)} ({capped(one.due)})" for one in alone])
    return Finding(
        "queues",
        "problem",
        f"due jobs that no live worker serves: {names}",
        "start a worker with `sa-jobqueue work --queue NAME`",
        {"unserved": float(len(alone)), "jobs": float(sum(one.due for one in alone))},
    )

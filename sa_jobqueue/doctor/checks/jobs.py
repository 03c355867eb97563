"""Jobs that wait, leases, unique keys, overdue deletions, and workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ...arguments.storable import shown
from ...migrations import CURRENT
from ...rules.reasons import CLAIMS_FAIL
from ...rules.words import age, jobs_of, listed
from ...sql.readings.depths import CAP, capped, count_expired
from ...sql.steps import waits_for_signals
from ...sql.unique import find_stray_keys
from ...sql.workers import serves
from ...util.log import escaped
from ..examination import Examination
from ..finding import Fault, Finding, Level, beyond, found

#: The most unique keys and waits that are listed.
_NAMED = 3
#: The most waits for signals that are read.
_WAITS = 1_000


def check_waiting(examination: Examination) -> Finding:
    """Due jobs, and the wait of the oldest."""
    due = sum(depth.due for depth in examination.depths)
    oldest = max((depth.oldest_due_age or 0.0 for depth in examination.depths), default=0.0)
    more = "at least " if any(depth.due >= CAP for depth in examination.depths) else ""
    detail = f"{more}{jobs_of(due)} due" + (f", the oldest for {age(oldest)}" if due else "")
    numbers = {"due": float(due), "seconds": oldest}
    limit = examination.thresholds.max_wait
    if limit is not None and oldest > limit:
        advice = "start more workers, or give the queue more slots: `sa-jobqueue work --queue NAME=SLOTS`"
        return Finding("waiting", "problem", f"{detail}; more than {age(limit)} is too long", advice, numbers)
    return Finding("waiting", "ok", detail, numbers=numbers)


def check_leases(examination: Examination) -> Finding:
    """Running jobs whose worker has not renewed their lease."""
    expired = examination.connection.scalar(count_expired(job=examination.store.job)) or 0
    if expired:
        detail = f"{jobs_of(expired)} running with an expired lease: the worker died or is cut off"
        advice = "any worker rescues them within seconds: start one, or see the workers' log"
        return Finding("leases", "problem", detail, advice, {"expired": float(expired)})
    return Finding("leases", "ok", "no running job has an expired lease", numbers={"expired": 0.0})


def check_unique(examination: Examination) -> Finding:
    """Unique keys of jobs that were ended or deleted by the user's own SQL. Nothing else leaves keys behind."""
    statement = find_stray_keys(limit=_NAMED, job=examination.store.job)
    stray = examination.connection.execute(statement).all()
    if not stray:
        return Finding("unique", "ok", "no unique key is held by a job that has ended or is gone")
    named = ", ".join(f"{shown(row.key)} of job {row.job_id}" for row in stray)
    more = ", …" if stray[0].total > len(stray) else ""
    detail = (
        f"{stray[0].total:,} unique keys of jobs that have ended or are gone, as after a DELETE by hand: {named}{more}"
    )
    advice = "a worker frees them within a minute: start one, or see its log"
    return Finding("unique", "problem", detail, advice, {"keys": float(stray[0].total)})


def check_signals(examination: Examination) -> Finding:
    """Questions and signals for which jobs have waited long, the longest first."""
    limits = examination.thresholds.unanswered
    rows = examination.connection.execute(waits_for_signals(limit=_WAITS, job=examination.store.job)).all()
    asked = [row for row in rows if row.question is not None and row.seconds >= limits[0]]
    endless = [row for row in rows if row.question is None and row.until is None and row.seconds >= limits[1]]
    faults: list[Fault] = []
    if asked:
        level = beyond(asked[0].seconds, limits)
        advice = "answer them on the dashboard's page of questions, or with `sa-jobqueue signal NAME JSON`"
        faults.append((level, f"questions without an answer: {_waits(asked)}", advice))
    if endless:
        advice = "send the signal, or cancel the job; `ctx.wait_signal(..., timeout=...)` limits a wait"
        faults.append(("notice", f"long waits for signals, without a timeout: {_waits(endless)}", advice))
    number = f"{len(rows):,}{'+' if len(rows) == _WAITS else ''}"
    facts = "no job waits for a signal"
    if rows:
        facts = f"jobs that wait for signals: {number}, the first for {age(rows[0].seconds)}"
    return found("signals", facts, *faults, waits=len(rows), unanswered=len(asked), endless=len(endless))


def _waits(rows: Sequence[Any]) -> str:
    return listed([f"job {row.job_id} ({escaped(row.signal)}, for {age(row.seconds)})" for row in rows], _NAMED)


def check_cleanup(examination: Examination) -> Finding:
    """Finished jobs that should be deleted by now."""
    overdue, limits = examination.overdue, examination.thresholds
    number = f"{CAP - 1:,} jobs or more" if overdue.rows >= CAP else jobs_of(overdue.rows)
    numbers = {"rows": float(overdue.rows), "seconds": overdue.seconds}
    if not overdue.rows:
        return Finding("cleanup", "ok", "no finished job is overdue for deletion", numbers=numbers)
    detail = f"{number} should be deleted by now, the first for {age(overdue.seconds)}"
    if overdue.seconds < limits.overdue[0]:
        return Finding("cleanup", "ok", detail, numbers=numbers)
    advice = "workers delete them: start one, or see its log for jobs that a foreign key of yours keeps"
    late = overdue.seconds >= limits.overdue[1] and overdue.rows >= limits.overdue_rows
    return Finding("cleanup", "problem" if late else "notice", detail, advice, numbers)


# ---- The workers.


def check_workers(examination: Examination) -> Finding:
    """The live and listening workers, and whether all have the same release."""
    live = examination.live_workers
    stale = len(examination.workers) - len(live)
    places = ", ".join(f"{escaped(worker.host)}:{worker.pid}" for worker in live[:5]) + (", …" if len(live) > 5 else "")
    listening = sum(worker.listening for worker in live)
    detail = f" ({places}), {listening} listening" if live else ""
    summary = f"{len(live)} live{detail}{f', {stale} stale' if stale else ''}"
    remarks = list(_remarks(examination))
    faults: list[Fault] = [(level, f"{summary}; {detail}", advice) for level, detail, advice in remarks[:1]]
    return found(
        "workers", summary, *faults, *remarks[1:], live=float(len(live)), stale=float(stale), listening=float(listening)
    )


def _remarks(examination: Examination) -> Iterator[tuple[Level, str, str]]:
    """Faults of workers, the worst first."""
    detail = sorted({worker.pressure for worker in examination.abilities if worker.pressure})
    failing = [reason.removeprefix(CLAIMS_FAIL) for reason in detail if reason.startswith(CLAIMS_FAIL)]
    if failing:
        advice = "see the workers' log, and the checks `limits`, `plans` and `indexes`"
        yield "problem", f"within the last minute the database refused claims: {escaped(listed(failing, 3))}", advice
    refused = {job: why for worker in examination.abilities for job, why in (worker.skipped or {}).items() if why}
    if refused:
        job, why = next(iter(refused.items()))
        yield (
            "problem",
            f"the database refused to let {jobs_of(len(refused))} be claimed, job {job} by: {escaped(why)}",
            f"`sa-jobqueue why {job}`; workers try such jobs again within 30 s",
        )
    if not examination.live_workers:
        yield "notice", "no worker is alive", "start one: `sa-jobqueue work`"
    if stale := [worker for worker in examination.workers if worker.stale]:
        places = listed([f"{escaped(worker.host)}:{worker.pid}" for worker in stale], 3)
        advice = "their jobs are rescued; if they were not killed, see their logs and their connection to the database"
        yield "notice", f"not seen for a minute, or with an expired lease, and have not left: {places}", advice
    versions = Counter(worker.version for worker in examination.live_workers)
    if len(versions) > 1:
        of_each = ", ".join(f"{number} of {escaped(version)}" for version, number in sorted(versions.items()))
        advice = "normal during a deployment; afterwards restart workers of older releases"
        yield "notice", f"several releases: {of_each}", advice
    others = sorted({worker.schema_version for worker in examination.abilities} - {None, CURRENT})
    if others:
        advice = f"this release expects version {CURRENT}: run one release everywhere after the deployment"
        yield "notice", f"some expect version {listed(list(map(str, others)))} of the schema", advice
    if held := [reason for reason in detail if not reason.startswith(CLAIMS_FAIL)]:
        advice = "see the checks `locks`, `snapshot` and `connections`"
        yield "notice", f"some hold back: {escaped(listed(held, 3))}", advice


def check_queues(examination: Examination) -> Finding:
    """Queues with due jobs that no live worker serves."""
    served = {name for worker in examination.live_workers for name in worker.queues}
    alone = [depth for depth in examination.depths if depth.due and not serves(served, depth.queue)]
    if not alone:
        return Finding("queues", "ok", "every queue with due jobs is served", numbers={"unserved": 0.0})
    names = listed([f"{escaped(depth.queue)} ({capped(depth.due)})" for depth in alone])
    return Finding(
        "queues",
        "problem",
        f"due jobs that no live worker serves: {names}",
        "start a worker with `sa-jobqueue work --queue NAME`",
        {"unserved": float(len(alone)), "jobs": float(sum(depth.due for depth in alone))},
        [("queue", depth.queue) for depth in alone],
    )

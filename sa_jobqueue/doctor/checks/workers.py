"""The workers, and whether they serve the queues and know the tasks that have jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...log import escaped
from ...migrations import CURRENT
from ...reasons import CLAIMS_FAIL
from ...statements.depths import capped
from ...statements.workers import serves
from ...words import jobs_of, listed
from ..examination import Examination
from ..finding import Finding, Level, found

__all__ = ["check_queues", "check_workers"]


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

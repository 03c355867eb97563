"""The workers, and whether they serve the queues and know the tasks that have jobs."""

from __future__ import annotations

from collections import Counter

from ...log import escaped
from ...statements.sizes import capped
from ...words import listed
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
    ill: list[tuple[Level, str, str]] = []
    versions = Counter(worker.version for worker in live)
    if len(versions) > 1:
        of_each = ", ".join(f"{number} of {escaped(version)}" for version, number in sorted(versions.items()))
        ill.append(
            (
                "notice",
                f"{well}; they are of several releases: {of_each}",
                "that is as it should be during a deployment; afterwards restart the older ones",
            )
        )
    return found("workers", well, *ill, live=len(live), stale=stale, listening=listening)


def check_queues(examination: Examination) -> Finding:
    """Queues with due jobs that no live worker serves."""
    served = {name for worker in examination.live_workers for name in worker.queues}
    alone = [one for one in examination.depths if one.due and one.queue not in served]
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

"""The tasks: those that no worker knows, those whose time limits do not fit, and those whose jobs fail."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from ...rules.tally import BOUNDS, quantile
from ...rules.words import age, duration, jobs_of, listed
from ...sql.parts import in_seconds
from ...sql.workers import serves
from ...util.log import escaped, one_line
from ..examination import Examination
from ..finding import Finding, Level, Thresholds, beyond, found

_Ill = list[tuple[Level, str, str]]

_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
#: Seconds: a time limit up to this is never too far away.
_SHORT = 300.0


def check_tasks(examination: Examination) -> Finding:
    """Queued jobs and schedules of tasks that no live worker of their queue knows, nor the application where one is given."""
    queued = _queued(examination)
    queues = {queue for queue, _ in queued} | {queue for worker in examination.abilities for queue in worker.queues}
    known = {queue: tasks for queue in queues if (tasks := _known(examination, queue))}
    # What a queue without workers lacks is another check's, and a worker that says nothing of its tasks may know any.
    lost = [one for one in queued if one[0] in known and one[1] not in known[one[0]]]
    ill: _Ill = []
    if lost:
        names = listed([f"{escaped(task)} in {escaped(queue)}" for queue, task in lost])
        advice = "start workers whose --app has these tasks, or give the task its old name: @task(aliases=[...])"
        ill.append(("problem", f"no live worker knows the task: {names}", advice))
    if examination.tasks is not None:
        missing = listed([escaped(task) for task in sorted({task for _, task in queued} - examination.tasks)])
        if missing:
            advice = "do not deploy it yet" + (
                "" if lost else "; give a renamed task its old name: @task(aliases=[...])"
            )
            ill.append(("problem", f"the application of --app does not have: {missing}", advice))
    well = (
        "every queued task is known to a worker of its queue" if known else "no live worker says which tasks it knows"
    )
    return found("tasks", well, *ill, unknown=len(lost))


def _queued(examination: Examination) -> list[tuple[str, str]]:
    """Queue and task of jobs that wait, and of schedules that will enqueue some."""
    tables = examination.store.tables
    active = tables.schedule.paused_at.is_(None)
    planned = examination.connection.execute(sa.select(tables.schedule.queue, tables.schedule.task).where(active))
    return sorted({*examination.queued_tasks, *((row.queue, row.task) for row in planned)})


def _known(examination: Examination, queue: str) -> set[str]:
    """The names of tasks that the workers of a queue know; empty, if there are no workers or one says nothing."""
    known = [_names(worker) for worker in examination.abilities if serves(worker.queues, queue)]
    return set[str]().union(*known) if all(known) else set()


def known_tasks(examination: Examination) -> set[str]:
    """The names of tasks that live workers know, whatever their queues."""
    return {name for worker in examination.abilities for name in _names(worker)}


def _names(worker: Any) -> set[str]:
    return {name for task, about in worker.tasks.items() for name in (task, *_aliases(about))}


def _aliases(about: Any) -> list[str]:
    return list(about.get("aliases", ())) if isinstance(about, dict) else []


def check_timeouts(examination: Examination) -> Finding:
    """Each task's timeout and its workers' lease beside the time that 99 % of its runs stay within, as counted in the last day."""
    limits = examination.thresholds
    ill: _Ill = []
    looked = 0
    for row in examination.stats(_DAY):
        runs = sum(row.runs)
        about = examination.task_settings.get(row.task)
        if about is None or runs < max(limits.runs, 1):
            continue
        looked += 1
        timeout, lease = about
        ill += _judged(row, timeout, lease, limits)
    tasks = f"{looked} task{'' if looked == 1 else 's'}"
    well = f"timeouts and leases fit the runs of {tasks}" if looked else "too few runs were counted yet"
    return found("timeouts", well, *ill, tasks=looked)


def _judged(row: Any, timeout: float | None, lease: float | None, limits: Thresholds) -> _Ill:
    p99 = quantile(row.runs, 0.99) or 0.0
    took = f"{escaped(row.task)}: 99 % of its runs end within {duration(p99)}"
    ill: _Ill = []
    if timeout is not None and p99 >= limits.timeout_near * timeout:
        # Certain where the whole bucket is above it: a quantile is guessed within its bucket. Most timeouts are bounds of buckets,
        # so that runs which they stop are counted in the next one.
        level: Level = "problem" if _at_least(row.runs) >= limits.timeout_near * timeout else "notice"
        advice = f"look for what is slow, or give it more: @task(timeout={max(2 * timeout, 1):g})"
        if p99 > timeout:  # as guessed within a bucket that the timeout is in
            may = "reach" if _at_least(row.runs) >= timeout else "may reach"
            took_long = f"{escaped(row.task)}: the slowest 1 % of its runs {may} its timeout of {duration(timeout)}"
            ill.append((level, took_long, advice))
        else:
            ill.append((level, f"{took}, and its timeout is {duration(timeout)}", advice))
    if timeout is not None and timeout > max(limits.timeout_far * p99, _SHORT):
        advice = f"a handler that hangs is stopped only then: @task(timeout={max(10 * p99, 1):.0f}), say"
        ill.append(("notice", f"{took}, and its timeout is {duration(timeout)}", advice))
    if timeout is None and lease is not None and p99 > limits.lease_far * lease:
        advice = "a handler that hangs keeps its slot and its lease for ever: @task(timeout=...)"
        ill.append(("notice", f"{took}, and it has no timeout", advice))
    if lease is not None and lease > max(limits.timeout_far * p99, _SHORT):
        advice = (
            "after a crash its jobs wait for so long: `sa-jobqueue work --lease 60`; leases of running jobs are renewed"
        )
        ill.append(("notice", f"{took}, and the lease is {age(lease)}", advice))
    return ill


def _at_least(runs: list[int]) -> float:
    """The lower bound of the bucket that the p99 is in."""
    rank, below = 0.99 * sum(runs), 0
    for number, count in enumerate(runs):
        below += count
        if count and below >= rank:
            return BOUNDS[number - 1] if number else 0.0
    return 0.0


def check_failures(examination: Examination) -> Finding:
    """The part of each task's jobs that failed for good in the last hour, and outcomes that came too late to be written."""
    limits, most = examination.thresholds.failures, examination.thresholds.failed_jobs
    ill: _Ill = []
    failed = lost = 0
    for row in examination.stats(_HOUR):
        failed, lost = failed + row.failed, lost + row.lost
        ended = row.completed + row.failed
        level = beyond(row.failed / ended, limits) if row.failed >= most else "ok"
        if level != "ok":
            name = escaped(row.task)
            advice = (
                f"`sa-jobqueue list --status failed --task {name}` shows the errors; "
                f"`sa-jobqueue retry --task {name}` runs them again"
            )
            ill.append((level, f"{name}: {row.failed:,} of {ended:,} jobs failed for good", advice))
    if lost:
        advice = "their leases had run out, so they ran twice: look in the workers' logs for blocked loops and lost connections"
        ill.append(("notice", f"{lost:,} outcome{'' if lost == 1 else 's'} came too late to be written", advice))
    well = (
        f"{jobs_of(failed)} failed for good in the last hour" if failed else "no job failed for good in the last hour"
    )
    return found("failures", well, *ill, failed=failed, lost=lost)


# ---- Schedules that do not enqueue what they should.

_MOST = 100


def check_schedules(examination: Examination) -> Finding:
    """Those whose time has passed, that have an error, or that were paused because their jobs failed."""
    schedule = examination.store.tables.schedule
    late = schedule.due_at < in_seconds(-examination.thresholds.seen, name="seen_seconds")
    active = schedule.paused_at.is_(None)
    rows = examination.connection.execute(
        sa.select(
            schedule.name, schedule.error, schedule.paused_by, schedule.pause_reason, (active & late).label("late")
        )
        .where(sa.or_(active & late, schedule.error.is_not(None), schedule.paused_by == "failures"))
        .order_by(schedule.name)
        .limit(_MOST)
    ).all()
    number = examination.connection.scalar(sa.select(sa.func.count()).select_from(schedule)) or 0
    behind = [escaped(row.name) for row in rows if row.late]
    failing = [f"{escaped(row.name)} ({escaped(one_line(row.error))})" for row in rows if row.error]
    paused = [escaped(row.name) for row in rows if row.paused_by == "failures"]
    ill: list[tuple[Level, str, str]] = []
    if behind:
        advice = "start a worker that declares or serves them: any worker enqueues the jobs of all schedules"
        ill.append(("problem", f"no worker has looked at what is due: {listed(behind)}", advice))
    if failing:
        advice = "mend the rule or the task's options; `sa-jobqueue schedule list` shows the whole error"
        ill.append(("problem", f"not enqueued because of an error: {listed(failing, 3)}", advice))
    if paused:
        advice = "see why its jobs fail (`sa-jobqueue list --status failed`), then `sa-jobqueue schedule resume NAME`"
        ill.append(("problem", f"paused because its jobs failed: {listed(paused)}", advice))
    well = "there are no schedules" if not number else f"{number} {'is' if number == 1 else 'are'} in time"
    return found("schedules", well, *ill, schedules=number, behind=len(behind), paused=len(paused))

"""Tasks that no worker knows, whose time limits do not fit, or whose jobs fail; and schedules."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from ...rules.tally import BOUNDS, quantile
from ...rules.words import age, duration, listed
from ...sql.parts import in_seconds
from ...sql.workers import serves
from ...util.log import escaped, one_line
from ..examination import Examination
from ..finding import Fault, Finding, Level, Thresholds, beyond, found

_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
#: Seconds: a time limit up to this is never too long.
_SHORT = 300.0


def check_tasks(examination: Examination) -> Finding:
    """Queued jobs and schedules of tasks that no live worker of their queue knows, or that the given application does not have."""
    queued = _queued(examination)
    queues = {queue for queue, _ in queued} | {queue for worker in examination.abilities for queue in worker.queues}
    known = {queue: tasks for queue in queues if (tasks := _known(examination, queue))}
    # Queues without workers are the subject of another check, and a worker that does not list its tasks may know any task.
    lost = [(queue, task) for queue, task in queued if queue in known and task not in known[queue]]
    faults: list[Fault] = []
    if lost:
        names = listed([f"{escaped(task)} in {escaped(queue)}" for queue, task in lost])
        advice = "start workers whose --app has these tasks, or give the task its old name: @task(aliases=[...])"
        faults.append(("problem", f"no live worker knows the task: {names}", advice))
    if examination.tasks is not None:
        missing = listed([escaped(task) for task in sorted({task for _, task in queued} - examination.tasks)])
        if missing:
            advice = "do not deploy it yet" + (
                "" if lost else "; give a renamed task its old name: @task(aliases=[...])"
            )
            faults.append(("problem", f"the application of --app does not have: {missing}", advice))
    summary = "every queued task is known to a worker of its queue" if known else "no live worker lists its tasks"
    return found("tasks", summary, *faults, about=[("task", task) for _, task in lost], unknown=len(lost))


def _queued(examination: Examination) -> list[tuple[str, str]]:
    """Queue and task of queued jobs and of active schedules."""
    tables = examination.store.tables
    active = tables.schedule.paused_at.is_(None)
    planned = examination.connection.execute(sa.select(tables.schedule.queue, tables.schedule.task).where(active))
    return sorted({*examination.queued_tasks, *((row.queue, row.task) for row in planned)})


def _known(examination: Examination, queue: str) -> set[str]:
    """The names of tasks that the workers of a queue know; empty without workers, or if a worker does not list its tasks."""
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
    """Whether each task's timeout and lease fit the time within which 99 % of its runs of the last day ended."""
    limits = examination.thresholds
    faults: list[Fault] = []
    about: list[tuple[str, str]] = []
    checked = 0
    for row in examination.stats(_DAY):
        runs = sum(row.runs)
        settings = examination.task_settings.get(row.task)
        if settings is None or runs < max(limits.runs, 1):
            continue
        checked += 1
        judged = _judged(row, *settings, limits)
        about += [("task", row.task)] if judged else []
        faults += judged
    tasks = f"{checked} task{'' if checked == 1 else 's'}"
    summary = f"timeouts and leases fit the runs of {tasks}" if checked else "too few runs were counted yet"
    return found("timeouts", summary, *faults, about=about, tasks=checked)


def _judged(row: Any, timeout: float | None, lease: float | None, limits: Thresholds) -> list[Fault]:
    p99 = quantile(row.runs, 0.99) or 0.0
    took = f"{escaped(row.task)}: 99 % of its runs end within {duration(p99)}"
    faults: list[Fault] = []
    if timeout is not None and p99 >= limits.timeout_near * timeout:
        # It is certain only if the whole bucket is above the limit, because a quantile is estimated within its bucket. Most timeouts
        # are bounds of buckets, so that runs which they stop are counted in the next bucket.
        level: Level = "problem" if _at_least(row.runs) >= limits.timeout_near * timeout else "notice"
        advice = f"find out why it is slow, or allow more time: @task(timeout={max(2 * timeout, 1):g})"
        if p99 > timeout:  # as estimated within the timeout's bucket
            may = "reach" if _at_least(row.runs) >= timeout else "may reach"
            took_long = f"{escaped(row.task)}: the slowest 1 % of its runs {may} its timeout of {duration(timeout)}"
            faults.append((level, took_long, advice))
        else:
            faults.append((level, f"{took}, and its timeout is {duration(timeout)}", advice))
    if timeout is not None and timeout > max(limits.timeout_far * p99, _SHORT):
        advice = f"a hanging handler is stopped only after the timeout: use @task(timeout={max(10 * p99, 1):.0f}), for example"
        faults.append(("notice", f"{took}, and its timeout is {duration(timeout)}", advice))
    if timeout is None and lease is not None and p99 > limits.lease_far * lease:
        advice = "a hanging handler keeps its slot and its lease forever: @task(timeout=...)"
        faults.append(("notice", f"{took}, and it has no timeout", advice))
    if lease is not None and lease > max(limits.timeout_far * p99, _SHORT):
        advice = (
            "after a crash its jobs wait this long: `sa-jobqueue work --lease 60`; leases of running jobs are renewed"
        )
        faults.append(("notice", f"{took}, and the lease is {age(lease)}", advice))
    return faults


def _at_least(runs: list[int]) -> float:
    """The lower bound of the p99's bucket."""
    rank, below = 0.99 * sum(runs), 0
    for number, count in enumerate(runs):
        below += count
        if count and below >= rank:
            return BOUNDS[number - 1] if number else 0.0
    return 0.0


def check_failures(examination: Examination) -> Finding:
    """How often the jobs of each task failed for good in the last hour, and outcomes that came too late to be written."""
    limits, most = examination.thresholds.failures, examination.thresholds.failed_jobs
    faults: list[Fault] = []
    about: list[tuple[str, str]] = []
    failed = lost = 0
    for row in examination.stats(_HOUR):
        failed, lost = failed + row.failed, lost + row.lost
        ended = row.completed + row.failed
        level = beyond(row.failed / ended, limits) if row.failed >= most else "ok"
        if level != "ok":
            name = escaped(row.task)
            about.append(("task", row.task))
            advice = (
                f"`sa-jobqueue list --status failed --task {name}` shows the errors; "
                f"`sa-jobqueue retry --task {name}` runs them again"
            )
            faults.append((level, f"{name}: jobs failed for good {row.failed:,} of {ended:,} times", advice))
    if lost:
        advice = "their leases had run out, so they ran twice: search the workers' logs for blocked loops and lost connections"
        faults.append(("notice", f"{lost:,} outcome{'' if lost == 1 else 's'} came too late to be written", advice))
    summary = "no job failed for good in the last hour"
    if failed:
        summary = f"jobs failed for good {failed:,} time{'' if failed == 1 else 's'} in the last hour"
    return found("failures", summary, *faults, about=about, failed=failed, lost=lost)


# ---- Schedules that do not enqueue their jobs.

_MOST = 100


def check_schedules(examination: Examination) -> Finding:
    """Schedules whose time has passed, that have an error, or that were paused because their jobs failed."""
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
    faults: list[Fault] = []
    if behind:
        advice = "start a worker: any worker enqueues the jobs of all schedules"
        faults.append(("problem", f"no worker has enqueued due jobs of: {listed(behind)}", advice))
    if failing:
        advice = "correct the rule or the task's options; `sa-jobqueue schedule list` shows the whole error"
        faults.append(("problem", f"not enqueued because of an error: {listed(failing, 3)}", advice))
    if paused:
        advice = "see why its jobs fail (`sa-jobqueue list --status failed`), then `sa-jobqueue schedule resume NAME`"
        faults.append(("problem", f"paused because its jobs failed: {listed(paused)}", advice))
    summary = "there are no schedules" if not number else f"{number} {'is' if number == 1 else 'are'} in time"
    about = [("schedule", row.name) for row in rows]
    return found("schedules", summary, *faults, about=about, schedules=number, behind=len(behind), paused=len(paused))

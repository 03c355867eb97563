"""The text of every statement, kept in `golden/*.sql` and compared without a server.

After a wanted change write the files again, and read the diff:

python -m tests.statements.golden_cases
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import ClauseElement, DateTime, Integer, Text, column, select, table, true
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue.arguments.subjects import Subject
from sa_jobqueue.enqueueing.select import enqueue_select
from sa_jobqueue.models import Job, JobMixin, Schedule, WorkerRow
from sa_jobqueue.models.relationship import jobs_relationship
from sa_jobqueue.rules.lifecycle import Change, Event, JobStatus
from sa_jobqueue.rules.limits import Breaker, Limits, Rate
from sa_jobqueue.rules.outcomes import ErrorEntry
from sa_jobqueue.rules.tally import TaskTally
from sa_jobqueue.sql.admin import held_by
from sa_jobqueue.sql.apply import written_before
from sa_jobqueue.sql.archive import declare_archived, drop_archive_month, make_months_ahead
from sa_jobqueue.sql.archived import archive_parts, archived_ends, archived_facts, is_archive_locked
from sa_jobqueue.sql.claims import claim_listed, due_jobs, fetch_args, lock_listed
from sa_jobqueue.sql.complete import complete_job, complete_jobs, delete_completed
from sa_jobqueue.sql.expiry import end_expired, end_overdue, forget_expiry
from sa_jobqueue.sql.leases import attest_uptime, cancel_requests
from sa_jobqueue.sql.limits.claims import permits_freed
from sa_jobqueue.sql.limits.declared import (
    change_declared_limit,
    declare_new_limit,
    declared_limits,
    drop_undeclared_limits,
    lock_declared_limit,
    say_declared_limits,
)
from sa_jobqueue.sql.limits.state import FIRST_STATE, block, forget_states, limit_queues, tell_breakers
from sa_jobqueue.sql.limits.use import (
    count_states,
    due_of_queues,
    full_rates,
    limits_said,
    paused_keys,
    ready_keys,
    ready_of_keys,
    running_of_keys,
    running_of_tasks,
    stuck_permits,
)
from sa_jobqueue.sql.notes import drop_expired, drop_old_logs, drop_strays, write_logs, write_progress
from sa_jobqueue.sql.parts import complete_arguments
from sa_jobqueue.sql.prune import first_over, make_months_of_page, move_page, move_this, postpone_purge, prune_page
from sa_jobqueue.sql.readings.backlog import backlog_in_steps, begin_count, count_backlog, drop_old_backlog
from sa_jobqueue.sql.readings.depths import (
    arrivals,
    count_by_queue,
    count_expired,
    due_queues,
    list_workers,
    purge_overdue,
    queue_depths,
    queued_tasks,
    running_jobs,
    schedule_lag,
)
from sa_jobqueue.sql.readings.job_facts import job_facts
from sa_jobqueue.sql.readings.stats import add_stats, drop_old_stats, roll_up_stats, sum_stats, written_stats
from sa_jobqueue.sql.schedules.admin import enqueued_ticks, lock_schedule
from sa_jobqueue.sql.schedules.declared import (
    declared_schedules,
    lock_declared,
    pause_undeclared,
    resume_declared,
    say_declared,
)
from sa_jobqueue.sql.schedules.due import (
    MOVE,
    due_schedules,
    enqueue_ticks,
    failing_schedules,
    live_jobs,
    move_schedules,
    next_look,
    pause_failing,
    set_aside,
)
from sa_jobqueue.sql.steps import (
    begin_wait,
    note_once,
    note_unused,
    read_steps,
    read_ticket,
    record_step,
    send_signal,
    take_signal,
    waits_for_signals,
)
from sa_jobqueue.sql.unique import find_stray_keys
from sa_jobqueue.sql.waking import (
    channel_of,
    drop_expired_waits,
    end_waits,
    ends_of,
    open_end_gate,
    open_gates,
    survey,
    wait_for_jobs,
)
from sa_jobqueue.sql.workers import (
    database_pressure,
    drain_workers,
    enrol_worker,
    forget_workers,
    places_of,
    remove_worker,
    set_slots,
)
from sa_jobqueue.sql.workers import terminate_backend as end_backend
from sa_jobqueue.sql.workflows.actions import advance_workflows, stray_workflows
from sa_jobqueue.sql.workflows.healing import blocked_edges, heal_members, heal_workflows, stray_members
from sa_jobqueue.sql.workflows.insert import MemberRows, add_members, inputs_of, insert_callbacks, page_of_inputs
from sa_jobqueue.sql.workflows.pruning import (
    forget_workflows,
    make_months_of_members,
    move_members,
    postpone_workflow,
    prune_members,
    workflows_over,
)
from sa_jobqueue.sql.workflows.readings import (
    count_some_members,
    count_workflows,
    paused_workflows,
    workflow_callbacks,
    workflow_counts,
    workflow_graph,
    workflows_behind,
)
from sa_jobqueue.statements import (
    apply_changes,
    cancel_jobs,
    cancel_workflows,
    claim_jobs,
    close_breaker,
    copy_jobs,
    count_jobs,
    discard_jobs,
    edit_jobs,
    expired_leases,
    fork_job,
    insert_jobs,
    job_logs,
    job_steps,
    list_audit,
    list_limits,
    list_schedules,
    open_breaker,
    pause,
    pause_schedules,
    pause_workflows,
    prune_jobs,
    read_limits,
    record_action,
    release_jobs,
    remove_limit,
    remove_schedules,
    renew_leases,
    resume,
    resume_schedules,
    resume_workflows,
    retry_jobs,
    retry_workflow,
    run_schedules,
    set_limit,
    why_waiting,
    workflow_nodes,
)
from sa_jobqueue.tasks.calls import Call
from sa_jobqueue.tasks.decorator import task
from sa_jobqueue.tasks.options import Unique
from sa_jobqueue.tasks.registry import Registry

FOLDER = Path(__file__).parent / "golden"

_WORKER = uuid.UUID(int=7)
_ORDERS = table("orders", column("id", Integer), column("note", Text), column("due", DateTime(timezone=True)))


@task(name="shop.remind", registry=Registry())
def _remind(order_id: int, note: str | None = None) -> None: ...


class _Base(DeclarativeBase): ...


class _Stock(_Base):
    __tablename__ = "stock"
    place: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    jobs: Mapped[list[Job]] = jobs_relationship()


class _OwnBase(DeclarativeBase): ...


class _OwnJob(JobMixin, _OwnBase):
    __table_args__ = ({"schema": "golden_queue"},)
    tenant_id: Mapped[int | None]


_TIME = datetime(2026, 11, 21, tzinfo=UTC)


def _change(number: int) -> Change:
    error = ErrorEntry("Boom", "it went wrong") if number % 2 else None
    return Change(number, 1, Event.RETRY, JobStatus.QUEUED, JobStatus.CANCELLED, delay=1.0, error=error)


def _call(number: int) -> Call:
    due = _TIME if number % 2 else timedelta(seconds=number)
    return Call("greet", "{}", "default", 4, 10, due, "{}")


def _members(number: int) -> MemberRows:
    return MemberRows(
        calls=[_call(0)._replace(run_at=_TIME) for _ in range(number)],
        inputs=[0] * number,
        waits=[0] * number,
        children=[1] * number,
        parents=[-1] * number,
        policies=["cancel"] * number,
        positions=[None] * number,
    )


#: Statements over a batch, by the size of it.
BATCHES: dict[str, Callable[[int], object]] = {
    "claim_jobs_but": lambda n: claim_jobs(worker="me", queues={"q": n}, lease=60.0, but=range(n)),
    "claim_listed": lambda n: claim_listed(ids=range(n), worker="me", lease=60.0),
    "due_jobs": lambda n: due_jobs(queues={"q": n}, but=range(n)),
    "lock_listed": lambda n: lock_listed(ids=range(n)),
    "claim_jobs": lambda n: claim_jobs(
        worker="me",
        queues={f"q{i}": i for i in range(n)},
        lease=60.0,
        after={(f"q{i}", 4): (_TIME.timestamp(), i) for i in range(n)},
    ),
    "complete_arguments": lambda n: complete_arguments(ids=range(n), args=["{}"] * n),
    "complete_arguments_and_subjects": lambda n: complete_arguments(
        ids=range(n), args=["{}"] * n, subjects=[Subject("Order", "7")] * n
    ),
    "live_jobs": lambda n: live_jobs(range(n)),
    "block": lambda n: block(range(n), [30.0] * n),
    "tell_breakers": lambda n: tell_breakers(range(n), [Breaker().told(failed=True)] * n),
    "limit_queues": lambda n: limit_queues([f"q{i}" for i in range(n)]),
    "due_of_queues": lambda n: due_of_queues([f"q{i}" for i in range(n)]),
    "ready_of_keys": lambda n: ready_of_keys(["queue"] * n, [f"q{i}" for i in range(n)], [None] * n),
    "failing_schedules": lambda n: failing_schedules(range(n)),
    "pause_failing": lambda n: pause_failing(range(n)),
    "move_schedules": lambda n: move_schedules(**{name: range(n) for name in MOVE}),
    "declared_schedules": lambda n: declared_schedules([f"s{i}" for i in range(n)]),
    "declare_archived": lambda n: declare_archived([f"t{i}" for i in range(n)], []),
    "declared_limits": lambda n: declared_limits(["queue"] * n, [f"q{i}" for i in range(n)]),
    "say_declared_limits": lambda n: say_declared_limits(["queue"] * n, [f"q{i}" for i in range(n)]),
    "say_declared": lambda n: say_declared([f"s{i}" for i in range(n)]),
    "resume_declared": lambda n: resume_declared([f"s{i}" for i in range(n)]),
    "apply_changes": lambda n: apply_changes([_change(i) for i in range(n)]),
    "apply_changes_waiting": lambda n: apply_changes([_change(i) for i in range(n)], skip_locked=False),
    "complete_jobs": lambda n: complete_jobs(ids=range(n), tokens=[1] * n, retain=[60.0] * n),
    "complete_members": lambda n: complete_jobs(ids=range(n), tokens=[1] * n, retain=[None] * n, in_workflows=True),
    "apply_changes_of_members": lambda n: apply_changes([_change(i) for i in range(n)], in_workflows=True),
    "add_members": lambda n: add_members(7, _members(n)),
    "advance_workflows": lambda n: advance_workflows(dict.fromkeys(range(n), 0), most=10),
    "cancel_workflows": lambda n: cancel_workflows(*range(n)),
    "pause_workflows": lambda n: pause_workflows(*range(n)),
    "resume_workflows": lambda n: resume_workflows(*range(n)),
    "inputs_of": lambda n: inputs_of(range(n), most=10, size=100),
    "workflow_counts": lambda n: workflow_counts(range(n)),
    "count_some_members": lambda n: count_some_members(range(n), cap=1_001),
    "forget_workflows": lambda n: forget_workflows(range(n)),
    "insert_callbacks": lambda n: insert_callbacks(7, [("end", _call(0)) for _ in range(n)]),
    "record_results": lambda n: complete_jobs(
        ids=range(n), tokens=[1] * n, retain=[60.0] * n, results=[f"{i}" for i in range(n)]
    ),
    "record_results_and_claim": lambda n: complete_jobs(
        ids=range(n),
        tokens=[1] * n,
        retain=[60.0] * n,
        results=[None] * n,
        claim=claim_jobs(worker="me", queues={"q": n}, lease=60.0),
    ),
    "delete_completed": lambda n: delete_completed(ids=range(n), tokens=[1] * n),
    "complete_jobs_and_claim": lambda n: complete_jobs(
        ids=range(n), tokens=[1] * n, retain=[60.0] * n, claim=claim_jobs(worker="me", queues={"q": n}, lease=60.0)
    ),
    "delete_completed_and_claim": lambda n: delete_completed(
        ids=range(n), tokens=[1] * n, claim=claim_jobs(worker="me", queues={"q": n}, lease=60.0)
    ),
    "written_before": lambda n: written_before(ids=range(n), tokens=[1] * n),
    "add_stats": lambda n: add_stats([TaskTally("mail", f"t{i}") for i in range(n)], worker=_WORKER, number=n),
    "renew_leases": lambda n: renew_leases(ids=range(n), tokens=[1] * n, lease=60.0),
    "cancel_requests": lambda n: cancel_requests(ids=range(n), tokens=[1] * n),
    "insert_jobs": lambda n: insert_jobs([_call(i) for i in range(n)]),
    "release_unknown": lambda n: release_jobs(held_by("me", but=[(i, 1) for i in range(n)])),
    "write_progress": lambda n: write_progress(
        ids=range(n), tokens=[1] * n, fractions=[0.5] * n, messages=[None] * n, ended=[False] * n
    ),
    "write_logs": lambda n: write_logs(
        ids=range(n), tokens=[1] * n, parts=[0] * n, first=[0] * n, attempts=[1] * n, lines=["[]"] * n, ended=[True] * n
    ),
    "drop_old_logs": lambda n: drop_old_logs(range(n)),
    "places_of": lambda n: places_of([_WORKER] * n),
    "ends_of": lambda n: ends_of(range(n)),
    "archived_ends": lambda n: archived_ends(range(n)),
    "wait_for_jobs": lambda n: wait_for_jobs(range(n), waiter=_WORKER, seconds=60.0),
    "end_waits": lambda n: end_waits(range(n), waiter=_WORKER),
    "open_gates": lambda n: open_gates(queues=[f"q{i}" for i in range(n)], seconds=5.0),
    "survey": lambda n: survey(queues=[f"q{i}" for i in range(n)], but=range(n), known=None, seconds=5.0),
}

#: All others.
_DAY = datetime(2026, 3, 1, tzinfo=UTC)

SINGLE: dict[str, Callable[[], object]] = {
    "complete_job": lambda: complete_job(id=1, token=1, retain=60.0),
    "record_result": lambda: complete_job(id=1, token=1, retain=60.0, result="{}"),
    "attest_uptime": lambda: attest_uptime(lease=60.0, outage=30.0),
    "expired_leases": lambda: expired_leases(after=5, limit=50),
    "cancel_jobs": lambda: cancel_jobs(Job.queue == "mail", Job.is_scheduled),
    "retry_jobs": lambda: retry_jobs(Job.id == 1),
    "retry_jobs_over_an_hour": lambda: retry_jobs(Job.id == 1, spread=timedelta(hours=1)),
    "discard_jobs": lambda: discard_jobs(true(), reason="useless"),
    "release_jobs": lambda: release_jobs(Job.worker == "gone", delay=5),
    "edit_jobs": lambda: edit_jobs(Job.id == 1, args={"order_id": 8}, queue="mail", priority=9, run_at=_TIME),
    "edit_jobs_that_are_free": lambda: edit_jobs(Job.id == 1, run_at=timedelta(minutes=5), locked="skip"),
    "copy_jobs": lambda: copy_jobs(Job.id == 1, delay=5),
    "prune_jobs": prune_jobs,
    "prune_jobs_where": lambda: prune_jobs(Job.queue == "old", limit=10),
    "prune_page": lambda: prune_page(after=1.0, limit=10),
    "move_page": lambda: move_page(after=1.0, limit=10),
    "move_own_page": lambda: move_page(after=1.0, limit=10, job=_OwnJob),
    "move_this": lambda: move_this(Job.id == 1),
    "make_months_of_page": lambda: make_months_of_page(after=1.0, limit=10),
    "make_months_ahead": make_months_ahead,
    "drop_archive_month": lambda: drop_archive_month(12),
    "first_over": lambda: first_over(after=1.0),
    "first_over_archived": lambda: first_over(after=1.0, archive=True),
    "postpone_purge": lambda: postpone_purge(Job.id == 1, by=timedelta(days=1)),
    "count_jobs": count_jobs,
    "list_workers": list_workers,
    "count_expired": count_expired,
    "arrivals": lambda: arrivals(within=timedelta(minutes=5)),
    "count_by_queue": lambda: count_by_queue(JobStatus.FAILED),
    "schedule_lag": schedule_lag,
    "find_stray_keys": lambda: find_stray_keys(limit=3),
    "purge_overdue": purge_overdue,
    "due_queues": due_queues,
    "open_gates_of_all": lambda: open_gates(queues=None, seconds=5.0),
    "queue_depths": queue_depths,
    "queued_tasks": lambda: queued_tasks(sample=200),
    "running_jobs": running_jobs,
    "count_jobs_where": lambda: count_jobs(Job.queue == "mail"),
    "insert_jobs_with_keys": lambda: insert_jobs([_call(1)._replace(key="a"), _call(2)._replace(units=3)]),
    "enqueue_select": lambda: enqueue_select(_remind, select(_ORDERS.c.id, _ORDERS.c.note)),
    "enqueue_select_by_key": lambda: enqueue_select(
        _remind.options(unique=Unique(by=("order_id",))), select(_ORDERS.c.id), run_at=_ORDERS.c.due
    ),
    "insert_jobs_with_subjects": lambda: insert_jobs([_call(1)._replace(subject=Subject("Order", "7")), _call(2)]),
    "enqueue_select_about_rows": lambda: enqueue_select(_remind, select(_Stock.number, _Stock.place), subject=_Stock),
    "objects_with_jobs": lambda: select(_Stock).where(_Stock.jobs.any(Job.task == "pack")),
    "jobs_about": lambda: select(Job.id).where(Job.subject == Subject("Order", "7")),
    "fetch_args": lambda: fetch_args(1, most=100),
    "end_expired": lambda: end_expired(limit=1_000),
    "end_overdue": lambda: end_overdue(limit=1_000),
    "forget_expiry": lambda: forget_expiry(limit=1_000),
    "database_pressure": database_pressure,
    "written_stats": lambda: written_stats(_WORKER),
    "roll_up_stats": lambda: roll_up_stats(keep=timedelta(days=7), limit=100),
    "drop_old_stats": lambda: drop_old_stats(keep=timedelta(days=90), limit=100),
    "begin_count": begin_count,
    "count_backlog": lambda: count_backlog(cap=1_000),
    "drop_old_backlog": lambda: drop_old_backlog(keep=timedelta(days=7)),
    "backlog_in_steps": lambda: backlog_in_steps(
        begin=_DAY, until=_DAY + timedelta(hours=1), step=timedelta(minutes=1), queues=["q"]
    ),
    "sum_stats": lambda: sum_stats(since=timedelta(hours=1), by=("queue", "task")),
    "sum_stats_in_steps": lambda: sum_stats(since=timedelta(hours=1), queues=["q"], step=timedelta(minutes=5)),
    "enrol_worker": lambda: enrol_worker(id=_WORKER, host="a", pid=1, queues=["q"], concurrency=1, version="1"),
    "answer_worker": lambda: enrol_worker(
        id=_WORKER, host="a", pid=1, queues=["q"], concurrency=1, version="1", answered={"slots": {"q": 1}}
    ),
    "drain_workers": lambda: drain_workers(WorkerRow.host == "web-1"),
    "set_slots": lambda: set_slots(WorkerRow.host == "web-1", slots={"mail": 20, "old": 0}),
    "remove_worker": lambda: remove_worker(_WORKER),
    "forget_workers": lambda: forget_workers(unseen_for=timedelta(days=1)),
    "next_look": next_look,
    "due_schedules": lambda: due_schedules(limit=500),
    "due_schedule": lambda: due_schedules(limit=1, only=7),
    "enqueue_ticks": lambda: enqueue_ticks(schedules=[7], times=[0.0], numbers=[1], delays=[0.0]),
    "set_aside": lambda: set_aside(7, error="because", seconds=60.0),
    "pause_undeclared": lambda: pause_undeclared(after=timedelta(minutes=5)),
    "lock_declared": lambda: lock_declared("report"),
    "declare_new_limit": lambda: declare_new_limit("queue", "sync", values=Limits(running=3).columns(), digest="a"),
    "lock_declared_limit": lambda: lock_declared_limit("queue", "sync"),
    "change_declared_limit": lambda: change_declared_limit(
        "queue", "sync", changes={"running": 3}, declared={"running": 3}, definitions=["a", "b"]
    ),
    "drop_undeclared_limits": lambda: drop_undeclared_limits(after=timedelta(minutes=5)),
    "pause_schedules": lambda: pause_schedules(Schedule.name == "report", reason="audit"),
    "resume_schedules": lambda: resume_schedules(Schedule.name == "report"),
    "remove_schedules": lambda: remove_schedules(Schedule.name == "report"),
    "run_schedules": lambda: run_schedules(Schedule.name == "report"),
    "list_schedules": list_schedules,
    "lock_schedule": lambda: lock_schedule("report"),
    "enqueued_ticks": lambda: enqueued_ticks(7, start=_DAY, end=_DAY),
    "end_backend": lambda: end_backend(1, application="a", seconds=1.0),
    "drop_stray_progress": lambda: drop_strays("progress", after=5, limit=10),
    "drop_stray_logs": lambda: drop_strays("log", after=5, limit=10),
    "drop_stray_steps": lambda: drop_strays("step", after=5, limit=10),
    "drop_expired_signals": lambda: drop_expired("signal", limit=10),
    "record_step": record_step,
    "take_signal": take_signal,
    "read_steps": read_steps,
    "note_unused": note_unused,
    "job_steps": lambda: job_steps(7, most=1_000),
    "fork_job": lambda: fork_job(7, from_step="book"),
    "drop_stray_waits": lambda: drop_strays("wait", after=5, limit=10),
    "begin_wait": begin_wait,
    "send_signal": lambda: send_signal("paid", {"by": "ann"}, expires_in=60),
    "waits_for_signals": lambda: waits_for_signals(limit=10),
    "read_ticket": lambda: read_ticket("go", "a", 5),
    "note_once": lambda: note_once("a"),
    "set_limit": lambda: set_limit("sync", running=3, rate=None, strict=True),
    "set_limit_of_a_key": lambda: set_limit("sync", key="42", owner="task", rate=Rate(5), weight=3),
    "remove_limit": lambda: remove_limit("sync"),
    "remove_limit_of_a_key": lambda: remove_limit("sync", key="42"),
    "open_breaker": lambda: open_breaker("call", key="42", rest=60, who="ada"),
    "close_breaker": lambda: close_breaker("call"),
    "pause": lambda: pause("sync", reason="audit"),
    "pause_key": lambda: pause("sync", key="42"),
    "resume": lambda: resume("sync"),
    "resume_key": lambda: resume("sync", key="42"),
    "list_limits": list_limits,
    "read_limits": lambda: read_limits(queues=["mail", "slow"]),
    "why_waiting": lambda: why_waiting(7),
    "job_facts": lambda: job_facts([7]),
    "archive_parts": lambda: archive_parts(schema="sa_jobqueue", table="job"),
    "archived_facts": lambda: archived_facts(7),
    "is_archive_locked": lambda: is_archive_locked(schema="sa_jobqueue"),
    "complete_member": lambda: complete_job(id=1, token=1, retain=None, in_workflow=True),
    "retry_workflow": lambda: retry_workflow(7, from_node=8),
    "workflow_nodes": lambda: workflow_nodes(7),
    "workflow_graph": lambda: workflow_graph(7, limit=10_000),
    "list_audit_of_one": lambda: list_audit(before=7, who="ada", action="retry"),
    "workflow_callbacks": lambda: workflow_callbacks(7),
    "stray_workflows": lambda: stray_workflows(limit=10),
    "page_of_inputs": lambda: page_of_inputs(7, limit=10),
    "heal_members": lambda: heal_members(limit=10),
    "stray_members": lambda: stray_members(limit=10),
    "blocked_edges": lambda: blocked_edges(limit=10),
    "workflows_over": lambda: workflows_over(limit=10),
    "heal_workflows": lambda: heal_workflows(limit=10),
    "prune_members": lambda: prune_members(7, limit=10),
    "move_members": lambda: move_members(7, limit=10),
    "make_months_of_members": lambda: make_months_of_members(7, limit=10),
    "postpone_workflow": lambda: postpone_workflow(7),
    "count_workflows": count_workflows,
    "workflows_behind": workflows_behind,
    "paused_workflows": lambda: paused_workflows(seconds=86_400.0),
    "limits_said": limits_said,
    "paused_keys": paused_keys,
    "running_of_keys": running_of_keys,
    "running_of_tasks": running_of_tasks,
    "ready_keys": ready_keys,
    "stuck_permits": lambda: stuck_permits(seconds=3_600.0),
    "full_rates": full_rates,
    "count_states": count_states,
    "forget_states": lambda: forget_states(after=FIRST_STATE, limit=10),
    "permits_freed": permits_freed,
    "job_logs": lambda: job_logs(7),
    "job_logs_of_an_attempt": lambda: job_logs(7, attempt=2),
    "record_action": lambda: record_action("retry", who="ada", target={"queue": ["mail"]}, count=12),
    "list_audit": lambda: list_audit(before=100),
    "channel_of": lambda: channel_of(table="job", schema="a"),
    "open_end_gate": lambda: open_end_gate(seconds=60.0),
    "drop_expired_waits": drop_expired_waits,
}


def all_cases() -> Iterator[tuple[str, object]]:
    yield from ((name, build(3)) for name, build in BATCHES.items())
    yield from ((name, build()) for name, build in SINGLE.items())


def compiled(statement: object) -> str:
    """The text as psycopg gets it; without the parentheses that older versions of SQLAlchemy put around a function in an index."""
    assert isinstance(statement, ClauseElement)
    text = str(statement.compile(dialect=psycopg.dialect()))
    return re.sub(r"\[\((\w+\([\w.]+\))\)\]", r"[\1]", text)


_WORDS = {
    *("WITH", "SELECT", "INSERT", "UPDATE", "DELETE", "FROM", "USING", "SET", "WHERE", "AND", "OR", "RETURNING"),
    *("LIMIT", "FOR", "UNION", "LEFT", "JOIN", "GROUP", "ORDER"),
}
_TOKEN = re.compile(rf"'[^']*'|\(|\)|,|\b(?:{'|'.join(sorted(_WORDS))})\b|[^'(),\w]+|\w+")


def laid_out(sql: str) -> str:
    """The same text with line breaks where a reader wants them: before clauses, and between the columns of a list.

    Parentheses that hold no query stay on one line.
    """
    sql = re.sub(r"\s+", " ", sql).strip()
    out: list[str] = []
    queries: list[bool] = []  # for each open parenthesis: does it hold a query?
    indent = 0

    def new_line() -> None:
        while out and out[-1] == " ":
            out.pop()
        out.append("\n" + "    " * indent)

    for match in _TOKEN.finditer(sql):
        token = match.group()
        before = sql[: match.start()].rstrip()
        inside = not queries or queries[-1]
        if token == "(":
            out.append(token)
            queries.append(bool(re.match(r"\s*\(*\s*(SELECT|UPDATE|DELETE)\b", sql[match.end() :])))
            indent += queries[-1]
        elif token == ")":
            if queries.pop():
                indent -= 1
                new_line()
            out.append(token)
        elif token == "," and inside:
            out.append(token)
            new_line()
            out.append("    ")
        elif token in _WORDS and inside and before and not _joined(before, token, sql[match.end() :]):
            new_line()
            out.append(token)
        elif not (token.isspace() and out and out[-1].startswith("\n")):
            out.append(token.lstrip() if out and out[-1].strip(" ") in {"\n", ""} else token)
    return "\n".join(line.rstrip() for line in "".join(out).splitlines()) + "\n"


def _joined(before: str, token: str, after: str) -> bool:
    """Whether the word belongs to the one before it: FOR UPDATE OF, LEFT OUTER JOIN, CASE WHEN a AND b."""
    if token in {"AND", "OR"} and before.count("CASE") > len(re.findall(r"\bEND\b", before)):
        return True
    return bool(re.search(r"\b(FOR|KEY|NO KEY|OUTER|ROWS)$", before)) or (token == "FROM" and before.endswith("ROWS"))


def main() -> None:
    for stale in FOLDER.glob("*.sql"):
        stale.unlink()
    for name, statement in all_cases():
        (FOLDER / f"{name}.sql").write_text(laid_out(compiled(statement)))


if __name__ == "__main__":
    main()

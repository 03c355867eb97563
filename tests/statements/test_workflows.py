"""Workflows, statement by statement: what releases a job, what cancels it, and what an operator does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text, true, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import Batch, Job, TaskName, Unique, Workflow
from sa_jobqueue.errors import WorkflowError
from sa_jobqueue.rules.lifecycle import Claim, Rules, decide
from sa_jobqueue.rules.outcomes import Cancel, Completed, Discard, ErrorEntry, Rescued, Retry
from sa_jobqueue.rules.reasons import WaitReason
from sa_jobqueue.sql.claims import ClaimRequest
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import (
    cancel_jobs,
    cancel_workflows,
    discard_jobs,
    pause_workflows,
    prune_jobs,
    release_jobs,
    resume_workflows,
    retry_jobs,
    retry_workflow,
    why_waiting,
)
from sa_jobqueue.workflows import Addition, Node
from tests.support.factory import make_job, row, statuses, wait_until_blocked_by
from tests.support.waiting import wait_until
from tests.support.workflows import Flow, events

STORE = default_store


# ---- releasing


def test_a_chain_is_released_one_after_the_other(connection: Connection) -> None:
    """Each when the one before it has completed; then the workflow has."""
    flow = Flow(connection, "a", "b: a", "c: b")
    assert flow.statuses() == {"a": "queued", "b": "blocked", "c": "blocked"}
    flow.complete("a")
    assert flow.statuses() == {"a": "completed", "b": "queued", "c": "blocked"}
    flow.complete("b", "c")
    assert flow.row().status == "completed"
    assert flow.fired == ["on_success", "on_end"]
    assert events(connection) == []


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_a_join_waits_for_all_in_any_order(connection: Connection, order: str) -> None:
    """It waits for one that has not ended, and then for another."""
    flow = Flow(connection, "a", "b", "c", "d: a b c")
    for name in order:
        assert flow.statuses()["d"] == "blocked"
        flow.complete(name)
    assert flow.statuses()["d"] == "queued"


def test_some_of_several_suffice(connection: Connection) -> None:
    """The others go on."""
    flow = Flow(connection, "a", "b", "c", "d: 2/a,b,c")
    flow.complete("c")
    assert flow.statuses()["d"] == "blocked"
    flow.fail("a")
    assert flow.statuses()["d"] == "blocked"
    flow.complete("b")
    assert flow.statuses()["d"] == "queued"


def test_some_of_several_that_cannot_suffice_any_more_cancel(connection: Connection) -> None:
    """As soon as that is known."""
    flow = Flow(connection, "a", "b", "c", "d: 2/a,b,c")
    flow.fail("a")
    flow.fail("b")
    assert flow.statuses() == {"a": "failed", "b": "failed", "c": "queued", "d": "cancelled"}


def test_a_job_that_needs_some_and_others_waits_for_both(connection: Connection) -> None:
    """In whatever order they come."""
    flow = Flow(connection, "a", "b", "c", "d: 1/a,b c")
    flow.complete("a")
    assert flow.statuses()["d"] == "blocked"
    flow.complete("c")
    assert flow.statuses()["d"] == "queued"


@pytest.mark.parametrize("most", [1, 2, 1_000])
def test_pages_change_nothing(connection: Connection, most: int) -> None:
    """What does not fit into one step is done in the next."""
    flow = Flow(connection, "a", "b", *(f"c{n}: a b" for n in range(7)), "d: " + " ".join(f"c{n}" for n in range(7)))
    flow.end("a", Completed())
    flow.end("b", Completed())
    flow.settle(most=most)
    assert {flow.statuses()[f"c{n}"] for n in range(7)} == {"queued"}
    for number in range(7):
        flow.end(f"c{number}", Completed())
    flow.settle(most=most)
    flow.end("d", Completed())
    flow.settle(most=most)
    assert flow.row().status == "completed"
    assert events(connection) == []


def test_a_gate_completes_by_itself(connection: Connection) -> None:
    """It has no handler."""
    workflow = Workflow()
    parents = [workflow.add("t") for _ in range(2)]
    gate = workflow.gate(*parents)
    child = workflow.after(gate, "t")
    flow = Flow.__new__(Flow)
    flow.connection, flow.workflow, flow.nodes = (
        connection,
        workflow,
        {"a": parents[0], "b": parents[1], "g": gate, "c": child},
    )
    session = Session(connection)
    session.add(workflow)
    session.flush()
    flow.complete("a", "b")
    assert flow.statuses() == {"a": "completed", "b": "completed", "g": "completed", "c": "queued"}


def test_an_empty_workflow_completes(connection: Connection) -> None:
    """There is nothing to wait for."""
    flow = Flow(connection)
    flow.settle()
    assert flow.row().status == "completed"
    assert flow.fired == ["on_success", "on_end"]


# ---- failures


def test_what_depends_on_a_failure_is_cancelled_and_the_others_go_on(connection: Connection) -> None:
    """With the reason, and the job that is to blame."""
    flow = Flow(connection, "a", "b", "c: a", "d: c b", "e: b")
    flow.fail("a")
    assert flow.statuses() == {"a": "failed", "b": "queued", "c": "cancelled", "d": "cancelled", "e": "blocked"}
    assert flow.reason("d") == f"it depends on job {flow.job('a')}, which did not complete"
    assert row(connection, flow.job("d")).errors[-1]["failed_id"] == flow.job("a")
    flow.complete("b", "e")
    assert flow.row().status == "failed"
    assert flow.fired == ["on_failure", "on_end"]


def test_jobs_that_needed_a_failed_one_are_cancelled_however_many_they_are(connection: Connection) -> None:
    """Nothing that happens later would lead to those beyond a page."""
    flow = Flow(connection, "a", "b", *(f"c{n}: 2/a,b" for n in range(7)), "d: c6")
    flow.end("a", Discard("on purpose"))
    flow.settle(most=3)
    assert Counter(flow.statuses().values()) == {"failed": 1, "queued": 1, "cancelled": 8}
    assert flow.reason("d") == f"it depends on job {flow.job('a')}, which did not complete"


def test_a_long_chain_is_cancelled_in_one_step_up_to_a_page(connection: Connection) -> None:
    """And each names the job that failed; who is to run all the same is released."""
    chain = [f"{n}: {n - 1}" for n in range(1, 40)]
    flow = Flow(connection, "0", *chain, "after: ~39")
    flow.end("0", Discard("on purpose"))
    flow.advance(most=30)
    assert Counter(flow.statuses().values()) == {"failed": 1, "cancelled": 30, "blocked": 10}
    assert flow.settle(most=30) < 5
    assert Counter(flow.statuses().values()) == {"failed": 1, "cancelled": 39, "queued": 1}
    assert flow.reason("39") == f"it depends on job {flow.job('0')}, which did not complete"


def test_a_child_that_is_to_run_all_the_same_does(connection: Connection) -> None:
    """Once its parents have ended."""
    flow = Flow(connection, "a", "b", "c: ~a ~b")
    flow.fail("a")
    assert flow.statuses()["c"] == "blocked"
    flow.complete("b")
    assert flow.statuses()["c"] == "queued"


def test_fail_fast_cancels_all(connection: Connection) -> None:
    """Also what runs: it is asked to stop."""
    flow = Flow(connection, "a", "b", "c", "d: c", fail_fast=True)
    claim = flow.start("b")
    flow.fail("a")
    assert flow.statuses() == {"a": "failed", "b": "running", "c": "cancelled", "d": "cancelled"}
    assert row(connection, flow.job("b")).cancel_requested_at is not None
    STORE.apply(connection, [decide(claim, Cancel("stopped"), Rules(), random=0.5)])
    flow.settle()
    assert flow.row().status == "failed"


def test_a_failure_is_called_back_once(connection: Connection) -> None:
    """Of two. After a retry only the end is said again."""
    flow = Flow(connection, "a", "b")
    flow.fail("a", "b")
    assert flow.fired == ["on_failure", "on_end"]
    connection.execute(retry_workflow(flow.id)).all()
    flow.settle()
    flow.fail("a")
    flow.complete("b")
    assert flow.fired == ["on_failure", "on_end", "on_end"]


def test_success_is_called_back_after_a_retry_if_it_was_not_before(connection: Connection) -> None:
    """Each of them once, except the end."""
    flow = Flow(connection, "a")
    flow.fail("a")
    connection.execute(retry_workflow(flow.id)).all()
    flow.settle()
    flow.complete("a")
    assert flow.fired == ["on_failure", "on_end", "on_success", "on_end"]


# ---- every way of ending


def by_expiry(connection: Connection, flow: Flow) -> None:
    connection.execute(
        text("UPDATE sa_jobqueue.job SET expires_at = now() - interval '1 s' WHERE id = :id"), {"id": flow.job("a")}
    )
    STORE.end_expired(connection)


def by_deadline(connection: Connection, flow: Flow) -> None:
    connection.execute(
        text("UPDATE sa_jobqueue.job SET deadline_at = now() - interval '1 s' WHERE id = :id"), {"id": flow.job("a")}
    )
    STORE.end_overdue(connection)


def by_rescue(connection: Connection, flow: Flow) -> None:
    claim = flow.start("a")._replace(rescues=9)
    connection.execute(text("UPDATE sa_jobqueue.job SET lease_expires_at = now() - interval '1 s'"))
    STORE.apply(connection, [decide(claim, Rescued(ErrorEntry("Lost", "x")), Rules(), random=0.5)])


def by_exchange(connection: Connection, flow: Flow) -> None:
    change = decide(flow.start("a"), Completed(), Rules(), random=0.5)
    STORE.exchange(connection, [change], ClaimRequest("w", {"default": 10}, 60.0))


def by_one(connection: Connection, flow: Flow) -> None:
    STORE.apply_one(connection, decide(flow.start("a"), Completed("3"), Rules(), random=0.5))


def by_function(connection: Connection, flow: Flow) -> None:
    claim = flow.start("a")
    connection.execute(
        text("SELECT sa_jobqueue.complete_member(:id, :token, NULL)"), {"id": claim.id, "token": claim.claim_token}
    )


def by_release_of_a_cancelled_job(connection: Connection, flow: Flow) -> None:
    flow.start("a")
    connection.execute(cancel_jobs(Job.id == flow.job("a"))).all()
    connection.execute(release_jobs(Job.id == flow.job("a"))).all()


WAYS: dict[str, tuple[Callable[[Connection, Flow], Any], bool]] = {
    "a batch": (lambda _, flow: flow.end("a", Completed()), True),
    "a batch with a claim": (by_exchange, True),
    "a handler's transaction": (by_one, True),
    "a handler's commit": (by_function, True),
    "a cancel by the handler": (lambda _, flow: flow.end("a", Cancel("no")), False),
    "its last failure": (lambda _, flow: flow.end("a", Retry(0)), False),
    "a rescue": (by_rescue, False),
    "an operator's cancel": (
        lambda connection, flow: connection.execute(cancel_jobs(Job.id == flow.job("a"))).all(),
        False,
    ),
    "an operator's discard": (
        lambda connection, flow: connection.execute(discard_jobs(Job.id == flow.job("a"))).all(),
        False,
    ),
    "a release": (by_release_of_a_cancelled_job, False),
    "its expiry": (by_expiry, False),
    "its deadline": (by_deadline, False),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_ending_is_told_to_the_workflow(connection: Connection, way: str) -> None:
    """In the statement that ends the job. And such a job stays as long as its workflow."""
    flow = Flow(connection, "a", "b: a")
    end, completes = WAYS[way]
    end(connection, flow)
    assert (flow.job("a"), completes) in events(connection)
    assert row(connection, flow.job("a")).purge_at is None
    flow.settle()
    assert flow.statuses()["b"] == ("queued" if completes else "cancelled")


def test_a_job_in_no_workflow_tells_nothing(connection: Connection) -> None:
    """Beside members in one batch."""
    flow = Flow(connection, "a")
    other = make_job(connection, "running", claim_token=7)
    done = [
        decide(flow.start("a"), Completed(), Rules(), random=0.5),
        decide(Claim(other, 7, 1, 9), Completed(), Rules(), random=0.5),
    ]
    STORE.apply(connection, done)
    assert events(connection) == [(flow.job("a"), True)]
    assert row(connection, other).purge_at is not None


def test_a_job_that_goes_back_tells_nothing(connection: Connection) -> None:
    """It has not ended."""
    flow = Flow(connection, "a", "b: a")
    change = decide(flow.start("a")._replace(max_attempts=9), Retry(0), Rules(), random=0.5)
    STORE.apply(connection, [change])
    assert events(connection) == []


def test_a_duplicate_in_a_workflow_has_ended(connection: Connection) -> None:
    """Its children are cancelled."""
    unique = TaskName("t").options(unique=Unique(key="k"))
    with Session(connection) as session:
        session.add(Job(task="t"))
    held = Flow(connection, "a", task=unique)
    flow = Flow(connection, "a", "b: a", task=unique)
    assert held.statuses() == {"a": "queued"}
    flow.settle()
    assert flow.statuses() == {"a": "cancelled", "b": "cancelled"}


def test_a_cancelled_member_gives_its_unique_key_back(connection: Connection) -> None:
    """Another may take it."""
    flow = Flow(connection, "a", "b: a", task=TaskName("t"))
    workflow = Workflow()
    node = workflow.add("t")
    workflow.after(node, TaskName("t").options(unique=Unique(key="k")))
    session = Session(connection)
    session.add(workflow)
    session.flush()
    assert connection.scalar(text("SELECT count(*) FROM sa_jobqueue.unique_key")) == 1
    connection.execute(cancel_workflows(workflow.id)).all()
    assert connection.scalar(text("SELECT count(*) FROM sa_jobqueue.unique_key")) == 0
    assert flow.statuses() == {"a": "queued", "b": "blocked"}


# ---- operators


def test_cancelling_a_workflow_cancels_all_that_waits(connection: Connection) -> None:
    """At once; what runs is asked to stop, and the workflow ends with it."""
    flow = Flow(connection, "a", "b", "c: a")
    claim = flow.start("a")
    assert connection.scalars(cancel_workflows(flow.id, reason="the customer left")).all() == [flow.id]
    assert flow.statuses() == {"a": "running", "b": "cancelled", "c": "cancelled"}
    assert flow.reason("c") == "the customer left"
    flow.settle()
    assert flow.row().finished_at is None
    STORE.apply(connection, [decide(claim, Cancel("x"), Rules(), random=0.5)])
    flow.settle()
    assert (flow.row().status, flow.row().reason) == ("cancelled", "the customer left")
    assert connection.scalars(cancel_workflows(flow.id)).all() == []


def test_what_is_added_to_a_cancelled_workflow_is_cancelled(connection: Connection) -> None:
    """By the handler that runs while it is."""
    flow = Flow(connection, "a")
    claim = flow.start("a")
    connection.execute(cancel_workflows(flow.id)).all()
    from sa_jobqueue.workflows import Addition

    more = Addition(flow.id, me=flow.job("a"))
    more.add("t")
    more.after(more.me, "t")
    added = connection.scalar(more.insert())
    STORE.apply(connection, [decide(claim, Completed(), Rules(), random=0.5)])
    flow.settle()
    assert {statuses(connection)[one] for one in added} == {"cancelled"}
    assert flow.row().status == "cancelled"


def test_a_retry_from_a_job_reopens_what_its_failure_had_cancelled(connection: Connection) -> None:
    """What another has cancelled, too, is cancelled again."""
    flow = Flow(connection, "a", "b", "c: a", "d: b", "e: c", "f: c d")
    flow.fail("a", "b")
    assert {flow.statuses()[name] for name in "cdef"} == {"cancelled"}
    back = connection.scalars(retry_workflow(flow.id, from_node=flow.job("b"))).all()
    assert set(back) == {flow.job("b"), flow.job("d"), flow.job("f")}
    flow.settle()
    assert flow.statuses() == {
        "a": "failed",
        "b": "queued",
        "c": "cancelled",
        "d": "blocked",
        "e": "cancelled",
        "f": "cancelled",
    }
    flow.complete("b", "d")
    connection.execute(retry_workflow(flow.id, from_node=flow.job("a"))).all()
    flow.settle()
    flow.complete("a", "c", "e", "f")
    assert flow.row().status == "completed"


def test_a_job_that_another_had_cancelled_keeps_its_due_time(connection: Connection) -> None:
    flow = Flow(connection, "a", "b: a")
    later = text("now() + interval '3 hours'")
    connection.execute(update(Job).where(Job.id == flow.job("b")).values(run_at=later))
    planned = row(connection, flow.job("b")).run_at
    flow.fail("a")
    connection.execute(retry_workflow(flow.id, from_node=flow.job("a"))).all()
    flow.settle()
    flow.complete("a")
    found = row(connection, flow.job("b"))
    assert (found.status, found.run_at) == ("queued", planned)


def test_what_another_failure_holds_is_cancelled_again(connection: Connection) -> None:
    """A retry from one of two failed parents."""
    flow = Flow(connection, "a", "b", "c: a b")
    flow.fail("a", "b")
    connection.execute(retry_workflow(flow.id, from_node=flow.job("a"))).all()
    flow.settle()
    assert flow.statuses() == {"a": "queued", "b": "failed", "c": "cancelled"}
    assert row(connection, flow.job("c")).errors[-1]["failed_id"] == flow.job("b")


def test_one_of_several_that_comes_back_may_suffice(connection: Connection) -> None:
    """Whichever of them is named as what has cancelled it."""
    flow = Flow(connection, "a", "b", "c: 1/a,b", "d: c")
    flow.fail("a", "b")
    assert row(connection, flow.job("c")).errors[-1]["failed_id"] == flow.job("a")
    connection.execute(retry_workflow(flow.id, from_node=flow.job("b"))).all()
    flow.settle()
    flow.complete("b", "c", "d")
    assert flow.statuses() == {"a": "failed", "b": "completed", "c": "completed", "d": "completed"}


def test_a_job_that_came_back_and_was_cancelled_before_anyone_looked_counts(connection: Connection) -> None:
    """The workflow has ended once more."""
    flow = Flow(connection, "a", "b")
    flow.complete("b")
    flow.fail("a")
    assert flow.row().status == "failed"
    connection.execute(retry_jobs(Job.id == flow.job("a"))).all()
    connection.execute(cancel_jobs(Job.id == flow.job("a"))).all()
    flow.settle()
    assert flow.row().status == "cancelled"


def test_what_has_begun_does_not_wait_for_what_its_parent_adds(connection: Connection) -> None:
    """It is past its parent; what waits still does wait for both."""
    flow = Flow(connection, "a", "b", "c: 1/a,b", "d: a")
    flow.complete("b", "c")
    more = Addition(flow.id, me=flow.job("a"))
    added = more.add(TaskName("new"))
    more.after([more.me, added], TaskName("newer"))
    more.before_children(added)
    ((new, newer),) = connection.scalars(more.insert()).all()
    waits = connection.execute(
        text("SELECT child_id FROM sa_jobqueue.workflow_dependency WHERE parent_id = :new"), {"new": new}
    )
    assert set(waits.scalars()) == {flow.job("d"), newer}


def test_a_retry_brings_all_back(connection: Connection) -> None:
    """Each waits for its parents again."""
    flow = Flow(connection, "a", "b: a", "c: b")
    flow.complete("a")
    flow.fail("b")
    assert flow.row().finished_at is not None
    assert len(connection.scalars(retry_workflow(flow.id)).all()) == 2
    flow.settle()
    assert flow.statuses() == {"a": "completed", "b": "queued", "c": "blocked"}
    assert flow.row().status == "running"
    flow.complete("b", "c")
    assert flow.row().status == "completed"


def test_retrying_a_job_alone_does_not_pass_its_parents(connection: Connection) -> None:
    """A member that was cancelled because of a parent is cancelled again."""
    flow = Flow(connection, "a", "b: a")
    flow.fail("a")
    connection.execute(retry_jobs(Job.id == flow.job("b"))).all()
    assert flow.statuses()["b"] == "blocked"
    flow.settle()
    assert flow.statuses()["b"] == "cancelled"
    connection.execute(retry_jobs(true())).all()
    flow.settle()
    assert flow.statuses() == {"a": "queued", "b": "blocked"}


def test_a_child_waits_again_for_a_parent_that_comes_back(connection: Connection) -> None:
    """Although it had passed it."""
    flow = Flow(connection, "a", "b", "c: a b")
    flow.complete("a")
    connection.execute(retry_jobs(Job.id == flow.job("a"))).all()
    flow.settle()
    flow.complete("b")
    assert flow.statuses()["c"] == "blocked"
    flow.complete("a")
    assert flow.statuses()["c"] == "queued"


@pytest.mark.parametrize("by", ["workflow", "job"])
def test_a_queued_child_waits_again_for_a_parent_that_comes_back(connection: Connection, by: str) -> None:
    """At once, before anyone has read what happened: else a claim would start it."""
    flow = Flow(connection, "a", "b: ~a", "c: ~a b")
    flow.fail("a")
    assert flow.statuses() == {"a": "failed", "b": "queued", "c": "blocked"}
    connection.execute(retry_workflow(flow.id) if by == "workflow" else retry_jobs(Job.id == flow.job("a"))).all()
    assert flow.statuses() == {"a": "blocked", "b": "blocked", "c": "blocked"}
    flow.settle()
    assert flow.statuses() == {"a": "queued", "b": "blocked", "c": "blocked"}
    flow.complete("a")
    assert flow.statuses() == {"a": "completed", "b": "queued", "c": "blocked"}


@pytest.mark.parametrize("by", ["workflow", "job"])
def test_a_child_is_not_released_past_a_parent_that_came_back_before(connection: Connection, by: str) -> None:
    """Although the end of its last parent was earlier, and is read alone."""
    flow = Flow(connection, "a", "b", "c: ~a b")
    flow.fail("a")
    flow.end("b", Completed())
    connection.execute(retry_workflow(flow.id) if by == "workflow" else retry_jobs(Job.id == flow.job("a"))).all()
    flow.advance(most=1)
    assert flow.statuses() == {"a": "blocked", "b": "completed", "c": "blocked"}
    flow.settle(most=1)
    assert flow.statuses() == {"a": "queued", "b": "completed", "c": "blocked"}
    flow.complete("a")
    assert flow.statuses()["c"] == "queued"


@pytest.mark.parametrize("limit", ["expires_at", "deadline_at"])
def test_a_blocked_member_ends_at_its_limit(connection: Connection, limit: str) -> None:
    """As a queued job does, and the members that wait for it are told."""
    flow = Flow(connection, "a", "b: a", "c: b")
    connection.execute(
        text(f"UPDATE sa_jobqueue.job SET {limit} = now() - interval '1 second' WHERE id = :id"), {"id": flow.job("b")}
    )
    end = STORE.end_expired if limit == "expires_at" else STORE.end_overdue
    assert [one.id for one in end(connection, limit=10)] == [flow.job("b")]
    assert row(connection, flow.job("b")).blocked_by is None
    flow.settle()
    ended = "cancelled" if limit == "expires_at" else "failed"
    assert flow.statuses() == {"a": "queued", "b": ended, "c": "cancelled"}


@pytest.mark.parametrize("end", [cancel_jobs, discard_jobs])
def test_a_blocked_member_that_an_operator_ends_waits_for_nothing(connection: Connection, end: Any) -> None:
    """An ended job names no other that it waits for."""
    flow = Flow(connection, "a", "b: a")
    connection.execute(end(Job.id == flow.job("b"))).all()
    assert row(connection, flow.job("b")).blocked_by is None


@pytest.mark.parametrize("by", ["workflow", "job"])
def test_a_locked_child_of_a_parent_that_comes_back_waits_after_the_lock(engine: Engine, by: str) -> None:
    """It is looked at until it does."""
    with engine.begin() as connection:
        flow = Flow(connection, "a", "b: ~a")
        flow.fail("a")
    with engine.connect() as one, engine.connect() as two:
        flow.connection = one
        two.execute(text("SELECT FROM sa_jobqueue.job WHERE id = :id FOR UPDATE"), {"id": flow.job("b")})
        one.execute(retry_workflow(flow.id) if by == "workflow" else retry_jobs(Job.id == flow.job("a"))).all()
        one.commit()
        assert flow.advance().busy == {flow.id}
        one.commit()
        assert flow.statuses() == {"a": "queued", "b": "queued"}
        two.rollback()
        flow.settle()
        assert flow.statuses() == {"a": "queued", "b": "blocked"}
        assert events(one) == []


@pytest.mark.parametrize("act", [pause_workflows, retry_workflow])
def test_a_pause_and_a_retry_leave_no_locked_member_out(engine: Engine, act: Callable[[int], Any]) -> None:
    """They wait for it, as other statements of operators do."""
    with engine.begin() as connection:
        flow = Flow(connection, "a", "b")
        if act is retry_workflow:
            flow.fail("a", "b")
    with engine.connect() as holder, engine.connect() as other, ThreadPoolExecutor(1) as pool:
        holder.execute(text("SELECT FROM sa_jobqueue.job WHERE id = :id FOR UPDATE"), {"id": flow.job("a")})
        other.execute(text("SET LOCAL lock_timeout = '10s'"))
        backend = other.scalar(text("SELECT pg_backend_pid()"))
        acting = pool.submit(lambda: other.execute(act(flow.id)).all())
        blocking = text("SELECT pg_backend_pid() = ANY (pg_blocking_pids(:backend))")
        wait_until(lambda: holder.scalar(blocking, {"backend": backend}))
        holder.rollback()
        acting.result()
        other.commit()
        flow.connection = holder
        assert flow.statuses() == {"a": "blocked", "b": "blocked"}


def test_a_paused_workflow_starts_nothing(connection: Connection) -> None:
    """What runs ends; then nothing is released until it goes on."""
    flow = Flow(connection, "a", "b", "c: a")
    claim = flow.start("a")
    assert connection.scalars(pause_workflows(flow.id)).all() == [flow.id]
    assert flow.statuses() == {"a": "running", "b": "blocked", "c": "blocked"}
    STORE.apply(connection, [decide(claim, Completed(), Rules(), random=0.5)])
    done = flow.advance()
    assert (done.again, done.busy, done.eaten) == (frozenset(), frozenset(), 0)
    assert flow.statuses()["c"] == "blocked"
    assert connection.scalars(pause_workflows(flow.id)).all() == []
    assert connection.scalars(resume_workflows(flow.id)).all() == [flow.id]
    flow.settle()
    assert flow.statuses() == {"a": "completed", "b": "queued", "c": "queued"}


def test_a_pause_of_several_workflows_locks_their_jobs_in_one_order(engine: Engine) -> None:
    """By id, whichever workflow each is of: so it cannot wait in a circle with a statement that locks by id."""
    with engine.begin() as connection:
        first, second = Flow(connection, "a"), Flow(connection, "a")
        low, high = second.job("a"), make_job(connection, workflow_id=first.id)
    lock = text("SELECT id FROM sa_jobqueue.job WHERE id = :id FOR UPDATE NOWAIT")
    with engine.connect() as one, engine.connect() as two, ThreadPoolExecutor(1) as pool:
        one.execute(lock, {"id": low})
        paused = pool.submit(lambda: two.scalars(pause_workflows(first.id, second.id)).all())
        wait_until_blocked_by(one)
        assert one.scalar(lock, {"id": high}) == high
        one.commit()
        assert paused.result() == [first.id, second.id]
        assert set(statuses(two).values()) == {"blocked"}


def test_paused_workflows_do_not_hide_others(connection: Connection) -> None:
    """What has happened in them is read when they go on, so they are not looked at."""
    paused, other = Flow(connection, "a", "b: a"), Flow(connection, "a", "b: a")
    connection.execute(pause_workflows(paused.id)).all()
    for flow in (paused, other):
        connection.execute(
            text("INSERT INTO sa_jobqueue.workflow_event (workflow_id, job_id) VALUES (:id, - :id)"), {"id": flow.id}
        )
    assert STORE.stray_workflows(connection) == [other.id]
    connection.execute(cancel_workflows(paused.id)).all()
    assert STORE.stray_workflows(connection) == [paused.id, other.id]


def test_a_deadline_cancels_and_the_workflow_has_failed(connection: Connection) -> None:
    """Found by what looks for events."""
    flow = Flow(connection, "a", "b: a", deadline=timedelta(hours=1))
    assert STORE.stray_workflows(connection) == []
    connection.execute(text("UPDATE sa_jobqueue.workflow SET deadline_at = now() - interval '1 s'"))
    assert STORE.stray_workflows(connection) == [flow.id]
    flow.settle()
    assert flow.statuses() == {"a": "cancelled", "b": "cancelled"}
    assert (flow.row().status, flow.row().reason) == ("failed", "the deadline of the workflow is over")
    assert flow.fired == ["on_failure", "on_end"]


def test_a_job_says_for_what_it_waits(connection: Connection) -> None:
    """Its parents, or the pause."""
    flow = Flow(connection, "a", "b", "c: a b")

    def said() -> list[str]:
        return [str(WaitReason(*one)) for one in connection.execute(why_waiting(flow.job("c")))]

    assert said() == [f"waits for 2 of its workflow to end (jobs {flow.job('a')}, {flow.job('b')})"]
    connection.execute(pause_workflows(flow.id)).all()
    assert said()[-1] == "waits for the pause of its workflow to end"


# ---- adding to one that is there


def test_jobs_are_added_from_outside(connection: Connection) -> None:
    """Behind some that are there."""
    flow = Flow(connection, "a", "b: a")
    flow.complete("a")
    more = Workflow.at(flow.id)
    more.after([more.node(flow.job("a"))], "now")
    more.after([more.node(flow.job("b"))], "later")
    now, later = connection.scalar(more.insert())
    flow.settle()
    assert (statuses(connection)[now], statuses(connection)[later]) == ("queued", "blocked")
    flow.complete("b")
    assert statuses(connection)[later] == "queued"
    assert flow.row().finished_at is None


def test_nothing_is_added_to_a_workflow_that_has_ended(connection: Connection) -> None:
    """Nor behind a job of another."""
    flow, other = Flow(connection, "a"), Flow(connection, "a")
    flow.complete("a")
    for addition, parent in (
        (Workflow.at(flow.id), None),
        (Workflow.at(10**9), None),
        (Workflow.at(other.id), flow.job("a")),
    ):
        if parent is None:
            addition.add("t")
        else:
            addition.after([addition.node(parent)], "t")
        with pytest.raises(DBAPIError) as caught, connection.begin_nested():
            connection.execute(addition.insert())
        assert getattr(caught.value.orig, "sqlstate", None) == "SJQ04"


def test_an_addition_holds_up_the_end_of_the_workflow_and_nobody_waits(engine: Engine) -> None:
    """Until its transaction ends."""
    with engine.begin() as connection:
        flow = Flow(connection, "a")
    with engine.connect() as adding, engine.connect() as other:
        more = Workflow.at(flow.id)
        more.add("t")
        adding.execute(more.insert())
        flow.connection = other
        flow.end("a", Completed())
        assert flow.advance().busy == {flow.id}
        other.commit()
        adding.commit()
        flow.settle()
        other.commit()
        assert flow.row().finished_at is None


# ---- two at once


def test_two_ends_at_once_release_once(engine: Engine) -> None:
    """Whichever commits last."""
    with engine.begin() as connection:
        flow = Flow(connection, "a", "b", "c: a b")
    with engine.connect() as one, engine.connect() as two:
        flow.connection = one
        flow.end("a", Completed())
        flow.connection = two
        flow.end("b", Completed())
        one.commit()
        flow.connection = one
        flow.settle()
        one.commit()
        assert flow.statuses()["c"] == "blocked"
        two.commit()
        flow.settle()
        one.commit()
        assert flow.statuses()["c"] == "queued"


@pytest.mark.parametrize("needed", [1, 2])
def test_one_that_needs_some_waits_for_all_that_these_add_before_it(engine: Engine, needed: int) -> None:
    """Two parents add at once, and the one that was given its ids first commits last."""
    with engine.begin() as connection:
        flow = Flow(connection, "a", "b", f"c: {needed}/a,b")
        ends = {name: decide(flow.start(name), Completed(), Rules(), random=0.5) for name in "ab"}
    added: dict[str, Node[Any]] = {}
    with engine.connect() as one, engine.connect() as two:
        for name, connection in {"a": one, "b": two}.items():
            more = Addition(flow.id, me=flow.job(name))
            more.before_children(more.add("a_task"))
            added[name] = more.node(connection.scalars(more.insert()).one()[0])
        assert added["a"].job_id < added["b"].job_id
        for name, connection in {"b": two, "a": one}.items():
            flow.connection = connection
            STORE.apply(connection, [ends[name]])
            connection.commit()
            flow.settle()
            connection.commit()
            assert flow.statuses()["c"] == "blocked"
        flow.nodes |= {f"before {name}": node for name, node in added.items()}
        flow.complete("before b")
        one.commit()
        assert flow.statuses()["c"] == "blocked"
        flow.complete("before a")
        one.commit()
        assert flow.statuses()["c"] == "queued"


def test_nothing_waits_for_a_locked_workflow_or_member(engine: Engine) -> None:
    """It is looked at again."""
    with engine.begin() as connection:
        flow = Flow(connection, "a", "b: a")
    with engine.connect() as one, engine.connect() as two:
        flow.connection = one
        flow.end("a", Completed())
        one.commit()
        two.execute(text("SELECT FROM sa_jobqueue.workflow FOR UPDATE"))
        assert flow.advance().busy == {flow.id}
        two.rollback()
        two.execute(text("SELECT FROM sa_jobqueue.job WHERE id = :id FOR UPDATE"), {"id": flow.job("b")})
        done = flow.advance()
        one.commit()
        assert done.busy == {flow.id}
        assert flow.statuses()["b"] == "blocked"
        two.rollback()
        flow.settle()
        one.commit()
        assert flow.statuses()["b"] == "queued"


def test_an_addition_holds_up_no_other_member(engine: Engine) -> None:
    """While the transaction that adds is open, those that are there go on; only the end and a pause wait for it."""
    with engine.begin() as connection:
        flow = Flow(connection, "a", "b: a")
    with engine.connect() as adding, engine.connect() as other:
        more = Workflow.at(flow.id)
        more.add("t")
        added = adding.scalar(more.insert())
        flow.connection = other
        flow.complete("a")
        assert flow.statuses()["b"] == "queued"
        flow.end("b", Completed())
        assert flow.advance().busy == {flow.id}
        assert flow.row().finished_at is None
        other.commit()
        other.execute(text("SET LOCAL lock_timeout = '50ms'"))
        with pytest.raises(DBAPIError):
            other.execute(pause_workflows(flow.id)).all()
        other.rollback()
        adding.commit()
        flow.settle()
        assert flow.row().finished_at is None
        assert statuses(other)[added[0]] == "queued"


def test_what_a_member_adds_while_its_workflow_is_paused_waits(engine: Engine) -> None:
    """A pause does not wait for what runs, which may take an hour; so what that adds does not know of the pause."""
    with engine.begin() as connection:
        flow = Flow(connection, "a")
        flow.start("a")
    with engine.connect() as adding, engine.connect() as other:
        more = Addition(flow.id, me=flow.job("a"))
        more.add("t")
        (child,) = adding.scalar(more.insert())
        flow.connection = other
        other.execute(pause_workflows(flow.id)).all()
        other.commit()
        adding.commit()
        assert statuses(other)[child] == "queued"
        assert flow.advance().eaten == 0
        assert statuses(other)[child] == "blocked"
        other.execute(resume_workflows(flow.id)).all()
        flow.settle()
        assert statuses(other)[child] == "queued"


def test_an_addition_is_inserted_once(connection: Connection) -> None:
    """A second statement of it would add all of it again."""
    more = Workflow.at(Flow(connection, "a").id)
    more.add("t")
    connection.execute(more.insert())
    with pytest.raises(WorkflowError, match="make another Addition"):
        more.insert()


# ---- keeping order


def test_a_large_workflow_is_cancelled_in_little_time(connection: Connection) -> None:
    """The time grows with the members, not with their square."""
    workflow = Workflow()
    for _ in range(12_000):
        workflow.add("t")
    session = Session(connection)
    session.add(workflow)
    session.flush()
    connection.execute(text("SET LOCAL statement_timeout = '20s'"))
    assert len(connection.execute(cancel_workflows(workflow.id)).all()) == 1
    assert set(statuses(connection).values()) == {"cancelled"}


@pytest.mark.parametrize("whole", [True, False])
def test_what_comes_back_is_not_deleted(connection: Connection, whole: bool) -> None:
    """A workflow was over when maintenance looked, and an operator retries it before it is deleted."""
    flow = Flow(connection, "a", "b: a", "c", retain=60)
    flow.complete("c")
    flow.fail("a")
    connection.execute(text("UPDATE sa_jobqueue.workflow SET purge_at = now() - interval '1 s'"))
    assert STORE.workflows_over(connection) == [flow.id]
    connection.execute(retry_workflow(flow.id) if whole else retry_jobs(Job.id == flow.job("a"))).all()
    assert STORE.workflows_over(connection) == []
    assert STORE.prune_workflow(connection, flow.id, seconds=5) == 0
    flow.settle()
    assert flow.statuses()["a"] == "queued"
    assert flow.row().status == "running"


def test_the_parents_of_a_job_that_needs_some_of_them_are_ended_by_hand(connection: Connection) -> None:
    """It is looked at once none of them goes on."""
    flow = Flow(connection, "a", "b", "c: 1/a,b")
    assert STORE.heal_workflows(connection) == (flow.id, 0)
    flow.settle()
    connection.execute(
        text("UPDATE sa_jobqueue.job SET status = 'completed', finished_at = now() WHERE id = :id"),
        {"id": flow.job("a")},
    )
    connection.execute(text("DELETE FROM sa_jobqueue.job WHERE id = :id"), {"id": flow.job("b")})
    assert STORE.heal_workflows(connection) == (flow.id, 1)
    del flow.nodes["b"]
    flow.settle()
    assert flow.statuses() == {"a": "completed", "c": "queued"}


def test_the_last_job_is_deleted_by_hand(connection: Connection) -> None:
    """The workflow ends all the same."""
    flow = Flow(connection, "a", "b")
    flow.complete("a")
    assert STORE.heal_workflows(connection) == (flow.id, 0)
    connection.execute(text("DELETE FROM sa_jobqueue.job WHERE id = :id"), {"id": flow.job("b")})
    assert STORE.heal_workflows(connection) == (flow.id, 1)
    assert STORE.stray_workflows(connection) == [flow.id]
    flow.settle()
    assert flow.row().finished_at is not None
    assert flow.fired[-1] == "on_end"
    assert STORE.heal_workflows(connection) == (flow.id, 0)
    assert STORE.heal_workflows(connection, after=flow.id) == (None, 0)


def test_nobody_makes_the_children_of_another_workflow_wait(connection: Connection) -> None:
    """The job that adds has to be a member of the workflow that it adds to."""
    victim, mine = Flow(connection, "a", "b: a"), Flow(connection, "x")
    addition = Addition(mine.id, me=victim.job("a"))
    addition.before_children(addition.add("t"))
    with pytest.raises(DBAPIError) as caught, connection.begin_nested():
        connection.execute(addition.insert())
    assert getattr(caught.value.orig, "sqlstate", None) == "SJQ04"


def test_plain_sql_by_hand_is_put_right(connection: Connection) -> None:
    """A parent that was ended, or deleted, without an event."""
    flow = Flow(connection, "a", "b", "c: a", "d: ~b", "e: b")
    connection.execute(
        text("UPDATE sa_jobqueue.job SET status = 'completed', finished_at = now() WHERE id = :id"),
        {"id": flow.job("a")},
    )
    connection.execute(text("DELETE FROM sa_jobqueue.job WHERE id = :id"), {"id": flow.job("b")})
    flow.settle()
    last, healed = STORE.heal_members(connection)
    assert (last, healed) == (flow.job("b"), 2)
    assert STORE.heal_members(connection, after=flow.job("b")) == (None, 0)
    assert STORE.heal_members(connection)[1] == 0
    del flow.nodes["b"]
    flow.settle()
    assert flow.statuses() == {"a": "completed", "c": "queued", "d": "queued", "e": "cancelled"}


def test_what_waits_in_a_workflow_that_was_deleted_by_hand_is_cancelled(connection: Connection) -> None:
    """What is queued runs; nobody would release the others, whatever they wait for."""
    flow = Flow(connection, "a", "b: a", "c: ~b", "d: 1/a,b")
    other = Flow(connection, "a", "b: a")
    connection.execute(text("DELETE FROM sa_jobqueue.workflow WHERE id = :id"), {"id": flow.id})
    STORE.heal_members(connection)
    assert flow.statuses() == {"a": "queued", "b": "cancelled", "c": "cancelled", "d": "cancelled"}
    assert (flow.reason("b"), events(connection)) == ("its workflow was deleted", [])
    assert other.statuses() == {"a": "queued", "b": "blocked"}


def test_what_happens_in_a_workflow_that_was_deleted_by_hand_is_read(connection: Connection) -> None:
    """And so its events are deleted, though no member waits."""
    flow, paused = Flow(connection, "a"), Flow(connection, "a")
    connection.execute(pause_workflows(paused.id)).all()
    connection.execute(text("DELETE FROM sa_jobqueue.workflow WHERE id = :id"), {"id": flow.id})
    flow.end("a", Completed())
    assert STORE.stray_workflows(connection) == [flow.id]
    STORE.advance(connection, {flow.id: 0})
    assert events(connection) == []
    assert STORE.stray_workflows(connection) == []


def test_a_workflow_is_deleted_as_a_whole(connection: Connection) -> None:
    """When its time is over; members of one that goes on are not, whatever an operator asks for."""
    flow, goes_on = Flow(connection, "a", "b: a", retain=60), Flow(connection, "a", "b: a")
    flow.complete("a", "b")
    goes_on.complete("a")
    assert len(connection.execute(prune_jobs(Job.workflow_id == goes_on.id)).all()) == 0
    assert STORE.workflows_over(connection) == []
    connection.execute(
        text("UPDATE sa_jobqueue.workflow SET purge_at = now() - interval '1 s' WHERE id = :id"), {"id": flow.id}
    )
    assert STORE.workflows_over(connection) == [flow.id]
    assert STORE.prune_workflow(connection, flow.id, limit=1, seconds=5) == 1
    assert STORE.prune_workflow(connection, flow.id, limit=2, seconds=5) == 1
    for table, left in {"workflow": 1, "workflow_dependency": 1, "workflow_callback": 3, "workflow_event": 0}.items():
        assert connection.scalar(text(f"SELECT count(*) FROM sa_jobqueue.{table}")) == left
    assert set(goes_on.statuses()) == {"a", "b"}


def test_a_batch_calls_back(connection: Connection) -> None:
    """As a workflow does."""
    batch = Batch("mails", meta={"order": 7})
    for _ in range(3):
        batch.add(TaskName("a_task"))
    batch.on_end(TaskName("ended").options(priority=9, delay=60), order=7)
    session = Session(connection)
    session.add(batch)
    session.flush()
    assert (batch.status, batch.name, batch.meta) == ("running", "mails", {"order": 7})
    flow = Flow.__new__(Flow)
    flow.connection, flow.workflow = connection, batch  # type: ignore[assignment]
    assert STORE.stray_workflows(connection) == []
    connection.execute(cancel_workflows(batch.id)).all()
    flow.settle()
    found = connection.execute(
        text(
            "SELECT task, args, meta, priority, run_at > now() AS later FROM sa_jobqueue.job WHERE workflow_id IS NULL"
        )
    ).one()
    assert found == ("ended", {"order": 7}, {"workflow_id": batch.id}, 9, True)

"""What users of Celery's canvas complained of, as graphs here: the numbers are those of its issues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import Batch, Discard, Failed, Job, JobContext, JobStatus, Registry, RetryPolicy, Workflow, task
from sa_jobqueue.models import WorkflowRow
from tests.support.waiting import wait_until
from tests.support.working import drain, job_of, working

SAID: list[Any] = []


@pytest.fixture
def tasks(registry: Registry) -> dict[str, Any]:
    SAID.clear()

    @task(registry=registry, name="one", record=True)
    def one(n: int = 1) -> int:
        if n < 0:
            raise Discard("on purpose")
        return n

    @task(registry=registry, name="second_time", record=True, retry=RetryPolicy(base=0.02, jitter=0))
    def second_time(ctx: JobContext) -> int:
        if ctx.attempt == 1:
            raise RuntimeError("once more")
        return 1

    @task(registry=registry, name="body", record=True)
    def body(parts: Sequence[int]) -> int:
        SAID.append(len(parts))
        return len(parts)

    @task(registry=registry, name="tolerant")
    def tolerant(parts: Sequence[int | Failed]) -> None:
        SAID.append([isinstance(part, Failed) for part in parts])

    @task(registry=registry, name="say")
    def say(what: str) -> None:
        SAID.append(what)

    return {name: one for name, one in locals().items() if name != "registry"}


def run(engine: Engine, url: str, registry: Registry, workflow: Workflow | Batch) -> str:
    with Session(engine) as session:
        session.add(workflow)
        session.flush()
        id = workflow.id
        session.commit()
    with working(url, registry):
        wait_until(lambda: ended(engine, id) is not None)
    drain(url, registry)  # what was called back
    return str(ended(engine, id))


def ended(engine: Engine, id: int) -> str | None:
    with Session(engine) as session:
        found = session.get_one(WorkflowRow, id)
        return found.status if found.finished_at is not None else None


def test_an_error_in_a_chain_of_the_header_is_called_back(
    engine: Engine, url: str, registry: Registry, tasks: dict[str, Any]
) -> None:
    """#3317: once, and the body does not run."""
    w = Workflow()
    body = w.gather([w.after(w.add(tasks["one"], -1), tasks["one"]), w.add(tasks["one"])], tasks["body"])
    w.on_failure(tasks["say"], "error")
    assert run(engine, url, registry, w) == "failed"
    assert SAID == ["error"]
    assert job_of(engine, body.job_id).status is JobStatus.CANCELLED


def test_an_error_in_a_chord_of_the_header_is_called_back(
    engine: Engine, url: str, registry: Registry, tasks: dict[str, Any]
) -> None:
    """#9107: a chord within the header of another."""
    w = Workflow()
    inner = w.gather([w.add(tasks["one"], -1), w.add(tasks["one"])], tasks["body"])
    w.gather([inner, w.add(tasks["one"])], tasks["body"])
    w.on_failure(tasks["say"], "error")
    assert run(engine, url, registry, w) == "failed"
    assert SAID == ["error"]


def test_a_failure_deep_in_a_header_leaves_nothing_waiting(
    engine: Engine, url: str, registry: Registry, tasks: dict[str, Any]
) -> None:
    """#9674: there nothing ends, and the unlock retries for ever."""
    w = Workflow()
    deep = w.after(w.after(w.add(tasks["one"]), tasks["one"], -1), tasks["one"])
    outer = w.gather([deep, w.add(tasks["one"])], tasks["body"])
    w.after(outer, tasks["say"], "never")
    assert run(engine, url, registry, w) == "failed"
    assert SAID == []
    with Session(engine) as session:
        assert session.query(Job).filter(Job.status.in_(["queued", "blocked", "running"])).count() == 0


def test_a_body_behind_groups_of_chains_runs(
    engine: Engine, url: str, registry: Registry, tasks: dict[str, Any]
) -> None:
    """#5612: groups of several levels, with chains in them."""
    w = Workflow()
    levels = [w.add(tasks["one"])]
    for _ in range(3):
        levels = [w.after(w.after(node, tasks["one"]), tasks["one"]) for node in levels for _ in range(2)]
    w.gather(levels, tasks["body"])
    assert run(engine, url, registry, w) == "completed"
    assert SAID == [8]


@pytest.mark.parametrize("retried", [1, 5])
def test_the_body_waits_for_what_is_tried_again(
    engine: Engine, url: str, registry: Registry, tasks: dict[str, Any], retried: int
) -> None:
    """#1401, #2324, #2405: there it never ran, or too early."""
    w = Workflow()
    nodes = [w.add(tasks["second_time"] if n < retried else tasks["one"]) for n in range(5)]
    w.gather(nodes, tasks["body"])
    assert run(engine, url, registry, w) == "completed"
    assert SAID == [5]


def test_a_body_runs_although_a_header_failed_if_it_is_to(
    engine: Engine, url: str, registry: Registry, tasks: dict[str, Any]
) -> None:
    """#1881: with what is there."""
    w = Workflow()
    w.gather_partial([w.add(tasks["one"]), w.add(tasks["one"], -1)], tasks["tolerant"])
    assert run(engine, url, registry, w) == "failed"
    assert SAID == [[False, True]]


def test_a_body_of_a_hundred_headers_runs_once(
    engine: Engine, url: str, registry: Registry, tasks: dict[str, Any]
) -> None:
    """#4207: not always, there."""
    w = Workflow()
    w.gather([w.add(tasks["one"]) for _ in range(100)], tasks["body"])
    assert run(engine, url, registry, w) == "completed"
    assert SAID == [100]


def test_a_header_that_becomes_a_chord_holds_up_the_body(
    engine: Engine, url: str, registry: Registry, tasks: dict[str, Any]
) -> None:
    """#4368: a task that is replaced by a chord, within a chord."""

    @task(registry=registry, name="becomes", record=True)
    def becomes(ctx: JobContext) -> int:
        more = Workflow.of(ctx)
        inner = more.gather([more.add(tasks["one"]) for _ in range(3)], tasks["body"])
        more.before_children(inner)
        ctx.session.execute(more.insert())
        return 0

    w = Workflow()
    w.gather([w.add(becomes), w.add(tasks["one"])], tasks["body"])
    assert run(engine, url, registry, w) == "completed"
    assert SAID == [3, 2]


@pytest.mark.parametrize("kind", [Workflow, Batch])
def test_an_empty_group_completes(
    engine: Engine, url: str, registry: Registry, tasks: dict[str, Any], kind: Any
) -> None:
    """#9772: it crashes, there."""
    empty = kind("empty")
    empty.on_success(tasks["say"], "success")
    assert run(engine, url, registry, empty) == "completed"
    assert SAID == ["success"]


def test_an_empty_group_before_a_body_is_an_empty_list(
    engine: Engine, url: str, registry: Registry, tasks: dict[str, Any]
) -> None:
    """A body with no header runs, with no parts."""
    w = Workflow()
    w.gather([], tasks["body"])
    assert run(engine, url, registry, w) == "completed"
    assert SAID == [0]

"""Agents of Pydantic AI in jobs: recorded requests and calls are not repeated, and approvals are signals."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import JobStatus, Signal, enqueue
from sa_jobqueue.models import Step, Wait
from tests.support.commands import start_command
from tests.support.killed import FOLDER
from tests.support.waiting import wait_until
from tests.support.working import add_one, drain, job_of, long_healthy, working


@pytest.fixture
def app() -> Any:
    """The agents, and what they have done."""
    module = importlib.import_module("tests.support.agent_app")
    module.done.clear()
    return module


def send(engine: Engine, name: str, payload: object) -> None:
    with Session(engine) as session:
        session.add(Signal(name, payload))
        session.commit()


def steps(engine: Engine) -> set[str]:
    with Session(engine) as session:
        return set(session.scalars(select(Step.name)))


def test_a_run_that_waits_for_an_approval_repeats_nothing(engine: Engine, app: Any) -> None:
    """The signal's name has the agent, the job and the call. The names of steps are stored in databases, so they must not change."""
    job = add_one(engine, enqueue(app.answer))
    with working(engine, app.registry):
        wait_until(lambda: job_of(engine, job).status is JobStatus.BLOCKED)
        with Session(engine) as session:
            wait = session.scalars(select(Wait)).one()
        assert "May clerk call refund(" in str(wait.question)
        assert wait.signal == f"clerk:{job}:call_3"
        send(engine, wait.signal, True)
        wait_until(lambda: job_of(engine, job).is_finished)

    assert job_of(engine, job).result == ["refunded", f"{job}:clerk", {"paid": 10}, {"paid": 20}, "done"]
    tool = "clerk__function_toolset__<agent>.call_tool"
    keys = [f"{job}:{tool}:look_up:call_{n}:1" for n in (2, 1)]
    assert app.done == ["request 1", *keys, "request 2", "refund 2", "request 3"]
    assert steps(engine) == {
        "clerk__model.request",
        "clerk__model.request#2",
        "clerk__model.request#3",
        f"{tool}:look_up:call_1",
        f"{tool}:look_up:call_2",
        f"{tool}:refund:call_3",
        f"signal:clerk:{job}:call_3",
    }


@pytest.mark.nightly
def test_a_def_handler_runs_agents_too(engine: Engine, app: Any) -> None:
    """Its runs are numbered, and a second attempt repeats neither of them. A tool with `False` is not a step, so it may have steps itself."""
    job = add_one(engine, enqueue(app.see))
    drain(engine, app.registry)

    assert job_of(engine, job).result == ["found", "found"]
    assert app.done == ["request 1", "look", "request 2"] * 2
    requests = {f"{run}__model.request{number}" for run in ("seer", "seer.2") for number in ("", "#2")}
    assert steps(engine) == {*requests, "look", "look#2"}


@pytest.mark.nightly
def test_what_runs_when_a_tool_waits_is_recorded(engine: Engine, app: Any) -> None:
    """The other call of a `def` handler ends before the job is blocked, and is not repeated."""
    job = add_one(engine, enqueue(app.watches))
    with working(engine, app.registry):
        wait_until(lambda: job_of(engine, job).status is JobStatus.BLOCKED)
        assert app.done == ["request 1", "watched"]
        send(engine, "over", "over")
        wait_until(lambda: job_of(engine, job).is_finished)
    assert job_of(engine, job).result == ["watched", "over"]
    assert app.done == ["request 1", "watched", "request 2"]


@pytest.mark.nightly
def test_a_killed_worker_repeats_no_recorded_request(engine: Engine, url: str, tmp_path: Path, app: Any) -> None:
    """It is killed between two tool calls, and after an approval. Each request and each call happens once."""
    long_healthy(engine, 2.0)
    job = add_one(engine, enqueue(app.sells))
    send(engine, f"seller:{job}:call_3", True)
    options = ("--app=tests.support.agent_app:registry", "--lease=2", "--max-rescues=50")
    for _ in app.POINTS:
        with start_command("work", *options, url=url, env={FOLDER: str(tmp_path)}) as worker:
            wait_until(lambda: worker.process.poll() is not None, 60)
    with start_command("work", *options, url=url, env={FOLDER: str(tmp_path)}):
        wait_until(lambda: job_of(engine, job).is_finished, 60)

    lines = (tmp_path / "effects").read_text().split("\n")[:-1]
    assert lines == ["request 1", "find", "request 2", "pack", "request 3", "sell", "request 4"]
    assert (job_of(engine, job).result, job_of(engine, job).rescues) == ("sold", len(app.POINTS))


@pytest.mark.nightly
def test_answers_come_by_signals(engine: Engine, app: Any) -> None:
    """A denial, an approval with other arguments, a result from outside, and no answer before the timeout."""
    given = {"no": False, "other": {"kind": "tool-approved", "override_args": {"n": 7}}, "outside": {"found": [1]}}
    job = add_one(engine, enqueue(app.asks))
    for call, payload in given.items():
        send(engine, f"asker:{job}:{call}", payload)
    with working(engine, app.registry):
        wait_until(lambda: job_of(engine, job).is_finished)

    denied, late = "The tool call was denied.", "No answer came in time."
    assert job_of(engine, job).result == [denied, "ordered 7", {"found": [1]}, late]
    assert app.done == ["request 1", "request 2", "request 3"]


@pytest.mark.nightly
def test_an_agent_that_a_tool_runs_is_a_part_of_its_step(engine: Engine, app: Any) -> None:
    """Concurrent runs have steps of their own, so they cannot share the durability of an agent. A run may bring its own model, but no toolset."""
    job = add_one(engine, enqueue(app.delegates))
    drain(engine, app.registry)

    assert job_of(engine, job).result == ['{"delegate":"success (no tool calls)"}'] * 2
    assert "'own' cannot be added at runtime" in app.done[0]
    assert "need a SaJobqueueDurability each" in app.done[1]
    call = "__function_toolset__<agent>.call_tool:delegate:pyd_ai_tool_call_id__delegate"
    request = "__model.request.run:test:test"
    outer = {f"{run}{step}" for run in ("o", "o.2") for step in (request, f"{request}#2", call)}
    assert steps(engine) == {*outer, "inner__model.request", "both__model.request"}


@pytest.mark.nightly
def test_a_request_is_traced_once(engine: Engine, app: Any) -> None:
    """A request that an earlier attempt recorded makes no second span."""
    job = add_one(engine, enqueue(app.trace))
    drain(engine, app.registry)
    assert job_of(engine, job).attempt == 2
    names = [span.name for span in app.exporter.get_finished_spans()]
    assert [name for name in names if name.startswith("chat")] == ["chat test"]

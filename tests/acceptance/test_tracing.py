"""A trace from a web request to the last job, as a collector gets it from real processes."""

from __future__ import annotations

import importlib.metadata
import re
import signal
import sys
import urllib.request
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.support.commands import start_command
from tests.support.nightly import nightly
from tests.support.otlp import Received, Span, receiver
from tests.support.waiting import wait_until
from tests.support.working import finished, job_of, lapse, long_healthy

#: Any process, as `opentelemetry-instrument` starts it.
INSTRUMENT = (
    sys.executable, "-c", "from opentelemetry.instrumentation.auto_instrumentation import run; run()", sys.executable, "-m"
)  # fmt: skip
WORK = ("sa_jobqueue", "work", "--app", "tests.support.traced", "--queue", "shop=2", "--poll", "0.2")


@pytest.fixture
def instrumentor() -> None:
    """The entry point by which `opentelemetry-instrument` finds us."""
    found = importlib.metadata.entry_points(group="opentelemetry_instrumentor", name="sa_jobqueue")
    assert [one.value for one in found] == ["sa_jobqueue.otel:SaJobqueueInstrumentor"], "install the package again"


def one(spans: list[Span]) -> Span:
    (span,) = spans
    return span


def post(address: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(f"{address}/orders", method="POST")) as answer:
        assert answer.status == 200


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, *nightly(2)])
@pytest.mark.usefixtures("instrumentor")
def test_a_trace_goes_from_a_request_through_a_retry_and_a_rescue_to_the_child_job(
    engine: Engine, url: str, tmp_path: Path, processes: int
) -> None:
    """One span for each attempt. The first is in the trace of the request; later ones are linked to it. Where the second worker
    has several processes, they are instrumented as the command is.
    """
    held, go = tmp_path / "said", tmp_path / "go"
    env = {"TRACED_SAID": str(held), "TRACED_GO": str(go)}
    with receiver() as received:
        web = {**env, **received.environment("web")}
        with start_command(
            "uvicorn", "tests.support.traced:app", "--port", "0", url=url, env=web, command=INSTRUMENT
        ) as server:
            first = {**env, **received.environment("first")}
            with start_command(*WORK, url=url, env=first, command=INSTRUMENT) as worker:
                server.wait_for("running on")
                post(re.findall(r"running on (\S+)", server.output)[0])
                wait_until(held.exists)
                wait_until(lambda: received.spans(kind="CONSUMER"))
                worker.kill_group()
            go.touch()
            lapse(engine, 1)
            long_healthy(engine)
            second = {**env, **received.environment("second")}
            with start_command(*WORK, f"--processes={processes}", url=url, env=second, command=INSTRUMENT) as worker:
                wait_until(lambda: finished(engine, 1, 2))
                wait_until(lambda: received.metric("sa_jobqueue.jobs", "second", task="fulfil", outcome="completed"))
                worker.send(signal.SIGTERM)
                assert worker.wait() == 0, worker.output
            server.send(signal.SIGTERM)
            server.wait()
        assert_traced(received)
        assert received.metric("messaging.client.consumed.messages", "second", task="receipt") == 1
        assert received.metric("sa_jobqueue.job.run_time.bucket", "second", task="receipt", le="+Inf") == 1
    job = job_of(engine, 1)
    assert (job.attempt, job.rescues) == (2, 1)
    assert list(job.meta) == ["otel"]


def assert_traced(received: Received) -> None:
    request = one(received.spans(service="web", kind="SERVER"))
    ordered = one(received.spans(service="web", kind="PRODUCER"))
    assert (ordered.name, ordered.trace, ordered.parent) == ("enqueue shop", request.trace, request.id)
    assert ordered.attributes == {
        "messaging.system": "sa_jobqueue",
        "messaging.destination.name": "shop",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "create",
        "sa_jobqueue.task": "fulfil",
    }
    failed = one(received.spans(service="first", kind="CONSUMER"))
    assert (failed.name, failed.trace, failed.parent) == ("process shop", request.trace, ordered.id)
    assert (failed.links, failed.failed, failed.events) == ([(request.trace, ordered.id)], True, ["exception"])
    assert (
        failed.attributes.items()
        >= {
            "messaging.message.id": "1",
            "messaging.operation.type": "process",
            "sa_jobqueue.attempt": 1,
            "sa_jobqueue.outcome": "retried",
            "error.type": "ConnectionError",
        }.items()
    )
    # The attempt whose process was killed has no end, and so no span. The one that takes its place has its number.
    spans = {span.attributes["sa_jobqueue.task"]: span for span in received.spans(service="second", kind="CONSUMER")}
    assert len(spans) == len(received.spans(service="second", kind="CONSUMER"))
    again, child = spans["fulfil"], spans["receipt"]
    assert (again.parent, again.links, again.failed) == ("", [(request.trace, ordered.id)], False)
    assert again.trace != request.trace
    assert again.attributes.items() >= {
        "sa_jobqueue.attempt": 2, "sa_jobqueue.rescues": 1, "sa_jobqueue.outcome": "completed",
    }.items()  # fmt: skip
    enqueued = one(received.spans(service="second", kind="PRODUCER"))
    assert (enqueued.trace, enqueued.parent) == (again.trace, again.id)
    assert (child.trace, child.parent, child.links) == (again.trace, enqueued.id, [(again.trace, enqueued.id)])

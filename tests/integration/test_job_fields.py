"""The job's fields on the lines that its handler writes by any logger."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from sa_jobqueue import Registry, enqueue, remove_middleware, task
from sa_jobqueue.tasks.middleware import add_job_fields, add_source, are_added, installed, remove_source
from tests.support import surrounded
from tests.support.commands import run_command
from tests.support.nightly import nightly
from tests.support.working import add, add_one, drain


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Iterator[Kept]:
    """What the application's handler of logs gets."""
    handler, logger = Kept(), logging.getLogger("shop")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    for middleware in installed.all:
        remove_middleware(middleware)


@pytest.mark.parametrize("log_format", ["json", *nightly("text")])
def test_a_worker_that_writes_json_writes_the_jobs_fields(engine: Engine, url: str, log_format: str) -> None:
    """On lines of handlers of each kind, by any logger, except what the line says itself. A line of text stays as it is."""
    tasks = (surrounded.logs, surrounded.logs_async, surrounded.logs_in_child)
    ids = add(engine, *map(enqueue, tasks))
    arguments = ("--app", "tests.support.surrounded:registry", "--drain", "--log-format", log_format)
    done = run_command("work", *arguments, url=url)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "a line" in line]
    assert len(lines) == 3
    if log_format == "text":
        assert all(line.endswith("WARNING a line") for line in lines)
        return
    found = {line["job_id"]: line for line in map(json.loads, lines)}
    assert [found[id]["task"] for id in ids] == ["logs", "logs_async", "logs_in_child"]
    assert [found[id]["queue"] for id in ids] == ["its own", "default", "default"]
    assert {(line["attempt"], line["logger"]) for line in found.values()} == {(1, "shop")}


def test_a_worker_inside_of_a_program_has_them_where_it_asks_for_them(
    engine: Engine, url: str, registry: Registry, kept: Kept
) -> None:
    """Lines that are written outside of a handler have none; one source that fails takes no other's along."""

    @task(registry=registry, name="handler")
    def handler() -> None:
        logging.getLogger("shop").warning("inside")

    def fail() -> dict[str, str]:
        raise LookupError

    def trace() -> dict[str, str]:
        return {"trace_id": "abc", "task": "not this one"}

    assert not are_added()
    for _ in range(2):
        add_job_fields(kept)
    assert are_added()
    for source in (fail, trace, trace):
        add_source(source)
    id = add_one(engine, enqueue(handler))
    drain(url, registry)
    remove_source(trace)
    add_one(engine, enqueue(handler))
    drain(url, registry)
    remove_source(fail)
    logging.getLogger("shop").warning("outside")
    first, second, outside = kept.records
    assert vars(first).items() >= {"job_id": id, "task": "handler", "trace_id": "abc"}.items()
    assert vars(second)["attempt"] == 1
    assert "trace_id" not in vars(second)
    assert "job_id" not in vars(outside)

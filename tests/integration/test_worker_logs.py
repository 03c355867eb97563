"""What a worker says of its jobs in the log of an application that set up logging by itself."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import Engine

from sa_jobqueue import Registry, enqueue, task
from tests.support.factory import make_job
from tests.support.working import add_one, drain

HOSTILE = "no order\n12:00:00 INFO    all is well\x1b[2J"


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_nothing_that_a_job_brings_along_breaks_a_line_of_the_log(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the text of an exception, nor the name of a task that is not known, at any level."""

    @task(registry=registry, name="fails")
    def fails() -> None:
        raise LookupError(HOSTILE)

    add_one(engine, enqueue(fails))
    with engine.begin() as connection:
        make_job(connection, task=HOSTILE)
    with caplog.at_level(logging.DEBUG, "sa_jobqueue"):
        drain(url, registry)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("sa_jobqueue")]
    assert sum("all is well" in message for message in said) == 2
    assert all(message.isprintable() for message in said)

"""What jobs leave behind, read over every driver, in both Sessions and on plain connections: results, progress, log lines."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import undefer

from sa_jobqueue import Job, JobStatus, Registry, task
from sa_jobqueue.errors import ResultError
from sa_jobqueue.rules.lifecycle import Rules, decide
from sa_jobqueue.rules.outcomes import Completed
from sa_jobqueue.sql.notes import write_logs, write_progress
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import job_logs
from tests.conformance.conftest import SESSIONS, Client, settle
from tests.support.factory import make_job, seen

registry = Registry()
sessions = pytest.mark.parametrize("client", SESSIONS, ids="-".join, indirect=True)


@dataclass
class Line:
    item: str
    price: Decimal


@dataclass
class Report:
    lines: list[Line]
    made: datetime
    key: UUID
    number: float
    large: int
    nothing: None


@task(registry=registry, name="report", record=True)
def report() -> Report:
    return Report(
        [Line('it\'s "{NULL,\\}"', Decimal("0.10")), Line("\u2028😀\x7f", Decimal("1e300"))],
        datetime(2026, 11, 21, 1, 2, 3, 4, tzinfo=UTC), UUID(int=7), -1.7976931348623157e308, 2**63, None,
    )  # fmt: skip


@task(registry=registry, name="anything", record=True)
def anything() -> Any: ...


PLAIN: list[Any] = [None, True, 0, -1, 2**63, -(10**300), 0.1, 5e-324, "", "null", '"\\', [], {}, [[{"a": None}]]]


def completed(application: Engine, name: str, results: list[str | None]) -> list[int]:
    """Jobs that a worker has ended with these results."""
    with application.begin() as connection:
        ids = [make_job(connection, "running", task=name) for _ in results]
        changes = [
            decide(seen(connection, id), Completed(result), Rules(), random=0.5)
            for id, result in zip(ids, results, strict=True)
        ]
        default_store.apply(connection, changes)
    return ids


@sessions
async def test_a_result_comes_back_typed(client: Client, application: Engine) -> None:
    """The same value that the handler returned, by the task and by a type that is named; and as plain JSON."""
    wanted = report()
    (id,) = completed(application, "report", [report.encode_result(wanted)])
    async with client.open() as unit:
        job = await settle(unit.get(Job, id))
        assert job.status is JobStatus.COMPLETED
        assert report.result(job) == job.result_as(Report) == wanted
        assert job.result["key"] == str(UUID(int=7))
        with pytest.raises(ResultError, match="its result is no int"):
            job.result_as(int)


async def test_plain_results_are_equal_to_what_was_recorded(client: Client, application: Engine) -> None:
    """JSON's null is as no result; numbers keep all their digits."""
    ids = completed(application, "anything", [anything.encode_result(value) for value in PLAIN])
    async with client.open() as unit:
        rows = (await settle(unit.execute(select(Job.id, Job.result)))).all()
    found = dict(tuple(row) for row in rows)
    assert [found[id] for id in ids] == PLAIN
    assert [type(found[id]) for id in ids] == [type(value) for value in PLAIN]


async def test_progress_and_log_lines_are_read(client: Client, application: Engine) -> None:
    """Of a job that runs, in the order in which it said them; of another job there is nothing."""
    made = datetime(2026, 11, 21, 1, 2, 3, 500_000, tzinfo=UTC)
    at = made.timestamp()
    lines = f'[[{at}, "INFO", "it\'s \\"first\\""], [{at + 1}, "ERROR", "😀"]]'
    with application.begin() as connection:
        id, other = make_job(connection, "running"), make_job(connection, "running")
        connection.execute(write_progress(ids=[id], tokens=[1], fractions=[0.1], messages=["page 3"], ended=[False]))
        connection.execute(
            write_logs(
                ids=[id], tokens=[1], parts=[0], first=[0], attempts=[1], lines=[lines], ended=[False]
            )
        )  # fmt: skip
    async with client.open() as unit:
        said = (await settle(unit.execute(job_logs(id)))).all()
        assert [tuple(row) for row in said] == [
            (1, made, "INFO", 'it\'s "first"'), (1, made + timedelta(seconds=1), "ERROR", "😀"),
        ]  # fmt: skip
        assert (await settle(unit.execute(job_logs(id, attempt=2)))).all() == []
        rows = await settle(unit.execute(select(Job.id, Job.progress, Job.progress_message).order_by(Job.id)))
        assert [tuple(row) for row in rows] == [(id, 0.1, "page 3"), (other, None, None)]
        if client.is_orm:
            found = await settle(unit.scalars(select(Job).options(undefer(Job.progress)).where(Job.id == other)))
            assert found.one().progress is None

"""`explain_job` over every driver, with both Sessions and on plain connections."""

from __future__ import annotations

import uuid
from datetime import timedelta

from sqlalchemy import Engine, insert

from sa_jobqueue import KeyLimits, explain_job
from sa_jobqueue.models import WorkerRow
from sa_jobqueue.statements import pause, set_limit
from tests.conformance.conftest import Client, settle
from tests.support.factory import make_job


async def test_every_driver_gets_the_same_reasons(client: Client, engine: Engine) -> None:
    """Of jobs that wait, run and have ended, with names, times and ids of the right types."""
    row = {"host": "web-1", "pid": 7, "queues": ["default"], "concurrency": 4, "version": "1", "tasks": {"other": {}}}
    with engine.begin() as connection:
        connection.execute(set_limit("default", per_key=KeyLimits(running=1)))
        connection.execute(pause("default", key="42", reason='it\'s "down" ?'))
        connection.execute(insert(WorkerRow).values(id=uuid.uuid4(), **row))
        ran = make_job(connection, "running", concurrency_key="42", worker="gone", claimed_at=timedelta(minutes=-5))
        keyed = make_job(connection, concurrency_key="42")
        errors = [{"type": "ValueError", "message": "no", "at": "", "attempt": 1, "traceback": ""}]
        failed = make_job(connection, "failed", errors=errors)
        job = make_job(connection)
        skips = {**row, "tasks": {}, "skipped": {str(job): "not on a Sunday"}}
        connection.execute(insert(WorkerRow).values(id=uuid.uuid4(), **skips))
    async with client.open() as unit:
        found = {one: await settle(explain_job(unit, one)) for one in (ran, keyed, failed, job, job + 1)}
    assert {one: [reason.what for reason in answer] for one, answer in found.items()} == {
        ran: ["lost"],
        keyed: ["paused", "running"],
        failed: ["failed"],
        job: ["refused"],
        job + 1: ["missing"],
    }
    paused, running = found[keyed]
    assert (paused.reason, running.job_ids, running.limit) == ('it\'s "down" ?', [ran], 1)
    assert found[failed].reasons[0].reason == "ValueError: no"
    refusal = found[job].reasons[0]
    assert (refusal.reason, refusal.used, refusal.limit, refusal.name) == ("not on a Sunday", 1, 2, "web-1:7")
    until = found[ran].reasons[0].until
    assert until is not None
    assert timedelta(seconds=0) < until - found[ran].at < timedelta(minutes=2)

"""`task.edit`: the arguments of a job that waits, checked as those of `enqueue`, over every driver and in both Sessions."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import Job, Registry, enqueue, task
from sa_jobqueue.errors import PayloadError, StatusError, TaskError
from tests.conformance.conftest import SESSIONS, Client, settle
from tests.support.factory import make_job, row
from tests.support.orders import Base, Order

registry = Registry()
sessions = pytest.mark.parametrize("client", SESSIONS, ids="-".join, indirect=True)


@task(registry=registry, name="send", aliases=["send_old"])
def send(order_id: int, note: str = "") -> None: ...


@task(registry=registry, name="ship")
def ship(order: Order) -> None: ...


@sessions
async def test_arguments_of_a_job_that_waits_are_changed_in_the_callers_transaction(
    client: Client, engine: Engine
) -> None:
    """By the job or its id. A job that runs, has ended or is of another task stays as it is, and nothing is returned."""
    with engine.begin() as connection:
        ids = [
            make_job(connection, "queued", task="send", args={"order_id": 7}),
            make_job(connection, "blocked", task="send_old", args={"order_id": 7}),
            make_job(connection, "running", task="send", args={"order_id": 7}),
            make_job(connection, "failed", task="send", args={"order_id": 7}),
            make_job(connection, "queued", task="other", args={"order_id": 7}),
        ]
    async with client.open() as unit:
        job: Any = await settle(unit.get(Job, ids[0]))
        answers = [(await settle(unit.scalars(send.edit(one, 8, note="x")))).all() for one in (job, *ids[1:])]
        assert answers == [[ids[0]], [ids[1]], [], [], []]
        await settle(unit.commit())
    with engine.begin() as connection:
        found = [row(connection, one).args for one in ids]
    assert found == [*[{"order_id": 8, "note": "x"}] * 2, *[{"order_id": 7}] * 3]


def test_what_does_not_fit_is_refused_before_any_sql() -> None:
    """Arguments of another signature, and a job of another task."""
    job = enqueue(send, 7)
    with pytest.raises(PayloadError, match="unknown argument order; it takes \\(order_id, note\\)"):
        send.edit(job, order=8)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    with pytest.raises(TaskError, match="is of task 'send', not of 'ship'"):
        ship.edit(job, Order())
    with pytest.raises(StatusError, match="the job has no id yet"):
        send.edit(job, 8)
    for wrong in (True, 2**63, "7", None):
        with pytest.raises(TypeError, match="takes a job or its id"):
            send.edit(wrong, 8)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_a_loaded_job_that_does_not_wait_is_refused_by_name_of_its_state(engine: Engine) -> None:
    """So is a member of a workflow whose first arguments are results of others."""
    with engine.begin() as connection:
        running = make_job(connection, "running", task="send")
        member = make_job(connection, "queued", task="send", inputs=1)
    with Session(engine) as session:
        with pytest.raises(StatusError, match=f"job {running} is running: only a job that waits"):
            send.edit(session.get_one(Job, running), 8)
        with pytest.raises(StatusError, match=f"job {member} is given the results of other jobs"):
            send.edit(session.get_one(Job, member), 8)


def test_objects_are_arguments_as_they_are_of_enqueue(engine: Engine) -> None:
    """By their key, which must be there."""
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        first, second = Order(), Order()
        session.add_all([first, second])
        session.flush()
        job = enqueue(ship, first)
        session.add(job)
        session.flush()
        assert session.scalars(ship.edit(job, second)).all() == [job.id]
        session.refresh(job)
        assert job.args == {"order": second.id}
        with pytest.raises(PayloadError):
            ship.edit(job, Order())

"""A workflow whose workers are killed: each job of it is done, and what waited is released."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Session

from sa_jobqueue import Workflow
from sa_jobqueue.models import WorkflowRow
from tests.acceptance import app
from tests.acceptance.conftest import Shop
from tests.support.waiting import wait_until


def test_a_workflow_goes_on_after_its_worker_was_killed(shop: Shop) -> None:
    """Its parent is rescued, and the child that waited for it runs on another worker."""
    workflow = Workflow("killed")
    parent = workflow.add(app.held, "a")
    child = workflow.after(parent, app.held_async, "b")
    with Session(shop.engine) as session:
        session.add(workflow)
        session.flush()
        id, ids = workflow.id, [parent.job_id, child.job_id]
        session.commit()
    with shop.work() as first:
        shop.wait_said("started-a")
        first.kill()
        shop.lose(ids[0])
        with shop.work() as second:
            shop.wait_said("started-b")
            second.kill()
            shop.lose(ids[1])
            with shop.work_here():
                jobs = shop.wait_for(*ids)
                wait_until(lambda: ended(shop, id))
    assert [(job.rescues, job.claims) for job in jobs] == [(1, 2), (1, 2)]
    assert sorted(effect.job_id for effect in shop.effects()) == ids
    with shop.engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM sa_jobqueue.workflow_event")) == 0


def ended(shop: Shop, id: int) -> bool:
    with Session(shop.engine) as session:
        return session.get_one(WorkflowRow, id).finished_at is not None
